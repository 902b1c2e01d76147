//! What becomes of a route, and what its kind makes of its own part.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::attach::Attached;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectName};
use vestibule_model::protocol::Transport;
use vestibule_stream::proto::{self, resource};

use super::backend_key::BackendKey;

/// Per parent reference that leads to a Gateway of ours: its index, and where it attached.
pub(super) type Parents = BTreeMap<usize, Result<Vec<Attached>, Finding>>;

/// What became of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouteState {
    pub(super) parents: Parents,
    /// Parents where a hostname waits to be recorded as held.
    pub(super) waiting: BTreeSet<usize>,
    /// Why not every reference resolves: the first one that does not.
    pub(super) unresolved: Option<Finding>,
    /// Rules that are refused while others are not: path of each, and why.
    pub(super) dropped: Vec<(String, Finding)>,
    /// Everything to say about it.
    pub(super) findings: Vec<Finding>,
    pub(super) backends: BTreeSet<BackendKey>,
    /// Services that it may use, there or not.
    pub(super) services: BTreeSet<ObjectName>,
    /// Names of which it serves only parts, and never ACME challenges.
    pub(super) in_part: BTreeSet<(ListenerKey, HostPattern)>,
}

impl RouteState {
    /// Whether it serves no more than parts of a name on a listener.
    pub(super) fn is_in_part(&self, listener: &ListenerKey, names: &HostPattern) -> bool {
        self.in_part.contains(&(listener.clone(), names.clone()))
    }

    pub(super) fn listeners(&self) -> BTreeSet<ListenerKey> {
        self.parents
            .values()
            .flatten()
            .flatten()
            .map(|attached| attached.listener.clone())
            .collect()
    }
}

/// What the references of a route come to.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) unresolved: Option<Finding>,
    pub(super) findings: Vec<Finding>,
    pub(super) backends: BTreeSet<BackendKey>,
    pub(super) services: BTreeSet<ObjectName>,
}

impl References {
    /// One that does not resolve.
    pub(super) fn broken(&mut self, finding: Finding) {
        self.findings.push(finding.clone());
        self.unresolved.get_or_insert(finding);
    }
}

/// What a kind of route makes of its own part.
pub(super) struct Judged {
    /// What is to be said of it by itself.
    pub(super) findings: Vec<Finding>,
    /// Why it is not accepted anywhere, if it is not.
    pub(super) refused: Option<Finding>,
    /// See [`RouteState::dropped`].
    pub(super) dropped: Vec<(String, Finding)>,
    pub(super) references: References,
    /// The resource, once it is known where it is attached.
    pub(super) body: Body,
}

/// A resource without its attachments.
pub(super) enum Body {
    Tls(proto::TlsRoute),
    Http { kind: Kind, route: proto::HttpRoute },
    Port(Transport, proto::TcpRoute),
}

impl Body {
    pub(super) fn attached(self, attachments: Vec<proto::Attachment>) -> resource::Resource {
        match self {
            Self::Tls(route) => resource::Resource::TlsRoute(proto::TlsRoute {
                attachments,
                ..route
            }),
            Self::Http { kind, route } => {
                let route = proto::HttpRoute {
                    attachments,
                    ..route
                };
                match kind {
                    Kind::GrpcRoute => resource::Resource::GrpcRoute(route),
                    _ => resource::Resource::HttpRoute(route),
                }
            }
            Self::Port(transport, route) => {
                let route = proto::TcpRoute {
                    listeners: attachments.into_iter().map(|at| at.listener).collect(),
                    ..route
                };
                match transport {
                    Transport::Tcp => resource::Resource::TcpRoute(route),
                    Transport::Udp => resource::Resource::UdpRoute(route),
                }
            }
        }
    }
}
