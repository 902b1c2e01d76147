//! Owns changes of header fields.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

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
            let _ = headers.try_append(name.clone(), value.clone());
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
