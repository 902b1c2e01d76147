//! Compares the desired Services in front of Gateways with the present ones, and decides what to do about each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use vestibule_model::condition::Address;
use vestibule_model::key::ObjectName;
use vestibule_model::protocol::{Port, Transport, TransportPort};

use super::ServicePorts;
use crate::resource_version::is_later;
use crate::translate::{DesiredService, GatewayService, immutable_difference, is_load_balancer};

/// Annotation with a digest of the applied manifest. It shows a difference even if a field is no longer desired.
pub const APPLIED: &str = "vestibule.dev/applied";

/// A Service on the server that has the label of this release.
#[derive(Debug, Clone, PartialEq)]
pub struct PresentService {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// UID of the Gateway, from its label; empty without one.
    pub gateway: Arc<str>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether this release set its `loadBalancerClass`. Otherwise that is somebody else's, such as a webhook's.
    pub sets_class: bool,
    /// The whole object.
    pub object: Value,
}

impl PresentService {
    /// Whether this response to a write is later than what the watch has shown.
    pub(super) fn is_after(&self, there: Option<&Self>) -> bool {
        there.is_none_or(|there| is_later(&self.version, &there.version))
    }
}

/// Services by name.
pub type PresentServices = BTreeMap<ObjectName, PresentService>;

/// An action on one Service.
#[derive(Debug, Clone, PartialEq)]
pub enum ServiceAction {
    /// Create the Service, unless another one that is not ours has its name.
    Create(Value),
    /// Apply this manifest to the Service with this UID, because it differs.
    Apply(String, Value),
    /// Delete the Service with this UID and create it like this, because the change is not possible otherwise.
    Anew(String, Value),
    /// Delete the Service with this UID.
    Delete(String),
}

impl ServiceAction {
    /// Whether two actions have the same effect. The UID is not compared, because the server sets it.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.applied().is_some() && self.applied() == other.applied()
    }

    /// The manifest that it applies.
    fn applied(&self) -> Option<&Value> {
        match self {
            Self::Create(manifest) | Self::Apply(_, manifest) => Some(manifest),
            Self::Anew(..) | Self::Delete(_) => None,
        }
    }
}

/// Identifies the release that Services belong to. Another release may have the same name in another namespace.
#[derive(Debug, Clone)]
pub struct Release {
    /// Namespace of the release.
    pub namespace: String,
    /// The owner of its objects, if there is one. Its name is unique in the cluster.
    pub owner: Option<OwnerReference>,
}

impl Release {
    /// Whether a Service with the label of this release really belongs to it.
    #[must_use]
    pub fn has(&self, service: &Service) -> bool {
        let owners = service.metadata.owner_references.iter().flatten();
        let mut owned = false;
        for owner in owners.filter(|owner| owner.kind == "ClusterRole") {
            if self
                .owner
                .as_ref()
                .is_some_and(|ours| ours.name == owner.name)
            {
                return true;
            }
            owned = true;
        }
        if owned {
            return false;
        }
        // Without an owner, this depends on its namespace, or on the Service that it points to.
        let spec = service.spec.as_ref();
        let leads_here = spec
            .and_then(|spec| spec.external_name.as_ref())
            .is_some_and(|name| {
                let mut labels = name.split('.').skip(1);
                labels.next() == Some(&self.namespace) && labels.next() == Some("svc")
            });
        leads_here || service.metadata.namespace.as_ref() == Some(&self.namespace)
    }
}

/// Returns an owner reference in the form of a manifest.
#[must_use]
pub fn owner(reference: &OwnerReference) -> Value {
    json!({
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "name": reference.name,
        "uid": reference.uid,
    })
}

/// Returns the action for each Service. A Service that needs none is not in the result.
#[must_use]
pub fn plan(
    desired_services: &BTreeMap<Arc<str>, DesiredService>,
    present: &PresentServices,
    owner: Option<&Value>,
) -> BTreeMap<ObjectName, ServiceAction> {
    let mut actions = BTreeMap::new();
    for desired in desired_services.values() {
        let DesiredService::Make(service) = desired else {
            continue;
        };
        for (name, manifest, anew) in [
            (&service.front, service.front(), true),
            (&service.alias, service.alias(), false),
        ] {
            let manifest = complete(manifest, owner);
            let action = match present.get(name) {
                None => Some(ServiceAction::Create(manifest)),
                Some(there) if there.deleting => None,
                Some(there) if anew && must_be_made_anew(&manifest, there) => {
                    Some(ServiceAction::Anew(there.uid.clone(), manifest))
                }
                Some(there) if contains(&there.object, &manifest) => None,
                Some(there) => Some(ServiceAction::Apply(there.uid.clone(), manifest)),
            };
            if let Some(action) = action {
                actions.insert(name.clone(), action);
            }
        }
    }
    for (name, there) in present {
        let keep = match desired_services.get(&there.gateway) {
            Some(DesiredService::Keep) => true,
            Some(DesiredService::Make(service)) => *name == service.front || *name == service.alias,
            None => false,
        };
        if !keep && !there.deleting && !actions.contains_key(name) {
            actions.insert(name.clone(), ServiceAction::Delete(there.uid.clone()));
        }
    }
    actions
}

