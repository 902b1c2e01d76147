//! What a configuration says of a connection and of a request: the specification once more, as plain
//! as it can be written, over the resources as they come. It shares nothing with the proxy.
//!
//! An outcome is a line of text that has everything in it which a client and a backend can observe.

mod http;
mod tunnels;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use vestibule_stream::{Resource, ResourceKind as Kind, proto};

use super::ledger::Config;
use super::servers::{INNER, Props, Speaks};

pub(crate) use http::{is_late, waits};
pub(crate) use tunnels::Basis;

use proto::listener::Protocol;
use proto::resource::Resource as Wire;
use proto::tls_listener::Mode;

/// Nothing but the end, or an alert.
pub(crate) const CLOSED: &str = "closed";
/// Another listener is for the host, or the connection is no longer what a new one would be. In the second case it ends.
pub(crate) const MISDIRECTED: &str = "421";
/// The field that response filters write.
pub(crate) const ANSWERED: &str = "x-answered";
/// Where CAs ask.
pub(crate) const TOKEN_PATH: &str = "/.well-known/acme-challenge/";

/// How a client connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Dial {
    pub(crate) port: u16,
    pub(crate) tls: Option<Hello>,
}

/// What a client offers in its handshake.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Hello {
    pub(crate) name: String,
    pub(crate) alpn: Vec<&'static str>,
    /// It has a certificate of this authority.
    pub(crate) shows: Option<usize>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ask {
    pub(crate) host: String,
    pub(crate) path: String,
    /// What is behind the question mark; empty if there is none.
    pub(crate) query: &'static str,
    pub(crate) method: &'static str,
    /// A field that rules may ask for.
    pub(crate) variant: Option<&'static str>,
    /// Asks for a WebSocket.
    pub(crate) upgrade: bool,
    /// Bytes of its body.
    pub(crate) body: usize,
}

impl Ask {
    /// Path and query.
    pub(crate) fn target(&self) -> String {
        self.with_query(&self.path)
    }

    fn with_query(&self, path: &str) -> String {
        let mark = if self.query.is_empty() { "" } else { "?" };
        format!("{path}{mark}{}", self.query)
    }
}

/// The result of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Link {
    Closed,
    /// HTTP in plaintext.
    Plain,
    /// HTTP within TLS, of a listener.
    Https {
        listener: String,
        shown: String,
        two: bool,
        /// The client has proven that it has a certificate of this authority.
        proven: Option<usize>,
        served: Served,
    },
    /// TLS with a certificate, and behind it a server that answers by itself. `None`: what it is
    /// spoken to it does not understand.
    Relay {
        shown: String,
        server: Option<Relayed>,
    },
    /// A CA's handshake, which carries nothing.
    Challenge {
        shown: String,
    },
}

/// The namespaces that a connection began with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Served {
    /// The namespace of its listener.
    by: String,
    /// The namespace that had its name.
    owner: String,
}

/// A connection within TLS as its requests are asked about it.
#[derive(Clone, Copy)]
struct OverTls<'a> {
    /// The listener with which it began.
    listener: &'a str,
    /// Its server name.
    name: &'a str,
    /// An authority of which the client has proven that it has a certificate.
    proven: Option<usize>,
    served: &'a Served,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Relayed {
    server: String,
    /// What the server says of its TLS.
    layer: String,
    two: bool,
}

impl Link {
    /// The certificate that the client sees.
    pub(crate) fn shown(&self) -> Option<&str> {
        match self {
            Self::Closed | Self::Plain => None,
            Self::Https { shown, .. } | Self::Relay { shown, .. } | Self::Challenge { shown } => {
                Some(shown)
            }
        }
    }
}

/// The specificity of a pattern that takes `host`.
fn takes(pattern: &str, host: &str) -> Option<(u8, usize)> {
    if pattern.is_empty() {
        return Some((0, 0));
    }
    match pattern.strip_prefix('*') {
        Some(suffix) => (host.len() > suffix.len() && host.ends_with(suffix))
            .then(|| (1, suffix.matches('.').count())),
        None => (pattern == host).then_some((2, 0)),
    }
}

fn rank(pattern: &str) -> (u8, usize) {
    match pattern.strip_prefix('*') {
        _ if pattern.is_empty() => (0, 0),
        Some(suffix) => (1, suffix.matches('.').count()),
        None => (2, 0),
    }
}

