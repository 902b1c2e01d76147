//! The configuration stream between operator and proxy: its messages, content hashes, and the pure
//! state machines of either end. Knows neither Kubernetes nor sockets.

/// The messages of `proto/stream.proto`.
#[allow(missing_docs, clippy::pedantic, unreachable_pub)]
pub mod proto {
    tonic::include_proto!("vestibule.stream.v1");

    // The generated code has no Debug for it: a derived one would print the private key.
    impl std::fmt::Debug for Certificate {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Certificate")
                .field("chain", &self.chain.len())
                .field("private_key", &"<redacted>")
                .finish()
        }
    }
}

/// Version of the protocol spoken by this release.
pub const PROTOCOL_VERSION: u32 = 1;
