//! Owns the header changes that an authorization server asks for.

use hyper::header::{COOKIE, HeaderMap, HeaderName, HeaderValue};

use super::envoy::HeaderOption;
use crate::http::headers::{copied, is_of_connection};
use crate::http_route::header_edit::join_cookies;

/// How a field changes. The names are those of Envoy's `HeaderAppendAction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Append,
    AddIfAbsent,
    Overwrite,
    OverwriteIfExists,
    Remove,
}

/// A change of one field.
#[derive(Clone, Debug)]
pub(in crate::http) struct FieldChange {
    name: HeaderName,
    /// It is not used if the field is removed.
    value: HeaderValue,
    change: Change,
}

impl FieldChange {
    /// The changes that put these fields of a response in the place of those of the request.
    pub(super) fn replacing(
        headers: &HeaderMap,
        is_passed: impl Fn(&HeaderName) -> bool,
    ) -> Vec<Self> {
        let names = headers
            .keys()
            .filter(|name| may_change(name) && is_passed(name));
        let changes = names.flat_map(|name| {
            let values = headers.get_all(name).iter().enumerate();
            values.map(|(index, value)| Self {
                name: name.clone(),
                // The value shares the buffer of the whole answer, which must not stay in memory as long as the request.
                value: copied(value).unwrap_or_else(|| value.clone()),
                change: if index == 0 {
                    Change::Overwrite
                } else {
                    Change::Append
                },
            })
        });
        changes.collect()
    }

    /// The removal of a field; `None` if it has to stay.
    pub(super) fn removal(name: &str) -> Option<Self> {
        Some(Self {
            name: changeable(name)?,
            value: HeaderValue::from_static(""),
            change: Change::Remove,
        })
    }

    /// A change in Envoy's form. It is `None` for a field that the proxy writes itself.
    ///
    /// `append` is older than `append_action`. Without either, a field of a request or of a refusal is overwritten,
    /// and one of a response is appended.
    ///
    /// # Errors
    /// The name or the value is not valid.
    pub(super) fn read(
        option: &HeaderOption,
        is_appended: bool,
    ) -> Result<Option<Self>, InvalidField> {
        let header = option.header.as_ref().ok_or(InvalidField)?;
        if header.key.starts_with(':') {
            return Ok(None);
        }
        let name = HeaderName::try_from(&header.key).map_err(|_| InvalidField)?;
        let value = match &*header.raw_value {
            [] => header.value.as_bytes(),
            raw => raw,
        };
        // A client of HTTP/2 may end its connection because of white space around a value.
        let value = HeaderValue::from_bytes(value.trim_ascii()).map_err(|_| InvalidField)?;
        let change = match (option.append_action, &option.append) {
            (1, _) => Change::AddIfAbsent,
            (2, _) => Change::Overwrite,
            (3, _) => Change::OverwriteIfExists,
            (_, append) if append.as_ref().map_or(is_appended, |of| of.value) => Change::Append,
            _ => Change::Overwrite,
        };
        Ok(may_change(&name).then_some(Self {
            name,
            value,
            change,
        }))
    }

    /// Makes all of these changes.
    pub(in crate::http) fn apply_all(changes: &[Self], headers: &mut HeaderMap) {
        for change in changes {
            change.apply(headers);
        }
        // Once is enough, and costs less than once for each of many cookies.
        if changes.iter().any(|change| change.name == COOKIE) {
            join_cookies(headers);
        }
    }

    pub(in crate::http) fn name(&self) -> &HeaderName {
        &self.name
    }

    /// Makes the change. If the head has as many fields as it can hold, a field is not added.
    fn apply(&self, headers: &mut HeaderMap) {
        let Self {
            name,
            value,
            change,
        } = self;
        let exists = headers.contains_key(name);
        match change {
            Change::Append => {
                let _ = headers.try_append(name.clone(), value.clone());
            }
            Change::AddIfAbsent if exists => {}
            Change::OverwriteIfExists if !exists => {}
            Change::AddIfAbsent | Change::Overwrite | Change::OverwriteIfExists => {
                let _ = headers.try_insert(name.clone(), value.clone());
            }
            Change::Remove => {
                headers.remove(name);
            }
        }
    }
}

