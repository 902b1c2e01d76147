//! What is measured: groups of loads, the figures of each load, and the settings of a run.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

/// A group of loads at proxies that are configured alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Group {
    /// Routing by server name without decrypting.
    Passthrough,
    /// TLS in, plain TCP out.
    Terminate,
    /// Terminate with as many hostnames and certificates as --hosts says.
    Hosts,
    /// HTTP/1.1 in, HTTP/1.1 out, no TLS.
    Http,
    /// HTTP/1.1 and HTTP/2 over TLS in, HTTP/1.1 out.
    Https,
    /// HTTP/1.1 with as many routes as --routes says.
    Routes,
    /// TCP, with a port for each route.
    Tcp,
    /// UDP, with a port for each route.
    Udp,
    /// gRPC over HTTP/2 in and out, no TLS.
    Grpc,
    /// HTTP/1.1 to a backend that always fails, with retries.
    Retries,
}

/// What is done to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// Bytes from the backend on one connection.
    Down1,
    /// The same on sixteen.
    Down16,
    /// Bytes to the backend on one connection.
    Up1,
    /// The same on sixteen.
    Up16,
    /// Bytes both ways at once on one connection.
    Both1,
    /// New connections, each with one message.
    Connections,
    /// Messages there and back, the next when the one before came back.
    Messages,
    /// Messages or requests that begin at a tenth of the rate that the slowest peer carries.
    Pace10,
    /// The same at half of that rate.
    Pace50,
    /// The same at eight tenths.
    Pace80,
    /// Full handshakes with X25519 and ECDSA P-256, connection and first message included.
    FullHandshake,
    /// The same with a resumed session.
    ResumedHandshake,
    /// The same as a full one with X25519MLKEM768.
    HybridHandshake,
    /// Connections that do nothing.
    Idle,
    /// Full handshakes with one host configured.
    OneHost,
    /// Full handshakes over all hosts in turn.
    AllHosts,
    /// HTTP/1.1 requests with the head that h2load sends.
    Http1,
    /// HTTP/1.1 requests with 700 bytes of a browser's fields.
    Http1Heads,
    /// HTTP/1.1 requests that are answered with 10 KB.
    Http1Body10k,
    /// HTTP/1.1 requests that are answered with 10 MB.
    Http1Down,
    /// HTTP/1.1 requests with a body of 10 MB.
    Http1Up,
    /// HTTP/2 requests on sixteen connections with eight streams each.
    Http2,
    /// The same, answered with 10 KB.
    Http2Body10k,
    /// HTTP/2 requests that are answered with 10 MB.
    Http2Down,
    /// HTTP/2 requests with a body of 10 MB.
    Http2Up,
    /// One request on each new connection.
    NewConnection,
    /// Messages in `WebSockets`.
    WebSocket,
    /// HTTP/1.1 requests with one route configured.
    OneRoute,
    /// HTTP/1.1 requests over all routes in turn.
    AllRoutes,
    /// Datagrams of 64 bytes that come back, in one session.
    Datagrams64,
    /// The same of 512 bytes.
    Datagrams512,
    /// The same of 1,200 bytes, as QUIC begins with.
    Datagrams1200,
    /// Datagrams of 64 bytes that come back, over a thousand sessions.
    Sessions64,
    /// The same of 512 bytes.
    Sessions512,
    /// The same of 1,200 bytes.
    Sessions1200,
    /// New sessions, each with one datagram that comes back.
    NewSessions,
    /// Datagrams that begin at twice the rate that the slowest peer carries.
    Overload,
    /// Unary calls of gRPC.
    GrpcUnary,
    /// Messages there and back in streams of gRPC that stay.
    GrpcStream,
    /// Messages from the server in streams of gRPC, as fast as they are taken.
    GrpcDown,
    /// Requests whose every answer is one that is to be retried.
    Failing,
}

