//! The API server as JSON over HTTP: what scenarios read in process, because a `kubectl` for each look
//! would use up the machine.

use anyhow::{Context as _, Result, anyhow};
use http::{Method, Request, StatusCode};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

/// A kind of object: where the API has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    prefix: &'static str,
    plural: &'static str,
}

macro_rules! kinds {
    ($($name:ident = $prefix:literal $plural:literal;)*) => {
        $(pub(crate) const $name: Kind = Kind { prefix: $prefix, plural: $plural };)*
    };
}

kinds! {
    ADMISSION_POLICY = "/apis/admissionregistration.k8s.io/v1" "validatingadmissionpolicies";
    ADMISSION_POLICY_BINDING = "/apis/admissionregistration.k8s.io/v1" "validatingadmissionpolicybindings";
    ACME_ISSUER = "/apis/vestibule.dev/v1alpha1" "acmeissuers";
    BACKEND_TLS_POLICY = "/apis/gateway.networking.k8s.io/v1" "backendtlspolicies";
    CERTIFICATE = "/apis/cert-manager.io/v1" "certificates";
    CLUSTER_ACME_ISSUER = "/apis/vestibule.dev/v1alpha1" "clusteracmeissuers";
    CLUSTER_ISSUER = "/apis/cert-manager.io/v1" "clusterissuers";
    CLUSTER_ROLE = "/apis/rbac.authorization.k8s.io/v1" "clusterroles";
    CLUSTER_ROLE_BINDING = "/apis/rbac.authorization.k8s.io/v1" "clusterrolebindings";
    CONFIG_MAP = "/api/v1" "configmaps";
    CRD = "/apis/apiextensions.k8s.io/v1" "customresourcedefinitions";
    DEPLOYMENT = "/apis/apps/v1" "deployments";
    ENDPOINT_SLICE = "/apis/discovery.k8s.io/v1" "endpointslices";
    GATEWAY = "/apis/gateway.networking.k8s.io/v1" "gateways";
    GATEWAY_CLASS = "/apis/gateway.networking.k8s.io/v1" "gatewayclasses";
    HOSTNAME_CLAIM = "/apis/vestibule.dev/v1alpha1" "hostnameclaims";
    HOSTNAME_GRANT = "/apis/vestibule.dev/v1alpha1" "hostnamegrants";
    HTTP_ROUTE = "/apis/gateway.networking.k8s.io/v1" "httproutes";
    LEASE = "/apis/coordination.k8s.io/v1" "leases";
    LISTENER_SET = "/apis/gateway.networking.k8s.io/v1" "listenersets";
    MUTATING_WEBHOOK = "/apis/admissionregistration.k8s.io/v1" "mutatingwebhookconfigurations";
    NAMESPACE = "/api/v1" "namespaces";
    NODE = "/api/v1" "nodes";
    POD = "/api/v1" "pods";
    REFERENCE_GRANT = "/apis/gateway.networking.k8s.io/v1" "referencegrants";
    ROLE_BINDING = "/apis/rbac.authorization.k8s.io/v1" "rolebindings";
    SECRET = "/api/v1" "secrets";
    SERVICE = "/api/v1" "services";
    SERVICE_ACCOUNT = "/api/v1" "serviceaccounts";
    TCP_ROUTE = "/apis/gateway.networking.k8s.io/v1" "tcproutes";
    TLS_ROUTE = "/apis/gateway.networking.k8s.io/v1" "tlsroutes";
    UDP_ROUTE = "/apis/gateway.networking.k8s.io/v1" "udproutes";
    WEBHOOK = "/apis/admissionregistration.k8s.io/v1" "validatingwebhookconfigurations";
}

/// A client under one identity.
#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
}

