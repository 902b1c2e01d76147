//! Who gets which connections over time, and whether whoever had them let go.

use std::collections::BTreeMap;

use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{Listener, Object, ParentRef, Protocol};
use vestibule_model::selector::NamespaceScope;

use crate::table::{Served, matches, specificity};
use crate::world::{GRACE, World, speaks};
use crate::{HOSTS, PORTS, TENANTS};

const NAMES: [&str; 4] = [
    "x.example.com",
    "y.example.com",
    "a.x.example.com",
    "else.example.org",
];

/// A name in service.
struct InService {
    served: Served,
    /// Since when its route and listener are not there any more as they were.
    gone: Option<i64>,
    /// Whether it was revoked, or the Gateway took it.
    taken: bool,
}

/// By port and name.
#[derive(Default)]
pub(crate) struct Services(BTreeMap<(u16, &'static str), InService>);

impl Services {
    /// Looks at what the leader's proxies do now: nobody may have what is another's.
    pub(crate) fn observe(&mut self, world: &World) {
        let now = world.clock.0;
        for ((port, name), known) in &mut self.0 {
            if !is_declared(world, *port, name, &known.served) {
                known.gone.get_or_insert(now);
            }
            known.taken |= is_taken(world, *port, name, &known.served);
        }
        let leader = world.leading();
        let table = leader.table();
        for port in PORTS {
            for name in NAMES {
                let Some(served) = table.answer(port, name) else {
                    continue;
                };
                let known = self.0.get(&(port, name));
                if let Some(known) = known.filter(|known| known.served.tenant != served.tenant) {
                    check_hand_over(known, &served, now, (port, name));
                }
                let gone = !is_declared(world, port, name, &served);
                let taken = is_taken(world, port, name, &served);
                let mut new = InService {
                    gone: gone.then_some(now),
                    taken,
                    served,
                };
                // One that lags may serve what is gone already.
                if let Some(known) =
                    known.filter(|known| known.served == new.served && !leader.is_up_to_date())
                {
                    new.gone = known.gone;
                    new.taken |= known.taken;
                }
                self.0.insert((port, name), new);
            }
        }
    }

    /// What stands in no object may come to be another's: nobody remembers it.
    pub(crate) fn forget_unwritten(&mut self, world: &World) {
        for ((port, _), known) in &mut self.0 {
            let served = &known.served;
            let route = world.is_written(*port, "TLSRoute", &served.matches, &served.tenant);
            let space = served.listener.split('/').nth(1).expect("a namespace");
            let listener =
                !TENANTS.contains(&space) || world.is_written(*port, "TLS", &served.pattern, space);
            known.taken |= !(route && listener);
        }
    }

    /// At rest whatever was not let go or taken is in service, with its owner.
    pub(crate) fn check_kept(&self, world: &World) {
        let table = world.leading().table();
        for ((port, name), known) in &self.0 {
            // Inside a wildcard others may have names.
            let exact = known.served.matches == **name;
            if known.gone.is_some() || known.taken || !exact {
                continue;
            }
            let tenant = table.answer(*port, name).map(|served| served.tenant);
            let served = &known.served;
            assert_eq!(
                tenant.as_ref(),
                Some(&served.tenant),
                "{name} on {port} was in service by {served:?}"
            );
        }
    }
}

fn check_hand_over(known: &InService, new: &Served, now: i64, at: (u16, &str)) {
    let old = &known.served;
    let (before, after) = (specificity(&old.matches), specificity(&new.matches));
    let grace = i64::try_from(GRACE.as_secs()).expect("a grace");
    let allowed = known.taken
        || after > before
        || known
            .gone
            .is_some_and(|since| after < before || now - since >= grace);
    let gone = known.gone.map(|since| now - since);
    assert!(
        allowed,
        "{at:?} of {old:?} is served by {new:?}; gone for {gone:?}"
    );
}

/// Whether the route still has what it served on the listener, both as they were, and the namespaces of
/// neither have put something else of their own before it.
fn is_declared(world: &World, port: u16, name: &str, served: &Served) -> bool {
    let Some((namespace, route)) = served.route.split_once('/') else {
        return false;
    };
    let key = ObjectKey::new(Kind::TlsRoute, namespace, route);
    let Some((Object::TlsRoute(route), _)) = world.server.objects.get(&key) else {
        return false;
    };
    let parts: Vec<&str> = served.listener.split('/').collect();
    let [kind, space, object, listener] = parts[..] else {
        panic!("{:?}", served.listener);
    };
    let to = |parent: &ParentRef| {
        let at = parent.namespace.as_deref().unwrap_or(namespace);
        parent.kind.as_deref() == Some(kind) && at == space && *parent.name == *object
    };
    let written = |host: &str| {
        let both = specificity(host).max(specificity(&served.pattern));
        matches(host, name) && both == specificity(&served.matches)
    };
    if !route.parents.iter().any(to)
        || !route.hostnames.iter().any(|(_, h)| written(&h.to_string()))
    {
        return false;
    }
    if kind == "Gateway" {
        return !shadows(world, namespace, port, name, served);
    }
    let set = ObjectKey {
        kind: Kind::ListenerSet,
        name: ObjectName::new(space, object),
    };
    let Some((Object::ListenerSet(set), _)) = world.server.objects.get(&set) else {
        return false;
    };
    let as_it_was = |l: &Listener| {
        *l.name == *listener
            && l.port.is_some_and(|at| at.get() == port)
            && l.protocol == Protocol::Tls
            && l.hostname.to_string() == served.pattern
            && l.allowed_kinds.is_empty()
            && (space == namespace || l.allowed_namespaces == NamespaceScope::All)
    };
    set.listeners.iter().any(as_it_was)
        && !shadows(world, namespace, port, name, served)
        && !shadows(world, space, port, name, served)
}

/// Whether a tenant has a listener of its own that may take the place of the one that served, or other routes
/// of its own on it: it then is its own doing.
fn shadows(world: &World, tenant: &str, port: u16, name: &str, served: &Served) -> bool {
    let mut on_port = world
        .sets_of(tenant)
        .filter(|(_, l)| l.port.is_some_and(|at| at.get() == port));
    on_port.any(|(set, l)| {
        let host = l.hostname.to_string();
        let other = served.listener != format!("ListenerSet/{tenant}/{set}/{}", l.name);
        let before = specificity(&host) >= specificity(&served.pattern);
        speaks(&l.protocol) != "TLS" || other && matches(&host, name) && before
    })
}

/// Whether the Gateway keeps it from its owner now.
fn is_taken(world: &World, port: u16, name: &str, served: &Served) -> bool {
    let own = world.own.map(|host| HOSTS[host]);
    let by_gateway = match port {
        443 => own.is_some_and(|own| {
            matches(own, name) && specificity(own) >= specificity(&served.pattern)
        }),
        _ => !world.shared || served.pattern.is_empty() && !served.listener.starts_with("Gateway"),
    };
    let gone =
        port == 443 && served.listener.starts_with("Gateway") && own != Some(&served.pattern);
    let space = served.listener.split('/').nth(1).expect("a namespace");
    let revoked = |tenant: &str| TENANTS.contains(&tenant) && !world.may_have(tenant);
    by_gateway
        || gone
        || revoked(&served.tenant)
        || revoked(space)
        || TENANTS.contains(&space) && !world.is_admitted(space)
}
