//! The objects that scenarios make, as JSON.

use serde_json::{Value, json};

/// API version of the Gateway API kinds in use.
const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";

/// Kind of certificate or backend handling of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mode<'a> {
    /// Terminated with the certificate of this Secret of the same namespace.
    Terminate(&'a str),
    /// Passed through.
    Passthrough,
}

/// One TLS listener on port 443, open to routes of its own namespace.
pub(crate) fn listener(name: &str, hostname: &str, mode: Mode<'_>) -> Value {
    let tls = match mode {
        Mode::Terminate(secret) => {
            json!({"mode": "Terminate", "certificateRefs": [{"name": secret}]})
        }
        Mode::Passthrough => json!({"mode": "Passthrough"}),
    };
    json!({"name": name, "port": 443, "protocol": "TLS", "hostname": hostname, "tls": tls})
}

/// One HTTPS listener on port 443, with the certificate of this Secret of the same namespace.
pub(crate) fn https_listener(name: &str, hostname: &str, secret: &str) -> Value {
    let mut listener = listener(name, hostname, Mode::Terminate(secret));
    listener["protocol"] = "HTTPS".into();
    listener
}

/// A Gateway of a class.
pub(crate) fn gateway(namespace: &str, name: &str, class: &str, listeners: &[Value]) -> Value {
    json!({
        "apiVersion": GATEWAY_API,
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"gatewayClassName": class, "listeners": listeners},
    })
}

/// Opens a Gateway to ListenerSets of the namespaces that carry the label `vestibule-e2e=<stage>`.
pub(crate) fn open_to(mut gateway: Value, stage: &str) -> Value {
    gateway["spec"]["allowedListeners"] = json!({"namespaces": {
        "from": "Selector",
        "selector": {"matchLabels": {"vestibule-e2e": stage}},
    }});
    gateway
}

/// A ListenerSet with a Gateway as parent.
pub(crate) fn listener_set(
    namespace: &str,
    name: &str,
    gateway: (&str, &str),
    listeners: &[Value],
) -> Value {
    json!({
        "apiVersion": GATEWAY_API,
        "kind": "ListenerSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "parentRef": {"namespace": gateway.0, "name": gateway.1},
            "listeners": listeners,
        },
    })
}

/// Adds annotations to an object.
pub(crate) fn annotated(mut object: Value, annotations: &[(&str, &str)]) -> Value {
    for &(key, value) in annotations {
        object["metadata"]["annotations"][key] = value.into();
    }
    object
}

/// An `ACMEIssuer` for the CA whose directory is at the URL and trusted by the bundle (PEM).
pub(crate) fn acme_issuer(
    namespace: &str,
    name: &str,
    directory: &str,
    bundle: &str,
    challenges: &[&str],
) -> Value {
    json!({
        "apiVersion": "vestibule.dev/v1alpha1",
        "kind": "ACMEIssuer",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "directory": directory,
            "contact": ["mailto:team@example.com"],
            "caBundle": bundle,
            "challenges": challenges,
        },
    })
}

/// A TLSRoute from a parent to a Service of its namespace.
pub(crate) fn tls_route(
    namespace: &str,
    name: &str,
    parent: &Value,
    hostname: &str,
    backend: (&str, u16),
) -> Value {
    json!({
        "apiVersion": GATEWAY_API,
        "kind": "TLSRoute",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "parentRefs": [parent],
            "hostnames": [hostname],
            "rules": [{"backendRefs": [{"name": backend.0, "port": backend.1}]}],
        },
    })
}

/// An HTTPRoute from a parent to a Service of its namespace, for every request to the hostname.
pub(crate) fn http_route(
    namespace: &str,
    name: &str,
    parent: &Value,
    hostname: &str,
    backend: (&str, u16),
) -> Value {
    let mut route = tls_route(namespace, name, parent, hostname, backend);
    route["kind"] = "HTTPRoute".into();
    route
}

/// A reference to a ListenerSet of the route's own namespace, or to one of its listeners.
pub(crate) fn to_listener_set(name: &str, listener: Option<&str>) -> Value {
    let mut parent =
        json!({"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": name});
    if let Some(listener) = listener {
        parent["sectionName"] = listener.into();
    }
    parent
}

/// A reference to a Gateway of the route's own namespace.
pub(crate) fn to_gateway(name: &str) -> Value {
    json!({"name": name})
}

/// A Secret with a certificate.
pub(crate) fn tls_secret(namespace: &str, name: &str, chain: &str, key: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {"tls.crt": chain, "tls.key": key},
    })
}

/// A ConfigMap with the certificate of an authority.
pub(crate) fn authority(namespace: &str, name: &str, root: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"ca.crt": root},
    })
}

