//! Owns TLS termination of the listeners that are held: which certificates they show, how they validate clients, and
//! which session tickets they accept.

use std::sync::Arc;

use super::State;
use super::clients::{AuthId, ClientAuth, ClientMode};
use super::parse::TerminateSpec;
use super::tls::{HeldCertificate, ListenerTicketer};
use crate::listener::{Mode, NotServing};
use crate::slot_map::Slot;
use crate::upstream::ClientCertificate;
use crate::validation::ClientValidation;

/// Cost of the signatures on the certificates that a client may show, in units of a handshake with an ECDSA key on P-256.
const UNITS_OF_VALIDATION: u8 = 4;

/// Trust bundles by which clients are validated, and what happens to clients without a valid certificate.
type Validation = (Box<[Arc<str>]>, ClientMode);

/// TLS termination of one listener.
pub(super) struct HeldTerminate {
    /// In order of preference.
    pub(super) certificates: Box<[Arc<str>]>,
    /// How clients are validated. It is in a box, because most listeners do not validate clients.
    pub(super) validation: Option<Box<Validation>>,
    tickets: Tickets,
}

/// Session tickets of a listener.
#[derive(Clone)]
struct Tickets {
    ticketer: Arc<ListenerTicketer>,
    /// UIDs of the Secrets whose certificates the listener showed when tickets were given out.
    secrets: Box<[Arc<str>]>,
    /// How clients are validated. It is in a box, because most listeners do not validate clients.
    clients: Option<Box<Clients>>,
}

/// The client validation of a listener.
#[derive(Clone)]
struct Clients {
    /// The one in force when tickets were given out.
    auth: AuthId,
    /// The present one. `None` if there is nothing to validate by.
    validation: Option<Arc<ClientValidation>>,
}

impl HeldTerminate {
    /// How clients are validated, if they are and can be.
    pub(super) fn client_validation(&self) -> Option<Arc<ClientValidation>> {
        self.tickets.clients.as_ref()?.validation.clone()
    }
}

impl State {
    /// Holds the TLS settings of a listener. `old` are its former ones, if the listener still belongs to the same
    /// tenant.
    pub(super) fn hold_terminate(
        &mut self,
        listener: &Arc<str>,
        spec: TerminateSpec,
        old: Option<HeldTerminate>,
    ) -> HeldTerminate {
        let names = spec.certificates.iter();
        let certificates: Box<[Arc<str>]> = names.map(|name| self.certificate_name(name)).collect();
        let validation = spec.validation.map(|spec| {
            let names = spec.bundles.iter();
            let bundles = names.map(|name| self.names.intern(name)).collect();
            Box::new((bundles, spec.mode))
        });
        for name in &certificates {
            self.certificate_users.add(name, listener);
        }
        for name in validation.iter().flat_map(|of| &of.0) {
            self.client_trust.add(name, listener);
        }
        let none = || Tickets {
            ticketer: self.configs.ticketer(None),
            secrets: Box::default(),
            clients: None,
        };
        let tickets = old.map_or_else(none, |old| old.tickets);
        HeldTerminate {
            certificates,
            validation,
            tickets,
        }
    }

    /// Removes the listener from the users of its certificates and trust bundles.
    pub(super) fn release_terminate(&mut self, listener: &Arc<str>, old: &HeldTerminate) {
        for name in &old.certificates {
            self.certificate_users.remove(name, listener);
        }
        for name in old.validation.iter().flat_map(|of| &of.0) {
            self.client_trust.remove(name, listener);
        }
    }

    /// The effective mode of a listener, with the certificates and trust bundles that are held now.
    pub(super) fn mode(&mut self, kind: &Mode, terminate: Option<&mut HeldTerminate>) -> Mode {
        let Some(terminate) = terminate else {
            return kind.clone();
        };
        match kind {
            Mode::Passthrough | Mode::Http | Mode::Tcp | Mode::Udp => kind.clone(),
            Mode::Terminate(_) => Mode::Terminate(self.server_config(terminate, &[])),
            Mode::Https(_) => Mode::Https(self.server_config(terminate, &crate::http::ALPN)),
        }
    }

