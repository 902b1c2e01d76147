//! Fair shares of something scarce (such as bytes, copies, sessions or pipes) among holders, which are namespaces in most
//! cases.
//!
//! A holder gets more as long as it holds less than what is free. So one holder alone can have half of all, and the next
//! one still finds some. A holder that has more than is free gets nothing until it has given some back. If n holders give
//! back and take all they can, each ends with 1/(n+1) of the total, and as much stays free.
//!
//! [`vestibule_serve::places`] has the same rule for the sources of connections. There, places are shared by threads, and
//! some have no source yet.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// How much there is, and how much of it each holder has.
pub(crate) struct Shares<K = Arc<str>> {
    most: usize,
    used: usize,
    held: HashMap<K, usize>,
}

impl<K: Clone + Eq + Hash> Shares<K> {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            used: 0,
            held: HashMap::new(),
        }
    }

    /// Takes `count` for a holder. Returns false if it may not have that much.
    pub(crate) fn take(&mut self, holder: &K, count: usize) -> bool {
        let held = self.held.get(holder).copied().unwrap_or_default();
        let free = self.most.saturating_sub(self.used);
        if held.saturating_add(count) > free {
            return false;
        }
        self.used += count;
        self.held.insert(holder.clone(), held + count);
        true
    }

    pub(crate) fn give_back(&mut self, holder: &K, count: usize) {
        self.used = self.used.saturating_sub(count);
        if let Some(held) = self.held.get_mut(holder) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                self.held.remove(holder);
            }
        }
    }
}

#[cfg(test)]
impl<K> Shares<K> {
    /// How much is held.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// How many holders there are.
    pub(crate) fn holders(&self) -> usize {
        self.held.len()
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
        assert_eq!(shares.holders(), 0);
        // The amount that is asked for counts too, and not only the amount that is held.
        assert!(!shares.take(&a, 101));
        assert!(shares.take(&a, 100));
        assert!(!shares.take(&b, 1));
    }
}
