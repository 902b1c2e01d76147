//! Owns the settings by which a bind finds the addresses of clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::client_address::ClientAddress;

use super::State;
use super::parse::ListenerSpec;
use crate::bind::BindKey;

/// The settings of each bind, from the listeners of a change. Listeners of one bind belong to one Gateway, so their
/// settings are the same. If they are not, those of the last listener by name count.
pub(super) fn of_binds(
    listeners: &BTreeMap<String, ListenerSpec>,
) -> BTreeMap<BindKey, Option<Arc<ClientAddress>>> {
    let said = listeners.values();
    said.map(|spec| (spec.bind, spec.client_address.clone()))
        .collect()
}

impl State {
    /// Puts the settings of a change in force. Call it when the listeners of the change are in their places. A listener
    /// that is only built again does not count here, because its settings may be older than those of others on its
    /// bind.
    pub(super) fn settle_client_addresses(
        &mut self,
        said: BTreeMap<BindKey, Option<Arc<ClientAddress>>>,
    ) {
        for (bind, how) in said {
            self.snapshot.set_client_address(&bind, how);
        }
    }
}
