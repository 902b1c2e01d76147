//! Owns the proxy's Prometheus metrics: `vestibule_proxy_<noun>_<unit>`.
//!
//! Labels come from fixed sets in this program, and never from the network. No server name and no address is a label,
//! so attackers cannot make the number of series grow. `crate::tenants` bounds the series for each tenant.

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use vestibule_serve::log_queue;

use crate::expiry::Expiries;
use crate::overload::Readings;
use crate::quota::TenantQuotas;
use crate::tenants::Tenants;

/// The reason why something happened. It is one of a fixed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

/// The result of something. It is one of a fixed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabel {
    resource: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// Protocol and outcome of an HTTP request. Codes are three digits, so the set is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabel {
    protocol: &'static str,
    code: u16,
}

/// The status of a gRPC call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GrpcLabel {
    status: &'static str,
}

/// A CA's check of a hostname: its type and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChallengeLabel {
    r#type: &'static str,
    result: &'static str,
}

/// The content of a connection's PROXY header, if one is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyHeader {
    /// The address of the client.
    Client,
    /// The client is the peer itself, or not known.
    Peer,
    /// There was none.
    Absent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProxyHeaderLabel {
    source: &'static str,
}

/// Version and kind of a TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct HandshakeLabel {
    version: &'static str,
    resumed: &'static str,
}

/// All metrics of a proxy process. Cheap to update from any thread.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    accounts: TenantQuotas,
    overload_step: Gauge,
    overload_used: Family<ResourceLabel, Gauge>,
    /// Connections accepted from clients.
    pub connections_accepted: Counter,
    /// Connections that a worker passed to another one.
    pub connections_passed: Counter,
    /// Client connections open now.
    pub connections_active: Gauge,
    connections_closed: Family<ReasonLabel, Counter>,
    /// Bytes received from clients and sent to backends.
    pub bytes_upstream: Counter,
    /// Bytes received from backends and sent to clients.
    pub bytes_downstream: Counter,
    udp_sessions_begun: Counter,
    udp_sessions_active: Gauge,
    udp_sessions_closed: Family<ReasonLabel, Counter>,
    /// Datagrams sent to backends.
    pub udp_upstream: Counter,
    /// Datagrams sent to clients.
    pub udp_downstream: Counter,
    udp_dropped: Family<ReasonLabel, Counter>,
    handshakes: Family<HandshakeLabel, Counter>,
    challenges: Family<ChallengeLabel, Counter>,
    proxy_headers: Family<ProxyHeaderLabel, Counter>,
    /// Seconds from accept to a complete hello.
    pub hello_seconds: Histogram,
    /// Seconds from the hello to a finished handshake, where this proxy terminates.
    pub handshake_seconds: Histogram,
    /// Seconds to connect to a backend.
    pub connect_seconds: Histogram,
    /// Attempts to connect to a backend that failed.
    connect_failures: Family<ReasonLabel, Counter>,
    /// Tunnels, HTTPS connections and UDP sessions that were looked at because a change concerned their tenant.
    pub tunnels_judged: Counter,
    /// Attempts to connect to another endpoint after one failed.
    pub connect_retries: Counter,
    endpoints_passed_over: Family<ReasonLabel, Counter>,
    /// Endpoints that were skipped after failures, and are used again.
    pub endpoints_taken_back: Counter,
    /// HTTP requests that were sent on a second connection because the first one broke.
    pub requests_repeated: Counter,
    requests_retried: Family<ReasonLabel, Counter>,
    retries_refused: Family<ReasonLabel, Counter>,
    mirrors: Family<ResultLabel, Counter>,
    authorizations: Family<ResultLabel, Counter>,
    cors_preflights: Family<ResultLabel, Counter>,
    sessions: Family<ResultLabel, Counter>,
    requests: Family<RequestLabel, Counter>,
    requests_over_limit: Family<ReasonLabel, Counter>,
    grpc_calls: Family<GrpcLabel, Counter>,
    /// Seconds from a request's head to the end of its answer.
    pub request_seconds: Histogram,
    /// Seconds from giving a request to a backend to the head of its answer.
    pub backend_response_seconds: Histogram,
    /// Connections opened to backends for HTTP.
    pub backend_opened: Counter,
    backend_given_up: Family<ReasonLabel, Counter>,
    /// HTTP requests sent on a connection that had carried one before.
    pub backend_reused: Counter,
    /// Idle connections to backends that are kept for later requests.
    pub backend_kept: Gauge,
    /// TLS connections to backends to which the Gateway's certificate was not shown, because they do not name the
    /// Gateway.
    pub backend_certificates_withheld: Counter,
    /// Lease term of the generation in force.
    pub config_term: Gauge,
    /// Counter of the generation in force.
    pub config_generation: Gauge,
    /// Batches that were applied.
    pub config_batches: Counter,
    config_rejects: Family<ReasonLabel, Counter>,
    config_refusals: Family<ReasonLabel, Counter>,
    /// Endpoints that no backend may have, and that were left out of a backend in force.
    pub config_endpoints_left_out: Counter,
    resources: Family<KindLabel, Gauge>,
    /// Ports that are bound.
    pub binds: Gauge,
    /// 1 while the configuration stream is connected.
    pub stream_connected: Gauge,
    /// 1 while the proxy is ready.
    pub ready: Gauge,
    /// 1 after the signal to end has arrived.
    pub draining: Gauge,
}

