//! Completes statuses with the condition `Programmed`. Translation says on what it depends (`ProgrammedBasis`), and the
//! acknowledgements of the proxies decide it. The module is pure: `crds` renders statuses, and the caller writes them.

use serde_json::Value;
use vestibule_crds::status::{self as wire, Observed};
use vestibule_model::condition::{Condition, ConditionType, ProgrammedBasis, Reason};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey};
use vestibule_model::small::SmallSet;
use vestibule_stream::ResourceKey;

use crate::publish::{self, Publisher};
use crate::translate::{Status, Translator};

const PROGRAMMED: ConditionType = ConditionType::Programmed;
/// Proxies and rejects named in a message; more are counted.
const NAMED: usize = 3;

/// The Programmed condition. `acks` answers what the proxies hold of these listeners.
///
/// True needs the publisher's [`Acknowledged`](publish::Acknowledged); a part that a proxy rejected is
/// Invalid, and anything that is not acknowledged yet is Pending, with the proxies it waits for.
pub fn programmed(
    basis: &ProgrammedBasis,
    acks: impl FnOnce(&SmallSet<ListenerKey>) -> publish::AckProgress,
) -> Condition {
    let listeners = match basis {
        ProgrammedBasis::NotPublished(reason, message) => {
            return Condition::fails(PROGRAMMED, *reason, message.clone());
        }
        ProgrammedBasis::NotYet(wait) => {
            return Condition::fails(PROGRAMMED, Reason::Pending, wait.to_string());
        }
        ProgrammedBasis::WhenAcknowledged(listeners) => listeners,
    };
    let acks = acks(listeners);
    let (acked, ready) = (acks.acked, acks.ready);
    if let Some((proxy, reject)) = acks.rejects.first() {
        let others = match acks.rejects.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        return Condition::fails(
            PROGRAMMED,
            Reason::Invalid,
            format!(
                "{proxy} rejected it: {}: {}{others}",
                reject.reason, reject.message
            ),
        );
    }
    if acks.acknowledged().is_some() {
        return Condition::holds(
            PROGRAMMED,
            Reason::Programmed,
            format!("In force in {acked} of {ready} proxies"),
        );
    }
    Condition::fails(PROGRAMMED, Reason::Pending, lacking(&acks))
}

/// Which proxies lack what was asked for, as the message of a condition.
pub(crate) fn lacking(acks: &publish::AckProgress) -> String {
    let (acked, ready) = (acks.acked, acks.ready);
    if ready == 0 {
        "No proxy is ready".to_owned()
    } else if let Some((proxy, refusal)) = acks.refusals.first() {
        format!(
            "{acked}/{ready} acked; {proxy} refuses: {}: {}",
            refusal.reason, refusal.message
        )
    } else if acks.waiting_for.is_empty() {
        format!("{acked}/{ready} acked; it is not published yet")
    } else {
        format!(
            "{acked}/{ready} acked; waiting for {}",
            list(&acks.waiting_for)
        )
    }
}

/// The progress of the proxies with some listeners.
#[must_use]
pub fn ack_progress(
    translator: &Translator,
    publisher: &Publisher,
    listeners: &SmallSet<ListenerKey>,
) -> publish::AckProgress {
    let keys: Vec<ResourceKey> = listeners
        .iter()
        .flat_map(|listener| translator.resources_of(listener))
        .collect();
    publisher.programmed(&keys)
}

/// A status as it is written: `old` is the one that is there, `controller` the name that route
/// statuses carry, `programmed` as from [`programmed`].
#[must_use]
pub fn render(
    key: &ObjectKey,
    old: &Value,
    new: &Status,
    controller: &str,
    observed: Observed,
    programmed: impl Fn(&ProgrammedBasis) -> Condition,
) -> Value {
    match new {
        Status::Class(status) => wire::class(old, status, observed),
        Status::Listeners(status) if key.kind == Kind::Gateway => {
            wire::gateway(old, status, observed, programmed)
        }
        Status::Listeners(status) => wire::listener_set(old, status, observed, programmed),
        Status::Route(status) => wire::route(old, status, controller, observed),
        Status::Policy(status) => wire::policy(old, status, controller, observed),
        Status::Grant(status) => wire::grant(old, status, observed),
    }
}

