//! A resource that is encoded once and checked against the limits, with its key and hash.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use zeroize::Zeroizing;

use crate::{
    ContentHash,
    limits::{MAX_NAME_BYTES, MAX_RESOURCE_BYTES},
    proto::{Batch, Generation, Resource, ResourceKey, Upsert, resource},
};

/// Why a resource or a key cannot be sent, or why a received one cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The name is empty.
    #[error("a resource without a name")]
    NoName,
    /// The name is longer than [`MAX_NAME_BYTES`].
    #[error("a resource name of {0} bytes (at most {MAX_NAME_BYTES})")]
    LongName(usize),
    /// The encoding is longer than [`MAX_RESOURCE_BYTES`].
    #[error("{0} encodes to {1} bytes (at most {MAX_RESOURCE_BYTES})")]
    TooLarge(ResourceKey, usize),
    /// The resource carries nothing.
    #[error("resource {0:?} carries nothing")]
    Empty(String),
    /// The bytes are not a resource.
    #[error("a resource that does not decode: {0}")]
    Undecodable(String),
    /// The kind beside the resource is not the kind of the resource.
    #[error("{0} carries another kind of resource")]
    WrongKind(ResourceKey),
}

/// Whether the resource holds a private key or keys of sessions.
fn has_key(resource: &Resource) -> bool {
    use resource::Resource as Wire;
    match &resource.resource {
        Some(Wire::Certificate(_) | Wire::Challenge(_)) => true,
        Some(Wire::HttpRoute(route) | Wire::GrpcRoute(route)) => {
            route.rules.iter().any(|rule| rule.session.is_some())
        }
        _ => false,
    }
}

/// An encoded resource. The publisher sends it, keeps it and hashes it. It is cheap to clone.
///
/// `Debug` does not print the bytes, because they may hold a private key.
#[derive(Clone, PartialEq, Eq)]
pub struct Encoded(Arc<Content>);

#[derive(PartialEq, Eq)]
struct Content {
    key: Arc<ResourceKey>,
    hash: ContentHash,
    bytes: Bytes,
}

impl Encoded {
    /// Encodes `resource`.
    pub fn new(resource: &Resource) -> Result<Self, Invalid> {
        let key = resource
            .key()
            .ok_or_else(|| Invalid::Empty(resource.name.clone()))?;
        check_name(&key.name)?;
        // prost encodes fields in the order of their numbers, and no message has a map. Therefore
        // equal resources have equal bytes.
        let bytes = resource.encode_to_vec();
        let bytes = if has_key(resource) {
            // The bytes are wiped when the publisher and the last batch have dropped them.
            Bytes::from_owner(Zeroizing::new(bytes))
        } else {
            Bytes::from(bytes)
        };
        if bytes.len() > MAX_RESOURCE_BYTES {
            return Err(Invalid::TooLarge(key, bytes.len()));
        }
        Ok(Self(Arc::new(Content {
            key: Arc::new(key),
            hash: ContentHash::of(&bytes),
            bytes,
        })))
    }

    /// Kind and name.
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.0.key
    }

    /// The same, for whoever keeps it as long as the resource.
    #[must_use]
    pub fn shared_key(&self) -> &Arc<ResourceKey> {
        &self.0.key
    }

    /// Hash of the encoding.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        self.0.hash
    }

    /// Length of the encoding in bytes.
    #[must_use]
    #[allow(
        clippy::len_without_is_empty,
        reason = "an encoding is never empty: it has a name"
    )]
    pub fn len(&self) -> usize {
        self.0.bytes.len()
    }

    /// Decodes the resource again. This copies a private key, and dropping the result wipes the
    /// copy.
    #[must_use]
    pub fn decode(&self) -> Option<resource::Resource> {
        // The bytes were made from a resource, so they decode.
        Resource::decode(self.0.bytes.clone()).ok()?.resource
    }

    /// The resource as an entry of a batch, which shares the bytes.
    #[must_use]
    pub fn upsert(&self) -> Upsert {
        Upsert {
            kind: self.0.key.kind,
            resource: self.0.bytes.clone(),
        }
    }
}

impl std::fmt::Debug for Encoded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} ({} bytes, {:?})",
            self.key(),
            self.len(),
            self.hash()
        )
    }
}

impl Batch {
    /// A batch that describes everything.
    pub fn full<'a>(
        generation: Generation,
        resources: impl IntoIterator<Item = &'a Resource>,
    ) -> Result<Self, Invalid> {
        let mut batch = Self {
            generation: Some(generation),
            full: true,
            ..Self::default()
        };
        for resource in resources {
            batch.upserts.push(Encoded::new(resource)?.upsert());
        }
        Ok(batch)
    }

    /// A batch on top of `base`.
    pub fn delta<'a>(
        generation: Generation,
        base: Generation,
        upserts: impl IntoIterator<Item = &'a Resource>,
        removals: Vec<ResourceKey>,
    ) -> Result<Self, Invalid> {
        Ok(Self {
            base: Some(base),
            full: false,
            removals,
            ..Self::full(generation, upserts)?
        })
    }
}

/// An upsert after decoding. `resource` is `None` when this release does not know the kind.
pub(crate) struct Decoded {
    pub(crate) key: ResourceKey,
    pub(crate) hash: ContentHash,
    pub(crate) resource: Option<Resource>,
}

impl Decoded {
    pub(crate) fn new(upsert: &Upsert) -> Result<Self, Invalid> {
        if upsert.resource.len() > MAX_RESOURCE_BYTES {
            let key = ResourceKey {
                kind: upsert.kind,
                name: String::new(),
            };
            return Err(Invalid::TooLarge(key, upsert.resource.len()));
        }
        let resource = Resource::decode(upsert.resource.clone())
            .map_err(|error| Invalid::Undecodable(error.to_string()))?;
        let key = ResourceKey {
            kind: upsert.kind,
            name: resource.name.clone(),
        };
        check_name(&key.name)?;
        if let Some(inner) = &resource.resource
            && i32::from(inner.kind()) != upsert.kind
        {
            return Err(Invalid::WrongKind(key));
        }
        Ok(Self {
            key,
            hash: ContentHash::of(&upsert.resource),
            resource: resource.resource.is_some().then_some(resource),
        })
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Invalid> {
    match name.len() {
        0 => Err(Invalid::NoName),
        length if length > MAX_NAME_BYTES => Err(Invalid::LongName(length)),
        _ => Ok(()),
    }
}
