//! Content hashes of single resources and the digest over a set of them.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::proto::ResourceKey;

/// First 16 bytes of the SHA-256 of an encoded resource.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash([u8; 16]);

impl ContentHash {
    /// The hash of an encoded resource.
    #[must_use]
    pub fn of(encoded: &[u8]) -> Self {
        let sum = u128_pair(&Sha256::digest(encoded).into()).0;
        Self(sum.to_be_bytes())
    }

    /// The bytes as they are sent in an inventory.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        self.0.to_vec()
    }
}

/// Converts the bytes of an inventory entry, of which there must be exactly 16.
impl TryFrom<&[u8]> for ContentHash {
    type Error = std::array::TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes.try_into().map(Self)
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Digest over a set of (key, content hash): the sum of the SHA-256 of each entry, as two wrapping
/// 128-bit lanes. Addition makes it independent of the order, and lets one entry be added or
/// removed without the others.
///
/// It tells two honest ends whether they hold the same set. It does not protect against an operator
/// that wants to deceive its own proxies.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest(u128, u128);

impl Digest {
    /// Adds an entry. The caller keeps a map, so every entry is in the set at most once.
    pub fn add(&mut self, key: &ResourceKey, hash: ContentHash) {
        let (high, low) = entry(key, hash);
        self.0 = self.0.wrapping_add(high);
        self.1 = self.1.wrapping_add(low);
    }

    /// Removes an entry that was added before.
    pub fn remove(&mut self, key: &ResourceKey, hash: ContentHash) {
        let (high, low) = entry(key, hash);
        self.0 = self.0.wrapping_sub(high);
        self.1 = self.1.wrapping_sub(low);
    }

    /// The 32 bytes as they are sent.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        [self.0.to_be_bytes(), self.1.to_be_bytes()].concat()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}{:032x}", self.0, self.1)
    }
}

fn entry(key: &ResourceKey, hash: ContentHash) -> (u128, u128) {
    // Kind and hash have a fixed length and the name comes last, so different entries hash
    // different bytes.
    let mut sha = Sha256::new();
    sha.update(key.kind.to_be_bytes());
    sha.update(hash.0);
    sha.update(key.name.as_bytes());
    u128_pair(&sha.finalize().into())
}

fn u128_pair(bytes: &[u8; 32]) -> (u128, u128) {
    let lane = |skip: usize| {
        bytes
            .iter()
            .skip(skip)
            .take(16)
            .fold(0_u128, |sum, byte| (sum << 8) | u128::from(*byte))
    };
    (lane(0), lane(16))
}
