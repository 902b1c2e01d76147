//! Decodes JSON into an object of the model. It finds the kind, decodes the object, and reports what is wrong with
//! it.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::protocol::Transport;

use crate::text::{one_line, plain, word};
use crate::unknown::UnknownFields;
use crate::{core, gateway_api, names, schema, vestibule};

/// The namespace of an object without one, as with kubectl.
const DEFAULT_NAMESPACE: &str = "default";
/// How deeply Lists may be nested.
const MAX_LIST_DEPTH: usize = 4;

/// The result of decoding a JSON value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// An object of a kind that Vestibule reads. Its findings are in the object, if its kind has a place for them. The
    /// others are in the list, with what the schema of the kind refuses although it can be read.
    Object(Box<Object>, Vec<Finding>),
    /// An object of such a kind whose body cannot be decoded.
    Unreadable(ObjectKey, Meta, Finding),
    /// An object that Vestibule does not read, because of its kind, or because this release does not know its version
    /// of the API.
    Unknown {
        /// `apiVersion`, cut and escaped.
        api_version: String,
        /// `kind`, cut and escaped.
        kind: String,
        /// `namespace/name` or `name`, cut and escaped. It is empty if there is none.
        name: String,
    },
    /// Not a Kubernetes object, or one without a valid name.
    NotAnObject(Finding),
}

impl Decoded {
    /// The object, even if it is unreadable, with the findings that are not in it.
    #[must_use]
    pub fn into_object(self) -> Option<(Object, Vec<Finding>)> {
        match self {
            Self::Object(object, findings) => Some((*object, findings)),
            Self::Unreadable(key, meta, finding) => {
                Some((Object::Unreadable(key, meta, finding), Vec::new()))
            }
            Self::Unknown { .. } | Self::NotAnObject(_) => None,
        }
    }
}

/// Decodes one object. It accepts any JSON.
#[must_use]
pub fn decode(mut value: Value) -> Decoded {
    strip_nulls(&mut value);
    let Value::Object(mut body) = value else {
        return not_an_object("", "is not an object", "write one Kubernetes object");
    };
    let text = |key: &str| body.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    for (field, text) in [("apiVersion", api_version), ("kind", kind)] {
        if text.is_empty() {
            return not_an_object(field, "is absent", "write one Kubernetes object");
        }
    }
    let Some(kind) = known(api_version, kind) else {
        return Decoded::Unknown {
            api_version: word(api_version),
            kind: word(kind),
            name: display_name(&body),
        };
    };
    let key = match key(kind, &mut body) {
        Ok(key) => key,
        Err(finding) => return Decoded::NotAnObject(finding),
    };
    // Controllers of any version write statuses. Whatever is in a status, it must not affect the spec.
    body.remove("status");
    let meta = lenient_meta(&body);
    let body = Value::Object(body);
    let refused_by_schema = schema::refusals(kind, &body);
    convert(kind, body).map_or_else(
        |finding| Decoded::Unreadable(key, meta, finding),
        |(object, mut findings)| {
            findings.extend(refused_by_schema);
            Decoded::Object(Box::new(object), findings)
        },
    )
}

/// The objects in `value`: the items of a `List`, or of a list of one kind as servers send it. Every other value is
/// returned as it is. Items of a typed list inherit its kind and version.
#[must_use]
pub fn flatten(value: Value) -> Vec<Value> {
    let mut objects = Vec::new();
    flatten_into(value, 0, &mut objects);
    objects
}

fn flatten_into(mut value: Value, depth: usize, objects: &mut Vec<Value>) {
    let kind = value
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let Some(item_kind) = kind.strip_suffix("List").map(str::to_owned) else {
        return objects.push(value);
    };
    let api_version = value.get("apiVersion").cloned();
    let items = value.get_mut("items").and_then(Value::as_array_mut);
    let Some(items) = items.filter(|_| depth < MAX_LIST_DEPTH).map(std::mem::take) else {
        return objects.push(value);
    };
    for mut item in items {
        if let Value::Object(fields) = &mut item
            && !item_kind.is_empty()
        {
            if let Some(version) = &api_version {
                fields
                    .entry("apiVersion")
                    .or_insert_with(|| version.clone());
            }
            fields
                .entry("kind")
                .or_insert_with(|| item_kind.clone().into());
        }
        flatten_into(item, depth + 1, objects);
    }
}

/// The kind, if Vestibule reads it in this version.
fn known(api_version: &str, kind: &str) -> Option<Kind> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let kind = Kind::ALL
        .into_iter()
        .find(|k| k.group() == group && k.as_str() == kind)?;
    versions(kind).contains(&version).then_some(kind)
}

