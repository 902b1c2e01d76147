//! Nothing fails while the configuration changes: a connection, a request or a stream sees the one before
//! an edit or the one after it, whole.

#[path = "edits/mod.rs"]
mod edits;

use std::hash::{BuildHasher, RandomState};

use edits::nameless;
use edits::run::{Size, run};
use vestibule_test_support::properties::quick;

/// How many edits of an everyday run have to change something and be followed by many answers, if it is not a quick one.
const EVERYDAY: u32 = 200;
/// How many answers are many.
const MANY: usize = 200;
/// How often something of each kind is tried after each edit of TCP, UDP and gRPC at least.
const TRIES: usize = 10;

/// A number by name. One that is mistyped must not be another run.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap())
}

/// How many edits a run makes: what `VESTIBULE_EDITS` says, or an everyday number.
fn edits(everyday: u32) -> usize {
    let edits = number("VESTIBULE_EDITS").unwrap_or_else(|| quick(everyday).into());
    usize::try_from(edits).unwrap()
}

/// Random histories under load. `VESTIBULE_EDITS` says how many edits have to be followed by many answers, and
/// `VESTIBULE_EDITS_SEED` which history it is.
#[test]
fn each_answer_is_of_one_configuration() {
    let edits = edits(EVERYDAY);
    let seed = number("VESTIBULE_EDITS_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let size = Size {
        edits,
        answers: MANY,
        turns_once_in: 5,
        turns: 20,
    };
    let done = run(seed, size);
    report(&format!("seed {seed}: {done}"));
    assert!(
        done.answered >= edits,
        "not all edits are under load: {done}"
    );
    assert!(
        done.served > done.answers / 3,
        "hardly anything is served: {done}"
    );
    let whole = usize::try_from(EVERYDAY).unwrap();
    assert!(
        edits < whole || done.kinds.contains_key("vain 504"),
        "no timeout ends anything: {done}"
    );
    assert!(
        edits < whole || done.kinds.contains_key("socket ended"),
        "no edit ends a tunnel: {done}"
    );
}

/// The same of TCP and UDP ports and of gRPC. `VESTIBULE_EDITS` and `VESTIBULE_EDITS_SEED` count here as well.
#[tokio::test(flavor = "multi_thread")]
async fn each_answer_by_a_port_or_a_call_is_of_one_configuration() {
    let edits = edits(EVERYDAY / 2);
    let seed = number("VESTIBULE_EDITS_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let (kinds, moved) = nameless::run(seed, edits, TRIES).await;
    report(&format!("seed {seed}: {moved} sessions moved, {kinds:?}"));
    for kind in ["Tcp", "Udp", "Grpc"] {
        let served = kinds.get(&format!("{kind} served")).copied();
        assert!(
            served >= Some(edits),
            "hardly anything is served: {kinds:?}"
        );
    }
}

/// Prints what a run came to, for `--nocapture`.
#[expect(clippy::print_stdout, reason = "a run by name is read by somebody")]
fn report(line: &str) {
    println!("{line}");
}
