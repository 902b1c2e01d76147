//! Quotes text that tenants wrote. The result is bounded, and cannot forge a line of a log or of a terminal.

/// Longest quote in characters, without the quotation marks.
const MAX_QUOTE: usize = 80;
/// Longest text that is taken from an error of a decoder, in characters.
const MAX_ERROR: usize = 240;

/// `text` in quotation marks, with control characters escaped, and cut after [`MAX_QUOTE`] characters.
pub(crate) fn quote(text: &str) -> String {
    let (cut, more) = cut(text, MAX_QUOTE);
    format!("{cut:?}{}", if more { "…" } else { "" })
}

/// `text` unchanged if it is plain and short (a field name, a keyword), and otherwise quoted.
pub(crate) fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
    if !text.is_empty() && text.len() <= MAX_QUOTE && text.chars().all(plain) {
        text.to_owned()
    } else {
        quote(text)
    }
}

/// The message of a decoder on one line of bounded length.
pub(crate) fn one_line(text: &str) -> String {
    let (cut, more) = cut(text, MAX_ERROR);
    let mut line: String = cut
        .chars()
        .flat_map(|c| {
            let escape = c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
            let (raw, escaped) = if escape {
                (None, Some(c.escape_debug()))
            } else {
                (Some(c), None)
            };
            raw.into_iter().chain(escaped.into_iter().flatten())
        })
        .collect();
    if more {
        line.push('…');
    }
    line
}

/// The message of a decoder, with words of YAML in place of those of Rust.
pub(crate) fn plain(error: &str) -> String {
    let Some((found, expected)) = error.rsplit_once(", expected ") else {
        return error.to_owned();
    };
    let number = |name: &str| {
        let bits = name.strip_prefix(['i', 'u', 'f']);
        bits.is_some_and(|bits| ["8", "16", "32", "64", "size"].contains(&bits))
    };
    let expected = match expected {
        name if number(name) => "a number",
        "a sequence" => "a list",
        "a string" => "text",
        "a boolean" => "true or false",
        name if name == "a map" || name.starts_with("struct ") => "a map",
        other => other,
    };
    let found = found
        .strip_prefix("invalid type: ")
        .or_else(|| found.strip_prefix("invalid value: "))
        .unwrap_or(found);
    // The decoder says "sequence" and "map".
    let found = if found == "sequence" { "list" } else { found };
    format!("expected {expected}, found {found}")
}

fn cut(text: &str, max: usize) -> (&str, bool) {
    match text.char_indices().nth(max) {
        Some((end, _)) => (text.get(..end).unwrap_or(text), true),
        None => (text, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_bounded_and_escaped() {
        assert_eq!(quote("a\nb\u{1b}[2J"), r#""a\nb\u{1b}[2J""#);
        assert_eq!(quote(&"x".repeat(81)).chars().count(), 83);
        assert_eq!(quote("\u{202e}evil"), r#""\u{202e}evil""#);
    }

    #[test]
    fn words_are_quoted_only_if_need_be() {
        assert_eq!(word("allowedRoutes"), "allowedRoutes");
        assert_eq!(word("two words"), "\"two words\"");
        assert_eq!(word(""), "\"\"");
    }

    #[test]
    fn messages_speak_of_yaml() {
        for (error, words) in [
            (
                r#"invalid type: string "many", expected i64"#,
                r#"expected a number, found string "many""#,
            ),
            (
                "invalid type: sequence, expected a map",
                "expected a map, found list",
            ),
            (
                "invalid type: integer `7`, expected struct TlsRoute",
                "expected a map, found integer `7`",
            ),
            (
                "invalid value: integer `70000`, expected u16",
                "expected a number, found integer `70000`",
            ),
            ("missing field `name`", "missing field `name`"),
        ] {
            assert_eq!(plain(error), words);
        }
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(one_line("a\nb"), "a\\nb");
        assert!(one_line(&"é".repeat(1000)).ends_with('…'));
    }
}
