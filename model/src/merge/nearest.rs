//! Owners of names for a verdict on many listeners: each look-up is made once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Merge;
use crate::hostname::HostPattern;
use crate::key::{ListenerKey, ObjectName, ParentKey};
use crate::names::NameDecision;

type NearestOwner<'a> = Option<(&'a HostPattern, &'a Arc<str>)>;

/// The answers of [`Merge::nearest_owner`], kept for the time of one verdict.
///
/// A route can have each of its hostnames on hundreds of listeners. The owner of a hostname depends on the Gateway and
/// not on the listener, and a look-up takes longer the more labels the hostname has.
#[derive(Debug)]
pub struct NearestOwners<'a> {
    merge: &'a Merge,
    known: BTreeMap<&'a ObjectName, BTreeMap<HostPattern, NearestOwner<'a>>>,
    looked_up: usize,
}

impl<'a> NearestOwners<'a> {
    /// Nothing is looked up yet.
    #[must_use]
    pub fn new(merge: &'a Merge) -> Self {
        Self {
            merge,
            known: BTreeMap::new(),
            looked_up: 0,
        }
    }

    /// How many owners were looked up.
    #[must_use]
    pub fn looked_up(&self) -> usize {
        self.looked_up
    }

    /// The decision by which a route on a ListenerSet's listener does not have `names`, because another namespace owns
    /// them although they lie inside the hostname of the listener. The proxies do not select the listener for such
    /// names, so the route is not served for them.
    ///
    /// This does not say whether the namespace of the set has the hostname of the listener. A route attaches to a
    /// listener whatever the status of the listener is (`Listener.status.attachedRoutes`).
    pub fn lost_on(&mut self, listener: &ListenerKey, names: &HostPattern) -> Option<NameDecision> {
        let ParentKey::ListenerSet(name) = &listener.parent else {
            return None;
        };
        let set = self.merge.set(name)?;
        let gateway = set.gateway.as_ref()?;
        let own = set.listeners.iter().find(|l| l.name == listener.listener)?;
        let (pattern, owner) = self.nearest(gateway, names)?;
        let inside = own.hostname != *pattern && own.hostname.covers(pattern);
        if !inside || *owner == name.namespace {
            return None;
        }
        Some(if *owner == gateway.namespace {
            NameDecision::Reserved
        } else if pattern == names {
            NameDecision::Taken
        } else {
            NameDecision::Inside
        })
    }

    fn nearest(&mut self, gateway: &'a ObjectName, names: &HostPattern) -> NearestOwner<'a> {
        let of_gateway = self.known.entry(gateway).or_default();
        if let Some(known) = of_gateway.get(names) {
            return *known;
        }
        self.looked_up += 1;
        let nearest = self.merge.nearest_owner(gateway, names);
        of_gateway.insert(names.clone(), nearest);
        nearest
    }
}
