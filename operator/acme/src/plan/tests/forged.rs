//! Secrets in which a tenant has written what it likes. They cost no other tenant anything.

use vestibule_model::challenge::Reach;
use zeroize::Zeroizing;

use super::simulation::*;
use crate::plan::*;

/// What the Secret of a certificate remembers, as its tenant says.
fn says(sim: &mut Sim, secret: &ObjectName, state: &RememberedState) {
    let (record, _) = sim.secrets.entry(secret.clone()).or_default();
    let version = record.version.parse::<u64>().unwrap_or_default() + 1;
    record.version = version.to_string().into();
    record.ours = true;
    record.state = Some(state.write().into());
}

#[test]
fn orders_that_secrets_make_up_keep_nobody_else_from_ordering() {
    let mut sim = Sim::new(RATES, 16);
    let renews = request(1, &[20], [Reach::Ours; 2]);
    sim.set(renews.clone());
    sim.calm(Duration::from_hours(1));
    assert!(sim.missing().is_empty());
    // A certificate is due, and another tenant says that it has ordered all that everybody may order.
    sim.steady += Duration::from_hours(24 * 70);
    let now = sim.now().wall;
    for renewal in [false, true] {
        for n in 0..24 {
            let forged = request(0, &[100 + 24 * u8::from(renewal) + n], [Reach::Others; 2]);
            let state = RememberedState {
                ordered_at: Some(now),
                renewal,
                ..RememberedState::default()
            };
            says(&mut sim, &forged.secret, &state);
            sim.requests.insert(forged.secret.clone(), forged);
        }
    }
    let new = request(2, &[21], [Reach::Ours; 2]);
    sim.requests.insert(new.secret.clone(), new);
    sim.crash();
    let before = sim.orders.len();
    let end = sim.steady + Duration::from_mins(1);
    while sim.steady < end {
        sim.advance();
        sim.complete(0, Fate::Well);
        sim.ack();
        sim.steady += Duration::from_millis(100);
    }
    assert!(sim.missing().is_empty(), "{:?}", sim.missing());
    assert_eq!(sim.orders.len() - before, 2, "one is new, one is renewed");
}

#[test]
fn an_order_counts_once_however_often_its_request_goes_and_comes() {
    let mut sim = Sim::new(RATES, 16);
    let first = request(0, &[0], [Reach::Ours; 2]);
    sim.set(first.clone());
    sim.calm(Duration::from_hours(1));
    for _ in 0..20 {
        sim.remove(&first.secret);
        sim.set(first.clone());
        for _ in 0..4 {
            sim.advance();
            sim.complete(0, Fate::Well);
        }
    }
    // Four orders an hour are a namespace's, and one is made.
    for n in 1..4 {
        sim.set(request(0, &[n], [Reach::Ours; 2]));
    }
    sim.calm(Duration::from_mins(5));
    assert!(sim.missing().is_empty(), "{:?}", sim.missing());
}

/// Looks at the orders of the simulated CA until now.
fn looks(sim: &mut Sim, time: Duration) -> Vec<String> {
    let mut looks = Vec::new();
    let end = sim.steady + time;
    while sim.steady < end {
        sim.advance();
        for (_, _, task) in &sim.tasks {
            if let Task::Look { url, .. } = task {
                looks.push(url.clone());
            }
        }
        sim.complete(0, Fate::Well);
        sim.ack();
        sim.steady += Duration::from_millis(20);
    }
    looks
}

/// The state that names this order of the shared account as if it were for the request.
fn names_order(sim: &Sim, request: &CertificateRequest, url: &str) -> RememberedState {
    RememberedState {
        order: Some(crate::state::Order {
            url: url.into(),
            account: "https://ca.test/account/1".into(),
            wanted: crate::state::Wanted::new(&sim.issuer, &request.hostnames).all,
            since: sim.now().wall,
        }),
        ..RememberedState::default()
    }
}

fn forges(sim: &mut Sim, request: &CertificateRequest, url: &str) {
    let state = names_order(sim, request, url);
    says(sim, &request.secret, &state);
    let (record, _) = sim.secrets.get_mut(&request.secret).expect("it is there");
    record.next_key = Zeroizing::new(b"a key of the tenant's".to_vec()).into();
}

