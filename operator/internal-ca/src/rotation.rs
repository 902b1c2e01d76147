//! Decides when the internal authority and the certificates that it signs are replaced. It is pure: the state and the time
//! are inputs, and steps are the output.
//!
//! A new authority is made long before the old one expires, and signs from then on. Its certificate joins the bundle that
//! clients trust. Certificates that the old one signed stay in force until the bundle has been published for the overlap.
//! Only then they are issued again. The old one leaves the bundle when the new certificates have been in force for the overlap. So a
//! client that is behind by less than the overlap, in the bundle or in the certificate it meets, never
//! fails.
//!
//! Anything that is missing, broken or not valid now cannot wait: it is replaced at once.

use std::collections::{BTreeMap, BTreeSet};

/// Seconds since the Unix epoch, or between two times.
pub type Seconds = i64;

/// A day.
pub const DAY: Seconds = 86_400;
/// Most authorities in a bundle: a state that is broken again and again must not let it grow.
const MAX_BUNDLE: usize = 8;

/// How long things last. Renewal is at two thirds, so the overlap has to be well below a third of a
/// certificate's life, and that below a third of an authority's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotationPolicy {
    /// Validity of an authority.
    pub authority: Seconds,
    /// Validity of a certificate.
    pub leaf: Seconds,
    /// How far a client may be behind.
    pub overlap: Seconds,
    /// Certificates begin so long before they are issued, for clients whose clock is behind.
    pub backdate: Seconds,
}

impl Default for RotationPolicy {
    fn default() -> Self {
        Self {
            authority: 365 * DAY,
            leaf: 90 * DAY,
            overlap: DAY,
            backdate: 3600,
        }
    }
}

impl RotationPolicy {
    /// When something that is valid for `life` is replaced: at two thirds of it.
    fn renewal(&self, validity: Validity, life: Seconds) -> Seconds {
        self.issued(validity).saturating_add(life / 3 * 2)
    }

    /// When it was issued.
    fn issued(&self, validity: Validity) -> Seconds {
        validity.from.saturating_add(self.backdate)
    }
}

/// An authority: SHA-256 of its certificate.
pub type Id = [u8; 32];

/// When a certificate is valid: from the first to before the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: Seconds,
    /// The second after the last.
    pub until: Seconds,
}

/// A certificate that Vestibule keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Leaf {
    /// Of the operator's configuration stream.
    Operator,
    /// Of the admission webhook.
    Webhook,
}

/// Where the bundle is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BundleTarget {
    /// The ConfigMap that proxies mount.
    ConfigMap,
    /// The webhook configuration, which the API server reads.
    WebhookConfiguration,
}

/// Something in a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored<T> {
    /// The Secret is not there.
    Absent,
    /// It does not hold what it should, and why.
    Unusable(String),
    /// It is there.
    There(T),
}

/// The authority as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The one that signs.
    pub signer: Id,
    /// Its validity.
    pub validity: Validity,
    /// Since when the published bundle contains it.
    pub published: Option<Seconds>,
    /// The bundle: authorities that clients trust.
    pub bundle: BTreeMap<Id, Validity>,
}

/// A certificate as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The authority of the bundle that signed it; none if none of them did.
    pub issuer: Option<Id>,
    /// Its validity.
    pub validity: Validity,
    /// Whether it is for the names that it should be for.
    pub names_fit: bool,
}

/// Everything that a decision depends on, but the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaState {
    /// The authority.
    pub authority: Stored<Authority>,
    /// The certificates.
    pub leaves: BTreeMap<Leaf, Stored<Issued>>,
    /// Where the bundle is not as the authority's Secret has it.
    pub stale: BTreeSet<BundleTarget>,
}

/// Why an authority or certificate is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewalReason {
    /// There is none.
    Absent,
    /// The one that exists cannot be used.
    Unusable(String),
    /// It is not valid any more.
    Expired,
    /// It is not valid yet: a clock was wrong when it was made, or is now.
    NotYetValid,
    /// Two thirds of its life are over.
    Due,
    /// It is for other names.
    Names,
    /// No authority that clients trust signed it.
    UnknownIssuer,
    /// An older authority signed it.
    NewAuthority,
}

impl RenewalReason {
    /// CamelCase, of a bounded set.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Absent => "Absent",
            Self::Unusable(_) => "Unusable",
            Self::Expired => "Expired",
            Self::NotYetValid => "NotYetValid",
            Self::Due => "Due",
            Self::Names => "Names",
            Self::UnknownIssuer => "UnknownIssuer",
            Self::NewAuthority => "NewAuthority",
        }
    }

    /// Whether it belongs to the course of things.
    #[must_use]
    pub fn is_planned(&self) -> bool {
        matches!(self, Self::Absent | Self::Due | Self::NewAuthority)
    }
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaStep {
    /// A new authority signs; the bundle keeps what is valid of the present one.
    MakeAuthority(RenewalReason),
    /// The bundle becomes these of the present one and the signer.
    SetBundle(BTreeSet<Id>),
    /// The bundle goes to a place where it is not.
    Publish(BundleTarget),
    /// From now on the bundle is published everywhere.
    MarkPublished,
    /// A certificate is issued.
    Issue(Leaf, RenewalReason),
}

