//! Properties of the rotation over a model of a cluster: whatever fails and whenever time moves,
//! clients that are behind by less than the overlap trust what they meet.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::rotation::*;

const POLICY: RotationPolicy = RotationPolicy {
    authority: 3000,
    leaf: 800,
    overlap: 100,
    backdate: 10,
};
const LEAVES: [Leaf; 2] = [Leaf::Operator, Leaf::Webhook];

/// What the cluster stores, and what it stored before.
#[derive(Debug)]
struct Cluster {
    now: Seconds,
    state: CaState,
    places: BTreeMap<BundleTarget, BTreeSet<Id>>,
    made: u64,
    /// The authorities that each bundle held, and since when.
    trusted: Vec<(Seconds, BundleTarget, BTreeSet<Id>)>,
    /// The certificates that each server showed, and since when.
    met: Vec<(Seconds, Leaf, Issued)>,
    writes: usize,
    /// Steps that are not of the course of things.
    forced: Vec<(Seconds, CaStep)>,
}

impl Cluster {
    fn new(now: Seconds) -> Self {
        Self {
            now,
            state: CaState {
                authority: Stored::Absent,
                leaves: BTreeMap::new(),
                stale: BTreeSet::from([
                    BundleTarget::ConfigMap,
                    BundleTarget::WebhookConfiguration,
                ]),
            },
            places: BTreeMap::new(),
            made: 0,
            trusted: Vec::new(),
            met: Vec::new(),
            writes: 0,
            forced: Vec::new(),
        }
    }

    fn authority(&mut self) -> &mut Authority {
        match &mut self.state.authority {
            Stored::There(authority) => authority,
            other => panic!("no authority: {other:?}"),
        }
    }

    fn validity(&self, life: Seconds) -> Validity {
        Validity {
            from: self.now - POLICY.backdate,
            until: self.now + life,
        }
    }

    fn apply(&mut self, step: CaStep) {
        self.writes += 1;
        match &step {
            CaStep::MakeAuthority(why) | CaStep::Issue(_, why) if !why.is_planned() => {
                self.forced.push((self.now, step.clone()));
            }
            _ => {}
        }
        match step {
            CaStep::MakeAuthority(_) => {
                self.made += 1;
                let mut signer = [0; 32];
                signer[..8].copy_from_slice(&self.made.to_be_bytes());
                let validity = self.validity(POLICY.authority);
                let mut bundle = match &self.state.authority {
                    Stored::There(authority) => authority.bundle.clone(),
                    _ => BTreeMap::new(),
                };
                bundle.insert(signer, validity);
                self.state.authority = Stored::There(Authority {
                    signer,
                    validity,
                    published: None,
                    bundle,
                });
            }
            CaStep::SetBundle(ids) => {
                let authority = self.authority();
                authority.bundle.retain(|id, _| ids.contains(id));
                assert!(authority.bundle.keys().eq(&ids));
            }
            CaStep::Publish(place) => {
                let bundle: BTreeSet<Id> = self.authority().bundle.keys().copied().collect();
                self.trusted.push((self.now, place, bundle.clone()));
                self.places.insert(place, bundle);
            }
            CaStep::MarkPublished => {
                let now = self.now;
                self.authority().published = Some(now);
            }
            CaStep::Issue(leaf, _) => {
                let until = self.authority().validity.until;
                let mut validity = self.validity(POLICY.leaf);
                validity.until = validity.until.min(until);
                let issued = Issued {
                    issuer: Some(self.authority().signer),
                    validity,
                    names_fit: true,
                };
                self.met.push((self.now, leaf, issued.clone()));
                self.state.leaves.insert(leaf, Stored::There(issued));
            }
        }
        self.look();
    }

    /// What follows from what is stored.
    fn look(&mut self) {
        let Stored::There(authority) = &self.state.authority else {
            return;
        };
        let bundle: BTreeSet<Id> = authority.bundle.keys().copied().collect();
        self.state.stale = [BundleTarget::ConfigMap, BundleTarget::WebhookConfiguration]
            .into_iter()
            .filter(|place| self.places.get(place) != Some(&bundle))
            .collect();
        for leaf in self.state.leaves.values_mut() {
            if let Stored::There(issued) = leaf {
                issued.issuer = issued.issuer.filter(|id| bundle.contains(id));
            }
        }
    }

