//! The state of a route, and the part of its verdict that depends on its kind.

use vestibule_model::attach::Attached;
use vestibule_model::backend_key::BackendKey;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectName};
use vestibule_model::protocol::Transport;
use vestibule_model::small::{SmallMap, SmallSet};
use vestibule_stream::proto::{self, resource};

/// For each parent reference that leads to a Gateway of ours: its index, and where the route
/// attaches.
pub(super) type Parents = SmallMap<usize, Result<Vec<Attached>, Finding>>;

/// The state of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouteState {
    pub(super) parents: Parents,
    /// The indexes of parents where a hostname or port waits until its claim is recorded.
    pub(super) waiting: SmallSet<usize>,
    /// The first reference that does not resolve, if any. One to a backend that the proxies do not connect to comes after
    /// all others.
    pub(super) unresolved: Option<Box<Finding>>,
    /// Rules that are refused while others are not, each with its field and the reason.
    pub(super) dropped: Vec<(String, Finding)>,
    /// Every finding about it.
    pub(super) findings: Vec<Finding>,
    pub(super) backends: SmallSet<BackendKey>,
    /// Services that it may use, even if they do not exist.
    pub(super) services: SmallSet<ObjectName>,
    /// Names of which it serves only some paths, which never include those of ACME challenges.
    pub(super) in_part: SmallSet<(ListenerKey, HostPattern)>,
}

impl RouteState {
    /// Whether it serves only some paths of a name on a listener.
    pub(super) fn is_in_part(&self, listener: &ListenerKey, names: &HostPattern) -> bool {
        self.in_part.contains(&(listener.clone(), names.clone()))
    }

    /// Adds the findings about backends that the proxies do not connect to, because the policies for them cannot be applied
    /// or are not known yet.
    pub(super) fn add_policy_problems(&mut self, problems: Vec<Finding>) {
        if self.unresolved.is_none() {
            // What is certain comes first.
            let certain = problems.iter().find(|finding| finding.refuses());
            self.unresolved = certain.or(problems.first()).cloned().map(Box::new);
        }
        self.findings.extend(problems);
    }

    pub(super) fn listeners(&self) -> SmallSet<ListenerKey> {
        self.parents
            .values()
            .flatten()
            .flatten()
            .map(|attached| attached.listener.clone())
            .collect()
    }
}

/// The result of resolving the references of a route.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) unresolved: Option<Finding>,
    pub(super) findings: Vec<Finding>,
    /// The findings of [`Translator::policy_problem`](super::Translator::policy_problem) about the references that resolve.
    pub(super) policy_problems: Vec<Finding>,
    pub(super) backends: SmallSet<BackendKey>,
    pub(super) services: SmallSet<ObjectName>,
}

impl References {
    /// Records a reference that does not resolve.
    pub(super) fn broken(&mut self, finding: Finding) {
        self.findings.push(finding.clone());
        self.unresolved.get_or_insert(finding);
    }
}

/// The part of a route's verdict that depends on its kind.
pub(super) struct Judged {
    /// The findings about the route itself, without its parents and references.
    pub(super) findings: Vec<Finding>,
    /// Why no parent accepts it, if the route itself is refused.
    pub(super) refused: Option<Finding>,
    /// See [`RouteState::dropped`].
    pub(super) dropped: Vec<(String, Finding)>,
    pub(super) references: References,
    /// The resource, which still lacks its attachments.
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
