//! Listeners as connections see them, and the mode in which each serves connections.

use std::fmt;
use std::sync::Arc;

use vestibule_model::client_address::ClientAddress;

use crate::bounds::Overrides;
use crate::close_reason::CloseReason;
use crate::limits::HttpOverrides;
use crate::quota::TenantQuota;
use crate::slot_map::Slot;
use crate::tenants::TenantUsage;
use crate::upstream::ClientCertificate;
use crate::validation::ClientValidation;

/// The treatment of a connection by the listener that was selected for it.
#[derive(Clone)]
pub enum Mode {
    /// TLS bytes go to the backend unchanged.
    Passthrough,
    /// TLS is terminated. If that is not possible, the connection is closed.
    Terminate(Result<Arc<rustls::ServerConfig>, NotServing>),
    /// HTTP in plaintext. The listener is selected by the host of each request.
    Http,
    /// HTTP within TLS.
    Https(Result<Arc<rustls::ServerConfig>, NotServing>),
    /// All bytes go to the backend unchanged. The listener is selected by port alone.
    Tcp,
    /// The same for datagrams.
    Udp,
}

/// Why a listener that terminates TLS closes its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotServing {
    /// No usable certificate is held.
    NoCertificate,
    /// Clients have to be validated, and there is no trust bundle for that.
    NoTrustBundle,
}

impl Mode {
    /// The layer with which a connection has to begin.
    #[must_use]
    pub fn layer(&self) -> Layer {
        match self {
            Self::Http => Layer::Plain,
            Self::Passthrough | Self::Terminate(_) | Self::Https(_) => Layer::Tls,
            Self::Tcp | Self::Udp => Layer::Bytes,
        }
    }

    /// The name of the mode, whether or not it can serve.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Passthrough => "Passthrough",
            Self::Terminate(_) => "Terminate",
            Self::Http => "Http",
            Self::Https(_) => "Https",
            Self::Tcp => "Tcp",
            Self::Udp => "Udp",
        }
    }

    /// Whether connections are served. If not, they are closed because something is missing.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        !matches!(self, Self::Terminate(Err(_)) | Self::Https(Err(_)))
    }
}

/// The layer with which connections to a listener begin. All listeners of a bind have the same layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// A ClientHello.
    #[default]
    Tls,
    /// An HTTP request.
    Plain,
    /// Any bytes. The client may also wait until the backend has sent something.
    Bytes,
}

impl Layer {
    /// Every layer.
    pub const ALL: [Self; 3] = [Self::Tls, Self::Plain, Self::Bytes];
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "TLS",
            Self::Plain => "plaintext HTTP",
            Self::Bytes => "TCP without names",
        })
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        f.write_str(if self.is_serving() {
            ""
        } else {
            " (not serving)"
        })
    }
}

/// A listener as connections see it. It is immutable: an edit makes a new one, and connections keep the version with
/// which they began.
#[derive(Debug, Clone)]
pub struct Listener {
    /// `<Gateway|ListenerSet>/<namespace>/<object>/<listener>`.
    pub key: Arc<str>,
    /// `<namespace>/<name>` of the Gateway.
    pub gateway: Arc<str>,
    /// Namespace of the object that declares the listener.
    pub tenant: Arc<str>,
    /// The port to which clients connect. That of the bind may be another one.
    pub port: u16,
    /// How it serves a connection.
    pub mode: Mode,
    /// The settings by which it serves.
    pub(crate) settings: ListenerSettings,
    /// Cost of a handshake, if TLS is terminated, in units of one with an ECDSA key on P-256.
    pub(crate) handshake_units: u8,
    /// How it validates its clients, if it does so and is able to.
    pub(crate) validation: Option<Arc<ClientValidation>>,
    /// Usage counters of the listener's tenant on its Gateway. The tenant's other listeners there share them.
    pub usage: Arc<TenantUsage>,
    /// The quota for connections with names that nobody owns.
    pub(crate) account: Arc<TenantQuota>,
}

/// The settings by which a listener serves.
#[derive(Debug, Clone)]
pub(crate) enum ListenerSettings {
    /// Those of the release, because its Gateway has none.
    OfRelease,
    /// Those of its Gateway, which are not held (yet). Until they are, every connection is closed.
    Missing,
    /// Those of its Gateway.
    OfGateway(Arc<GatewaySettings>),
}

impl ListenerSettings {
    /// Whether the listener serves by the settings of its Gateway and by no others.
    pub(crate) fn are_needed(&self) -> bool {
        !matches!(self, Self::OfRelease)
    }

    /// The settings of the Gateway, if they are held.
    pub(crate) fn of_gateway(&self) -> Option<&GatewaySettings> {
        match self {
            Self::OfRelease | Self::Missing => None,
            Self::OfGateway(settings) => Some(settings),
        }
    }
}

/// Settings of a Gateway for all of its listeners, which share one allocation.
#[derive(Debug)]
pub(crate) struct GatewaySettings {
    /// The slot of the client certificate for backends over TLS; `None` if there is none. It is reference-counted, so
    /// that the slot is freed with the last settings that name the certificate.
    pub(crate) backend_certificate: Option<Arc<Slot<ClientCertificate>>>,
    /// Whether the client certificate is shown only to backends that name the Gateway.
    pub(crate) selective: bool,
    /// Limits that replace those of the release.
    pub(crate) overrides: Option<Overrides>,
    /// How the addresses of clients are found; `None`: from their connections.
    pub(crate) client_address: Option<Arc<ClientAddress>>,
    /// The treatment of ambiguous requests, where it differs from that of the release.
    pub(crate) http: HttpOverrides,
}

impl Listener {
    /// Limits of its Gateway that replace those of the release.
    pub(crate) fn overrides(&self) -> Option<&Overrides> {
        self.settings.of_gateway()?.overrides.as_ref()
    }

    /// Whether it serves nothing until the settings of its Gateway come.
    pub(crate) fn lacks_settings(&self) -> bool {
        matches!(self.settings, ListenerSettings::Missing)
    }

    /// Whether the Gateway itself declares it, and not a ListenerSet.
    pub(crate) fn is_own(&self) -> bool {
        self.key.starts_with("Gateway/")
    }
}

impl From<NotServing> for CloseReason {
    fn from(reason: NotServing) -> Self {
        match reason {
            NotServing::NoCertificate => Self::NoCertificate,
            NotServing::NoTrustBundle => Self::NoTrustBundle,
        }
    }
}
