//! Owns the refusal of paths that a backend could read differently from the routes.
//!
//! Routes match a path as it is written. A backend may first decode it, take `\` for `/`, drop everything after `;` in
//! an element, and then follow `..`. So it could serve a path for which another rule is meant.
//!
//! Only one layer of escapes is looked at. A path that is escaped twice (`%252f`) is passed on.

use crate::limits::EscapedSlashes;

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclear {
    /// An element is `.` or `..`, percent-encoded or not, alone or in front of `;`.
    Dots,
    /// A slash is written as `%2f`, `\` or `%5c`.
    Slash,
}

impl Unclear {
    /// The text for people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Dots => "the path has a . or .. element, so it is not clear what it is for\n",
            Self::Slash => {
                "the path has an escaped slash or a backslash, so it is not clear what it is for\n"
            }
        }
    }
}

/// A path with each `%2f` decoded to `/`; `None` if it has none, or does not begin with `/`. Nothing is decoded twice: a
/// slash is no part of an escape, so what is decoded makes no new one.
#[must_use]
pub fn unescape(path: &str) -> Option<String> {
    let is_escaped = path.contains("%2f") || path.contains("%2F");
    let decode = || path.replace("%2f", "/").replace("%2F", "/");
    (is_escaped && path.starts_with('/')).then(decode)
}

/// Checks that every reader takes a path for the same one. With [`EscapedSlashes::Unescape`], the path is one from
/// [`unescape`], if that returned any.
///
/// # Errors
/// The reason, if that is not so.
pub fn check(path: &str, slashes: EscapedSlashes) -> Result<(), Unclear> {
    let mut rest = path.as_bytes();
    while let Some((slash, behind)) = next_slash(rest) {
        if is_dots(behind) {
            return Err(Unclear::Dots);
        }
        if slash == Slash::Other && slashes != EscapedSlashes::Keep {
            return Err(Unclear::Slash);
        }
        rest = behind;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slash {
    Plain,
    Other,
}

/// The next slash, in whichever form, and the text after it.
fn next_slash(path: &[u8]) -> Option<(Slash, &[u8])> {
    let mut rest = path;
    loop {
        let at = rest
            .iter()
            .position(|byte| matches!(byte, b'/' | b'\\' | b'%'))?;
        rest = rest.get(at..)?;
        match slash(rest) {
            Some(found) => return Some(found),
            None => rest = rest.get(1..)?,
        }
    }
}

/// The slash with which a text begins, and the text after it.
fn slash(text: &[u8]) -> Option<(Slash, &[u8])> {
    if let [b'/', rest @ ..] = text {
        return Some((Slash::Plain, rest));
    }
    let rest = strip(text, b'\\', *b"5c").or_else(|| strip(text, b'/', *b"2f"));
    rest.map(|rest| (Slash::Other, rest))
}

/// Whether a text begins with an element `.` or `..`.
fn is_dots(text: &[u8]) -> bool {
    let (mut rest, mut dots) = (text, 0);
    while let Some(next) = strip(rest, b'.', *b"2e") {
        rest = next;
        dots += 1;
    }
    let ends = || rest.is_empty() || slash(rest).is_some() || strip(rest, b';', *b"3b").is_some();
    matches!(dots, 1 | 2) && ends()
}

/// The text after a given first character, percent-encoded or not.
fn strip(text: &[u8], byte: u8, escape: [u8; 2]) -> Option<&[u8]> {
    match text {
        [first, rest @ ..] if *first == byte => Some(rest),
        [b'%', high, low, rest @ ..] if [*high, *low].eq_ignore_ascii_case(&escape) => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_seen_however_they_are_written() {
        for path in [
            "/.",
            "/..",
            "/a/./b",
            "/a/../b",
            "/a/..",
            "/%2e",
            "/%2E%2e/a",
            "/.%2e/",
            "/a/%2e.",
            "/a/..;/b",
            "/a/..;x=y",
            "/a/.;/b",
            "/a/%2e%2E;/b",
            "/a/..%3B/b",
            "/a/..%2fb",
            "/a/..%5C",
            "/a/..\\b",
            "/a%2f../b",
            "/a%5c%2e%2e%5cb",
            "/a\\..",
            "/a%2F.;",
        ] {
            for slashes in EscapedSlashes::ALL {
                let refused = check(path, *slashes).is_err();
                assert!(refused, "{path} {slashes:?}");
            }
            let unescaped = unescape(path).unwrap_or_else(|| path.to_owned());
            assert!(
                check(&unescaped, EscapedSlashes::Unescape).is_err(),
                "{path}"
            );
        }
    }

    #[test]
    fn slashes_are_plain_or_kept() {
        for path in ["/a%2fb", "/a%2F", "/a\\b", "/a%5cb", "/%5C", "/a%%2fb"] {
            let refused = check(path, EscapedSlashes::Refuse);
            assert_eq!(refused, Err(Unclear::Slash), "{path}");
            assert_eq!(check(path, EscapedSlashes::Keep), Ok(()), "{path}");
        }
    }

    #[test]
    fn escaped_slashes_are_decoded_once() {
        for (path, expected) in [
            ("/a%2fb", "/a/b"),
            ("/a%2Fb%2fc%2F", "/a/b/c/"),
            ("/%2f%2Fa", "///a"),
            ("/a%%2fb", "/a%/b"),
            // These come close to an escape after a slash is decoded.
            ("/%2%2ff", "/%2/f"),
            ("/%%2f2f", "/%/2f"),
            ("/%25%2f2f", "/%25/2f"),
        ] {
            let unescaped = unescape(path);
            assert_eq!(unescaped.as_deref(), Some(expected), "{path}");
            assert_eq!(unescape(expected), None, "{path}");
            let checked = check(expected, EscapedSlashes::Unescape);
            assert_eq!(checked, Ok(()), "{path}");
        }
        for path in [
            "/a",
            "/%252f",
            "/%252F%255c",
            "/%5c",
            "/\\",
            "%2fa",
            "*",
            "",
        ] {
            assert_eq!(unescape(path), None, "{path}");
        }
        // A backslash is a slash to some, whether or not it is escaped.
        for path in ["/a\\b", "/a%5cb", "/%5C"] {
            let refused = check(path, EscapedSlashes::Unescape);
            assert_eq!(refused, Err(Unclear::Slash), "{path}");
        }
    }

    #[test]
    fn other_paths_are_clear() {
        for path in [
            "",
            "*",
            "/",
            "//",
            "/a",
            "/...",
            "/.../",
            "/.well-known/x",
            "/a..b",
            "/a..",
            "/a.",
            "/..a",
            "/a;b",
            "/;",
            "/a;..",
            "/%",
            "/%2",
            "/%2g",
            "/%252f..",
            "/%252e%252e/",
            "/..%2",
            "/%e2%80%a6",
            "/a%20b",
        ] {
            assert_eq!(check(path, EscapedSlashes::Refuse), Ok(()), "{path}");
        }
    }
}
