//! Owns a total that namespaces share in max-min fair shares.
//!
//! Each namespace asks for a part of the total. While all of them together ask for no more than there is, each has what it
//! asks for. Beyond that there is a *share*, the same for all. Whoever asks for no more than the share has all of what it
//! asks for, and each of the others has the share. The share is as large as the total allows ("water filling"). So what
//! some leave of an equal part goes to the others in equal parts, and whatever the others ask for, each of n namespaces has
//! what it asks for or an n-th of the total.
//!
//! Exempt namespaces have what they take, even if that is more than the total. The others share the rest.
//!
//! A newcomer makes the share smaller, so a namespace that had more than the new share loses something. That is what
//! fairness means here: if those that came first kept what they have, a newcomer would find nothing. Nothing flaps by itself
//! all the same. The share depends only on what is asked for, and what a namespace asks for does not depend on the share: it
//! asks for what does not fit as before. So nothing that the share takes away can have the share grow again. There is no
//! hysteresis, though: when what a namespace asks for changes back and forth, so does the share, and with it what the
//! namespaces above the share have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How a namespace takes part in the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// It asks for so much, and has its share at most.
    Limited(u64),
    /// It has so much in any case, and leaves less to the others.
    Exempt(u64),
}

/// A total, and what each namespace asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairTotal {
    total: u64,
    demands: BTreeMap<Arc<str>, Demand>,
    /// The limited namespaces by what each asks for.
    limited: BTreeSet<(u64, Arc<str>)>,
    /// The sum of what the limited namespaces ask for.
    asked: u128,
    /// The sum of what the exempt namespaces take.
    taken: u128,
}

/// A total beside what all namespaces ask for of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TotalUse {
    /// The total, in bytes.
    pub total: u64,
    /// The bytes that all namespaces ask for. If they are more than the total, the namespaces have shares.
    pub asked: u64,
}

impl FairTotal {
    /// A total that nobody asks for yet.
    #[must_use]
    pub fn new(total: u64) -> Self {
        Self {
            total,
            demands: BTreeMap::new(),
            limited: BTreeSet::new(),
            asked: 0,
            taken: 0,
        }
    }

    /// The total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The total, and what all namespaces ask for of it, the exempt ones too.
    #[must_use]
    pub fn in_use(&self) -> TotalUse {
        TotalUse {
            total: self.total,
            asked: u64::try_from(self.asked + self.taken).unwrap_or(u64::MAX),
        }
    }

    /// The namespaces that ask for anything, with what each asks for.
    pub fn demands(&self) -> impl Iterator<Item = (&Arc<str>, Demand)> {
        self.demands.iter().map(|(of, demand)| (of, *demand))
    }

    /// Takes what a namespace asks for now, in place of what it asked for before.
    pub fn put(&mut self, namespace: &Arc<str>, demand: Demand) {
        match self.demands.remove(namespace) {
            Some(Demand::Limited(asks)) => {
                self.limited.remove(&(asks, namespace.clone()));
                self.asked -= u128::from(asks);
            }
            Some(Demand::Exempt(takes)) => self.taken -= u128::from(takes),
            None => {}
        }
        match demand {
            Demand::Limited(0) | Demand::Exempt(0) => return,
            Demand::Limited(asks) => {
                self.limited.insert((asks, namespace.clone()));
                self.asked += u128::from(asks);
            }
            Demand::Exempt(takes) => self.taken += u128::from(takes),
        }
        self.demands.insert(namespace.clone(), demand);
    }

    /// The most that a limited namespace has; `None` if each has what it asks for. The cost grows with the number of
    /// namespaces that ask for more than the share.
    #[must_use]
    pub fn share(&self) -> Option<u64> {
        let left = u128::from(self.total).saturating_sub(self.taken);
        if self.asked <= left {
            return None;
        }
        let mut largest = self.limited.iter().rev().map(|(asks, _)| u128::from(*asks));
        let (mut of_others, mut sharing) = (self.asked, 0);
        let mut next = largest.next();
        // One more of those that ask for most goes without a part of it, until the others can have all that they ask for.
        // Each that shares asks for more than the share. The first one does, because there is less than all ask for. Each
        // further one asks for more than what is left for each of those before it, and the new share is a weighted mean of the two.
        while let Some(asks) = next {
            of_others -= asks;
            sharing += 1;
            next = largest.next();
            let share = left.checked_sub(of_others).map(|rest| rest / sharing);
            if let Some(share) = share
                && next.is_none_or(|next| next <= share)
            {
                return Some(u64::try_from(share).unwrap_or(u64::MAX));
            }
        }
        Some(0)
    }

    /// The limited namespaces that ask for more than this.
    pub fn above(&self, share: u64) -> impl Iterator<Item = &Arc<str>> {
        let largest = self.limited.iter().rev();
        largest
            .take_while(move |(asks, _)| *asks > share)
            .map(|(_, namespace)| namespace)
    }
}