/// What is read off a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// CPU of the proxy's processes for each unit.
    Cpu,
    /// Units per second.
    Rate,
    /// Median latency, microseconds.
    P50,
    /// 99th percentile of latency, microseconds.
    P99,
    /// Units that were begun each second.
    Offered,
    /// Percent of the units that never came back.
    Lost,
    /// Tries that the backend saw for each request.
    Tries,
    /// How late the client itself began, 99th percentile, microseconds.
    Late,
    /// Times that a thread of the proxy went to sleep, for each unit.
    Switches,
    /// System calls of the proxy for each unit; only with --syscalls.
    Syscalls,
    /// The machine's CPU in soft interrupts for each unit, whoever is charged with it.
    Softirq,
    /// Anonymous memory for each connection, kilobytes (1,000 bytes).
    Memory,
    /// Pipe descriptors for a thousand connections.
    Pipes,
    /// Anonymous memory before the first connection, megabytes.
    BaseMemory,
    /// Resident memory before the first connection, code included, megabytes.
    BaseResident,
    /// CPU for each unit over that with one host or route.
    Slowdown,
    /// Anonymous memory after serving above that with one host or route, megabytes.
    MemoryAbove,
    /// Seconds from start to the first right answer.
    Start,
}

/// One line of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct Metric {
    /// What is done.
    pub(crate) load: Load,
    /// What is read off it.
    pub(crate) figure: Figure,
}

/// What a load consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 10⁹ bytes.
    Gigabyte,
    /// A connection with its first message.
    Connection,
    /// A connection with a handshake and its first message.
    Handshake,
    /// 64 bytes there and back.
    Message,
    /// A request and its answer.
    Request,
    /// A request or an answer of 10 MB.
    Body,
    /// A datagram that was passed on, in either direction.
    Datagram,
    /// A session of UDP with its first datagram there and back.
    Session,
    /// A call of gRPC and its answer.
    Call,
}

/// Whether proxies write a line for each connection or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Logging {
    /// Nobody does.
    Off,
    /// All do, to a regular file.
    File,
}

/// What all proxies of a pass have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct Setting {
    /// Worker threads or processes.
    pub(crate) workers: usize,
    /// Log lines.
    pub(crate) logging: Logging,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = match self.workers {
            1 => "one worker".to_owned(),
            several => format!("{several} workers"),
        };
        let logging = match self.logging {
            Logging::Off => "no log",
            Logging::File => "log to a file",
        };
        write!(f, "{workers}, {logging}")
    }
}

/// Figures of a load that keeps the proxy busy.
const BUSY: &[Figure] = &[
    Figure::Cpu,
    Figure::Rate,
    Figure::Switches,
    Figure::Syscalls,
    Figure::Softirq,
];
/// Figures of a load that begins at given times.
const PACED: &[Figure] = &[
    Figure::P50,
    Figure::P99,
    Figure::Cpu,
    Figure::Lost,
    Figure::Offered,
    Figure::Late,
    Figure::Switches,
    Figure::Syscalls,
    Figure::Softirq,
];
/// Figures of more than a proxy carries.
const OVERLOADED: &[Figure] = &[
    Figure::Rate,
    Figure::Lost,
    Figure::Cpu,
    Figure::Offered,
    Figure::Late,
    Figure::Switches,
    Figure::Syscalls,
    Figure::Softirq,
];
/// Figures of datagrams as fast as they come back.
const DATAGRAMS: &[Figure] = &[
    Figure::Cpu,
    Figure::Rate,
    Figure::Lost,
    Figure::Switches,
    Figure::Syscalls,
    Figure::Softirq,
];
/// Figures of requests that fail.
const FAILING: &[Figure] = &[
    Figure::Tries,
    Figure::Cpu,
    Figure::Rate,
    Figure::Switches,
    Figure::Syscalls,
    Figure::Softirq,
];
/// Figures of connections that do nothing.
const RESTING: &[Figure] = &[
    Figure::Memory,
    Figure::Pipes,
    Figure::BaseMemory,
    Figure::BaseResident,
];
/// Figures of many hosts or routes.
const MANY: &[Figure] = &[
    Figure::Cpu,
    Figure::Slowdown,
    Figure::MemoryAbove,
    Figure::Start,
];

