//! Where a listener's port is bound on the proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{ListenerKey, PortKey};
use vestibule_model::merge::Merge;
use vestibule_model::protocol::{Port, Transport};

use super::service::ServiceSettings;

/// A socket of the proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bind {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// TCP or UDP.
    pub transport: Transport,
}

/// How listener ports become sockets.
#[derive(Debug, Clone)]
pub enum Binds {
    /// The listener's own port, or the one it is mapped to. Every Gateway shares the machine's ports
    /// (`vestibule run`): two Gateways on one port collide, and the older one holds it.
    Direct {
        /// Address to bind.
        address: IpAddr,
        /// Listener port → bound port, where they differ.
        ports: BTreeMap<u16, u16>,
    },
    /// A port allocated for the (Gateway, port, transport), behind the Service of the Gateway (a
    /// cluster). Allocations are an input ([`Change::Ports`](super::Change::Ports)).
    Allocated {
        /// Address to bind.
        address: IpAddr,
        /// The Services.
        services: ServiceSettings,
    },
}

/// A port of one Gateway that needs an internal port on the proxies. Prints as
/// `<gateway uid>/<port>/<TCP|UDP>`, and is read back from that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DesiredPort {
    /// UID of the Gateway: a new one of the same name is another one.
    pub gateway: Arc<str>,
    /// The listeners' port.
    pub port: Port,
    /// TCP or UDP.
    pub transport: Transport,
}

impl DesiredPort {
    /// The least one of a Gateway, in their order.
    pub(super) fn first_of(gateway: &Arc<str>) -> Self {
        Self {
            gateway: gateway.clone(),
            port: Port::MIN,
            transport: Transport::Tcp,
        }
    }
}

impl fmt::Display for DesiredPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}",
            self.gateway,
            self.port,
            self.transport.as_str()
        )
    }
}

/// Not the text of a [`DesiredPort`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not <gateway uid>/<port>/<TCP|UDP>")]
pub struct InvalidDesiredPort(String);

impl FromStr for DesiredPort {
    type Err = InvalidDesiredPort;

    fn from_str(text: &str) -> Result<Self, InvalidDesiredPort> {
        let parse = || {
            let (rest, transport) = text.rsplit_once('/')?;
            let (gateway, port) = rest.rsplit_once('/')?;
            Some(Self {
                gateway: gateway.into(),
                port: port.parse().ok()?,
                transport: Transport::from_text(transport)?,
            })
        };
        parse().ok_or_else(|| InvalidDesiredPort(text.into()))
    }
}

impl Binds {
    /// The socket of a port that Gateways share.
    fn shared(&self, key: &PortKey) -> Option<Bind> {
        match self {
            Self::Direct { address, ports } => Some(Bind {
                address: *address,
                port: ports
                    .get(&key.port.get())
                    .copied()
                    .unwrap_or(key.port.get()),
                transport: key.transport,
            }),
            Self::Allocated { .. } => None,
        }
    }

    /// The socket at an allocated port.
    pub(super) fn allocated(&self, desired: &DesiredPort, internal: Port) -> Option<Bind> {
        match self {
            Self::Direct { .. } => None,
            Self::Allocated { address, .. } => Some(Bind {
                address: *address,
                port: internal.get(),
                transport: desired.transport,
            }),
        }
    }

    /// How Services are made, where there are any.
    pub(super) fn services(&self) -> Option<&ServiceSettings> {
        match self {
            Self::Direct { .. } => None,
            Self::Allocated { services, .. } => Some(services),
        }
    }
}

/// A contender for a bind: creation and name of its Gateway, and which of its ports it is.
type Rank = (i64, Arc<str>, PortKey);

/// Who wants a bind, oldest Gateway first, and with which listeners.
type Contenders = BTreeMap<Rank, BTreeSet<ListenerKey>>;

/// Who uses which bind, where Gateways share them.
#[derive(Debug, Default)]
pub(super) struct BindUse {
    contenders: BTreeMap<Bind, Contenders>,
    of_listener: BTreeMap<ListenerKey, (Bind, Rank)>,
}

impl BindUse {
    /// Brings a listener's use up to date and returns the listeners whose bind may have changed hands.
    pub(super) fn settle(
        &mut self,
        binds: &Binds,
        merge: &Merge,
        listener: &ListenerKey,
    ) -> BTreeSet<ListenerKey> {
        let wanted = merge.claim(listener).and_then(|(port, _)| {
            let gateway = merge.gateway(&port.gateway)?;
            let rank = (
                gateway.meta.created,
                gateway.name.to_string().into(),
                port.clone(),
            );
            Some((binds.shared(port)?, rank))
        });
        if self.of_listener.get(listener) == wanted.as_ref() {
            return BTreeSet::new();
        }
        let mut affected = BTreeSet::new();
        if let Some((bind, rank)) = self.of_listener.remove(listener) {
            let holder = self.holder(&bind).cloned();
            if let Some(contenders) = self.contenders.get_mut(&bind) {
                super::set_user(contenders, &rank, listener, false);
                if contenders.is_empty() {
                    self.contenders.remove(&bind);
                }
            }
            self.note_change(&bind, holder.as_ref(), &mut affected);
        }
        if let Some((bind, rank)) = wanted {
            let holder = self.holder(&bind).cloned();
            super::set_user(
                self.contenders.entry(bind).or_default(),
                &rank,
                listener,
                true,
            );
            self.of_listener.insert(listener.clone(), (bind, rank));
            self.note_change(&bind, holder.as_ref(), &mut affected);
        }
        affected
    }

    /// The bind of a listener that takes part, or why it has none.
    pub(super) fn bind(&self, listener: &ListenerKey, field: &str) -> Result<Bind, Finding> {
        let held = self
            .of_listener
            .get(listener)
            .filter(|(bind, rank)| self.holder(bind) == Some(&rank.2));
        held.map(|(bind, _)| *bind).ok_or_else(|| {
            Finding::refused(
                Reason::PortUnavailable,
                format!("{field}.port"),
                "the socket for this port already serves another Gateway, or another port that is mapped to it",
                "use another port",
            )
        })
    }

    fn holder(&self, bind: &Bind) -> Option<&PortKey> {
        let contenders = self.contenders.get(bind)?;
        contenders.keys().next().map(|(_, _, port)| port)
    }

    fn note_change(
        &self,
        bind: &Bind,
        before: Option<&PortKey>,
        affected: &mut BTreeSet<ListenerKey>,
    ) {
        if self.holder(bind) != before
            && let Some(contenders) = self.contenders.get(bind)
        {
            affected.extend(contenders.values().flatten().cloned());
        }
    }
}
