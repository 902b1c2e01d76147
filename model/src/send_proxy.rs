//! What a Service says of the PROXY headers that its ports expect: the annotation, its values, and the verdict about a
//! value that cannot be read.

use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::ObjectName;
use crate::protocol::Port;
use crate::service::words;

/// The annotation of a Service by which its ports expect a PROXY header. The value is a version for all TCP ports
/// (`v2`), or versions for some of them by name or number (`imap=v1,5432=v2`).
pub const ANNOTATION: &str = "vestibule.dev/send-proxy-protocol";

words! {
    /// A version of the PROXY protocol, as the annotation names it.
    HeaderVersion {
        /// A line of text.
        V1 = "v1",
        /// A binary header, which has room for a server name.
        V2 = "v2",
    }
}

/// What a port of a Service expects first on each connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SendProxy {
    /// No PROXY header.
    #[default]
    Off,
    /// A PROXY header of this version.
    Header(HeaderVersion),
    /// This is not known, because the annotation cannot be read. So the port is no backend: without the header that
    /// it expects, it would take nothing, and with one that it does not expect, it would take that for the client's
    /// bytes.
    Unreadable,
}

impl SendProxy {
    /// The version of the header that the port expects, if it does.
    #[must_use]
    pub fn version(self) -> Option<HeaderVersion> {
        match self {
            Self::Header(version) => Some(version),
            Self::Off | Self::Unreadable => None,
        }
    }

    /// Why the port cannot be a backend, if so. `field` is where a route refers to `service`.
    #[must_use]
    pub fn refusal(self, service: &ObjectName, port: Port, field: &str) -> Option<Finding> {
        (self == Self::Unreadable).then(|| {
            Finding::refused(
                Reason::InvalidAnnotation,
                field,
                format!(
                    "the proxies do not connect to port {port} of Service {service}, because its annotation {ANNOTATION} cannot be read"
                ),
                "have the annotation say v1 or v2 for all TCP ports, or name TCP ports of the Service, each once, as in imap=v1,5432=v2",
            )
        })
    }
}
