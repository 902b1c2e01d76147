//! The annotation by which a Service says that its ports expect PROXY headers: its values, and the verdict about a value
//! that cannot be read.

use std::fmt;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::key::ObjectName;
use crate::protocol::Port;
use crate::service::words;

/// The annotation of a Service by which its ports expect a PROXY header. The value is a version for all TCP ports
/// (`v2`), or versions for some of them by name or number (`imap=v1,5432=v2`).
pub const ANNOTATION: &str = "vestibule.dev/send-proxy-protocol";

/// The most bytes that a value of the annotation may have. Each of its entries is looked for among all ports of the
/// Service, and a namespace can write Services with very many of them.
pub const MAX_VALUE: usize = 4096;

words! {
    /// A version of the PROXY protocol, as the annotation names it.
    HeaderVersion {
        /// A line of text.
        V1 = "v1",
        /// A binary header, which has room for a server name.
        V2 = "v2",
    }
}

/// The header that a port of a Service expects first on each connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SendProxy {
    /// No PROXY header.
    #[default]
    Off,
    /// A PROXY header of this version.
    Header(HeaderVersion),
    /// This is not known, because the annotation cannot be read. So the port is no backend. If the port expects a
    /// header and gets none, each client can send one of its own and name anybody. If the port expects none and gets
    /// one, it takes that for bytes of the client.
    Unreadable(AnnotationFault),
}

/// The fault of a value of the annotation. It says nothing of what the value contains, because a status may be read
/// by others than the Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnnotationFault {
    /// It has more bytes than [`MAX_VALUE`].
    TooLong,
    /// It is neither a version nor a list of ports with versions.
    Form,
    /// An entry has a version that does not exist.
    Version,
    /// The Service has no TCP port with the name or number of an entry.
    NoSuchPort,
    /// An entry fits two ports, for instance as the number of one and the name of the other one.
    Ambiguous,
    /// Two entries are about one port.
    Twice,
}

/// A clause about the value, which is "it".
impl fmt::Display for AnnotationFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "it has more than {MAX_VALUE} bytes"),
            Self::Form => f.write_str("it is neither v1 or v2 nor a list of ports with versions"),
            Self::Version => f.write_str("an entry has another version than v1 and v2"),
            Self::NoSuchPort => f.write_str("an entry names no TCP port of the Service"),
            Self::Ambiguous => f.write_str("an entry fits two ports, by number or by name"),
            Self::Twice => f.write_str("two entries name the same port"),
        }
    }
}

impl SendProxy {
    /// The version of the header that the port expects, if it does.
    #[must_use]
    pub fn version(self) -> Option<HeaderVersion> {
        match self {
            Self::Header(version) => Some(version),
            Self::Off | Self::Unreadable(_) => None,
        }
    }

    /// Why the port cannot be a backend, if so. `field` is where a route refers to `service`.
    #[must_use]
    pub fn refusal(self, service: &ObjectName, port: Port, field: &str) -> Option<Finding> {
        let Self::Unreadable(fault) = self else {
            return None;
        };
        Some(Finding::refused(
            Reason::InvalidAnnotation,
            field,
            format!(
                "the proxies do not connect to port {port} of Service {service}, because its annotation {ANNOTATION} cannot be read: {fault}"
            ),
            format!(
                "have the annotation say v1 or v2 for all TCP ports, or name TCP ports of the Service, each once, as in imap=v1,5432=v2, in at most {MAX_VALUE} bytes"
            ),
        ))
    }
}
