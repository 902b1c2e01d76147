//! Hints that only make sense for a directory: an object has no effect because the directory lacks what it needs.
//! In a cluster the missing object may follow, so there is no hint.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::gateway::{Gateway, Listener, ListenerSet};
use vestibule_model::http::{ExternalAuth, HttpFilter};
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::SetVerdict;
use vestibule_model::object::{EndpointSlice, Object};
use vestibule_model::protocol::{Transport, TransportPort};
use vestibule_model::reference::BackendRef;
use vestibule_model::route::Route;
use vestibule_operator::translate::Translator;

use crate::backend::translated;

/// Warnings by object; only for objects that have some.
#[must_use]
pub(crate) fn hints(translator: &Translator) -> BTreeMap<ObjectKey, Vec<Finding>> {
    let mut backends = Backends::new(translator);
    translator
        .objects()
        .filter_map(|(key, object)| {
            let findings = match object.as_ref() {
                Object::Gateway(gateway) => of_gateway(translator, gateway),
                Object::ListenerSet(set) => of_set(translator, set),
                route => of_route(translator, &mut backends, route.as_route()?),
            };
            (!findings.is_empty()).then(|| (key.clone(), findings))
        })
        .collect()
}

/// Turns findings about certificates that are not issued yet into warnings, because an issuer makes them or will make
/// them.
pub(crate) fn soften(translator: &Translator, object: &Object, findings: &mut [Finding]) {
    let listeners: &[Listener] = match object {
        Object::Gateway(gateway) => &gateway.listeners,
        Object::ListenerSet(set) => &set.listeners,
        _ => return,
    };
    let references = listeners
        .iter()
        .filter_map(|listener| listener.tls.as_ref())
        .flat_map(|tls| &tls.certificates);
    for reference in references {
        let there = translator
            .object(&ObjectKey::secret(reference.target.clone()))
            .is_some();
        if there || !translator.requests().contains_key(&reference.target) {
            continue;
        }
        for finding in &mut *findings {
            if finding.reason == Reason::InvalidCertificateRef && finding.field == reference.field {
                finding.severity = Severity::Warning;
                finding.action =
                    "no action is needed if an issuer creates it (`vestibule run` does)".into();
            }
        }
    }
}

fn ignored(field: impl Into<String>, message: String, action: impl Into<String>) -> Finding {
    Finding::warning(Reason::Ignored, field, message, action)
}

fn of_gateway(translator: &Translator, gateway: &Gateway) -> Vec<Finding> {
    let class = &gateway.class;
    let controller = translator.merge().controller();
    let (message, action) = match translator.merge().class(class) {
        Some(_) if translator.merge().is_our_class(class) => return Vec::new(),
        Some(other) => (
            format!(
                "GatewayClass {class} is of controller {:?}, so Vestibule does not serve this Gateway",
                &*other.controller
            ),
            format!("name a class whose controllerName is {controller:?}"),
        ),
        None => (
            format!("GatewayClass {class} is not here, so nothing of this Gateway is served"),
            format!("add a GatewayClass {class} with controllerName {controller:?}"),
        ),
    };
    vec![ignored("spec.gatewayClassName", message, action)]
}

fn of_set(translator: &Translator, set: &ListenerSet) -> Vec<Finding> {
    let (Some(gateway), SetVerdict::Orphan) = (&set.gateway, translator.merge().verdict(set))
    else {
        return Vec::new();
    };
    vec![no_parent(
        "spec.parentRef",
        &ParentKey::Gateway(gateway.clone()),
        translator,
    )]
}

fn of_route(
    translator: &Translator,
    backends: &mut Backends<'_>,
    route: Route<'_>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let namespace = &route.name().namespace;
    let parents = route.parents();
    if !parents.is_empty() && parents.iter().all(|one| one.parent(namespace).is_none()) {
        findings.push(ignored(
            "spec.parentRefs",
            "has no parent that Vestibule serves".into(),
            "refer to a Gateway or a ListenerSet",
        ));
    }
    for reference in parents {
        let Some(parent) = reference.parent(namespace) else {
            continue;
        };
        let known = translator
            .merge()
            .listeners(&parent)
            .is_some_and(|(_, gateway)| translator.merge().gateway(gateway).is_some());
        if !known {
            findings.push(no_parent(&reference.field(), &parent, translator));
        }
    }
    for backend in route.backends() {
        findings.extend(of_backend(backends, route, backend, Use::Serves));
    }
    for server in authorizers(route) {
        findings.extend(of_backend(backends, route, server, Use::Authorizes));
    }
    findings
}

/// The purpose for which a route needs a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Requests or connections go there.
    Serves,
    /// It says which requests may pass.
    Authorizes,
}

/// Returns the servers that authorize requests of a route.
fn authorizers(route: Route<'_>) -> impl Iterator<Item = &BackendRef> {
    let rules = match route {
        Route::Http(route) => route.rules.as_slice(),
        Route::Tls(_) | Route::Port(_) => [].as_slice(),
    };
    let auths = rules.iter().filter_map(|rule| authorizer(&rule.filters));
    auths.map(|auth| &auth.backend)
}

/// Returns the filter by which requests of a rule are authorized, if they get to it: a redirect before it answers them.
pub(crate) fn authorizer(filters: &[HttpFilter]) -> Option<&ExternalAuth> {
    let first = filters.iter().find_map(|filter| match filter {
        HttpFilter::Redirect(_) => Some(None),
        HttpFilter::Auth(auth) => Some(Some(auth)),
        _ => None,
    });
    first.flatten()
}

