//! Owns how the address of a client is found: what is checked of it before it is in force, and which binds have it.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::client_address::ClientAddress;

use super::State;
use super::parse::ListenerSpec;
use crate::bind::BindKey;

/// What the listeners of a change say of their binds. They are of one Gateway and agree; of those that do not, the last
/// by name counts.
pub(super) fn of_binds(
    listeners: &BTreeMap<String, ListenerSpec>,
) -> BTreeMap<BindKey, Option<Arc<ClientAddress>>> {
    let said = listeners.values();
    said.map(|spec| (spec.bind, spec.client_address.clone()))
        .collect()
}

impl State {
    /// Puts in force what the listeners of a change said, once these are in their places. A listener that is only made
    /// anew says nothing: it may be older than others of its bind.
    pub(super) fn settle_client_addresses(
        &mut self,
        said: BTreeMap<BindKey, Option<Arc<ClientAddress>>>,
    ) {
        for (bind, how) in said {
            self.snapshot.set_client_address(&bind, how);
        }
    }
}
