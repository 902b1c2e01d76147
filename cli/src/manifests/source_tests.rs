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

/// Changes as short lines.
fn lines(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| match change {
            Change::Put(Object::GatewayClass(c)) => format!("+{} {}", c.name, c.controller),
            Change::Put(Object::Unreadable(key, ..)) => format!("!{}", key.name),
            Change::Put(object) => format!("+{}", object.key()),
            Change::Remove(key) => format!("-{}", key.name),
        })
        .collect()
}

fn broken<'a>(source: &'a Source, path: &str) -> Option<(u64, &'a str)> {
    let (line, finding) = source.files()[path].broken.as_ref()?;
    Some((*line, finding.message.as_str()))
}

#[test]
fn objects_come_change_and_go_with_their_file() {
    let mut source = Source::default();
    let two = format!("{}---\n{}", class("a", "x/y"), class("b", "x/y"));
    assert_eq!(
        lines(&source.apply([text("f.yaml", two)])),
        ["+a x/y", "+b x/y"]
    );
    assert_eq!(source.files()["f.yaml"].documents[1].line, 8);
    assert_eq!(
        lines(&source.apply([text("f.yaml", class("b", "x/z"))])),
        ["-a", "+b x/z"]
    );
    assert_eq!(
        lines(&source.apply([("f.yaml".into(), FileChange::Removed)])),
        ["-b"]
    );
    assert!(source.files().is_empty());
}

#[test]
fn a_half_written_file_keeps_its_last_good_objects() {
    let mut source = Source::default();
    source.apply([text("f.yaml", class("a", "x/y"))]);
    let half = "apiVersion: gateway.networking.k8s.io/v1\nkind: \"GatewayCl";
    assert!(source.apply([text("f.yaml", half)]).is_empty());
    let (line, message) = broken(&source, "f.yaml").unwrap();
    assert!(
        line >= 2 && message.starts_with("is not YAML: "),
        "{line}: {message}"
    );
    assert_eq!(source.files()["f.yaml"].documents.len(), 1);
    // Empty, and unreadable, just the same.
    assert!(source.apply([text("f.yaml", "\n  \n")]).is_empty());
    assert_eq!(broken(&source, "f.yaml"), Some((1, "is empty")));
    let failed = FileChange::Failed(unreadable("cannot be read", "look"));
    assert!(source.apply([("f.yaml".into(), failed)]).is_empty());
    // And it heals.
    source.apply([text("f.yaml", class("a", "x/y"))]);
    assert_eq!(broken(&source, "f.yaml"), None);
    // A file that never was good has no objects.
    assert!(source.apply([text("g.yaml", half)]).is_empty());
    assert!(broken(&source, "g.yaml").is_some());
}

#[test]
fn an_object_that_does_not_decode_is_unreadable_alone() {
    let mut source = Source::default();
    source.apply([text(
        "f.yaml",
        format!("{}---\n{}", class("a", "x/y"), class("b", "x/y")),
    )]);
    let bad = class("a", "[1]");
    let changes = source.apply([text("f.yaml", format!("{bad}---\n{}", class("b", "x/y")))]);
    assert_eq!(lines(&changes), ["!a", "+b x/y"]);
}

#[test]
fn what_is_no_object_is_told_and_the_rest_read() {
    let mut source = Source::default();
    let mixed = format!(
        "just: text\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, namespace: ns}}\n---\n{}",
        class("a", "x/y")
    );
    assert_eq!(lines(&source.apply([text("f.yaml", mixed)])), ["+a x/y"]);
    let documents = &source.files()["f.yaml"].documents;
    assert!(matches!(documents[0].content, Content::Nothing));
    assert_eq!(documents[0].findings.len(), 1);
    assert!(
        matches!(&documents[1].content, Content::Foreign { kind, name, .. } if kind == "Deployment" && name == "ns/d")
    );
}

#[test]
fn of_duplicates_the_first_counts_and_the_next_takes_over() {
    let mut source = Source::default();
    let key = ObjectKey::new(Kind::GatewayClass, "", "a");
    assert_eq!(
        lines(&source.apply([text("b.yaml", class("a", "b/b"))])),
        ["+a b/b"]
    );
    // Whatever the order in which the files were seen.
    assert_eq!(
        lines(&source.apply([text("a.yaml", class("a", "a/a"))])),
        ["+a a/a"]
    );
    let (path, line) = source.duplicate_of(&key, &"b.yaml".into(), 0).unwrap();
    assert_eq!((&**path, line), ("a.yaml", 1));
    assert!(source.duplicate_of(&key, &"a.yaml".into(), 0).is_none());
    assert_eq!(
        lines(&source.apply([("a.yaml".into(), FileChange::Removed)])),
        ["+a b/b"]
    );
    assert!(source.duplicate_of(&key, &"b.yaml".into(), 0).is_none());
}

#[test]
fn lists_and_json_are_read_with_their_lines() {
    let mut source = Source::default();
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
        lines(&source.apply([text("f.json", list)])),
        ["+a x/y", "+b x/y", "+c x/y"]
    );
    let at: Vec<u64> = source.files()["f.json"]
        .documents
        .iter()
        .map(|d| d.line)
        .collect();
    assert_eq!(at, [2, 5, 5]);
    assert!(source.apply([text("f.json", "{\n\"a\": ")]).is_empty());
    let (line, message) = broken(&source, "f.json").unwrap();
    assert!(
        line == 2 && message.starts_with("is not JSON"),
        "{line}: {message}"
    );
}
