//! Whatever the edits are: the state equals one that is built from scratch, and a reference without any index.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vestibule_model::hostname::route_precedence;

use super::*;

const HOSTS: [&str; 8] = [
    "",
    "*.com",
    "*.a.com",
    "*.b.a.com",
    "a.com",
    "x.a.com",
    "b.a.com",
    "x.b.a.com",
];
const NAMES: [&str; 9] = [
    "",
    "com",
    "a.com",
    "x.a.com",
    "b.a.com",
    "x.b.a.com",
    "y.x.b.a.com",
    "org",
    "q.com",
];

#[derive(Debug, Clone)]
enum Edit {
    Listener {
        tenant: usize,
        number: usize,
        port: u16,
        host: usize,
        plain: bool,
    },
    Route {
        tenant: usize,
        number: usize,
        created: i64,
        at: Vec<(usize, usize, usize, usize, bool)>,
    },
    Owner {
        tenant: usize,
        host: usize,
    },
    DropListener {
        tenant: usize,
        number: usize,
    },
    DropRoute {
        tenant: usize,
        number: usize,
    },
    DropOwner {
        host: usize,
    },
}

/// The last one is the Gateway's.
const TENANTS: [&str; 3] = ["team-0", "team-1", "infra"];

fn listener_name(tenant: usize, number: usize) -> String {
    match TENANTS[tenant] {
        "infra" => format!("Gateway/infra/edge/own-{number}"),
        team => format!("ListenerSet/{team}/set-{number}/tls"),
    }
}

fn route_name(tenant: usize, number: usize) -> String {
    format!("{}/route-{number}", TENANTS[tenant])
}

fn edit() -> impl Strategy<Value = Edit> {
    let (tenants, hosts) = (TENANTS.len(), HOSTS.len());
    let attachment = (
        0..tenants,
        0..4_usize,
        0..hosts,
        0..hosts,
        prop::bool::weighted(0.1),
    );
    prop_oneof![
        3 => (0..tenants, 0..4_usize, 1..3_u16, 0..hosts, prop::bool::weighted(0.3)).prop_map(
            |(tenant, number, port, host, plain)| Edit::Listener { tenant, number, port, host, plain }
        ),
        5 => (0..tenants, 0..5_usize, 0..3_i64, prop::collection::vec(attachment, 0..4))
            .prop_map(|(tenant, number, created, at)| Edit::Route { tenant, number, created, at }),
        2 => (0..tenants, 0..hosts).prop_map(|(tenant, host)| Edit::Owner { tenant, host }),
        1 => (0..tenants, 0..4_usize).prop_map(|(tenant, number)| Edit::DropListener { tenant, number }),
        1 => (0..tenants, 0..5_usize).prop_map(|(tenant, number)| Edit::DropRoute { tenant, number }),
        1 => (0..hosts).prop_map(|host| Edit::DropOwner { host }),
    ]
}

fn upsert_of(edit: &Edit) -> Option<Resource> {
    match edit {
        Edit::Listener {
            tenant,
            number,
            port,
            host,
            plain,
        } => {
            let make = if *plain { http_on } else { listener_on };
            let name = listener_name(*tenant, *number);
            Some(make(&name, *port, HOSTS[*host], None))
        }
        Edit::Route {
            tenant,
            number,
            created,
            at,
        } => {
            let names: Vec<String> = at.iter().map(|a| listener_name(a.0, a.1)).collect();
            let names: Vec<_> = at
                .iter()
                .zip(&names)
                .map(|(a, name)| (name.as_str(), HOSTS[a.2], HOSTS[a.3]))
                .collect();
            let mut made = route(&route_name(*tenant, *number), *created, &names, &[]);
            if let Some(Wire::TlsRoute(route)) = &mut made.resource {
                let made = route.attachments.iter_mut().zip(at);
                made.for_each(|(made, a)| made.hostnames[0].shared = a.4);
            }
            Some(made)
        }
        Edit::Owner { tenant, host } => Some(owner(HOSTS[*host], TENANTS[*tenant])),
        _ => None,
    }
}

fn removal_of(edit: &Edit) -> Option<ResourceKey> {
    match edit {
        Edit::DropListener { tenant, number } => Some(key(
            ResourceKind::Listener,
            &listener_name(*tenant, *number),
        )),
        Edit::DropRoute { tenant, number } => {
            Some(key(ResourceKind::TlsRoute, &route_name(*tenant, *number)))
        }
        Edit::DropOwner { host } => Some(owner(HOSTS[*host], "").key().unwrap()),
        _ => None,
    }
}

