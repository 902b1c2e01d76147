//! Turns the texts of files into objects, and keeps the last good ones. It is pure.
//!
//! A text that is not YAML (or not JSON, by the name of the file) counts as half written: the file's objects stay,
//! and the problem is reported. An object that does not decode becomes unreadable, without an effect on the others.
//! If an object is in two places, the first one counts, by path and then by line.
//!
//! A half-written text can be valid YAML, because the first lines of a manifest often are. So a text that removes
//! something counts only after [`HOLD`] without a newer text.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use vestibule_crds::{Decoded, decode, flatten, yaml};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;
use vestibule_operator::translate::Change;

use super::tracker::FilePath;

/// How long a text that removes something is held back, because it may be half written. This is longer than the pauses
/// of a writer, and shorter than the patience of a user who means it.
pub(crate) const HOLD: Duration = Duration::from_secs(3);

/// Result of reading a file.
#[derive(Debug)]
pub(crate) enum FileChange {
    /// Its new text.
    Text(String),
    /// The file exists and cannot be read, for this reason.
    Failed(Finding),
    /// The file is gone.
    Removed,
}

/// A part of a file: one object, or something else in its place.
#[derive(Debug)]
pub(crate) struct Document {
    /// Its first line, from 1 on.
    pub(crate) line: u64,
    /// Its content.
    pub(crate) content: Content,
    /// Findings that have no place in the object.
    pub(crate) findings: Vec<Finding>,
}

/// The content of a document.
#[derive(Debug)]
pub(crate) enum Content {
    /// An object that Vestibule reads, an unreadable one included.
    Object(Object),
    /// An object of a kind that Vestibule does not read.
    Foreign {
        /// `apiVersion`.
        api_version: String,
        /// `kind`.
        kind: String,
        /// `namespace/name`, `name`, or nothing.
        name: String,
    },
    /// No object. The findings say why.
    Nothing,
}

/// A file, with the text that counts.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// The documents of its last good text.
    pub(crate) documents: Vec<Document>,
    /// Why its present text does not count, if so: the line and the finding.
    pub(crate) broken: Option<(u64, Finding)>,
    text: String,
    held: Option<Held>,
}

/// A text that will count later, unless another one comes.
#[derive(Debug)]
struct Held {
    text: String,
    documents: Vec<Document>,
    until: Instant,
}

/// All files, and which of them holds each object.
#[derive(Debug, Default)]
pub(crate) struct ManifestFiles {
    files: BTreeMap<FilePath, File>,
    places: BTreeMap<ObjectKey, BTreeSet<(FilePath, usize)>>,
}

impl ManifestFiles {
    /// Takes changes of files at the time `now`, and returns the changes of objects that follow. Other files stay as
    /// they are.
    pub(crate) fn apply(
        &mut self,
        changes: impl IntoIterator<Item = (FilePath, FileChange)>,
        now: Instant,
    ) -> Vec<Change> {
        let mut touched = BTreeSet::new();
        for (path, change) in changes {
            match change {
                FileChange::Removed => self.replace(&path, None, &mut touched),
                FileChange::Failed(finding) => self.break_file(path, 1, finding),
                FileChange::Text(text) => match self.read(&path, &text) {
                    Ok(documents) => match self.loss(&path, &text, &documents) {
                        Some(finding) => self.hold(path, text, documents, finding, now),
                        None => self.replace(&path, Some((text, documents)), &mut touched),
                    },
                    Err((line, finding)) => self.break_file(path, line, finding),
                },
            }
        }
        self.changes(touched)
    }

