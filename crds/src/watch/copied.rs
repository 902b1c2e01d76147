//! Annotations that the operator copies from Gateways and ListenerSets to their Certificates, as cert-manager's
//! `--extra-certificate-annotations` does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::certificate::CertificateAnnotations;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::VESTIBULE_GROUP;
use vestibule_model::object::Object;

use crate::names::is_subdomain;

/// Most keys.
const MAX_KEYS: usize = 32;
/// Longest value in bytes. It is written once for each Certificate.
const MAX_VALUE: usize = 8192;
/// Longest name in a key.
const MAX_NAME: usize = 63;

/// Annotations that cannot be copied: those that Vestibule itself writes into Certificates, and kubectl's copy of an
/// object.
const RESERVED: [&str; 4] = [
    "acme.cert-manager.io/http01-parentrefkind",
    "acme.cert-manager.io/http01-parentrefname",
    "acme.cert-manager.io/http01-parentrefnamespace",
    "kubectl.kubernetes.io/last-applied-configuration",
];

/// Keys of the annotations to copy. Clones share them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopiedAnnotations(Arc<BTreeSet<String>>);

/// Why annotations cannot be copied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopiedError {
    /// The text is not a key.
    #[error("{0:?} is no key of an annotation: write it as in example.com/name")]
    NotAKey(String),
    /// Vestibule itself writes the annotation, or it must not be copied.
    #[error("{0:?} is not for settings to copy: Vestibule or kubectl writes it")]
    Reserved(String),
    /// There are too many keys.
    #[error("{0} annotations are to be copied, and {MAX_KEYS} is the most")]
    TooMany(usize),
}

impl CopiedAnnotations {
    /// Reads keys.
    ///
    /// # Errors
    /// If one of them is not a key or cannot be copied, or if there are too many.
    pub fn parse<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, CopiedError> {
        let keys: BTreeSet<String> = keys
            .into_iter()
            .map(|key| check(key).map(|()| key.to_owned()))
            .collect::<Result<_, _>>()?;
        if keys.len() > MAX_KEYS {
            return Err(CopiedError::TooMany(keys.len()));
        }
        Ok(Self(Arc::new(keys)))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

fn check(key: &str) -> Result<(), CopiedError> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    let named = name.len() <= MAX_NAME
        && ends
            .iter()
            .all(|b| b.is_some_and(u8::is_ascii_alphanumeric))
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b));
    if !named || prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Err(CopiedError::NotAKey(key.chars().take(320).collect()));
    }
    let ours = prefix.is_some_and(|prefix| {
        let above = prefix.strip_suffix(VESTIBULE_GROUP);
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    });
    if ours || RESERVED.contains(&key) {
        return Err(CopiedError::Reserved(key.to_owned()));
    }
    Ok(())
}

/// Puts `values` into an object for which Certificates are made.
pub(super) fn note(object: &mut Object, values: BTreeMap<String, String>) {
    let annotations: &mut CertificateAnnotations = match object {
        Object::Gateway(gateway) => &mut Arc::make_mut(gateway).certificates,
        Object::ListenerSet(set) => &mut Arc::make_mut(set).certificates,
        _ => return,
    };
    let (fit, long): (BTreeMap<_, _>, BTreeMap<_, _>) = values
        .into_iter()
        .partition(|(_, value)| value.len() <= MAX_VALUE);
    for key in long.into_keys() {
        annotations.findings.push(Finding::refused(
            Reason::InvalidAnnotation,
            format!("metadata.annotations[{key}]"),
            format!("has more than {MAX_VALUE} bytes, so no certificate is requested"),
            "shorten it: it is copied to Certificates",
        ));
    }
    if !fit.is_empty() {
        Arc::make_mut(&mut annotations.options).copied_annotations = fit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        let parse = |key: &str| CopiedAnnotations::parse([key]).map(|_| ());
        for key in [
            "venafi.cert-manager.io/custom-fields",
            "cert-manager.io/issue-temporary-certificate",
            "note",
            "notvestibule.dev/a",
        ] {
            assert_eq!(parse(key), Ok(()), "{key}");
        }
        for key in [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "A.example/b",
            "a b",
            "-a",
            "a,b",
            "ex_ample/a",
        ] {
            assert_eq!(parse(key), Err(CopiedError::NotAKey(key.into())), "{key}");
        }
        assert!(parse(&format!("example.com/{}", "a".repeat(64))).is_err());
        for key in RESERVED
            .into_iter()
            .chain(["vestibule.dev/managed-by", "x.vestibule.dev/a"])
        {
            assert_eq!(parse(key), Err(CopiedError::Reserved(key.into())), "{key}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("k{n}")).collect();
        let many = CopiedAnnotations::parse(many.iter().map(String::as_str));
        assert_eq!(many, Err(CopiedError::TooMany(33)));
        assert_eq!(
            CopiedAnnotations::parse(["b", "a", "b"]).map(|a| a.0.len()),
            Ok(2)
        );
    }
}