/// Edits as batches would carry them: each key once, rejects forgotten. Returns what is held.
fn run(h: &mut Harness, batches: &[Vec<Edit>]) -> BTreeMap<ResourceKey, Resource> {
    let mut held = BTreeMap::new();
    for batch in batches {
        let mut last = BTreeMap::new();
        for edit in batch {
            let resource = upsert_of(edit);
            let key = match &resource {
                Some(resource) => resource.key().unwrap(),
                None => removal_of(edit).unwrap(),
            };
            last.insert(key, resource);
        }
        let mut change = h.change(Vec::new(), Vec::new());
        for (key, resource) in last {
            match resource {
                Some(resource) => change.upserts.push((key, resource)),
                None if held.contains_key(&key) => change.removals.push(key),
                None => {}
            }
        }
        let rejected: BTreeSet<ResourceKey> = h
            .state
            .apply(&change, &mut NoSockets)
            .into_iter()
            .map(|reject| reject.key.unwrap())
            .collect();
        for key in change.removals {
            held.remove(&key);
        }
        for (key, resource) in change.upserts {
            if !rejected.contains(&key) {
                held.insert(key, resource);
            }
        }
    }
    held
}

/// The owner of a name: the namespace with the most specific pattern that matches.
fn owner_of(
    held: &BTreeMap<ResourceKey, Resource>,
    matches: impl Fn(&HostPattern) -> bool,
) -> Option<&str> {
    held.values()
        .filter_map(|resource| match &resource.resource {
            Some(Wire::HostnameOwner(wire)) => {
                Some((HostPattern::parse(&wire.hostname).unwrap(), &*wire.tenant))
            }
            _ => None,
        })
        .filter(|(pattern, _)| matches(pattern))
        .max_by_key(|(pattern, _)| pattern.specificity())
        .map(|(_, tenant)| tenant)
}

