//! The name of a test begins with its subject, so that the tests of a thing are found by the thing's name.

use std::fs;

use super::tokens::tokens;
use super::{members, sources, workspace};

/// Words that say nothing of the subject.
const NO_SUBJECTS: [&str; 6] = ["it", "nobody", "what", "whatever", "who", "whoever"];

/// The names of the tests in a source file, with their lines.
fn tests(source: &str) -> Vec<(&str, usize)> {
    let tokens = tokens(source);
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut found = Vec::new();
    let mut is_test = false;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            // `#[test]`, `#[tokio::test]`, `#[tokio::test(…)]`
            "#" if text(at + 1) == "[" => {
                let runs = (text(at + 2), text(at + 3), text(at + 4));
                is_test |= runs.0 == "test" || runs == ("tokio", "::", "test");
            }
            "fn" if is_test => {
                let name = tokens.get(at + 1);
                found.extend(name.map(|name| (name.text, name.line)));
                is_test = false;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn names_of_tests_begin_with_their_subject() {
    let mut seen = 0;
    let mut found = Vec::new();
    for member in members() {
        let folders = ["src", "tests"].map(|folder| workspace().join(&member).join(folder));
        for file in folders.iter().flat_map(|folder| sources(folder)) {
            let source = fs::read_to_string(&file).expect("a source file");
            let tests = tests(&source);
            seen += tests.len();
            let nameless = tests.into_iter().filter(|(name, _)| {
                let first = name.split('_').next();
                first.is_some_and(|first| NO_SUBJECTS.contains(&first))
            });
            found.extend(nameless.map(|(name, line)| format!("{}:{line}: {name}", file.display())));
        }
    }
    assert!(seen > 1500, "only {seen} tests are seen");
    assert!(found.is_empty(), "without a subject:\n{}", found.join("\n"));
}

#[test]
fn tests_are_told_from_helpers() {
    let source = "
        #[cfg(test)]
        mod tests {
            fn what_helps() {}
            #[test]
            fn what_is_tested() {}
            /// About it.
            #[tokio::test(start_paused = true)]
            #[ignore = \"needs an API server\"]
            async fn who_waits() {}
            fn it_helps() {}
        }";
    let names = tests(source).into_iter().map(|(name, _)| name);
    assert_eq!(names.collect::<Vec<_>>(), ["what_is_tested", "who_waits"]);
}
