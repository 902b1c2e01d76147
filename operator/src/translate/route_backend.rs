//! The backends to which the references of a route of any kind resolve.

use vestibule_model::backend_key::BackendKey;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{Object, Service, ServicePort};
use vestibule_model::reference::BackendRef;
use vestibule_model::small::SmallSet;
use vestibule_stream::proto;

use super::Translator;
use super::backend::{Speaks, speaks};
use super::route_state::References;

impl Translator {
    /// The backends of a TLSRoute, TCPRoute or UDPRoute with their weights, and the result of resolving the
    /// references.
    pub(super) fn weighted(
        &self,
        route: &ObjectKey,
        backends: &[BackendRef],
    ) -> (Vec<proto::WeightedBackend>, References) {
        let mut references = References::default();
        let mut weighted = |backend: &BackendRef| proto::WeightedBackend {
            backend: self.resolve_backend(route, backend, &mut references),
            weight: backend.weight,
        };
        let backends = backends.iter().map(&mut weighted).collect();
        (backends, references)
    }

    /// The name of a backend's resource; empty if the reference does not resolve.
    pub(super) fn resolve_backend(
        &self,
        referrer: &ObjectKey,
        backend: &BackendRef,
        references: &mut References,
    ) -> String {
        self.resolve_backend_for(referrer, referrer.kind, backend, references)
    }

    /// The same for a backend that gets such requests as routes of kind `traffic` have, whatever kind the referrer is.
    pub(super) fn resolve_backend_for(
        &self,
        referrer: &ObjectKey,
        traffic: Kind,
        backend: &BackendRef,
        references: &mut References,
    ) -> String {
        let outcome = self.backend_of(referrer, traffic, backend, &mut references.services);
        match outcome {
            Ok(key) => {
                let over = self.backend_budgets.refusal(&key, &backend.reference.field);
                let name = key.to_string();
                if over.is_none() {
                    let problem = self.policy_problem(referrer, &key, &backend.reference.field);
                    references.policy_problems.extend(problem);
                }
                // It is in use, even if it is over the budget. Otherwise it would not count, and be under it again.
                references.backends.insert(key);
                match over {
                    None => name,
                    Some(finding) => {
                        references.broken(finding);
                        String::new()
                    }
                }
            }
            Err(finding) => {
                references.broken(finding);
                String::new()
            }
        }
    }

    fn backend_of(
        &self,
        referrer: &ObjectKey,
        traffic: Kind,
        backend: &BackendRef,
        services: &mut SmallSet<ObjectName>,
    ) -> Result<BackendKey, Finding> {
        let reference = &backend.reference;
        let refuse = |reason, message: String, action: &str| {
            Err(Finding::refused(reason, &reference.field, message, action))
        };
        if !reference.is(Kind::Service) {
            return refuse(
                Reason::InvalidKind,
                format!(
                    "{:?} of group {:?} is not supported",
                    reference.kind, reference.group
                ),
                "refer to a Service",
            );
        }
        let target = self.permit(referrer, reference)?;
        services.insert(target.clone());
        let service = match self.get(Kind::Service, &target) {
            Some(Object::Service(service)) => service,
            Some(_) => {
                return refuse(
                    Reason::BackendNotFound,
                    format!("Service {target} cannot be read, as its own finding says"),
                    "mend it, or refer to another one",
                );
            }
            None => {
                return refuse(
                    Reason::BackendNotFound,
                    format!("Service {target} does not exist"),
                    "create it, or refer to another one",
                );
            }
        };
        if service.external_name {
            return refuse(
                Reason::InvalidKind,
                format!("Service {target} has type ExternalName, which leads outside the cluster"),
                "refer to a Service with endpoints",
            );
        }
        let Some(number) = backend.port else {
            return refuse(
                Reason::BackendNotFound,
                "names no port of the Service".into(),
                "name one",
            );
        };
        let transport = referrer.kind.transport();
        let Some(port) = service.port(number, transport) else {
            return if service.ports.iter().any(|port| port.port == number) {
                refuse(
                    Reason::UnsupportedProtocol,
                    format!(
                        "port {number} of Service {target} is not {}",
                        transport.as_str()
                    ),
                    &format!("refer to a {} port", transport.as_str()),
                )
            } else {
                refuse(
                    Reason::BackendNotFound,
                    format!("Service {target} has no port {number}"),
                    "refer to one of its ports",
                )
            };
        };
        if traffic.routes_requests()
            && let Err((message, action)) = self.speaks_http(traffic, service, port)
        {
            return refuse(Reason::UnsupportedProtocol, message, action);
        }
        let unreadable = port.send_proxy.refusal(&target, number, &reference.field);
        if let Some(finding) = unreadable {
            return Err(finding);
        }
        if let Some((address, denied)) = self.only_denied(&target, transport) {
            return refuse(
                Reason::EndpointNotAllowed,
                format!(
                    "no backend may have the endpoints of Service {target}: {address} {denied}"
                ),
                "have the Service select pods, or ask the platform admin which endpoints there may be",
            );
        }
        Ok(BackendKey::new(target, (number, transport)))
    }

    /// Whether a port speaks HTTP that requests of routes of kind `traffic` can use, by its `appProtocol` (GEP-1911).
    /// The error is a message, and what to do.
    fn speaks_http(
        &self,
        traffic: Kind,
        service: &Service,
        port: &ServicePort,
    ) -> Result<(), (String, &'static str)> {
        let says = || {
            format!(
                "port {} of Service {} has appProtocol {:?}",
                port.port,
                service.name,
                port.app_protocol.as_deref().unwrap_or_default()
            )
        };
        match speaks(port) {
            Speaks::Http {
                protocol: proto::BackendProtocol::Websocket,
                ..
            } if traffic == Kind::GrpcRoute => Err((
                format!("{}, and gRPC is HTTP/2", says()),
                "refer to a port that speaks HTTP/2, or correct its appProtocol",
            )),
            Speaks::Http { tls: false, .. } => Ok(()),
            Speaks::Http { tls: true, .. } if self.has_tls_policy(service, port) => Ok(()),
            Speaks::Http { tls: true, .. } => Err((
                format!("{}, and no BackendTLSPolicy says how to trust it", says()),
                "add a BackendTLSPolicy for the Service",
            )),
            Speaks::Other => Err((
                format!("{}, which is not HTTP", says()),
                "refer to a port that speaks HTTP, or correct its appProtocol",
            )),
        }
    }
}