    /// Does what is to be done; steps whose turn is in `failing` fail.
    fn settle(&mut self, failing: &[bool]) {
        let mut turns = failing.iter().copied();
        for _ in 0..20 {
            let RotationDecision { steps, due } = decide(&self.state, self.now, &POLICY);
            if steps.is_empty() {
                assert!(
                    due > self.now,
                    "due at {due}, which is not after {}",
                    self.now
                );
                return;
            }
            for step in steps {
                let alone = matches!(step, CaStep::MakeAuthority(_) | CaStep::SetBundle(_));
                if turns.next().unwrap_or(false) {
                    if alone {
                        break;
                    }
                    continue;
                }
                self.apply(step);
            }
        }
        assert!(
            turns.next().is_some(),
            "does not come to rest: {:?}",
            self.state
        );
    }

    /// Everything that a client may hold that is behind by less than the overlap: each entry that was
    /// the last at some time since then.
    fn within<T: Clone>(&self, history: &[(Seconds, T)]) -> Vec<T> {
        let since = self.now - POLICY.overlap + 1;
        let last = history.iter().rposition(|(at, _)| *at <= since);
        let from = last.unwrap_or(0);
        history
            .iter()
            .skip(from)
            .map(|(_, held)| held.clone())
            .collect()
    }

    /// Every client trusts every certificate it may meet.
    fn check(&self) {
        for (leaf, place) in LEAVES
            .into_iter()
            .zip([BundleTarget::ConfigMap, BundleTarget::WebhookConfiguration])
        {
            let trusted = self.trusted.iter().filter(|(_, p, _)| *p == place);
            let trusted: Vec<_> = trusted.map(|(at, _, held)| (*at, held.clone())).collect();
            let met = self.met.iter().filter(|(_, l, _)| *l == leaf);
            let met: Vec<_> = met.map(|(at, _, issued)| (*at, issued.clone())).collect();
            for bundle in self.within(&trusted) {
                for issued in self.within(&met) {
                    let issuer = issued.issuer.expect("it was signed");
                    assert!(
                        bundle.contains(&issuer),
                        "{leaf:?} at {}: {self:#?}",
                        self.now
                    );
                    assert!(self.now < issued.validity.until, "{leaf:?} at {}", self.now);
                }
            }
        }
    }
}

#[test]
fn the_first_start_makes_everything_and_then_rests() {
    let mut cluster = Cluster::new(1_000_000);
    cluster.settle(&[]);
    // The authority, two places, that it is published, two certificates.
    assert_eq!(cluster.writes, 6);
    assert!(cluster.state.stale.is_empty());
    cluster.check();
    cluster.settle(&[]);
    assert_eq!(cluster.writes, 6);
}

#[test]
fn the_bundle_comes_before_what_it_is_needed_for() {
    let mut cluster = Cluster::new(1_000_000);
    cluster.apply(CaStep::MakeAuthority(RenewalReason::Absent));
    let RotationDecision { steps, .. } = decide(&cluster.state, cluster.now, &POLICY);
    assert!(matches!(
        steps[..],
        [
            CaStep::Publish(_),
            CaStep::Publish(_),
            CaStep::Issue(..),
            CaStep::Issue(..)
        ]
    ));
}

#[test]
fn a_rotation_of_the_authority_by_its_phases() {
    let mut cluster = Cluster::new(1_000_000);
    cluster.settle(&[]);
    let first = cluster.authority().signer;
    cluster.now += POLICY.authority / 3 * 2;
    // The operator was away for the renewal of the certificates too.
    cluster.settle(&[]);
    let second = cluster.authority().signer;
    assert_ne!(first, second);
    assert_eq!(cluster.authority().bundle.len(), 2);
}

#[test]
fn rotation_remakes_an_unusable_leaf_or_authority_and_nothing_else() {
    let mut cluster = Cluster::new(1_000_000);
    cluster.settle(&[]);
    let broken = Stored::Unusable("holds no private key".into());
    cluster.state.leaves.insert(Leaf::Webhook, broken);
    let RotationDecision { steps, .. } = decide(&cluster.state, cluster.now, &POLICY);
    assert!(matches!(
        &steps[..],
        [CaStep::Issue(Leaf::Webhook, RenewalReason::Unusable(_))]
    ));

    let mut lost = cluster.state.clone();
    lost.authority = Stored::Unusable("tls.key is absent".into());
    let RotationDecision { steps, .. } = decide(&lost, cluster.now, &POLICY);
    assert!(matches!(
        &steps[..],
        [CaStep::MakeAuthority(RenewalReason::Unusable(_))]
    ));
}

