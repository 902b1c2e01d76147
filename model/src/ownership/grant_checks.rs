//! Checks of ListenerSets against grants: which listeners are refused, which may have no certificate, and how many
//! there are, compared with the limits.
//!
//! Limits apply to each namespace on each Gateway. Every listener that a grant gives is counted, even if it conflicts.
//! Otherwise the end of a conflict would raise the count, and another listener would lose its place. If there are too
//! many, the first ones in the order of the merge are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::gateway::{Listener, ListenerSet};
use crate::hostname::Hostname;
use crate::hostname_grant::GrantLimits;
use crate::key::{ListenerKey, ObjectName};

/// A namespace on a Gateway. The limits of grants apply to each such pair.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GatewayTenant {
    pub(crate) gateway: ObjectName,
    pub(crate) namespace: Arc<str>,
}

/// The verdict of grants on the listeners of one set, before limits apply. Listeners are given by their indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GrantCheck {
    /// Listeners that no grant gives.
    pub(crate) refused: BTreeMap<usize, Finding>,
    /// Listeners that a grant gives. They count towards the limit.
    pub(crate) counted: Vec<usize>,
    /// Listeners that request a certificate from an issuer that a grant allows, with the hostname that counts.
    pub(crate) asking: Vec<(usize, Hostname)>,
    /// Listeners that request a certificate from an issuer that no grant allows.
    pub(crate) unissued: BTreeMap<usize, Finding>,
    /// Why the names that the set's annotations add may not be in its certificates.
    pub(crate) withheld: Option<Finding>,
}

/// Listeners over a limit, and the limit.
type OverLimit = Option<(u32, BTreeSet<usize>)>;

/// The listeners of a set that are over the limits of its tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Excess {
    listeners: OverLimit,
    certificates: OverLimit,
}

/// The position of a set in the order of the merge.
type MergeRank = (i64, Arc<str>);

#[derive(Debug, Clone)]
struct Entry {
    set: ObjectName,
    check: GrantCheck,
    excess: Excess,
}

/// The sets of a tenant, and how many listeners and certificates they have together.
#[derive(Debug, Clone, Default)]
struct TenantSets {
    sets: BTreeMap<MergeRank, Entry>,
    listeners: usize,
    certificates: usize,
    /// Whether some of the listeners are over a limit.
    exceeding: bool,
}

impl TenantSets {
    fn insert(&mut self, rank: MergeRank, entry: Entry) {
        self.listeners += entry.check.counted.len();
        self.certificates += entry.check.asking.len();
        self.sets.insert(rank, entry);
    }

    fn remove(&mut self, rank: &MergeRank) {
        if let Some(entry) = self.sets.remove(rank) {
            self.listeners -= entry.check.counted.len();
            self.certificates -= entry.check.asking.len();
        }
    }
}

/// The verdicts about the listeners of a set. Listeners without a finding are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Verdicts {
    /// Listeners that no grant gives, or that are over the limit on listeners.
    refused: BTreeMap<ListenerKey, Finding>,
    /// Listeners that may have no certificate from an issuer.
    unissued: BTreeMap<ListenerKey, Finding>,
    /// Why the names that the set's annotations add may not be in its certificates, for whichever listener.
    withheld: Option<Finding>,
}

impl Verdicts {
    /// Adds the listeners whose verdicts are not the same in both.
    fn differ(&self, other: &Self, into: &mut BTreeSet<ListenerKey>) {
        for (a, b) in [
            (&self.refused, &other.refused),
            (&self.unissued, &other.unissued),
        ] {
            let differs = |(key, finding): &(&ListenerKey, &Finding)| b.get(*key) != Some(*finding);
            into.extend(a.iter().filter(differs).map(|(key, _)| key.clone()));
            let gone = b.keys().filter(|key| !a.contains_key(*key));
            into.extend(gone.cloned());
        }
    }
}

/// The checks of all sets.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantChecks {
    tenants: BTreeMap<GatewayTenant, TenantSets>,
    ranks: BTreeMap<ObjectName, (GatewayTenant, MergeRank)>,
    verdicts: BTreeMap<ObjectName, Verdicts>,
}

