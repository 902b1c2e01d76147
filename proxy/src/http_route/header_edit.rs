//! Owns changes of header fields.

use hyper::header::{COOKIE, HeaderMap, HeaderName, HeaderValue};

/// Changes of header fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderEdit {
    pub(crate) set: Box<[(HeaderName, HeaderValue)]>,
    pub(crate) add: Box<[(HeaderName, HeaderValue)]>,
    pub(crate) remove: Box<[HeaderName]>,
}

impl HeaderEdit {
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.set {
            // This fails if the head has as many fields as it can hold. Then the field is not added.
            let _ = headers.try_insert(name.clone(), value.clone());
        }
        for (name, value) in &self.add {
            append(headers, name, value);
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }

    /// Fields whose former values are all removed or replaced.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = &HeaderName> {
        self.set.iter().map(|(name, _)| name).chain(&self.remove)
    }
}

/// Adds a field. A further cookie joins the field that is there already.
pub(crate) fn append(headers: &mut HeaderMap, name: &HeaderName, value: &HeaderValue) {
    // This fails if the head has as many fields as it can hold. Then the field is not added.
    let _ = headers.try_append(name.clone(), value.clone());
    if *name == COOKIE {
        join_cookies(headers);
    }
}

/// Joins cookies to one field. HTTP/2 may split them into several, and HTTP/1.1 needs one (RFC 9113 section 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn cookies_are_one_field() {
        let mut request = headers(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut request);
        assert_eq!(request, headers(&[("cookie", "a=1; b=2; c=3"), ("x", "y")]));
    }

    #[test]
    fn a_filter_adds_a_cookie_to_the_field_and_other_fields_beside_those_that_are_there() {
        let field = |name, value| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        let edit = HeaderEdit {
            add: [
                field("cookie", "b=2"),
                field("x", "2"),
                field("cookie", "c=3"),
            ]
            .into(),
            ..HeaderEdit::default()
        };
        for (before, after) in [
            (&[][..], &[("cookie", "b=2; c=3"), ("x", "2")][..]),
            (
                &[("cookie", "a=1"), ("x", "1")],
                &[("cookie", "a=1; b=2; c=3"), ("x", "1"), ("x", "2")],
            ),
        ] {
            let mut request = headers(before);
            edit.apply(&mut request);
            assert_eq!(request, headers(after));
        }
    }
}
