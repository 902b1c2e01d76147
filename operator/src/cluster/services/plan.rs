//! Compares the desired Services in front of Gateways with the present ones, and decides what to do about each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};
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
    /// Merge this patch into the Service with this UID, to remove what others added and what an applied manifest would
    /// leave.
    Prune(String, Value),
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

    /// The manifest or patch that it applies.
    fn applied(&self) -> Option<&Value> {
        match self {
            Self::Create(applied) | Self::Apply(_, applied) | Self::Prune(_, applied) => {
                Some(applied)
            }
            Self::Anew(..) | Self::Delete(_) => None,
        }
    }
}

/// Identifies the release that Services belong to. Another release may have the same name in another namespace.
#[derive(Debug, Clone)]
pub struct Release {
    /// Namespace of the release.
    pub namespace: String,
    /// The owner of its objects, if there is one. Its name is unique in the cluster, and its UID is empty if it is not known.
    pub owner: Option<OwnerReference>,
}

impl Release {
    /// Whether a Service with the label of this release really belongs to it.
    #[must_use]
    pub fn has(&self, service: &Service) -> bool {
        let owners = service.metadata.owner_references.iter().flatten();
        let mut owned = false;
        for owner in owners.filter(|owner| owner.kind == "ClusterRole") {
            if self.owner.as_ref().is_some_and(|ours| {
                ours.name == owner.name && (ours.uid.is_empty() || ours.uid == owner.uid)
            }) {
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
            .filter(|spec| spec.type_.as_deref() == Some("ExternalName"))
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
                Some(there) => repair(manifest, there),
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

/// Returns the action that makes a present Service as its manifest has it, if it is not.
fn repair(manifest: Value, there: &PresentService) -> Option<ServiceAction> {
    let object = &there.object;
    let is_complete = contains(object, &manifest);
    match additions(object, &manifest) {
        // The API server would refuse an applied manifest. It adds its ports beside those of others, and the names of ports
        // have to differ. It also leaves labels of the selector and external addresses, which the chart's policy refuses.
        Some(patch)
            if is_complete
                || is_port_name_taken(object, &manifest)
                || exact_selector(object, &manifest).is_some()
                || has_external_addresses(object) =>
        {
            Some(ServiceAction::Prune(there.uid.clone(), patch))
        }
        _ if is_complete => None,
        _ => Some(ServiceAction::Apply(there.uid.clone(), manifest)),
    }
}

/// Returns the merge patch that removes what others added where a Service must have nothing beside the manifest: with one
/// more label in its selector it selects no proxy, and one more port leads to a port of the proxies that is not its
/// Gateway's. External addresses go too, because the policy of the chart refuses every write of a Service that has some.
/// Server-side apply leaves what others own. Elsewhere, additions of others stay.
fn additions(object: &Value, manifest: &Value) -> Option<Value> {
    let selector = exact_selector(object, manifest).map(|patch| ("selector", patch));
    let ports = exact_ports(object, manifest).map(|ports| ("ports", ports));
    let addresses = has_external_addresses(object).then_some(("externalIPs", Value::Null));
    let fields = selector.into_iter().chain(ports).chain(addresses);
    let mut spec: Map<String, Value> = fields
        .map(|(field, patch)| (field.to_owned(), patch))
        .collect();
    if spec.is_empty() {
        return None;
    }
    // The policy judges the Service that results, so the patch also restores what the policy demands.
    let demanded: &[&str] = if is_external(manifest) {
        &["type", "externalName"]
    } else {
        &["selector"]
    };
    for field in demanded {
        let of = |service: &Value| service.get("spec")?.get(field).cloned();
        if let Some(desired) = of(manifest)
            && of(object).as_ref() != Some(&desired)
        {
            spec.entry(*field).or_insert(desired);
        }
    }
    Some(json!({"spec": spec}))
}

/// Whether a Service has external addresses, which no manifest has.
fn has_external_addresses(object: &Value) -> bool {
    let addresses = object.pointer("/spec/externalIPs");
    let addresses = addresses.and_then(Value::as_array);
    addresses.is_some_and(|addresses| !addresses.is_empty())
}

/// Returns the merge patch that gives a Service the selector of the manifest, if it has labels that are not in it. A
/// manifest without a selector is that of an alias, which must not have one: the policy of the chart would refuse further
/// writes.
fn exact_selector(object: &Value, manifest: &Value) -> Option<Value> {
    let desired = manifest.pointer("/spec/selector");
    let desired = desired.and_then(Value::as_object);
    let mut patch = desired.cloned().unwrap_or_default();
    let present = object.pointer("/spec/selector")?.as_object()?;
    let all = patch.len();
    for label in present.keys() {
        patch.entry(label.as_str()).or_insert(Value::Null);
    }
    (patch.len() > all).then(|| patch.into())
}

/// Returns the ports that the Service should have, if it has others as well. Each keeps what the API server and others
/// have set in it, such as its node port.
fn exact_ports(object: &Value, manifest: &Value) -> Option<Value> {
    let desired = manifest.pointer("/spec/ports")?.as_array()?;
    let present = ports_in(object);
    let is_desired = |there: &Value| desired.iter().any(|port| port_id(port) == port_id(there));
    if present.iter().all(is_desired) {
        return None;
    }
    let ports: Vec<Value> = desired
        .iter()
        .map(|port| {
            let there = present.iter().find(|there| port_id(there) == port_id(port));
            let mut entry = there.cloned().unwrap_or_else(|| json!({}));
            if let (Some(entry), Some(port)) = (entry.as_object_mut(), port.as_object()) {
                entry.extend(port.clone());
            }
            entry
        })
        .collect();
    Some(ports.into())
}

/// Whether a port of the Service has the name that another port has in the manifest.
fn is_port_name_taken(object: &Value, manifest: &Value) -> bool {
    ports_in(manifest).iter().any(|port| {
        ports_in(object)
            .iter()
            .any(|there| port_id(there) != port_id(port) && there.get("name") == port.get("name"))
    })
}

fn ports_in(object: &Value) -> &[Value] {
    let ports = object.pointer("/spec/ports").and_then(Value::as_array);
    ports.map(Vec::as_slice).unwrap_or_default()
}

/// Returns the number and the protocol of a port, which no other port of the Service has.
fn port_id(entry: &Value) -> (Option<&Value>, &str) {
    let protocol = entry.get("protocol").and_then(Value::as_str);
    (entry.get("port"), protocol.unwrap_or("TCP"))
}

/// Returns the front of each Gateway that has one, by the UID of the Gateway. `namespace` is that of the release, where all
/// fronts are. Elsewhere a tenant can make a Service with the labels of a front.
#[must_use]
pub fn fronts<'a>(
    present: &'a PresentServices,
    namespace: &str,
) -> BTreeMap<Arc<str>, &'a PresentService> {
    let fronts = present
        .iter()
        .filter(|(name, there)| *name.namespace == *namespace && !is_external(&there.object));
    fronts
        .map(|(_, there)| (there.gateway.clone(), there))
        .collect()
}

/// Whether a Service is of the type `ExternalName`.
fn is_external(object: &Value) -> bool {
    let service_type = object.pointer("/spec/type").and_then(Value::as_str);
    service_type == Some("ExternalName")
}

/// Returns the front that a Gateway should have, if it exists.
fn front<'a>(service: &GatewayService, present: &'a PresentServices) -> Option<&'a PresentService> {
    let front = present.get(&service.front);
    front.filter(|front| front.gateway == service.uid)
}

