//! Admission verdicts for the objects of a directory, as if somebody applied them to a cluster in their order of
//! precedence.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::finding::Finding;
use vestibule_model::gateway::ListenerSet;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;
use vestibule_operator::translate::Translator;
use vestibule_webhook::{AdmissionState, Operation, Review, Reviewer};

/// The answers of admission by object. Answers without a finding are left out.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    answers: BTreeMap<ObjectKey, Review>,
}

impl Admission {
    /// Reviews every object that the translator has.
    #[must_use]
    pub(crate) fn of_all(translator: &Translator, policy: &Policy) -> Self {
        let mut state = AdmissionState::new(translator.merge().controller())
            .with_names_per_namespace(policy.names_per_namespace)
            .with_ports_per_namespace(policy.ports_per_namespace);
        let mut sets: Vec<&ListenerSet> = Vec::new();
        for (_, object) in translator.objects() {
            match object.as_ref() {
                Object::ListenerSet(set) => sets.push(set),
                other => state.put_unsettled(other.clone()),
            }
        }
        // Whoever holds a name is not refused for the sake of an older object that asks for it. In a check, whoever
        // should get a name counts as its holder. This settles the names of all objects so far at once.
        state.put_holders(translator.holders());
        // Sets of the same age are ordered by "namespace/name" as one text, as in Gateway API.
        sets.sort_by_cached_key(|set| (set.meta.created, set.name.to_string()));
        let mut answers = BTreeMap::new();
        for set in sets {
            let object = Object::ListenerSet(Arc::new(set.clone()));
            answers.insert(object.key(), create(&state, policy, &object));
            // The set is put even if it is refused. In a directory it exists all the same, and those of its
            // listeners that have no conflict count. The next set is judged by it, so names are settled each time. This
            // is cheap, because the names have holders already.
            state.put(object);
        }
        for (key, object) in translator.objects() {
            if !answers.contains_key(key) {
                answers.insert(key.clone(), create(&state, policy, object));
            }
        }
        answers.retain(|_, review| !review.findings.is_empty());
        Self { answers }
    }

    /// Findings about an object, and the message of its refusal.
    #[must_use]
    pub(crate) fn of(&self, key: &ObjectKey) -> (Vec<Finding>, Option<String>) {
        self.answers
            .get(key)
            .map_or_else(Default::default, |review| {
                (review.findings.clone(), review.message.clone())
            })
    }
}

fn create(state: &AdmissionState, policy: &Policy, object: &Object) -> Review {
    Reviewer::new(state, policy).review(Operation::Create, None, object)
}