    /// When the next text that is held back will count.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        let held = self.files.values().filter_map(|file| file.held.as_ref());
        held.map(|held| held.until).min()
    }

    /// Lets texts count that were held back for long enough. Returns their files, and the changes of objects that
    /// follow.
    pub(crate) fn release(&mut self, now: Instant) -> (Vec<FilePath>, Vec<Change>) {
        let due = |file: &File| file.held.as_ref().is_some_and(|held| held.until <= now);
        let due: Vec<FilePath> = self
            .files
            .iter()
            .filter(|(_, file)| due(file))
            .map(|(path, _)| path.clone())
            .collect();
        let mut touched = BTreeSet::new();
        for path in &due {
            if let Some(held) = self.files.get_mut(path).and_then(|file| file.held.take()) {
                self.replace(path, Some((held.text, held.documents)), &mut touched);
            }
        }
        (due, self.changes(touched))
    }

    fn changes(&self, touched: BTreeSet<ObjectKey>) -> Vec<Change> {
        touched
            .into_iter()
            .map(|key| match self.effective(&key) {
                Some(object) => Change::Put(object.clone()),
                None => Change::Remove(key),
            })
            .collect()
    }

    /// The files, in order.
    #[must_use]
    pub(crate) fn files(&self) -> &BTreeMap<FilePath, File> {
        &self.files
    }

    /// The place of the object that counts, if the document at (`path`, `index`) has the same object and does not
    /// count.
    #[must_use]
    pub(crate) fn duplicate_of(
        &self,
        key: &ObjectKey,
        path: &FilePath,
        index: usize,
    ) -> Option<(&FilePath, u64)> {
        let (first, at) = self.places.get(key)?.first()?;
        if (first, *at) == (path, index) {
            return None;
        }
        let line = self.files.get(first)?.documents.get(*at)?.line;
        Some((first, line))
    }

    fn effective(&self, key: &ObjectKey) -> Option<&Object> {
        let (path, index) = self.places.get(key)?.first()?;
        match &self.files.get(path)?.documents.get(*index)?.content {
            Content::Object(object) => Some(object),
            Content::Foreign { .. } | Content::Nothing => None,
        }
    }

    fn read(&self, path: &FilePath, text: &str) -> Result<Vec<Document>, (u64, Finding)> {
        let documents = parse(path, text)?;
        let had_objects = self
            .files
            .get(path)
            .is_some_and(|f| !f.documents.is_empty());
        if documents.is_empty() && had_objects && text.trim().is_empty() {
            // An editor may leave an empty file for a moment, and a full disk for longer.
            return Err((
                1,
                unreadable("is empty", "delete it if its objects are to go"),
            ));
        }
        Ok(documents)
    }

    /// The finding about objects that the last good text had and this one does not.
    fn loss(&self, path: &FilePath, text: &str, documents: &[Document]) -> Option<Finding> {
        let before = self.files.get(path)?;
        let message = if text.len() < before.text.len() && before.text.starts_with(text) {
            "is the beginning of what it was".to_owned()
        } else {
            let kept: BTreeSet<ObjectKey> = documents.iter().filter_map(readable).collect();
            let elsewhere = |key: &ObjectKey| {
                let places = self.places.get(key).into_iter().flatten();
                places.clone().any(|(other, _)| other != path)
            };
            let mut had = before.documents.iter().filter_map(readable);
            let lost = had.find(|key| !kept.contains(key) && !elsewhere(key))?;
            format!("has no {lost} any more that can be read")
        };
        let action = format!(
            "complete it, or leave it alone for {} s if it is meant so",
            HOLD.as_secs()
        );
        Some(Finding::warning(Reason::Pending, "", message, action))
    }

    fn hold(
        &mut self,
        path: FilePath,
        text: String,
        documents: Vec<Document>,
        finding: Finding,
        now: Instant,
    ) {
        let file = self.files.entry(path).or_default();
        file.broken = Some((1, finding));
        // If the text is the same, the time is not extended. So touching the file again and again does not delay it for
        // ever.
        if file.held.as_ref().is_none_or(|held| held.text != text) {
            file.held = Some(Held {
                text,
                documents,
                until: now + HOLD,
            });
        }
    }

    fn break_file(&mut self, path: FilePath, line: u64, finding: Finding) {
        let file = self.files.entry(path).or_default();
        file.broken = Some((line, finding));
        file.held = None;
    }

    fn replace(
        &mut self,
        path: &FilePath,
        good: Option<(String, Vec<Document>)>,
        touched: &mut BTreeSet<ObjectKey>,
    ) {
        for (index, key) in self.files.get(path).map(keys).into_iter().flatten() {
            if let Some(places) = self.places.get_mut(&key) {
                places.remove(&(path.clone(), index));
                if places.is_empty() {
                    self.places.remove(&key);
                }
            }
            touched.insert(key);
        }
        let Some((text, documents)) = good else {
            self.files.remove(path);
            return;
        };
        let file = File {
            documents,
            broken: None,
            text,
            held: None,
        };
        for (index, key) in keys(&file) {
            self.places
                .entry(key.clone())
                .or_default()
                .insert((path.clone(), index));
            touched.insert(key);
        }
        self.files.insert(path.clone(), file);
    }
}

