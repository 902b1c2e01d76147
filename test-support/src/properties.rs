//! Configurations of property tests.

use proptest::test_runner::{Config, FileFailurePersistence};

/// The configuration of a property in a folder `tests`. When the property fails, proptest writes the case to a file
/// beside the test's source file, and tries it first from then on.
///
/// proptest's default looks for a folder with a `lib.rs` or `main.rs`, and warns where there is none. The macro
/// `proptest!` sets the path of the source file itself; a test that makes its own `TestRunner` has to set `source_file`.
#[must_use]
pub fn keep_failures() -> Config {
    Config::with_failure_persistence(FileFailurePersistence::WithSource("proptest-regressions"))
}

/// As [`keep_failures`], with so many cases.
#[must_use]
pub fn keep_failures_with_cases(cases: u32) -> Config {
    Config {
        cases,
        ..keep_failures()
    }
}
