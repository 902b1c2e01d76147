//! Tracks the listeners that the proxy was given: where clients reach them, and whether they are in force.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use vestibule_model::condition::{Condition, ListenerStatus, ProgrammedBasis, Reason, Truth};
use vestibule_model::gateway::{Listener, TlsMode};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectName, ParentKey};
use vestibule_model::protocol::Protocol;
use vestibule_operator::status;
use vestibule_operator::translate::Status;
use vestibule_stream::ResourceKey;

use super::engine::Engine;

/// Ports below need rights that a user does not have.
const PRIVILEGED: u16 = 1024;

/// What an HTTP listener without routes does with requests.
const NO_ROUTE: &str = "answers 404, since it has no accepted route";

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
    /// Its own port.
    port: u16,
    /// Resources of the certificates it serves with.
    terminates: BTreeSet<ResourceKey>,
    /// Translation says that it cannot be in force, so its verdict says why.
    pub(super) judged: bool,
    /// The proxy did not take the listener itself.
    listener_rejected: bool,
    /// The proxy could not have the port.
    pub(super) port_unavailable: bool,
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

    /// Why it is not in force, if it is not on its way.
    pub(super) fn rejected(&self) -> Option<String> {
        if self.is_in_force() || self.programmed.reason == Reason::Pending {
            return None;
        }
        let mut why = self.programmed.message.clone();
        if self.port_unavailable {
            why.push_str(&self.port_hint());
        }
        Some(why)
    }

    fn port_hint(&self) -> String {
        let (listener, bound) = (self.port, self.address.port());
        if bound < PRIVILEGED {
            let other = bound + 8000;
            format!(
                "; ports below {PRIVILEGED} need privileges, so map it: --port-map {listener}={other}"
            )
        } else {
            format!(
                "; if another process has port {bound}, stop it (this is tried again), or use \
                 --port-map {listener}=OTHER"
            )
        }
    }

    /// Whether the proxy goes on with what it had of it, `last`, as long as this is not in force: it
    /// keeps the last good version of a resource that it rejects.
    pub(super) fn keeps(&self, last: &Self) -> bool {
        self.listener_rejected || last.terminates.is_empty() || self.keeps_certificate(last)
    }

    /// Whether what it keeps is a certificate.
    pub(super) fn keeps_certificate(&self, last: &Self) -> bool {
        !self.listener_rejected && !self.terminates.is_disjoint(&last.terminates)
    }

    /// Says the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.hostname, &self.address, &self.how) == (&other.hostname, &other.address, &other.how)
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
    for (object, status) in translator.statuses() {
        let Status::Listeners(status) = status else {
            continue;
        };
        let parent = match object.kind {
            Kind::Gateway => ParentKey::Gateway(object.name.clone()),
            _ => ParentKey::ListenerSet(object.name.clone()),
        };
        for listener in &status.listeners {
            let key = ListenerKey {
                parent: parent.clone(),
                listener: listener.name.clone(),
            };
            if let Some(one) = one(engine, &key, listener, address, ports) {
                all.insert(key, one);
            }
        }
    }
    all
}

fn one(
    engine: &Engine,
    key: &ListenerKey,
    status: &ListenerStatus,
    address: IpAddr,
    ports: &BTreeMap<u16, u16>,
) -> Option<Served> {
    let (listeners, gateway) = engine.translator().merge().listeners(&key.parent)?;
    let listener = listeners.iter().find(|l| l.name == key.listener)?;
    let port = listener.port?.get();
    // The listener's own comes first. One that is not given to the proxy is not published.
    let resources = engine.translator().resources_of(key);
    let (own, certificates) = resources.split_first()?;
    if !engine.translator().resources().contains_key(own) {
        return None;
    }
    let acks = engine.publisher().programmed(&resources);
    let rejects = acks.rejects.iter().map(|(_, reject)| reject);
    let listener_rejected = rejects
        .clone()
        .any(|reject| reject.key.as_ref() == Some(own));
    let port_unavailable = rejects
        .clone()
        .any(|reject| reject.reason == "PortUnavailable");
    Some(Served {
        gateway: gateway.clone(),
        listener: key.clone(),
        hostname: listener.hostname.clone(),
        address: SocketAddr::new(address, ports.get(&port).copied().unwrap_or(port)),
        how: how(engine, listener, status),
        port,
        terminates: certificates.iter().cloned().collect(),
        judged: matches!(status.programmed, ProgrammedBasis::NotPublished(..)),
        listener_rejected,
        port_unavailable,
        programmed: status::programmed(&status.programmed, |_| acks),
    })
}

fn how(engine: &Engine, listener: &Listener, status: &ListenerStatus) -> String {
    let http = match listener.protocol {
        Protocol::Http => Some("HTTP".to_owned()),
        Protocol::Https => {
            let certificates = certificates(engine, listener).unwrap_or_default();
            Some(format!("HTTPS with {certificates}"))
        }
        Protocol::Tcp if status.attached_routes > 0 => {
            return "TCP: bytes as they come".into();
        }
        Protocol::Udp if status.attached_routes > 0 => {
            return "UDP: datagrams as they come".into();
        }
        Protocol::Tls | Protocol::Tcp | Protocol::Udp | Protocol::Other(_) => None,
    };
    match (http, status.attached_routes) {
        (Some(http), 0) => format!("{http}: {NO_ROUTE}"),
        (Some(http), _) => http,
        (None, 0) => "no accepted route".into(),
        (None, _) => match certificates(engine, listener) {
            Some(certificates) => format!("terminate: {certificates}"),
            None => "passthrough: the backend's own certificate".into(),
        },
    }
}

/// The certificates that a listener ends TLS with; `None` if it does not.
fn certificates(engine: &Engine, listener: &Listener) -> Option<String> {
    let tls = listener.tls.as_ref()?;
    if tls.mode != TlsMode::Terminate {
        return None;
    }
    let named: Vec<String> = tls
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
    Some(named.join(", "))
}
