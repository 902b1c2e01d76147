//! A CA with an account at it, behind a stand-in that answers each URL as a test says.

use std::pin::Pin;
use std::sync::Arc;

use ::http::{Request, Response};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use rustls_pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};
use vestibule_model::endpoint::AuthorityRules;

use super::*;
use crate::keys::PrivateKey;

const ACCOUNT: &str = "https://ca.test/account/1";

/// Answers of a CA by the path of the URL: a status and a document.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers {
    answers: Arc<Mutex<BTreeMap<String, (u16, Value)>>>,
    /// The paths that were asked for, with what was said there.
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl Answers {
    pub(super) fn set(&self, path: &str, status: u16, document: Value) {
        self.answers
            .lock()
            .insert(path.to_owned(), (status, document));
    }

    /// An order for this name, whose authorization is for that one.
    fn order(&self, number: u32, name: &str, authorized: &str) -> String {
        let at = |what: &str| format!("https://ca.test/{what}/{number}");
        let order = json!({
            "status": "pending",
            "identifiers": [{"type": "dns", "value": name}],
            "authorizations": [at("authorization")],
            "finalize": at("finalize"),
        });
        self.set(&format!("/order/{number}"), 200, order);
        let authorization = json!({
            "status": "pending",
            "identifier": {"type": "dns", "value": authorized},
            "challenges": [],
        });
        self.set(&format!("/authorization/{number}"), 200, authorization);
        at("order")
    }

    /// What was said at paths that begin like this.
    pub(super) fn said(&self, path: &str) -> Vec<String> {
        let asked = self.asked.lock();
        let of = asked.iter().filter(|(at, _)| at.starts_with(path));
        of.map(|(_, said)| said.clone()).collect()
    }

    /// The order `https://ca.test/order/9` for `own.test`, with this document for each of its authorizations.
    fn own_order(&self, authorizations: usize, authorization: Value) -> Value {
        let order = json!({
            "status": "pending",
            "identifiers": [{"type": "dns", "value": "own.test"}],
            "authorizations": vec!["https://ca.test/authorization/9"; authorizations],
            "finalize": "https://ca.test/finalize/9",
        });
        self.set("/order/9", 200, order.clone());
        self.set("/finalize/9", 200, order.clone());
        self.set("/authorization/9", 200, authorization);
        order
    }

    /// Answers like a CA without accounts, and returns what its directory says.
    pub(super) fn directory(&self) -> Directory {
        let urls = json!({
            "newNonce": "https://ca.test/nonce",
            "newAccount": "https://ca.test/new-account",
            "newOrder": "https://ca.test/new-order",
        });
        self.set("/directory", 200, urls.clone());
        self.set("/nonce", 200, Value::Null);
        serde_json::from_value(urls).expect("a directory")
    }

    async fn ca(&self) -> Ca {
        let directory = self.directory();
        let key = PrivateKey::generate().expect("a key");
        let key = PrivatePkcs8KeyDer::from(key.der().expect("DER").to_vec());
        let url = "https://ca.test/directory";
        let account = Account::builder_with_http(Box::new(self.clone()))
            .from_parts(ACCOUNT.into(), key, url.into())
            .await
            .expect("an account");
        let rules = Arc::new(AuthorityRules::Any);
        let http = Http::new(None, rules, Arc::new(|_| ())).expect("a client");
        Ca::new(http, account, directory, url)
    }
}

impl HttpClient for Answers {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let mut path = request.uri().path().to_owned();
            let body = request.into_body().collect().await;
            let body =
                body.map_or_else(|never| match never {}, http_body_util::Collected::to_bytes);
            let signed: Value = serde_json::from_slice(&body).unwrap_or_default();
            let said =
                BASE64_URL_SAFE_NO_PAD.decode(signed["payload"].as_str().unwrap_or_default());
            let said = String::from_utf8(said.expect("base64")).expect("JSON");
            if said.contains("onlyReturnExisting") {
                path = "/existing-account".to_owned();
            }
            this.asked.lock().push((path.clone(), said));
            let answer = this.answers.lock().get(&path).cloned();
            let (status, document) = answer.unwrap_or((404, Value::Null));
            let body = document.to_string();
            http::hear(body.as_bytes(), None);
            if status >= 400 {
                return Err(Error::Other(Box::new(HttpError::Refused {
                    status,
                    problem: Problem::read(body.as_bytes()),
                    retry_after: None,
                })));
            }
            let response = Response::builder()
                .status(status)
                .header("Replay-Nonce", "nonce")
                .header("Location", "https://ca.test/order/1")
                .body(Full::new(Bytes::from(body)))
                .expect("a response");
            Ok(BytesResponse::from(response))
        })
    }
}