impl Group {
    /// All, in the order of the report.
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Passthrough => "TLS passed through",
            Self::Terminate => "TLS terminated to plain TCP",
            Self::Hosts => "TLS terminated, many hosts",
            Self::Http => "HTTP/1.1 to HTTP/1.1",
            Self::Https => "HTTPS to HTTP/1.1",
            Self::Routes => "HTTP/1.1, many routes",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Grpc => "gRPC over HTTP/2 to HTTP/2",
            Self::Retries => "HTTP/1.1, retries of what always fails",
        }
    }

    /// Its loads, in order.
    pub(crate) fn loads(self) -> &'static [Load] {
        use Load as L;
        match self {
            Self::Passthrough | Self::Tcp => &[
                L::Connections,
                L::Messages,
                L::Pace10,
                L::Pace50,
                L::Pace80,
                L::Down1,
                L::Down16,
                L::Up1,
                L::Up16,
                L::Both1,
                L::Idle,
            ],
            Self::Terminate => &[
                L::FullHandshake,
                L::ResumedHandshake,
                L::HybridHandshake,
                L::Messages,
                L::Pace10,
                L::Pace50,
                L::Pace80,
                L::Down1,
                L::Down16,
                L::Up1,
                L::Up16,
                L::Idle,
            ],
            Self::Hosts => &[L::OneHost, L::AllHosts],
            Self::Http => &[
                L::Http1,
                L::Http1Heads,
                L::Http1Body10k,
                L::Http1Down,
                L::Http1Up,
                L::WebSocket,
                L::Messages,
                L::Pace10,
                L::Pace50,
                L::Pace80,
            ],
            Self::Https => &[
                L::Http1,
                L::Http1Heads,
                L::Http2,
                L::Http1Body10k,
                L::Http2Body10k,
                L::Http1Down,
                L::Http2Down,
                L::Http1Up,
                L::Http2Up,
                L::NewConnection,
                L::WebSocket,
                L::Messages,
                L::Pace10,
                L::Pace50,
                L::Pace80,
                L::Idle,
            ],
            Self::Routes => &[L::OneRoute, L::AllRoutes],
            Self::Udp => &[
                L::NewSessions,
                L::Datagrams64,
                L::Datagrams512,
                L::Datagrams1200,
                L::Sessions64,
                L::Sessions512,
                L::Sessions1200,
                L::Messages,
                L::Pace10,
                L::Pace50,
                L::Pace80,
                L::Overload,
            ],
            Self::Grpc => &[L::GrpcUnary, L::GrpcStream, L::GrpcDown],
            Self::Retries => &[L::Failing],
        }
    }

    /// What one unit of a load is in this group.
    pub(crate) fn unit(self, load: Load) -> Unit {
        use Load as L;
        match load {
            L::Down1 | L::Down16 | L::Up1 | L::Up16 | L::Both1 => Unit::Gigabyte,
            L::Connections | L::Idle => Unit::Connection,
            L::Messages | L::Pace10 | L::Pace50 | L::Pace80 | L::Overload => match self {
                Self::Http | Self::Https | Self::Routes | Self::Retries => Unit::Request,
                Self::Passthrough | Self::Terminate | Self::Hosts | Self::Tcp | Self::Grpc => {
                    Unit::Message
                }
                Self::Udp => Unit::Datagram,
            },
            L::WebSocket | L::GrpcStream | L::GrpcDown => Unit::Message,
            L::GrpcUnary => Unit::Call,
            L::NewSessions => Unit::Session,
            L::Datagrams64
            | L::Datagrams512
            | L::Datagrams1200
            | L::Sessions64
            | L::Sessions512
            | L::Sessions1200 => Unit::Datagram,
            L::FullHandshake
            | L::ResumedHandshake
            | L::HybridHandshake
            | L::OneHost
            | L::AllHosts => Unit::Handshake,
            L::Http1
            | L::Http1Heads
            | L::Http1Body10k
            | L::Http2
            | L::Http2Body10k
            | L::NewConnection
            | L::OneRoute
            | L::AllRoutes
            | L::Failing => Unit::Request,
            L::Http1Down | L::Http1Up | L::Http2Down | L::Http2Up => Unit::Body,
        }
    }
}