#[test]
fn a_place_that_somebody_edited_gets_the_bundle_back_and_nothing_else_happens() {
    let mut cluster = Cluster::new(1_000_000);
    cluster.settle(&[]);
    cluster.places.remove(&BundleTarget::WebhookConfiguration);
    cluster.look();
    let RotationDecision { steps, .. } = decide(&cluster.state, cluster.now, &POLICY);
    assert_eq!(steps, [CaStep::Publish(BundleTarget::WebhookConfiguration)]);
}

#[test]
fn a_clock_that_was_wrong_is_recovered_from() {
    let mut cluster = Cluster::new(9_000_000);
    cluster.settle(&[]);
    cluster.now = 1_000_000;
    cluster.settle(&[]);
    let authority = cluster.authority().clone();
    assert!(authority.validity.from <= cluster.now);
    assert_eq!(authority.published, Some(cluster.now));
    for leaf in LEAVES {
        assert!(
            matches!(&cluster.state.leaves[&leaf], Stored::There(i) if i.validity.from <= cluster.now)
        );
    }
}

#[test]
fn a_publication_that_is_yet_to_come_does_not_count() {
    let mut cluster = Cluster::new(1_000_000);
    cluster.settle(&[]);
    let later = cluster.now + 1;
    cluster.authority().published = Some(later);
    let RotationDecision { steps, .. } = decide(&cluster.state, cluster.now, &POLICY);
    assert_eq!(steps, [CaStep::MarkPublished]);
}

#[test]
fn a_bundle_does_not_grow_for_ever() {
    let mut cluster = Cluster::new(1_000_000);
    for _ in 0..50 {
        cluster.apply(CaStep::MakeAuthority(RenewalReason::Unusable(
            "again".into(),
        )));
        cluster.settle(&[]);
        assert!(cluster.authority().bundle.len() <= 8);
    }
}

/// Time between two looks, and which of the steps then fail.
fn history() -> impl Strategy<Value = Vec<(Seconds, Vec<bool>)>> {
    let failing = prop::collection::vec(prop::bool::weighted(0.3), 0..8);
    prop::collection::vec((1..POLICY.overlap / 2, failing), 50..300)
}

proptest! {
    /// The leader looks often enough, and any step may fail at any look.
    #[test]
    fn no_client_fails_in_the_course_of_things(history in history()) {
        let mut cluster = Cluster::new(1_000_000);
        cluster.settle(&[]);
        let begin = cluster.now;
        for (passed, failing) in history {
            cluster.now += passed;
            cluster.settle(&failing);
            cluster.check();
        }
        prop_assert!(cluster.forced.is_empty(), "{:?}", cluster.forced);
        let lives = (cluster.now - begin) / POLICY.leaf;
        let writes = usize::try_from(lives).unwrap() * 16 + 20;
        prop_assert!(cluster.writes <= writes, "{} writes", cluster.writes);
    }

    /// A leader that was away, however long, and clocks that jump: it comes to rest with everything
    /// valid.
    #[test]
    fn authority_and_leaf_certificates_are_valid_after_any_jump_of_the_clock(jumps in prop::collection::vec(-5000..5000i64, 1..20)) {
        let mut cluster = Cluster::new(1_000_000);
        for jump in jumps {
            cluster.settle(&[]);
            cluster.now += jump;
            cluster.settle(&[]);
            let (now, authority) = (cluster.now, cluster.authority().clone());
            prop_assert!(authority.validity.from <= now && now < authority.validity.until);
            prop_assert!(authority.bundle.contains_key(&authority.signer));
            prop_assert!(cluster.state.stale.is_empty());
            for leaf in LEAVES {
                let Stored::There(issued) = &cluster.state.leaves[&leaf] else {
                    return Err(TestCaseError::fail("no certificate"));
                };
                prop_assert!(issued.validity.from <= now && now < issued.validity.until);
                prop_assert!(issued.issuer.is_some_and(|id| authority.bundle.contains_key(&id)));
            }
        }
    }
}