impl GrantChecks {
    /// Takes the check of a set, or `None` if the set takes no part. Returns the tenants whose counts may have changed.
    pub(crate) fn put(
        &mut self,
        name: &ObjectName,
        now: Option<(&ListenerSet, GatewayTenant, GrantCheck)>,
    ) -> BTreeSet<GatewayTenant> {
        let mut touched = BTreeSet::new();
        if let Some((tenant, rank)) = self.ranks.remove(name) {
            if let Some(tenant_sets) = self.tenants.get_mut(&tenant) {
                tenant_sets.remove(&rank);
                if tenant_sets.sets.is_empty() {
                    self.tenants.remove(&tenant);
                }
            }
            touched.insert(tenant);
        }
        if let Some((set, tenant, check)) = now {
            // The rank does not depend on the order of events. So all replicas and the webhook refuse the same
            // listeners.
            let rank: MergeRank = (set.meta.created, name.to_string().into());
            let entry = Entry {
                set: name.clone(),
                check,
                excess: Excess::default(),
            };
            let tenant_sets = self.tenants.entry(tenant.clone()).or_default();
            tenant_sets.insert(rank.clone(), entry);
            self.ranks.insert(name.clone(), (tenant.clone(), rank));
            touched.insert(tenant);
        }
        touched
    }

    /// Compares the counts of a tenant with its limits, and returns the sets with other listeners over a limit than
    /// before.
    ///
    /// The sets are visited in the order of the merge, and each takes what is left. A hostname counts only once, even
    /// if several listeners request a certificate for it.
    pub(crate) fn recount(
        &mut self,
        tenant: &GatewayTenant,
        limits: GrantLimits,
    ) -> BTreeSet<ObjectName> {
        let mut changed = BTreeSet::new();
        let Some(tenant_sets) = self.tenants.get_mut(tenant) else {
            return changed;
        };
        let exceeded = |limit: Option<u32>, total: usize| {
            limit.filter(|limit| total > usize::try_from(*limit).unwrap_or(usize::MAX))
        };
        let listeners = exceeded(limits.listeners, tenant_sets.listeners);
        let certificates = exceeded(limits.certificates, tenant_sets.certificates);
        // Most tenants are within their limits. Then the totals alone answer the question, at the same cost for any
        // number of sets.
        if listeners.is_none() && certificates.is_none() && !tenant_sets.exceeding {
            return changed;
        }
        tenant_sets.exceeding = false;
        let mut left = listeners.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
        let mut names: BTreeSet<Hostname> = BTreeSet::new();
        for entry in tenant_sets.sets.values_mut() {
            let check = &entry.check;
            let over: BTreeSet<usize> = check.counted.iter().skip(left).copied().collect();
            left = left.saturating_sub(check.counted.len());
            let mut without = BTreeSet::new();
            if let Some(limit) = certificates {
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                for (index, name) in &check.asking {
                    // A listener over the limit is not served, so it must not use up the certificate of another one.
                    if over.contains(index) || names.contains(name) {
                        continue;
                    }
                    if names.len() < limit {
                        names.insert(name.clone());
                    } else {
                        without.insert(*index);
                    }
                }
            }
            let excess = Excess {
                listeners: listeners.filter(|_| !over.is_empty()).map(|l| (l, over)),
                certificates: certificates
                    .filter(|_| !without.is_empty())
                    .map(|l| (l, without)),
            };
            tenant_sets.exceeding |= excess != Excess::default();
            if entry.excess != excess {
                entry.excess = excess;
                changed.insert(entry.set.clone());
            }
        }
        changed
    }

    /// Computes the verdicts about the listeners of a set again, and returns the listeners whose verdict changed.
    pub(crate) fn judge(
        &mut self,
        name: &ObjectName,
        set: Option<&ListenerSet>,
    ) -> BTreeSet<ListenerKey> {
        let verdicts = self.verdicts_of(name, set).unwrap_or_default();
        let mut changed = BTreeSet::new();
        let old = self.verdicts.remove(name).unwrap_or_default();
        old.differ(&verdicts, &mut changed);
        // This finding is about the annotations of the set, so it concerns all listeners.
        if let Some(set) = set.filter(|_| old.withheld != verdicts.withheld) {
            let parent = set.parent_key();
            changed.extend(set.listeners.iter().map(|listener| listener.key(&parent)));
        }
        if verdicts != Verdicts::default() {
            self.verdicts.insert(name.clone(), verdicts);
        }
        changed
    }