impl Load {
    /// Heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Down1 => "download, 1 connection",
            Self::Down16 => "download, 16 connections",
            Self::Up1 => "upload, 1 connection",
            Self::Up16 => "upload, 16 connections",
            Self::Both1 => "both ways, 1 connection",
            Self::Connections => "new connections",
            Self::Messages => "there and back, as fast as answers come",
            Self::Pace10 => "at 10 % of the slowest",
            Self::Pace50 => "at 50 % of the slowest",
            Self::Pace80 => "at 80 % of the slowest",
            Self::FullHandshake => "full handshakes",
            Self::ResumedHandshake => "resumed handshakes",
            Self::HybridHandshake => "full handshakes, X25519MLKEM768",
            Self::Idle => "idle connections",
            Self::OneHost => "handshakes, 1 host",
            Self::AllHosts => "handshakes, all hosts",
            Self::Http1 => "HTTP/1.1, 64 connections",
            Self::Http1Heads => "HTTP/1.1, heads of 700 bytes",
            Self::Http1Body10k => "HTTP/1.1, answers of 10 KB",
            Self::Http1Down => "HTTP/1.1, answers of 10 MB",
            Self::Http1Up => "HTTP/1.1, requests of 10 MB",
            Self::Http2 => "HTTP/2, 16 × 8 streams",
            Self::Http2Body10k => "HTTP/2, answers of 10 KB",
            Self::Http2Down => "HTTP/2, answers of 10 MB",
            Self::Http2Up => "HTTP/2, requests of 10 MB",
            Self::NewConnection => "a new connection for each request",
            Self::WebSocket => "WebSocket messages",
            Self::OneRoute => "requests, 1 route",
            Self::AllRoutes => "requests, all routes",
            Self::Datagrams64 => "64 bytes, 1 session",
            Self::Datagrams512 => "512 bytes, 1 session",
            Self::Datagrams1200 => "1,200 bytes, 1 session",
            Self::Sessions64 => "64 bytes, 1,000 sessions",
            Self::Sessions512 => "512 bytes, 1,000 sessions",
            Self::Sessions1200 => "1,200 bytes, 1,000 sessions",
            Self::NewSessions => "new sessions",
            Self::Overload => "at twice what the slowest carries",
            Self::GrpcUnary => "unary calls, 16 × 8",
            Self::GrpcStream => "streams, there and back, 16 × 8",
            Self::GrpcDown => "streams from the server, 16",
            Self::Failing => "every answer is 503, up to 3 retries",
        }
    }

    /// What is read off it.
    pub(crate) fn figures(self) -> &'static [Figure] {
        match self {
            Self::Pace10 | Self::Pace50 | Self::Pace80 => PACED,
            Self::Overload => OVERLOADED,
            Self::Datagrams64
            | Self::Datagrams512
            | Self::Datagrams1200
            | Self::Sessions64
            | Self::Sessions512
            | Self::Sessions1200
            | Self::NewSessions => DATAGRAMS,
            Self::Failing => FAILING,
            Self::Idle => RESTING,
            Self::OneHost | Self::OneRoute => &[Figure::Cpu],
            Self::AllHosts | Self::AllRoutes => MANY,
            _ => BUSY,
        }
    }

    /// The rate of a paced load, as a share of what the slowest peer carries.
    pub(crate) const PACES: [(Self, f64); 4] = [
        (Self::Pace10, 0.1),
        (Self::Pace50, 0.5),
        (Self::Pace80, 0.8),
        (Self::Overload, 2.0),
    ];
}

