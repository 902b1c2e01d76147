//! What admission says about the objects of a directory, as if they were applied to a cluster in the
//! order in which they take precedence.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;
use vestibule_model::merge::Merge;
use vestibule_model::object::{ListenerSet, Object};
use vestibule_model::policy::Policy;
use vestibule_operator::translate::{CONTROLLER, Translator};
use vestibule_webhook::{Operation, Review, Reviewer};

/// Answers of admission by object; only those that say something.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    answers: BTreeMap<ObjectKey, Review>,
}

impl Admission {
    /// Reviews every object that the translator has.
    #[must_use]
    pub(crate) fn of_all(translator: &Translator, policy: &Policy) -> Self {
        let mut merge = Merge::new(CONTROLLER);
        let mut sets: Vec<&ListenerSet> = Vec::new();
        for (key, object) in translator.objects() {
            let name = &key.name;
            match object.as_ref() {
                Object::GatewayClass(class) => {
                    merge.put_class(&name.name, Some(class.clone()));
                }
                Object::Gateway(gateway) => {
                    merge.put_gateway(name, Some(Arc::new(gateway.clone())));
                }
                Object::Namespace(namespace) => {
                    merge.put_namespace(&name.name, Some(namespace.labels.clone()));
                }
                Object::ListenerSet(set) => sets.push(set),
                _ => {}
            }
        }
        // As upstream breaks ties: by "namespace/name" as one text.
        sets.sort_by_cached_key(|set| (set.meta.created, set.name.to_string()));
        let mut answers = BTreeMap::new();
        for set in sets {
            let object = Object::ListenerSet(set.clone());
            answers.insert(object.key(), create(&merge, policy, &object));
            // Also if it is refused: in a directory it is there all the same, and what of it does not
            // conflict counts.
            merge.put_set(&set.name, Some(Arc::new(set.clone())));
        }
        for (key, object) in translator.objects() {
            if !answers.contains_key(key) {
                answers.insert(key.clone(), create(&merge, policy, object));
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

fn create(merge: &Merge, policy: &Policy, object: &Object) -> Review {
    Reviewer::new(merge, policy).review(Operation::Create, None, object)
}