/// Returns the hint about a backend of a route to which requests or connections do not get.
fn of_backend(
    backends: &mut Backends<'_>,
    route: Route<'_>,
    backend: &BackendRef,
    purpose: Use,
) -> Option<Finding> {
    let reference = &backend.reference;
    let port = backend.port.filter(|_| reference.is(Kind::Service))?;
    let service = &reference.target;
    // Whether there are endpoints matters only if the proxies connect to them.
    if is_closed(backends.translator, route, &reference.field) {
        return None;
    }
    let outcome = match route {
        Route::Port(route) if route.transport == Transport::Udp => "its datagrams are dropped",
        Route::Tls(_) | Route::Port(_) => "its connections are closed",
        Route::Http(_) if purpose == Use::Authorizes => {
            "requests that it authorizes are answered with 503"
        }
        Route::Http(_) => "its requests are answered with 503",
    };
    match backends.endpoints(service, (port, route.kind().transport()))? {
        Endpoints::Serve => None,
        Endpoints::Absent => Some(ignored(
            &reference.field,
            format!("Service {service} has no ready endpoint, so {outcome}"),
            format!(
                "add an EndpointSlice with the label kubernetes.io/service-name: {}",
                service.name
            ),
        )),
        Endpoints::OnOtherPorts(name) => Some(ignored(
            &reference.field,
            format!("no ready endpoint of Service {service} has port {port}, so {outcome}"),
            match &**name {
                "" => "add a port without a name to its EndpointSlices".to_owned(),
                name => format!("add a port with the name {name} to its EndpointSlices"),
            },
        )),
    }
}

/// Returns whether a finding of translation about this field says that the proxies do not connect to the backend, because
/// the BackendTLSPolicy for it cannot be applied.
fn is_closed(translator: &Translator, route: Route<'_>, field: &str) -> bool {
    let findings = translator.findings().get(&route.key());
    findings
        .into_iter()
        .flatten()
        .any(|finding| finding.reason == Reason::InvalidBackendTLSPolicy && finding.field == field)
}

fn no_parent(field: &str, parent: &ParentKey, translator: &Translator) -> Finding {
    let there = translator.object(&parent.object()).is_some();
    let (state, action) = if there {
        ("is not served by Vestibule", "see the findings about it")
    } else {
        ("is not here", "add it, or name one that is")
    };
    ignored(
        field,
        format!(
            "{} {} {state}, so this has no effect there",
            parent.kind(),
            parent.name()
        ),
        action,
    )
}

/// The endpoints of a port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Endpoints {
    /// Some serve it.
    Serve,
    /// The Service has none.
    Absent,
    /// The Service has some, and none of them has the port, which has this name.
    OnOtherPorts(Arc<str>),
}

/// The ports of Services, each judged once, because many routes may have one backend.
struct Backends<'a> {
    translator: &'a Translator,
    slices: BTreeMap<ObjectName, Vec<&'a EndpointSlice>>,
    known: BTreeMap<(ObjectName, TransportPort), Option<Endpoints>>,
}

impl<'a> Backends<'a> {
    fn new(translator: &'a Translator) -> Self {
        let mut slices: BTreeMap<ObjectName, Vec<&EndpointSlice>> = BTreeMap::new();
        for (key, object) in translator.objects() {
            if let Object::EndpointSlice(slice) = object.as_ref()
                && let Some(service) = &slice.service
            {
                let name = ObjectName::new(key.name.namespace.clone(), service.clone());
                slices.entry(name).or_default().push(slice);
            }
        }
        Self {
            translator,
            slices,
            known: BTreeMap::new(),
        }
    }

    /// Returns the endpoints of a port; `None` if a finding of translation says what is wrong with the Service or the port.
    fn endpoints(&mut self, service: &ObjectName, port: TransportPort) -> Option<&Endpoints> {
        let Self {
            translator,
            slices,
            known,
        } = self;
        let judged = || Endpoints::of(translator, slices.get(service), service, port);
        let endpoints = known.entry((service.clone(), port)).or_insert_with(judged);
        endpoints.as_ref()
    }
}

impl Endpoints {
    fn of(
        translator: &Translator,
        slices: Option<&Vec<&EndpointSlice>>,
        name: &ObjectName,
        port: TransportPort,
    ) -> Option<Self> {
        let key = ObjectKey {
            kind: Kind::Service,
            name: name.clone(),
        };
        let Object::Service(service) = translator.object(&key)?.as_ref() else {
            return None;
        };
        if service.external_name {
            return None;
        }
        let service_port = service.port(port.0, port.1)?;
        let slices = slices.into_iter().flatten();
        let mut serving = slices
            .filter(|slice| slice.serving().next().is_some())
            .peekable();
        let has_any = serving.peek().is_some();
        let backend = translated(translator, name, port);
        let serves = match &backend {
            Some(backend) => !backend.endpoints.is_empty(),
            // No route in force uses the port.
            None => serving.any(|slice| slice.numbers_of(service_port).next().is_some()),
        };
        Some(match (serves, has_any) {
            (true, _) => Self::Serve,
            (false, false) => Self::Absent,
            (false, true) => Self::OnOtherPorts(service_port.name.clone()),
        })
    }
}
