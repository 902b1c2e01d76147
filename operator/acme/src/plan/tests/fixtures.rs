//! Settings, issuers and requests for all simulations.

use vestibule_model::challenge::Reach;
use vestibule_model::issuer::{Engine, IssuerRef};
use vestibule_model::key::Kind;
use vestibule_model::meta::Meta;

use crate::plan::*;

/// Settings with these orders per hour for everybody, each issuer and each namespace, and this many slots.
pub(super) fn limits(rates: [u32; 3], in_flight: usize) -> EngineSettings {
    let [per_hour, per_issuer, per_namespace] = rates.map(|n| n.try_into().expect("not zero"));
    EngineSettings {
        namespace: "vestibule-system".into(),
        issuers: LabelSelector::default(),
        budgets: Budgets {
            per_hour,
            per_issuer,
            per_namespace,
        },
        in_flight,
        registrations: 8.try_into().expect("not zero"),
        authorities: AuthorityRules::Any,
        reach: Duration::ZERO,
        spread: Duration::from_mins(1),
        seed: 3,
    }
}

/// An issuer that allows every challenge.
pub(super) fn issuer_at(key: ObjectKey, directory: &str) -> AcmeIssuer {
    AcmeIssuer {
        key,
        meta: Meta::default(),
        labels: BTreeMap::new(),
        directory: directory.into(),
        contact: Vec::new(),
        account_key_secret: "account".into(),
        external_account: None,
        profile: None,
        ca_bundle: None,
        challenges: ChallengeType::ALL.to_vec(),
        findings: Vec::new(),
    }
}

/// A request for a certificate of this issuer. All of its names are checked in the same way.
pub(super) fn request_of(
    secret: ObjectName,
    issuer: &ObjectKey,
    hostnames: BTreeSet<Hostname>,
    reach: [Reach; 2],
) -> CertificateRequest {
    CertificateRequest {
        reach: hostnames.iter().map(|name| (name.clone(), reach)).collect(),
        hostnames,
        issuer: Some(IssuerRef {
            engine: Engine::Acme,
            name: issuer.name.name.clone(),
            kind: issuer.kind.as_str().into(),
            group: "vestibule.dev".into(),
        }),
        owner: ObjectKey::new(Kind::ListenerSet, secret.namespace.clone(), "set"),
        owner_uid: "u".into(),
        gateway: ObjectName::new("platform", "shared"),
        gateway_uid: "u".into(),
        options: Arc::default(),
        secret,
    }
}
