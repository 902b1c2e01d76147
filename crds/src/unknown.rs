//! Unknown fields: where they are, and the findings about the parts of the object that have them.

use serde_ignored::Path;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;

use crate::text::word;

/// Most findings about unknown fields in one part of an object. More of them would add nothing.
const MAX_PER_PART: usize = 8;

/// The unknown fields of one object, as paths.
#[derive(Debug, Default)]
pub(crate) struct UnknownFields(Vec<Vec<String>>);

impl UnknownFields {
    /// Adds a path, unless it is in a part that Vestibule does not read.
    pub(crate) fn add(&mut self, path: &Path<'_>) {
        let mut segments = Vec::new();
        collect(path, &mut segments);
        let excluded = match segments.first().map(String::as_str) {
            Some("apiVersion" | "kind") => segments.len() == 1,
            Some("metadata" | "status") => true,
            _ => false,
        };
        if !excluded {
            self.0.push(segments);
        }
    }

    /// Whether any unknown field lies below `prefix`.
    pub(crate) fn any_below(&self, prefix: &[&str]) -> bool {
        self.below(prefix).next().is_some()
    }

    /// A refusal for each unknown field below `prefix`.
    pub(crate) fn refusals_below(&self, prefix: &[&str]) -> Vec<Finding> {
        refusals(self.below(prefix))
    }

    /// A refusal for each unknown field below `prefix` that is not below `part`.
    pub(crate) fn refusals_between(&self, prefix: &[&str], part: &[&str]) -> Vec<Finding> {
        refusals(self.below(prefix).filter(|path| !starts_with(path, part)))
    }

    /// A warning for each unknown field that lies below none of the `refused` prefixes.
    pub(crate) fn warnings_outside(&self, refused: &[&[&str]]) -> Vec<Finding> {
        self.0
            .iter()
            .filter(|path| !refused.iter().any(|prefix| starts_with(path, prefix)))
            .take(MAX_PER_PART)
            .map(|path| {
                Finding::warning(
                    Reason::UnknownField,
                    display(path),
                    "is a field this release does not know, so it has no effect",
                    "check its spelling, or upgrade Vestibule",
                )
            })
            .collect()
    }

    fn below<'a>(&'a self, prefix: &'a [&str]) -> impl Iterator<Item = &'a Vec<String>> {
        self.0.iter().filter(move |path| starts_with(path, prefix))
    }
}

fn refusals<'a>(paths: impl Iterator<Item = &'a Vec<String>>) -> Vec<Finding> {
    paths
        .take(MAX_PER_PART)
        .map(|path| {
            Finding::refused(
                Reason::UnsupportedValue,
                display(path),
                "is a field this release does not know, and leaving it out could let in more \
                     than it should",
                "remove the field, or upgrade Vestibule",
            )
        })
        .collect()
}

fn starts_with(path: &[String], prefix: &[&str]) -> bool {
    path.len() >= prefix.len() && path.iter().zip(prefix).all(|(a, b)| a == b)
}

fn collect(path: &Path<'_>, segments: &mut Vec<String>) {
    match path {
        Path::Root => {}
        Path::Seq { parent, index } => {
            collect(parent, segments);
            segments.push(index.to_string());
        }
        Path::Map { parent, key } => {
            collect(parent, segments);
            segments.push(key.clone());
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => collect(parent, segments),
    }
}

/// The path as text, such as `spec.listeners[0].filters`. Tenants write the keys, so these are cut and escaped.
fn display(path: &[String]) -> String {
    let mut text = String::new();
    for segment in path {
        if segment.bytes().all(|b| b.is_ascii_digit()) && !segment.is_empty() {
            text.push('[');
            text.push_str(segment);
            text.push(']');
        } else {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(&word(segment));
        }
    }
    text
}
