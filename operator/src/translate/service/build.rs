//! Builds the Services of a Gateway from the settings of the Gateway, its class and the release.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use vestibule_model::condition::{Address, Reason};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{AddressRequest, Gateway};
use vestibule_model::key::ObjectName;
use vestibule_model::parameters::{GatewayParameters, ServiceParameters};
use vestibule_model::protocol::{Port, Transport};
use vestibule_model::service::{ServiceType, TrafficPolicy};

use super::{Assigned, GatewayService, ServiceProblem, ServiceSettings, names};

/// Label with the UID of the Gateway that a Service is for.
pub const UID_LABEL: &str = "vestibule.dev/gateway-uid";
/// Label that says who made a Service.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Annotation with the Gateway's namespace and name, which may be too long for a label.
pub const GATEWAY_ANNOTATION: &str = "vestibule.dev/gateway";
/// Upstream's label for objects that are made for a Gateway (`shared_types.go`).
const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// The Services of an accepted Gateway. `parameters` are in order of precedence. Fails if a Service of
/// this type cannot have the addresses that the Gateway asks for.
pub(in super::super) fn build(
    gateway: &Gateway,
    settings: &ServiceSettings,
    parameters: &[&GatewayParameters],
    ports: BTreeMap<(Port, Transport), Port>,
) -> Result<GatewayService, Finding> {
    let set = combine(parameters, &settings.defaults);
    let service_type = set.service_type.unwrap_or(ServiceType::LoadBalancer);
    let uid = &gateway.meta.uid;
    let front = ObjectName::new(
        settings.namespace.clone(),
        names::front(&settings.release, uid),
    );
    let alias = ObjectName::new(gateway.name.namespace.clone(), names::alias(&gateway.name));
    let external_name = format!(
        "{}.{}.svc.{}",
        front.name, front.namespace, settings.cluster_domain
    );

    // Our labels come last, so that nobody else can set what marks the Services as ours.
    let mut front_labels = gateway.infrastructure.labels.clone();
    front_labels.insert(MANAGED_BY_LABEL.into(), settings.release.to_string());
    front_labels.insert(UID_LABEL.into(), uid.to_string());
    let mut alias_labels = front_labels.clone();
    alias_labels.insert(GATEWAY_NAME_LABEL.into(), names::label(&gateway.name.name));
    let mut alias_annotations = gateway.infrastructure.annotations.clone();
    alias_annotations.insert(GATEWAY_ANNOTATION.into(), gateway.name.to_string());
    let mut front_annotations = set.annotations;
    front_annotations.extend(alias_annotations.clone());

    Ok(GatewayService {
        gateway: gateway.name.clone(),
        uid: uid.clone(),
        requested: requested(&gateway.addresses, service_type)?,
        ports,
        external_traffic_policy: service_type
            .is_external()
            .then(|| set.external_traffic_policy.unwrap_or(TrafficPolicy::Local)),
        ip_family_policy: set.ip_family_policy,
        ip_families: set.ip_families,
        load_balancer_class: set
            .load_balancer_class
            .filter(|_| service_type == ServiceType::LoadBalancer),
        load_balancer_node_ports: set
            .load_balancer_node_ports
            .filter(|_| service_type == ServiceType::LoadBalancer),
        service_type,
        selector: settings.selector.clone(),
        front,
        alias,
        front_labels,
        front_annotations,
        alias_labels,
        alias_annotations,
        external_name,
    })
}

/// Merges parameters: each field, and each annotation, comes from the first layer that sets it.
fn combine(parameters: &[&GatewayParameters], defaults: &ServiceParameters) -> ServiceParameters {
    let layers = parameters
        .iter()
        .map(|parameters| &parameters.service)
        .chain([defaults]);
    layers.fold(ServiceParameters::default(), |set, layer| {
        let mut annotations = layer.annotations.clone();
        annotations.extend(set.annotations);
        ServiceParameters {
            service_type: set.service_type.or(layer.service_type),
            annotations,
            external_traffic_policy: set
                .external_traffic_policy
                .or(layer.external_traffic_policy),
            ip_family_policy: set.ip_family_policy.or(layer.ip_family_policy),
            ip_families: if set.ip_families.is_empty() {
                layer.ip_families.clone()
            } else {
                set.ip_families
            },
            load_balancer_class: set
                .load_balancer_class
                .or_else(|| layer.load_balancer_class.clone()),
            load_balancer_node_ports: set
                .load_balancer_node_ports
                .or(layer.load_balancer_node_ports),
        }
    })
}