/// Whether clients without a valid certificate are refused.
fn is_strict(validation: &proto::ClientValidation) -> bool {
    validation.mode() == proto::ClientValidationMode::AllowValidOnly
}

/// The authority of which a client proves in its handshake that it has a certificate. Nobody checks the proof where
/// clients are let in without a certificate.
fn proven(tls: &proto::TlsTerminate, hello: &Hello) -> Option<usize> {
    let validation = tls.client_validation.as_ref()?;
    hello.shows.filter(|_| is_strict(validation))
}

/// What a configuration says, with what the servers of the tests are.
#[derive(Clone, Copy)]
pub(crate) struct Model<'a> {
    pub(crate) props: &'a Props,
    pub(crate) config: &'a Config,
}

impl<'a> Model<'a> {
    fn listeners(self, port: u16) -> impl Iterator<Item = (&'a str, &'a proto::Listener)> {
        self.config
            .of(Kind::Listener)
            .filter_map(move |(name, resource)| {
                let Some(Wire::Listener(listener)) = &resource.resource else {
                    return None;
                };
                let here = listener.bind.as_ref()?.port == u32::from(port);
                here.then_some((name, listener))
            })
    }

    /// Whether a port has listeners, and they speak plaintext.
    pub(crate) fn layer(self, port: u16) -> Option<bool> {
        let (_, first) = self.listeners(port).next()?;
        Some(is_plain(first))
    }

    /// The most specific listener that takes a name. A listener of a ListenerSet takes no names that another namespace
    /// owns.
    fn listener(self, port: u16, host: &str) -> Option<(&'a str, &'a proto::Listener)> {
        let owner = self.owner(host);
        let may = |name: &str, tenant: &str| {
            is_of_gateway(name) || owner.is_none_or(|owner| owner == tenant)
        };
        let here = self
            .listeners(port)
            .filter(|(name, of)| may(name, &of.tenant));
        here.filter_map(|(name, of)| Some((takes(&of.hostname, host)?, name, of)))
            .max_by_key(|(rank, ..)| *rank)
            .map(|(_, name, of)| (name, of))
    }

