//! Nothing fails while the configuration changes: a connection, a request or a stream sees the one before
//! an edit or the one after it, whole.

mod common;
#[path = "edits/mod.rs"]
mod edits;
mod pki;

use std::hash::{BuildHasher, RandomState};

use edits::run::{Size, run};

/// How many edits of an everyday run have to change something and be followed by many answers.
const EVERYDAY: usize = 200;
/// How many answers are many.
const MANY: usize = 200;

/// Random histories under load. `VESTIBULE_EDITS` says how many edits have to be followed by many answers, and
/// `VESTIBULE_EDITS_SEED` which history it is.
#[test]
fn each_answer_is_of_one_configuration() {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap())
    };
    let edits = number("VESTIBULE_EDITS").map(|edits| usize::try_from(edits).unwrap());
    let edits = edits.unwrap_or(EVERYDAY);
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
    assert!(
        edits < EVERYDAY || done.kinds.contains_key("vain 504"),
        "no timeout ends anything: {done}"
    );
}

/// Prints what a run came to, for `--nocapture`.
#[expect(clippy::print_stdout, reason = "a run by name is read by somebody")]
fn report(line: &str) {
    println!("{line}");
}
