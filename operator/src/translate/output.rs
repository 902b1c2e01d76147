//! What comes out of a pass of translation: what is different than before, and what it took.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::claim::ClaimKey;
use vestibule_model::claim::Holder;
use vestibule_model::condition::{
    ClassStatus, GrantStatus, ListenersStatus, PolicyStatus, RouteStatus,
};
use vestibule_model::finding::Finding;
use vestibule_model::issuance::CertificateRequest;
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::AcmeIssuer;
use vestibule_stream::{Encoded, ResourceKey};

use super::{DesiredPort, DesiredService};

/// How much a pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Listeners judged.
    pub listeners: usize,
    /// Listeners of which it was looked at whether others overlap with them.
    pub overlaps: usize,
    /// Routes judged.
    pub routes: usize,
    /// Backends computed.
    pub backends: usize,
    /// Secrets and certificates looked at.
    pub certificates: usize,
    /// Bundles of authorities looked at.
    pub bundles: usize,
    /// BackendTLSPolicies judged.
    pub policies: usize,
    /// Requests for certificates judged.
    pub requests: usize,
    /// Gateways judged as a whole.
    pub gateways: usize,
    /// Statuses computed.
    pub statuses: usize,
    /// Names and ports of which it was judged how it stands with them.
    pub claims: usize,
}

/// What came out differently than before. `None` is: gone.
#[derive(Debug, Default)]
pub struct Output {
    /// Resources for the proxies.
    pub resources: BTreeMap<ResourceKey, Option<Encoded>>,
    /// Statuses of GatewayClasses, Gateways, ListenerSets, routes and policies.
    pub statuses: BTreeMap<ObjectKey, Option<Status>>,
    /// Everything to say about an object, warnings included; empty where nothing is left to say.
    pub findings: BTreeMap<ObjectKey, Vec<Finding>>,
    /// Certificates wanted, by Secret.
    pub certificates: BTreeMap<ObjectName, Option<CertificateRequest>>,
    /// ACME issuers.
    pub issuers: BTreeMap<ObjectKey, Option<Arc<AcmeIssuer>>>,
    /// Internal ports: needed from now on (true), or no longer. Ports that lose their last listener
    /// are given up at once; the allocator sees to it that they are not soon used again.
    pub ports: BTreeMap<DesiredPort, bool>,
    /// How it stands with names and ports that somebody holds or is to hold; `None`: neither.
    pub claims: BTreeMap<ClaimKey, Option<ClaimState>>,
    /// Services by the UID of their Gateway; `None`: the Gateway is gone or not ours, and whatever
    /// carries its UID goes too.
    pub services: BTreeMap<Arc<str>, Option<DesiredService>>,
    /// Secrets and ConfigMaps that something may use: from now on (true), or no longer. Whoever watches a
    /// cluster keeps only these in memory, and gets one that is newly used before publishing what came out.
    pub sources: BTreeMap<ObjectKey, bool>,
    /// What it took.
    pub work: Work,
}

impl Output {
    /// Takes in what the next pass made different, so that several passes come out as one.
    pub fn merge(&mut self, later: Self) {
        self.resources.extend(later.resources);
        self.statuses.extend(later.statuses);
        self.findings.extend(later.findings);
        self.certificates.extend(later.certificates);
        self.issuers.extend(later.issuers);
        self.services.extend(later.services);
        self.claims.extend(later.claims);
        join(&mut self.ports, later.ports);
        join(&mut self.sources, later.sources);
        let (sum, work) = (&mut self.work, later.work);
        sum.listeners += work.listeners;
        sum.overlaps += work.overlaps;
        sum.routes += work.routes;
        sum.backends += work.backends;
        sum.certificates += work.certificates;
        sum.bundles += work.bundles;
        sum.policies += work.policies;
        sum.requests += work.requests;
        sum.gateways += work.gateways;
        sum.statuses += work.statuses;
        sum.claims += work.claims;
    }
}

/// Joins changes: what was given up and is wanted again (or the other way round) is no news.
fn join<K: Ord>(desired: &mut BTreeMap<K, bool>, later: BTreeMap<K, bool>) {
    for (key, wanted) in later {
        if desired.get(&key).is_some_and(|before| *before != wanted) {
            desired.remove(&key);
        } else {
            desired.insert(key, wanted);
        }
    }
}

/// The status of an object that has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// GatewayClass.
    Class(ClassStatus),
    /// Gateway or ListenerSet.
    Listeners(ListenersStatus),
    /// A route.
    Route(RouteStatus),
    /// A policy.
    Policy(PolicyStatus),
    /// A HostnameGrant.
    Grant(GrantStatus),
}

/// The state of what somebody holds, or is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimState {
    /// Nobody holds it; this one is to.
    Wanted(Holder),
    /// Its holder makes use of it.
    Used,
    /// A port: its holder does not make use of it any more, and this namespace does.
    Passed(Arc<str>),
    /// Its holder does not make use of it, and may come back.
    Unused,
    /// Its holder may not have it any more.
    Revoked,
}
