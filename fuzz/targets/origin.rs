//! Origins that a CORS filter allows: up to two lines, a pattern and the `Origin` of a request, against the grammar of
//! Gateway API's `CORSOrigin` and an oracle that compares the parts of RFC 6454 as texts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule_model::origin::OriginPattern;

/// `MaxLength` of `CORSOrigin`.
const MAX_LENGTH: usize = 253;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (pattern_text, origin) = text.split_once('\n').unwrap_or((text, "null"));
    let parsed = OriginPattern::parse(pattern_text);
    assert!(
        parsed.is_ok() || !is_in_grammar(pattern_text),
        "{pattern_text:?}"
    );
    let Ok(pattern) = parsed else {
        return;
    };
    let printed = pattern.to_string();
    assert!(is_in_grammar(&printed), "{pattern_text:?} {printed:?}");
    assert_eq!(OriginPattern::parse(&printed).as_ref(), Ok(&pattern));
    assert_eq!(printed == "*", pattern.is_any());
    for origin in [origin, "null", "", &*printed, pattern_text] {
        check_match(&pattern, &printed, origin);
    }
});

fn check_match(pattern: &OriginPattern, printed: &str, origin: &str) {
    let matches = pattern.matches(origin);
    if pattern.is_any() {
        assert!(matches);
        return;
    }
    let (scheme, host, port) = parts(printed).expect("a printed pattern has parts");
    let Some((of, name, at)) = parts(origin) else {
        assert!(!matches, "{printed:?} {origin:?}");
        return;
    };
    let is_among = match host.strip_prefix('*') {
        Some(suffix) => name.len() > suffix.len() && name.ends_with(suffix),
        None => name == host,
    };
    let expected = is_among && can_be_sent(&name) && (scheme, port) == (of, at);
    assert_eq!(matches, expected, "{printed:?} {origin:?}");
}

/// Whether a browser can send this as the host of an origin (RFC 6454, section 6.1): an IPv6 address in brackets, or a
/// name without empty labels, in which nothing delimits a path, a user, a query or a fragment.
fn can_be_sent(host: &str) -> bool {
    if host.starts_with('[') {
        let url = format!("[{}]:1", host.trim_matches(['[', ']']));
        return host.ends_with(']')
            && host.matches(['[', ']']).count() == 2
            && url.parse::<std::net::SocketAddrV6>().is_ok()
            && !host.contains('%');
    }
    let fits = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.');
    host.chars().all(fits) && !format!(".{host}.").contains("..")
}

/// Scheme, host and port, in lower case, as a reader takes them from left to right: the host is all up to the port,
/// and the brackets of an IPv6 address hold its colons.
fn parts(text: &str) -> Option<(String, String, u16)> {
    let text = text.to_ascii_lowercase();
    let (scheme, default) = [("https", 443), ("http", 80)]
        .into_iter()
        .find(|(scheme, _)| text.starts_with(&format!("{scheme}://")))?;
    let rest = &text[scheme.len() + 3..];
    let parts = |host: &str, port| Some((scheme.to_owned(), host.to_owned(), port));
    match rest.rfind(':') {
        None => parts(rest, default),
        Some(_) if rest.ends_with(']') => parts(rest, default),
        Some(colon) => {
            let digits = &rest[colon + 1..];
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let port = is_number.then(|| digits.parse().ok()).flatten()?;
            (port != 0).then(|| parts(&rest[..colon], port)).flatten()
        }
    }
}

/// The pattern of `CORSOrigin`, with a port that there is.
fn is_in_grammar(text: &str) -> bool {
    if text == "*" {
        return true;
    }
    let rest = text.strip_prefix("https://");
    let Some(rest) = rest.or_else(|| text.strip_prefix("http://")) else {
        return false;
    };
    let (host, port) = match rest.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (rest, None),
    };
    let is_label = |label: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !label.is_empty() && label.bytes().all(fits)
    };
    let name = host.strip_prefix("*.").unwrap_or(host);
    let is_port = |port: &str| {
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        let number = port.parse::<u32>().unwrap_or(0);
        digits && port.len() <= 5 && (1..=65535).contains(&number)
    };
    text.len() <= MAX_LENGTH
        && (host == "*" || name.split('.').all(is_label))
        && port.is_none_or(is_port)
}