impl Unit {
    /// As in "for each".
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gigabyte => "GB",
            Self::Connection => "connection",
            Self::Handshake => "handshake",
            Self::Message => "message",
            Self::Request => "request",
            Self::Body => "10 MB",
            Self::Datagram => "datagram",
            Self::Session => "session",
            Self::Call => "call",
        }
    }

    /// What CPU time of one unit is shown in: a name, and how many of it a second has.
    pub(crate) fn time(self) -> (&'static str, f64) {
        match self {
            Self::Gigabyte => ("s", 1.0),
            Self::Body => ("ms", 1e3),
            Self::Connection
            | Self::Handshake
            | Self::Message
            | Self::Request
            | Self::Datagram
            | Self::Session
            | Self::Call => ("µs", 1e6),
        }
    }
}

impl Metric {
    /// Heading.
    pub(crate) fn title(self, group: Group) -> String {
        let unit = group.unit(self.load);
        let (time, each) = (unit.time().0, unit.name());
        let figure = match self.figure {
            Figure::Cpu => format!("CPU {time}/{each}"),
            Figure::Rate => format!("{each}/s"),
            Figure::P50 => "p50, µs".to_owned(),
            Figure::P99 => "p99, µs".to_owned(),
            Figure::Offered => format!("begun, {each}/s"),
            Figure::Lost => "lost, %".to_owned(),
            Figure::Tries => format!("tries/{each}"),
            Figure::Late => "client late, p99, µs".to_owned(),
            Figure::Switches => format!("voluntary switches/{each}"),
            Figure::Syscalls => format!("system calls/{each}"),
            Figure::Softirq => format!("softirq {time}/{each}"),
            Figure::Memory => "user KB each".to_owned(),
            Figure::Pipes => "pipe descriptors per 1,000".to_owned(),
            Figure::BaseMemory => "user MB before them".to_owned(),
            Figure::BaseResident => "resident MB before them".to_owned(),
            Figure::Slowdown => "CPU ÷ that with 1".to_owned(),
            Figure::MemoryAbove => "user MB above that with 1".to_owned(),
            Figure::Start => "start, s".to_owned(),
        };
        format!("{}: {figure}", self.load.title())
    }

    /// Decimals worth showing.
    pub(crate) fn decimals(self, group: Group) -> usize {
        let unit = group.unit(self.load);
        match self.figure {
            Figure::Cpu | Figure::Softirq => match unit {
                Unit::Gigabyte => 3,
                Unit::Body | Unit::Datagram => 2,
                _ => 1,
            },
            Figure::Rate => match unit {
                Unit::Gigabyte => 2,
                Unit::Body => 1,
                _ => 0,
            },
            Figure::Switches | Figure::Syscalls => match unit {
                Unit::Gigabyte | Unit::Body => 0,
                _ => 2,
            },
            Figure::Slowdown | Figure::Start | Figure::Lost | Figure::Tries => 2,
            Figure::Memory | Figure::BaseMemory | Figure::BaseResident | Figure::MemoryAbove => 1,
            Figure::P50 | Figure::P99 | Figure::Offered | Figure::Late | Figure::Pipes => 0,
        }
    }

    /// Whether less of it is better, more is, or neither.
    pub(crate) fn better(self) -> Option<Better> {
        match self.figure {
            Figure::Rate => Some(Better::More),
            Figure::Cpu
            | Figure::P50
            | Figure::P99
            | Figure::Lost
            | Figure::Tries
            | Figure::Memory
            | Figure::MemoryAbove
            | Figure::Slowdown
            | Figure::Start
            | Figure::BaseMemory
            | Figure::BaseResident => Some(Better::Less),
            Figure::Switches
            | Figure::Syscalls
            | Figure::Softirq
            | Figure::Offered
            | Figure::Late
            | Figure::Pipes => None,
        }
    }

    /// Whether it belongs to the first table of its group; the others explain it.
    pub(crate) fn is_main(self) -> bool {
        self.better().is_some()
    }
}

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// The smaller one.
    Less,
    /// The larger one.
    More,
}