    /// The cost of a handshake with a listener, in units of the gate: that with the most expensive of its certificates, and
    /// that of the client's certificates where they are validated.
    pub(super) fn handshake_units(&self, terminate: Option<&HeldTerminate>) -> u8 {
        let names = terminate.iter().flat_map(|of| &of.certificates);
        let held = names.filter_map(|name| self.certificates.get(name));
        let own = held.map(|held| held.units).max().unwrap_or(1);
        let validates = terminate.is_some_and(|of| of.validation.is_some());
        own.saturating_add(if validates { UNITS_OF_VALIDATION } else { 0 })
    }

    fn server_config(
        &mut self,
        terminate: &mut HeldTerminate,
        alpn: &[&[u8]],
    ) -> Result<Arc<rustls::ServerConfig>, NotServing> {
        let auth = match terminate.validation.as_deref() {
            None => None,
            Some((bundles, mode)) => {
                let trust = self.trust(bundles).ok_or(NotServing::NoTrustBundle)?;
                Some(ClientAuth::new(trust, *mode))
            }
        };
        let id = auth.as_ref().map(ClientAuth::id);
        // A client does not prove again that it has the key when it resumes a session, and nothing may be proven there if
        // the validation was another one. So if the validation changes, the tickets must change as well.
        if terminate.tickets.clients.as_ref().map(|of| of.auth) != id {
            let clients = auth.map(|auth| Clients {
                auth: auth.id(),
                validation: self.configs.validation(&auth).map(Arc::new),
            });
            let validation = clients.as_ref().and_then(|of| of.validation.clone());
            terminate.tickets = Tickets {
                ticketer: self.configs.ticketer(validation),
                secrets: Box::default(),
                clients: clients.map(Box::new),
            };
        }
        let validation = terminate.client_validation();
        if id.is_some() && validation.is_none() {
            return Err(NotServing::NoTrustBundle);
        }
        let names = terminate.certificates.iter();
        let held = names.filter_map(|name| self.certificates.get(name));
        let held: Vec<&HeldCertificate> = held.collect();
        if held.is_empty() {
            return Err(NotServing::NoCertificate);
        }
        // In a resumed session the client sees no certificate, and goes on with what it saw first. If another Secret has
        // taken the place of that one, perhaps of another team in a namespace of the same name, it has to look again.
        let uids = held.iter().map(|held| Arc::clone(held.secret_uid()));
        let secrets: Box<[Arc<str>]> = uids.collect();
        let tickets = &mut terminate.tickets;
        if tickets.secrets.iter().any(|uid| !secrets.contains(uid)) {
            tickets.ticketer = self.configs.ticketer(validation.clone());
        }
        tickets.secrets = secrets;
        self.work.tls_configs += 1;
        let validation = validation.as_deref();
        Ok(self
            .configs
            .build(&held, &tickets.ticketer, alpn, validation))
    }

    /// The slot of a client certificate that is shown to backends.
    pub(super) fn shown_slot(&mut self, name: &str) -> Arc<Slot<ClientCertificate>> {
        if let Some(known) = self.shown.get(name) {
            return Arc::clone(known);
        }
        let slot = Arc::new(self.shown_slots.allocate());
        self.shown
            .insert(self.names.intern(name), Arc::clone(&slot));
        let held = self.certificates.get(name);
        let certified = held.map(|held| Arc::clone(held.certified()));
        let shown = certified.map(|certified| Arc::new(ClientCertificate::new(certified)));
        self.snapshot.set_client_certificate(*slot, shown);
        slot
    }

    /// Puts a new version of a certificate into its slot, if it is one that is shown to backends.
    pub(super) fn show(&mut self, name: &str, certificate: Option<&HeldCertificate>) {
        let Some(slot) = self.shown.get(name) else {
            return;
        };
        let shown = certificate.map(|held| ClientCertificate::new(Arc::clone(held.certified())));
        self.snapshot
            .set_client_certificate(**slot, shown.map(Arc::new));
    }

    /// Removes slots that no Gateway uses any more. There is at most one for each Gateway, so a look at all of them is
    /// cheap.
    pub(super) fn sweep_shown(&mut self) {
        let unused = |slot: &Arc<Slot<ClientCertificate>>| Arc::strong_count(slot) == 1;
        for (_, slot) in self.shown.extract_if(|_, slot| unused(slot)) {
            self.snapshot.set_client_certificate(*slot, None);
            self.shown_slots.free(*slot);
        }
    }
}
