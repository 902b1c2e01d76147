//! The holders of names over time, by the objects, and whether a namespace that lost a name let go of it or had to.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::claim::{ClaimKey, Claimed};
use vestibule_model::object::Object;

use crate::table::{covers, specificity};
use crate::world::{GRACE, World};
use crate::{HOSTS, TENANTS};

/// A name, or a port, that somebody holds.
pub(crate) struct Held {
    pub(crate) holder: String,
    /// Since when its holder has not asked for it.
    pub(crate) gone: Option<i64>,
    /// Whether the holder may not have it, or the Gateway or an admin took it.
    pub(crate) taken: bool,
}

impl Held {
    /// Whether it may get another holder.
    pub(crate) fn is_over(&self, now: i64) -> bool {
        let grace = i64::try_from(GRACE.as_secs()).expect("a grace");
        self.taken || self.gone.is_some_and(|since| now - since >= grace)
    }
}

/// What the objects said when this was looked at last.
#[derive(Default)]
pub(crate) struct History {
    held: BTreeMap<String, Held>,
    /// Names that the leader knew as held when it began to lead, though no object said so: it served them before there
    /// were claims, and writes them.
    assumed: BTreeSet<(String, String)>,
    /// What a namespace could not have for a moment that the leader may not have seen yet: when it does, it revokes it.
    unseen: BTreeSet<(String, String)>,
    /// The last holder of each name. A replica that does not know yet that it was revoked may give it back.
    former: BTreeMap<String, String>,
}

impl History {
    /// Another replica leads.
    pub(crate) fn led(&mut self, world: &World) {
        let told = world.leading().told();
        let told = told.into_iter();
        let unwritten = told.filter(|(names, tenant)| {
            let known = self.held.get(names);
            known.is_none_or(|known| known.holder != *tenant)
                && self.around(world, names, tenant).is_none()
        });
        let unwritten: BTreeSet<_> = unwritten.collect();
        // The last write of the former leader may have landed as it went.
        let current = written(world);
        self.assumed
            .retain(|(names, tenant)| current.get(names) == Some(tenant));
        self.assumed.extend(unwritten);
    }

    /// Looks at the objects: nobody may have what is another's.
    pub(crate) fn observe(&mut self, world: &World) {
        let now = world.clock.0;
        let views = world.views();
        let told = world.leading().told();
        let is_up_to_date = world.leading().is_up_to_date();
        let current = written(world);
        for (names, tenant) in HOSTS
            .iter()
            .flat_map(|names| TENANTS.map(|tenant| (names, tenant)))
        {
            let key = ((*names).to_owned(), tenant.to_owned());
            if views.iter().any(|view| view.takes(tenant, names)) {
                self.unseen.insert(key);
            } else if is_up_to_date {
                self.unseen.remove(&key);
            }
        }
        for (names, held) in &mut self.held {
            let asks = views.iter().all(|view| view.asks(&held.holder, names));
            let takes = views.iter().any(|view| view.takes(&held.holder, names))
                || world.is_taken(names, &held.holder);
            if !asks {
                held.gone.get_or_insert(now);
            }
            held.taken |= takes;
            // What a leader that lags has yet to see may cost the holder the name.
            let holder = Some(&held.holder);
            if is_up_to_date && told.get(names) == holder && current.get(names) == holder {
                held.gone = held.gone.filter(|_| !asks);
                held.taken &= takes;
            }
        }
        for (names, held) in &self.held {
            let holder = current.get(names);
            assert!(
                holder == Some(&held.holder) || held.is_over(now),
                "{names:?} of {} is {holder:?}'s; let go of since {:?}, and it is {now}",
                held.holder,
                held.gone,
            );
        }
        let is_new = |(names, holder): &(&String, &String)| {
            let known = self.held.get(*names);
            known.is_none_or(|known| known.holder != **holder)
        };
        for (names, holder) in current.iter().filter(is_new) {
            let assumed = self.assumed.contains(&(names.clone(), holder.clone()));
            let returns = self.former.get(names) == Some(holder);
            let around = self.around(world, names, holder);
            let around = around.filter(|_| !assumed && !returns);
            assert_eq!(
                around, None,
                "{holder} gets {names:?} inside another's wildcard"
            );
        }
        self.held
            .retain(|names, held| current.get(names) == Some(&held.holder));
        self.former.extend(current.clone());
        for (names, holder) in current {
            let view = &views[0];
            let gone = !view.asks(&holder, &names);
            let taken = self.unseen.contains(&(names.clone(), holder.clone()));
            self.held.entry(names).or_insert(Held {
                holder,
                gone: gone.then_some(now),
                taken,
            });
        }
    }

    /// The wildcard of another tenant that closes a name to a tenant: the nearest pattern around it, unless that is
    /// the Gateway's own, or a grant at or below it gives the tenant the name.
    fn around(&self, world: &World, names: &str, tenant: &str) -> Option<String> {
        let views = world.views();
        let told = world.leading().told();
        let around = self.held.iter();
        let around = around.filter(|(of, held)| {
            // The leader may not know yet what came of its write, or have freed it.
            let is_told = told.get(*of) == Some(&held.holder);
            *of != names && covers(of, names) && !of.is_empty() && is_told
        });
        let (nearest, held) = around.max_by_key(|(of, _)| specificity(of))?;
        let is_open = held.is_over(world.clock.0)
            || held.holder == tenant
            || views.iter().any(|view| {
                let own = HOSTS.iter().filter(|own| {
                    view.is_own(own)
                        && **own != names
                        && covers(own, names)
                        && specificity(own) > specificity(nearest)
                });
                own.count() > 0 || view.is_granted_inside(tenant, names, nearest)
            });
        (!is_open).then(|| nearest.clone())
    }

    /// At rest everybody who asks for a name that they hold, and may have, is told that it is theirs.
    pub(crate) fn check_kept(&self, world: &World) {
        let told = world.leading().told();
        let table = world.leading().table();
        for (names, held) in &self.held {
            if held.gone.is_some() || held.taken {
                continue;
            }
            assert_eq!(told.get(names), Some(&held.holder), "{names:?}");
            assert_eq!(table.owners().get(names), Some(&held.holder), "{names:?}");
        }
    }
}

/// The holder of each name, by the objects. There is one object for each.
fn written(world: &World) -> BTreeMap<String, String> {
    let mut written = BTreeMap::new();
    let mut keys: BTreeSet<ClaimKey> = BTreeSet::new();
    for (object, _) in world.server.objects.values() {
        let Object::HostnameClaim(claim) = object else {
            continue;
        };
        let key = claim.held_key().expect("one that counts");
        assert!(keys.insert(key.clone()), "{key} is held twice");
        if let Claimed::Names(names) = &key.of
            && *claim.gateway == *"one"
        {
            written.insert(names.to_string(), claim.holder.namespace.to_string());
        }
    }
    written
}
