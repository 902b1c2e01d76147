//! Owns the TLS settings of backends, and builds the effective settings from these and the trust bundles that are held.
//!
//! If the settings cannot be read, no connection is made to the backend. They are not rejected, because then the
//! version before would stay in force, and that may be plaintext.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustls_pki_types::{DnsName, ServerName};
use vestibule_stream::proto;

use super::State;
use super::trust::{HeldTrust, Trust};
use crate::backend::Target;
use crate::upstream::{AltName, Tls};

/// Most names, and most trust bundles, of one policy. The CRD allows far fewer.
const MAX_ITEMS: usize = 64;

/// A backend's TLS settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TlsSpec {
    /// No connection is made.
    Closed,
    Verified {
        name: ServerName<'static>,
        /// Names that the certificate may have instead of `name`. If there are none, `name` counts.
        names: Vec<AltName>,
        trust: TrustSpec,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TrustSpec {
    System,
    Bundles(Vec<Arc<str>>),
}

impl TlsSpec {
    pub(super) fn parse(backend: &str, wire: &proto::BackendTls) -> Self {
        if wire.invalid {
            return Self::Closed;
        }
        Self::read(wire).unwrap_or_else(|what| {
            tracing::warn!(
                backend,
                what,
                "the TLS settings of a backend are unreadable, so no connection to it is made"
            );
            Self::Closed
        })
    }

    fn read(wire: &proto::BackendTls) -> Result<Self, &'static str> {
        use proto::subject_alt_name::Name;

        if wire.trust_bundles.len().max(wire.subject_alt_names.len()) > MAX_ITEMS {
            return Err("too many names or trust bundles");
        }
        let names = wire.subject_alt_names.iter().map(|name| match &name.name {
            Some(Name::Dns(name)) => match name.strip_prefix("*.") {
                Some(suffix) => dns(suffix)
                    .map(|_| AltName::Wildcard(suffix.into()))
                    .ok_or("a subject alternative name"),
                None => dns(name)
                    .map(AltName::Exact)
                    .ok_or("a subject alternative name"),
            },
            Some(Name::Uri(uri)) if !uri.is_empty() => Ok(AltName::Uri(uri.as_str().into())),
            Some(Name::Uri(_)) | None => Err("a subject alternative name"),
        });
        Ok(Self::Verified {
            name: dns(&wire.hostname).ok_or("the hostname")?,
            names: names.collect::<Result<_, _>>()?,
            trust: if wire.system_trust {
                TrustSpec::System
            } else {
                let names = wire.trust_bundles.iter();
                TrustSpec::Bundles(names.map(|name| name.as_str().into()).collect())
            },
        })
    }

    /// The names of the trust bundles.
    pub(super) fn bundles(&self) -> &[Arc<str>] {
        match self {
            Self::Verified {
                trust: TrustSpec::Bundles(names),
                ..
            } => names,
            Self::Closed | Self::Verified { .. } => &[],
        }
    }
}

fn dns(name: &str) -> Option<ServerName<'static>> {
    let name = DnsName::try_from(name.to_ascii_lowercase()).ok()?;
    Some(ServerName::DnsName(name))
}

impl State {
    /// The effective settings of `spec`, for a backend of this name, with the trust bundles that are held now.
    pub(super) fn backend_tls(&self, backend: &str, spec: &TlsSpec) -> Arc<Tls> {
        let factory = &self.upstream;
        let closed = || Tls::closed(factory);
        Arc::new(match spec {
            TlsSpec::Closed => closed(),
            TlsSpec::Verified { name, names, trust } => {
                let bundles = match trust {
                    TrustSpec::System => vec![Arc::clone(factory.system_trust())],
                    TrustSpec::Bundles(bundles) => {
                        let held = bundles.iter().filter_map(|name| self.trusts.get(name));
                        held.map(|held| Arc::clone(held.roots())).collect()
                    }
                };
                if bundles.is_empty() {
                    closed()
                } else {
                    let (namespace, _) = backend.split_once('/').unwrap_or_default();
                    Tls::new((factory, namespace), name.clone(), names.clone(), bundles)
                }
            }
        })
    }

    /// The union of those `bundles` that are held. Everybody who uses the same bundles has the same union.
    pub(super) fn trust(&mut self, bundles: &[Arc<str>]) -> Option<Trust> {
        let held = bundles.iter().filter_map(|name| self.trusts.get(name));
        self.unions.of(held)
    }

