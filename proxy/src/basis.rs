//! Owns what a connection was admitted by, and the question whether the configuration in force would still admit it.

use std::sync::Arc;

use parking_lot::Mutex;
use vestibule_model::hostname::Hostname;

use crate::bind::BindKey;
use crate::listener::Listener;
use crate::plane::DataPlane;
use crate::table::{Route, RouteKind, SelectedBy, refuses_all};
use crate::validation::{ClientValidation, ProvenChain};

/// The listener, route and client certificate by which a connection was admitted.
pub(crate) struct Basis {
    pub(crate) plane: Arc<DataPlane>,
    pub(crate) bind: BindKey,
    pub(crate) server_name: Option<Hostname>,
    pub(crate) listener: Option<Arc<Listener>>,
    pub(crate) route: Option<Arc<Route>>,
    /// The proof that the client has shown of itself, if its listener validated it. Most connections have none.
    pub(crate) shown: Option<Box<ClientProof>>,
}

/// The certificate of a client that was validated.
pub(crate) struct ClientProof {
    chain: ProvenChain,
    /// The client validation that the client has passed last.
    passed: Mutex<Arc<ClientValidation>>,
}

impl Basis {
    /// The basis of a connection that is just accepted.
    pub(crate) fn new(plane: Arc<DataPlane>, bind: BindKey) -> Self {
        Self {
            plane,
            bind,
            server_name: None,
            listener: None,
            route: None,
            shown: None,
        }
    }

    /// Keeps the chain of a client that has just passed the client validation of its listener, if that has any.
    pub(crate) fn show(&mut self, chain: ProvenChain) {
        let listener = self.listener.as_ref();
        self.shown = listener.and_then(|of| of.validation.clone()).map(|passed| {
            Box::new(ClientProof {
                chain,
                passed: Mutex::new(passed),
            })
        });
    }

    /// Whether the configuration in force serves the tunnel that this connection became.
    pub(crate) fn is_served(&self) -> bool {
        let (Some(listener), Some(route)) = (&self.listener, &self.route) else {
            return true;
        };
        let snapshot = self.plane.snapshot.load();
        let serving = snapshot.still_serves(&SelectedBy {
            bind: &self.bind,
            name: self.server_name.as_ref(),
            listener,
            route: (RouteKind::Of(route.kind), Arc::clone(&route.key)),
            path: None,
        });
        serving.is_some_and(|serving| self.is_admitted(serving))
    }

    /// Whether the client passes the client validation of a listener.
    fn is_admitted(&self, listener: &Listener) -> bool {
        if refuses_all(listener) {
            return false;
        }
        let Some(validation) = &listener.validation else {
            return true;
        };
        let Some(shown) = &self.shown else {
            return validation.admits(&ProvenChain::default());
        };
        let mut passed = shown.passed.lock();
        if Arc::ptr_eq(&passed, validation) {
            return true;
        }
        let is_admitted = validation.admits(&shown.chain);
        if is_admitted {
            *passed = Arc::clone(validation);
        }
        is_admitted
    }
}
