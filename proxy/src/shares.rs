//! Fair shares of something scarce (such as bytes, copies or sessions) among namespaces.
//!
//! A namespace gets more as long as it holds less than what is free. So one namespace alone can hold half of all, and
//! the next namespace still finds some. A namespace that holds more than is free gets nothing until it has given some back.
//! If n namespaces give back and take all they can, each ends with 1/(n+1) of the total, and as much stays free.

use std::collections::HashMap;
use std::sync::Arc;

/// How much there is, and how much of it each namespace holds.
pub(crate) struct Shares {
    most: usize,
    used: usize,
    namespaces: HashMap<Arc<str>, usize>,
}

impl Shares {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            used: 0,
            namespaces: HashMap::new(),
        }
    }

    /// Takes `count` for a namespace. Returns false if it may not have that much.
    pub(crate) fn take(&mut self, namespace: &Arc<str>, count: usize) -> bool {
        let held = self.namespaces.get(namespace).copied().unwrap_or_default();
        let free = self.most.saturating_sub(self.used);
        if held.saturating_add(count) > free {
            return false;
        }
        self.used += count;
        self.namespaces.insert(Arc::clone(namespace), held + count);
        true
    }

    pub(crate) fn give_back(&mut self, namespace: &Arc<str>, count: usize) {
        self.used = self.used.saturating_sub(count);
        if let Some(held) = self.namespaces.get_mut(namespace) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                self.namespaces.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
impl Shares {
    /// How much is held.
    pub(crate) fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_namespace_leaves_half_and_all_of_it_comes_back() {
        let mut shares = Shares::new(100);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let all = |shares: &mut Shares, of| (0..1000).take_while(|_| shares.take(of, 1)).count();
        assert_eq!(all(&mut shares, &a), 50);
        assert_eq!(all(&mut shares, &b), 25);
        assert!(!shares.take(&a, 1));
        shares.give_back(&b, 25);
        shares.give_back(&a, 50);
        assert!(shares.namespaces.is_empty());
        // The amount that is asked for counts too, and not only the amount that is held.
        assert!(!shares.take(&a, 101));
        assert!(shares.take(&a, 100));
        assert!(!shares.take(&b, 1));
    }
}
