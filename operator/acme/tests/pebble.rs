//! The ACME engine with a real CA: Pebble, which checks names for real, and is as troublesome as CAs are.
//!
//! Ignored where Pebble cannot be built: `e2e/tools/get pebble pebble-challtestsrv` builds it, with Go.

use std::sync::Arc;

use vestibule_acme::{ChallengeAck, Input, Leaf, OrderOutcome};
use vestibule_acme_testing::answerer::Answerer;
use vestibule_acme_testing::pebble::{MAC_KEY, Options, Pebble};
use vestibule_acme_testing::{Hold, Stored, World, issuer, request};
use vestibule_model::certificate::AddressBlock;
use vestibule_model::challenge::ChallengeType::{Http01, TlsAlpn01};
use vestibule_model::challenge::Reach;
use vestibule_model::condition::{Reason, Truth};
use vestibule_model::endpoint::AuthorityRules;
use vestibule_model::issuance::{CertificateRequest, IssuanceState};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{AcmeIssuer, ExternalAccount};

const DAY: i64 = 86_400;

struct Set {
    world: Arc<World>,
    pebble: Pebble,
    issuer: AcmeIssuer,
    answerer: Answerer,
}

async fn set(options: Options) -> Set {
    let world = World::new();
    let answerer = Answerer::start(&world).await;
    let pebble = Pebble::start(env!("CARGO_TARGET_TMPDIR"), &answerer, &options).await;
    let issuer = issuer(&pebble.directory, &pebble.bundle, &[TlsAlpn01, Http01]);
    Set {
        world,
        pebble,
        issuer,
        answerer,
    }
}

/// An issuer of the same name whose directory is at another CA.
fn at(pebble: &Pebble, issuer: &AcmeIssuer) -> AcmeIssuer {
    AcmeIssuer {
        directory: pebble.directory.as_str().into(),
        ca_bundle: Some(pebble.bundle.as_str().into()),
        ..issuer.clone()
    }
}

impl Set {
    async fn engine(&self, requests: &[CertificateRequest]) -> tokio::task::JoinHandle<()> {
        self.world
            .engine(std::slice::from_ref(&self.issuer), requests)
            .await
    }

    /// Starts another CA, which checks names in the same way.
    async fn another(&self, options: Options) -> Pebble {
        Pebble::start(env!("CARGO_TARGET_TMPDIR"), &self.answerer, &options).await
    }

    /// Has the issuer's account bound to the external account that Pebble knows.
    fn bind(&mut self) {
        self.issuer.external_account = Some(ExternalAccount {
            key_id: "kid-1".into(),
            secret: "binding".into(),
            key: "hmac".into(),
        });
        let entries = [("hmac".to_owned(), MAC_KEY.as_bytes().to_vec())].into();
        self.world.secrets.lock().insert(
            ObjectName::new("vestibule-system", "binding"),
            Stored {
                entries,
                ..Stored::default()
            },
        );
    }

    /// Tells the engine that an issuer has changed.
    async fn edit(&self, issuer: AcmeIssuer) {
        let issuers = [(issuer.key.clone(), Some(Arc::new(issuer)))];
        self.world.tell(Input::Issuers(issuers.into())).await;
    }

    fn leaf(&self, name: &ObjectName) -> Leaf {
        let record = self.world.record(name);
        Leaf::read(&record.certificate, &record.private_key).expect("a certificate with its key")
    }

