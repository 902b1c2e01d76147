//! Random histories: a first configuration, and edits of every kind that lead from one to the next.

use std::net::SocketAddr;
use std::sync::Arc;

use vestibule_stream::{Resource, ResourceKey, ResourceKind as Kind, proto};

use super::ledger::Config;
use super::model::{Ask, Dial, Hello, TOKEN_PATH};
use super::rules;
use super::servers::{INNER, NOBODYS, Props, Speaks};
use crate::common::acme::{TOKEN, http_challenge};
use crate::common::{http, listener};
use crate::pki::Authority;

use proto::listener::Protocol;
use proto::resource::Resource as Wire;
use proto::tls_listener::Mode;

/// Hosts that clients ask for.
pub(crate) const HOSTS: [&str; 4] = [
    "a.example.com",
    "b.example.com",
    "c.example.com",
    "d.w.example.com",
];
/// That nobody serves.
const STRANGER: &str = "z.example.org";
const TRUST: &str = "ConfigMap/team-a/ca";
const CLIENTS: &str = "ConfigMap/infra/clients";
const SHOWN: &str = "infra/gateway";

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.bits() >> 33).unwrap() % bound
    }

    /// True once in `of` times.
    pub(crate) fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// The ports of a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// Always plaintext.
    pub(crate) web: u16,
    /// Always TLS.
    pub(crate) tls: u16,
    /// Either, or nothing.
    pub(crate) flip: u16,
}

/// An edit: what is in force after it, and what comes with it and is rejected.
pub(crate) struct Edit {
    pub(crate) config: Arc<Config>,
    pub(crate) bad: Vec<(ResourceKey, Resource)>,
    /// Everything is sent once more.
    pub(crate) full: bool,
    pub(crate) what: String,
}

pub(crate) struct History {
    pub(crate) random: Random,
    props: Arc<Props>,
    ports: Ports,
    pub(crate) config: Config,
    /// Differs with each text that a filter writes.
    version: usize,
    what: Vec<&'static str>,
    bad: Vec<Resource>,
}

const LISTENERS: [(&str, &str); 6] = [
    ("team-a/wa", "a.example.com"),
    ("team-b/ww", "*.w.example.com"),
    ("team-a/sa", "a.example.com"),
    ("team-a/sb", "b.example.com"),
    ("team-b/se", "*.example.com"),
    ("team-b/sd", "d.w.example.com"),
];

impl History {
    pub(crate) fn new(seed: u64, props: &Arc<Props>, ports: Ports) -> Self {
        let mut history = Self {
            random: Random::new(seed),
            props: Arc::clone(props),
            ports,
            config: Config::default(),
            version: 0,
            what: Vec::new(),
            bad: Vec::new(),
        };
        history.begin();
        history
    }

    fn begin(&mut self) {
        for (index, name) in ["team-a/c0", "team-a/c1", SHOWN].into_iter().enumerate() {
            self.certify(name, index);
        }
        self.bundle(TRUST, &[0, 1]);
        self.bundle(CLIENTS, &[0]);
        self.config.set(named(
            http(self.ports.web, "x", "", None),
            "Gateway/infra/edge/web",
        ));
        let base = listener(self.ports.tls, "x", "base.example.com", None);
        self.config.set(named(base, "Gateway/infra/edge/base"));
        for (index, _) in LISTENERS.iter().enumerate() {
            self.add_listener(index);
        }
        for index in 0..HOSTS.len() {
            for name in ["web", "tls"] {
                self.set_backend(&format!("team-a/{name}{index}:1"));
            }
            self.set_http_route(index);
            self.set_tls_route(index);
        }
    }

    /// The next edit: of several kinds at once.
    pub(crate) fn next(&mut self) -> Edit {
        self.what.clear();
        let count = 1 + self.random.below(3) * self.random.below(3);
        for _ in 0..count {
            self.edit();
        }
        // A name that is in force stays as it was when its new version is rejected, so that both are
        // not of one batch.
        let bad = std::mem::take(&mut self.bad).into_iter();
        let bad = bad
            .map(|resource| (resource.key().unwrap(), resource))
            .collect();
        Edit {
            config: Arc::new(self.config.clone()),
            bad,
            full: self.random.once_in(12),
            what: self.what.join(", "),
        }
    }

