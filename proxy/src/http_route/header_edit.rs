//! Owns changes of the fields of a head.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

/// Changes of a head's fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderEdit {
    pub(crate) set: Box<[(HeaderName, HeaderValue)]>,
    pub(crate) add: Box<[(HeaderName, HeaderValue)]>,
    pub(crate) remove: Box<[HeaderName]>,
}

impl HeaderEdit {
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.set {
            // Fails where a head has more fields than it can hold: then this one is not added.
            let _ = headers.try_insert(name.clone(), value.clone());
        }
        for (name, value) in &self.add {
            let _ = headers.try_append(name.clone(), value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }

    /// Fields of which nothing is left that was there before.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = &HeaderName> {
        self.set.iter().map(|(name, _)| name).chain(&self.remove)
    }
}
