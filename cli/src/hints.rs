//! Hints that only make sense for a directory: an object has no effect because the directory lacks what it needs.
//! In a cluster the missing object may follow, so there is no hint.

use std::collections::BTreeMap;

use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::gateway::{Gateway, Listener, ListenerSet};
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::SetVerdict;
use vestibule_model::object::Object;
use vestibule_model::protocol::Transport;
use vestibule_model::route::Route;
use vestibule_operator::translate::Translator;

/// Warnings by object; only for objects that have some.
#[must_use]
pub(crate) fn hints(translator: &Translator) -> BTreeMap<ObjectKey, Vec<Finding>> {
    let ready = services_with_endpoints(translator);
    translator
        .objects()
        .filter_map(|(key, object)| {
            let findings = match object.as_ref() {
                Object::Gateway(gateway) => of_gateway(translator, gateway),
                Object::ListenerSet(set) => of_set(translator, set),
                route => of_route(translator, &ready, route.as_route()?),
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
    ready: &BTreeMap<ObjectName, bool>,
    route: Route<'_>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for reference in route.parents() {
        let Some(parent) = reference.parent(&route.name().namespace) else {
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
        let reference = &backend.reference;
        if reference.is(Kind::Service) && ready.get(&reference.target) == Some(&false) {
            findings.push(ignored(
                &reference.field,
                format!(
                    "Service {} has no ready endpoint, so its {}",
                    reference.target,
                    match route {
                        Route::Port(route) if route.transport == Transport::Udp => {
                            "datagrams are dropped"
                        }
                        Route::Tls(_) | Route::Port(_) => "connections are closed",
                        Route::Http(_) => "requests are answered with 503",
                    }
                ),
                format!(
                    "add an EndpointSlice with the label kubernetes.io/service-name: {}",
                    reference.target.name
                ),
            ));
        }
    }
    findings
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

/// Every Service, and whether it has an endpoint.
fn services_with_endpoints(translator: &Translator) -> BTreeMap<ObjectName, bool> {
    let mut services = BTreeMap::new();
    for (key, object) in translator.objects() {
        match object.as_ref() {
            // A Service of type ExternalName has findings of its own.
            Object::Service(service) if !service.external_name => {
                services.entry(key.name.clone()).or_insert(false);
            }
            Object::EndpointSlice(slice) if !slice.addresses.is_empty() => {
                if let Some(service) = &slice.service {
                    let name = ObjectName::new(key.name.namespace.clone(), service.clone());
                    services.insert(name, true);
                }
            }
            _ => {}
        }
    }
    services
}
