//! The configuration stream between operator and proxy: its messages, its content hashes, and the
//! proxy's end of it. This crate knows neither Kubernetes nor listening sockets.
//!
//! The proxy's end is [`Held`], a pure state machine that applies batches through [`Apply`].
//! [`client::Client`] drives it over gRPC, and [`recording::Reader`] drives it from a file. The
//! operator's end is in its `publish` module.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod client;
mod encoded;
mod hash;
mod held;
mod key;
pub mod limits;
pub mod recording;

pub use encoded::{Encoded, Invalid};
pub use hash::{ContentHash, Digest};
pub use held::{Apply, Change, Held, ProxyIdentity, Refusal, UNKNOWN_RESOURCE, decode_and_hold};
pub use proto::{Batch, Generation, Reject, Resource, ResourceKey, ResourceKind};

/// The messages of `proto/stream.proto`.
#[allow(
    missing_docs,
    clippy::pedantic,
    // The proxy decodes a resource and takes it apart at once, so no values stay in this form.
    clippy::large_enum_variant,
    unreachable_pub,
    unused_qualifications,
    rustdoc::invalid_html_tags
)]
pub mod proto {
    tonic::include_proto!("vestibule.stream.v1");

    // The generated code has no `Debug` for these, because a derived one would print the private
    // key.
    impl std::fmt::Debug for Certificate {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Certificate")
                .field("chain", &self.chain.len())
                .field("private_key", &"<redacted>")
                .finish()
        }
    }

    impl Drop for Certificate {
        /// Wipes the key, so that it does not outlive its message in memory.
        fn drop(&mut self) {
            zeroize::Zeroize::zeroize(&mut self.private_key);
        }
    }

    impl std::fmt::Debug for TlsAlpn01 {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("TlsAlpn01")
                .field("certificate", &self.certificate.len())
                .field("private_key", &"<redacted>")
                .finish()
        }
    }

    impl Drop for TlsAlpn01 {
        /// Wipes the key, so that it does not outlive its message in memory.
        fn drop(&mut self) {
            zeroize::Zeroize::zeroize(&mut self.private_key);
        }
    }

    impl std::fmt::Debug for Http01 {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Http01")
                .field("token", &self.token)
                .field("key_authorization", &"<redacted>")
                .finish()
        }
    }

    impl std::fmt::Debug for SessionKey {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("SessionKey(<redacted>)")
        }
    }

    impl Drop for SessionKey {
        /// Wipes the key, so that it does not outlive its message in memory.
        fn drop(&mut self) {
            zeroize::Zeroize::zeroize(&mut self.key);
        }
    }

    impl std::fmt::Debug for Upsert {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Upsert")
                .field("kind", &self.kind())
                .field("resource", &format_args!("{} bytes", self.resource.len()))
                .finish()
        }
    }
}

/// Highest version of the protocol that this release speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// Lowest version of the protocol that this release speaks.
pub const MIN_PROTOCOL_VERSION: u32 = 1;

/// The version to speak with a peer whose highest is `theirs`. It is the lower of both, or `None`
/// if this release no longer speaks that one. A release talks to the one before it and the one
/// after it.
#[must_use]
pub fn negotiate(theirs: u32) -> Option<u32> {
    let common = theirs.min(PROTOCOL_VERSION);
    (common >= MIN_PROTOCOL_VERSION).then_some(common)
}
