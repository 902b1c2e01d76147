//! Tests of texts: which ones count, which are held, and which objects stay.

use vestibule_model::key::Kind;

use super::*;

fn class(name: &str, controller: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata:\n  name: {name}\n\
         spec:\n  controllerName: {controller}\n"
    )
}

fn text(path: &str, text: impl Into<String>) -> (FilePath, FileChange) {
    (path.into(), FileChange::Text(text.into()))
}

/// Applies changes, and waits until what is held counts.
fn settled(
    source: &mut ManifestFiles,
    changes: impl IntoIterator<Item = (FilePath, FileChange)>,
) -> Vec<Change> {
    let now = Instant::now();
    let mut made = source.apply(changes, now);
    made.extend(source.release(now + HOLD).1);
    made
}

/// Changes as short lines.
fn lines(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| match change {
            Change::Put(Object::GatewayClass(c)) => format!("+{} {}", c.name, c.controller),
            Change::Put(Object::Unreadable(key, ..)) => format!("!{}", key.name),
            Change::Put(object) => format!("+{}", object.key()),
            Change::Remove(key) => format!("-{}", key.name),
            _ => unreachable!("a directory has nothing else"),
        })
        .collect()
}

fn broken<'a>(source: &'a ManifestFiles, path: &str) -> Option<(u64, &'a str)> {
    let (line, finding) = source.files()[path].broken.as_ref()?;
    Some((*line, finding.message.as_str()))
}

#[test]
fn objects_come_change_and_go_with_their_file() {
    let mut source = ManifestFiles::default();
    let two = format!("{}---\n{}", class("a", "x/y"), class("b", "x/y"));
    assert_eq!(
        lines(&settled(&mut source, [text("f.yaml", two)])),
        ["+a x/y", "+b x/y"]
    );
    assert_eq!(source.files()["f.yaml"].documents[1].line, 8);
    assert_eq!(
        lines(&settled(&mut source, [text("f.yaml", class("b", "x/z"))])),
        ["-a", "+b x/z"]
    );
    assert_eq!(
        lines(&settled(
            &mut source,
            [("f.yaml".into(), FileChange::Removed)]
        )),
        ["-b"]
    );
    assert!(source.files().is_empty());
}

#[test]
fn a_half_written_file_keeps_its_last_good_objects() {
    let mut source = ManifestFiles::default();
    settled(&mut source, [text("f.yaml", class("a", "x/y"))]);
    let half = "apiVersion: gateway.networking.k8s.io/v1\nkind: \"GatewayCl";
    assert!(settled(&mut source, [text("f.yaml", half)]).is_empty());
    let (line, message) = broken(&source, "f.yaml").unwrap();
    assert!(
        line >= 2 && message.starts_with("is not YAML: "),
        "{line}: {message}"
    );
    assert_eq!(source.files()["f.yaml"].documents.len(), 1);
    // An empty file, and one that cannot be read, have the same effect.
    assert!(settled(&mut source, [text("f.yaml", "\n  \n")]).is_empty());
    assert_eq!(broken(&source, "f.yaml"), Some((1, "is empty")));
    let failed = FileChange::Failed(unreadable("cannot be read", "look"));
    assert!(settled(&mut source, [("f.yaml".into(), failed)]).is_empty());
    // A good text makes the file good again.
    settled(&mut source, [text("f.yaml", class("a", "x/y"))]);
    assert_eq!(broken(&source, "f.yaml"), None);
    // A file that was never good has no objects.
    assert!(settled(&mut source, [text("g.yaml", half)]).is_empty());
    assert!(broken(&source, "g.yaml").is_some());
}

#[test]
fn an_object_that_does_not_decode_is_unreadable_alone() {
    let mut source = ManifestFiles::default();
    settled(
        &mut source,
        [text(
            "f.yaml",
            format!("{}---\n{}", class("a", "x/y"), class("b", "x/y")),
        )],
    );
    let bad = class("a", "[1]");
    let changes = settled(
        &mut source,
        [text("f.yaml", format!("{bad}---\n{}", class("b", "x/y")))],
    );
    assert_eq!(lines(&changes), ["!a", "+b x/y"]);
}

#[test]
fn document_that_is_no_object_is_reported_and_the_rest_is_read() {
    let mut source = ManifestFiles::default();
    let mixed = format!(
        "just: text\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, namespace: ns}}\n---\n{}",
        class("a", "x/y")
    );
    assert_eq!(
        lines(&settled(&mut source, [text("f.yaml", mixed)])),
        ["+a x/y"]
    );
    let documents = &source.files()["f.yaml"].documents;
    assert!(matches!(documents[0].content, Content::Nothing));
    assert_eq!(documents[0].findings.len(), 1);
    assert!(
        matches!(&documents[1].content, Content::Foreign { kind, name, .. } if kind == "Deployment" && name == "ns/d")
    );
}

#[test]
fn of_duplicates_the_first_counts_and_the_next_takes_over() {
    let mut source = ManifestFiles::default();
    let key = ObjectKey::new(Kind::GatewayClass, "", "a");
    assert_eq!(
        lines(&settled(&mut source, [text("b.yaml", class("a", "b/b"))])),
        ["+a b/b"]
    );
    // The result does not depend on the order in which the files were seen.
    assert_eq!(
        lines(&settled(&mut source, [text("a.yaml", class("a", "a/a"))])),
        ["+a a/a"]
    );
    let (path, line) = source.duplicate_of(&key, &"b.yaml".into(), 0).unwrap();
    assert_eq!((&**path, line), ("a.yaml", 1));
    assert!(source.duplicate_of(&key, &"a.yaml".into(), 0).is_none());
    assert_eq!(
        lines(&settled(
            &mut source,
            [("a.yaml".into(), FileChange::Removed)]
        )),
        ["+a b/b"]
    );
    assert!(source.duplicate_of(&key, &"b.yaml".into(), 0).is_none());
}