/// Buckets of the histograms in seconds. They reach from a round trip on loopback to the slowest hello that is
/// accepted.
const SECONDS: [f64; 12] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0,
];

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers every metric under `vestibule_proxy_`.
    #[must_use]
    pub fn new() -> Self {
        Self::observing(
            Tenants::default(),
            TenantQuotas::default(),
            Expiries::default(),
        )
    }

    /// The same as [`Self::new`], and also exposes the usage of tenants and the expiry of certificates.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "it is a list")]
    pub fn observing(tenants: Tenants, accounts: TenantQuotas, expiries: Expiries) -> Self {
        let mut registry = Registry::with_prefix("vestibule_proxy");
        let r = &mut registry;
        r.register_collector(Box::new(tenants));
        r.register_collector(Box::new(accounts.clone()));
        r.register_collector(Box::new(expiries));
        r.register(
            "log_lines_dropped",
            "Lines of the log that were dropped because nobody read it fast enough",
            log_queue::dropped_lines(),
        );
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        r.register("build", "The release of this proxy", build);
        let bytes = Family::<DirectionLabel, Counter>::default();
        r.register_with_unit(
            "relayed",
            "Bytes relayed, upstream (to backends) or downstream (to clients)",
            Unit::Bytes,
            bytes.clone(),
        );
        let direction = |direction| bytes.get_or_create(&DirectionLabel { direction }).clone();
        let datagrams = Family::<DirectionLabel, Counter>::default();
        r.register(
            "udp_datagrams",
            "Datagrams relayed, upstream (to backends) or downstream (to clients)",
            datagrams.clone(),
        );
        let of_direction = |direction| {
            datagrams
                .get_or_create(&DirectionLabel { direction })
                .clone()
        };
        Self {
            accounts,
            udp_sessions_begun: add(r, "udp_sessions", "UDP sessions begun"),
            udp_sessions_active: add(r, "udp_sessions_active", "UDP sessions open now"),
            udp_sessions_closed: add(
                r,
                "udp_sessions_closed",
                "UDP sessions that ended, by reason",
            ),
            udp_upstream: of_direction("upstream"),
            udp_downstream: of_direction("downstream"),
            udp_dropped: add(
                r,
                "udp_datagrams_dropped",
                "Datagrams dropped instead of relayed, by reason",
            ),
            overload_step: add(
                r,
                "overload_step",
                "How much less is offered for want of memory, open files or connections: 0 (nothing) to 3",
            ),
            overload_used: add(
                r,
                "overload_used_percent",
                "What is in use of the memory limit, of the open files and of the connections",
            ),
            bytes_upstream: direction("upstream"),
            bytes_downstream: direction("downstream"),
            connections_accepted: add(r, "connections_accepted", "Connections accepted"),
            connections_passed: add(
                r,
                "connections_passed",
                "Connections that a worker passed to one that had less to do",
            ),
            connections_active: add(r, "connections_active", "Client connections open now"),
            connections_closed: add(
                r,
                "connections_closed",
                "Client connections that ended, by reason",
            ),
            handshakes: add(
                r,
                "handshakes",
                "TLS handshakes finished here, by version and whether a session was resumed",
            ),
            proxy_headers: add(
                r,
                "proxy_headers",
                "Connections let in where PROXY headers are expected, by whom the header said that they are from: client (another address), peer (who connected), absent (no header)",
            ),
            challenges: add(
                r,
                "challenges",
                "CAs that checked a hostname, by type of challenge and result",
            ),
            hello_seconds: add_seconds(r, "hello", "Time from accept to a complete ClientHello"),
            handshake_seconds: add_seconds(
                r,
                "handshake",
                "Time from the ClientHello to a finished handshake",
            ),
            connect_seconds: add_seconds(r, "backend_connect", "Time to connect to a backend"),
            connect_failures: add(
                r,
                "backend_connect_failures",
                "Attempts to connect to a backend that failed, by reason",
            ),
            tunnels_judged: add(
                r,
                "tunnels_judged",
                "Tunnels, HTTPS connections and UDP sessions that were looked at because a change of the configuration concerned their tenant",
            ),
            connect_retries: add(
                r,
                "backend_connect_retries",
                "Attempts to connect to another endpoint of a backend after one failed",
            ),
            endpoints_passed_over: add(
                r,
                "endpoints_passed_over",
                "Times that an endpoint of a backend began to be passed over, or its pause was renewed, by reason",
            ),
            endpoints_taken_back: add(
                r,
                "endpoints_taken_back",
                "Endpoints that were passed over and are used again",
            ),
            requests_repeated: add(
                r,
                "requests_repeated",
                "HTTP requests that were given to a second connection because the first one broke before it answered",
            ),
            requests_retried: add(
                r,
                "requests_retried",
                "Times that HTTP requests were made again because their route says so, by reason",
            ),
            retries_refused: add(
                r,
                "retries_refused",
                "HTTP requests that were not made again although their route says so, by reason: Budget (too many of the backend's are), Body (it is not kept)",
            ),
            mirrors: add(
                r,
                "requests_mirrored",
                "Copies of HTTP requests for mirrors, by what became of them",
            ),
            authorizations: add(
                r,
                "requests_authorized",
                "Questions to authorization servers about HTTP requests, by answer",
            ),
            cors_preflights: add(
                r,
                "cors_preflights",
                "CORS preflight requests answered, by whether the origin may ask",
            ),
            sessions: add(
                r,
                "session_requests",
                "HTTP requests answered whose rule has session persistence, by what became of the client's session",
            ),
            requests: add(
                r,
                "requests",
                "HTTP requests answered, by protocol and status code",
            ),
            requests_over_limit: add(
                r,
                "requests_over_limit",
                "HTTP requests that a limit in time, of their body or of all heads of a connection ended, by reason",
            ),
            grpc_calls: add(
                r,
                "grpc_calls",
                "Calls of gRPC, by the status that the client was told",
            ),
            request_seconds: add_seconds(
                r,
                "request",
                "Time from a request's head to the end of its answer",
            ),
            backend_response_seconds: add_seconds(
                r,
                "backend_response",
                "Time from giving an HTTP request to a backend to the head of its answer",
            ),
            backend_opened: add(
                r,
                "backend_http_connections_opened",
                "Connections opened to backends for HTTP",
            ),
            backend_given_up: add(
                r,
                "backend_connections_given_up",
                "Connections to backends that the proxy gave up because of what the backend sent, by reason",
            ),
            backend_reused: add(
                r,
                "backend_http_connections_reused",
                "HTTP requests sent on a connection that stood",
            ),
            backend_kept: add(
                r,
                "backend_http_connections_kept",
                "Connections to backends that are kept for HTTP requests to come",
            ),
            backend_certificates_withheld: add(
                r,
                "backend_certificates_withheld",
                "Connections over TLS to backends that the Gateway's client certificate is not for",
            ),
            config_term: add(
                r,
                "config_term",
                "Lease term of the configuration generation in force",
            ),
            config_generation: add(
                r,
                "config_generation",
                "Counter, within its term, of the configuration generation in force",
            ),
            config_batches: add(r, "config_batches", "Configuration batches applied"),
            config_rejects: add(r, "config_rejects", "Resources rejected, by reason"),
            config_refusals: add(
                r,
                "config_refusals",
                "Configuration batches refused as a whole, by reason",
            ),
            config_endpoints_left_out: add(
                r,
                "config_endpoints_left_out",
                "Endpoints that no backend may have, left out of backends in force",
            ),
            resources: add(r, "config_resources", "Resources held, by kind"),
            binds: add(r, "binds", "Ports that are bound"),
            stream_connected: add(
                r,
                "config_stream_connected",
                "1 while the configuration stream is connected",
            ),
            ready: add(
                r,
                "ready",
                "1 while a configuration is in force and the proxy does not end",
            ),
            draining: add(r, "draining", "1 from the signal to end on"),
            registry,
        }
    }

    /// The quotas of the tenants.
    pub(crate) fn accounts(&self) -> &TenantQuotas {
        &self.accounts
    }

    /// Sets the overload level, and the readings behind it.
    pub(crate) fn overload(&self, step: u8, readings: &Readings) {
        self.overload_step.set(step.into());
        for (resource, percent) in readings.percents() {
            let label = ResourceLabel { resource };
            match percent {
                Some(percent) => {
                    let gauge = self.overload_used.get_or_create(&label);
                    gauge.set(i64::try_from(percent).unwrap_or(i64::MAX));
                }
                None => {
                    self.overload_used.remove(&label);
                }
            }
        }
    }

    /// How many TCP connections and UDP sessions have come in all.
    pub(crate) fn arrivals(&self) -> u64 {
        self.connections_accepted.get() + self.udp_sessions_begun.get()
    }

    pub(crate) fn udp_session_begun(&self) {
        self.udp_sessions_begun.inc();
        self.udp_sessions_active.inc();
    }

    /// Counts a UDP session that ended. `reason` is one of a fixed set of words.
    pub(crate) fn udp_session_ended(&self, reason: &'static str) {
        self.udp_sessions_active.dec();
        self.udp_sessions_closed
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// Counts datagrams that were dropped. `reason` is one of a fixed set of words.
    pub(crate) fn udp_dropped(&self, reason: &'static str, count: u64) {
        self.udp_dropped
            .get_or_create(&ReasonLabel { reason })
            .inc_by(count);
    }

    /// Counts a connection that ended. `reason` is one of a fixed set of words.
    pub fn closed(&self, reason: &'static str) {
        self.connections_closed
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// Counts a failed attempt to connect to a backend.
    pub fn connect_failed(&self, reason: &'static str) {
        self.connect_failures
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// Counts an endpoint that is skipped from now on.
    pub fn passed_over(&self, reason: &'static str) {
        self.endpoints_passed_over
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// Counts a finished handshake.
    pub fn handshake(&self, version: &'static str, resumed: bool) {
        let resumed = if resumed { "true" } else { "false" };
        self.handshakes
            .get_or_create(&HandshakeLabel { version, resumed })
            .inc();
    }

    /// Counts a connection where PROXY headers are expected.
    pub(crate) fn proxy_header(&self, said: ProxyHeader) {
        let source = match said {
            ProxyHeader::Client => "client",
            ProxyHeader::Peer => "peer",
            ProxyHeader::Absent => "absent",
        };
        let label = ProxyHeaderLabel { source };
        self.proxy_headers.get_or_create(&label).inc();
    }

    /// Counts a CA that checked a hostname.
    pub(crate) fn challenged(&self, r#type: &'static str, result: &'static str) {
        let label = ChallengeLabel { r#type, result };
        self.challenges.get_or_create(&label).inc();
    }

    /// Counts a connection to a backend that the proxy gave up because of what the backend sent.
    pub(crate) fn backend_given_up(&self, reason: &'static str) {
        let label = ReasonLabel { reason };
        self.backend_given_up.get_or_create(&label).inc();
    }

    /// Counts a retry.
    pub(crate) fn retried(&self, reason: &'static str) {
        let label = ReasonLabel { reason };
        self.requests_retried.get_or_create(&label).inc();
    }

    /// Counts a request that is not sent again, although its route asks for a retry.
    pub(crate) fn not_retried(&self, reason: &'static str) {
        let label = ReasonLabel { reason };
        self.retries_refused.get_or_create(&label).inc();
    }

    /// Counts a copy of a request, when it is over.
    pub(crate) fn mirrored(&self, result: &'static str) {
        let label = ResultLabel { result };
        self.mirrors.get_or_create(&label).inc();
    }

    /// Counts a question to an authorization server.
    pub(crate) fn authorized(&self, result: &'static str) {
        let label = ResultLabel { result };
        self.authorizations.get_or_create(&label).inc();
    }

    /// Counts a preflight request.
    pub(crate) fn preflight(&self, result: &'static str) {
        let label = ResultLabel { result };
        self.cors_preflights.get_or_create(&label).inc();
    }

    /// Counts a request of a rule with session persistence.
    pub(crate) fn session(&self, result: &'static str) {
        let label = ResultLabel { result };
        self.sessions.get_or_create(&label).inc();
    }

    /// Counts an answered HTTP request.
    pub fn request(&self, protocol: &'static str, code: u16, seconds: f64) {
        self.requests
            .get_or_create(&RequestLabel { protocol, code })
            .inc();
        self.request_seconds.observe(seconds);
    }

    /// Counts a request that took longer than a limit, or has a larger body.
    pub fn over_limit(&self, reason: &'static str) {
        self.requests_over_limit
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// Counts a gRPC call. `status` is one of a fixed set of words.
    pub(crate) fn grpc_call(&self, status: &'static str) {
        self.grpc_calls.get_or_create(&GrpcLabel { status }).inc();
    }

    /// Counts a rejected resource.
    pub fn rejected(&self, reason: &'static str) {
        self.config_rejects
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// Counts a batch that was refused as a whole.
    pub fn refused(&self, reason: &'static str) {
        self.config_refusals
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    /// Sets how many resources of a kind are held.
    pub fn held(&self, kind: &'static str, count: usize) {
        self.resources
            .get_or_create(&KindLabel { kind })
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many connections ended for `reason` so far.
    #[must_use]
    pub fn closed_count(&self, reason: &'static str) -> u64 {
        self.connections_closed
            .get(&ReasonLabel { reason })
            .map_or(0, |counter| {
                counter.inner().load(std::sync::atomic::Ordering::Relaxed)
            })
    }

    #[cfg(test)]
    pub(crate) fn udp_dropped_count(&self, reason: &'static str) -> u64 {
        let counter = self.udp_dropped.get_or_create(&ReasonLabel { reason });
        counter.get()
    }

    #[cfg(test)]
    pub(crate) fn udp_closed_count(&self, reason: &'static str) -> u64 {
        let counter = self
            .udp_sessions_closed
            .get_or_create(&ReasonLabel { reason });
        counter.get()
    }

    /// The exposition in the `OpenMetrics` text format.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

/// Registers a metric that starts at its default.
fn add<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: prometheus_client::registry::Metric + Clone + Default,
{
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn add_seconds(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    let histogram = Histogram::new(SECONDS);
    registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
    histogram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_has_prefix_units_and_end_marker() {
        let metrics = Metrics::new();
        metrics.closed("NoRoute");
        metrics.handshake("1.3", true);
        metrics.bytes_upstream.inc_by(7);
        metrics.hello_seconds.observe(0.002);
        let text = metrics.encode().unwrap();
        for line in [
            "vestibule_proxy_connections_closed_total{reason=\"NoRoute\"} 1",
            "vestibule_proxy_handshakes_total{version=\"1.3\",resumed=\"true\"} 1",
            "vestibule_proxy_relayed_bytes_total{direction=\"upstream\"} 7",
            "vestibule_proxy_hello_seconds_count 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert_eq!(metrics.closed_count("NoRoute"), 1);
        assert_eq!(metrics.closed_count("Other"), 0);
    }
}
