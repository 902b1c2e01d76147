//! Lists the listeners that the proxy was given, and how each is served.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use vestibule_model::condition::{ListenerStatus, ProgrammedBasis, Reason};
use vestibule_model::gateway::{Listener, TlsMode};
use vestibule_model::key::{Kind, ListenerKey, ParentKey};
use vestibule_model::protocol::Protocol;
use vestibule_operator::status;
use vestibule_operator::translate::Status;

use super::engine::Engine;
use super::served::{Served, own_certificates};

/// The text for an HTTP listener without routes.
const NO_ROUTE: &str = "answers 404, since it has no accepted route";

/// Returns all listeners that the proxy was given.
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
            let key = ListenerKey::new(parent.clone(), listener.name.clone());
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
    // The listener's own resource comes first. If it is not published, the proxy does not get the listener.
    let resources = engine.translator().resources_of(key);
    let (own, needed) = resources.split_first()?;
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
        .any(|reject| reject.reason == Reason::PortUnavailable.as_str());
    Some(Served {
        gateway: gateway.clone(),
        listener: key.clone(),
        hostname: listener.hostname.clone(),
        address: SocketAddr::new(address, ports.get(&port).copied().unwrap_or(port)),
        how: how(engine, listener, status),
        port,
        certificates: own_certificates(listener, needed),
        judged: !matches!(status.programmed, ProgrammedBasis::WhenAcknowledged(_)),
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

/// Describes the certificates that a listener terminates TLS with; `None` if it does not terminate TLS.
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
