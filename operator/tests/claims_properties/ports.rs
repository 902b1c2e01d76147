//! The Gateway's own listener for bytes, whose routes no hostname tells apart: the namespace that holds its port keeps it,
//! however old the others' routes are.

use std::collections::BTreeSet;

use proptest::prelude::*;
use vestibule_model::claim::ClaimKey;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, PortKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Port, Transport};

use crate::history::Held;
use crate::view::OWN;
use crate::world::World;
use crate::{KINDS, Op, TENANTS, a_fate};
use vestibule_operator_testing::objects::*;

/// The port.
pub(crate) const PORT: u16 = 5432;
/// The listener, as the proxies name it.
pub(crate) const LISTENER: &str = "Gateway/platform/one/bytes";

/// The claim to the port.
pub(crate) fn claim() -> ClaimKey {
    ClaimKey::port(&PortKey {
        gateway: ObjectName::new(OWN, "one"),
        port: Port::new(PORT).expect("a port"),
        transport: Transport::Tcp,
    })
}

/// The route that an [`Op::Bytes`] is about, which may be older or younger than the one that it replaces.
pub(crate) fn route(tenant: Option<usize>, age: Option<i64>) -> (ObjectKey, Option<Object>) {
    let namespace = tenant.map_or(OWN, |tenant| TENANTS[tenant]);
    let key = ObjectKey::new(Kind::TcpRoute, namespace, "bytes");
    let route = age.map(|age| {
        let parents = vec![parent("Gateway", Some(OWN), "one", None)];
        port_route(
            Transport::Tcp,
            (namespace, "bytes", -age),
            parents,
            Vec::new(),
        )
    });
    (key, route)
}

pub(crate) fn an_op() -> impl Strategy<Value = Op> {
    let kinds: Vec<usize> = [
        Kind::Gateway,
        Kind::TcpRoute,
        Kind::HostnameClaim,
        Kind::HostnameGrant,
    ]
    .iter()
    .filter_map(|kind| KINDS.iter().position(|of| of == kind))
    .collect();
    let age = || prop::option::weighted(0.7, 0..9_i64);
    prop_oneof![
        12 => (0..TENANTS.len(), age()).prop_map(|(t, age)| Op::Bytes(Some(t), age)),
        1 => age().prop_map(|age| Op::Bytes(None, age)),
        1 => (0..TENANTS.len(), prop::bool::weighted(0.7)).prop_map(|(t, b)| Op::AdmitRoutes(t, b)),
        1 => (0..TENANTS.len(), any::<bool>()).prop_map(|(t, b)| Op::Admit(t, b)),
        1 => (0..TENANTS.len(), prop::option::weighted(0.4, 0..2_usize))
            .prop_map(|(t, grant)| Op::Grant(t, grant)),
        18 => (0..2_usize, prop::sample::select(kinds)).prop_map(|(r, k)| Op::Show(r, k)),
        10 => a_fate().prop_map(Op::Write),
        1 => (0..2_usize).prop_map(Op::Restart),
        2 => (0..2_usize).prop_map(Op::Lead),
        4 => (1..90_u64).prop_map(Op::Pass),
        1 => Just(Op::Vandal(0)),
        6 => Just(Op::Rest),
    ]
}

/// The holders of the port over time, by its object, and whether a namespace that lost it let go of it or had to.
#[derive(Default)]
pub(crate) struct PortHistory {
    held: Option<Held>,
    /// Tenants that could not have the port for a moment that the leader may not have seen yet: when it does, it
    /// revokes it.
    unseen: BTreeSet<&'static str>,
}

impl PortHistory {
    /// Looks at the object: nobody may have what is another's.
    pub(crate) fn observe(&mut self, world: &World) {
        let (now, views) = (world.clock.0, world.views());
        let is_up_to_date = world.leading().is_up_to_date();
        let takes = |tenant: &str| {
            let takes = |view: &crate::view::View<'_>| {
                !view.admits_routes(tenant) || view.takes(tenant, "") || view.asks_for_bytes(OWN)
            };
            views.iter().any(takes)
        };
        for tenant in TENANTS {
            if takes(tenant) {
                self.unseen.insert(tenant);
            } else if is_up_to_date {
                self.unseen.remove(tenant);
            }
        }
        let key = ObjectKey {
            kind: Kind::HostnameClaim,
            name: claim().object_name(),
        };
        let current = world
            .server
            .objects
            .get(&key)
            .map(|(object, _)| match object {
                Object::HostnameClaim(claim) => claim.holder.namespace.to_string(),
                other => panic!("{other:?}"),
            });
        if let Some(held) = &mut self.held {
            let asks = views.iter().all(|view| view.asks_for_bytes(&held.holder));
            let is_taken = takes(&held.holder);
            if !asks {
                held.gone.get_or_insert(now);
            }
            held.taken |= is_taken;
            // What a leader that lags has yet to see may cost the holder the port.
            let is_settled =
                current.as_ref() == Some(&held.holder) && world.leading().bytes_holder() == current;
            if is_up_to_date && is_settled {
                held.gone = held.gone.filter(|_| !asks);
                held.taken &= is_taken;
            }
            assert!(
                current.as_ref() == Some(&held.holder) || held.is_over(now),
                "the port of {} is {current:?}'s; let go of since {:?}, and it is {now}",
                held.holder,
                held.gone,
            );
        }
        self.held = self
            .held
            .take()
            .filter(|held| current.as_ref() == Some(&held.holder))
            .or_else(|| {
                let holder = current?;
                let asks = views[0].asks_for_bytes(&holder);
                Some(Held {
                    gone: (!asks).then_some(now),
                    taken: self.unseen.contains(&*holder),
                    holder,
                })
            });
    }

    /// At rest whoever asks for the port that they hold, and may have, is served.
    pub(crate) fn check_kept(&self, world: &World) {
        let kept = self
            .held
            .iter()
            .filter(|held| held.gone.is_none() && !held.taken);
        for held in kept {
            let table = world.leading().table();
            assert_eq!(table.bytes_to(LISTENER), Some(&*held.holder));
        }
    }
}
