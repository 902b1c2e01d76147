//! Gives the verdict on each object of a directory, as text for people and as JSON for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use serde::Serialize;
use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Origin, Severity};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_operator::translate::Translator;

use crate::hints::{hints, soften};
use crate::manifests::source::{Content, Document, File, ManifestFiles};
use crate::manifests::tracker::FilePath;

/// The outcome for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ObjectOutcome {
    /// Nothing is wrong with it.
    Accepted,
    /// Its kind is not one that Vestibule reads.
    Ignored,
    /// It counts, but there is a warning.
    Warning,
    /// The object or a part of it is refused.
    Refused,
}

impl fmt::Display for ObjectOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Accepted => "accepted",
            Self::Ignored => "ignored",
            Self::Warning => "warning",
            Self::Refused => "refused",
        })
    }
}

/// The verdict on one object, or on a file as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ObjectVerdict {
    /// File, relative to the directory.
    pub(crate) file: FilePath,
    /// Line on which the object begins, counted from 1.
    pub(crate) line: u64,
    /// Kind; empty if this is about something that is no object.
    pub(crate) kind: String,
    /// Namespace; empty if it has none.
    pub(crate) namespace: String,
    /// Name.
    pub(crate) name: String,
    /// Verdict.
    #[serde(rename = "verdict")]
    pub(crate) outcome: ObjectOutcome,
    /// Why.
    pub(crate) findings: Vec<FindingView>,
    /// The message that `kubectl apply` shows if admission refuses the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admission: Option<String>,
    /// The status that the object would have in a cluster; null for kinds without one.
    pub(crate) status: Option<Value>,
}

/// A finding in the form in which it is written as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FindingView {
    /// `refused` or `warning`.
    pub(crate) severity: &'static str,
    /// `specification` or `policy`.
    pub(crate) origin: &'static str,
    /// Reason, as in conditions.
    pub(crate) reason: &'static str,
    /// Path in the object.
    pub(crate) field: String,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do.
    pub(crate) action: String,
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Refused => "refused",
                Severity::Warning => "warning",
            },
            origin: match finding.origin {
                Origin::Specification => "specification",
                Origin::Policy => "policy",
            },
            reason: finding.reason.as_str(),
            field: finding.field,
            message: finding.message,
            action: finding.action,
        }
    }
}

impl ObjectVerdict {
    /// Returns `Kind namespace/name`, without the parts that are empty.
    #[must_use]
    pub(crate) fn subject(&self) -> String {
        let name = ObjectName::new(self.namespace.as_str(), self.name.as_str());
        match (self.kind.as_str(), self.name.as_str()) {
            ("", _) => "the file".into(),
            (kind, "") => kind.into(),
            (kind, _) => format!("{kind} {name}"),
        }
    }
}

/// Writes `file:line: Kind namespace/name: verdict` and a line per finding.
impl fmt::Display for ObjectVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}: {}",
            printable(&self.file),
            self.line,
            self.subject(),
            self.outcome
        )?;
        for finding in &self.findings {
            write!(f, "\n  {finding}")?;
        }
        if let Some(message) = &self.admission {
            write!(
                f,
                "\n  kubectl apply would show: denied the request: {message}"
            )?;
        }
        Ok(())
    }
}

/// Returns a text of somebody else without characters that control a terminal, or that change the direction of what follows
/// them.
pub(crate) fn printable(text: &str) -> String {
    let is_direction = |c| matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(|c: char| c.is_control() || is_direction(c), "?")
}

/// Writes `Reason at field: message; action`.
impl fmt::Display for FindingView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason)?;
        if !self.field.is_empty() {
            write!(f, " at {}", self.field)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.action.is_empty() {
            write!(f, "; {}", self.action)?;
        }
        Ok(())
    }
}

/// Gives what the caller knows about an object beyond the result of translation.
pub(crate) trait ObjectContext {
    /// Returns the findings of admission, and the message if it refuses the object.
    fn admission(&self, key: &ObjectKey) -> (Vec<Finding>, Option<String>);
    /// Returns the status of the object.
    fn status(&self, key: &ObjectKey) -> Option<Value>;
}

/// Returns the generation of an object's spec, as its manifest or the API server has it. It is 0 if they have none.
#[must_use]
pub(crate) fn generation(translator: &Translator, key: &ObjectKey) -> i64 {
    let meta = translator.object(key).and_then(|object| object.meta());
    meta.map_or(0, |meta| meta.generation)
}

/// Returns the verdicts on everything in the directory, ordered by file and line.
pub(crate) fn verdicts(
    source: &ManifestFiles,
    translator: &Translator,
    context: &impl ObjectContext,
) -> Vec<ObjectVerdict> {
    let judge = Judge {
        source,
        translator,
        context,
        hints: hints(translator),
    };
    source
        .files()
        .iter()
        .flat_map(|(path, file)| judge.file(path, file))
        .collect()
}

struct Judge<'a, F> {
    source: &'a ManifestFiles,
    translator: &'a Translator,
    context: &'a F,
    hints: BTreeMap<ObjectKey, Vec<Finding>>,
}

