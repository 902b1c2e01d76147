//! The reasons why connections end, in the words of metrics, logs and tests.

macro_rules! close_reasons {
    ($($(#[$doc:meta])* $variant:ident),+ $(,)?) => {
        /// Why a connection ended. The set is closed, so that the reason can be a metric label.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CloseReason { $($(#[$doc])* $variant),+ }

        impl CloseReason {
            /// Every reason, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word for metrics and logs.
            #[must_use]
            pub fn reason(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }
    };
}

close_reasons! {
    /// Both directions were closed in order, the client's first.
    ClientClosed,
    /// Both directions were closed in order, the backend's first.
    BackendClosed,
    /// Both directions were closed, but a terminated client left without `close_notify`.
    ClientTruncated,
    /// The client's connection broke.
    ClientReset,
    /// The backend's connection broke.
    BackendReset,
    /// The client closed before it sent a byte.
    ClientSilent,
    /// The client closed within its hello.
    HelloIncomplete,
    /// The first bytes are not TLS.
    NotTls,
    /// An SSL 2.0 hello.
    SslV2,
    /// The hello did not come within the deadline.
    HelloTimeout,
    /// The hello is longer than the limit.
    HelloTooLarge,
    /// The hello cannot be decoded.
    MalformedHello,
    /// The hello has no server name, and no listener serves connections without one.
    NoServerName,
    /// No listener has a hostname that matches, or the server name is not a hostname.
    UnknownServerName,
    /// The port has no listener any more.
    NoListener,
    /// The listener selected has no route for the name.
    NoRoute,
    /// A reference of the route is invalid and its share of connections closed.
    InvalidBackend,
    /// The backend has no endpoints.
    NoEndpoints,
    /// The backend could not be connected to.
    BackendConnectFailed,
    /// This proxy has no file descriptor or port left for a connection to a backend. No endpoint is to blame.
    OutOfSockets,
    /// The backend did not accept within the deadline.
    BackendConnectTimeout,
    /// The backend's endpoint is a socket of this proxy itself. No connection was made.
    BackendLoop,
    /// The backend needs TLS, and its policy is not valid or its trust bundles are not held. No connection was made.
    BackendTlsInvalid,
    /// The TLS handshake with the backend failed, for instance because its certificate is not one that the policy
    /// allows.
    BackendTlsFailed,
    /// Both directions were closed, but the backend left without `close_notify`.
    BackendTruncated,
    /// The listener has no usable certificate.
    NoCertificate,
    /// The listener validates its clients, and holds no CA certificate to validate them by.
    NoTrustBundle,
    /// The client was a CA that checked a hostname, and got its answer.
    ChallengeAnswered,
    /// The client was a CA that checks a hostname, and there is no challenge for this hostname.
    NoChallenge,
    /// The TLS handshake failed.
    HandshakeFailed,
    /// The TLS handshake did not end within the deadline.
    HandshakeTimeout,
    /// The head of a request was not complete within the deadline.
    RequestTimeout,
    /// For too long, the client neither sent more of a request nor read more of a response.
    ClientStalled,
    /// There was no request for too long.
    IdleTimeout,
    /// There was no byte in a tunnel, in either direction, for too long.
    TunnelIdleTimeout,
    /// The configuration in force no longer serves a tunnel: its listener or route is gone, its name or port belongs to
    /// another namespace, or its client is not admitted any more. Or it no longer serves an HTTPS connection as it began:
    /// its client is not admitted any more, or a request of it was refused because a new connection would be another one.
    /// Or the client resumed a session, and does not pass the client validation any more.
    NoLongerServed,
    /// A response took longer than its limit after its head was sent, so an HTTP/1.1 connection could not continue.
    AnswerTimeout,
    /// The connection reached its maximum age.
    MaxConnectionAge,
    /// The client broke the HTTP protocol.
    HttpError,
    /// The client of an HTTP/2 connection cancelled too many requests.
    TooManyCancels,
    /// The client of an HTTP/2 connection sent too many frames that serve no request.
    TooManyFrames,
    /// A terminated client broke the TLS protocol after the handshake.
    TlsError,
    /// A terminated connection encrypted as many records as its keys allow.
    KeysExhausted,
    /// A defect of this proxy: the connection's task panicked.
    Internal,
    /// This proxy ended, and its time to drain was over.
    Drained,
    /// The peer is not trusted, and it sent a PROXY header, or only trusted peers are accepted here.
    UntrustedPeer,
    /// The connection has to begin with a PROXY header, and does not.
    ProxyHeaderMissing,
    /// The PROXY header cannot be read, or is longer than the limit.
    ProxyHeaderMalformed,
    /// There are too many connections that have not yet selected a listener, in total or from one source.
    Limit,
    /// The tenant has as many connections as it may have. In HTTP that can also be the tenant of a later request.
    TenantLimit,
    /// The source opened more connections in a second than it may.
    SourceRate,
    /// Too many TLS handshakes of the tenant waited at the gate, and this one had waited longest.
    TooManyHandshakes,
    /// The connection was idle while this proxy was short of memory, open files or connections.
    Overload,
}
