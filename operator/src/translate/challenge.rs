//! Challenges of CAs as resources for the proxies.

use std::collections::BTreeMap;

use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};

use super::{Dirty, Output, Translator};

impl Translator {
    pub(super) fn take_challenges(
        &mut self,
        changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>,
        dirty: &mut Dirty,
    ) {
        for (key, answer) in changes {
            let old = match answer.clone() {
                Some(answer) => self.challenges.insert(key.clone(), answer),
                None => self.challenges.remove(&key),
            };
            if old != answer {
                dirty.challenges.insert(key);
            }
        }
    }

    pub(super) fn translate_challenges(&mut self, dirty: &Dirty, output: &mut Output) {
        let _ = (&dirty.challenges, output);
    }
}
