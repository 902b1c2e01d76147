//! Reading manifests: documents, lines, bounds.

use std::fmt::Write;

use serde_json::json;
use vestibule_crds::yaml::{self, documents};

#[test]
fn documents_have_their_lines_and_empty_ones_are_skipped() {
    let text = "# head\n---\n# nothing\n---\na: 1\n---\n\n# note\nb:\n- x\n---\n---\nnull\n---\nc: {}\n...\n";
    let found = documents(text).unwrap();
    assert_eq!(
        found,
        [
            (5, json!({"a": 1})),
            (9, json!({"b": ["x"]})),
            (15, json!({"c": {}}))
        ]
    );
    assert_eq!(documents("").unwrap(), []);
    assert_eq!(documents("---\n").unwrap(), []);
}

#[test]
fn json_is_yaml() {
    assert_eq!(
        documents("{\"a\": [1, null, \"x\"]}").unwrap(),
        [(1, json!({"a": [1, null, "x"]}))]
    );
}

#[test]
fn scalars_are_what_kubernetes_takes_them_for() {
    let found = documents(
        "a: 443\nb: '443'\nc: true\nd: 1.2.3.4\ne: |\n  x\n  y\nf: 2026-11-21T00:00:00Z\n",
    )
    .unwrap();
    assert_eq!(
        found[0].1,
        json!({"a": 443, "b": "443", "c": true, "d": "1.2.3.4", "e": "x\ny\n", "f": "2026-11-21T00:00:00Z"})
    );
}

#[test]
fn anchors_and_merge_keys_are_expanded() {
    let found = documents("a: &x {k: 1}\nb: *x\nc:\n  <<: *x\n  l: 2\n").unwrap();
    assert_eq!(
        found[0].1,
        json!({"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 1, "l": 2}})
    );
}

#[test]
fn errors_say_the_line() {
    for (text, line) in [
        ("a: 1\nb: [1, 2\nc: 3\n", 3),
        ("a: 1\n---\nb: 1\nb: 2\n", 4),
        ("a:\n  - 1\n b: 2\n", 3),
        ("a: *nowhere\n", 1),
    ] {
        let error = documents(text).unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
        assert!(!error.message.contains('\n'));
    }
}

#[test]
fn a_bomb_of_aliases_is_an_error() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        let ten = [before.as_str(); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{ten}]").unwrap();
    }
    assert!(documents(&text).is_err());
}

#[test]
fn depth_and_size_are_bounded() {
    assert!(documents(&"[".repeat(100_000)).is_err());
    assert!(documents(&"- ".repeat(100_000)).is_err());
    let mut deep = String::new();
    for level in 0..200 {
        writeln!(deep, "{}a:", " ".repeat(level)).unwrap();
    }
    assert!(documents(&deep).is_err());
    assert!(documents(&" ".repeat(yaml::MAX_BYTES + 1)).is_err());
}

#[test]
fn a_thousand_objects_fit() {
    let one =
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 443}]}\n---\n";
    assert_eq!(documents(&one.repeat(5_000)).unwrap().len(), 5_000);
}
