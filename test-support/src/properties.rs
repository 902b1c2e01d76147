//! Configurations of property tests, and how many random cases they try.

use proptest::test_runner::{Config, FileFailurePersistence};

/// The configuration of a property in a folder `tests`. When the property fails, proptest writes the case to a file
/// beside the test's source file, and tries it first from then on.
///
/// proptest's default looks for a folder with a `lib.rs` or `main.rs`, and warns where there is none. The macro
/// `proptest!` sets the path of the source file itself; a test that makes its own `TestRunner` has to set `source_file`.
#[must_use]
pub fn keep_failures() -> Config {
    let kept = FileFailurePersistence::WithSource("proptest-regressions");
    let config = Config::with_failure_persistence(kept);
    Config {
        cases: quick(config.cases),
        ..config
    }
}

/// As [`keep_failures`], with so many cases.
#[must_use]
pub fn keep_failures_with_cases(cases: u32) -> Config {
    Config {
        cases: quick(cases),
        ..keep_failures()
    }
}

/// How many random cases a test tries: all of them, or a quarter with the variable `VESTIBULE_QUICK`, as `make quick` sets
/// it. `make test` always tries all.
#[must_use]
pub fn quick(cases: u32) -> u32 {
    if std::env::var_os("VESTIBULE_QUICK").is_some() {
        cases.div_ceil(4)
    } else {
        cases
    }
}
