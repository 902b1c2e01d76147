//! The guides name what there is: the tests on the security page.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The links of a page that lead out of `docs/` to a file: text and target.
fn links(page: &str) -> Vec<(&str, &str)> {
    let ends = page.match_indices("](../").map(|(at, _)| at);
    ends.filter_map(|at| {
        let text = &page[page[..at].rfind('[')? + 1..at];
        let target = page[at + 2..].split_once(')')?.0;
        Some((
            text,
            target.split_once('#').map_or(target, |(file, _)| file),
        ))
    })
    .collect()
}

/// What is between backquotes in the text of a link.
fn code(text: &str) -> Option<&str> {
    text.split('`').nth(1)
}

/// Why a link does not name something that exists.
fn trouble(text: &str, target: &str) -> Option<String> {
    let path = root().join("docs").join(target);
    let Ok(content) = fs::read_to_string(&path) else {
        return (!path.is_dir()).then(|| format!("{target} does not exist"));
    };
    let name = code(text)?;
    let wanted = if text.starts_with("scenario ") {
        let scenarios = read(&root().join("e2e/scenarios/src/scenarios/mod.rs"));
        return (!scenarios.contains(&format!("\"{name}\",")))
            .then(|| format!("there is no scenario {name}"));
    } else if text.starts_with("fuzz ") {
        let file = format!("{name}.rs");
        return (!target.ends_with(&file)).then(|| format!("{target} is not fuzz target {name}"));
    } else if target.ends_with(name) {
        return None;
    } else if target.ends_with(".rs") {
        format!("fn {name}(")
    } else {
        name.to_owned()
    };
    (!content.contains(&wanted)).then(|| format!("{target} has no {name}"))
}

#[test]
fn what_the_security_page_names_exists() {
    let page = read(&root().join("docs/security.md"));
    let links = links(&page);
    assert!(links.len() > 50, "only {} links are seen", links.len());
    let wrong: Vec<String> = links
        .iter()
        .filter_map(|(text, target)| trouble(text, target))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_missing_is_seen() {
    for (text, target) in [
        ("a page", "../docs/no-such-page.md"),
        ("`no_such_test`", "../cli/tests/documentation.rs"),
        (
            "scenario `no-such-scenario`",
            "../e2e/scenarios/src/main.rs",
        ),
        ("fuzz `no_such_target`", "../fuzz/targets/hello.rs"),
        ("`no such promise`", "../e2e/chart/checks.jq"),
    ] {
        assert!(trouble(text, target).is_some(), "{text}");
    }
    let there = "`what_is_missing_is_seen`";
    assert_eq!(trouble(there, "../cli/tests/documentation.rs"), None);
}