/// The steps to take now, and the time to look again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotationDecision {
    /// In this order. A step that changes the authority comes alone.
    pub steps: Vec<CaStep>,
    /// When something is due by time alone.
    pub due: Seconds,
}

/// Decides.
#[must_use]
pub fn decide(state: &CaState, now: Seconds, policy: &RotationPolicy) -> RotationDecision {
    let alone = |step| RotationDecision {
        steps: vec![step],
        due: now,
    };
    let authority = match &state.authority {
        Stored::Absent => return alone(CaStep::MakeAuthority(RenewalReason::Absent)),
        Stored::Unusable(why) => {
            return alone(CaStep::MakeAuthority(RenewalReason::Unusable(why.clone())));
        }
        Stored::There(authority) => authority,
    };
    let renewal = policy.renewal(authority.validity, policy.authority);
    if let Some(why) = end(authority.validity, renewal, now) {
        return alone(CaStep::MakeAuthority(why));
    }

    let mut due = renewal;
    let wanted = bundle(state, authority, now, policy, &mut due);
    if !wanted.iter().eq(authority.bundle.keys()) {
        return alone(CaStep::SetBundle(wanted));
    }

    let mut steps: Vec<CaStep> = state.stale.iter().copied().map(CaStep::Publish).collect();
    // A time that is yet to come was written by a clock that was wrong.
    let published = authority.published.filter(|since| *since <= now);
    if steps.is_empty() && published.is_none() {
        steps.push(CaStep::MarkPublished);
    }
    let trusted = published.map(|since| since.saturating_add(policy.overlap));
    for leaf in [Leaf::Operator, Leaf::Webhook] {
        let stored = state.leaves.get(&leaf).unwrap_or(&Stored::Absent);
        match renew(stored, authority, trusted, now, policy) {
            Ok(later) => due = due.min(later),
            Err(why) => steps.push(CaStep::Issue(leaf, why)),
        }
    }
    RotationDecision { steps, due }
}

/// Why something has to be replaced at `now`, if it has to.
fn end(validity: Validity, renewal: Seconds, now: Seconds) -> Option<RenewalReason> {
    if now >= validity.until {
        Some(RenewalReason::Expired)
    } else if now < validity.from {
        Some(RenewalReason::NotYetValid)
    } else if now >= renewal {
        Some(RenewalReason::Due)
    } else {
        None
    }
}

/// The authorities that the bundle should have; `due` becomes the time of the next change, if that is
/// earlier.
fn bundle(
    state: &CaState,
    authority: &Authority,
    now: Seconds,
    policy: &RotationPolicy,
    due: &mut Seconds,
) -> BTreeSet<Id> {
    let mut wanted = BTreeSet::from([authority.signer]);
    let others = authority
        .bundle
        .iter()
        .filter(|(id, validity)| **id != authority.signer && now < validity.until);
    let mut others: Vec<_> = others.collect();
    let settled = settled(state, authority, policy);
    if others.is_empty() || settled.is_some_and(|at| at <= now) {
        return wanted;
    }
    *due = settled.unwrap_or(*due).min(*due);
    // The newest are those that a certificate in force is most likely to be signed by.
    others.sort_by_key(|(_, validity)| std::cmp::Reverse(validity.from));
    for (id, validity) in others.into_iter().take(MAX_BUNDLE - 1) {
        wanted.insert(*id);
        *due = validity.until.min(*due);
    }
    wanted
}

/// When no certificate of an older authority is met any more; none as long as one is stored.
fn settled(state: &CaState, authority: &Authority, policy: &RotationPolicy) -> Option<Seconds> {
    let mut latest = Seconds::MIN;
    for leaf in [Leaf::Operator, Leaf::Webhook] {
        let Some(Stored::There(issued)) = state.leaves.get(&leaf) else {
            return None;
        };
        if issued.issuer != Some(authority.signer) {
            return None;
        }
        latest = latest.max(policy.issued(issued.validity));
    }
    Some(latest.saturating_add(policy.overlap))
}

/// Why a certificate is to be issued now, or when to look at it again.
fn renew(
    stored: &Stored<Issued>,
    authority: &Authority,
    trusted: Option<Seconds>,
    now: Seconds,
    policy: &RotationPolicy,
) -> Result<Seconds, RenewalReason> {
    let issued = match stored {
        Stored::Absent => return Err(RenewalReason::Absent),
        Stored::Unusable(why) => return Err(RenewalReason::Unusable(why.clone())),
        Stored::There(issued) => issued,
    };
    if !issued.names_fit {
        return Err(RenewalReason::Names);
    }
    let renewal = policy
        .renewal(issued.validity, policy.leaf)
        .min(issued.validity.until);
    let end = end(issued.validity, renewal, now);
    match issued.issuer {
        None => Err(RenewalReason::UnknownIssuer),
        Some(id) if id == authority.signer => end.map_or(Ok(renewal), Err),
        Some(_) => match (end, trusted) {
            (Some(why @ (RenewalReason::Expired | RenewalReason::NotYetValid)), _) => Err(why),
            (_, Some(trusted)) if now >= trusted => Err(RenewalReason::NewAuthority),
            // There is a third of its life left, which is longer than the overlap.
            (_, trusted) => Ok(trusted.unwrap_or(issued.validity.until)),
        },
    }
}
