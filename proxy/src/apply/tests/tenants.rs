//! How namespaces share connections.

use super::*;
use crate::quota::{QuotaLimits, TenantQuota};

const HUNDRED: QuotaLimits = QuotaLimits {
    all: 100,
    guaranteed_percent: 100,
    scarce: false,
};

fn tenant(name: &str, connection_shares: u32, max_connections: u32) -> Resource {
    let tenant = proto::Tenant {
        connection_shares,
        max_connections,
    };
    Resource::new(name, Wire::Tenant(tenant))
}

fn gone(name: &str) -> ResourceKey {
    key(ResourceKind::Tenant, name)
}

/// How many connections a namespace gets, if they all end again.
fn connections_of(h: &Harness, tenant: &str) -> usize {
    let account: Arc<TenantQuota> = h.state.accounts.find(tenant).expect("an account");
    let taken: Vec<_> = std::iter::from_fn(|| account.take(HUNDRED)).collect();
    taken.len()
}

#[test]
fn a_namespace_has_the_shares_and_the_limit_that_the_configuration_gives_it() {
    let mut h = Harness::new();
    let both = vec![listener(A, "a.example.com"), listener(B, "b.example.com")];
    assert_eq!(h.apply(both), []);
    assert_eq!(connections_of(&h, "team-a"), 50);
    assert_eq!(h.apply(vec![tenant("team-a", 4, 0)]), []);
    assert_eq!(connections_of(&h, "team-a"), 80);
    assert_eq!(connections_of(&h, "team-b"), 20);
    // What a namespace does not use up to its limit is lent.
    assert_eq!(h.apply(vec![tenant("team-a", 4, 30)]), []);
    assert_eq!(connections_of(&h, "team-a"), 30);
    assert_eq!(connections_of(&h, "team-b"), 20 + 50);
    h.remove(vec![gone("team-a")]);
    assert_eq!(connections_of(&h, "team-a"), 50);
    // A namespace that has nothing here does not affect the others, and has its shares from the beginning.
    let more = vec![tenant("team-b", 0, 0), tenant("team-c", 8, 0)];
    assert_eq!(h.apply(more), []);
    assert_eq!(connections_of(&h, "team-a"), 50);
    let first = listener("ListenerSet/team-c/web/tls", "c.example.com");
    assert_eq!(h.apply(vec![first]), []);
    assert_eq!(connections_of(&h, "team-c"), 80);
}

#[test]
fn namespace_settings_are_counted_and_shown() {
    let mut h = Harness::new();
    let all = vec![tenant("team-b", 100, 7), tenant("team-a", 0, 0)];
    assert_eq!(h.apply(all), []);
    assert_eq!(h.state.counts().tenants, 2);
    let shown = serde_json::to_value(h.state.dump().tenants).unwrap();
    let expected = serde_json::json!([
        {"name": "team-a", "connection_shares": 1},
        {"name": "team-b", "connection_shares": 100, "max_connections": 7},
    ]);
    assert_eq!(shown, expected);
    for name in ["", "team-a/web", "team a"] {
        let rejected = h.apply(vec![tenant(name, 1, 0)]);
        assert_eq!(rejected, [(name.to_owned(), "InvalidName".to_owned())]);
    }
    // More shares than there can be count as the most.
    assert_eq!(h.apply(vec![tenant("team-b", u32::MAX, 7)]), []);
    let shown = serde_json::to_value(h.state.dump().tenants).unwrap();
    assert_eq!(shown, expected);
    h.remove(vec![gone("team-a"), gone("team-b")]);
    assert_eq!(h.state.counts(), Counts::default());
}
