//! Regular expressions of routes: what they match, how large they may be, and what matching costs.

use proptest::prelude::*;
use vestibule_model::pattern::{MAX_PATTERN, Matcher, Pattern, PatternError, Steps};

fn is_match(matcher: &Matcher, value: &[u8]) -> bool {
    let steps = Steps::default();
    let answer = matcher.is_match(value, &steps);
    assert!(!steps.have_run_out(), "{matcher:?}");
    answer
}

#[test]
fn patterns_match_whole_values() {
    for (text, matching, not_matching) in [
        ("/a", vec!["/a"], vec!["/ab", "x/a", "/a\n", ""]),
        ("a|ab", vec!["a", "ab"], vec!["abc", "b"]),
        ("", vec![""], vec!["a"]),
        ("(?i)get", vec!["GET", "get"], vec!["gets"]),
        ("[0-9]+", vec!["0", "42"], vec!["4a", "a4", ""]),
        (".*", vec!["", "/é"], vec!["a\nb"]),
        ("(?m)^a$", vec!["a"], vec!["a\nb", "b\na"]),
        (r"\w+", vec!["a_1"], vec!["é"]),
        (r"\bfoo\b.*", vec!["foo", "foo bar"], vec!["food"]),
        ("^/foo$", vec!["/foo"], vec!["/foo/", "a/foo"]),
        (
            r"/v[0-9]+/users/[^/]+(/.*)?",
            vec!["/v1/users/a", "/v10/users/a/b/c"],
            vec!["/v/users/a", "/v1/users/"],
        ),
        (
            "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
            vec!["123e4567-e89b-12d3-a456-426614174000"],
            vec!["123e4567-e89b-12d3-a456-42661417400"],
        ),
        // Flags end where the pattern does.
        ("(?x)a #", vec!["a"], vec!["a #", "b"]),
    ] {
        let compiled = Matcher::compile(text).expect(text);
        assert_eq!(compiled.as_str(), text);
        for value in matching {
            assert!(
                is_match(&compiled, value.as_bytes()),
                "{text} and {value:?}"
            );
        }
        for value in not_matching {
            assert!(
                !is_match(&compiled, value.as_bytes()),
                "{text} and {value:?}"
            );
        }
    }
}

#[test]
fn patterns_are_bounded_and_cannot_leave_their_anchors() {
    for text in ["(", "[", "a{2,1}", "a)|(?:b", "(?=a)", r"(a)\1"] {
        assert_eq!(Pattern::parse(text), Err(PatternError::Syntax), "{text}");
    }
    for text in [
        "((a{1000}){1000}){1000}",
        "(a{100}){100}{100}",
        // Small to write, and few states to simulate; as an automaton they grow exponentially.
        "[01]*1[01]{600}",
        "/([01]*1[01]{600})x7",
        ".*a.{20}",
        "(?:x|y|(?:.{0,30}z)){3}",
        r"(?u)\w{50}",
    ] {
        assert_eq!(Pattern::parse(text), Err(PatternError::TooLarge), "{text}");
    }
    let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
    assert!(Pattern::parse(&deep).is_err());
}

#[test]
fn each_byte_is_a_step_until_nothing_can_match() {
    let left = |text: &str, value: &str, steps: u32| {
        let steps = Steps::new(steps);
        let matched = Matcher::compile(text)
            .expect(text)
            .is_match(value.as_bytes(), &steps);
        (matched, steps.left(), steps.have_run_out())
    };
    assert_eq!(left("/a.*", "/abcd", 10), (true, 5, false));
    assert_eq!(left("/a.*", "/abcd", 5), (true, 0, false));
    assert_eq!(left("/a.*", "/abcd", 4), (false, 0, true));
    // The second byte ends it.
    let long = format!("/b{}", "a".repeat(64_000));
    assert_eq!(left("/a.*", &long, 10), (false, 8, false));
    assert_eq!(left("", "", 0), (true, 0, false));

    let steps = Steps::new(3);
    assert!(steps.take(3) && !steps.have_run_out());
    assert!(!steps.take(1) && steps.have_run_out() && !steps.take(0));
}

/// Patterns of some parts beside and within one another.
fn patterns() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "a", "b", "ab", ".", "[ab]", "[^a]", r"\w", r"\d", r"\b", "^", "$", "/", "(?i)A", "",
    ]);
    part.prop_map(str::to_owned)
        .prop_recursive(4, 16, 3, |inner| {
            let counts = prop::sample::select(vec!["*", "+", "?", "{2}", "{0,3}", "*?"]);
            prop_oneof![
                (inner.clone(), counts).prop_map(|(part, count)| format!("(?:{part}){count}")),
                prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
                prop::collection::vec(inner, 1..4)
                    .prop_map(|parts| format!("({})", parts.join("|"))),
            ]
        })
}

proptest! {
    #[test]
    fn pattern_matches_what_the_regex_crate_matches(text in patterns(), values in prop::collection::vec("[abA1/\n]{0,8}", 8)) {
        let other = regex::bytes::RegexBuilder::new(&format!(r"\A(?:{text})\z")).unicode(false).build().unwrap();
        let Ok(compiled) = Matcher::compile(&text) else {
            return Err(TestCaseError::reject("it is too large"));
        };
        prop_assert!(compiled.size() <= MAX_PATTERN);
        prop_assert_eq!(Pattern::parse(&text).unwrap().size(), compiled.size());
        for value in &values {
            prop_assert_eq!(is_match(&compiled, value.as_bytes()), other.is_match(value.as_bytes()), "{} and {:?}", text, value);
        }
    }

    #[test]
    fn any_text_is_a_pattern_or_none(text in "\\PC{0,40}", value in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(compiled) = Matcher::compile(&text) {
            let _ = is_match(&compiled, &value);
        }
    }
}
