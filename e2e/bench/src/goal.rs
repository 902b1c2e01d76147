//! The project's goals: ratios to the best peer of a line or to a named one, in one run, and plain bounds.

use crate::metric::{Figure, Group, Load, Metric};
use crate::peers::Peer;

/// What our figure is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At most this share of the best of all peers.
    OfBest(f64),
    /// At most this share of the best of these peers.
    Of(&'static [Peer], f64),
    /// At most this.
    AtMost(f64),
}

/// `HAProxy` with splicing, whichever was measured.
const SPLICE: &[Peer] = &[Peer::HaproxySplice, Peer::HaproxyNextSplice];
/// `HAProxy`, whichever was measured. A newer one has another TLS library.
const HAPROXY: &[Peer] = &[Peer::Haproxy, Peer::HaproxyNext];
/// The goals of handshakes are held against a `HAProxy` with AWS-LC, which `--haproxy-next` names.
const HAPROXY_NEXT: &[Peer] = &[Peer::HaproxyNext];
const ENVOY: &[Peer] = &[Peer::Envoy];

/// Goals of a group.
pub(crate) fn goals(group: Group) -> Vec<(Metric, Goal)> {
    use Goal::{AtMost, Of, OfBest};
    let cpu = |load, goal| (metric(load, Figure::Cpu), goal);
    let memory = |bound| (metric(Load::Idle, Figure::Memory), AtMost(bound));
    match group {
        Group::Passthrough | Group::Tcp => vec![
            cpu(Load::Down1, Of(SPLICE, 0.6)),
            cpu(Load::Down16, Of(SPLICE, 0.6)),
            cpu(Load::Connections, OfBest(0.9)),
            (metric(Load::Pace50, Figure::P50), OfBest(1.0)),
            (metric(Load::Pace50, Figure::P99), OfBest(1.0)),
            memory(2.0),
            (metric(Load::Idle, Figure::Pipes), AtMost(0.0)),
        ],
        Group::Terminate => vec![
            cpu(Load::FullHandshake, Of(HAPROXY_NEXT, 0.8)),
            cpu(Load::ResumedHandshake, Of(HAPROXY_NEXT, 0.8)),
            cpu(Load::HybridHandshake, Of(HAPROXY_NEXT, 0.8)),
            cpu(Load::Down1, OfBest(0.6)),
            cpu(Load::Down16, OfBest(0.6)),
            memory(5.0),
        ],
        Group::Hosts => vec![
            (metric(Load::AllHosts, Figure::Slowdown), AtMost(1.1)),
            (metric(Load::AllHosts, Figure::MemoryAbove), AtMost(30.0)),
        ],
        Group::Http => vec![
            cpu(Load::Http1, OfBest(0.9)),
            cpu(Load::Http1Heads, OfBest(0.9)),
            cpu(Load::Http1Body10k, OfBest(0.9)),
        ],
        Group::Https => vec![
            cpu(Load::Http1, OfBest(0.9)),
            cpu(Load::Http1Heads, OfBest(0.9)),
            cpu(Load::Http2, OfBest(0.9)),
            cpu(Load::Http1Body10k, OfBest(0.9)),
            cpu(Load::Http2Body10k, OfBest(0.9)),
            cpu(Load::Http1Down, Of(HAPROXY, 0.5)),
            cpu(Load::Http1Down, Of(ENVOY, 0.8)),
            cpu(Load::Http2Down, Of(HAPROXY, 0.5)),
            cpu(Load::Http2Down, Of(ENVOY, 0.8)),
            memory(8.0),
        ],
        Group::Routes => vec![(metric(Load::AllRoutes, Figure::MemoryAbove), AtMost(60.0))],
        Group::Udp => vec![
            cpu(Load::Datagrams64, OfBest(1.0)),
            cpu(Load::Datagrams1200, OfBest(1.0)),
            cpu(Load::Sessions64, OfBest(1.0)),
            cpu(Load::Sessions1200, OfBest(1.0)),
            cpu(Load::NewSessions, OfBest(1.0)),
        ],
        Group::Grpc => vec![
            cpu(Load::GrpcUnary, OfBest(0.9)),
            cpu(Load::GrpcStream, OfBest(0.9)),
        ],
        // A fifth of the requests three times more.
        Group::Retries => vec![(metric(Load::Failing, Figure::Tries), AtMost(1.6))],
    }
}

fn metric(load: Load, figure: Figure) -> Metric {
    Metric { load, figure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_is_of_a_line_that_is_measured() {
        for group in Group::all() {
            for (metric, _) in goals(*group) {
                assert!(group.loads().contains(&metric.load), "{group:?} {metric:?}");
                assert!(
                    metric.load.figures().contains(&metric.figure),
                    "{group:?} {metric:?}"
                );
            }
        }
    }
}
