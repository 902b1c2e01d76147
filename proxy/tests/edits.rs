//! Nothing fails while the configuration changes: a connection, a request or a stream sees the one before
//! an edit or the one after it, whole.

mod common;
#[path = "edits/mod.rs"]
mod edits;
mod pki;

use std::hash::{BuildHasher, RandomState};

use edits::run::{Size, run};

/// Random histories under load. `VESTIBULE_EDITS` says how many edits there are, and
/// `VESTIBULE_EDITS_SEED` which history.
#[test]
fn each_answer_is_of_one_configuration() {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap())
    };
    let edits = number("VESTIBULE_EDITS").map(|edits| usize::try_from(edits).unwrap());
    let seed = number("VESTIBULE_EDITS_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let size = Size {
        edits: edits.unwrap_or(60),
        clients: 7,
        turns: 20,
        answers: 150,
    };
    let done = run(seed, size);
    report(&format!("seed {seed}: {done}"));
    assert!(
        done.served > done.answers / 4,
        "hardly anything is served: {done}"
    );
}

/// Prints what a run came to, for `--nocapture`.
#[expect(clippy::print_stdout, reason = "a run by name is read by somebody")]
fn report(line: &str) {
    println!("{line}");
}
