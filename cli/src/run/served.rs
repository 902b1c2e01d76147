//! Which listeners are given to the proxy, where they are reached, and whether they are in force.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};

use vestibule_model::condition::{Condition, Programmed, Reason, Truth};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectName};
use vestibule_model::object::{Listener, TlsMode};
use vestibule_operator::status;
use vestibule_operator::translate::Status;

use super::engine::Engine;

/// Ports below need rights that a user does not have.
const PRIVILEGED: u16 = 1024;

/// A listener that the proxy is to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) gateway: ObjectName,
    pub(super) listener: ListenerKey,
    pub(super) hostname: HostPattern,
    pub(super) address: SocketAddr,
    how: String,
    /// Its Programmed condition.
    pub(super) programmed: Condition,
}

/// `hostname on address (listener of Gateway, how)`.
impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hostname {
            HostPattern::Any => f.write_str("every name")?,
            pattern => write!(f, "{pattern}")?,
        }
        write!(
            f,
            " on {} ({} of Gateway {}, {})",
            self.address, self.listener, self.gateway, self.how
        )
    }
}

impl Served {
    pub(super) fn is_in_force(&self) -> bool {
        self.programmed.truth == Truth::True
    }

    /// Why a proxy does not take it, if it does not.
    pub(super) fn rejected(&self) -> Option<String> {
        if self.programmed.truth == Truth::True || self.programmed.reason == Reason::Pending {
            return None;
        }
        let mut why = self.programmed.message.clone();
        let port = self.address.port();
        if port < PRIVILEGED && why.contains("PortUnavailable") {
            // Writing to a String does not fail.
            let _ = write!(
                why,
                "; ports below {PRIVILEGED} need privileges, so map it: --port-map {port}={}",
                port + 8000
            );
        }
        Some(why)
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.hostname, &self.address, &self.how) == (&other.hostname, &other.address, &other.how)
    }

    /// Whether there is something to say compared with before.
    pub(super) fn differs(&self, before: Option<&Self>) -> bool {
        before.is_none_or(|before| {
            !self.is_same(before)
                || self.is_in_force() != before.is_in_force()
                || self.rejected() != before.rejected()
        })
    }
}

/// All of them.
pub(super) fn served(
    engine: &Engine,
    address: IpAddr,
    ports: &BTreeMap<u16, u16>,
) -> BTreeMap<ListenerKey, Served> {
    let translator = engine.translator();
    let mut all = BTreeMap::new();
    for status in translator.statuses().values() {
        let Status::Listeners(status) = status else {
            continue;
        };
        for listener in &status.listeners {
            let Programmed::WhenHeld(keys) = &listener.programmed else {
                continue;
            };
            for key in keys {
                if let Some(one) = one(engine, key, listener.attached_routes, address, ports) {
                    all.insert(key.clone(), one);
                }
            }
        }
    }
    all
}

fn one(
    engine: &Engine,
    key: &ListenerKey,
    routes: usize,
    address: IpAddr,
    ports: &BTreeMap<u16, u16>,
) -> Option<Served> {
    let (listeners, gateway) = engine.translator().merge().listeners(&key.parent)?;
    let listener = listeners.iter().find(|l| l.name == key.listener)?;
    let port = listener.port?.get();
    let programmed = status::programmed(
        &Programmed::WhenHeld(BTreeSet::from([key.clone()])),
        |keys| status::facts(engine.translator(), engine.publisher(), keys),
    );
    Some(Served {
        gateway: gateway.clone(),
        listener: key.clone(),
        hostname: listener.hostname.clone(),
        address: SocketAddr::new(address, ports.get(&port).copied().unwrap_or(port)),
        how: how(engine, listener, routes),
        programmed,
    })
}

fn how(engine: &Engine, listener: &Listener, routes: usize) -> String {
    if routes == 0 {
        return "no route yet".into();
    }
    let Some(tls) = listener
        .tls
        .as_ref()
        .filter(|t| t.mode == TlsMode::Terminate)
    else {
        return "passthrough: the backend's own certificate".into();
    };
    let secrets: Vec<String> = tls
        .certificates
        .iter()
        .filter(|reference| reference.is(Kind::Secret))
        .map(|reference| {
            if engine.issuer().has_issued(&reference.target) {
                "a certificate of the local CA".into()
            } else {
                format!("the certificate in Secret {}", reference.target)
            }
        })
        .collect();
    format!("terminate: {}", secrets.join(", "))
}
