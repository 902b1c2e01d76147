//! Owns request IDs. They identify a request in the logs of this proxy and of the backends.

use std::cell::RefCell;

use bytes::Bytes;
use hyper::header::HeaderValue;

/// Random bytes of an ID.
const BYTES: usize = 16;
/// How many IDs are made at once. Getting random bytes costs a hundred times as much as copying them. An ID that is
/// kept keeps the text of all of them, which is 2 KiB.
const MADE: usize = 64;

thread_local! {
    static IDS: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// A new ID: 128 random bits in hexadecimal. It cannot be predicted.
pub(super) fn fresh() -> HeaderValue {
    let id = IDS.with_borrow_mut(|ids| {
        if ids.len() < 2 * BYTES {
            *ids = make();
        }
        ids.split_to(ids.len().min(2 * BYTES))
    });
    HeaderValue::from_maybe_shared(id).unwrap_or(HeaderValue::from_static("-"))
}

/// The text of [`MADE`] IDs.
fn make() -> Bytes {
    let mut random = [0; MADE * BYTES];
    // This does not fail after a process has started. If it did, IDs would repeat, and nothing depends on that.
    let _ = aws_lc_rs::rand::fill(&mut random);
    let digits = random.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.map(|half| match half {
        0..10 => b'0' + half,
        _ => b'a' - 10 + half,
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_is_another_one_on_every_thread() {
        let many = || -> Vec<_> { (0..1000).map(|_| fresh()).collect() };
        let other = std::thread::spawn(many);
        let all: HashSet<_> = many().into_iter().chain(other.join().unwrap()).collect();
        assert_eq!(all.len(), 2000);
        for id in all {
            let digits = id.to_str().unwrap();
            assert_eq!(digits.len(), 32);
            assert!(
                digits
                    .bytes()
                    .all(|byte| b"0123456789abcdef".contains(&byte))
            );
        }
    }
}