    /// The namespace that owns a name.
    fn owner(self, host: &str) -> Option<&'a str> {
        let owners = self.config.of(Kind::HostnameOwner);
        let owners = owners.filter_map(|(_, resource)| match &resource.resource {
            Some(Wire::HostnameOwner(of)) => Some((takes(&of.hostname, host)?, &*of.tenant)),
            _ => None,
        });
        let nearest = owners.max_by_key(|(rank, _)| *rank);
        nearest.map(|(_, tenant)| tenant)
    }

    /// Whether a listener gives a name to the routes of a namespace. Only the Gateway's own listeners ask for its owner.
    fn gives(self, listener: &str, host: &str, tenant: &str) -> bool {
        !is_of_gateway(listener) || self.owner(host).is_none_or(|owner| owner == tenant)
    }

    /// The namespace for which a listener serves a name.
    fn served_for(self, name: &str, listener: &'a proto::Listener, host: &str) -> &'a str {
        let owner = self.owner(host).filter(|_| is_of_gateway(name));
        owner.unwrap_or(&listener.tenant)
    }

    fn certificate(self, name: &str) -> Option<&'a str> {
        match &self.config.get(Kind::Certificate, name)?.resource {
            Some(Wire::Certificate(of)) => Some(self.props.label(&of.chain[0])),
            _ => None,
        }
    }

    /// Of `authorities`, those in one of the bundles that are held. None: no bundle is held.
    fn trust(
        self,
        names: &[String],
        of: &[vestibule_proxy_testing::Authority],
    ) -> Option<BTreeSet<usize>> {
        let held = names
            .iter()
            .filter_map(|name| self.config.get(Kind::TrustBundle, name));
        let mut any = false;
        let mut found = BTreeSet::new();
        for resource in held {
            let Some(Wire::TrustBundle(bundle)) = &resource.resource else {
                continue;
            };
            any = true;
            for (index, authority) in of.iter().enumerate() {
                if bundle.certificates.contains(&authority.der()) {
                    found.insert(index);
                }
            }
        }
        any.then_some(found)
    }

    /// The certificate that a client gets to see, if its handshake comes to an end.
    fn terminate(self, tls: &proto::TlsTerminate, hello: &Hello) -> Option<&'a str> {
        if !self.admits(tls, hello.shows) {
            return None;
        }
        if hello.alpn == ["acme-tls/1"] {
            return None;
        }
        let mut names = tls.certificates.iter();
        names.find_map(|name| self.certificate(name))
    }

    /// Whether a client is let in that has proven to have a certificate of an authority, or none.
    fn admits(self, tls: &proto::TlsTerminate, proven: Option<usize>) -> bool {
        let Some(validation) = &tls.client_validation else {
            return true;
        };
        let Some(trust) = self.trust(&validation.trust_bundles, &self.props.clients) else {
            return false;
        };
        !is_strict(validation) || proven.is_some_and(|authority| trust.contains(&authority))
    }

    /// The possible results of a connection. The weights of backends may allow several.
    pub(crate) fn connect(self, dial: &Dial) -> Vec<Link> {
        let plain = self.layer(dial.port);
        let Some(hello) = &dial.tls else {
            let link = if plain == Some(true) {
                Link::Plain
            } else {
                Link::Closed
            };
            return vec![link];
        };
        if plain != Some(false) {
            return vec![Link::Closed];
        }
        if hello.alpn == ["acme-tls/1"]
            && let Some(shown) = self.challenge(dial.port, hello)
        {
            return vec![Link::Challenge { shown }];
        }
        let Some((key, listener)) = self.listener(dial.port, &hello.name) else {
            return vec![Link::Closed];
        };
        let closed = vec![Link::Closed];
        match listener.protocol.as_ref().unwrap() {
            Protocol::Http(http) => {
                let tls = http.terminate.as_ref().unwrap();
                let link = self.terminate(tls, hello).map(|shown| Link::Https {
                    listener: key.to_owned(),
                    shown: shown.to_owned(),
                    two: hello.alpn.contains(&"h2"),
                    proven: proven(tls, hello),
                    served: Served {
                        by: listener.tenant.clone(),
                        owner: self.served_for(key, listener, &hello.name).to_owned(),
                    },
                });
                link.map_or(closed, |link| vec![link])
            }
            Protocol::Tls(tls) => match tls.mode.as_ref().unwrap() {
                Mode::Passthrough(_) => {
                    self.relays(key, &hello.name, |backend| self.passed(backend, hello))
                }
                Mode::Terminate(tls) => {
                    let Some(shown) = self.terminate(tls, hello) else {
                        return closed;
                    };
                    self.relays(key, &hello.name, |backend| {
                        self.unwrapped(backend, listener, shown)
                    })
                }
            },
            Protocol::Tcp(_) | Protocol::Udp(_) => panic!("this world has none"),
        }
    }

    fn challenge(self, port: u16, hello: &Hello) -> Option<String> {
        self.config.of(Kind::Challenge).find_map(|(_, resource)| {
            let Some(Wire::Challenge(challenge)) = &resource.resource else {
                return None;
            };
            let here = challenge.bind.as_ref()?.port == u32::from(port);
            match &challenge.answer {
                Some(proto::challenge::Answer::TlsAlpn01(of))
                    if here && challenge.hostname == hello.name =>
                {
                    Some(self.props.label(&of.certificate).to_owned())
                }
                _ => None,
            }
        })
    }

    /// The TLS route that has a name on a listener.
    fn tls_route(self, listener: &str, name: &str) -> Option<(&'a str, &'a proto::TlsRoute)> {
        let routes = self
            .config
            .of(Kind::TlsRoute)
            .filter_map(|(key, resource)| {
                let Some(Wire::TlsRoute(route)) = &resource.resource else {
                    return None;
                };
                let rank = attached(&route.attachments, listener, name)
                    .filter(|_| self.gives(listener, name, &route.tenant))?;
                Some((std::cmp::Reverse(rank), route.created, key, route))
            });
        let first = routes.min_by_key(|(rank, created, key, _)| (*rank, *created, *key));
        first.map(|(.., key, route)| (key, route))
    }

    /// The results that the backends of the TLS route for a name may give.
    fn relays(
        self,
        listener: &str,
        name: &str,
        each: impl Fn(&proto::Backend) -> Vec<Link>,
    ) -> Vec<Link> {
        let Some((_, route)) = self.tls_route(listener, name) else {
            return vec![Link::Closed];
        };
        let mut links = Vec::new();
        for of in route.backends.iter().filter(|of| of.weight > 0) {
            match self.backend(&of.backend) {
                Some(backend) if !backend.endpoints.is_empty() => links.extend(each(backend)),
                _ => links.push(Link::Closed),
            }
        }
        if links.is_empty() {
            links.push(Link::Closed);
        }
        links
    }

    /// Whether an endpoint that a TLS connection may be given to cannot be connected to.
    pub(crate) fn may_fail(self, dial: &Dial) -> bool {
        let Some((_, listener)) = dial
            .tls
            .as_ref()
            .and_then(|hello| self.listener(dial.port, &hello.name))
        else {
            return false;
        };
        let backends = self.config.of(Kind::Backend);
        let mut all = backends.filter_map(|(name, _)| self.backend(name));
        all.any(|backend| {
            let way = self.way(backend, listener).ok().flatten();
            backend.endpoints.iter().filter_map(address).any(|address| {
                match self.props.at(address).map(|server| server.speaks) {
                    None => true,
                    Some(Speaks::Tls(authority)) => {
                        way.as_ref().is_some_and(|way| !way.reaches(authority))
                    }
                    Some(Speaks::One | Speaks::Two) => way.is_some(),
                }
            })
        })
    }

    fn backend(self, name: &str) -> Option<&'a proto::Backend> {
        match &self.config.get(Kind::Backend, name)?.resource {
            Some(Wire::Backend(backend)) => Some(backend),
            _ => None,
        }
    }

    /// A client's own TLS with a backend.
    fn passed(self, backend: &proto::Backend, hello: &Hello) -> Vec<Link> {
        self.endpoints(backend, |speaks, name| {
            let Speaks::Tls(_) = speaks else {
                return Some(Link::Closed);
            };
            if hello.alpn == ["acme-tls/1"] {
                return Some(Link::Closed);
            }
            let cert = hello.shows.map_or("-".to_owned(), |n| format!("client{n}"));
            let layer = format!("tls={} cert={cert}", hello.name);
            Some(Link::Relay {
                shown: name.to_owned(),
                server: Some(Relayed {
                    server: name.to_owned(),
                    layer,
                    two: hello.alpn.contains(&"h2"),
                }),
            })
        })
    }

    /// What was within a client's TLS, with a backend.
    fn unwrapped(
        self,
        backend: &proto::Backend,
        listener: &proto::Listener,
        shown: &str,
    ) -> Vec<Link> {
        let relay = |server| {
            let shown = shown.to_owned();
            Some(Link::Relay { shown, server })
        };
        let Ok(way) = self.way(backend, listener) else {
            return vec![Link::Relay {
                shown: shown.to_owned(),
                server: None,
            }];
        };
        self.endpoints(backend, |speaks, name| match (&way, speaks) {
            (Some(way), Speaks::Tls(authority)) if way.reaches(authority) => {
                let (server, layer) = (name.to_owned(), way.layer());
                let two = false;
                relay(Some(Relayed { server, layer, two }))
            }
            // No connection: another endpoint is tried.
            (Some(_), _) => None,
            (None, Speaks::One) => relay(Some(Relayed {
                server: name.to_owned(),
                layer: "tls=- cert=-".to_owned(),
                two: false,
            })),
            (None, _) => relay(None),
        })
        .into_iter()
        .map(|link| match link {
            // The handshake with the client was done by then.
            Link::Closed => Link::Relay {
                shown: shown.to_owned(),
                server: None,
            },
            link => link,
        })
        .collect()
    }

    /// The results that the endpoints of a backend may give. Endpoints that accept no connection are passed over.
    fn endpoints<T>(
        self,
        backend: &proto::Backend,
        each: impl Fn(Speaks, &str) -> Option<T>,
    ) -> Vec<T>
    where
        T: From<Failed> + Ord,
    {
        let mut found = BTreeSet::new();
        let mut failing = 0;
        for endpoint in &backend.endpoints {
            let server = address(endpoint).and_then(|address| self.props.at(address));
            match server.and_then(|server| each(server.speaks, &server.name)) {
                Some(outcome) => {
                    found.insert(outcome);
                }
                None => failing += 1,
            }
        }
        if found.is_empty() || failing >= 3 {
            found.insert(T::from(Failed));
        }
        found.into_iter().collect()
    }

    /// The certificate that the Gateway of a listener shows to backends; empty: none.
    fn shown(self, listener: &proto::Listener) -> &'a str {
        let settings = self.config.get(Kind::GatewaySettings, &listener.gateway);
        match settings.map(|resource| &resource.resource) {
            Some(Some(Wire::GatewaySettings(settings))) => &settings.backend_certificate,
            _ => "",
        }
    }

    /// How a backend is spoken to over TLS. `Err`: it must not be connected to.
    fn way(self, backend: &proto::Backend, listener: &proto::Listener) -> Result<Option<Way>, ()> {
        let Some(tls) = &backend.tls else {
            return Ok(None);
        };
        if tls.invalid {
            return Err(());
        }
        let trust = self
            .trust(&tls.trust_bundles, &self.props.authorities)
            .ok_or(())?;
        let shown = match self.shown(listener) {
            "" => "-",
            name => self.certificate(name).ok_or(())?,
        };
        Ok(Some(Way {
            name: tls.hostname.clone(),
            trust,
            shown: shown.to_owned(),
        }))
    }

    /// The answers that a request may get on a connection that came to `link`.
    pub(crate) fn answer(self, dial: &Dial, link: &Link, ask: &Ask) -> Vec<String> {
        match link {
            Link::Closed | Link::Challenge { .. } | Link::Relay { server: None, .. } => {
                vec![CLOSED.to_owned()]
            }
            Link::Relay {
                server: Some(of), ..
            } => vec![of.answer(ask)],
            Link::Plain => self.http(dial.port, None, ask),
            Link::Https {
                listener,
                proven,
                served,
                ..
            } => {
                let name = dial.tls.as_ref().map(|hello| &*hello.name);
                let tls = OverTls {
                    listener,
                    name: name.unwrap_or_default(),
                    proven: *proven,
                    served,
                };
                self.http(dial.port, Some(tls), ask)
            }
        }
    }
}

