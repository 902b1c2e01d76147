//! What is measured: the columns of the tables, their units and the goals they are held against.

use serde::Serialize;

use crate::peers::Peer;

/// A group of rows that is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Group {
    /// Routing by server name without decrypting.
    Passthrough,
    /// TLS in, plain TCP out.
    Terminate,
    /// Terminate with as many hostnames and certificates as --hosts says.
    Hosts,
}

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// CPU seconds of the proxy per 10^9 bytes, one connection.
    CpuPerGb1,
    /// 10^9 bytes per second, one connection.
    GbPerSecond1,
    /// CPU seconds of the proxy per 10^9 bytes, sixteen connections.
    CpuPerGb16,
    /// 10^9 bytes per second, sixteen connections.
    GbPerSecond16,
    /// CPU microseconds of the proxy per short connection.
    CpuPerConnection,
    /// Short connections per second.
    ConnectionsPerSecond,
    /// Median round trip, microseconds.
    RoundTrip50,
    /// 99th percentile of round trips, microseconds.
    RoundTrip99,
    /// Median round trip minus that of a direct connection in the same round, microseconds.
    Added50,
    /// The same for the 99th percentile.
    Added99,
    /// CPU microseconds per full handshake (X25519, ECDSA P-256), connection and first message included.
    Handshake,
    /// The same for a resumed session.
    Resumed,
    /// The same for a full handshake with X25519MLKEM768.
    Hybrid,
    /// Anonymous memory per idle connection, kilobytes (1,000 bytes).
    IdleMemory,
    /// Pipe descriptors per thousand idle connections.
    IdlePipes,
    /// Anonymous memory before the first connection, megabytes.
    BaseMemory,
    /// Resident memory before the first connection, code included, megabytes.
    BaseResident,
    /// CPU microseconds per full handshake, one host configured.
    HandshakeOneHost,
    /// CPU microseconds per full handshake, all hosts configured and used in turn.
    HandshakeAllHosts,
    /// The second over the first.
    HostsSlowdown,
    /// Anonymous memory with all hosts after serving, above that with one, megabytes.
    HostsMemory,
    /// Seconds from start to accepting with all hosts.
    HostsStart,
}

/// What our figure is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At most this share of the better of `HAProxy` (any in the run, default settings) and Envoy.
    OfBest(f64),
    /// At most this share of the peer's.
    Of(Peer, f64),
    /// At most this.
    AtMost(f64),
}

impl Group {
    /// Columns, in order.
    pub(crate) fn metrics(self) -> &'static [Metric] {
        use Metric as M;
        match self {
            Self::Passthrough => &[
                M::CpuPerGb1,
                M::GbPerSecond1,
                M::CpuPerGb16,
                M::GbPerSecond16,
                M::CpuPerConnection,
                M::ConnectionsPerSecond,
                M::RoundTrip50,
                M::RoundTrip99,
                M::Added50,
                M::Added99,
                M::IdleMemory,
                M::IdlePipes,
                M::BaseMemory,
                M::BaseResident,
            ],
            Self::Terminate => &[
                M::Handshake,
                M::Resumed,
                M::Hybrid,
                M::CpuPerGb1,
                M::GbPerSecond1,
                M::CpuPerGb16,
                M::GbPerSecond16,
                M::IdleMemory,
                M::BaseMemory,
                M::BaseResident,
            ],
            Self::Hosts => &[
                M::HandshakeOneHost,
                M::HandshakeAllHosts,
                M::HostsSlowdown,
                M::HostsMemory,
                M::HostsStart,
            ],
        }
    }

    /// Goals of the group's metrics.
    pub(crate) fn goals(self) -> Vec<(Metric, Goal)> {
        use Metric as M;
        match self {
            Self::Passthrough => vec![
                (M::CpuPerGb1, Goal::Of(Peer::Haproxy, 0.2)),
                (M::CpuPerGb1, Goal::Of(Peer::HaproxySplice, 0.5)),
                (M::CpuPerGb16, Goal::Of(Peer::Haproxy, 0.2)),
                (M::CpuPerGb16, Goal::Of(Peer::HaproxySplice, 0.5)),
                (M::CpuPerConnection, Goal::OfBest(0.9)),
                (M::Added50, Goal::OfBest(0.9)),
                (M::Added99, Goal::OfBest(0.9)),
                (M::IdleMemory, Goal::AtMost(2.0)),
                (M::IdlePipes, Goal::AtMost(0.0)),
            ],
            Self::Terminate => vec![
                (M::Handshake, Goal::OfBest(0.75)),
                (M::Resumed, Goal::OfBest(0.75)),
                (M::Hybrid, Goal::OfBest(0.8)),
                (M::CpuPerGb1, Goal::OfBest(0.6)),
                (M::CpuPerGb16, Goal::OfBest(0.6)),
                (M::IdleMemory, Goal::AtMost(8.0)),
            ],
            Self::Hosts => {
                vec![
                    (M::HostsSlowdown, Goal::AtMost(1.1)),
                    (M::HostsMemory, Goal::AtMost(30.0)),
                ]
            }
        }
    }
}

impl Metric {
    /// Heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::CpuPerGb1 => "CPU s/GB, 1 conn",
            Self::GbPerSecond1 => "GB/s, 1 conn",
            Self::CpuPerGb16 => "CPU s/GB, 16 conns",
            Self::GbPerSecond16 => "GB/s, 16 conns",
            Self::CpuPerConnection => "CPU µs per new connection",
            Self::ConnectionsPerSecond => "new connections/s",
            Self::RoundTrip50 => "p50 round trip, µs",
            Self::RoundTrip99 => "p99 round trip, µs",
            Self::Added50 => "p50 added, µs",
            Self::Added99 => "p99 added, µs",
            Self::Handshake => "CPU µs per full handshake",
            Self::Resumed => "CPU µs, resumed",
            Self::Hybrid => "CPU µs, X25519MLKEM768",
            Self::IdleMemory => "user KB per idle connection",
            Self::IdlePipes => "pipe fds per 1,000 idle",
            Self::BaseMemory => "user MB at start",
            Self::BaseResident => "RSS MB at start",
            Self::HandshakeOneHost => "CPU µs per handshake, 1 host",
            Self::HandshakeAllHosts => "CPU µs per handshake, all hosts",
            Self::HostsSlowdown => "all hosts ÷ 1",
            Self::HostsMemory => "user MB above 1 host",
            Self::HostsStart => "start, s",
        }
    }

    /// Decimals worth showing.
    pub(crate) fn decimals(self) -> usize {
        match self {
            Self::CpuPerGb1 | Self::CpuPerGb16 => 3,
            Self::GbPerSecond1 | Self::GbPerSecond16 | Self::HostsSlowdown | Self::HostsStart => 2,
            Self::IdleMemory | Self::BaseMemory | Self::BaseResident | Self::HostsMemory => 1,
            _ => 0,
        }
    }

    /// Whether a ratio to `HAProxy` says anything.
    pub(crate) fn has_ratio(self) -> bool {
        !matches!(
            self,
            Self::IdlePipes | Self::HostsSlowdown | Self::HostsStart
        )
    }
}