impl Api {
    /// Under the identity of a kubeconfig (JSON is YAML).
    pub(crate) async fn new(kubeconfig: &str) -> Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self {
            client: Client::try_from(config)?,
        })
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<Value>> {
        let content = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("content-type", content)
            .body(
                body.map(serde_json::to_vec)
                    .transpose()?
                    .unwrap_or_default(),
            )?;
        match self.client.request::<Value>(request).await {
            Ok(value) => Ok(Some(value)),
            Err(kube::Error::Api(status)) if status.code == StatusCode::NOT_FOUND.as_u16() => {
                Ok(None)
            }
            Err(error) => Err(anyhow!(error).context(format!("{method} {path}"))),
        }
    }

    /// The object, if it exists. `namespace` is empty for what has none.
    pub(crate) async fn get(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>> {
        self.call(Method::GET, &path(kind, namespace, name), None)
            .await
    }

    /// The object, which has to exist.
    pub(crate) async fn must_get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Value> {
        self.get(kind, namespace, name)
            .await?
            .with_context(|| format!("no {} {namespace}/{name}", kind.plural))
    }

    /// The objects of a namespace (all if empty) whose labels match; all labels if the selector is empty.
    pub(crate) async fn list(
        &self,
        kind: Kind,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<Value>> {
        let mut path = path(kind, namespace, "");
        if !selector.is_empty() {
            path.push_str("?labelSelector=");
            path.push_str(&selector.replace('=', "%3D").replace(',', "%2C"));
        }
        let list = self.call(Method::GET, &path, None).await?;
        Ok(
            match list.and_then(|mut list| list.get_mut("items").map(Value::take)) {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            },
        )
    }

    /// Makes an object.
    pub(crate) async fn create(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Value> {
        self.post(&path(kind, namespace, ""), object).await
    }

    /// Makes an object as `kubectl` would, unknown fields refused. Gives code and message of a refusal.
    pub(crate) async fn verdict(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
        dry_run: bool,
    ) -> Result<Option<(u16, String)>> {
        let dry_run = if dry_run { "&dryRun=All" } else { "" };
        let path = path(kind, namespace, "");
        let path = format!("{path}?fieldValidation=Strict{dry_run}");
        self.judged(Request::post(path), "application/json", object)
            .await
    }

    /// Applies an object on the server, as `kubectl apply --server-side` does. Gives code and message of a
    /// refusal.
    pub(crate) async fn apply(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Option<(u16, String)>> {
        let path = path(kind, namespace, name(object));
        let path = format!("{path}?fieldManager=e2e&force=true");
        self.judged(Request::patch(path), "application/apply-patch+yaml", object)
            .await
    }

    async fn judged(
        &self,
        request: http::request::Builder,
        content: &str,
        object: &Value,
    ) -> Result<Option<(u16, String)>> {
        let request = request
            .header("content-type", content)
            .body(serde_json::to_vec(object)?)?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) => Ok(Some((status.code, status.message))),
            Err(error) => Err(error.into()),
        }
    }

    /// Posts to any path.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(Method::POST, path, Some(body))
            .await?
            .with_context(|| format!("POST {path}: not found"))
    }

    /// Gets any path.
    pub(crate) async fn raw(&self, path: &str) -> Result<Value> {
        self.call(Method::GET, path, None)
            .await?
            .with_context(|| format!("GET {path}: not found"))
    }

    /// Changes parts of an object (merge patch).
    pub(crate) async fn patch(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: &Value,
    ) -> Result<Value> {
        self.call(Method::PATCH, &path(kind, namespace, name), Some(change))
            .await?
            .with_context(|| format!("no {} {namespace}/{name}", kind.plural))
    }

    /// Deletes an object; one that does not exist is fine.
    pub(crate) async fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<()> {
        self.call(Method::DELETE, &path(kind, namespace, name), None)
            .await?;
        Ok(())
    }

    /// Deletes at any path, with whatever is asked for behind it.
    pub(crate) async fn delete_at(&self, path: &str) -> Result<()> {
        self.call(Method::DELETE, path, None).await.map(drop)
    }

    /// Deletes a pod without giving it time.
    pub(crate) async fn kill_pod(&self, namespace: &str, name: &str) -> Result<()> {
        let path = path(POD, namespace, name) + "?gracePeriodSeconds=0";
        self.delete_at(&path).await
    }
}

pub(crate) fn path(kind: Kind, namespace: &str, name: &str) -> String {
    let mut parts = vec![kind.prefix];
    if !namespace.is_empty() {
        parts.extend(["namespaces", namespace]);
    }
    parts.push(kind.plural);
    if !name.is_empty() {
        parts.push(name);
    }
    parts.join("/")
}

/// Text at a JSON pointer; empty if there is none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Elements of the array at a JSON pointer; none if there is no array.
pub(crate) fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// An entry of a Secret that is text.
pub(crate) fn data(secret: &Value, key: &str) -> Result<String> {
    let encoded = secret.get("data").and_then(|data| data.get(key));
    let encoded = encoded.and_then(Value::as_str).unwrap_or_default();
    Ok(String::from_utf8(crate::encoding::from_base64(encoded)?)?)
}

/// Name of an object.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        assert_eq!(path(POD, "a", "b"), "/api/v1/namespaces/a/pods/b");
        assert_eq!(path(NODE, "", ""), "/api/v1/nodes");
    }
}
