//! Why a connection ended: the words that metrics, logs and tests have for it.

/// Why a connection ended. Closed, so that it can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
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
    /// The hello has no server name, and nothing serves such.
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
    /// The backend did not accept within the deadline.
    BackendConnectTimeout,
    /// The backend's endpoint is a socket of this proxy itself. No connection was made.
    BackendLoop,
    /// The backend is to be spoken to over TLS, and its policy is not valid or what it needs is not
    /// held. No connection was made.
    BackendTlsInvalid,
    /// The TLS handshake with the backend failed: it is not who the policy wants, for instance.
    BackendTlsFailed,
    /// Both directions were closed, but the backend left without `close_notify`.
    BackendTruncated,
    /// The listener has no usable certificate.
    NoCertificate,
    /// The listener validates its clients, and holds no certificate to do it by.
    NoTrustBundle,
    /// The client was a CA that checked a hostname, and got its answer.
    ChallengeAnswered,
    /// The client was a CA that checks a hostname of which this listener knows no challenge.
    NoChallenge,
    /// The TLS handshake failed.
    HandshakeFailed,
    /// The TLS handshake did not end within the deadline.
    HandshakeTimeout,
    /// A request's head did not come to its end within the deadline.
    RequestTimeout,
    /// The client neither sent the rest of a request nor took the rest of an answer for too long.
    ClientStalled,
    /// No request came for too long.
    IdleTimeout,
    /// Nothing came through a tunnel, from either side, for too long.
    TunnelIdleTimeout,
    /// An answer took longer than a limit when its head was sent already, so that HTTP/1.1 could not go on.
    AnswerTimeout,
    /// The connection was too old.
    MaxConnectionAge,
    /// The client broke the HTTP protocol.
    HttpError,
    /// The client of an HTTP/2 connection cancelled too many requests.
    TooManyCancels,
    /// The client of an HTTP/2 connection sent too many frames that ask for nothing.
    TooManyFrames,
    /// A terminated client broke the TLS protocol after the handshake.
    TlsError,
    /// A terminated connection protected as many records as its keys allow.
    KeysExhausted,
    /// A defect of this proxy: the connection's task panicked.
    Internal,
    /// This proxy ended, and its time to drain was over.
    Drained,
    /// The peer may not say who the client is, and sent a PROXY header, or nobody but who may is let in.
    UntrustedPeer,
    /// A PROXY header has to come first, and did not.
    ProxyHeaderMissing,
    /// The PROXY header cannot be read, or is longer than the limit.
    ProxyHeaderMalformed,
    /// More connections than the limit, or than one source may have, of which it is not known what they are for.
    Limit,
    /// The tenant has all connections that it may have.
    TenantLimit,
    /// The source opened more connections in a second than one may.
    SourceRate,
    /// Too many TLS handshakes of the tenant waited for their turn, and this one had waited longest.
    TooManyHandshakes,
    /// The connection was idle while this proxy was short of memory, open files or connections.
    Overload,
}

impl CloseReason {
    /// The word for metrics and logs.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::ClientClosed => "ClientClosed",
            Self::BackendClosed => "BackendClosed",
            Self::ClientTruncated => "ClientTruncated",
            Self::ClientReset => "ClientReset",
            Self::BackendReset => "BackendReset",
            Self::ClientSilent => "ClientSilent",
            Self::HelloIncomplete => "HelloIncomplete",
            Self::NotTls => "NotTls",
            Self::SslV2 => "SslV2",
            Self::HelloTimeout => "HelloTimeout",
            Self::HelloTooLarge => "HelloTooLarge",
            Self::MalformedHello => "MalformedHello",
            Self::NoServerName => "NoServerName",
            Self::UnknownServerName => "UnknownServerName",
            Self::NoListener => "NoListener",
            Self::NoRoute => "NoRoute",
            Self::InvalidBackend => "InvalidBackend",
            Self::NoEndpoints => "NoEndpoints",
            Self::BackendConnectFailed => "BackendConnectFailed",
            Self::BackendConnectTimeout => "BackendConnectTimeout",
            Self::BackendLoop => "BackendLoop",
            Self::BackendTlsInvalid => "BackendTlsInvalid",
            Self::BackendTlsFailed => "BackendTlsFailed",
            Self::BackendTruncated => "BackendTruncated",
            Self::NoCertificate => "NoCertificate",
            Self::NoTrustBundle => "NoTrustBundle",
            Self::ChallengeAnswered => "ChallengeAnswered",
            Self::NoChallenge => "NoChallenge",
            Self::HandshakeFailed => "HandshakeFailed",
            Self::HandshakeTimeout => "HandshakeTimeout",
            Self::RequestTimeout => "RequestTimeout",
            Self::ClientStalled => "ClientStalled",
            Self::IdleTimeout => "IdleTimeout",
            Self::TunnelIdleTimeout => "TunnelIdleTimeout",
            Self::AnswerTimeout => "AnswerTimeout",
            Self::MaxConnectionAge => "MaxConnectionAge",
            Self::HttpError => "HttpError",
            Self::TooManyCancels => "TooManyCancels",
            Self::TooManyFrames => "TooManyFrames",
            Self::TlsError => "TlsError",
            Self::KeysExhausted => "KeysExhausted",
            Self::Internal => "Internal",
            Self::Drained => "Drained",
            Self::UntrustedPeer => "UntrustedPeer",
            Self::ProxyHeaderMissing => "ProxyHeaderMissing",
            Self::ProxyHeaderMalformed => "ProxyHeaderMalformed",
            Self::Limit => "Limit",
            Self::TenantLimit => "TenantLimit",
            Self::SourceRate => "SourceRate",
            Self::TooManyHandshakes => "TooManyHandshakes",
            Self::Overload => "Overload",
        }
    }
}
