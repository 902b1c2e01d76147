//! The public items of the crates that only tests depend on, and who names them.

use std::collections::BTreeMap;

use crate::tokens::tokens;

/// Words that stand before the name of an item, of a field in a struct, or both.
const BEFORE: [&str; 10] = [
    "fn", "struct", "enum", "trait", "type", "const", "static", "mod", "async", "unsafe",
];

/// The names of the public items and fields that a source file defines, with their lines.
pub(crate) fn public(source: &str) -> Vec<(String, usize)> {
    let tokens = tokens(source);
    let behind = |at: usize| {
        let mut rest = tokens[at..].iter();
        // A re-export defines nothing, and the compiler itself finds an unused `pub(crate)` item.
        let first = tokens.get(at)?.text;
        if first == "use" || first == "(" {
            return None;
        }
        let token = rest.find(|token| !BEFORE.contains(&token.text))?;
        Some((token.text.to_owned(), token.line))
    };
    let marks = tokens.iter().enumerate();
    marks
        .filter(|(_, token)| token.text == "pub")
        .filter_map(|(at, _)| behind(at + 1))
        .collect()
}

/// How often the sources name each name.
#[derive(Debug, Default)]
pub(crate) struct Named(BTreeMap<String, usize>);

impl Named {
    /// Counts the names in another source file. A re-export is no use.
    pub(crate) fn read(&mut self, source: &str) {
        let (mut before, mut passed_on) = ("", false);
        for token in tokens(source) {
            passed_on |= before == "pub" && token.text == "use";
            if !passed_on {
                *self.0.entry(token.text.to_owned()).or_default() += 1;
            }
            passed_on &= token.text != ";";
            before = token.text;
        }
    }

    /// Whether there is nothing but the definition.
    pub(crate) fn only_defined(&self, name: &str) -> bool {
        self.0.get(name).is_none_or(|count| *count < 2)
    }
}