    pub(super) fn put_trusts<'a>(
        &mut self,
        gone: impl Iterator<Item = &'a str>,
        new: BTreeMap<String, HeldTrust>,
        rebuild: &mut BTreeSet<Arc<str>>,
    ) {
        for name in gone {
            if self.drop_trust(name) {
                rebuild.extend(self.client_trust.of(&name.into()).cloned());
            }
        }
        for (name, trust) in new {
            if self.hold_trust(&name, trust) {
                rebuild.extend(self.client_trust.of(&name.into()).cloned());
            }
        }
    }

    /// Holds a trust bundle, and builds the backends again that refer to it. Returns whether the bundle changed.
    pub(super) fn hold_trust(&mut self, name: &str, trust: HeldTrust) -> bool {
        if self.trusts.get(name).is_some_and(|old| old.is_same(&trust)) {
            return false;
        }
        self.trusts.insert(name.into(), trust);
        self.renew_backends(name);
        true
    }

    pub(super) fn drop_trust(&mut self, name: &str) -> bool {
        let held = self.trusts.remove(name).is_some();
        if held {
            self.renew_backends(name);
        }
        held
    }

    fn renew_backends(&mut self, bundle: &str) {
        let users: Vec<_> = self.backend_trust.of(&bundle.into()).cloned().collect();
        for name in users {
            let Some(spec) = self.backends.get(&name).and_then(|held| held.tls.clone()) else {
                continue;
            };
            let tls = Some(self.backend_tls(&name, &spec));
            if let Some(present) = self.present(&name) {
                let target = present.target.clone();
                self.renew_backend(&name, Target { tls, ..target });
            }
        }
    }

    /// Holds the TLS settings of a backend, and returns the effective ones. If these are equal to the present ones, the
    /// present value is returned, so that its sessions and connections are still used.
    pub(super) fn settle_backend_tls(
        &mut self,
        name: &str,
        spec: Option<TlsSpec>,
    ) -> Option<Arc<Tls>> {
        let present = self.present(name).and_then(|of| of.target.tls.clone());
        let old = self.backends.get(name).and_then(|held| held.tls.clone());
        let old = old.map(|spec| *spec);
        if let (Some(present), true) = (present, old == spec) {
            return Some(present);
        }
        for bundle in old.iter().flat_map(TlsSpec::bundles) {
            self.backend_trust.remove(bundle, &name.into());
        }
        for bundle in spec.iter().flat_map(TlsSpec::bundles) {
            self.backend_trust.add(bundle, &name.into());
        }
        let tls = spec.as_ref().map(|spec| self.backend_tls(name, spec));
        if let Some(held) = self.backends.get_mut(name) {
            held.tls = spec.map(Box::new);
        }
        tls
    }
}

#[cfg(test)]
mod tests {
    use proto::subject_alt_name::Name;
    use vestibule_model::endpoint::EndpointRules;

    use super::*;

    fn wire(hostname: &str, names: Vec<Option<Name>>) -> proto::BackendTls {
        let names = names.into_iter();
        proto::BackendTls {
            hostname: hostname.into(),
            trust_bundles: vec!["ConfigMap/team-a/ca".into()],
            subject_alt_names: names.map(|name| proto::SubjectAltName { name }).collect(),
            ..Default::default()
        }
    }

    fn parse(wire: &proto::BackendTls) -> TlsSpec {
        TlsSpec::parse("team-a/web:443", wire)
    }

    #[test]
    fn settings_are_read() {
        let all = vec![
            Some(Name::Dns("B.example.com".into())),
            Some(Name::Dns("*.example.com".into())),
            Some(Name::Uri("spiffe://x/y".into())),
        ];
        let TlsSpec::Verified { name, names, trust } = parse(&wire("A.example.com", all)) else {
            panic!("closed");
        };
        assert_eq!(name.to_str(), "a.example.com");
        let exact = ServerName::try_from("b.example.com").unwrap();
        let wildcard = AltName::Wildcard("example.com".into());
        let uri = AltName::Uri("spiffe://x/y".into());
        assert_eq!(names, [AltName::Exact(exact), wildcard, uri]);
        let bundles = vec!["ConfigMap/team-a/ca".into()];
        assert_eq!(trust, TrustSpec::Bundles(bundles));
    }

    /// Tenants choose how many backends use which bundles.
    #[test]
    fn bundles_are_not_copied_for_each_backend() {
        let mut state = State::new(Arc::default(), EndpointRules::default()).unwrap();
        let names = ["ConfigMap/team-a/one", "ConfigMap/team-a/two"];
        for name in names {
            let made = rcgen::generate_simple_self_signed([name.to_lowercase()]).unwrap();
            let certificates = vec![made.cert.der().to_vec()];
            let trust = HeldTrust::parse(name, &proto::TrustBundle { certificates }).unwrap();
            assert!(state.hold_trust(name, trust));
        }
        let mut wire = wire("a.example.com", Vec::new());
        wire.trust_bundles = names.map(Into::into).to_vec();
        let spec = parse(&wire);
        let backends: Vec<_> = (0..10)
            .map(|_| state.backend_tls("team-a/web:443", &spec))
            .collect();
        assert!(backends.iter().all(|tls| !tls.is_closed()));
        for held in state.trusts.values() {
            assert_eq!(Arc::strong_count(held.roots()), 1 + backends.len());
        }
    }

    #[test]
    fn backend_tls_that_cannot_be_read_is_closed() {
        let invalid = proto::BackendTls {
            invalid: true,
            ..wire("a.example.com", Vec::new())
        };
        let many = vec![Some(Name::Dns("a.example.com".into())); MAX_ITEMS + 1];
        for wire in [
            invalid,
            wire("", Vec::new()),
            wire("a b", Vec::new()),
            wire("*.example.com", Vec::new()),
            wire("192.0.2.1", Vec::new()),
            wire("a.example.com", vec![None]),
            wire("a.example.com", vec![Some(Name::Dns(String::new()))]),
            wire("a.example.com", vec![Some(Name::Dns("*.".into()))]),
            wire("a.example.com", vec![Some(Name::Uri(String::new()))]),
            wire("a.example.com", many),
        ] {
            assert_eq!(parse(&wire), TlsSpec::Closed, "{wire:?}");
        }
    }
}
