//! Edits of routes and of the backends that they lead to.

use std::net::SocketAddr;

use vestibule_stream::{Resource, ResourceKind as Kind, proto};

use super::{FLIPPING, HOSTS, History, LISTENERS, TEAMS, TRUST};
use crate::edits::model::address;
use crate::edits::rules;
use crate::edits::servers::{INNER, NOBODYS, Speaks};
use vestibule_proxy_testing::endpoint;
use vestibule_proxy_testing::web::to;

use proto::resource::Resource as Wire;

/// Timeouts, in milliseconds, that end a request if its backend holds the answer back.
const SHORT: [u64; 3] = [10, 40, 160];

impl History {
    pub(super) fn any_backend(&mut self) -> String {
        let names = self.names(Kind::Backend);
        self.random.pick(&names).clone()
    }

    /// Makes a backend, or makes it anew.
    pub(super) fn set_backend(&mut self, name: &str) {
        let over_tls = name.starts_with("team-a/tls");
        let speaks = match self.random.below(10) {
            0..7 if over_tls => self.trusted(),
            0..3 => self.trusted(),
            3..5 if !over_tls => Speaks::Two,
            _ => Speaks::One,
        };
        let endpoints = self.addresses(speaks);
        let mut backend = proto::Backend {
            endpoints: endpoints.iter().map(endpoint).collect(),
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
    pub(super) fn trusted(&mut self) -> Speaks {
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

    pub(super) fn addresses(&mut self, speaks: Speaks) -> Vec<SocketAddr> {
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
    pub(super) fn endpoint(&mut self) {
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
            Some(other) if known.len() < 3 => backend.endpoints.push(endpoint(&other.address)),
            _ => {
                backend.endpoints.remove(0);
            }
        }
        self.config.set(resource);
    }

    // ---- Routes

    /// A name for a backend, of one that is there or of a new one.
    pub(super) fn somewhere(&mut self, what: &str) -> String {
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
    pub(super) fn sweep(&mut self) {
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
    pub(super) fn move_http(&mut self) {
        let (backend, version) = (self.somewhere("web"), self.fresh());
        self.edit_rule(|of, rule| {
            rule.backends = vec![to(&backend, 1)];
            rule.filters = if of.random.once_in(3) {
                Vec::new()
            } else {
                rules::stamps(&version)
            };
        });
        self.sweep();
    }

    pub(super) fn move_tls(&mut self) {
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

    pub(super) fn filters(&mut self) {
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
            rule.filters = match self.random.below(6) {
                0 => Vec::new(),
                1 if has_prefixes(rule) => {
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
    pub(super) fn attachments(&mut self, host: &str) -> Vec<proto::Attachment> {
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
                    shared: false,
                    paths: Vec::new(),
                }],
            })
            .collect()
    }

    /// A share among `count` backends; mostly not none.
    pub(super) fn weight(&mut self, count: usize) -> u32 {
        match self.random.below(8) {
            0 if count > 1 || self.random.once_in(8) => 0,
            1 | 2 => 3,
            _ => 1,
        }
    }

    pub(super) fn set_http_route(&mut self, host: usize) {
        let attachments = self.attachments(HOSTS[host]);
        let version = self.fresh();
        let mut rules = vec![rules::rule(&[], &version)];
        for _ in 0..2 + self.random.below(5) {
            let (matches, version) = (self.matches(), self.fresh());
            rules.push(rules::rule(&matches, &version));
        }
        for rule in &mut rules {
            let own = self.random.below(24);
            let count = 1 + usize::from(self.random.once_in(4));
            rule.backends = (0..count)
                .map(|_| {
                    let weight = self.weight(count);
                    to(&self.somewhere("web"), weight)
                })
                .collect();
            match own {
                0 => rule.filters.push(rules::redirect("elsewhere.example.com")),
                1 => rule.filters.push(rules::fail(500)),
                2 => rule.backends[0].backend = String::new(),
                _ => {}
            }
            if self.random.once_in(4) {
                rule.timeouts = Some(self.timeouts());
            }
        }
        let route = proto::HttpRoute {
            tenant: tenant_of(host).into(),
            created: i64::try_from(self.random.below(3)).unwrap(),
            attachments,
            rules,
        };
        let name = format!("{}/web{host}", tenant_of(host));
        self.config.set(Resource::new(name, Wire::HttpRoute(route)));
        self.sweep();
    }

    /// One kind of requests, or two.
    fn matches(&mut self) -> Vec<rules::Asks> {
        let count = 1 + usize::from(self.random.once_in(4));
        let one = |_| *self.random.pick(&rules::MATCHES);
        (0..count).map(one).collect()
    }

    /// Timeouts of both kinds: none, zero, one that no test waits for, or a short one.
    fn timeouts(&mut self) -> proto::HttpTimeouts {
        let version = u64::try_from(self.version).unwrap();
        let mut one = || match self.random.below(6) {
            0 | 1 => None,
            2 => Some(0),
            3 => Some(600_000 + version),
            _ => Some(*self.random.pick(&SHORT)),
        };
        let (request, backend_request) = (one(), one());
        proto::HttpTimeouts {
            request,
            backend_request,
        }
    }

    /// Edits one rule of a route.
    fn edit_rule(&mut self, edit: impl FnOnce(&mut Self, &mut proto::HttpRule)) {
        let names = self.names(Kind::HttpRoute);
        if names.is_empty() {
            return self.set_http_route(0);
        }
        let name = self.random.pick(&names).clone();
        let mut resource = self.config.get(Kind::HttpRoute, &name).unwrap().clone();
        if let Some(Wire::HttpRoute(route)) = &mut resource.resource {
            let at = self.random.below(route.rules.len());
            edit(self, &mut route.rules[at]);
        }
        self.config.set(resource);
    }

    /// Has a rule take other requests; a rule that takes everything stays as it is.
    pub(super) fn set_matches(&mut self) {
        self.edit_rule(|of, rule| {
            if rule.matches.is_empty() {
                return;
            }
            let before = std::mem::replace(&mut rule.matches, rules::matches(&of.matches()));
            // A prefix can be replaced only where each match has one.
            if !has_prefixes(rule) && rule.filters.iter().any(rules::is_rewrite) {
                rule.matches = before;
            }
        });
    }

    /// Has the timeouts of a rule come, go, or change.
    pub(super) fn set_timeouts(&mut self) {
        self.edit_rule(|of, rule| {
            let none = rule.timeouts.is_some() && of.random.once_in(3);
            rule.timeouts = (!none).then(|| of.timeouts());
        });
    }

    pub(super) fn toggle_http_route(&mut self) {
        let host = self.random.below(HOSTS.len());
        let name = format!("{}/web{host}", tenant_of(host));
        if self.config.get(Kind::HttpRoute, &name).is_some() && self.random.once_in(3) {
            self.config.remove(Kind::HttpRoute, &name);
        } else {
            self.set_http_route(host);
        }
    }

    pub(super) fn set_tls_route(&mut self, host: usize) {
        let attachments = self.attachments(HOSTS[host]);
        let count = 1 + usize::from(self.random.once_in(4));
        let backends = (0..count).map(|_| {
            let weight = self.weight(count);
            let backend = self.somewhere("tls");
            proto::WeightedBackend { backend, weight }
        });
        let route = proto::TlsRoute {
            tenant: tenant_of(host).into(),
            created: 0,
            backends: backends.collect(),
            attachments,
        };
        let name = format!("{}/tls{host}", tenant_of(host));
        self.config.set(Resource::new(name, Wire::TlsRoute(route)));
        self.sweep();
    }
}

/// The namespace of the routes of a host.
fn tenant_of(host: usize) -> &'static str {
    TEAMS[host % TEAMS.len()]
}

/// Whether each match of a rule has a prefix.
fn has_prefixes(rule: &proto::HttpRule) -> bool {
    use proto::http_match::Path;
    let mut matches = rule.matches.iter();
    matches.all(|of| matches!(of.path, None | Some(Path::Prefix(_))))
}
