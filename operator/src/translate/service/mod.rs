//! The desired Services in front of the proxies, for each Gateway. This module is pure: the caller
//! applies them.
//!
//! A Gateway has two Services. The *front* has the address. It is in the namespace of the proxies,
//! because a Service selects only pods of its own namespace. The *alias* is in the Gateway's
//! namespace, gives the Gateway a name inside the cluster, and carries what `spec.infrastructure` asks
//! for. A label with the Gateway's UID identifies both.

mod build;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use vestibule_model::condition::Address;
use vestibule_model::key::ObjectName;
use vestibule_model::parameters::ServiceParameters;
use vestibule_model::protocol::{Port, TransportPort};
use vestibule_model::selector::Labels;
use vestibule_model::service::{IpFamily, IpFamilyPolicy, ServiceType, TrafficPolicy};

pub use build::{GATEWAY_ANNOTATION, MANAGED_BY_LABEL, UID_LABEL};
pub(super) use build::{build, unreachable};

/// What the Services of every Gateway have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSettings {
    /// Prefix of all names, and the value of the label `app.kubernetes.io/managed-by`.
    pub release: Arc<str>,
    /// The namespace of the proxies.
    pub namespace: Arc<str>,
    /// Domain of the cluster's DNS, such as `cluster.local`.
    pub cluster_domain: Arc<str>,
    /// Labels of the proxies' pods.
    pub selector: Labels,
    /// Services in that namespace whose endpoints are pods of the release: proxies, operators and
    /// webhooks.
    pub components: BTreeSet<Arc<str>>,
    /// The values of what neither a Gateway nor its class sets. If the type is absent here too, it is
    /// LoadBalancer; if the traffic policy is, it is Local.
    pub defaults: ServiceParameters,
}

/// The desired state of a Gateway's Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DesiredService {
    /// The Services stay as they are, whether they exist or not. The Gateway cannot be read, is not
    /// accepted, has no port, or asks for addresses that it cannot have, or its class does not exist. A
    /// mistake in an edit must not cost it its address.
    Keep,
    /// The Services have to be like this.
    Make(Box<GatewayService>),
}

/// The desired Services of one Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayService {
    /// The Gateway.
    pub gateway: ObjectName,
    /// Its UID.
    pub uid: Arc<str>,
    /// Name of the front.
    pub front: ObjectName,
    /// Name of the alias.
    pub alias: ObjectName,
    /// `type` of the front.
    pub service_type: ServiceType,
    /// Listener port → internal port of the proxies; at least one.
    pub ports: BTreeMap<TransportPort, Port>,
    /// `externalTrafficPolicy`, where the type has one.
    pub external_traffic_policy: Option<TrafficPolicy>,
    /// `ipFamilyPolicy`.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// `ipFamilies`; empty: the cluster chooses.
    pub ip_families: Vec<IpFamily>,
    /// `loadBalancerClass`, for type LoadBalancer.
    pub load_balancer_class: Option<Arc<str>>,
    /// `allocateLoadBalancerNodePorts`, for type LoadBalancer. If it is `None`, the cluster decides.
    pub load_balancer_node_ports: Option<bool>,
    /// Addresses to ask for, from the load balancer or as cluster IPs.
    pub requested: Vec<IpAddr>,
    /// `selector` of the front.
    pub selector: Labels,
    /// Labels of the front.
    pub front_labels: Labels,
    /// Annotations of the front.
    pub front_annotations: BTreeMap<String, String>,
    /// Labels of the alias.
    pub alias_labels: Labels,
    /// Annotations of the alias.
    pub alias_annotations: BTreeMap<String, String>,
    /// `externalName` of the alias.
    pub external_name: String,
}

/// The addresses of a Gateway's front, as the cluster has assigned them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Its addresses: those of its load balancer for type LoadBalancer, and otherwise its cluster IPs.
    pub addresses: Vec<Address>,
    /// Every address that leads to it, from inside or outside the cluster, with each of its ports.
    pub sockets: BTreeSet<(IpAddr, TransportPort)>,
    /// Why it is not as desired, if it is not.
    pub problem: Option<ServiceProblem>,
}

/// Why a Service is not as desired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceProblem {
    /// The API server refuses it, or does not answer, as this message says.
    Refused(String),
    /// A Service that is not Vestibule's has its name, as this message says.
    NameTaken(String),
    /// Something such as an admission webhook changes this field of it when it is created. The field cannot be
    /// changed later.
    Changed(&'static str),
}