    fn edit(&mut self) {
        type Do = fn(&mut History);
        let all: [(&'static str, Do); 23] = [
            ("move an HTTP route", Self::move_http),
            ("move an HTTP route", Self::move_http),
            ("move an HTTP route", Self::move_http),
            ("move a TLS route", Self::move_tls),
            ("move a TLS route", Self::move_tls),
            ("filters", Self::filters),
            ("filters", Self::filters),
            ("an HTTP route", |of| {
                let host = of.random.below(HOSTS.len());
                of.set_http_route(host);
            }),
            ("a TLS route", |of| {
                let host = of.random.below(HOSTS.len());
                of.set_tls_route(host);
            }),
            ("an HTTP route comes or goes", Self::toggle_http_route),
            ("a backend", |of| {
                let name = of.any_backend();
                of.set_backend(&name);
            }),
            ("a backend", |of| {
                let name = of.any_backend();
                of.set_backend(&name);
            }),
            ("an endpoint", Self::endpoint),
            ("trust", Self::trust),
            ("a certificate", Self::certificate),
            ("a Gateway's certificate", Self::gateway_certificate),
            ("a listener", Self::set_listener),
            ("a listener's hostname", Self::swap),
            ("a listener comes or goes", Self::toggle_listener),
            ("a listener moves to another object", Self::rename),
            ("the port of either", Self::flip),
            ("a challenge", Self::challenge),
            ("a reject", Self::reject),
        ];
        let (what, act) = *self.random.pick(&all);
        self.what.push(what);
        act(self);
    }

    /// A text that was never written before.
    fn fresh(&mut self) -> String {
        self.version += 1;
        format!("v{}", self.version)
    }

    fn names(&self, kind: Kind) -> Vec<String> {
        self.config
            .of(kind)
            .map(|(name, _)| name.to_owned())
            .collect()
    }

    // ---- Backends

    fn any_backend(&mut self) -> String {
        let names = self.names(Kind::Backend);
        self.random.pick(&names).clone()
    }

    /// Makes a backend, or makes it anew.
    fn set_backend(&mut self, name: &str) {
        let over_tls = name.starts_with("team-a/tls");
        let speaks = match self.random.below(10) {
            0..7 if over_tls => self.trusted(),
            0..3 => self.trusted(),
            3..5 if !over_tls => Speaks::Two,
            _ => Speaks::One,
        };
        let endpoints = self.addresses(speaks);
        let mut backend = proto::Backend {
            endpoints: endpoints.iter().map(wire_endpoint).collect(),
            ..Default::default()
        };
        let protocol = match speaks {
            Speaks::Two => proto::BackendProtocol::H2c,
            Speaks::One if self.random.once_in(3) => proto::BackendProtocol::Websocket,
            Speaks::Tls(_) if self.random.once_in(4) => proto::BackendProtocol::H2c,
            Speaks::Tls(_) if self.random.once_in(4) => proto::BackendProtocol::Websocket,
            Speaks::One | Speaks::Tls(_) => proto::BackendProtocol::Unspecified,
        };
        backend.protocol = protocol.into();
        if let Speaks::Tls(_) = speaks {
            let hostname = match self.random.below(30) {
                0 => NOBODYS,
                n => INNER[n % 2],
            };
            backend.tls = Some(proto::BackendTls {
                hostname: hostname.to_owned(),
                trust_bundles: vec![TRUST.to_owned()],
                invalid: self.random.once_in(30),
                ..Default::default()
            });
        }
        self.config.set(Resource::new(name, Wire::Backend(backend)));
    }

    /// An authority of backends that is trusted at the moment.
    fn trusted(&mut self) -> Speaks {
        let Some(Wire::TrustBundle(bundle)) = self
            .config
            .get(Kind::TrustBundle, TRUST)
            .and_then(|bundle| bundle.resource.as_ref())
        else {
            return Speaks::Tls(0);
        };
        let der = bundle.certificates.first();
        let first = self
            .props
            .authorities
            .iter()
            .position(|of| Some(&of.der()) == der);
        let both = bundle.certificates.len() > 1;
        let first = first.unwrap_or(0);
        Speaks::Tls(if both { self.random.below(2) } else { first })
    }

    fn addresses(&mut self, speaks: Speaks) -> Vec<SocketAddr> {
        if self.random.once_in(40) {
            return Vec::new();
        }
        let fitting = self
            .props
            .servers
            .iter()
            .filter(|server| server.speaks == speaks);
        let mut fitting: Vec<_> = fitting.map(|server| server.address).collect();
        let first = self.random.below(fitting.len());
        fitting.rotate_left(first);
        fitting.truncate(1 + self.random.below(2));
        if self.random.once_in(8) {
            fitting.push(self.props.dead);
        }
        fitting
    }

    /// One endpoint of a backend comes or goes.
    fn endpoint(&mut self) {
        let name = self.any_backend();
        let mut resource = self.config.get(Kind::Backend, &name).unwrap().clone();
        let Some(Wire::Backend(backend)) = &mut resource.resource else {
            return;
        };
        let known: Vec<SocketAddr> = backend.endpoints.iter().filter_map(address).collect();
        let first = known.iter().find_map(|address| self.props.at(*address));
        let Some(speaks) = first.map(|server| server.speaks) else {
            return self.set_backend(&name);
        };
        let other = self
            .props
            .servers
            .iter()
            .find(|server| server.speaks == speaks && !known.contains(&server.address));
        match other {
            Some(other) if known.len() < 3 => backend.endpoints.push(wire_endpoint(&other.address)),
            _ => {
                backend.endpoints.remove(0);
            }
        }
        self.config.set(resource);
    }

    // ---- Routes

    /// A name for a backend, of one that is there or of a new one.
    fn somewhere(&mut self, what: &str) -> String {
        let what = if self.random.once_in(3) && what == "web" {
            "tls"
        } else {
            what
        };
        let name = format!(
            "team-a/{what}{}:{}",
            self.random.below(4),
            1 + self.random.below(3)
        );
        if self.config.get(Kind::Backend, &name).is_none() && !self.random.once_in(25) {
            self.set_backend(&name);
        }
        name
    }

    /// Takes backends away that no route leads to any more; mostly.
    fn sweep(&mut self) {
        if self.random.once_in(4) {
            return;
        }
        let used = rules::backends(&self.config);
        for name in self.names(Kind::Backend) {
            let stays = name.ends_with(":1") && self.random.once_in(2);
            if !used.contains(&name) && !stays {
                self.config.remove(Kind::Backend, &name);
            }
        }
        if self.names(Kind::Backend).is_empty() {
            self.set_backend("team-a/web0:1");
        }
    }

    /// A route leads to another backend, and its filters say so.
    fn move_http(&mut self) {
        let names = self.names(Kind::HttpRoute);
        if names.is_empty() {
            return self.set_http_route(0);
        }
        let name = self.random.pick(&names).clone();
        let (to, version) = (self.somewhere("web"), self.fresh());
        let mut resource = self.config.get(Kind::HttpRoute, &name).unwrap().clone();
        if let Some(Wire::HttpRoute(route)) = &mut resource.resource {
            let at = self.random.below(route.rules.len());
            let rule = &mut route.rules[at];
            rule.backends = vec![rules::to(&to, 1)];
            rule.filters = if self.random.once_in(3) {
                Vec::new()
            } else {
                rules::stamps(&version)
            };
        }
        self.config.set(resource);
        self.sweep();
    }

    fn move_tls(&mut self) {
        let names = self.names(Kind::TlsRoute);
        let name = self.random.pick(&names).clone();
        let backend = self.somewhere("tls");
        let mut resource = self.config.get(Kind::TlsRoute, &name).unwrap().clone();
        if let Some(Wire::TlsRoute(route)) = &mut resource.resource {
            route.backends = vec![proto::WeightedBackend { backend, weight: 1 }];
        }
        self.config.set(resource);
        self.sweep();
    }

    fn filters(&mut self) {
        let names = self.names(Kind::HttpRoute);
        let Some(name) = names.first().map(|_| self.random.pick(&names).clone()) else {
            return;
        };
        let mut resource = self.config.get(Kind::HttpRoute, &name).unwrap().clone();
        let Some(Wire::HttpRoute(route)) = &mut resource.resource else {
            return;
        };
        for rule in &mut route.rules {
            let (a, b) = (self.fresh(), self.fresh());
            let exact =
                |of: &proto::HttpMatch| matches!(of.path, Some(proto::http_match::Path::Exact(_)));
            rule.filters = match self.random.below(6) {
                0 => Vec::new(),
                1 if !rule.matches.iter().any(exact) => {
                    [rules::stamps(&a), vec![rules::rewrite("/rewritten")]].concat()
                }
                _ => rules::stamps(&a),
            };
            for backend in &mut rule.backends {
                let none = self.random.once_in(3);
                backend.filters = if none { Vec::new() } else { rules::stamps(&b) };
            }
        }
        self.config.set(resource);
    }

    /// Where the routes of a host are attached: to every listener, by the host or by a wider name.
    fn attachments(&mut self, host: &str) -> Vec<proto::Attachment> {
        let rank = match self.random.below(8) {
            0 => "",
            1 => "*.example.com",
            _ => host,
        };
        let names = self.names(Kind::Listener);
        let known = LISTENERS
            .iter()
            .map(|(name, _)| format!("ListenerSet/{name}/tls"));
        let all = names.into_iter().chain(known).chain([FLIPPING.to_owned()]);
        let all: std::collections::BTreeSet<String> = all.collect();
        let leave_out = self.random.below(24);
        all.into_iter()
            .enumerate()
            .filter(|(index, _)| *index != leave_out)
            .map(|(_, listener)| proto::Attachment {
                listener,
                hostnames: vec![proto::RouteHostname {
                    r#match: rank.to_owned(),
                    rank: rank.to_owned(),
                }],
            })
            .collect()
    }

    /// A share among `count` backends; mostly not none.
    fn weight(&mut self, count: usize) -> u32 {
        match self.random.below(8) {
            0 if count > 1 || self.random.once_in(8) => 0,
            1 | 2 => 3,
            _ => 1,
        }
    }

    fn set_http_route(&mut self, host: usize) {
        let attachments = self.attachments(HOSTS[host]);
        let version = self.fresh();
        let mut rules = vec![rules::rule(None, &version)];
        for of in rules::MATCHES {
            if self.random.once_in(3) {
                let version = self.fresh();
                rules.push(rules::rule(Some(of), &version));
            }
        }
        for rule in &mut rules {
            let own = self.random.below(24);
            let count = 1 + usize::from(self.random.once_in(4));
            rule.backends = (0..count)
                .map(|_| {
                    let weight = self.weight(count);
                    rules::to(&self.somewhere("web"), weight)
                })
                .collect();
            match own {
                0 => rule.filters.push(rules::redirect("elsewhere.example.com")),
                1 => rule.filters.push(rules::fail(500)),
                2 => rule.backends[0].backend = String::new(),
                _ => {}
            }
            if self.random.once_in(4) {
                let long = Some(600_000 + u64::try_from(self.version).unwrap());
                rule.timeouts = Some(proto::HttpTimeouts {
                    request: long,
                    backend_request: long,
                });
            }
        }
        let route = proto::HttpRoute {
            tenant: "team-a".into(),
            created: i64::try_from(self.random.below(3)).unwrap(),
            attachments,
            rules,
        };
        let name = format!("team-a/web{host}");
        self.config.set(Resource::new(name, Wire::HttpRoute(route)));
        self.sweep();
    }

    fn toggle_http_route(&mut self) {
        let host = self.random.below(HOSTS.len());
        let name = format!("team-a/web{host}");
        if self.config.get(Kind::HttpRoute, &name).is_some() && self.random.once_in(3) {
            self.config.remove(Kind::HttpRoute, &name);
        } else {
            self.set_http_route(host);
        }
    }

    fn set_tls_route(&mut self, host: usize) {
        let attachments = self.attachments(HOSTS[host]);
        let count = 1 + usize::from(self.random.once_in(4));
        let backends = (0..count).map(|_| {
            let weight = self.weight(count);
            let backend = self.somewhere("tls");
            proto::WeightedBackend { backend, weight }
        });
        let route = proto::TlsRoute {
            tenant: "team-a".into(),
            created: 0,
            backends: backends.collect(),
            attachments,
        };
        let name = format!("team-a/tls{host}");
        self.config.set(Resource::new(name, Wire::TlsRoute(route)));
        self.sweep();
    }

    // ---- Trust and certificates

    fn bundle(&mut self, name: &str, of: &[usize]) {
        let all = if name == TRUST {
            &self.props.authorities
        } else {
            &self.props.clients
        };
        let authorities: Vec<&Authority> = of.iter().map(|index| &all[*index]).collect();
        self.config.set(Authority::bundle(name, &authorities));
    }

    fn trust(&mut self) {
        let name = *self.random.pick(&[TRUST, TRUST, CLIENTS]);
        let sets: [&[usize]; 4] = [&[0], &[1], &[0, 1], &[]];
        match *self.random.pick(&sets) {
            // Not often: nothing that relies on it is served then.
            [] if self.random.once_in(4) => self.config.remove(Kind::TrustBundle, name),
            [] => self.bundle(name, &[1, 0]),
            of => self.bundle(name, of),
        }
        if name == TRUST && !self.random.once_in(4) {
            self.follow_trust();
        }
    }

    /// Has the backends over TLS be where one is that is trusted now.
    fn follow_trust(&mut self) {
        for name in self.names(Kind::Backend) {
            let speaks = self.trusted();
            let mut resource = self.config.get(Kind::Backend, &name).unwrap().clone();
            if let Some(Wire::Backend(backend)) = &mut resource.resource
                && backend.tls.is_some()
            {
                let endpoints = self.addresses(speaks);
                backend.endpoints = endpoints.iter().map(wire_endpoint).collect();
                self.config.set(resource);
            }
        }
    }

    fn certify(&mut self, name: &str, index: usize) {
        let leaves = if name == SHOWN {
            &self.props.shown
        } else {
            &self.props.leaves
        };
        self.config.set(leaves[index % leaves.len()].resource(name));
    }

    fn certificate(&mut self) {
        let name = *self.random.pick(&["team-a/c0", "team-a/c1"]);
        if self.random.once_in(12) {
            self.config.remove(Kind::Certificate, name);
        } else {
            let index = self.random.below(100);
            self.certify(name, index);
        }
    }

    fn gateway_certificate(&mut self) {
        match self.random.below(12) {
            0 => self.config.remove(Kind::Certificate, SHOWN),
            1..4 => {
                let shown = if self.random.once_in(2) { SHOWN } else { "" };
                self.each_listener(|listener| listener.backend_certificate = shown.into());
            }
            n => self.certify(SHOWN, n),
        }
    }

    fn each_listener(&mut self, edit: impl Fn(&mut proto::Listener)) {
        for name in self.names(Kind::Listener) {
            let mut resource = self.config.get(Kind::Listener, &name).unwrap().clone();
            if let Some(Wire::Listener(listener)) = &mut resource.resource {
                edit(listener);
            }
            self.config.set(resource);
        }
    }

    // ---- Listeners

    fn add_listener(&mut self, index: usize) {
        let (name, hostname) = LISTENERS[index];
        let full = format!("ListenerSet/{name}/tls");
        let taken = self.holder(self.port_of(index), hostname);
        if taken.is_some_and(|holder| holder != full) {
            return;
        }
        let resource = if self.port_of(index) == self.ports.web {
            http(self.ports.web, "x", hostname, None)
        } else {
            self.secure(self.ports.tls, hostname)
        };
        self.config
            .set(self.with_gateway_certificate(named(resource, &full)));
    }

    fn port_of(&self, index: usize) -> u16 {
        if index < 2 {
            self.ports.web
        } else {
            self.ports.tls
        }
    }

    fn holder(&self, port: u16, hostname: &str) -> Option<String> {
        self.config.of(Kind::Listener).find_map(|(name, resource)| {
            let Some(Wire::Listener(listener)) = &resource.resource else {
                return None;
            };
            let here = listener.bind.as_ref()?.port == u32::from(port);
            (here && listener.hostname == hostname).then(|| name.to_owned())
        })
    }

    fn with_gateway_certificate(&self, mut resource: Resource) -> Resource {
        // All listeners of a Gateway show the same.
        let first = self.config.of(Kind::Listener).next();
        if let (Some((_, first)), Some(Wire::Listener(listener))) = (first, &mut resource.resource)
            && let Some(Wire::Listener(first)) = &first.resource
        {
            listener
                .backend_certificate
                .clone_from(&first.backend_certificate);
        }
        resource
    }

    /// A listener of one of the three modes.
    fn secure(&mut self, port: u16, hostname: &str) -> Resource {
        let certificate = *self.random.pick(&["team-a/c0", "team-a/c1"]);
        let mut resource = match self.random.below(5) {
            0 => return listener(port, "x", hostname, None),
            1..3 => listener(port, "x", hostname, Some(certificate)),
            _ => http(port, "x", hostname, Some(certificate)),
        };
        let validates = self.random.once_in(5);
        let strict = self.random.once_in(2);
        if let (true, Some(terminate)) = (validates, terminate_of(&mut resource)) {
            let mode = if strict {
                proto::ClientValidationMode::AllowValidOnly
            } else {
                proto::ClientValidationMode::AllowInsecureFallback
            };
            terminate.client_validation = Some(proto::ClientValidation {
                trust_bundles: vec![CLIENTS.into()],
                mode: mode.into(),
            });
        }
        resource
    }

    /// Another mode, another certificate, client validation on and off.
    fn set_listener(&mut self) {
        let index = 2 + self.random.below(LISTENERS.len() - 2);
        let (name, hostname) = LISTENERS[index];
        let full = format!("ListenerSet/{name}/tls");
        let Some(Wire::Listener(old)) = self
            .config
            .get(Kind::Listener, &full)
            .and_then(|resource| resource.resource.clone())
        else {
            return self.add_listener(index);
        };
        let hostname = if old.hostname.is_empty() {
            hostname.to_owned()
        } else {
            old.hostname
        };
        let resource = named(self.secure(self.ports.tls, &hostname), &full);
        self.config.set(self.with_gateway_certificate(resource));
    }

    fn toggle_listener(&mut self) {
        let index = self.random.below(LISTENERS.len());
        let name = format!("ListenerSet/{}/tls", LISTENERS[index].0);
        if self.config.get(Kind::Listener, &name).is_some() && self.random.once_in(2) {
            self.config.remove(Kind::Listener, &name);
        } else {
            self.add_listener(index);
        }
    }

    /// Two listeners swap their hostnames.
    fn swap(&mut self) {
        let name = |index: usize| format!("ListenerSet/{}/tls", LISTENERS[index].0);
        let first = 2 + self.random.below(LISTENERS.len() - 2);
        let second = 2 + self.random.below(LISTENERS.len() - 2);
        let both = [name(first), name(second)];
        let held = both
            .iter()
            .map(|name| self.config.get(Kind::Listener, name).cloned());
        let held: Vec<_> = held.collect();
        let [Some(one), Some(other)] = &held[..] else {
            return;
        };
        let (mut one, mut other) = (one.clone(), other.clone());
        if let (Some(Wire::Listener(one)), Some(Wire::Listener(other))) =
            (&mut one.resource, &mut other.resource)
        {
            std::mem::swap(&mut one.hostname, &mut other.hostname);
        }
        self.config.set(one);
        self.config.set(other);
    }

    /// A listener goes, and one of another object takes its place with all that it has.
    fn rename(&mut self) {
        let names = self.names(Kind::Listener);
        let old = self.random.pick(&names).clone();
        let new = match old.strip_suffix("-moved") {
            Some(name) => name.to_owned(),
            None => format!("{old}-moved"),
        };
        if old.starts_with("Gateway") || old == FLIPPING || names.contains(&new) {
            return;
        }
        let listener = self.config.get(Kind::Listener, &old).unwrap().clone();
        self.config.remove(Kind::Listener, &old);
        self.config.set(named(listener, &new));
        for kind in [Kind::HttpRoute, Kind::TlsRoute] {
            for name in self.names(kind) {
                let mut resource = self.config.get(kind, &name).unwrap().clone();
                let attachments = match &mut resource.resource {
                    Some(Wire::HttpRoute(route)) => &mut route.attachments,
                    Some(Wire::TlsRoute(route)) => &mut route.attachments,
                    _ => continue,
                };
                attachments.retain(|attachment| attachment.listener != new);
                for attachment in attachments {
                    if attachment.listener == old {
                        attachment.listener.clone_from(&new);
                    }
                }
                self.config.set(resource);
            }
        }
    }

    /// The third port is of the other layer, or of none.
    fn flip(&mut self) {
        let held = self.config.get(Kind::Listener, FLIPPING);
        let plain = held.is_some_and(|held| super::model::is_plain_resource(held));
        if held.is_some() && self.random.once_in(3) {
            return self.config.remove(Kind::Listener, FLIPPING);
        }
        let resource = if plain {
            self.secure(self.ports.flip, "")
        } else {
            http(self.ports.flip, "x", "", None)
        };
        let resource = self.with_gateway_certificate(named(resource, FLIPPING));
        self.config.set(resource);
    }

    // ---- Challenges and rejects

    fn challenge(&mut self) {
        let host = *self.random.pick(&HOSTS);
        let resource = if self.random.once_in(2) {
            http_challenge(self.ports.web, host)
        } else {
            let all = self.props.challenges.iter();
            let (_, certificate) = all.clone().find(|(name, _)| name == host).unwrap();
            certificate.resource(self.ports.tls, host)
        };
        let key = resource.key().unwrap();
        if self.config.get(Kind::Challenge, &key.name).is_some() {
            self.config.remove(Kind::Challenge, &key.name);
        } else {
            self.config.set(resource);
        }
    }

    /// Resources that are rejected, and leave everything as it is.
    fn reject(&mut self) {
        let resource = match self.random.below(3) {
            0 => {
                let key = Wire::Certificate(proto::Certificate {
                    chain: vec![vec![1, 2, 3].into()],
                    private_key: vec![1, 2, 3],
                });
                Resource::new("team-a/broken", key)
            }
            1 => {
                let taken = http(self.ports.web, "taken", "", None);
                named(taken, "ListenerSet/team-z/taken/tls")
            }
            _ => {
                let other = listener(self.ports.web, "other", "q.example.com", None);
                named(other, "ListenerSet/team-z/other/tls")
            }
        };
        self.bad.retain(|other| other.name != resource.name);
        self.bad.push(resource);
    }
}

/// The listener on the third port.
const FLIPPING: &str = "ListenerSet/team-a/flip/any";

fn named(mut resource: Resource, name: &str) -> Resource {
    name.clone_into(&mut resource.name);
    resource
}

fn terminate_of(resource: &mut Resource) -> Option<&mut proto::TlsTerminate> {
    let Some(Wire::Listener(listener)) = &mut resource.resource else {
        return None;
    };
    match listener.protocol.as_mut()? {
        Protocol::Http(http) => http.terminate.as_mut(),
        Protocol::Tls(tls) => match tls.mode.as_mut()? {
            Mode::Terminate(terminate) => Some(terminate),
            Mode::Passthrough(_) => None,
        },
    }
}

fn wire_endpoint(address: &SocketAddr) -> proto::Endpoint {
    proto::Endpoint {
        address: address.ip().to_string(),
        port: address.port().into(),
    }
}

fn address(endpoint: &proto::Endpoint) -> Option<SocketAddr> {
    let port = u16::try_from(endpoint.port).ok()?;
    Some(SocketAddr::new(endpoint.address.parse().ok()?, port))
}

// ---- What clients do

/// A connection and a request that anybody might make.
pub(crate) fn dial(random: &mut Random, ports: Ports, tls: bool) -> Dial {
    let either = random.once_in(8);
    let port = match (either, tls) {
        (true, _) => ports.flip,
        (false, true) => ports.tls,
        (false, false) => ports.web,
    };
    let alpn: &[&[&'static str]] = &[&[], &["http/1.1"], &["h2", "http/1.1"]];
    let hello = tls.then(|| Hello {
        name: host(random).to_owned(),
        alpn: random.pick(alpn).to_vec(),
        shows: [None, None, Some(0), Some(1)][random.below(4)],
    });
    Dial { port, tls: hello }
}

fn host(random: &mut Random) -> &'static str {
    if random.once_in(16) {
        STRANGER
    } else {
        HOSTS[random.below(HOSTS.len())]
    }
}

/// A request; `of`: the name that the connection is for.
pub(crate) fn ask(random: &mut Random, of: &Dial) -> Ask {
    let own = of.tls.as_ref().map(|hello| hello.name.clone());
    let own = own.filter(|_| !random.once_in(6));
    let paths = ["/", "/x", "/x/y", "/x/y/z", "/other"];
    let path = if of.tls.is_none() && random.once_in(6) {
        format!("{TOKEN_PATH}{TOKEN}")
    } else {
        (*random.pick(&paths)).to_owned()
    };
    let method = if random.once_in(4) { "POST" } else { "GET" };
    Ask {
        host: own.unwrap_or_else(|| host(random).to_owned()),
        path,
        method,
        variant: random.once_in(5).then_some("blue"),
        upgrade: false,
        body: if method == "POST" {
            random.below(3) * 500
        } else {
            0
        },
    }
}