/// Whether a front has to be deleted and made anew, because an immutable field differs from the desired one.
fn must_be_made_anew(manifest: &Value, there: &PresentService) -> bool {
    // A class that somebody else set would come back with the new Service, and the Gateway would lose its address again
    // and again.
    let keeps_our_class = there.sets_class
        && manifest.pointer("/spec/loadBalancerClass").is_none()
        && [manifest, &there.object].into_iter().all(is_load_balancer);
    keeps_our_class || immutable_difference(manifest, &there.object).is_some()
}

/// Returns the addresses of the front of a Gateway, if it exists.
#[must_use]
pub fn addresses(service: &GatewayService, present: &PresentServices) -> Option<Vec<Address>> {
    let front = present.get(&service.front)?;
    if front.gateway != service.uid || front.deleting {
        return None;
    }
    let object = &front.object;
    if object.pointer("/spec/type").and_then(Value::as_str) == Some("LoadBalancer") {
        let ingress = object.pointer("/status/loadBalancer/ingress");
        let ingress = ingress.and_then(Value::as_array).into_iter().flatten();
        let address = |entry: &Value| {
            let text = |field: &str| entry.get(field).and_then(Value::as_str);
            let ip = text("ip").and_then(|ip| ip.parse().ok()).map(Address::Ip);
            ip.or_else(|| {
                let hostname = text("hostname").filter(|name| !name.is_empty())?;
                Some(Address::Hostname(hostname.into()))
            })
        };
        return Some(ingress.filter_map(address).collect());
    }
    let ips = object.pointer("/spec/clusterIPs").and_then(Value::as_array);
    let ip = |value: &Value| Some(Address::Ip(value.as_str()?.parse().ok()?));
    Some(ips.into_iter().flatten().filter_map(ip).collect())
}

/// Returns every address that leads to the front of a Gateway, with each of its ports.
#[must_use]
pub fn sockets(
    service: &GatewayService,
    present: &PresentServices,
) -> BTreeSet<(IpAddr, TransportPort)> {
    let front = present.get(&service.front);
    let Some(front) = front.filter(|front| front.gateway == service.uid) else {
        return BTreeSet::new();
    };
    let list = |path| {
        let list = front.object.pointer(path).and_then(Value::as_array);
        list.into_iter().flatten()
    };
    let ingress = list("/status/loadBalancer/ingress").filter_map(|entry| entry.get("ip"));
    let addresses = list("/spec/clusterIPs").chain(list("/spec/externalIPs"));
    let addresses = addresses.chain(ingress);
    let addresses = addresses.filter_map(|text| text.as_str()?.parse::<IpAddr>().ok());
    let ports = ports(service, present);
    addresses
        .flat_map(|address| ports.keys().map(move |port| (address, *port)))
        .collect()
}

/// Returns the ports of a Gateway's front, and the internal port behind each.
#[must_use]
pub fn ports(service: &GatewayService, present: &PresentServices) -> ServicePorts {
    let front = present.get(&service.front);
    let front = front.filter(|front| front.gateway == service.uid && !front.deleting);
    let ports = front.and_then(|front| front.object.pointer("/spec/ports")?.as_array());
    let port = |entry: &Value| {
        let number = |field| Port::new(entry.get(field)?.as_u64()?.try_into().ok()?);
        let transport = match entry.get("protocol").and_then(Value::as_str) {
            Some("UDP") => Transport::Udp,
            _ => Transport::Tcp,
        };
        Some(((number("port")?, transport), number("targetPort")?))
    };
    ports.into_iter().flatten().filter_map(port).collect()
}

/// Returns the manifest with its owner and its digest.
pub(super) fn complete(mut manifest: Value, owner: Option<&Value>) -> Value {
    if let Some(owner) = owner
        && let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("ownerReferences".into(), json!([owner]));
    }
    let digest = Sha256::digest(manifest.to_string());
    let digest = digest
        .iter()
        .take(8)
        .fold(0_u64, |digest, byte| digest << 8 | u64::from(*byte));
    if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(APPLIED.into(), format!("{digest:016x}").into());
        }
    }
    manifest
}

/// Whether `there` contains everything in `desired_value`. It may contain more, which belongs to others. The elements
/// of a list may be at any place, since others may add some.
fn contains(there: &Value, desired_value: &Value) -> bool {
    match (there, desired_value) {
        (Value::Object(there), Value::Object(desired_value)) => {
            desired_value.iter().all(|(field, desired_value)| {
                let empty = desired_value
                    .as_object()
                    .is_some_and(serde_json::Map::is_empty);
                there
                    .get(field)
                    .map_or(empty, |there| contains(there, desired_value))
            })
        }
        (Value::Array(there), Value::Array(desired_value)) => desired_value
            .iter()
            .all(|desired_value| there.iter().any(|there| contains(there, desired_value))),
        (there, desired_value) => there == desired_value,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
