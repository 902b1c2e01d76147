//! Connects the store of claims with the loop: the list of a new leader, the requests that are due, and their outcomes.

use std::time::Instant;

use vestibule_crds::watch::Watched;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};

use super::super::{claims, clock};
use super::Store;
use crate::claims::{ClaimRequest, GatewayPresence, WriteOutcome};
use crate::control::ControlLoop;

impl Store {
    /// Begins or ends the leadership of this replica.
    pub fn lead(&mut self, leads: bool, now: Instant) {
        self.control.claims.lead(leads, clock::both(now));
        self.run(now);
    }

    /// Notes that the caller now begins to list all `HostnameClaim`s.
    pub fn list_claims(&mut self) {
        self.control.claims.list();
    }

    /// Takes a list of all `HostnameClaim`s. Returns `false` if another list is needed.
    pub fn claims_listed(&mut self, list: Vec<Watched>, now: Instant) -> bool {
        let objects = list.into_iter().filter_map(|watched| {
            let claim = claims::read(&watched.object)?;
            let version = watched.resource_version.to_string();
            Some((watched.key.name, (claim, version)))
        });
        let complete = self
            .control
            .claims
            .catch_up(objects.collect(), clock::both(now));
        self.run(now);
        complete
    }

    /// Frees names whose grace is over.
    pub fn pass(&mut self, now: Instant) {
        if self.control.claims.deadline().is_some_and(|at| at <= now) {
            self.control.claims.pass(clock::both(now));
            self.run(now);
        }
    }

    /// Returns the time at which [`Self::pass`] or [`Self::claim_request`] has something to do.
    #[must_use]
    pub fn claims_deadline(&self) -> Option<Instant> {
        self.control.claims.deadline()
    }

    /// Returns the next request about a `HostnameClaim` that is due.
    pub fn claim_request(&mut self, now: Instant) -> Option<ClaimRequest> {
        let ControlLoop {
            translator, claims, ..
        } = &mut self.control;
        let merge = translator.merge();
        let request = claims.next_request(now, |name| match merge.gateway(name) {
            Some(gateway) => GatewayPresence::Ours(gateway.meta.uid.clone()),
            None if merge.is_known_gateway(name) => GatewayPresence::NotOurs,
            None => GatewayPresence::Gone,
        });
        if request.is_some() {
            // A name that is being taken from its holder is served for no namespace.
            self.run(now);
        }
        request
    }

    /// Takes the outcome of a request about a `HostnameClaim`.
    pub fn claim_answered(&mut self, name: &ObjectName, outcome: WriteOutcome, now: Instant) {
        self.control.claims.done(name, outcome, clock::both(now));
        for (_, namespace) in self.control.claims.take_troubled() {
            let first = ObjectKey::new(Kind::ListenerSet, namespace.clone(), "");
            let sets = self
                .known
                .range(first..)
                .take_while(|key| key.kind == Kind::ListenerSet && key.name.namespace == namespace);
            for set in sets {
                self.planner.touch(set);
            }
        }
        self.run(now);
    }
}