impl<F: ObjectContext> Judge<'_, F> {
    fn file(&self, path: &FilePath, file: &File) -> Vec<ObjectVerdict> {
        let mut verdicts = Vec::with_capacity(file.documents.len() + 1);
        if let Some((line, finding)) = &file.broken {
            let mut finding = finding.clone();
            if !file.documents.is_empty() {
                finding.message.push_str(", so its last good objects stay");
            }
            verdicts.push(verdict(
                path,
                *line,
                "",
                &ObjectName::new("", ""),
                vec![finding],
            ));
        }
        for (index, document) in file.documents.iter().enumerate() {
            verdicts.push(self.document(path, index, document));
        }
        verdicts
    }

    fn document(&self, path: &FilePath, index: usize, document: &Document) -> ObjectVerdict {
        let line = document.line;
        let nameless = ObjectName::new("", "");
        match &document.content {
            Content::Nothing => verdict(path, line, "", &nameless, document.findings.clone()),
            Content::Foreign {
                api_version,
                kind,
                name,
            } => foreign(path, line, api_version, kind, name),
            Content::Object(object) => self.object(path, index, document, object),
        }
    }

    fn object(
        &self,
        path: &FilePath,
        index: usize,
        document: &Document,
        object: &Object,
    ) -> ObjectVerdict {
        let key = object.key();
        let (line, kind) = (document.line, key.kind.as_str());
        if let Some((first, at)) = self.source.duplicate_of(&key, path, index) {
            let finding = Finding::refused(
                Reason::Duplicate,
                "metadata.name",
                format!(
                    "{first}:{at} has the same object, and that one counts; this one is in {path}"
                ),
                "remove one of the two",
            );
            return verdict(path, line, kind, &key.name, vec![finding]);
        }
        let (admission, message) = self.context.admission(&key);
        let mut findings = self
            .translator
            .findings()
            .get(&key)
            .cloned()
            .unwrap_or_default();
        findings.extend(document.findings.iter().cloned());
        for finding in admission {
            // Translation may have the same finding. Its severity there counts.
            let known = findings.iter().any(|f| {
                (f.reason, &f.field, &f.message)
                    == (finding.reason, &finding.field, &finding.message)
            });
            if !known {
                findings.push(finding);
            }
        }
        findings.extend(self.hints.get(&key).into_iter().flatten().cloned());
        soften(self.translator, object, &mut findings);
        let mut seen = BTreeSet::new();
        findings.retain(|finding| seen.insert(finding.clone()));
        ObjectVerdict {
            admission: message,
            status: self.context.status(&key),
            ..verdict(path, line, kind, &key.name, findings)
        }
    }
}

fn verdict(
    path: &FilePath,
    line: u64,
    kind: &str,
    name: &ObjectName,
    findings: Vec<Finding>,
) -> ObjectVerdict {
    let worst = findings.iter().map(|finding| finding.severity).max();
    ObjectVerdict {
        file: path.clone(),
        line,
        kind: kind.into(),
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
        outcome: match worst {
            None => ObjectOutcome::Accepted,
            Some(Severity::Warning) => ObjectOutcome::Warning,
            Some(Severity::Refused) => ObjectOutcome::Refused,
        },
        findings: findings.into_iter().map(Into::into).collect(),
        admission: None,
        status: None,
    }
}

/// Returns the verdict on an object of a kind that Vestibule does not read. It is a warning only if a user could
/// think that Vestibule reads that kind.
fn foreign(path: &FilePath, line: u64, api_version: &str, kind: &str, name: &str) -> ObjectVerdict {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let near = Kind::ALL.iter().any(|known| known.as_str() == kind)
        || group == vestibule_model::key::GATEWAY_GROUP
        || group == "vestibule.dev";
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let findings = near.then(|| {
        Finding::warning(
            Reason::Ignored,
            "apiVersion",
            format!("this release does not read {kind} of {api_version}, so it has no effect"),
            "remove it, or use a kind and version that is read",
        )
    });
    let mut verdict = verdict(
        path,
        line,
        kind,
        &ObjectName::new(namespace, name),
        findings.into_iter().collect(),
    );
    if verdict.outcome == ObjectOutcome::Accepted {
        verdict.outcome = ObjectOutcome::Ignored;
    }
    verdict
}

/// Returns the last line of the output: the number of objects with each outcome.
#[must_use]
pub(crate) fn summary(verdicts: &[ObjectVerdict]) -> String {
    let objects = || verdicts.iter().filter(|verdict| !verdict.kind.is_empty());
    let count = |outcome| objects().filter(|v| v.outcome == outcome).count();
    let total = objects().count();
    let mut text = format!(
        "{total} {}: {} accepted, {} with warnings, {} refused",
        if total == 1 { "object" } else { "objects" },
        count(ObjectOutcome::Accepted),
        count(ObjectOutcome::Warning),
        count(ObjectOutcome::Refused)
    );
    let rest = [(
        count(ObjectOutcome::Ignored),
        "of kinds that Vestibule does not read",
    )];
    for (number, what) in rest {
        if number > 0 {
            // Writing to a String does not fail.
            let _ = write!(text, ", {number} {what}");
        }
    }
    // A file that is held back for a moment is not counted here.
    let unread = |v: &&ObjectVerdict| v.kind.is_empty() && v.outcome == ObjectOutcome::Refused;
    match verdicts.iter().filter(unread).count() {
        0 => {}
        1 => text.push_str(", 1 file or document that cannot be read"),
        more => {
            let _ = write!(text, ", {more} files or documents that cannot be read");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn text_that_others_wrote_does_not_control_the_terminal() {
        let text = "a\u{1b}[31m\u{7}b\u{202e}c\u{2067}\u{200f}\u{61c}ü.yaml";
        assert_eq!(printable(text), "a?[31m?b?c???ü.yaml");
    }
}
