//! Reads manifests: several YAML documents in one text, within bounds.

use serde_json::Value;
use serde_saphyr::{Spanned, options};

/// Longest text in bytes. This is more than ten times as much as etcd accepts for one object.
pub const MAX_BYTES: usize = 16 << 20;
/// Deepest nesting of lists and maps.
const MAX_DEPTH: usize = 64;

/// The message about anchors and aliases.
const ALIASES: &str = "expands to too much by its aliases";

/// The message about lists and maps within each other.
const TOO_DEEP: &str = "is nested too deep";

/// Why a text cannot be read as YAML.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct YamlError {
    /// Line, from 1 on. It is 1 if the error is about the whole text.
    pub line: u64,
    /// What is wrong: a clause on one line.
    pub message: String,
}

/// The documents of `text`, each with its first line, from 1 on. Empty ones are skipped.
///
/// Anchors and aliases are expanded within a budget. A key that occurs twice in one map is an error.
pub fn documents(text: &str) -> Result<Vec<(u64, Value)>, YamlError> {
    if text.len() > MAX_BYTES {
        return Err(YamlError {
            line: 1,
            message: format!("is longer than {MAX_BYTES} bytes"),
        });
    }
    let options = options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_recorded_anchor_events: 100_000,
            max_documents: 10_000,
            max_nodes: 2_000_000,
            max_events: 8_000_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 16,
            max_alias_expansions_per_anchor: 1_000,
        },
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, options)
        .map(|documents| {
            documents
                .into_iter()
                .filter(|d| !d.value.is_null())
                .map(|d| (d.referenced.line(), d.value))
                .collect()
        })
        .map_err(|error| YamlError {
            line: error.location().map_or(1, |l| l.line()),
            message: message(&error.to_string()),
        })
}

fn message(error: &str) -> String {
    let Some((_, budget)) = error.split_once("budget breached: ") else {
        // Some limits of the parser are not part of the budget, so their errors are recognized by text.
        return if error.contains("alias replay") || error.contains("alias expansion") {
            ALIASES.to_owned()
        } else if error.contains("recursion limit") {
            TOO_DEEP.to_owned()
        } else {
            format!("is not YAML: {}", crate::text::one_line(error))
        };
    };
    let budget = budget.split([' ', '{']).next().unwrap_or_default();
    if budget.contains("Anchor") || budget.contains("Alias") {
        ALIASES.to_owned()
    } else if budget.contains("Depth") || budget.contains("Nesting") {
        TOO_DEEP.to_owned()
    } else {
        "holds more than is read of one text".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn problem(text: &str) -> YamlError {
        documents(text).unwrap_err()
    }

    #[test]
    fn says_what_is_too_much() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..8 {
            let before = level - 1;
            let aliases = vec![format!("*a{before}"); 10].join(", ");
            writeln!(bomb, "a{level}: &a{level} [{aliases}]").unwrap();
        }
        assert_eq!(problem(&bomb).message, ALIASES);
        let many = format!("a: &a x\nb: [{}]\n", "*a, ".repeat(2_000));
        assert_eq!(problem(&many).message, ALIASES);
        let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(problem(&deep).message, TOO_DEEP);
        let half = problem("a: b\nc: \"d");
        assert!(half.message.starts_with("is not YAML: "), "{half}");
    }
}