/// The addresses to ask for, each once. A Service without a load balancer has at most one address of
/// each family.
fn requested(
    requests: &[AddressRequest],
    service_type: ServiceType,
) -> Result<Vec<IpAddr>, Finding> {
    let mut ips: Vec<IpAddr> = Vec::new();
    let mut families = BTreeSet::new();
    for request in requests {
        let Some(ip) = request.ip.filter(|ip| !ips.contains(ip)) else {
            continue;
        };
        if !families.insert(ip.is_ipv4()) && service_type != ServiceType::LoadBalancer {
            return Err(not_usable(
                request,
                format!(
                    "{ip} is one too many: a Service of type {service_type} has one address per family"
                ),
            ));
        }
        ips.push(ip);
    }
    Ok(ips)
}

fn not_usable(request: &AddressRequest, message: String) -> Finding {
    Finding::refused(
        Reason::AddressNotUsable,
        format!("{}.value", request.field),
        message,
        "ask for another one, or for none",
    )
}

/// Why a Gateway cannot be reached at all, or not at the addresses that it asks for; `None` if it can.
/// The pair is the name and the type of its front.
pub(in super::super) fn unreachable(
    gateway: &Gateway,
    (front, service_type): (&ObjectName, ServiceType),
    assigned: Option<&Assigned>,
) -> Option<Finding> {
    let wrong = gateway.findings.iter().find(|finding| {
        let of_addresses = [Reason::AddressNotUsable, Reason::AddressNotAssigned];
        finding.refuses() && of_addresses.contains(&finding.reason)
    });
    if let Some(finding) = wrong {
        return Some(finding.clone());
    }
    let not_assigned = |message: String, action: &str| {
        Finding::refused(Reason::AddressNotAssigned, "", message, action)
    };
    let Some(assigned) = assigned else {
        return Some(not_assigned("Its Service is not there yet".into(), ""));
    };
    if let Some(ServiceProblem::NameTaken(_)) = assigned.problem {
        return Some(not_assigned(
            format!("A Service {front} that is not Vestibule's exists"),
            &format!("delete it, or restore its label {MANAGED_BY_LABEL}"),
        ));
    }
    let missing = gateway.addresses.iter().find(|request| {
        request
            .ip
            .is_some_and(|ip| !assigned.addresses.contains(&Address::Ip(ip)))
    });
    match (missing, &assigned.problem) {
        (Some(request), problem) => {
            let ip = request.ip.map(|ip| ip.to_string()).unwrap_or_default();
            let why = match problem {
                Some(problem) => format!(": {problem}"),
                None if assigned.addresses.is_empty() => " (it has none yet)".into(),
                None => String::new(),
            };
            let message = format!("Service {front} did not get {ip}{why}");
            Some(not_usable(request, message))
        }
        (None, Some(ServiceProblem::Changed(field))) => Some(not_assigned(
            format!(
                "Something such as an admission webhook changes {field} of Service {front} when it is created"
            ),
            "correct what changes it, or have the GatewayParameters ask for the value that it sets",
        )),
        (None, Some(problem)) => Some(not_assigned(
            format!("The API server refuses Service {front}: {problem}"),
            "correct spec.infrastructure and the GatewayParameters",
        )),
        (None, None) if assigned.addresses.is_empty() => Some(match service_type {
            ServiceType::LoadBalancer => not_assigned(
                format!("Service {front} has no address: no load balancer has given it one yet"),
                "see the events of the Service, or use another service type",
            ),
            ServiceType::ClusterIp | ServiceType::NodePort => {
                not_assigned(format!("Service {front} has no address yet"), "")
            }
        }),
        (None, None) => None,
    }
}