fn list(proxies: &[String]) -> String {
    let named = proxies
        .iter()
        .take(NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    match proxies.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::condition::{Truth, Wait};
    use vestibule_model::key::{ObjectName, ParentKey};
    use vestibule_stream::{Reject, ResourceKind, proto::BatchRefusal};

    use super::*;

    fn held() -> ProgrammedBasis {
        ProgrammedBasis::WhenAcknowledged(SmallSet::from([ListenerKey::new(
            ParentKey::ListenerSet(ObjectName::new("a", "set")),
            "web",
        )]))
    }

    fn condition(acks: publish::AckProgress) -> (Truth, Reason, String) {
        let condition = programmed(&held(), |listeners| {
            assert_eq!(listeners.len(), 1);
            acks
        });
        assert_eq!(condition.kind, PROGRAMMED);
        (condition.truth, condition.reason, condition.message)
    }

    fn waiting(acked: usize, proxies: &[&str]) -> publish::AckProgress {
        let mut acks = publish::AckProgress::default();
        acks.acked = acked;
        acks.ready = acked + proxies.len();
        acks.waiting_for = proxies.iter().map(ToString::to_string).collect();
        acks
    }

    #[test]
    fn programmed_condition_without_publication_asks_for_no_acknowledgements() {
        let never = ProgrammedBasis::NotPublished(Reason::HostnameConflict, "taken".into());
        let condition = programmed(&never, |_| unreachable!("there is nothing to ask for"));
        assert_eq!(condition.truth, Truth::False);
        assert_eq!(condition.reason, Reason::HostnameConflict);
        assert_eq!(condition.message, "taken");
        let later = ProgrammedBasis::NotYet(Wait::InternalPort);
        let condition = programmed(&later, |_| unreachable!("there is nothing to ask for"));
        assert_eq!(Some(condition), later.unpublished());
    }

    #[test]
    fn pending_says_how_many_and_for_whom() {
        for (acks, message) in [
            (waiting(0, &[]), "No proxy is ready"),
            (waiting(0, &["p-1"]), "0/1 acked; waiting for p-1"),
            (
                waiting(1, &["p-2", "p-3"]),
                "1/3 acked; waiting for p-2, p-3",
            ),
            (
                waiting(2, &["a", "b", "c", "d", "e"]),
                "2/7 acked; waiting for a, b, c and 2 more",
            ),
        ] {
            let pending = (Truth::False, Reason::Pending, message.to_owned());
            assert_eq!(condition(acks), pending);
        }
        let mut refusing = waiting(1, &["p-2"]);
        let refusal = BatchRefusal {
            reason: "Malformed".into(),
            message: "what is this".into(),
        };
        refusing.refusals.push(("p-2".into(), refusal));
        assert_eq!(
            condition(refusing).2,
            "1/2 acked; p-2 refuses: Malformed: what is this"
        );
    }

    #[test]
    fn every_count_without_the_fact_is_still_pending() {
        let (truth, reason, message) = condition(waiting(2, &[]));
        assert_eq!((truth, reason), (Truth::False, Reason::Pending));
        assert_eq!(message, "2/2 acked; it is not published yet");
    }

    #[test]
    fn a_reject_is_invalid_with_its_reason() {
        let mut acks = waiting(1, &[]);
        acks.ready = 2;
        let reject = |name: &str| {
            let key = ResourceKey::new(ResourceKind::Listener, name);
            Reject::new(key, "PortUnavailable", "cannot listen on 127.0.0.1:443")
        };
        acks.rejects.push(("p-1".into(), reject("x")));
        let invalid = |message: &str| (Truth::False, Reason::Invalid, message.to_owned());
        assert_eq!(
            condition(acks.clone()),
            invalid("p-1 rejected it: PortUnavailable: cannot listen on 127.0.0.1:443")
        );
        acks.rejects.push(("p-2".into(), reject("x")));
        assert!(condition(acks).2.ends_with("(and 1 more)"));
    }
}
