//! What comes out for a ListenerSet or Gateway, side by side with what cert-manager's own shim makes of it.

use serde_json::{Value, json};
use vestibule_operator::certmanager::{APPLIED, MANAGED_BY, desired};

use crate::support::{Controller, IDENTITY, Server, eventually, issuer_of, requests};

const ISSUER: (&str, &str) = ("cert-manager.io/issuer", "ca");

/// Annotations, one case each.
const CASES: [(&str, &[(&str, &str)]); 9] = [
    ("plain", &[ISSUER]),
    ("cluster", &[("cert-manager.io/cluster-issuer", "all")]),
    (
        "external",
        &[
            ISSUER,
            ("cert-manager.io/issuer-kind", "PrivateCA"),
            ("cert-manager.io/issuer-group", "pca.example.com"),
        ],
    ),
    (
        "key",
        &[
            ISSUER,
            ("cert-manager.io/private-key-algorithm", "ECDSA"),
            ("cert-manager.io/private-key-size", "384"),
            ("cert-manager.io/private-key-encoding", "PKCS8"),
            ("cert-manager.io/private-key-rotation-policy", "Never"),
            ("cert-manager.io/common-name", "one.example.com"),
        ],
    ),
    (
        "time",
        &[
            ISSUER,
            ("cert-manager.io/duration", "100h90m"),
            ("cert-manager.io/renew-before", "8m20s"),
            ("cert-manager.io/revision-history-limit", "4"),
            ("cert-manager.io/usages", "server auth, digital signature"),
        ],
    ),
    (
        "percentage",
        &[ISSUER, ("cert-manager.io/renew-before-percentage", "30")],
    ),
    (
        "subject",
        &[
            ISSUER,
            ("cert-manager.io/subject-organizations", "A,\"B, C\""),
            ("cert-manager.io/subject-organizationalunits", "Web"),
            ("cert-manager.io/subject-countries", "CH,DE"),
            ("cert-manager.io/subject-provinces", "ZH"),
            ("cert-manager.io/subject-localities", "Zürich"),
            ("cert-manager.io/subject-postalcodes", "8000"),
            ("cert-manager.io/subject-streetaddresses", "Street 1"),
            ("cert-manager.io/subject-serialnumber", "7"),
        ],
    ),
    (
        "in-place",
        &[
            ISSUER,
            ("acme.cert-manager.io/http01-edit-in-place", "true"),
        ],
    ),
    (
        "more",
        &[
            ISSUER,
            (
                "cert-manager.io/secret-template",
                r#"{"annotations": {"note": "x"}, "labels": {"team": "a"}}"#,
            ),
            ("acme.cert-manager.io/http01-parentreffallback", "true"),
            ("acme.cert-manager.io/http01-ingress-class", "nginx"),
        ],
    ),
];

/// What is the same in ours and theirs: without the owner's role, our annotations, and what a server adds.
fn comparable(mut object: Value) -> Value {
    let metadata = &mut object["metadata"];
    let mut owner = metadata["ownerReferences"][0].clone();
    if let Some(owner) = owner.as_object_mut() {
        owner.remove("controller");
        owner.remove("blockOwnerDeletion");
    }
    let mut annotations = metadata["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(APPLIED);
        annotations.remove(MANAGED_BY);
    }
    let mut spec = object["spec"].clone();
    if let Some(names) = spec["dnsNames"].as_array_mut() {
        // Theirs are in the order of the listeners; cert-manager compares them as sets.
        names.sort_by_key(|name| name.as_str().map(str::to_owned));
    }
    json!({
        "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"],
        "labels": object["metadata"]["labels"], "annotations": annotations, "owner": owner, "spec": spec,
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn ours_are_what_cert_managers_shim_makes() {
    let server = Server::ready(&["a"]).await;
    let _controller = Controller::start(&server, true);
    let mut cases = Vec::new();
    for (name, annotations) in CASES {
        let secret = format!("{name}-tls");
        // Two listeners share one Secret, a third has its own.
        let listeners = [
            ("two.example.com", &*secret),
            ("one.example.com", &*secret),
            ("three.example.com", &*format!("{name}-3")),
        ];
        let listeners = match name {
            // A common name has to be a listener's.
            "key" => &listeners[..2],
            _ => &listeners[..],
        };
        cases.push(server.set(("a", name), annotations, listeners).await);
    }
    let gateway = server
        .apply(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {
                "name": "own", "namespace": "infra", "labels": {"x": "y"},
                "annotations": {"cert-manager.io/issuer": "ca"},
            },
            "spec": {
                "gatewayClassName": "vestibule",
                "listeners": [{
                    "name": "own", "port": 443, "protocol": "HTTPS", "hostname": "own.example.com",
                    "tls": {"mode": "Terminate", "certificateRefs": [{"name": "own-tls"}]},
                }],
            },
        }))
        .await;
    cases.push(requests(&gateway));
    let mut compared = 0;
    for (secret, request) in cases.into_iter().flatten() {
        let theirs = eventually(
            &format!("a Certificate {secret} of the shim's"),
            async || {
                server
                    .get("Certificate", &secret.namespace, &secret.name)
                    .await
            },
        )
        .await;
        let ours = desired(&request, issuer_of(&request), IDENTITY).expect("its own names only");
        assert_eq!(
            comparable(ours.manifest()),
            comparable(theirs),
            "{secret}: ours on the left"
        );
        compared += 1;
    }
    assert_eq!(compared, 2 * CASES.len());
}
