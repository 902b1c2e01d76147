//! Which tokens the authenticator accepts, and how often it asks the API server.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use serde_json::json;

use super::*;

const NOW: i64 = 1_790_000_000;
const USER: &str = "system:serviceaccount:ns:r-proxy";
const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Gives the same answer to every review.
struct Answers {
    asked: Arc<AtomicUsize>,
    answer: Box<dyn Fn() -> Result<Review, ReviewError> + Send + Sync>,
}

impl TokenReviewer for Answers {
    fn review<'a>(
        &'a self,
        _: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<Review, ReviewError>> {
        assert_eq!(audience, "vestibule-config");
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready((self.answer)()))
    }
}

fn good() -> Review {
    Review {
        authenticated: true,
        user: USER.into(),
        pod: Some("r-proxy-1".into()),
        audiences: vec!["vestibule-config".into()],
        error: None,
    }
}

fn authenticator(
    answer: impl Fn() -> Result<Review, ReviewError> + Send + Sync + 'static,
) -> (Authenticator, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let answers = Answers {
        asked: Arc::clone(&asked),
        answer: Box::new(answer),
    };
    let fleets = Fleets::one("ns", "r-proxy", "vestibule-config");
    let began = Instant::now();
    let clock = move || NOW + i64::try_from(began.elapsed().as_secs()).unwrap();
    (Authenticator::with_clock(fleets, answers, clock), asked)
}

fn token(sub: &str, aud: &str, exp: i64) -> String {
    let claims = json!({"sub": sub, "aud": [aud], "exp": exp}).to_string();
    format!("aGVhZA.{}.c2ln", token::encode(claims.as_bytes()))
}

fn a_token() -> String {
    token(USER, "vestibule-config", NOW + 600)
}

async fn show(authenticator: &Authenticator, token: &str) -> Result<SubscriberIdentity, Denied> {
    let mut metadata = MetadataMap::new();
    let header = format!("Bearer {token}").parse().unwrap();
    metadata.insert("authorization", header);
    authenticator.identify(&metadata, SOURCE).await
}

#[tokio::test(start_paused = true)]
async fn a_proxy_is_known_by_its_fleet_and_pod_until_its_token_expires() {
    let (authenticator, asked) = authenticator(|| Ok(good()));
    let identity = show(&authenticator, &a_token()).await.unwrap();
    assert_eq!(identity.fleet.name(), "r-proxy");
    assert_eq!(identity.proxy, "r-proxy-1");
    assert_eq!(identity.until, Instant::now() + Duration::from_mins(10));

    // The acceptance is remembered for a while, and not longer.
    show(&authenticator, &a_token()).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    tokio::time::advance(BELIEVED + Duration::from_secs(1)).await;
    show(&authenticator, &a_token()).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    tokio::time::advance(Duration::from_mins(10)).await;
    assert_eq!(show(&authenticator, &a_token()).await, Err(Denied::Expired));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_belief_does_not_outlive_its_token() {
    let (authenticator, _) = authenticator(|| Ok(good()));
    let short = token(USER, "vestibule-config", NOW + 5);
    show(&authenticator, &short).await.unwrap();
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(show(&authenticator, &short).await, Err(Denied::Expired));
}

#[tokio::test(start_paused = true)]
async fn tokens_that_cannot_be_good_are_denied_without_asking_the_api_server() {
    let (authenticator, asked) = authenticator(|| Ok(good()));
    let audience = || Denied::Audience("vestibule-config".into());
    for (token, denied) in [
        ("not-a-token".into(), Denied::Malformed),
        (String::new(), Denied::Malformed),
        ("x".repeat(MAX_TOKEN + 1), Denied::Malformed),
        (
            token(USER, "https://kubernetes.default.svc", NOW + 600),
            audience(),
        ),
        (token(USER, "vestibule-config", NOW - 1), Denied::Expired),
        (
            token(
                "system:serviceaccount:team-a:r-proxy",
                "vestibule-config",
                NOW + 600,
            ),
            Denied::NotAProxy(USER.into()),
        ),
    ] {
        assert_eq!(show(&authenticator, &token).await, Err(denied));
    }
    let none = authenticator.identify(&MetadataMap::new(), SOURCE).await;
    assert_eq!(none, Err(Denied::Missing));
    let mut basic = MetadataMap::new();
    basic.insert("authorization", "Basic dTpw".parse().unwrap());
    assert_eq!(
        authenticator.identify(&basic, SOURCE).await,
        Err(Denied::Malformed)
    );
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

/// The claims of a token prove nothing. Only the response of the API server counts.
#[tokio::test(start_paused = true)]
async fn token_is_judged_by_the_review_of_the_api_server_and_not_by_its_claims() {
    type Change = fn(&mut Review);
    let cases: [(Change, Denied); 5] = [
        (
            |r| r.authenticated = false,
            Denied::Rejected("no reason given".into()),
        ),
        (
            |r| r.audiences.clear(),
            Denied::Audience("vestibule-config".into()),
        ),
        (
            |r| r.user = "system:serviceaccount:team-a:r-proxy".into(),
            Denied::NotAProxy(USER.into()),
        ),
        (|r| r.pod = None, Denied::Unbound),
        (|r| r.pod = Some(String::new()), Denied::Unbound),
    ];
    for (change, denied) in cases {
        let (authenticator, asked) = authenticator(move || {
            let mut review = good();
            change(&mut review);
            Ok(review)
        });
        assert_eq!(show(&authenticator, &a_token()).await, Err(denied.clone()));
        // The same token again does not cause another review at once.
        assert_eq!(show(&authenticator, &a_token()).await, Err(denied));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        tokio::time::advance(DISBELIEVED + Duration::from_secs(1)).await;
        let _ = show(&authenticator, &a_token()).await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_no_verdict() {
    let away = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_away = Arc::clone(&away);
    let (authenticator, _) = authenticator(move || {
        if is_away.load(Ordering::Relaxed) {
            Err(ReviewError::Unreachable("connection refused".into()))
        } else {
            Ok(good())
        }
    });
    let denied = show(&authenticator, &a_token()).await.unwrap_err();
    assert_eq!(denied.status().code(), tonic::Code::Unavailable);
    assert!(!denied.to_string().contains("refused"), "not for strangers");
    away.store(false, Ordering::Relaxed);
    show(&authenticator, &a_token()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_is_not_passed_on() {
    let (authenticator, asked) = authenticator(|| {
        Ok(Review {
            authenticated: false,
            ..good()
        })
    });
    let mut too_many = 0;
    for n in 0..5000 {
        let token = token(USER, "vestibule-config", NOW + 600 + n);
        too_many += usize::from(show(&authenticator, &token).await == Err(Denied::TooMany));
    }
    assert!(asked.load(Ordering::Relaxed) <= 20);
    assert!(too_many >= 4980);
    assert!(authenticator.bad.lock().len() <= MAX_REMEMBERED);
}

#[test]
fn remembered_tokens_are_bounded_in_number_and_the_oldest_go() {
    let remembered = Remembered::default();
    let now = Instant::now();
    for n in 0..3 * MAX_REMEMBERED {
        let mut print = [0; 32];
        print[..8].copy_from_slice(&n.to_be_bytes());
        let until = now + Duration::from_secs(3600 + n as u64);
        remember(&remembered, print, n, until);
    }
    let remembered = remembered.lock();
    assert_eq!(remembered.len(), MAX_REMEMBERED);
    assert!(remembered.values().all(|(n, _)| *n >= 2 * MAX_REMEMBERED));
}