/// Returns the addresses of the front of a Gateway, if it exists.
#[must_use]
pub fn addresses(service: &GatewayService, present: &PresentServices) -> Option<Vec<Address>> {
    addresses_of(front(service, present)?)
}

/// Returns the addresses of a front, unless it is being deleted.
#[must_use]
pub fn addresses_of(front: &PresentService) -> Option<Vec<Address>> {
    if front.deleting {
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
    front(service, present).map(sockets_of).unwrap_or_default()
}

/// Returns every address that leads to a front, with each of its ports.
#[must_use]
pub fn sockets_of(front: &PresentService) -> BTreeSet<(IpAddr, TransportPort)> {
    let list = |path| {
        let list = front.object.pointer(path).and_then(Value::as_array);
        list.into_iter().flatten()
    };
    let ingress = list("/status/loadBalancer/ingress").filter_map(|entry| entry.get("ip"));
    let addresses = list("/spec/clusterIPs").chain(list("/spec/externalIPs"));
    let addresses = addresses.chain(ingress);
    let addresses = addresses.filter_map(|text| text.as_str()?.parse::<IpAddr>().ok());
    let ports = ports_of(front);
    addresses
        .flat_map(|address| ports.keys().map(move |port| (address, *port)))
        .collect()
}

/// Returns the ports of a Gateway's front, and the internal port behind each.
#[must_use]
pub fn ports(service: &GatewayService, present: &PresentServices) -> ServicePorts {
    front(service, present).map(ports_of).unwrap_or_default()
}

/// Returns the ports of a front, and the internal port behind each. One that is being deleted has none.
#[must_use]
pub fn ports_of(front: &PresentService) -> ServicePorts {
    if front.deleting {
        return ServicePorts::new();
    }
    let port = |entry: &Value| {
        let number = |field| Port::new(entry.get(field)?.as_u64()?.try_into().ok()?);
        let transport = match entry.get("protocol").and_then(Value::as_str) {
            Some("UDP") => Transport::Udp,
            _ => Transport::Tcp,
        };
        Some(((number("port")?, transport), number("targetPort")?))
    };
    ports_in(&front.object).iter().filter_map(port).collect()
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

/// Whether `there` contains everything in `desired_value`. It may contain more, which belongs to others; [`additions`]
/// finds what must not be there. The elements of a list may be at any place, since others may add some.
fn contains(there: &Value, desired_value: &Value) -> bool {
    match (there, desired_value) {
        (Value::Object(there), Value::Object(desired_value)) => {
            desired_value.iter().all(|(field, desired_value)| {
                let empty = desired_value.as_object().is_some_and(Map::is_empty);
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
