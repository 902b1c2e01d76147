//! Paths: up to two lines, a prefix that a grant could share and a path. What the proxy lets pass is one path
//! to whoever reads it, and the model and the proxy agree on what lies inside a prefix.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule_model::path::PathPrefix;
use vestibule_proxy::http::path::{Unclear, check, unescape};
use vestibule_proxy::limits::EscapedSlashes::{Keep, Refuse, Unescape};

type Elements = Vec<Vec<u8>>;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (prefix, path) = text.split_once('\n').unwrap_or(("", text));
    check_path(path);
    if let Ok(parsed) = PathPrefix::parse(prefix) {
        check_prefix(&parsed, prefix);
        check_inside(&parsed, path);
    }
});

/// How a backend reads paths.
#[derive(Clone, Copy, Debug)]
struct Reader {
    /// `%2e` is a dot.
    decodes: bool,
    /// Slashes are looked for after that, so `%2f` is one.
    decodes_first: bool,
    /// `\` is a slash.
    backslash: bool,
    /// What is behind `;` in an element is not part of its name.
    parameters: bool,
}

fn readers() -> impl Iterator<Item = Reader> {
    (0..16u8).map(|bits| {
        let flag = |bit: u8| bits >> bit & 1 == 1;
        Reader {
            decodes: flag(0),
            decodes_first: flag(1),
            backslash: flag(2),
            parameters: flag(3),
        }
    })
}

impl Reader {
    /// The elements as it reads them, before it follows dots.
    fn elements(self, path: &str) -> Elements {
        let whole = if self.decodes && self.decodes_first {
            decode(path.as_bytes())
        } else {
            path.as_bytes().to_vec()
        };
        let is_slash = |byte: &u8| *byte == b'/' || self.backslash && *byte == b'\\';
        whole
            .split(is_slash)
            .skip(1)
            .map(|e| self.name(e))
            .collect()
    }

    /// The same, of a path whose only slashes are `/` as it is written.
    fn written(self, path: &str) -> Elements {
        let elements = path.as_bytes().split(|byte| *byte == b'/');
        elements
            .skip(1)
            .map(|element| {
                if self.decodes && self.decodes_first {
                    self.name(&decode(element))
                } else {
                    self.name(element)
                }
            })
            .collect()
    }

    fn name(self, element: &[u8]) -> Vec<u8> {
        let decoded = if self.decodes && !self.decodes_first {
            decode(element)
        } else {
            element.to_vec()
        };
        let end = decoded.iter().position(|byte| *byte == b';');
        match end {
            Some(end) if self.parameters => decoded[..end].to_vec(),
            _ => decoded,
        }
    }
}

/// Escapes read once.
fn decode(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let (mut decoded, mut rest) = (Vec::new(), text);
    while let Some((first, behind)) = rest.split_first() {
        match (*first, digit(behind.first()), digit(behind.get(1))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high << 4 | low).expect("two digits"));
                rest = &behind[2..];
            }
            (byte, ..) => {
                decoded.push(byte);
                rest = behind;
            }
        }
    }
    decoded
}

fn has_dots(elements: &Elements) -> bool {
    elements
        .iter()
        .any(|element| matches!(&**element, b"." | b".."))
}

fn check_path(path: &str) {
    let (kept, refused) = (check(path, Keep), check(path, Refuse));
    assert_ne!(kept, Err(Unclear::Slash), "{path:?}");
    assert!(kept.is_ok() || refused.is_err(), "{path:?}");
    let once = unescape(path);
    // Nothing is decoded twice.
    assert_eq!(once.as_deref().and_then(unescape), None, "{path:?}");
    let once = once.as_deref().unwrap_or(path);
    assert_eq!(check(once, Unescape), check(once, Refuse), "{path:?}");
    assert!(kept.is_ok() || check(once, Unescape).is_err(), "{path:?}");
    // What comes from a request's head begins with a slash, or is empty or `*`.
    if !path.starts_with('/') {
        return;
    }
    let mut is_clear = true;
    let mut has_one_form = true;
    for reader in readers() {
        let elements = reader.elements(path);
        is_clear &= !has_dots(&elements);
        has_one_form &= elements == reader.written(path);
    }
    // Nobody goes up, however slashes are treated. That every reader reads the same elements is more than
    // most settings promise, and less would be wrong: nothing is refused that all read alike.
    assert_eq!(kept.is_ok(), is_clear, "{path:?}");
    assert_eq!(refused.is_ok(), is_clear && has_one_form, "{path:?}");
}

fn check_prefix(prefix: &PathPrefix, text: &str) {
    assert_eq!(prefix.as_str(), text);
    assert_eq!(PathPrefix::parse(prefix.as_str()).as_ref(), Ok(prefix));
    assert_eq!(check(text, Refuse), Ok(()), "{text:?}");
    assert!(prefix.contains(text));
    let elements: Elements = prefix.elements().map(|e| e.as_bytes().to_vec()).collect();
    assert!(!elements.is_empty() && elements.iter().all(|element| !element.is_empty()));
    for reader in readers() {
        assert_eq!(reader.elements(text), elements, "{text:?} {reader:?}");
    }
}

fn check_inside(prefix: &PathPrefix, path: &str) {
    let elements: Elements = prefix.elements().map(|e| e.as_bytes().to_vec()).collect();
    let written: Elements = path
        .split('/')
        .skip(1)
        .map(|e| e.as_bytes().to_vec())
        .collect();
    let is_below = path.starts_with('/') && written.starts_with(&elements);
    let is_inside = is_below && check(path, Refuse).is_ok();
    assert_eq!(prefix.contains(path), is_inside, "{prefix} {path:?}");
    if is_inside {
        for reader in readers() {
            let read = reader.elements(path);
            assert!(read.starts_with(&elements), "{prefix} {path:?} {reader:?}");
        }
    }
}
