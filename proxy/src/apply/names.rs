//! Owns the texts that many resources have in common (names of tenants, Gateways and trust bundles). Each is kept once.

use std::collections::HashSet;
use std::sync::Arc;

/// Interned texts. Those that are no longer used are removed at the next sweep.
#[derive(Debug, Default)]
pub(super) struct Names {
    texts: HashSet<Arc<str>>,
    kept: usize,
}

impl Names {
    pub(super) fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&new));
        new
    }

    /// Removes unused texts, but only if there are twice as many texts as were in use after the last sweep. So the cost
    /// of sweeping is constant for each text that is interned.
    pub(super) fn sweep(&mut self) {
        if self.texts.len() > 2 * self.kept + 64 {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.kept = self.texts.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_texts_go() {
        let mut names = Names::default();
        let kept = names.intern("kept");
        for n in 0..1000 {
            names.intern(&n.to_string());
            names.sweep();
        }
        assert!(names.texts.len() < 200);
        assert!(Arc::ptr_eq(&kept, &names.intern("kept")));
    }
}