/// The versions of the API in which Vestibule reads a kind, the preferred one first.
pub(crate) fn versions(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::GatewayClass | Kind::Gateway | Kind::HttpRoute | Kind::ReferenceGrant => {
            &["v1", "v1beta1"]
        }
        Kind::GrpcRoute | Kind::TcpRoute | Kind::UdpRoute => &["v1", "v1alpha2"],
        // These are versions of the experimental channel. Old objects keep the version in which they were written.
        Kind::TlsRoute => &["v1", "v1alpha3", "v1alpha2"],
        Kind::GatewayParameters
        | Kind::AcmeIssuer
        | Kind::ClusterAcmeIssuer
        | Kind::HostnameGrant
        | Kind::HostnameClaim => &["v1alpha1"],
        Kind::ListenerSet
        | Kind::Namespace
        | Kind::Service
        | Kind::EndpointSlice
        | Kind::Secret
        | Kind::ConfigMap => &["v1"],
        // Both versions have the same form.
        Kind::BackendTlsPolicy => &["v1", "v1alpha3"],
    }
}

/// The key of an object. If the namespace is absent, it is filled in.
fn key(kind: Kind, body: &mut Map<String, Value>) -> Result<ObjectKey, Finding> {
    let absent = |field: &str| {
        Finding::refused(
            Reason::Unreadable,
            field,
            "is absent",
            "add metadata with a name",
        )
    };
    let Some(Value::Object(metadata)) = body.get_mut("metadata") else {
        return Err(absent("metadata"));
    };
    let Some(name) = metadata.get("name").and_then(Value::as_str) else {
        return Err(absent("metadata.name"));
    };
    // Some kinds, such as those of RBAC, allow other names, but no kind that is read here does.
    if !names::is_subdomain(name) {
        return Err(names::not_a_name("metadata.name", name));
    }
    let name = name.to_owned();
    if !kind.is_namespaced() {
        metadata.remove("namespace");
        return Ok(ObjectKey::new(kind, "", name));
    }
    let namespace = match metadata.get("namespace") {
        None => DEFAULT_NAMESPACE,
        Some(Value::String(text)) if text.is_empty() => DEFAULT_NAMESPACE,
        Some(Value::String(text)) if names::is_subdomain(text) => text,
        Some(other) => {
            let text = other.as_str().unwrap_or("a value that is not text");
            return Err(names::not_a_name("metadata.namespace", text));
        }
    }
    .to_owned();
    metadata.insert("namespace".into(), namespace.as_str().into());
    Ok(ObjectKey::new(kind, namespace, name))
}

/// The metadata of an object whose body may not decode.
fn lenient_meta(body: &Map<String, Value>) -> Meta {
    let metadata = body.get("metadata");
    let field = |key: &str| metadata.and_then(|m| m.get(key));
    Meta {
        uid: field("uid")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .into(),
        created: field("creationTimestamp")
            .and_then(Value::as_str)
            .and_then(|text| text.parse::<jiff::Timestamp>().ok())
            .map_or(0, jiff::Timestamp::as_second),
        generation: field("generation")
            .and_then(Value::as_i64)
            .unwrap_or_default(),
        deleting: field("deletionTimestamp").is_some(),
    }
}

