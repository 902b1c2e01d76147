//! The sockets on which the proxies bind the ports of listeners.

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
    /// On the listener's own port, or the port that it is mapped to. All Gateways share the ports of
    /// the machine (`vestibule run`). If two Gateways want one port, the older one gets it.
    Direct {
        /// Address to bind.
        address: IpAddr,
        /// The bound port of each listener port for which the two differ.
        ports: BTreeMap<u16, u16>,
    },
    /// On a port that is allocated for each Gateway, port and transport, behind the Service of the
    /// Gateway (in a cluster). Allocations are an input ([`Change::Ports`](super::Change::Ports)).
    Allocated {
        /// Address to bind.
        address: IpAddr,
        /// The settings of the Services.
        services: ServiceSettings,
    },
}

/// A port of one Gateway that needs an internal port on the proxies. Prints as
/// `<gateway uid>/<port>/<TCP|UDP>`, and is read back from that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DesiredPort {
    /// UID of the Gateway. A new Gateway of the same name has another UID, so it gets ports of its
    /// own.
    pub gateway: Arc<str>,
    /// The listeners' port.
    pub port: Port,
    /// TCP or UDP.
    pub transport: Transport,
}

impl DesiredPort {
    /// The first possible port of a Gateway, in the order of this type.
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

/// The text is not that of a [`DesiredPort`].
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
    /// The address of all sockets.
    pub(super) fn address(&self) -> IpAddr {
        match self {
            Self::Direct { address, .. } | Self::Allocated { address, .. } => *address,
        }
    }

    /// The socket of a port, where Gateways share the ports of the machine.
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

    /// The socket of a port that has this internal port.
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

    /// The settings of Services; `None` where Gateways have no Services.
    pub(super) fn services(&self) -> Option<&ServiceSettings> {
        match self {
            Self::Direct { .. } => None,
            Self::Allocated { services, .. } => Some(services),
        }
    }
}

/// The rank of a contender for a bind: creation and name of its Gateway, and the port of the Gateway
/// that wants it. The least rank gets the bind.
type Rank = (i64, Arc<str>, PortKey);

/// The contenders for one bind, oldest Gateway first, each with its listeners.
type Contenders = BTreeMap<Rank, BTreeSet<ListenerKey>>;

/// The contenders for every bind, where Gateways share the ports of the machine. A bind does not stay with its holder if
/// a contender of a lesser rank comes (`docs/adr/0006-direct-binds.md`).
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
        // A listener with a conflict is refused and never gets a connection, so it keeps nobody from a socket.
        let claim = merge.claim(listener);
        let claim = claim.filter(|_| merge.conflict(listener).is_none());
        let wanted = claim.and_then(|(port, _)| {
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

    /// The bind of a listener that takes part, or the finding that says why it has none.
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