impl fmt::Display for ServiceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(message) | Self::NameTaken(message) => f.write_str(message),
            Self::Changed(field) => write!(
                f,
                "something such as an admission webhook changes {field} of new Services"
            ),
        }
    }
}

impl GatewayService {
    /// The front as it is applied, server-side, with these fields and no others.
    #[must_use]
    pub fn front(&self) -> Value {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|((port, transport), internal)| {
                json!({
                    "name": format!("{}-{port}", transport.as_str().to_ascii_lowercase()),
                    "protocol": transport.as_str(),
                    "port": port.get(),
                    "targetPort": internal.get(),
                })
            })
            .collect();
        let mut spec = Map::new();
        spec.insert("type".into(), self.service_type.as_str().into());
        spec.insert("selector".into(), json!(self.selector));
        spec.insert("ports".into(), ports.into());
        if let Some(policy) = self.external_traffic_policy {
            spec.insert("externalTrafficPolicy".into(), policy.as_str().into());
        }
        if let Some(policy) = self.ip_family_policy {
            spec.insert("ipFamilyPolicy".into(), policy.as_str().into());
        }
        if !self.ip_families.is_empty() {
            let families: Vec<&str> = self.ip_families.iter().map(|f| f.as_str()).collect();
            spec.insert("ipFamilies".into(), families.into());
        }
        if let Some(class) = &self.load_balancer_class {
            spec.insert("loadBalancerClass".into(), (**class).into());
        }
        if let Some(allocates) = self.load_balancer_node_ports {
            spec.insert("allocateLoadBalancerNodePorts".into(), allocates.into());
        }
        if let Some(first) = self.requested.first() {
            if self.service_type == ServiceType::LoadBalancer {
                spec.insert("loadBalancerIP".into(), first.to_string().into());
            } else {
                spec.insert("clusterIP".into(), first.to_string().into());
                let all: Vec<String> = self.requested.iter().map(ToString::to_string).collect();
                spec.insert("clusterIPs".into(), all.into());
            }
        }
        manifest(
            &self.front,
            &self.front_labels,
            &self.front_annotations,
            spec,
        )
    }

    /// The alias, as it is applied.
    #[must_use]
    pub fn alias(&self) -> Value {
        let mut spec = Map::new();
        spec.insert("type".into(), "ExternalName".into());
        spec.insert("externalName".into(), self.external_name.as_str().into());
        manifest(
            &self.alias,
            &self.alias_labels,
            &self.alias_annotations,
            spec,
        )
    }
}

/// Returns the path of an immutable field of a front that the manifest sets and that is different in the
/// present Service. Such a Service has to be deleted and made anew. A field that the manifest does not set may
/// have any value, because the cluster or a webhook of the load balancer chooses it.
#[must_use]
pub fn immutable_difference(manifest: &Value, present: &Value) -> Option<&'static str> {
    let addresses = texts(manifest, "/spec/clusterIPs");
    let assigned = texts(present, "/spec/clusterIPs");
    // The cluster may have added an address of the other family.
    if !assigned.starts_with(&addresses) {
        return Some("spec.clusterIPs");
    }
    let primary = |service| texts(service, "/spec/ipFamilies").first().copied();
    if let (Some(desired), Some(assigned)) = (primary(manifest), primary(present))
        && desired != assigned
    {
        return Some("spec.ipFamilies");
    }
    // `loadBalancerClass` is immutable while the type stays LoadBalancer. With a change of the type it disappears.
    let class = text(manifest, "/spec/loadBalancerClass")?;
    let stays = [manifest, present].into_iter().all(is_load_balancer);
    (stays && text(present, "/spec/loadBalancerClass") != Some(class))
        .then_some("spec.loadBalancerClass")
}

/// Whether the type of a Service is LoadBalancer.
#[must_use]
pub fn is_load_balancer(service: &Value) -> bool {
    text(service, "/spec/type") == Some("LoadBalancer")
}

fn text<'a>(service: &'a Value, pointer: &str) -> Option<&'a str> {
    service.pointer(pointer).and_then(Value::as_str)
}

fn texts<'a>(service: &'a Value, pointer: &str) -> Vec<&'a str> {
    let list = service.pointer(pointer).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn manifest(
    name: &ObjectName,
    labels: &Labels,
    annotations: &BTreeMap<String, String>,
    spec: Map<String, Value>,
) -> Value {
    let mut manifest = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": &*name.namespace,
            "name": &*name.name,
            "labels": labels,
            "annotations": annotations,
        },
    });
    manifest["spec"] = spec.into();
    manifest
}