#[test]
fn lists_and_json_are_read_with_their_lines() {
    let mut source = ManifestFiles::default();
    let item = |name: &str| {
        format!(
            "{{\"apiVersion\": \"gateway.networking.k8s.io/v1\",\n\t\"kind\": \"GatewayClass\", \
             \"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {{\"controllerName\": \"x/y\"}}}}"
        )
    };
    let list = format!(
        "\n{}\n\n{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{}, {}]}}\n",
        item("a"),
        item("b"),
        item("c")
    );
    assert_eq!(
        lines(&settled(&mut source, [text("f.json", list)])),
        ["+a x/y", "+b x/y", "+c x/y"]
    );
    let at: Vec<u64> = source.files()["f.json"]
        .documents
        .iter()
        .map(|d| d.line)
        .collect();
    assert_eq!(at, [2, 5, 5]);
    assert!(settled(&mut source, [text("f.json", "{\n\"a\": ")]).is_empty());
    let (line, message) = broken(&source, "f.json").unwrap();
    assert!(
        line == 2 && message.starts_with("is not JSON"),
        "{line}: {message}"
    );
}

#[test]
fn a_beginning_that_is_good_yaml_is_held_until_it_is_whole_or_meant() {
    let whole = format!("{}---\n{}", class("a", "x/y"), class("b", "x/y"));
    let lines_of_it: Vec<&str> = whole.split_inclusive('\n').collect();
    let mut source = ManifestFiles::default();
    let start = Instant::now();
    source.apply([text("f.yaml", whole.as_str())], start);
    // A writer writes line by line, with pauses that are shorter than the time for which a text is
    // held.
    let mut now = start;
    for end in 1..lines_of_it.len() {
        now += HOLD / 2;
        assert!(source.release(now).1.is_empty(), "{end}");
        let part = lines_of_it[..end].concat();
        let changes = source.apply([text("f.yaml", part)], now);
        assert!(changes.is_empty(), "{end}: {:?}", lines(&changes));
        let (_, message) = broken(&source, "f.yaml").unwrap();
        assert_eq!(message, "is the beginning of what it was");
    }
    source.apply([text("f.yaml", whole.as_str())], now);
    assert_eq!(broken(&source, "f.yaml"), None);
    assert_eq!(source.held_until(), None);
    assert!(source.release(now + HOLD).1.is_empty());
    // A text that ends after a whole document, and stays so, was meant.
    source.apply([text("f.yaml", class("a", "x/y"))], now);
    assert_eq!(source.held_until(), Some(now + HOLD));
    // The file is touched in the meantime, but has the same text.
    source.apply([text("f.yaml", class("a", "x/y"))], now + HOLD / 2);
    let (files, changes) = source.release(now + HOLD);
    assert_eq!(files, ["f.yaml".into()]);
    assert_eq!(lines(&changes), ["+a x/y", "-b"]);
    assert_eq!(broken(&source, "f.yaml"), None);
    assert!(source.release(now + 2 * HOLD).0.is_empty());
}

#[test]
fn manifest_text_that_takes_an_object_away_is_held() {
    let now = Instant::now();
    let both = format!("{}---\n{}", class("a", "x/y"), class("b", "x/y"));
    let bad = format!("{}---\n{}", class("c", "x/y"), class("b", "[1]"));
    let mut source = ManifestFiles::default();
    source.apply([text("f.yaml", both.as_str())], now);
    // None of these texts is a beginning of the one in force. Each of them removes an object, or
    // makes it unreadable.
    for (part, lost) in [
        (class("b", "x/y"), "GatewayClass a"),
        (bad, "GatewayClass a"),
        ("# nothing yet\n".into(), "GatewayClass a"),
        (
            format!("{}---\n{}", class("a", "x/z"), class("b", "[1]")),
            "GatewayClass b",
        ),
    ] {
        assert!(source.apply([text("f.yaml", part)], now).is_empty());
        let (_, message) = broken(&source, "f.yaml").unwrap();
        assert!(message.contains(lost), "{message}");
    }
    // A text that removes nothing counts at once, and the held text is forgotten.
    let three = format!("{both}---\n{}", class("c", "x/y"));
    let changes = source.apply([text("f.yaml", three)], now);
    assert_eq!(lines(&changes), ["+a x/y", "+b x/y", "+c x/y"]);
    assert_eq!(source.held_until(), None);
}

#[test]
fn an_object_that_another_file_has_is_not_taken_away() {
    let now = Instant::now();
    let mut source = ManifestFiles::default();
    let both = format!("{}---\n{}", class("a", "x/y"), class("b", "x/y"));
    source.apply([text("f.yaml", both)], now);
    source.apply([text("g.yaml", class("a", "x/y"))], now);
    source.apply([text("f.yaml", class("b", "x/y"))], now);
    assert_eq!(source.held_until(), None);
}

#[test]
fn held_text_is_dropped_when_its_file_becomes_unreadable_or_is_removed() {
    let now = Instant::now();
    let mut source = ManifestFiles::default();
    source.apply([text("f.yaml", class("a", "x/y"))], now);
    source.apply([text("f.yaml", class("b", "x/y"))], now);
    assert!(source.held_until().is_some());
    let half = "kind: \"GatewayCl";
    source.apply([text("f.yaml", half)], now);
    assert_eq!(source.held_until(), None);
    source.apply([text("f.yaml", class("b", "x/y"))], now);
    let changes = source.apply([("f.yaml".into(), FileChange::Removed)], now);
    assert_eq!(lines(&changes), ["-a"]);
    assert!(source.release(now + HOLD).1.is_empty());
}