    /// Nothing of any key is in anything that was said.
    fn no_key_was_said(&self) {
        let texts = self.world.texts.lock();
        assert!(!texts.contains("PRIVATE"), "{texts}");
        for stored in self.world.secrets.lock().values() {
            for key in [&stored.record.private_key, &stored.record.next_key] {
                let key = String::from_utf8_lossy(key.expose()).into_owned();
                for line in key
                    .lines()
                    .filter(|line| line.len() > 20 && !line.contains('-'))
                {
                    assert!(!texts.contains(line));
                }
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn issues_in_both_ways_and_leaves_nothing_behind() {
    let set = set(Options::default()).await;
    let alpn = request("team-a", &["a.test", "b.test"]);
    let mut http = request("team-b", &["c.test"]);
    for reaches in http.reach.values_mut() {
        *reaches = [Reach::NoListener, Reach::Ours];
    }
    let engine = set.engine(&[alpn.clone(), http.clone()]).await;
    set.world.until_issued(&[&alpn.secret, &http.secret]).await;
    for request in [&alpn, &http] {
        assert_eq!(set.leaf(&request.secret).hostnames, request.hostnames);
        let record = set.world.record(&request.secret);
        assert!(record.next_key.is_empty());
        let state = set.world.state(&request.secret);
        assert_eq!((state.order, state.failure), (None, None));
        assert!(state.issued.is_some());
    }
    assert!(set.world.challenges.lock().is_empty());
    assert_eq!(set.pebble.orders(), 2);
    // One write when the order is made, one when the certificate is there.
    assert_eq!(set.world.writes.lock().len(), 4);
    let facts = set.world.issuers.lock().clone();
    assert!(
        facts
            .values()
            .all(|fact| fact.ready == Truth::True && fact.account_url.is_some()),
        "{facts:?}"
    );
    // A restart finds everything done.
    set.world.kill(engine).await;
    let engine = set.engine(&[alpn.clone(), http.clone()]).await;
    set.world.until_issued(&[&alpn.secret, &http.secret]).await;
    assert_eq!(set.pebble.orders(), 2);
    assert_eq!(set.world.writes.lock().len(), 4);
    assert_eq!(set.pebble.log().matches("POST /sign-me-up").count(), 1);
    set.no_key_was_said();
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn accounts_are_bound_and_profiles_asked_for() {
    let mut set = set(Options {
        external_account: true,
        ..Options::default()
    })
    .await;
    let short = request("team-a", &["short.test"]);
    // Without a binding the CA registers nobody, and the issuer says so.
    let engine = set.engine(std::slice::from_ref(&short)).await;
    set.world
        .until("an issuer that says what is missing", |world| {
            world.issuers.lock().values().any(|fact| {
                fact.ready == Truth::False && fact.message.contains("spec.externalAccountBinding")
            })
        })
        .await;
    set.world.kill(engine).await;
    set.bind();
    set.issuer.profile = Some("nosuch".into());
    let engine = set.engine(std::slice::from_ref(&short)).await;
    set.world
        .until("an issuer that names the CA's profiles", |world| {
            world
                .issuers
                .lock()
                .values()
                .any(|fact| fact.ready == Truth::False && fact.message.contains("shortlived"))
        })
        .await;
    set.world.kill(engine).await;
    set.issuer.profile = Some("shortlived".into());
    let engine = set.engine(std::slice::from_ref(&short)).await;
    set.world.until_issued(&[&short.secret]).await;
    assert_eq!(
        set.leaf(&short.secret).lifetime() / DAY,
        5,
        "six days less a second"
    );
    // Its renewal is planned within its six days.
    set.world
        .until("a renewal is planned", |world| {
            !world.renewals.lock().is_empty()
        })
        .await;
    let leaf = set.leaf(&short.secret);
    let at = set.world.renewals.lock()[&short.secret];
    assert!(
        at > leaf.not_before + DAY && at < leaf.not_after - DAY / 2,
        "{at} {leaf:?}"
    );
    assert!(!set.world.texts.lock().contains(MAC_KEY));
    set.no_key_was_said();
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn a_bound_account_is_bound_anew_at_another_directory_and_found_again_by_its_key() {
    let options = || Options {
        external_account: true,
        ..Options::default()
    };
    let mut set = set(options()).await;
    set.bind();
    let other = set.another(options()).await;
    let bound = |pebble: &Pebble| {
        pebble
            .log()
            .matches("Successful newAccount Binding")
            .count()
    };
    let account = ObjectName::new("vestibule-system", "ca-account");
    let one = request("team-a", &["a.test"]);
    let engine = set.engine(std::slice::from_ref(&one)).await;
    set.world.until_issued(&[&one.secret]).await;
    assert_eq!((bound(&set.pebble), bound(&other)), (1, 0));
    // It moves, and comes back. Each CA binds an account of its own.
    for (count, issuer) in [(2, at(&other, &set.issuer)), (3, set.issuer.clone())] {
        let former = set.world.record(&account).private_key;
        set.edit(issuer).await;
        set.world
            .until("issued there", |world| world.ended.lock().len() == count)
            .await;
        assert_eq!(bound(&set.pebble) + bound(&other), count);
        assert!(set.world.record(&account).private_key != former);
    }
    assert_eq!((set.pebble.orders(), other.orders()), (2, 1));
    set.world.kill(engine).await;
    // The Secret says no more which account its key has, so the CA is asked for it and binds none.
    let key = set.world.record(&account).private_key;
    if let Some(stored) = set.world.secrets.lock().get_mut(&account) {
        stored.record.state = None;
    }
    let engine = set.engine(std::slice::from_ref(&one)).await;
    set.world
        .until("the account is known again", |world| {
            world.record(&account).state.is_some()
        })
        .await;
    assert!(set.world.record(&account).private_key == key);
    assert_eq!(bound(&set.pebble), 2);
    engine.abort();
    assert!(!set.world.texts.lock().contains(MAC_KEY));
    set.no_key_was_said();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn an_account_at_the_former_directory_that_opens_late_gets_no_orders() {
    let set = set(Options::default()).await;
    let other = set.another(Options::default()).await;
    let former = ObjectName::new("vestibule-system", "ca-account");
    set.world.slow_secret.send_replace(Some(former.clone()));
    let engine = set.engine(&[]).await;
    set.world.until_held().await;
    // The issuer moves while its account is being opened.
    let moved = AcmeIssuer {
        account_key_secret: "moved-account".into(),
        ..at(&other, &set.issuer)
    };
    set.edit(moved).await;
    set.world
        .until("registered at the new directory", |world| {
            let facts = world.issuers.lock();
            facts.values().any(|fact| fact.ready == Truth::True)
        })
        .await;
    set.world.slow_secret.send_replace(None);
    set.world
        .until("open at the former directory", |world| {
            let secrets = world.secrets.lock();
            let state = secrets
                .get(&former)
                .and_then(|stored| stored.record.state.clone());
            state.is_some_and(|state| state.contains(&*set.issuer.directory))
        })
        .await;
    let one = request("team-a", &["a.test"]);
    let asked = [(one.secret.clone(), Some(one.clone()))].into();
    set.world.tell(Input::Requests(asked)).await;
    set.world.until_issued(&[&one.secret]).await;
    assert_eq!((set.pebble.orders(), other.orders()), (0, 1));
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn renews_within_the_window_and_replaces_what_there_was() {
    let set = set(Options::default()).await;
    let one = request("team-a", &["a.test"]);
    let engine = set.engine(std::slice::from_ref(&one)).await;
    set.world.until_issued(&[&one.secret]).await;
    let first = set.world.record(&one.secret);
    let leaf = set.leaf(&one.secret);
    // Pebble's window lies around the last third.
    set.world
        .until("the CA's window is asked for", |_| {
            set.pebble.log().contains("renewalInfo")
        })
        .await;
    // The clock jumps to shortly before the end: one renewal, and no second one, although our clock goes
    // on to be far from the CA's.
    set.world
        .put_clock(leaf.lifetime() / 20 * 19, &one.secret)
        .await;
    set.world
        .until("renewed", |world| world.ended.lock().len() == 2)
        .await;
    assert!(
        set.world
            .ended
            .lock()
            .iter()
            .all(|(_, outcome, _)| *outcome == OrderOutcome::Issued)
    );
    let second = set.world.record(&one.secret);
    assert!(second.private_key != first.private_key, "a fresh key");
    assert!(set.pebble.log().contains("is a replacement of"));
    set.world
        .tell(Input::SecretChanged(one.secret.clone()))
        .await;
    set.world
        .until("read again, and well", |world| {
            world
                .message(&one.secret)
                .starts_with("Issued: by ClusterACMEIssuer ca, valid until")
        })
        .await;
    assert_eq!(set.pebble.orders(), 2);
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn bad_nonces_and_reused_authorizations_are_no_trouble() {
    let set = set(Options {
        environment: vec![
            ("PEBBLE_WFE_NONCEREJECT", "40"),
            ("PEBBLE_AUTHZREUSE", "100"),
        ],
        ..Options::default()
    })
    .await;
    let mut requests: Vec<_> = (0..6)
        .map(|n| request("team-a", &[&format!("n{n}.test")]))
        .collect();
    let engine = set.engine(&requests).await;
    let names: Vec<_> = requests.iter().map(|request| &request.secret).collect();
    set.world.until_issued(&names).await;
    assert_eq!(set.pebble.orders(), 6);
    // Another certificate for the same name: the authorization is valid still.
    requests.push(request("team-b", &["n0.test"]));
    let again = requests[6].clone();
    set.world
        .tell(Input::Requests(
            [(again.secret.clone(), Some(again.clone()))].into(),
        ))
        .await;
    set.world.until_issued(&[&again.secret]).await;
    assert_eq!(set.pebble.orders(), 7);
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn a_failed_check_is_waited_out_across_restarts_and_says_why() {
    let set = set(Options::default()).await;
    let mut lost = request("team-a", &["lost.test"]);
    // The proxies have it, they think, but the CA gets to somewhere else: a name that is not ours.
    lost.gateway = ObjectName::new("platform", "elsewhere");
    let blocked = request("team-b", &["blocked.test"]);
    *set.world.deaf.lock() = Some(vestibule_acme_testing::host("lost.test"));
    let engine = set.engine(&[lost.clone(), blocked.clone()]).await;
    for (name, words) in [
        (&lost.secret, "the CA says:"),
        (&blocked.secret, "choose another hostname"),
    ] {
        set.world
            .until("failed", |world| {
                let said = world.said.lock();
                said.get(name).is_some_and(|said| {
                    said.state == IssuanceState::Failed
                        && said.reason == Reason::OrderFailed
                        && said.message.contains(words)
                        && said.message.contains("next attempt at")
                })
            })
            .await;
    }
    assert_eq!(
        set.pebble.orders(),
        1,
        "the blocked one is refused as an order"
    );
    assert!(set.world.challenges.lock().is_empty());
    assert_eq!(
        set.world
            .state(&lost.secret)
            .failure
            .expect("a failure")
            .count,
        1
    );
    // Restarts do not ask again.
    set.world.kill(engine).await;
    let engine = set.engine(&[lost.clone(), blocked.clone()]).await;
    set.world
        .until("it still says why", |world| {
            world.message(&lost.secret).contains("next attempt")
        })
        .await;
    assert_eq!(set.pebble.orders(), 1);
    // Mended, and its time comes.
    *set.world.deaf.lock() = None;
    set.world.put_clock(120, &lost.secret).await;
    set.world.until_issued(&[&lost.secret]).await;
    assert_eq!(set.pebble.orders(), 2);
    assert_eq!(set.world.state(&lost.secret).failure, None);
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn killed_anywhere_the_next_leader_goes_on_with_the_same_order() {
    // Where it is killed, and how many orders there are in the end.
    let cases = [
        (Hold::BeforeWrite(1), 2),
        (Hold::AfterWrite(1), 1),
        (Hold::Published, 1),
        (Hold::BeforeWrite(2), 1),
        (Hold::AfterWrite(2), 1),
    ];
    let set = set(Options::default()).await;
    let mut made = 0;
    for (n, (hold, orders)) in cases.into_iter().enumerate() {
        let one = request(&format!("team-{n}"), &[&format!("killed{n}.test")]);
        set.world.writes.lock().clear();
        *set.world.hold.lock() = Some(hold);
        let engine = set.engine(std::slice::from_ref(&one)).await;
        set.world.until_held().await;
        set.world.kill(engine).await;
        let engine = set.engine(std::slice::from_ref(&one)).await;
        set.world.until_issued(&[&one.secret]).await;
        assert_eq!(set.leaf(&one.secret).hostnames, one.hostnames);
        made += orders;
        assert_eq!(set.pebble.orders(), made, "{hold:?}");
        set.world.kill(engine).await;
    }
    // While the CA checks the name: it is not told again that it may, which it would refuse.
    let one = request("team-x", &["checked.test"]);
    set.world.slow.send_replace(true);
    let engine = set.engine(std::slice::from_ref(&one)).await;
    set.world.until_held().await;
    set.world.kill(engine).await;
    let engine = set.engine(std::slice::from_ref(&one)).await;
    set.world
        .until("it says that the name is being checked", |world| {
            world.message(&one.secret).contains("checks checked.test")
        })
        .await;
    set.world.slow.send_replace(false);
    set.world.until_issued(&[&one.secret]).await;
    assert_eq!(set.pebble.orders(), made + 1);
    engine.abort();
    set.no_key_was_said();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn an_order_that_is_given_up_is_closed_at_the_ca() {
    let set = set(Options::default()).await;
    let one = request("team-a", &["a.test"]);
    *set.world.hold.lock() = Some(Hold::Published);
    let engine = set.engine(std::slice::from_ref(&one)).await;
    set.world.until_held().await;
    *set.world.hold.lock() = None;
    let asked = || set.pebble.log().matches("/authZ/").count();
    let before = asked();
    let two = CertificateRequest {
        secret: one.secret.clone(),
        ..request("team-a", &["a.test", "b.test"])
    };
    let changed = [(two.secret.clone(), Some(two.clone()))];
    set.world.tell(Input::Requests(changed.into())).await;
    set.world.until_issued(&[&two.secret]).await;
    assert_eq!(set.leaf(&two.secret).hostnames, two.hostnames);
    assert_eq!(set.pebble.orders(), 2);
    // Of the first order the authorization was looked at and deactivated; of the second each was looked at.
    assert_eq!(asked() - before, 4);
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn another_issuer_issues_anew_and_the_former_serves_until_then() {
    let set = set(Options::default()).await;
    let other = AcmeIssuer {
        key: ObjectKey::new(Kind::ClusterAcmeIssuer, "", "other"),
        account_key_secret: "other-account".into(),
        ..set.issuer.clone()
    };
    let one = request("team-a", &["a.test"]);
    let issuers = [set.issuer.clone(), other];
    let engine = set.world.engine(&issuers, std::slice::from_ref(&one)).await;
    set.world.until_issued(&[&one.secret]).await;
    let former = set.leaf(&one.secret).serial;

    *set.world.hold.lock() = Some(Hold::Published);
    let mut changed = one.clone();
    let issuer = changed.issuer.as_mut().expect("an issuer");
    issuer.name = "other".into();
    let changed = [(one.secret.clone(), Some(changed))];
    set.world.tell(Input::Requests(changed.into())).await;
    set.world.until_held().await;
    assert_eq!(set.leaf(&one.secret).serial, former);
    set.world
        .until("it says what serves", |world| {
            let message = world.message(&one.secret);
            message.contains("the former certificate serves until then")
        })
        .await;

    *set.world.hold.lock() = None;
    let keys: Vec<_> = set.world.challenges.lock().keys().cloned().collect();
    let acks = keys
        .into_iter()
        .map(|key| (key, ChallengeAck::Everywhere))
        .collect();
    set.world.tell(Input::Challenges(acks)).await;
    set.world
        .until("it is the other one's", |world| {
            let message = world.message(&one.secret);
            message.starts_with("Issued: by ClusterACMEIssuer other")
        })
        .await;
    assert_ne!(set.leaf(&one.secret).serial, former);
    assert_eq!(set.pebble.orders(), 2);
    engine.abort();
    set.no_key_was_said();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn a_cut_wire_to_the_ca_loses_no_order() {
    let set = set(Options::default()).await;
    let one = request("team-a", &["a.test"]);
    let two = request("team-b", &["b.test"]);
    *set.world.hold.lock() = Some(Hold::Published);
    let engine = set.engine(std::slice::from_ref(&one)).await;
    set.world.until_held().await;
    set.pebble.cut(true);
    *set.world.hold.lock() = None;
    set.world
        .tell(Input::Requests(
            [(two.secret.clone(), Some(two.clone()))].into(),
        ))
        .await;
    let keys: Vec<_> = set.world.challenges.lock().keys().cloned().collect();
    let acks = keys
        .into_iter()
        .map(|key| (key, ChallengeAck::Everywhere))
        .collect();
    set.world.tell(Input::Challenges(acks)).await;
    for name in [&one.secret, &two.secret] {
        set.world
            .until("it says that the CA is not there", |world| {
                let said = world.said.lock();
                said.get(name)
                    .is_some_and(|said| said.reason == Reason::Unreachable)
            })
            .await;
    }
    set.pebble.cut(false);
    set.world.until_issued(&[&one.secret, &two.secret]).await;
    assert_eq!(set.pebble.orders(), 2);
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn nothing_is_ordered_where_the_challenge_is_not_ours() {
    let set = set(Options::default()).await;
    let mut others = request("team-a", &["a.test"]);
    let mut nowhere = request("team-b", &["b.test"]);
    let foreign = request("team-c", &["c.test"]);
    others
        .reach
        .values_mut()
        .for_each(|reach| *reach = [Reach::Others, Reach::NoListener]);
    nowhere
        .reach
        .values_mut()
        .for_each(|reach| *reach = [Reach::NoListener; 2]);
    set.world
        .secrets
        .lock()
        .insert(foreign.secret.clone(), Stored::default());
    let all = [others.clone(), nowhere.clone(), foreign.clone()];
    let engine = set.engine(&all).await;
    for (request, reason) in [
        (&others, Reason::ServedByOthers),
        (&nowhere, Reason::NoChallengeListener),
        (&foreign, Reason::SecretNotOurs),
    ] {
        set.world
            .until("it says why not", |world| {
                let said = world.said.lock();
                said.get(&request.secret)
                    .is_some_and(|said| said.reason == reason)
            })
            .await;
    }
    assert_eq!(set.pebble.orders(), 0);
    assert!(set.world.writes.lock().is_empty());
    // A listener comes.
    nowhere
        .reach
        .values_mut()
        .for_each(|reach| *reach = [Reach::NoListener, Reach::Ours]);
    set.world
        .tell(Input::Requests(
            [(nowhere.secret.clone(), Some(nowhere.clone()))].into(),
        ))
        .await;
    set.world.until_issued(&[&nowhere.secret]).await;
    // It goes while the challenge is out: the challenge goes too, and comes back with it.
    let mut moved = request("team-d", &["d.test"]);
    *set.world.hold.lock() = Some(Hold::Published);
    set.world
        .tell(Input::Requests(
            [(moved.secret.clone(), Some(moved.clone()))].into(),
        ))
        .await;
    set.world.until_held().await;
    moved
        .reach
        .values_mut()
        .for_each(|reach| *reach = [Reach::Others, Reach::Others]);
    set.world
        .tell(Input::Requests(
            [(moved.secret.clone(), Some(moved.clone()))].into(),
        ))
        .await;
    set.world
        .until("withdrawn", |world| world.challenges.lock().is_empty())
        .await;
    *set.world.hold.lock() = None;
    moved
        .reach
        .values_mut()
        .for_each(|reach| *reach = [Reach::Ours, Reach::Ours]);
    set.world
        .tell(Input::Requests(
            [(moved.secret.clone(), Some(moved.clone()))].into(),
        ))
        .await;
    set.world.until_issued(&[&moved.secret]).await;
    assert_eq!(set.pebble.orders(), 2, "the same order went on");
    engine.abort();
}

/// A tenant's issuer, and a request that names it.
fn of_tenant(issuer: &AcmeIssuer, hostname: &str) -> (AcmeIssuer, CertificateRequest) {
    let issuer = AcmeIssuer {
        key: ObjectKey::new(Kind::AcmeIssuer, "team-a", "ca"),
        ..issuer.clone()
    };
    let mut request = request("team-a", &[hostname]);
    let named = request.issuer.as_mut().expect("an issuer");
    named.kind = Kind::AcmeIssuer.as_str().into();
    (issuer, request)
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn an_issuer_of_a_tenant_is_registered_once_a_certificate_needs_it() {
    let set = set(Options::default()).await;
    let (issuer, one) = of_tenant(&set.issuer, "a.test");
    let issuers = [issuer.clone()];
    let engine = set.world.engine(&issuers, &[]).await;
    let says = |reason: &'static str| {
        move |world: &World| {
            world
                .issuers
                .lock()
                .values()
                .any(|fact| fact.reason == reason)
        }
    };
    set.world
        .until("not registered", says("NotRegistered"))
        .await;
    let accounts = || set.pebble.log().matches("POST /sign-me-up").count();
    assert_eq!(accounts(), 0);
    assert!(!set.pebble.log().contains("GET /dir"), "nor was it asked");
    let asked = [(one.secret.clone(), Some(one.clone()))].into();
    set.world.tell(Input::Requests(asked)).await;
    set.world.until_issued(&[&one.secret]).await;
    set.world.until("registered", says("Registered")).await;
    assert_eq!(accounts(), 1);
    set.world.kill(engine).await;
    // Whoever leads next opens what there is.
    set.world.issuers.lock().clear();
    let engine = set.world.engine(&issuers, &[]).await;
    set.world.until("registered", says("Registered")).await;
    assert_eq!(accounts(), 1);
    engine.abort();
    set.no_key_was_said();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn an_issuer_of_a_tenant_leads_to_no_private_address() {
    let set = set(Options::default()).await;
    *set.world.authorities.lock() = AuthorityRules::Public {
        allowed: Vec::new(),
    };
    let (issuer, one) = of_tenant(&set.issuer, "a.test");
    let issuers = [issuer, set.issuer.clone()];
    let engine = set.world.engine(&issuers, std::slice::from_ref(&one)).await;
    set.world
        .until("it says what is not allowed", |world| {
            let facts = world.issuers.lock();
            let fact = facts.get(&ObjectKey::new(Kind::AcmeIssuer, "team-a", "ca"));
            fact.is_some_and(|fact| {
                fact.reason == "AddressNotAllowed"
                    && fact.message.contains("acme.tenantIssuers.allowCidrs")
            })
        })
        .await;
    set.world
        .until("and so does the certificate", |world| {
            let message = world.message(&one.secret);
            message.starts_with("IssuerNotReady") && message.contains("no public address")
        })
        .await;
    assert_eq!(set.pebble.orders(), 0);
    // The platform's own leads wherever it says.
    let two = request("team-b", &["b.test"]);
    let asked = [(two.secret.clone(), Some(two.clone()))].into();
    set.world.tell(Input::Requests(asked)).await;
    set.world.until_issued(&[&two.secret]).await;
    set.world.kill(engine).await;
    // Allowed, it does as well.
    *set.world.authorities.lock() = AuthorityRules::Public {
        allowed: ["127.0.0.0/8", "::1"]
            .map(|text| AddressBlock::parse(text).expect("a block"))
            .to_vec(),
    };
    let engine = set.world.engine(&issuers, std::slice::from_ref(&one)).await;
    set.world.until_issued(&[&one.secret]).await;
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn an_order_elsewhere_is_not_asked_for() {
    let set = set(Options::default()).await;
    let one = request("team-a", &["a.test"]);
    *set.world.hold.lock() = Some(Hold::Published);
    let engine = set.engine(std::slice::from_ref(&one)).await;
    set.world.until_held().await;
    set.world.kill(engine).await;
    // The tenant writes another URL into its Secret: one that the operator reaches, and the tenant does not.
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let elsewhere = elsewhere.expect("a port");
    let port = elsewhere.local_addr().expect("an address").port();
    let mut state = set.world.state(&one.secret);
    let order = state.order.as_mut().expect("an order");
    order.url = format!("https://localhost:{port}/order/1");
    if let Some(stored) = set.world.secrets.lock().get_mut(&one.secret) {
        stored.record.state = Some(state.write().into());
    }
    let engine = set.engine(std::slice::from_ref(&one)).await;
    // Another one is made at the CA.
    set.world.until_issued(&[&one.secret]).await;
    assert_eq!(set.pebble.orders(), 2);
    let came = tokio::time::timeout(std::time::Duration::ZERO, elsewhere.accept()).await;
    assert!(came.is_err(), "somebody connected");
    engine.abort();
}

#[tokio::test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
async fn an_order_of_another_team_is_left_alone() {
    let set = set(Options::default()).await;
    let (own, theirs) = (
        request("team-a", &["a.test"]),
        request("team-b", &["b.test"]),
    );
    for one in [&own, &theirs] {
        *set.world.hold.lock() = Some(Hold::Published);
        let engine = set.engine(std::slice::from_ref(one)).await;
        set.world.until_held().await;
        set.world.kill(engine).await;
    }
    // Both teams have an order of the same account. The first one names the other's in its Secret.
    let url = set.world.state(&theirs.secret).order.expect("an order").url;
    let mut state = set.world.state(&own.secret);
    state.order.as_mut().expect("an order").url.clone_from(&url);
    if let Some(stored) = set.world.secrets.lock().get_mut(&own.secret) {
        stored.record.state = Some(state.write().into());
    }
    let engine = set.engine(std::slice::from_ref(&own)).await;
    set.world.until_issued(&[&own.secret]).await;
    set.world.kill(engine).await;
    assert_eq!(set.pebble.orders(), 3);
    // The other team's order goes on.
    let engine = set.engine(std::slice::from_ref(&theirs)).await;
    set.world.until_issued(&[&theirs.secret]).await;
    assert_eq!(set.pebble.orders(), 3);
    engine.abort();
}