/// A field in a message of an authorization server is not valid.
#[derive(Debug)]
pub(super) struct InvalidField;

/// The name of a field that a server may change.
fn changeable(name: &str) -> Option<HeaderName> {
    let name = HeaderName::try_from(name).ok()?;
    may_change(&name).then_some(name)
}

/// Whether a server may change a field. The proxy itself says where a message ends and where it goes.
fn may_change(name: &HeaderName) -> bool {
    !is_of_connection(name.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::envoy::{BoolValue, Header};
    use super::*;

    fn option(append: Option<bool>, append_action: i32) -> HeaderOption {
        HeaderOption {
            header: Some(Header {
                key: "X-User".into(),
                value: "new".into(),
                raw_value: Vec::new(),
            }),
            append: append.map(|value| BoolValue { value }),
            append_action,
        }
    }

    fn after(option: &HeaderOption, is_appended: bool, before: &[&'static str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for value in before {
            headers.append("x-user", HeaderValue::from_static(value));
        }
        let change = FieldChange::read(option, is_appended).unwrap().unwrap();
        FieldChange::apply_all(&[change], &mut headers);
        let values = headers.get_all("x-user").iter();
        values
            .map(|value| value.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn changes_are_those_of_envoy() {
        for (append, action, is_appended, absent, present) in [
            (None, 0, false, &["new"][..], &["new"][..]),
            (None, 0, true, &["new"], &["old", "new"]),
            (Some(true), 0, false, &["new"], &["old", "new"]),
            (Some(false), 0, true, &["new"], &["new"]),
            (None, 1, false, &["new"], &["old"]),
            (None, 2, true, &["new"], &["new"]),
            (None, 3, false, &[], &["new"]),
        ] {
            let option = option(append, action);
            assert_eq!(after(&option, is_appended, &[]), absent, "{option:?}");
            assert_eq!(after(&option, is_appended, &["old"]), present, "{option:?}");
        }
    }

    #[test]
    fn a_further_cookie_joins_the_field() {
        let mut option = option(Some(true), 0);
        option.header.as_mut().unwrap().key = "Cookie".into();
        let change = FieldChange::read(&option, false).unwrap().unwrap();
        let mut headers = HeaderMap::new();
        headers.append("cookie", HeaderValue::from_static("a=1"));
        FieldChange::apply_all(&[change], &mut headers);
        let cookies: Vec<_> = headers.get_all("cookie").iter().collect();
        assert_eq!(cookies, ["a=1; new"]);
    }

    #[test]
    fn fields_of_the_connection_stay() {
        for name in [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "connection",
            ":path",
        ] {
            let mut option = option(None, 0);
            option.header.as_mut().unwrap().key = name.into();
            assert!(
                FieldChange::read(&option, false).unwrap().is_none(),
                "{name}"
            );
            assert!(FieldChange::removal(name).is_none(), "{name}");
        }
        let mut invalid = option(None, 0);
        invalid.header.as_mut().unwrap().value = "a\r\nb: c".into();
        assert!(FieldChange::read(&invalid, false).is_err());
    }

    #[test]
    fn all_values_of_a_field_replace_those_of_the_request() {
        let mut answered = HeaderMap::new();
        for value in ["admin", "staff"] {
            answered.append("x-group", HeaderValue::from_static(value));
        }
        answered.insert("content-length", HeaderValue::from_static("5"));
        let mut headers = HeaderMap::new();
        headers.append("x-group", HeaderValue::from_static("root"));
        FieldChange::apply_all(&FieldChange::replacing(&answered, |_| true), &mut headers);
        let values: Vec<_> = headers.get_all("x-group").iter().collect();
        assert_eq!(values, ["admin", "staff"]);
        assert_eq!(headers.len(), 2);
    }
}