fn names(names: &[&str]) -> BTreeSet<Hostname> {
    let names = names.iter().map(|name| Hostname::parse(name));
    names.collect::<Result<_, _>>().expect("hostnames")
}

pub(super) fn problem(kind: &str, detail: &str) -> Value {
    json!({"type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail})
}

#[tokio::test]
async fn a_name_that_the_account_may_not_have_condemns_no_account() {
    let answers = Answers::default();
    let ca = answers.ca().await;
    let wants = names(&["evil.test"]);
    let order = async || ca.judged(ca.order(&wants, None, None).await).await;
    let alive = json!({"status": "valid", "orders": "https://ca.test/orders"});
    for kind in ["unauthorized", "accountDoesNotExist", "userActionRequired"] {
        answers.set("/new-order", 403, problem(kind, "not for evil.test"));
        // The account is good, or the CA does not say.
        for (status, account) in [
            (200, alive.clone()),
            (405, Value::Null),
            (400, problem("malformed", "what?")),
            (503, Value::Null),
        ] {
            answers.set("/account/1", status, account);
            let failure = order().await.expect_err("it is refused");
            assert_ne!(failure.kind, FailureKind::Account, "{kind} {status}");
            assert!(failure.message.contains("evil.test"), "{failure:?}");
        }
        // It is gone. Nothing of what the CA says of the order is said of the account.
        for (status, account) in [
            (403, problem("unauthorized", "the account is deactivated")),
            (400, problem("accountDoesNotExist", "there is none")),
            (200, json!({"status": "deactivated"})),
        ] {
            answers.set("/account/1", status, account);
            let failure = order().await.expect_err("it is refused");
            assert_eq!(failure.kind, FailureKind::Account, "{kind} {status}");
            assert!(!failure.message.contains("evil.test"), "{failure:?}");
        }
    }
    // Other refusals are no reason to ask for the account.
    answers.asked.lock().clear();
    answers.set("/new-order", 403, problem("rejectedIdentifier", "no"));
    order().await.expect_err("it is refused");
    assert!(answers.said("/account/").is_empty());
}

#[tokio::test]
async fn of_an_order_for_other_names_nothing_is_asked_or_changed() {
    let answers = Answers::default();
    let ca = answers.ca().await;
    let url = answers.order(7, "theirs.test", "theirs.test");
    let view = ca.look(&url, &names(&["own.test"])).await.expect("a view");
    assert_eq!(view.identifiers, Some(["theirs.test".to_owned()].into()));
    assert_eq!(view.names, []);
    ca.close(&url, &names(&["own.test"]))
        .await
        .expect("nothing");
    assert!(answers.said("/authorization").is_empty());
    // Its own are closed.
    let own = names(&["theirs.test"]);
    let view = ca.look(&url, &own).await.expect("a view");
    assert_eq!(view.names.len(), 1);
    // The stand-in does not show that it is closed then.
    let _ = ca.close(&url, &own).await;
    let said = answers.said("/authorization");
    assert!(
        said.iter().any(|said| said.contains("deactivated")),
        "{said:?}"
    );
}

#[tokio::test]
async fn an_authorization_that_others_share_stays() {
    let answers = Answers::default();
    let ca = answers.ca().await;
    let url = answers.order(7, "own.shared.test", "shared.test");
    let own = names(&["own.shared.test"]);
    ca.close(&url, &own).await.expect("nothing");
    let said = answers.said("/authorization");
    assert!(said.iter().all(String::is_empty), "{said:?}");
}

#[tokio::test]
async fn a_new_order_for_other_names_is_none() {
    let answers = Answers::default();
    let ca = answers.ca().await;
    answers.order(1, "theirs.test", "theirs.test");
    let order = answers.answers.lock()["/order/1"].clone();
    answers.set("/new-order", 201, order.1);
    let failure = ca.order(&names(&["own.test"]), None, None).await;
    let failure = failure.expect_err("it is not for the name");
    assert!(!failure.message.contains("theirs"), "{failure:?}");
    let url = ca.order(&names(&["theirs.test"]), None, None).await;
    assert_eq!(url.as_deref(), Ok("https://ca.test/order/1"));
}

const OWN: &str = "https://ca.test/order/9";

/// An authorization for `own.test` with this many challenges, each of which has failed with as many subproblems as this.
fn authorization(challenges: usize, subproblems: usize) -> Value {
    let challenge = json!({
        "type": "http-01",
        "url": "https://ca.test/challenge/9",
        "token": "token",
        "status": "pending",
        "error": {"detail": "no", "subproblems": vec![json!({}); subproblems]},
    });
    json!({
        "status": "pending",
        "identifier": {"type": "dns", "value": "own.test"},
        "challenges": vec![challenge; challenges],
    })
}

#[tokio::test]
async fn an_order_with_more_authorizations_than_hostnames_is_refused_before_any_is_read() {
    let answers = Answers::default();
    let ca = answers.ca().await;
    let order = answers.own_order(1600, authorization(1, 0));
    answers.set("/new-order", 201, order);
    let own = names(&["own.test"]);
    let said: Vec<_> = own
        .iter()
        .map(|name| (name.clone(), ChallengeType::Http01))
        .collect();
    let key = PrivateKey::generate().expect("a key");
    let request = key.request(own.iter()).expect("a request");
    let failures = [
        ca.order(&own, None, None).await.map(|_| ()),
        ca.look(OWN, &own).await.map(|_| ()),
        ca.declare(OWN, &own, &said).await,
        ca.finalize(OWN, &own, &request).await.map(|_| ()),
        ca.close(OWN, &own).await,
    ];
    for failure in failures {
        let failure = failure.expect_err("there are too many");
        assert_eq!(failure.kind, FailureKind::Rejected, "{failure:?}");
        assert!(
            failure.message.contains("1600 authorizations"),
            "{failure:?}"
        );
    }
    assert!(answers.said("/authorization").is_empty());
    assert!(ca.kept.lock().is_empty());
}

#[tokio::test]
async fn the_authorizations_of_an_order_are_bounded() {
    let answers = Answers::default();
    let ca = answers.ca().await;
    let own = names(&["own.test"]);
    answers.own_order(1, authorization(authorizations::MAX_CHALLENGES, 0));
    let view = ca.look(OWN, &own).await.expect("as many as are allowed");
    assert_eq!(view.names.len(), 1);
    for (challenges, subproblems, words) in [
        (authorizations::MAX_CHALLENGES + 1, 0, "33 challenges"),
        // A short text may take much memory.
        (1, 20_000, "1 MiB of memory"),
    ] {
        answers.own_order(1, authorization(challenges, subproblems));
        let failure = ca.look(OWN, &own).await.expect_err("it is too large");
        assert_eq!(failure.kind, FailureKind::Rejected, "{failure:?}");
        assert!(failure.message.contains(words), "{failure:?}");
        let closed = ca.close(OWN, &own).await;
        assert!(closed.is_err_and(|failure| failure.message.contains(words)));
        assert!(ca.kept.lock().is_empty(), "nothing of it is kept");
    }
}

#[tokio::test]
async fn only_a_small_order_is_kept_and_a_larger_one_is_asked_for_again() {
    let answers = Answers::default();
    let ca = answers.ca().await;
    let own = names(&["own.test"]);
    for (subproblems, kept) in [(0, true), (1000, false)] {
        answers.own_order(1, authorization(1, subproblems));
        for _ in 0..2 {
            let view = ca.look(OWN, &own).await.expect("a view");
            assert_eq!(view.names.len(), 1);
            assert_eq!(ca.kept.lock().contains_key(OWN), kept);
        }
    }
}
