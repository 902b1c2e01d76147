//! Random histories: a first configuration, and edits of every kind that lead from one to the next.

mod listeners;
mod routes;
mod traffic;

use std::sync::Arc;

use vestibule_stream::{Resource, ResourceKey, ResourceKind as Kind};

use super::ledger::Config;
use super::servers::Props;
use listeners::named;
pub(crate) use traffic::{ask, dial};
use vestibule_proxy_testing::{http, listener, needs_settings, owner};

/// Hosts that clients ask for.
pub(crate) const HOSTS: [&str; 4] = [
    "a.example.com",
    "b.example.com",
    "c.example.com",
    "d.w.example.com",
];
/// The namespaces. The routes of each host are of one of them.
const TEAMS: [&str; 2] = ["team-a", "team-b"];
/// The patterns that a namespace may own.
const OWNED: [&str; 6] = [
    "a.example.com",
    "b.example.com",
    "c.example.com",
    "d.w.example.com",
    "*.w.example.com",
    "*.example.com",
];
const TRUST: &str = "ConfigMap/team-a/ca";
const CLIENTS: &str = "ConfigMap/infra/clients";
const SHOWN: &str = "infra/gateway";

/// `SplitMix64`.
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

/// The listener on the third port.
const FLIPPING: &str = "ListenerSet/team-a/flip/any";

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
        self.show("");
        let web = http(self.ports.web, "x", "", None);
        let web = named(web, "Gateway/infra/edge/web");
        self.config.set(needs_settings(web));
        let base = listener(self.ports.tls, "x", "base.example.com", None);
        let base = named(base, "Gateway/infra/edge/base");
        self.config.set(needs_settings(base));
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
        let all: [(&'static str, Do); 27] = [
            ("move an HTTP route", Self::move_http),
            ("move an HTTP route", Self::move_http),
            ("move an HTTP route", Self::move_http),
            ("move a TLS route", Self::move_tls),
            ("move a TLS route", Self::move_tls),
            ("filters", Self::filters),
            ("filters", Self::filters),
            ("matches", Self::set_matches),
            ("matches", Self::set_matches),
            ("timeouts", Self::set_timeouts),
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
            ("a name gets another owner, or none", Self::set_owner),
            ("a challenge", Self::challenge),
            ("a reject", Self::reject),
        ];
        let (what, act) = *self.random.pick(&all);
        self.what.push(what);
        act(self);
    }

    /// A name passes from one namespace to another. Often nobody owns it, so that most of what is asked for is served.
    fn set_owner(&mut self) {
        let (names, team) = (*self.random.pick(&OWNED), *self.random.pick(&TEAMS));
        let resource = owner(names, team);
        if self
            .config
            .get(Kind::HostnameOwner, &resource.name)
            .is_some()
            && self.random.once_in(2)
        {
            self.config.remove(Kind::HostnameOwner, &resource.name);
        } else {
            self.config.set(resource);
        }
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
}
