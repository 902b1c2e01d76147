//! Owns the open accounts, one for each issuer.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use vestibule_model::key::ObjectKey;

use crate::plan::Ticket;

/// The open accounts, by issuer.
///
/// An account takes time to open, and its issuer may change or go meanwhile. So an account is taken only from the last
/// opening of an issuer that is still there as it was. Otherwise orders would go to the CA that the issuer named before.
pub(crate) struct OpenAccounts<A>(Mutex<BTreeMap<ObjectKey, Slot<A>>>);

struct Slot<A> {
    /// The ticket of the last opening.
    ticket: Ticket,
    account: Option<Arc<A>>,
}

impl<A> Default for OpenAccounts<A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<A> OpenAccounts<A> {
    /// Begins an opening. Until it is done, the account that was open before still is.
    pub(crate) fn begin(&self, issuer: &ObjectKey, ticket: Ticket) {
        let mut all = self.0.lock();
        let slot = all.entry(issuer.clone()).or_insert(Slot {
            ticket,
            account: None,
        });
        slot.ticket = ticket;
    }

    /// Takes the account of an opening, if no later one has begun and the issuer has neither changed nor gone.
    pub(crate) fn opened(&self, issuer: &ObjectKey, ticket: Ticket, account: A) {
        let mut all = self.0.lock();
        if let Some(slot) = all.get_mut(issuer)
            && slot.ticket == ticket
        {
            slot.account = Some(Arc::new(account));
        }
    }

    /// Drops the account of an issuer that has changed or gone.
    pub(crate) fn remove(&self, issuer: &ObjectKey) {
        self.0.lock().remove(issuer);
    }

    /// The open account of an issuer.
    pub(crate) fn get(&self, issuer: &ObjectKey) -> Option<Arc<A>> {
        self.0.lock().get(issuer)?.account.clone()
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::key::Kind;

    use super::*;

    fn issuer() -> ObjectKey {
        ObjectKey::new(Kind::AcmeIssuer, "a", "ca")
    }

    fn open(accounts: &OpenAccounts<&'static str>) -> Option<&'static str> {
        accounts.get(&issuer()).map(|account| *account)
    }

    #[test]
    fn a_former_account_that_opens_late_replaces_none() {
        let accounts = OpenAccounts::default();
        accounts.begin(&issuer(), 1);
        accounts.begin(&issuer(), 2);
        accounts.opened(&issuer(), 2, "new");
        accounts.opened(&issuer(), 1, "former");
        assert_eq!(open(&accounts), Some("new"));
        // The same holds before the new one is open.
        accounts.begin(&issuer(), 3);
        accounts.opened(&issuer(), 2, "former");
        assert_eq!(open(&accounts), Some("new"));
        accounts.opened(&issuer(), 3, "newest");
        assert_eq!(open(&accounts), Some("newest"));
    }

    #[test]
    fn nothing_stays_of_an_issuer_that_went_however_late_its_account_opens() {
        let accounts = OpenAccounts::default();
        accounts.begin(&issuer(), 1);
        accounts.opened(&issuer(), 1, "open");
        accounts.begin(&issuer(), 2);
        accounts.remove(&issuer());
        accounts.opened(&issuer(), 2, "late");
        assert_eq!(open(&accounts), None);
        assert!(accounts.0.lock().is_empty());
    }
}
