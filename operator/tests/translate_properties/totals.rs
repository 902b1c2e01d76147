//! Totals of the configuration that have no room for everything.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use vestibule_model::fair_total::{Demand, FairTotal};
use vestibule_model::object::Object;
use vestibule_model::policy::{ConfigurationTotals, TotalBytes};
use vestibule_model::protocol::Protocol;
use vestibule_operator::translate::{Change, Translator};
use vestibule_operator_testing::objects::{Holds, Tls, listener, secret, set, settings};
use vestibule_stream::{Encoded, ResourceKind};
use vestibule_test_support::properties::keep_failures_with_cases;

use super::history::a_history;

/// Totals with room for a few resources each, or for none. A resource counts 256 bytes at least.
fn small_totals() -> impl Strategy<Value = TotalBytes> {
    let bytes = || 0_u64..3_000;
    (bytes(), bytes(), bytes(), bytes()).prop_map(|(certificates, routes, backends, listeners)| {
        TotalBytes {
            certificates,
            routes,
            backends,
            listeners,
        }
    })
}

/// Totals with room for everything, or small ones.
pub(super) fn some_totals() -> impl Strategy<Value = TotalBytes> {
    prop_oneof![
        1 => Just(TotalBytes::from(ConfigurationTotals::DEFAULT)),
        1 => small_totals(),
    ]
}

/// A history in which two teams have a certificate in use, because few random listeners have one.
pub(super) fn a_certified_history() -> impl Strategy<Value = Vec<Change>> {
    a_history().prop_map(|changes| {
        let certified = ["a", "b"].into_iter().flat_map(|team| -> [Object; 2] {
            let host = format!("certified.{team}.test");
            let tls = Tls::Terminate(team.into(), "certified".into());
            let listeners = vec![listener("s", 443, Protocol::Tls, &host, Some(tls))];
            [
                secret(team, "certified", Holds::Pair(0)),
                set(team, "certified", 0, "one", listeners),
            ]
        });
        certified.map(Change::Put).chain(changes).collect()
    })
}

/// The share by its definition: the part of the total that is left for each, as long as one of them needs less. `None` if all
/// have what they ask for.
fn share_of(total: &FairTotal) -> Option<u64> {
    let mut left = total.total();
    let mut asks = Vec::new();
    for (_, demand) in total.demands() {
        match demand {
            Demand::Exempt(takes) => left = left.saturating_sub(takes),
            Demand::Limited(asked) => asks.push(asked),
        }
    }
    if asks.iter().sum::<u64>() <= left {
        return None;
    }
    asks.sort_unstable();
    for (done, asked) in asks.iter().enumerate() {
        let sharing = u64::try_from(asks.len() - done).expect("few");
        let share = left / sharing;
        if *asked > share {
            return Some(share);
        }
        left -= asked;
    }
    unreachable!("they ask for more than there is")
}

/// The texts of the findings that something of a namespace does not fit in its share of a total.
fn left_out(world: &Translator, part: &str, namespace: &str) -> Vec<String> {
    let setting = match part {
        "certificates" => "tenants.allCertificatesMib",
        "routes" => "tenants.allRoutesMib",
        "backends" => "tenants.allBackendsMib",
        "listeners" => "tenants.allListenersMib",
        other => panic!("{other} have a total that no test knows"),
    };
    let of_namespace = format!("what namespace {namespace} may have at present");
    let findings = world.findings().values().flatten();
    let texts = findings.map(ToString::to_string);
    texts
        .filter(|text| text.contains(setting) && text.contains(&of_namespace))
        .collect()
}

fn is_route(kind: ResourceKind) -> bool {
    match kind {
        ResourceKind::TlsRoute
        | ResourceKind::HttpRoute
        | ResourceKind::GrpcRoute
        | ResourceKind::TcpRoute
        | ResourceKind::UdpRoute => true,
        ResourceKind::Unspecified
        | ResourceKind::Listener
        | ResourceKind::Backend
        | ResourceKind::Certificate
        | ResourceKind::TrustBundle
        | ResourceKind::Challenge
        | ResourceKind::HostnameOwner
        | ResourceKind::Tenant
        | ResourceKind::GatewaySettings => false,
    }
}

/// Whoever asks for no more than its share of a total has all of it, and what all have of it together is no more than there is.
fn check_shares(world: &Translator) {
    for (part, total) in world.totals() {
        // A share is rounded down, by a 64th of it at most.
        let sure = share_of(total).map_or(u64::MAX, |share| share - share / 64);
        for (namespace, demand) in total.demands() {
            let is_sure = match demand {
                Demand::Exempt(_) => true,
                Demand::Limited(asked) => asked <= sure,
            };
            if is_sure {
                let texts = left_out(world, part, namespace);
                assert!(texts.is_empty(), "{part} of {namespace}: {texts:?}");
            }
        }
        // Nobody is exempt from the total of routes, and what a route counts for is the most that it can have.
        if part == "routes" {
            let all = world.resources().iter();
            let routes = all.filter(|(key, _)| is_route(key.kind()));
            let bytes: usize = routes.map(|(_, encoded)| Encoded::len(encoded)).sum();
            let bytes = u64::try_from(bytes).expect("few");
            assert!(bytes <= total.total(), "{bytes} of {}", total.total());
        }
    }
}

proptest! {
    #![proptest_config(keep_failures_with_cases(400))]

    /// This holds after each pass, also from the moment on at which what is in service comes first.
    #[test]
    fn namespace_within_its_share_of_a_total_has_nothing_left_out(
        history in a_certified_history(),
        totals in small_totals(),
        batch in 1usize..5,
        keeps_from in prop::option::of(0usize..20),
    ) {
        let mut world = Translator::new(settings()).with_totals(totals);
        for (pass, changes) in history.chunks(batch).enumerate() {
            if keeps_from == Some(pass) {
                world.keep_in_service();
            }
            world.apply(changes.to_vec());
            check_shares(&world);
        }
    }
}

/// The properties with totals are worth something only if each total leaves something out in some of the histories.
#[test]
fn small_totals_leave_something_out() {
    let mut runner = TestRunner::deterministic();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..100 {
        let history = a_certified_history()
            .new_tree(&mut runner)
            .expect("a history");
        let totals = small_totals().new_tree(&mut runner).expect("totals");
        let mut world = Translator::new(settings()).with_totals(totals.current());
        world.apply(history.current());
        for (part, total) in world.totals() {
            let mut namespaces = total.demands().map(|(namespace, _)| namespace);
            let any = namespaces.any(|namespace| !left_out(&world, part, namespace).is_empty());
            *counts.entry(part).or_default() += usize::from(any);
        }
    }
    let parts: Vec<&str> = counts.keys().copied().collect();
    assert_eq!(parts, ["backends", "certificates", "listeners", "routes"]);
    for (part, count) in &counts {
        assert!(*count >= 3, "{part} in {count} of 100: {counts:?}");
    }
}
