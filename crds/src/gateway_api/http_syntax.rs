//! Checks for tokens, names of headers and paths of HTTP.

/// Headers that say where a message ends or when it is sent, or that are about one connection. Only the proxy sets them.
pub(super) const FRAMING: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether `text` is a token in the sense of RFC 9110, such as the name of a header.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Whether every character may be in a path, percent-encoded ones included.
pub(super) fn is_path(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let good = match byte {
            b'%' => {
                let mut hex = || bytes.next().is_some_and(|b| b.is_ascii_hexdigit());
                hex() && hex()
            }
            _ => byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@".contains(&byte),
        };
        if !good {
            return false;
        }
    }
    true
}
