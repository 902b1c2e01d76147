//! Tokens as a real API server makes and reviews them.

use std::sync::Arc;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use vestibule_operator::publish::auth::{
    Authenticator, Fleets, KubeReviewer, Review, TokenReviewer,
};
use vestibule_operator::publish::tls::{ConnectionLimits, Secure};
use vestibule_operator_testing::apiserver::{client, namespace};
use vestibule_operator_testing::secure::{NAME, Operator, authority};
use vestibule_operator_testing::stream::{Counted, Proxy, backend};
use vestibule_test_support::eventually;

const AUDIENCE: &str = "vestibule-config";

/// The proxies' ServiceAccount and pods, as far as an API server without a kubelet has them.
struct Account {
    client: Client,
    namespace: String,
}

impl Account {
    async fn new() -> Self {
        let client = client().await;
        let namespace = namespace(&client).await;
        let account = Self { client, namespace };
        for name in ["r-proxy", "default"] {
            let made = serde_json::from_value(json!({"metadata": {"name": name}}));
            let accounts = account.accounts();
            accounts
                .create(&PostParams::default(), &made.unwrap())
                .await
                .unwrap();
        }
        account
    }

    fn accounts(&self) -> Api<ServiceAccount> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes a pod and returns its UID.
    async fn pod(&self, name: &str) -> String {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"serviceAccountName": "r-proxy",
                "containers": [{"name": "proxy", "image": "proxy.invalid/proxy"}]},
        });
        let pod = serde_json::from_value(pod).unwrap();
        let made = self.pods().create(&PostParams::default(), &pod).await;
        made.unwrap().metadata.uid.unwrap()
    }

    /// What the kubelet would project into the pod.
    async fn token(&self, account: &str, audience: &str, pod: Option<(&str, &str)>) -> String {
        let bound = pod.map_or(
            Value::Null,
            |(name, uid)| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}),
        );
        let request = json!({
            "metadata": {},
            "spec": {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound},
        });
        let request: TokenRequest = serde_json::from_value(request).unwrap();
        let accounts = self.accounts();
        let parameters = PostParams::default();
        let made = accounts.create_token_request(account, &parameters, &request);
        made.await.unwrap().status.unwrap().token.unwrap()
    }

    async fn review(&self, token: &str) -> Review {
        let reviewer = KubeReviewer::new(self.client.clone());
        reviewer.review(token, AUDIENCE).await.unwrap()
    }

    fn fleets(&self) -> Fleets {
        Fleets::one(&self.namespace, "r-proxy", AUDIENCE)
    }
}

#[tokio::test]
#[ignore = "needs an API server"]
async fn token_review_names_the_pod_and_fails_if_it_is_gone_or_the_token_is_wrong() {
    let account = Account::new().await;
    let uid = account.pod("r-proxy-1").await;
    let pod = Some(("r-proxy-1", uid.as_str()));

    let good = account.token("r-proxy", AUDIENCE, pod).await;
    let review = account.review(&good).await;
    assert!(review.authenticated, "{review:?}");
    let user = format!("system:serviceaccount:{}:r-proxy", account.namespace);
    assert_eq!(review.user, user);
    assert_eq!(review.pod.as_deref(), Some("r-proxy-1"));
    assert_eq!(review.audiences, [AUDIENCE]);

    let unbound = account.token("r-proxy", AUDIENCE, None).await;
    let review = account.review(&unbound).await;
    assert!(review.authenticated && review.pod.is_none(), "{review:?}");

    let elsewhere = account.token("r-proxy", "somewhere-else", pod).await;
    let review = account.review(&elsewhere).await;
    assert!(!review.authenticated, "{review:?}");

    // Not its last character: some of its bits mean nothing, and it would be the same signature.
    let (rest, last) = good.split_at(good.len() - 20);
    let other = if last.starts_with('x') { 'y' } else { 'x' };
    let forged = format!("{rest}{other}{}", &last[1..]);
    let review = account.review(&forged).await;
    assert!(
        !review.authenticated && review.error.is_some(),
        "{review:?}"
    );
    assert!(!review.error.unwrap().contains(&good[40..80]));

    // A token goes with its pod.
    let gone = DeleteParams::default().grace_period(0);
    account.pods().delete("r-proxy-1", &gone).await.unwrap();
    eventually("the token is not good any more", || async {
        (!account.review(&good).await.authenticated).then_some(())
    })
    .await;
}

/// Proxy, token, TokenReview, TLS, stream: all of it as it runs in a cluster.
#[tokio::test]
#[ignore = "needs an API server"]
async fn a_proxy_subscribes_with_the_token_of_its_pod() {
    let account = Account::new().await;
    let uid = account.pod("r-proxy-1").await;
    // Files, publisher and certificate are this one's; its own server is not asked.
    let mut operator = Operator::start(ConnectionLimits::default()).await;
    let (certificate, root) = authority(NAME);
    operator.serve_with(&certificate);
    operator.trust(&root);
    let reviewer = KubeReviewer::new(account.client.clone());
    let authenticator = Arc::new(Authenticator::new(account.fleets(), reviewer));
    let publisher = Arc::clone(&operator.publisher);
    let secure = Secure::new(publisher, operator.certificates(), authenticator);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(secure.serve(listener, std::future::pending()));
    operator.publish(&[backend("a/b:1", 1)]);

    let stranger = account.token("default", AUDIENCE, None).await;
    operator.show(&stranger);
    let addresses = std::slice::from_ref(&address);
    let mut proxy = Proxy::start("r-proxy-1", addresses, operator.connector());
    proxy
        .until(|state| state.refusals.contains_key("Unauthorized"))
        .await;
    let pod = Some(("r-proxy-1", uid.as_str()));
    operator.show(&account.token("r-proxy", AUDIENCE, pod).await);
    proxy.until(|state| state.held.is_some()).await;
    assert_eq!(Counted::by(&operator.publisher).proxies, 1);
}