/// Where an endpoint is.
pub(crate) fn address(endpoint: &proto::Endpoint) -> Option<SocketAddr> {
    let port = u16::try_from(endpoint.port).ok()?;
    Some(SocketAddr::new(endpoint.address.parse().ok()?, port))
}

/// The error when no endpoint of a backend accepts a connection.
struct Failed;

impl From<Failed> for Link {
    fn from(_: Failed) -> Self {
        Self::Closed
    }
}

/// TLS with a backend.
struct Way {
    name: String,
    trust: BTreeSet<usize>,
    shown: String,
}

impl Way {
    fn reaches(&self, authority: usize) -> bool {
        self.trust.contains(&authority) && INNER.contains(&&*self.name)
    }

    fn layer(&self) -> String {
        format!("tls={} cert={}", self.name, self.shown)
    }
}

impl Relayed {
    fn answer(&self, ask: &Ask) -> String {
        let Self { server, layer, two } = self;
        let version = if *two { 2 } else { 1 };
        let status = if ask.upgrade { 101 } else { 200 };
        let (host, path, body) = (&ask.host, ask.target(), ask.body);
        format!(
            "{status} srv={server} {layer} v={version} host={host} path={path} asked= body={body}"
        )
    }
}

/// The rank of the most specific hostname of a route for `host` on a listener.
fn attached(all: &[proto::Attachment], listener: &str, host: &str) -> Option<(u8, usize)> {
    let here = all
        .iter()
        .filter(|attachment| attachment.listener == listener);
    let names = here.flat_map(|attachment| &attachment.hostnames);
    let taking = names.filter(|name| takes(&name.r#match, host).is_some());
    taking.map(|name| rank(&name.rank)).max()
}

/// Whether a listener is the Gateway's own one.
fn is_of_gateway(listener: &str) -> bool {
    listener.starts_with("Gateway/")
}

fn is_plain(listener: &proto::Listener) -> bool {
    matches!(&listener.protocol, Some(Protocol::Http(http)) if http.terminate.is_none())
}

/// Whether a resource is a listener that speaks plaintext.
pub(crate) fn is_plain_resource(resource: &Resource) -> bool {
    matches!(&resource.resource, Some(Wire::Listener(listener)) if is_plain(listener))
}

/// The port of a listener.
pub(crate) fn port_of(resource: &Resource) -> Option<u32> {
    match &resource.resource {
        Some(Wire::Listener(listener)) => Some(listener.bind.as_ref()?.port),
        _ => None,
    }
}
