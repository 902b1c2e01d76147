//! One name for each type of a crate: readers find by its name what a type is, wherever they meet it.
//!
//! The rule is about types that a whole crate sees, `pub` or `pub(crate)`. A type that only its own module or the one
//! above it sees may have a short name that other modules have as well, such as `State`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use super::modules::Tree;
use super::tokens::{tokens, without_tests};
use super::{members, workspace};

/// Words that define a type.
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Crates that the rule does not hold for yet, each with the reason. Whoever renames their types removes the row.
const OTHER_CRATES: [(&str, &str); 2] = [
    (
        "e2e/bench",
        "the parts of a benchmark do not know each other",
    ),
    (
        "e2e/scenarios",
        "each subcommand has its own arguments and counts",
    ),
];

/// Names that several types of one crate have, each with the reason.
const SEVERAL_TYPES: [(&str, &str, &str); 5] = [
    (
        "operator",
        "Config",
        "others name it with its module, as in `lease::Config`",
    ),
    (
        "model",
        "Precedence",
        "the order of claims, and that of policies",
    ),
    ("proxy", "Pipe", "a platform without splice has its own"),
    (
        "proxy",
        "Progress",
        "of reading a hello, and of reading a PROXY header; others name it with its module",
    ),
    (
        "proxy",
        "Tls",
        "the settings for TLS to a backend, and the stream that has it",
    ),
];

/// Returns the types that the whole crate sees and that `source` defines outside tests, with their lines.
fn types(source: &str) -> Vec<(String, usize)> {
    let tokens = without_tests(&tokens(source));
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let behind = |at: usize| {
        let item = match (text(at + 1), text(at + 2)) {
            ("(", "crate") => at + 4,
            // `pub(super)`, `pub(in …)`, or a public field of a tuple struct that is a tuple.
            ("(", _) => return None,
            _ => at + 1,
        };
        let keyword = item + usize::from(text(item) == "unsafe");
        let name = tokens.get(keyword + 1)?;
        // The name in a definition of a macro is a parameter, `$name`.
        let is_type = KEYWORDS.contains(&text(keyword)) && name.text != "$";
        is_type.then(|| (name.text.to_owned(), name.line))
    };
    let marks = tokens.iter().enumerate();
    marks
        .filter(|(_, token)| token.text == "pub")
        .filter_map(|(at, _)| behind(at))
        .collect()
}

/// The places at which a crate defines each name of a type. `sources` has the name and the content of each file.
fn places(sources: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, source) in sources {
        for (name, line) in types(source) {
            let place = format!("{file}:{line}");
            places.entry(name).or_default().push(place);
        }
    }
    places
}

/// The source files of a crate with their content, without files that only tests have.
fn sources(member: &str) -> Vec<(String, String)> {
    let source_folder = workspace().join(member).join("src");
    let roots = ["lib.rs", "main.rs"].map(|root| source_folder.join(root));
    let files: BTreeSet<PathBuf> = roots
        .iter()
        .filter(|root| root.exists())
        .flat_map(|root| Tree::read(root).files())
        .collect();
    let named = files.into_iter().map(|file| {
        let source = fs::read_to_string(&file).expect("a source file");
        let name = file.strip_prefix(workspace()).unwrap_or(&file);
        (name.display().to_string(), source)
    });
    named.collect()
}

#[test]
fn each_type_of_a_crate_has_a_name_of_its_own() {
    let mut seen = 0;
    let mut found = Vec::new();
    let mut unused: Vec<(&str, &str)> = SEVERAL_TYPES
        .iter()
        .map(|(owner, name, _)| (*owner, *name))
        .collect();
    for member in members() {
        if OTHER_CRATES.iter().any(|(other, _)| *other == member) {
            continue;
        }
        let places = places(&sources(&member));
        seen += places.len();
        for (name, places) in places.into_iter().filter(|(_, places)| places.len() > 1) {
            let allowance = (member.as_str(), name.as_str());
            let is_allowed = unused.contains(&allowance);
            unused.retain(|other| *other != allowance);
            if !is_allowed {
                found.push(format!("{member} {name}: {}", places.join(", ")));
            }
        }
    }
    assert!(seen > 300, "only {seen} types are seen");
    assert!(unused.is_empty(), "allowed without need: {unused:?}");
    assert!(
        found.is_empty(),
        "types of one crate have the same name:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_name_of_two_types_is_found_with_its_places() {
    let first = "
        pub struct Twice; pub(crate) enum Once {} pub unsafe trait Marker {}
        pub(super) struct Near; struct Own;
        #[cfg(test)]
        mod tests { pub struct InTests; }
        macro_rules! define { ($name:ident) => { pub struct $name; }; }";
    let second = "
        pub type Alias = u8; pub fn function() {}
        mod inner { pub(crate) struct Twice { pub field: u8 } }
        pub(in crate::a) struct Near; struct Own(pub (u8, u8));";
    let files = [("a.rs", first), ("b.rs", second)];
    let sources = files.map(|(file, source)| (file.to_owned(), source.to_owned()));
    let places = places(&sources);
    let names: Vec<&str> = places.keys().map(String::as_str).collect();
    assert_eq!(names, ["Alias", "Marker", "Once", "Twice"]);
    assert_eq!(places["Twice"], ["a.rs:2", "b.rs:3"]);
}
