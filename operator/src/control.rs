//! The control loop: changes go into translation, what comes out goes to the hostname claims and the certificate
//! requests, and what these say goes back into translation, until nothing follows any more.
//!
//! The operator, `vestibule run`, the benchmarks and the tests all run this loop, so that there is one answer to what a
//! change leads to. It does no input and no output: whoever drives it brings the changes and takes the outputs.

use std::collections::BTreeMap;

use vestibule_model::claim::ClaimKey;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;

use crate::claims::{ClaimStore, Memory, Time};
use crate::issuance::CertificateRegistry;
use crate::translate::{Change, ClaimState, Output, Translator};

/// The record of who holds which name, as the loop sees it.
pub trait ClaimRecord {
    /// Takes what translation says about names.
    fn translated(&mut self, states: BTreeMap<ClaimKey, Option<ClaimState>>, time: Time);

    /// A Gateway came, changed or went.
    fn gateways_changed(&mut self);

    /// Returns what translation has not been told yet.
    fn take_changes(&mut self) -> Vec<Change>;
}

impl ClaimRecord for ClaimStore {
    fn translated(&mut self, states: BTreeMap<ClaimKey, Option<ClaimState>>, time: Time) {
        Self::translated(self, states, time);
    }

    fn gateways_changed(&mut self) {
        Self::gateways_changed(self);
    }

    fn take_changes(&mut self) -> Vec<Change> {
        Self::take_changes(self)
    }
}

impl ClaimRecord for Memory {
    fn translated(&mut self, states: BTreeMap<ClaimKey, Option<ClaimState>>, time: Time) {
        Self::translated(self, states, time);
    }

    /// Memory knows each Gateway as its own.
    fn gateways_changed(&mut self) {}

    fn take_changes(&mut self) -> Vec<Change> {
        Self::take_changes(self)
    }
}

/// Translation, the claims and the certificate requests, with the changes that are still to be translated.
#[derive(Debug)]
pub struct ControlLoop<C> {
    /// Translation.
    pub translator: Translator,
    /// The record of who holds which name.
    pub claims: C,
    /// The certificates that are requested, and the progress of each.
    pub certificates: CertificateRegistry,
    pending: Vec<Change>,
    /// Largest number of listeners with new overlaps that a step looks at.
    overlaps: usize,
    /// Number of them that only the next step looks at. That step is made even if nothing else is pending.
    asked: usize,
}

impl<C: ClaimRecord> ControlLoop<C> {
    /// A loop without pending changes.
    #[must_use]
    pub fn new(translator: Translator, claims: C, certificates: CertificateRegistry) -> Self {
        Self {
            translator,
            claims,
            certificates,
            pending: Vec::new(),
            overlaps: usize::MAX,
            asked: 0,
        }
    }

    /// Adds changes for the next step.
    pub fn add(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.pending.extend(changes);
    }

    /// From now on no step looks at listeners with new overlaps, unless
    /// [`Self::look_at_overlaps`] asks for it. Without this, each step looks at all of them.
    pub fn leave_overlaps(&mut self) {
        self.overlaps = 0;
    }

    /// Has the next step look at so many of the listeners with new overlaps
    /// ([`Translator::apply_within`]).
    pub fn look_at_overlaps(&mut self, count: usize) {
        self.asked = count;
    }

    /// Translates what was added and what the claims say, and passes the output on. Returns the output without the
    /// states of claims, or `None` if there was nothing to do. The caller calls this until it returns `None`, and may
    /// add further changes between two calls.
    pub fn step(&mut self, time: Time) -> Option<Output> {
        if self.pending.iter().any(is_secret) {
            // A certificate that has just been issued is judged by the time at which it came.
            self.pending.insert(0, Change::Time(time.seconds));
        }
        if self.pending.iter().any(is_of_gateway) {
            self.claims.gateways_changed();
        }
        self.pending.extend(self.claims.take_changes());
        let asked = std::mem::take(&mut self.asked);
        if self.pending.is_empty() && asked == 0 {
            return None;
        }
        let changes = std::mem::take(&mut self.pending);
        let overlaps = self.overlaps.max(asked);
        let mut output = self.translator.apply_within(changes, overlaps);
        self.claims
            .translated(std::mem::take(&mut output.claims), time);
        self.certificates.translated(&output);
        // A Gateway whose status is new may have become ours, or no longer be.
        if output.statuses.keys().any(is_gateway) {
            self.claims.gateways_changed();
        }
        Some(output)
    }
}

fn is_gateway(key: &ObjectKey) -> bool {
    key.kind == Kind::Gateway
}

fn is_secret(change: &Change) -> bool {
    matches!(change, Change::Put(Object::Secret(_)))
}

fn is_of_gateway(change: &Change) -> bool {
    match change {
        Change::Put(object) => matches!(object, Object::Gateway(_)),
        Change::Remove(key) => is_gateway(key),
        _ => false,
    }
}