fn keys(file: &File) -> Vec<(usize, ObjectKey)> {
    file.documents
        .iter()
        .enumerate()
        .filter_map(|(index, document)| match &document.content {
            Content::Object(object) => Some((index, object.key())),
            Content::Foreign { .. } | Content::Nothing => None,
        })
        .collect()
}

/// The object of a document, if it could be read.
fn readable(document: &Document) -> Option<ObjectKey> {
    match &document.content {
        Content::Object(Object::Unreadable(..)) | Content::Foreign { .. } | Content::Nothing => {
            None
        }
        Content::Object(object) => Some(object.key()),
    }
}

fn parse(path: &str, text: &str) -> Result<Vec<Document>, (u64, Finding)> {
    let json = path
        .rsplit_once('.')
        .is_some_and(|(_, end)| end.eq_ignore_ascii_case("json"));
    let values = if json {
        json_documents(text)?
    } else {
        yaml::documents(text)
            .map_err(|error| (error.line, unreadable(error.message, "correct the text")))?
    };
    Ok(values
        .into_iter()
        .flat_map(|(line, value)| flatten(value).into_iter().map(move |value| (line, value)))
        .map(|(line, value)| document(line, value))
        .collect())
}

/// Reads JSON, one value after the other. A YAML reader could not be used, because it does not accept tabs, for
/// instance.
fn json_documents(text: &str) -> Result<Vec<(u64, Value)>, (u64, Finding)> {
    let line_at = |offset: usize| {
        let before = text.get(..offset).unwrap_or_default();
        1 + before.matches('\n').count() as u64
    };
    let mut values = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    loop {
        let rest = text.get(stream.byte_offset()..).unwrap_or_default();
        let start = text.len() - rest.trim_start().len();
        match stream.next() {
            None => return Ok(values),
            Some(Ok(value)) => values.push((line_at(start), value)),
            Some(Err(error)) => {
                let line = u64::try_from(error.line()).unwrap_or(1).max(1);
                let message = format!("is not JSON: {error}");
                return Err((line, unreadable(message, "correct the text")));
            }
        }
    }
}

fn document(line: u64, value: Value) -> Document {
    let (content, findings) = match decode(value) {
        Decoded::Unknown {
            api_version,
            kind,
            name,
        } => (
            Content::Foreign {
                api_version,
                kind,
                name,
            },
            Vec::new(),
        ),
        Decoded::NotAnObject(finding) => (Content::Nothing, vec![finding]),
        Decoded::Object(object, findings) => (Content::Object(*object), findings),
        Decoded::Unreadable(key, meta, finding) => (
            Content::Object(Object::Unreadable(key, meta, finding)),
            Vec::new(),
        ),
    };
    Document {
        line,
        content,
        findings,
    }
}

/// The finding for a file or a text that cannot be read.
pub(crate) fn unreadable(message: impl Into<String>, action: impl Into<String>) -> Finding {
    Finding::refused(Reason::Unreadable, "", message, action)
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
