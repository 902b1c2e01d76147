//! Bounds on what either end of the stream sends and accepts.

/// Longest message, in bytes. A full batch of 40,000 routes with their listeners, backends and
/// certificates is one message of about 100 MiB at worst. It is tonic's limit for decoding and
/// encoding.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// Longest message of a proxy, in bytes. An ack may reject every resource of such a batch.
pub const MAX_PROXY_MESSAGE_BYTES: usize = 64 << 20;

/// Longest resource name, in bytes. A Kubernetes name has at most 253 characters, and the longest
/// resource name joins three of them.
pub const MAX_NAME_BYTES: usize = 1024;

/// Largest encoded resource, in bytes. A Secret has at most 1 MiB, and a backend with 10,000
/// endpoints has about 250 KiB.
pub const MAX_RESOURCE_BYTES: usize = 4 << 20;

/// Most upserts and removals in one batch, and most entries in one inventory.
pub const MAX_ENTRIES: usize = 1 << 20;

/// Entries in one inventory message.
pub const INVENTORY_CHUNK: usize = 4096;

/// Longest text (reason, message, address) that is taken from a peer, in bytes. A longer one is
/// cut.
pub const MAX_TEXT_BYTES: usize = 1024;

/// `text`, cut at a character boundary so that it has at most [`MAX_TEXT_BYTES`].
#[must_use]
pub fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        let mut end = MAX_TEXT_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}