/// TLS to a port (by name) of a Service, for a hostname, with the authority of a ConfigMap.
pub(crate) fn backend_tls_policy(
    namespace: &str,
    name: &str,
    service: (&str, &str),
    hostname: &str,
    authority: &str,
) -> Value {
    json!({
        "apiVersion": GATEWAY_API,
        "kind": "BackendTLSPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "targetRefs": [
                {"group": "", "kind": "Service", "name": service.0, "sectionName": service.1},
            ],
            "validation": {
                "hostname": hostname,
                "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": authority}],
            },
        },
    })
}

/// Lets objects of a kind and namespace refer to objects of another kind in `namespace`.
pub(crate) fn reference_grant(namespace: &str, name: &str, from: (&str, &str), to: &str) -> Value {
    json!({
        "apiVersion": GATEWAY_API,
        "kind": "ReferenceGrant",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "from": [{"group": "gateway.networking.k8s.io", "kind": from.0, "namespace": from.1}],
            "to": [{"group": "", "kind": to}],
        },
    })
}

/// A `HostnameGrant`.
pub(crate) fn hostname_grant(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "vestibule.dev/v1alpha1",
        "kind": "HostnameGrant",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}

/// A namespace that belongs to a stage.
pub(crate) fn namespace(name: &str, stage: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"vestibule-e2e": stage}},
    })
}

/// A Deployment of one pod, which has the label `app: <name>`, no token of the API server, and ends at once.
pub(crate) fn deployment(
    namespace: &str,
    name: &str,
    volumes: &Value,
    containers: &Value,
) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": false,
                    "volumes": volumes,
                    "containers": containers,
                },
            },
        },
    })
}

/// Has a Deployment run this many pods, each of which may take this many seconds to end.
pub(crate) fn of_pods(mut deployment: Value, replicas: usize, seconds: u64) -> Value {
    let spec = &mut deployment["spec"];
    spec["replicas"] = replicas.into();
    spec["template"]["spec"]["terminationGracePeriodSeconds"] = seconds.into();
    deployment
}

/// Gives the pod of a Deployment the token of a `ServiceAccount`. A new pod starts when the former one has ended, so that
/// no two use it at once.
pub(crate) fn with_account(mut deployment: Value, account: &str) -> Value {
    let spec = &mut deployment["spec"];
    spec["strategy"] = json!({"type": "Recreate"});
    let pod = &mut spec["template"]["spec"];
    pod["serviceAccountName"] = account.into();
    pod["automountServiceAccountToken"] = true.into();
    deployment
}

/// The container of a server that knows its pod. It is ready when it takes connections on the port `ready`, and has the
/// files of the volume `tls`, which is [`tls_volume`], in `/tls`.
pub(crate) fn server(name: &str, image: &str, arguments: &[String], ready: u16) -> Value {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "env": [
            {"name": "POD_NAME", "valueFrom": field("metadata.name")},
            {"name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace")},
        ],
        "readinessProbe": {"tcpSocket": {"port": ready}, "periodSeconds": 1},
        "volumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": true}],
    })
}

/// The volumes of a pod with a [`server`]: the certificate in a Secret.
pub(crate) fn tls_volume(secret: &str) -> Value {
    json!([{"name": "tls", "secret": {"secretName": secret}}])
}

/// A backend: one pod with both kinds of port, and the Service `name` (80 plain, 443 TLS) in front. It
/// serves TLS with the Secret `<name>-tls`.
pub(crate) fn backend(namespace: &str, name: &str, image: &str) -> [Value; 2] {
    let labels = json!({"app": name});
    let volumes = tls_volume(&format!("{name}-tls"));
    let arguments = ["echo", "--certificate=/tls"].map(str::to_owned);
    let mut echo = server("echo", image, &arguments, 8080);
    echo["ports"] = json!([{"containerPort": 8080}, {"containerPort": 8443}]);
    let deployment = deployment(namespace, name, &volumes, &json!([echo]));
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": labels,
            "ports": [
                {"name": "plain", "port": 80, "targetPort": 8080},
                {"name": "tls", "port": 443, "targetPort": 8443},
            ],
        },
    });
    [deployment, service]
}

/// Name of the load balancer's `ClusterRole`, and of its binding.
pub(crate) const BALANCER: &str = "vestibule-e2e-lb";

/// The load balancer's namespace, identity, rights and Deployment.
pub(crate) fn load_balancer(namespace: &str, image: &str, pool: &str) -> Vec<Value> {
    let account = json!({"name": "lb", "namespace": namespace});
    let cluster = BALANCER;
    let containers = json!([{
        "name": "lb",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["lb", format!("--pool={pool}")],
    }]);
    let deployment = deployment(namespace, "lb", &json!([]), &containers);
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": cluster},
            "rules": [
                {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch"]},
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": cluster},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": cluster},
            "subjects": [{"kind": "ServiceAccount", "name": "lb", "namespace": namespace}],
        }),
        with_account(of_pods(deployment, 1, 30), "lb"),
    ]
}