/// The selection by the specification and by the owners of names, written without any index.
fn reference(
    held: &BTreeMap<ResourceKey, Resource>,
    port: u16,
    name: &str,
) -> Option<(String, Option<String>)> {
    let name = (!name.is_empty()).then(|| Hostname::parse(name).unwrap());
    let matches = |pattern: &HostPattern| match &name {
        Some(name) => pattern.matches(name),
        None => *pattern == HostPattern::Any,
    };
    let on_port: Vec<_> = held
        .values()
        .filter_map(|resource| match &resource.resource {
            Some(Wire::Listener(wire)) if wire.bind.as_ref().unwrap().port == u32::from(port) => {
                let pattern = HostPattern::parse(&wire.hostname).unwrap();
                let plain = matches!(wire.protocol, Some(proto::listener::Protocol::Http(_)));
                Some((&resource.name, pattern, plain))
            }
            _ => None,
        })
        .collect();
    assert!(on_port.windows(2).all(|two| two[0].2 == two[1].2), "mixed");
    let owner = owner_of(held, matches);
    let is_own = |listener: &str| listener.starts_with("Gateway/");
    let may_serve = |tenant: &str| owner.is_none_or(|owner| owner == tenant);
    let (listener, _, plain) = on_port
        .into_iter()
        .filter(|(_, pattern, _)| matches(pattern))
        .filter(|(name, ..)| is_own(name) || may_serve(name.split('/').nth(1).unwrap()))
        .max_by_key(|(_, pattern, _)| pattern.specificity())?;
    if plain {
        return Some((listener.clone(), None));
    }
    let mut candidates = Vec::new();
    for resource in held.values() {
        let Some(Wire::TlsRoute(wire)) = &resource.resource else {
            continue;
        };
        for attachment in wire.attachments.iter().filter(|a| a.listener == *listener) {
            for hostname in &attachment.hostnames {
                let may_serve =
                    hostname.shared || wire.tenant == "infra" || may_serve(&wire.tenant);
                if is_own(listener) && !may_serve {
                    continue;
                }
                if name.is_some() && matches(&HostPattern::parse(&hostname.r#match).unwrap()) {
                    let rank = HostPattern::parse(&hostname.rank).unwrap();
                    candidates.push((rank, wire.created, resource.name.clone()));
                }
            }
        }
    }
    let route = candidates
        .iter()
        .min_by(|a, b| route_precedence((&a.0, a.1, &a.2), (&b.0, b.1, &b.2)))
        .map(|(_, _, name)| name.clone());
    Some((listener.clone(), route))
}

fn everything(h: &Harness) -> Vec<Option<(String, Option<String>)>> {
    let mut all = Vec::new();
    for port in 1..3 {
        for name in NAMES {
            all.push(h.select_on(&BindKey { port, ..BIND }, name).ok());
        }
    }
    all
}

fn batches() -> impl Strategy<Value = Vec<Vec<Edit>>> {
    prop::collection::vec(prop::collection::vec(edit(), 1..6), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn incremental_equals_from_scratch_and_the_reference(batches in batches()) {
        let mut incremental = Harness::new();
        let held = run(&mut incremental, &batches);
        let mut scratch = Harness::new();
        prop_assert_eq!(scratch.apply(held.values().cloned().collect()), []);
        prop_assert_eq!(everything(&incremental), everything(&scratch));
        let mut expected = Vec::new();
        for port in 1..3 {
            for name in NAMES {
                expected.push(reference(&held, port, name));
            }
        }
        prop_assert_eq!(everything(&incremental), expected);
        prop_assert_eq!(
            serde_json::to_value(incremental.state.dump().listeners).unwrap(),
            serde_json::to_value(scratch.state.dump().listeners).unwrap()
        );

        // Everything removed leaves nothing behind.
        incremental.remove(held.keys().cloned().collect());
        prop_assert_eq!(incremental.state.counts(), Counts::default());
        prop_assert!(incremental.state.certificate_users.is_empty());
        prop_assert!(incremental.state.client_trust.is_empty());
        prop_assert!(incremental.state.backend_trust.is_empty());
        prop_assert!(incremental.state.trusts.is_empty());
        prop_assert!(incremental.state.shown.is_empty());
        prop_assert_eq!(incremental.state.expiries.len(), 0);
        prop_assert_eq!(incremental.state.tables.len(), 0);
        prop_assert!(incremental.state.ordered.is_empty());
        prop_assert_eq!(incremental.published.load().binds().count(), 0);
    }

    /// Whatever tenant 0 edits, names that tenant 1 owns are served as they were: the most specific listener, by
    /// the same route.
    #[test]
    fn edits_of_one_tenant_leave_the_other_alone(
        before in batches(),
        edits in prop::collection::vec(edit(), 1..8),
    ) {
        let mut h = Harness::new();
        // Tenant 1 let in what tenant 0 has on its listeners, and what is shared. The edits leave out both.
        let theirs = |edit: Edit| match edit {
            Edit::Route { tenant: 0, number, created, at } => {
                let at = at.into_iter().filter(|a| a.0 != 1).map(|a| (a.0, a.1, a.2, a.3, false));
                Edit::Route { tenant: 0, number, created, at: at.collect() }
            }
            other => other,
        };
        let before: Vec<Vec<Edit>> =
            before.into_iter().map(|batch| batch.into_iter().map(theirs).collect()).collect();
        let held = run(&mut h, &before);
        let owned = |name: &str| {
            let parsed = Hostname::parse(name).ok();
            let matches = |pattern: &HostPattern| match &parsed {
                Some(name) => pattern.matches(name),
                None => *pattern == HostPattern::Any,
            };
            owner_of(&held, matches) == Some(TENANTS[1])
        };
        let was = everything(&h);
        let edits: Vec<Edit> = edits
            .into_iter()
            .filter_map(|edit| match edit {
                Edit::Listener { number, port, host, plain, .. } => {
                    Some(Edit::Listener { tenant: 0, number, port, host, plain })
                }
                Edit::DropListener { number, .. } => Some(Edit::DropListener { tenant: 0, number }),
                Edit::DropRoute { number, .. } => Some(Edit::DropRoute { tenant: 0, number }),
                Edit::Route { number, created, at, .. } => {
                    Some(theirs(Edit::Route { tenant: 0, number, created, at }))
                }
                Edit::Owner { .. } | Edit::DropOwner { .. } => None,
            })
            .collect();
        run(&mut h, &[edits]);
        let is = everything(&h);
        let names = (1..3).flat_map(|port| NAMES.map(|name| (port, name)));
        for (((port, name), was), is) in names.zip(was).zip(is).filter(|((at, _), _)| owned(at.1)) {
            // A port that nobody is on is the first one's who comes, and may speak plaintext then.
            let kept = is == was || (was.is_none() && is.is_none());
            prop_assert!(kept, "{port} {name}: {was:?}, now {is:?}");
        }
    }
}