#[test]
fn an_order_of_another_team_is_left_alone_and_not_told_of() {
    let mut sim = Sim::new([1000; 3], 16);
    let theirs = request(1, &[1], [Reach::Ours; 2]);
    sim.set(theirs.clone());
    until(&mut sim, |task| matches!(task, Task::Look { .. }));
    assert_eq!(sim.orders.len(), 1);
    // The other team's order is pending. A tenant names it in its own Secret.
    let own = request(0, &[0], [Reach::Ours; 2]);
    forges(&mut sim, &own, "0");
    sim.set(own.clone());
    // The simulated CA fails the test if an order is closed that is for other names than it is closed for.
    let mut said = Vec::new();
    for _ in 0..200 {
        sim.steady += Duration::from_millis(20);
        sim.advance();
        let entry = &sim.planner.entries[&own.secret];
        said.extend(entry.said.iter().map(|said| said.message.clone()));
        if let Some(failure) = &entry.state.failure {
            said.push(failure.problem.as_str().into());
        }
        for (secret, _, task) in &sim.tasks {
            let touches = match task {
                Task::Declare { url, .. }
                | Task::Finalize { url, .. }
                | Task::Download { url, .. } => Some(url),
                _ => None,
            };
            assert!(
                *secret == theirs.secret || touches.is_none_or(|url| url != "0"),
                "{task:?}"
            );
        }
        sim.complete(0, Fate::Well);
        sim.ack();
    }
    assert!(!sim.orders[0].invalid, "it was given up");
    assert!(
        said.iter().all(|said| !said.contains("h1.test")),
        "{said:?}"
    );
    sim.calm(Duration::from_mins(5));
    assert!(sim.missing().is_empty(), "both have their certificates");
    assert_eq!(sim.orders.len(), 2);
}

#[test]
fn secrets_that_name_orders_all_the_time_have_the_ca_asked_a_bounded_number_of_times() {
    let mut sim = Sim::new(RATES, 16);
    sim.set(request(1, &[1], [Reach::Ours; 2]));
    let own: Vec<_> = (100..105)
        .map(|n| request(0, &[n], [Reach::Ours; 2]))
        .collect();
    for request in &own {
        sim.set(request.clone());
    }
    let mut asked = Vec::new();
    for n in 0..200 {
        // The orders are another team's, and none at all.
        sim.orders.push(Ordered {
            hostnames: [host(1)].into(),
            checked: false,
            invalid: false,
            leaf: None,
        });
        let url = (sim.orders.len() - 1).to_string();
        let request = &own[n % own.len()];
        forges(&mut sim, request, &url);
        sim.tell(Input::SecretChanged(request.secret.clone()));
        asked.extend(looks(&mut sim, Duration::from_millis(200)));
    }
    let forged: BTreeSet<_> = asked
        .iter()
        .filter(|url| {
            let order = &sim.orders[url.parse::<usize>().expect("a number")];
            order.hostnames.contains(&host(1)) && order.leaf.is_none()
        })
        .collect();
    // A namespace may make four orders and as many renewals in an hour, so it may have eight taken up.
    assert!(forged.len() <= 8, "{} were asked for", forged.len());
    assert!(!forged.is_empty());
    // A new leader still takes up orders of other namespaces, at once.
    let (_, leaf) = &sim.secrets[&request(1, &[1], [Reach::Ours; 2]).secret];
    assert!(leaf.is_some(), "nobody else is held up");
}

#[test]
fn an_order_that_is_known_stays_whatever_its_secret_says() {
    let mut sim = Sim::new(RATES, 16);
    let own = request(0, &[0], [Reach::Ours; 2]);
    sim.set(own.clone());
    until(&mut sim, |task| matches!(task, Task::Look { .. }));
    sim.complete(0, Fate::Well);
    sim.advance();
    assert!(!sim.published.is_empty());
    // The proxies are late, and the tenant names orders meanwhile.
    let mut asked = 0;
    for n in 0..20 {
        forges(&mut sim, &own, &format!("{}", 1000 + n));
        sim.tell(Input::SecretChanged(own.secret.clone()));
        for _ in 0..20 {
            sim.advance();
            let looks = |(_, _, task): &&(_, _, Task)| matches!(task, Task::Look { .. });
            asked += sim.tasks.iter().filter(looks).count();
            sim.complete(0, Fate::Well);
            sim.steady += Duration::from_millis(5);
        }
    }
    assert_eq!(asked, 0, "nothing is new at the CA");
    sim.calm(Duration::from_mins(10));
    assert!(sim.missing().is_empty());
    assert_eq!(sim.orders.len(), 1);
}
