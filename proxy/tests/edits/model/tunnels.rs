//! By which route a tunnel is served, and whether another configuration serves it by the same one, or still admits the
//! client of a connection of HTTPS.

use vestibule_stream::{Resource, ResourceKind as Kind, proto};

use super::{Ask, Dial, Link, Model, attached, proven};

use proto::listener::Protocol;
use proto::resource::Resource as Wire;
use proto::tls_listener::Mode;

/// The basis on which a tunnel was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Basis {
    port: u16,
    /// The server name, or the host of the request that became a tunnel.
    name: String,
    listener: Alike,
    route: (Kind, String),
    /// The client has proven that it has a certificate of this authority.
    proven: Option<usize>,
}

/// The properties in which a listener has to be like the one that a tunnel began with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alike {
    tenant: String,
    gateway: String,
    kind: &'static str,
}

impl Alike {
    fn of(listener: &proto::Listener) -> Self {
        let kind = match listener.protocol.as_ref().unwrap() {
            Protocol::Http(http) if http.terminate.is_none() => "HTTP",
            Protocol::Http(_) => "HTTPS",
            Protocol::Tls(tls) => match tls.mode.as_ref().unwrap() {
                Mode::Passthrough(_) => "passthrough",
                Mode::Terminate(_) => "terminated",
            },
            Protocol::Tcp(_) | Protocol::Udp(_) => panic!("this world has none"),
        };
        Self {
            tenant: listener.tenant.clone(),
            gateway: listener.gateway.clone(),
            kind,
        }
    }
}

/// How a listener terminates TLS, if it does.
fn terminate(listener: &proto::Listener) -> Option<&proto::TlsTerminate> {
    match listener.protocol.as_ref()? {
        Protocol::Http(http) => http.terminate.as_ref(),
        Protocol::Tls(tls) => match tls.mode.as_ref()? {
            Mode::Passthrough(_) => None,
            Mode::Terminate(terminate) => Some(terminate),
        },
        Protocol::Tcp(_) | Protocol::Udp(_) => None,
    }
}

/// The namespace of a route, and where it is attached.
fn attachments(route: &Resource) -> (&str, &[proto::Attachment]) {
    match &route.resource {
        Some(Wire::TlsRoute(route)) => (&route.tenant, &route.attachments),
        Some(Wire::HttpRoute(route)) => (&route.tenant, &route.attachments),
        _ => ("", &[]),
    }
}

impl Model<'_> {
    /// The basis on which a connection is admitted that becomes a tunnel of a TLS route.
    pub(crate) fn relayed_by(self, dial: &Dial) -> Option<Basis> {
        let hello = dial.tls.as_ref()?;
        let (key, listener) = self.listener(dial.port, &hello.name)?;
        let (route, _) = self.tls_route(key, &hello.name)?;
        Some(Basis {
            port: dial.port,
            name: hello.name.clone(),
            listener: Alike::of(listener),
            route: (Kind::TlsRoute, route.to_owned()),
            proven: terminate(listener).and_then(|tls| proven(tls, hello)),
        })
    }

    /// The basis on which a request is admitted that becomes a WebSocket.
    pub(crate) fn upgraded_by(self, dial: &Dial, link: &Link, ask: &Ask) -> Option<Basis> {
        let (key, listener) = self.listener(dial.port, &ask.host)?;
        let found = self.rule(key, ask)?;
        let proven = match link {
            Link::Https { proven, .. } => *proven,
            _ => None,
        };
        Some(Basis {
            port: dial.port,
            name: ask.host.clone(),
            listener: Alike::of(listener),
            route: (Kind::HttpRoute, found.route.to_owned()),
            proven,
        })
    }

    /// Whether this configuration admits the client of a connection of HTTPS: by the listener to which its name leads now,
    /// if there is one.
    pub(crate) fn still_admits(self, dial: &Dial, link: &Link) -> bool {
        let (Some(hello), Link::Https { proven, .. }) = (&dial.tls, link) else {
            return true;
        };
        let now = self.listener(dial.port, &hello.name);
        let now = now.and_then(|(_, listener)| terminate(listener));
        now.is_none_or(|tls| self.admits(tls, *proven))
    }

    /// Whether this configuration serves a tunnel by the same route.
    pub(crate) fn still_serves(self, basis: &Basis) -> bool {
        let Some((key, listener)) = self.listener(basis.port, &basis.name) else {
            return false;
        };
        let (kind, route) = &basis.route;
        let is_attached = self.config.get(*kind, route).is_some_and(|route| {
            let (tenant, attachments) = attachments(route);
            attached(attachments, key, &basis.name).is_some()
                && self.gives(key, &basis.name, tenant)
        });
        is_attached
            && Alike::of(listener) == basis.listener
            && terminate(listener).is_none_or(|tls| self.admits(tls, basis.proven))
    }
}
