//! Gives up orders and challenges that a change of the request or its issuer made useless.

use vestibule_model::challenge::Reach;
use vestibule_model::key::ObjectName;

use super::turn::UNWANTED;
use super::{GivenUp, Origin, PlanStep, Planner};

impl Planner {
    /// Looks at a certificate again after its request or its issuer changed.
    pub(super) fn reconsider(&mut self, secret: &ObjectName) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        self.dirty.insert(secret.clone());
        let wanted = self.wanted(entry);
        let fits = |digest: &String| wanted.as_ref().is_some_and(|w| w.all == *digest);
        if entry
            .ordering
            .as_ref()
            .is_some_and(|(digest, _)| !fits(digest))
        {
            // The order in the making is for something else, so nothing waits for it.
            self.leave(secret);
            if let Some(entry) = self.entries.get_mut(secret) {
                entry.ordering = None;
            }
            return;
        }
        let off = entry.published.keys().any(|key| {
            key.gateway != entry.request.gateway
                || entry.reach(&key.hostname, key.kind) != Reach::Ours
        });
        if off {
            // Withdraw a challenge at once where it may no longer be answered, whatever the CA is
            // doing.
            self.give_way(secret);
        }
        self.give_up_misfit(secret);
    }

    /// Gives up an order that no longer matches what is wanted.
    pub(super) fn give_up_misfit(&mut self, secret: &ObjectName) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let Some(running) = &entry.running else {
            return;
        };
        let fits = self
            .wanted(entry)
            .is_some_and(|wanted| wanted.all == running.wanted);
        let account = self.account_of(entry).map(|account| account.url.as_str());
        if fits && account.is_none_or(|url| url == running.account) {
            return;
        }
        let maker = self.issuers.of_account(&running.account).cloned();
        self.leave(secret);
        if let Some(entry) = self.entries.get_mut(secret)
            && let Some(running) = entry.running.take()
        {
            entry.state.order = None;
            let next = entry.issuer.clone();
            // Nobody knows whose order it is that the Secret names, so it is left alone.
            let Origin::Known(hostnames) = running.origin else {
                return;
            };
            let given_up = GivenUp {
                url: running.url.clone(),
                hostnames,
            };
            let before = match &maker {
                // The next order is of the same account and closes this one first. If another order waited
                // for that already, it is closed now.
                Some(maker) if Some(maker) == next.as_ref() => entry.given_up.replace(given_up),
                Some(_) => Some(given_up),
                None => None,
            };
            if let (Some(maker), Some(given_up)) = (&maker, before) {
                self.steps.push(PlanStep::Close(maker.clone(), given_up));
            }
            if let Some(issuer) = maker.or(next) {
                self.abandoned(secret, issuer, running.url, UNWANTED);
            }
        }
    }
}