fn convert(kind: Kind, body: Value) -> Result<(Object, Vec<Finding>), Finding> {
    Ok(match kind {
        Kind::GatewayClass => {
            let (wire, unknown) = typed(kind, body)?;
            let object = gateway_api::convert_gateway_class(wire, &unknown);
            (Object::GatewayClass(object), Vec::new())
        }
        Kind::Gateway => {
            let (wire, unknown) = typed(kind, body)?;
            let object = gateway_api::convert_gateway(wire, &unknown);
            (Object::Gateway(Arc::new(object)), Vec::new())
        }
        Kind::ListenerSet => {
            let (wire, unknown) = typed(kind, body)?;
            let object = gateway_api::convert_listener_set(wire, &unknown);
            (Object::ListenerSet(Arc::new(object)), Vec::new())
        }
        Kind::TlsRoute => {
            let (wire, unknown) = typed(kind, body)?;
            let object = gateway_api::convert_tls_route(wire, &unknown);
            (Object::TlsRoute(object), Vec::new())
        }
        Kind::TcpRoute | Kind::UdpRoute => (port_route(kind, body)?, Vec::new()),
        Kind::HttpRoute => {
            let (wire, unknown) = typed(kind, body)?;
            let object = gateway_api::convert_http_route(wire, &unknown);
            (Object::HttpRoute(object), Vec::new())
        }
        Kind::GrpcRoute => {
            let (wire, unknown) = typed(kind, body)?;
            let object = gateway_api::convert_grpc_route(wire, &unknown);
            (Object::HttpRoute(object), Vec::new())
        }
        Kind::ReferenceGrant => {
            let (wire, unknown) = typed(kind, body)?;
            let (object, findings) = gateway_api::convert_reference_grant(wire, &unknown);
            (Object::ReferenceGrant(object), findings)
        }
        Kind::GatewayParameters => {
            let (wire, unknown) = typed(kind, body)?;
            let object = vestibule::convert_gateway_parameters(wire, &unknown);
            (Object::GatewayParameters(Arc::new(object)), Vec::new())
        }
        Kind::AcmeIssuer => {
            let (wire, unknown) = typed(kind, body)?;
            let object = vestibule::convert_acme_issuer(wire, &unknown);
            (Object::AcmeIssuer(Arc::new(object)), Vec::new())
        }
        Kind::ClusterAcmeIssuer => {
            let (wire, unknown) = typed(kind, body)?;
            let object = vestibule::convert_cluster_acme_issuer(wire, &unknown);
            (Object::AcmeIssuer(Arc::new(object)), Vec::new())
        }
        Kind::HostnameGrant => {
            let (wire, unknown) = typed(kind, body)?;
            let object = vestibule::convert_hostname_grant(wire, &unknown);
            (Object::HostnameGrant(Arc::new(object)), Vec::new())
        }
        Kind::HostnameClaim => {
            let (wire, unknown) = typed(kind, body)?;
            let object = vestibule::convert_hostname_claim(wire, &unknown);
            (Object::HostnameClaim(Arc::new(object)), Vec::new())
        }
        Kind::Namespace => {
            let (wire, _) = typed(kind, body)?;
            (Object::Namespace(core::convert_namespace(wire)), Vec::new())
        }
        Kind::Service => {
            let (wire, _) = typed(kind, body)?;
            let (object, findings) = core::convert_service(wire);
            (Object::Service(object), findings)
        }
        Kind::EndpointSlice => {
            let (wire, _) = typed(kind, body)?;
            let object = core::convert_endpoint_slice(wire);
            (Object::EndpointSlice(object), Vec::new())
        }
        Kind::Secret => {
            let (wire, _) = typed(kind, body)?;
            (Object::Secret(core::convert_secret(wire)), Vec::new())
        }
        Kind::BackendTlsPolicy => {
            let (wire, unknown) = typed(kind, body)?;
            let object = gateway_api::convert_backend_tls_policy(wire, &unknown);
            (Object::BackendTlsPolicy(object), Vec::new())
        }
        Kind::ConfigMap => {
            let (wire, _) = typed(kind, body)?;
            let object = core::convert_config_map(wire);
            (Object::ConfigMap(object), Vec::new())
        }
    })
}

/// Decodes a body into its wire type and collects the fields that the type does not have.
/// A TCPRoute or UDPRoute.
fn port_route(kind: Kind, body: Value) -> Result<Object, Finding> {
    let transport = kind.transport();
    let (metadata, spec, unknown) = match transport {
        Transport::Tcp => {
            let (wire, unknown) = typed::<gateway_api::TCPRoute>(kind, body)?;
            (wire.metadata, wire.spec.0, unknown)
        }
        Transport::Udp => {
            let (wire, unknown) = typed::<gateway_api::UDPRoute>(kind, body)?;
            (wire.metadata, wire.spec.0, unknown)
        }
    };
    let route = gateway_api::convert_port_route(transport, &metadata, spec, &unknown);
    Ok(Object::PortRoute(route))
}

fn typed<T: DeserializeOwned>(kind: Kind, body: Value) -> Result<(T, UnknownFields), Finding> {
    let mut unknown = UnknownFields::default();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(body, &mut track);
    match serde_ignored::deserialize(deserializer, |path| unknown.add(&path)) {
        Ok(wire) => Ok((wire, unknown)),
        Err(error) => {
            let path = track.path().to_string();
            let message = if kind == Kind::Secret {
                // The decoder quotes the value that it cannot read, and that may be a private key. Its error has no type
                // that tells a value of another type from text that is not base64: `classify` says `Data` of both. So
                // the text is compared. If it changes, this message is wrong about values of another type, and no more.
                if path.starts_with("data.") && !error.to_string().starts_with("invalid type") {
                    "is not base64".to_owned()
                } else {
                    "does not decode".to_owned()
                }
            } else {
                format!("does not decode: {}", one_line(&plain(&error.to_string())))
            };
            Err(Finding::refused(
                Reason::Unreadable,
                one_line(&path),
                message,
                format!("correct the field as the API of {kind} has it"),
            ))
        }
    }
}

/// Removes nulls, because in the API a null is the same as an absent field.
fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, v| !v.is_null());
            fields.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn display_name(body: &Map<String, Value>) -> String {
    let field = |key: &str| {
        body.get("metadata")
            .and_then(|m| m.get(key))
            .and_then(Value::as_str)
            .map(word)
    };
    match (field("namespace"), field("name")) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (None, Some(name)) => name,
        (_, None) => String::new(),
    }
}

fn not_an_object(field: &str, message: &str, action: &str) -> Decoded {
    Decoded::NotAnObject(Finding::refused(Reason::Unreadable, field, message, action))
}
