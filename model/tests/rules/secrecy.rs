//! What a tenant is told never names another tenant's objects.

use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::Listener;
use vestibule_model::merge::{Merge, SetVerdict};
use vestibule_model::selector::NamespaceScope;

use crate::support::{CONTROLLER, class, gateway, listener, set};

/// Listeners whose names and, where they say so, hostnames begin with `secret`.
fn listeners(secret: &'static str) -> impl Strategy<Value = Vec<Listener>> {
    let one = (
        prop::sample::select(vec![80, 443]),
        prop::sample::select(vec!["TLS", "TLS", "HTTPS", "HTTP", "TCP"]),
        prop::sample::select(vec![
            String::new(),
            "shared.example".into(),
            "*.example".into(),
            "a.shared.example".into(),
            format!("{secret}.example"),
            format!("*.{secret}.example"),
        ]),
    );
    prop::collection::vec(one, 1..5).prop_map(move |parts| {
        parts
            .into_iter()
            .enumerate()
            .map(|(index, (port, protocol, hostname))| {
                listener(
                    index,
                    &format!("{secret}-listener-{index}"),
                    port,
                    protocol,
                    &hostname,
                )
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn findings_for_one_tenant_do_not_name_another(
        mine in listeners("alpha"),
        theirs in listeners("bravo"),
        own in listeners("gate"),
        ages in (0_i64..3, 0_i64..3),
        allowed in prop::bool::weighted(0.8),
    ) {
        let mut merge = Merge::new(CONTROLLER);
        let ours: Arc<str> = "vestibule".into();
        merge.put_class(&ours, Some(class(&ours)));
        let mut gateway = gateway("infra/gw", own);
        let set_a = set("alpha-ns/alpha-set", "infra/gw", ages.0, mine);
        let set_b = set("bravo-ns/bravo-set", "infra/gw", ages.1, theirs);
        if !allowed {
            gateway.allowed_listeners = NamespaceScope::Same;
        }
        merge.put_gateway(&gateway.name.clone(), Some(gateway.clone().into()));
        merge.put_set(&set_b.name.clone(), Some(set_b.into()));
        let mut findings: Vec<Finding> = merge.conflicts_of_newcomer(&set_a);
        merge.put_set(&set_a.name.clone(), Some(set_a.clone().into()));
        if let SetVerdict::NotAllowed(finding) = merge.verdict(&set_a) {
            findings.push(finding);
        }
        for listener in &set_a.listeners {
            let key = listener.key(&set_a.parent_key());
            if let (Some(conflict), Some((at, claim))) = (merge.conflict(&key), merge.claim(&key)) {
                findings.push(conflict.finding(claim, &listener.field, at.port.get(), &at.gateway));
            }
        }
        for finding in findings {
            let text = format!("{finding} {finding:?}");
            prop_assert!(!text.contains("bravo"), "{}", text);
            // Of the Gateway, its name; not what its listeners are called or want.
            prop_assert!(!text.contains("gate-") && !text.contains("gate."), "{}", text);
        }
    }
}
