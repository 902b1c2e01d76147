//! Names that several namespaces have, each on another Gateway, with claims of random ages.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuer::IssuerAnnotations;
use vestibule_model::key::{Kind, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, ClaimMode, Settings, Translator};
use vestibule_test_support::properties::keep_failures_with_cases;

use super::assert_same;
use super::history::{final_inputs, final_objects};
use super::objects::{a_name, a_tenant};
use vestibule_operator_testing::objects::{
    Tls, gateway, key, listener, our_class, passthrough, pattern, set, settings,
};

const NAMES: [&str; 5] = [
    "",
    "*.example.com",
    "x.example.com",
    "*.x.example.com",
    "z.x.example.com",
];

fn some_names() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn ends(namespace: &str, hostname: &str) -> Listener {
    let tls = Tls::Terminate(namespace.into(), "cert".into());
    listener("l", 8443, Protocol::Https, hostname, Some(tls))
}

fn issuers() -> IssuerAnnotations {
    IssuerAnnotations {
        acme_cluster_issuer: Some("ca".into()),
        ..IssuerAnnotations::default()
    }
}

fn a_set() -> impl Strategy<Value = Object> {
    (a_tenant(), a_name(), a_name(), some_names()).prop_map(|(tenant, name, at, hostname)| {
        let mut set = set(tenant, name, 1, at, vec![ends(tenant, hostname)]);
        if let Object::ListenerSet(set) = &mut set {
            Arc::make_mut(set).issuers = issuers();
        }
        set
    })
}

fn a_gateway() -> impl Strategy<Value = Object> {
    (a_name(), prop::option::of(some_names()), prop::bool::ANY).prop_map(
        |(name, own, certified)| {
            let own = own.map(|own| {
                if certified {
                    ends("platform", own)
                } else {
                    passthrough("own", own)
                }
            });
            let mut gateway = gateway(name, own.into_iter().collect(), NamespaceScope::All);
            if let Object::Gateway(gateway) = &mut gateway {
                Arc::make_mut(gateway).issuers = issuers();
            }
            gateway
        },
    )
}

/// A claim and its age, as they are recorded; mostly together.
fn a_claim() -> impl Strategy<Value = Vec<Change>> {
    let holder = prop::option::weighted(0.8, (a_tenant(), 0i64..3));
    (a_name(), some_names(), holder, 0..5).prop_map(|(gateway, names, holder, only)| {
        let claim = ClaimKey::names(&ObjectName::new("platform", gateway), &pattern(names));
        let since = holder.map(|(_, since)| since);
        let holder = holder.map(|(tenant, _)| Holder::from(tenant));
        let claims = Change::Claims(BTreeMap::from([(claim.clone(), holder)]));
        let since = Change::Since(BTreeMap::from([(claim, since)]));
        match only {
            0 => vec![since],
            1 => vec![claims],
            _ => vec![claims, since],
        }
    })
}

fn some_changes() -> impl Strategy<Value = Vec<Change>> {
    let removed =
        (a_tenant(), a_name(), prop::bool::weighted(0.8)).prop_map(|(tenant, name, set)| {
            Change::Remove(if set {
                key(Kind::ListenerSet, tenant, name)
            } else {
                key(Kind::Gateway, "platform", name)
            })
        });
    prop_oneof![
        6 => a_claim(),
        4 => a_set().prop_map(|object| vec![Change::Put(object)]),
        2 => a_gateway().prop_map(|object| vec![Change::Put(object)]),
        1 => removed.prop_map(|change| vec![change]),
    ]
}

proptest! {
    #![proptest_config(keep_failures_with_cases(600))]

    #[test]
    fn across_gateways_incremental_equals_from_scratch(
        history in prop::collection::vec(some_changes(), 1..40),
        batch in 1usize..4,
        assumed in prop::bool::weighted(0.2),
    ) {
        let own = || vec![passthrough("own", "")];
        let world = [
            our_class(),
            gateway("one", own(), NamespaceScope::All),
            gateway("two", own(), NamespaceScope::All),
        ];
        let first = world.map(Change::Put);
        let history: Vec<Change> = first.into_iter().chain(history.into_iter().flatten()).collect();
        let claims = if assumed { ClaimMode::Assumed } else { ClaimMode::Recorded };
        let settings = || Settings { claims, ..settings() };
        let mut incremental = Translator::new(settings());
        for changes in history.chunks(batch) {
            incremental.apply(changes.to_vec());
        }
        let mut scratch = Translator::new(settings());
        scratch.apply(final_objects(&history).into_values().map(Change::Put));
        scratch.apply(final_inputs(&history));
        assert_same(&incremental, &scratch);
        // A name is in certificates of one tenant only, whatever the Gateways.
        let mut tenants: BTreeMap<&Hostname, &str> = BTreeMap::new();
        for request in scratch.requests().values() {
            let tenant = &*request.secret.namespace;
            for hostname in request.hostnames.iter().filter(|_| tenant != "platform") {
                let other = *tenants.entry(hostname).or_insert(tenant);
                prop_assert_eq!(other, tenant, "{}", hostname);
            }
        }
    }
}
