//! The output of a pass of translation: what differs from before, and how much work it was.

use std::collections::{BTreeMap, BTreeSet};
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

/// How much work a pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Listeners judged.
    pub listeners: usize,
    /// Listeners whose overlap with others was checked.
    pub overlaps: usize,
    /// Routes judged.
    pub routes: usize,
    /// Owners of hostnames looked up for routes.
    pub owners: usize,
    /// EndpointSlices of Services whose addresses were judged.
    pub slices: usize,
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
    /// Names and ports whose claim state was computed.
    pub claims: usize,
    /// Namespaces whose limits on connections were looked up.
    pub tenants: usize,
}

/// What differs from before. `None` means that it is gone.
#[derive(Debug, Default)]
pub struct Output {
    /// Resources for the proxies.
    pub resources: BTreeMap<ResourceKey, Option<Encoded>>,
    /// Those of the resources that did not exist before the pass.
    created: BTreeSet<Arc<ResourceKey>>,
    /// Statuses of GatewayClasses, Gateways, ListenerSets, routes, policies and `HostnameGrants`.
    pub statuses: BTreeMap<ObjectKey, Option<Status>>,
    /// All findings about an object, including warnings. The list is empty if there are none any more.
    pub findings: BTreeMap<ObjectKey, Vec<Finding>>,
    /// Certificates wanted, by Secret.
    pub certificates: BTreeMap<ObjectName, Option<Arc<CertificateRequest>>>,
    /// ACME issuers.
    pub issuers: BTreeMap<ObjectKey, Option<Arc<AcmeIssuer>>>,
    /// Internal ports that are needed from now on (true), or no longer (false). A port that loses its last
    /// listener is given up at once. The allocator takes care that it is not used again soon.
    pub ports: BTreeMap<DesiredPort, bool>,
    /// The claim states of names and ports; `None`: nobody holds it or asks for it any more.
    pub claims: BTreeMap<ClaimKey, Option<ClaimState>>,
    /// The desired Services, by the UID of their Gateway; `None`: the Gateway is gone or not ours, so its
    /// Services have to be deleted.
    pub services: BTreeMap<Arc<str>, Option<DesiredService>>,
    /// Secrets and ConfigMaps that something may use from now on (true), or no longer (false). In a
    /// cluster, the caller keeps only these in memory.
    pub sources: BTreeMap<ObjectKey, bool>,
    /// The namespaces of objects that began to use a Secret or `ConfigMap` that is unread, with that source. The caller
    /// has to read it, and the namespaces wait for it ([`Translator::reading_sources`](super::Translator)).
    pub readers: BTreeSet<(Arc<str>, ObjectKey)>,
    /// How much work the pass did.
    pub work: Work,
}

impl Output {
    /// Reports a resource, or its absence, in place of what the pass reported of it before. `existed` says whether there was one
    /// until now. A resource that comes and goes within the pass is not reported, because nobody has it.
    pub(super) fn settle_resource(
        &mut self,
        key: ResourceKey,
        resource: Option<Encoded>,
        existed: bool,
    ) {
        if resource.is_none() && self.created.remove(&key) {
            self.resources.remove(&key);
            return;
        }
        // One that was removed in this pass existed before it.
        if let Some(encoded) = &resource
            && !existed
            && !self.resources.contains_key(&key)
        {
            self.created.insert(encoded.shared_key().clone());
        }
        self.resources.insert(key, resource);
    }

    /// Adds the output of the next pass, so that several passes have one output.
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
        self.readers.extend(later.readers);
        let (sum, work) = (&mut self.work, later.work);
        sum.listeners += work.listeners;
        sum.overlaps += work.overlaps;
        sum.routes += work.routes;
        sum.slices += work.slices;
        sum.backends += work.backends;
        sum.certificates += work.certificates;
        sum.bundles += work.bundles;
        sum.policies += work.policies;
        sum.requests += work.requests;
        sum.gateways += work.gateways;
        sum.statuses += work.statuses;
        sum.claims += work.claims;
        sum.tenants += work.tenants;
    }
}

/// Joins changes. If something was given up and is wanted again, or the other way round, nothing has
/// changed.
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

/// The state of a name or port that somebody holds or asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimState {
    /// Nobody holds it. This namespace, with its protocol for a port, is to get it.
    Wanted(Holder),
    /// Its holder uses it.
    Used,
    /// Only for a port: its holder does not use it any more, but this namespace does.
    Passed(Arc<str>),
    /// Its holder does not use it, but may use it again. Guests may use it meanwhile.
    Unused,
    /// Its holder may not have it any more.
    Revoked,
}
