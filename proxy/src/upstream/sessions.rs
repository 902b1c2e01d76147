//! Owns the TLS sessions with backends that can be resumed. A backend decides how large a session is: a ticket has up to
//! 64 KiB, and the backend's certificates are kept with it. So the number of sessions is bounded, for each configuration
//! and for all backends together, of which each namespace has a share. A session for which there is no place is not
//! kept, and the next handshake is a full one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls_pki_types::ServerName;

use crate::shares::Shares;

/// Most sessions of all backends together.
const IN_ALL: usize = 1024;
/// Most sessions of TLS 1.3 that one configuration keeps. Each is used once, and a handshake brings new ones.
const TICKETS: usize = 2;

/// The places for sessions.
#[derive(Clone)]
pub(super) struct SessionPlaces(Arc<Mutex<Shares>>);

impl SessionPlaces {
    pub(super) fn new() -> Self {
        Self::of(IN_ALL)
    }

    pub(super) fn of(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Shares::new(most))))
    }

    fn take(&self, namespace: &Arc<str>) -> Option<SessionPlace> {
        let taken = self.0.lock().take(namespace, 1);
        taken.then(|| SessionPlace {
            namespace: Arc::clone(namespace),
            places: self.clone(),
        })
    }
}

/// One of the places for sessions. It becomes free when this is dropped.
struct SessionPlace {
    namespace: Arc<str>,
    places: SessionPlaces,
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        self.places.0.lock().give_back(&self.namespace, 1);
    }
}

/// The sessions of one configuration. It is for one backend, so all of them have the same server name.
pub(super) struct Sessions {
    /// The namespace of the backend.
    namespace: Arc<str>,
    places: SessionPlaces,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    group: Option<NamedGroup>,
    tls12: Option<(Tls12ClientSessionValue, SessionPlace)>,
    /// The newest is the last one.
    tls13: VecDeque<(Tls13ClientSessionValue, SessionPlace)>,
}

impl Sessions {
    pub(super) fn new(namespace: &Arc<str>, places: &SessionPlaces) -> Self {
        Self {
            namespace: Arc::clone(namespace),
            places: places.clone(),
            kept: Mutex::default(),
        }
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.kept.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.kept.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        let mut kept = self.kept.lock();
        // The old one goes first, so that its place can be taken.
        kept.tls12 = None;
        kept.tls12 = self
            .places
            .take(&self.namespace)
            .map(|place| (value, place));
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        let kept = self.kept.lock();
        kept.tls12.as_ref().map(|(session, _)| session.clone())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.kept.lock().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut kept = self.kept.lock();
        if kept.tls13.len() >= TICKETS {
            kept.tls13.pop_front();
        }
        if let Some(place) = self.places.take(&self.namespace) {
            kept.tls13.push_back((value, place));
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let (session, _place) = self.kept.lock().tls13.pop_back()?;
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use rustls::client::Resumption;
    use rustls::version::{TLS12, TLS13};
    use rustls::{
        ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig,
        ServerConnection, SupportedProtocolVersion,
    };
    use rustls_pki_types::PrivateKeyDer;

    use super::*;
    use crate::in_memory::exchange;

    /// A backend that gives out ten tickets, and what its clients need.
    struct Rig {
        server: Arc<ServerConfig>,
        roots: RootCertStore,
        version: &'static SupportedProtocolVersion,
        places: SessionPlaces,
    }

    impl Rig {
        fn new(version: &'static SupportedProtocolVersion, places: usize) -> Self {
            let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
            let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let mut server = ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)
                .unwrap();
            server.send_tls13_tickets = 10;
            let mut roots = RootCertStore::empty();
            roots.add(made.cert.der().clone()).unwrap();
            Self {
                server: Arc::new(server),
                roots,
                version,
                places: SessionPlaces::of(places),
            }
        }

        fn client(&self, namespace: &str) -> (Arc<ClientConfig>, Arc<Sessions>) {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let mut config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[self.version])
                .unwrap()
                .with_root_certificates(self.roots.clone())
                .with_no_client_auth();
            let sessions = Arc::new(Sessions::new(&namespace.into(), &self.places));
            config.resumption = Resumption::store(Arc::clone(&sessions) as _);
            (Arc::new(config), sessions)
        }

        /// Whether a handshake resumes a session.
        fn resumes(&self, config: &Arc<ClientConfig>) -> bool {
            let name = ServerName::try_from("a.test").unwrap();
            let mut client = ClientConnection::new(Arc::clone(config), name).unwrap();
            let mut server = ServerConnection::new(Arc::clone(&self.server)).unwrap();
            for _ in 0..4 {
                exchange(&mut client, &mut server);
            }
            client.handshake_kind() == Some(HandshakeKind::Resumed)
        }
    }

    #[test]
    fn a_backend_has_few_sessions_kept_and_they_are_resumed() {
        for (version, kept) in [(&TLS13, TICKETS), (&TLS12, 1)] {
            let rig = Rig::new(version, 100);
            let (config, sessions) = rig.client("a");
            assert!(!rig.resumes(&config));
            for _ in 0..5 {
                assert!(rig.resumes(&config));
                assert_eq!(rig.places.0.lock().used(), kept);
            }
            drop((config, sessions));
            assert_eq!(rig.places.0.lock().used(), 0);
        }
    }

    #[test]
    fn sessions_of_a_namespace_leave_places_for_others() {
        let rig = Rig::new(&TLS13, 8);
        let clients: Vec<_> = (0..10).map(|_| rig.client("a").0).collect();
        let resumes = |of: &Arc<ClientConfig>| {
            rig.resumes(of);
            rig.resumes(of)
        };
        // Half of the places, which is enough for two configurations.
        assert_eq!(clients.iter().filter(|client| resumes(client)).count(), 2);
        assert!(resumes(&rig.client("b").0));
    }
}
