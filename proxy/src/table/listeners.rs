//! Owns the listeners of a bind, each with its routes, and how connections on the bind begin.

use std::sync::Arc;

use vestibule_model::client_address::{ClientAddress, ProxyProtocol};
use vestibule_model::hostname::{HostPattern, Hostname};

use super::listener_routes::Routes;
use super::route::Route;
use super::route_table::RouteTable;
use crate::bind::{BindKey, Transport};
use crate::http_route::HttpTable;
use crate::limits::HttpOverrides;
use crate::listener::{Layer, Listener, Mode};
use crate::owners::HostnameGuard;
use crate::pattern_map::PatternMap;

/// A listener with its routes, at its place in a bind. Only routes of the kind that the listener takes are selected.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) listener: Arc<Listener>,
    pub(super) routes: Arc<Routes>,
}

impl Entry {
    pub(super) fn http(&self) -> HttpTable {
        match self.listener.mode {
            Mode::Http | Mode::Https(_) => self.routes.http.clone(),
            Mode::Passthrough | Mode::Terminate(_) | Mode::Tcp | Mode::Udp => HttpTable::default(),
        }
    }

    pub(super) fn select(&self, name: &Hostname, guard: HostnameGuard<'_>) -> Option<Arc<Route>> {
        match self.listener.mode {
            Mode::Passthrough | Mode::Terminate(_) => self.routes.tls.select(name, guard).cloned(),
            Mode::Http | Mode::Https(_) | Mode::Tcp | Mode::Udp => None,
        }
    }

    /// The routes that are selected by port alone.
    pub(super) fn by_port(&self) -> Option<&RouteTable> {
        let ports = self.routes.ports.as_deref()?;
        match self.listener.mode {
            Mode::Tcp => Some(&ports.tcp),
            Mode::Udp => Some(&ports.udp),
            Mode::Passthrough | Mode::Terminate(_) | Mode::Http | Mode::Https(_) => None,
        }
    }
}

/// The listeners of one socket. At most one of the layers has any. (If the operator sent a mix, which it must not,
/// connections would have to begin with TLS or, without TLS listeners, with a request.)
///
/// The operator gives each bind to one Gateway at a time, so the listeners agree about what their Gateway sets. There is one
/// exception, in `vestibule run`, where Gateways share the ports of the machine. If the proxy rejects the move of a listener
/// to another port, because that port is taken for example, the listener stays. Another Gateway may then get the port that
/// it should have left. Until the listener leaves, the settings are those of the Gateway whose listener
/// was placed last.
#[derive(Clone)]
pub(super) struct Bind {
    pub(super) tls: PatternMap<Entry>,
    plain: PatternMap<Entry>,
    pub(super) bytes: PatternMap<Entry>,
    /// The Gateway of the listener that was placed last, which is the one whose settings are in force.
    gateway: Option<Arc<str>>,
    /// How the addresses of clients are found.
    pub(super) client_address: Option<Arc<ClientAddress>>,
    /// The treatment of ambiguous requests that the Gateway sets.
    pub(super) http: HttpOverrides,
    /// Whether every connection is closed, because the settings of the Gateway are missing.
    pub(super) closed: bool,
}

impl Bind {
    pub(super) fn new() -> Self {
        Self {
            tls: PatternMap::new(),
            plain: PatternMap::new(),
            bytes: PatternMap::new(),
            gateway: None,
            client_address: None,
            http: HttpOverrides::default(),
            closed: false,
        }
    }

    /// Takes over the settings of a listener that has its place here. `transport` is that of the bind.
    pub(super) fn follow(&mut self, listener: &Listener, transport: Transport) {
        self.gateway = Some(Arc::clone(&listener.gateway));
        let settings = listener.settings.of_gateway();
        // UDP has neither PROXY headers nor requests.
        let settings = settings.filter(|_| transport == Transport::Tcp);
        self.client_address = settings.and_then(|of| of.client_address.clone());
        self.http = settings.map(|of| of.http).unwrap_or_default();
        self.closed = listener.lacks_settings();
    }

    pub(super) fn of(&self, layer: Layer) -> &PatternMap<Entry> {
        match layer {
            Layer::Tls => &self.tls,
            Layer::Plain => &self.plain,
            Layer::Bytes => &self.bytes,
        }
    }

    pub(super) fn of_mut(&mut self, layer: Layer) -> &mut PatternMap<Entry> {
        match layer {
            Layer::Tls => &mut self.tls,
            Layer::Plain => &mut self.plain,
            Layer::Bytes => &mut self.bytes,
        }
    }

    /// One of the listeners, if there are any: one of the Gateway whose settings are in force, if it has one left.
    pub(super) fn left(&self) -> Option<&Arc<Listener>> {
        let listeners = || {
            let entries = Layer::ALL.iter().flat_map(|layer| self.of(*layer).values());
            entries.map(|entry| &entry.listener)
        };
        let of_gateway = listeners().find(|left| Some(&left.gateway) == self.gateway.as_ref());
        of_gateway.or_else(|| listeners().next())
    }

    /// The layer with which connections begin.
    pub(super) fn layer(&self) -> Layer {
        let mut used = Layer::ALL
            .iter()
            .filter(|layer| !self.of(**layer).is_empty());
        used.next().copied().unwrap_or_default()
    }
}

/// How connections on a bind begin.
#[derive(Clone, Default)]
pub(crate) struct Beginning {
    /// The layer with which they begin.
    pub(crate) layer: Layer,
    /// Whether they are closed at once, because the settings of the Gateway are missing.
    pub(crate) closed: bool,
    pub(super) client_address: Option<Arc<ClientAddress>>,
}

impl Beginning {
    /// The settings of a PROXY header before that, if there can be one.
    pub(crate) fn proxy_protocol(&self) -> Option<&ProxyProtocol> {
        self.client_address.as_ref()?.proxy_protocol.as_ref()
    }
}

/// The place of a listener: the key by which it is selected. No two listeners have the same.
pub(crate) type SelectionKey = (BindKey, Layer, HostPattern);