    fn verdicts_of(&self, name: &ObjectName, set: Option<&ListenerSet>) -> Option<Verdicts> {
        let set = set?;
        let (at, rank) = self.ranks.get(name)?;
        let Entry { check, excess, .. } = self.tenants.get(at)?.sets.get(rank)?;
        let parent = set.parent_key();
        let listener_at = |index: &usize| set.listeners.get(*index);
        let mut verdicts = Verdicts {
            withheld: check.withheld.clone(),
            ..Verdicts::default()
        };
        for (index, finding) in &check.refused {
            if let Some(listener) = listener_at(index) {
                verdicts
                    .refused
                    .insert(listener.key(&parent), finding.clone());
            }
        }
        for (index, finding) in &check.unissued {
            if let Some(listener) = listener_at(index) {
                verdicts
                    .unissued
                    .insert(listener.key(&parent), finding.clone());
            }
        }
        if let Some((limit, over)) = &excess.listeners {
            for listener in over.iter().filter_map(listener_at) {
                let finding = too_many_listeners(at, *limit, listener);
                verdicts.refused.insert(listener.key(&parent), finding);
            }
        }
        if let Some((limit, over)) = &excess.certificates {
            for listener in over.iter().filter_map(listener_at) {
                let finding = too_many_certificates(at, *limit, listener);
                verdicts.unissued.insert(listener.key(&parent), finding);
            }
        }
        Some(verdicts)
    }

    /// Why a listener is refused: no grant gives it, or it is over the limit.
    pub(crate) fn refusal(&self, set: &ObjectName, listener: &ListenerKey) -> Option<&Finding> {
        self.verdicts.get(set)?.refused.get(listener)
    }

    /// Why a listener may have no certificate from an issuer.
    pub(crate) fn unissued(&self, set: &ObjectName, listener: &ListenerKey) -> Option<&Finding> {
        self.verdicts.get(set)?.unissued.get(listener)
    }

    /// Why the names that a set's annotations add may not be in its certificates.
    pub(crate) fn withheld(&self, set: &ObjectName) -> Option<&Finding> {
        self.verdicts.get(set)?.withheld.as_ref()
    }

    /// How many listeners a tenant has, and for which names it requests certificates, one set left out.
    pub(crate) fn others(
        &self,
        tenant: &GatewayTenant,
        but: &ObjectName,
    ) -> (usize, BTreeSet<&Hostname>) {
        let entries = self.tenants.get(tenant).into_iter();
        let entries = entries.flat_map(|tenant_sets| tenant_sets.sets.values());
        let mut listeners = 0;
        let mut names = BTreeSet::new();
        for entry in entries.filter(|entry| entry.set != *but) {
            listeners += entry.check.counted.len();
            names.extend(entry.check.asking.iter().map(|(_, name)| name));
        }
        (listeners, names)
    }
}

pub(crate) fn too_many_listeners(
    tenant: &GatewayTenant,
    limit: u32,
    listener: &Listener,
) -> Finding {
    Finding::refused(
        Reason::QuotaExceeded,
        listener.field.clone(),
        format!(
            "namespace {} may have {limit} listeners on Gateway {}, and has more before this one",
            tenant.namespace, tenant.gateway
        ),
        "remove listeners, or ask the owner of the Gateway for a larger limit",
    )
}

pub(crate) fn too_many_certificates(
    tenant: &GatewayTenant,
    limit: u32,
    listener: &Listener,
) -> Finding {
    Finding::refused(
        Reason::QuotaExceeded,
        format!("{}.hostname", listener.field),
        format!(
            "namespace {} may have certificates for {limit} hostnames on Gateway {}, and asks for more before this one, so none is requested",
            tenant.namespace, tenant.gateway
        ),
        "remove hostnames, bring a certificate of your own, or ask the owner of the Gateway for a larger limit",
    )
}
