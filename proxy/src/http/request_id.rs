//! Owns request IDs: what one request is called in the log of this proxy and of those behind it.

use std::cell::RefCell;

use hyper::header::HeaderValue;

/// Random bytes of an ID.
const BYTES: usize = 16;
/// Random bytes that are drawn at once: a draw costs a hundred times what it takes to copy them out.
const DRAWN: usize = 64 * BYTES;

thread_local! {
    static RANDOM: RefCell<(Box<[u8]>, usize)> = RefCell::new((vec![0; DRAWN].into(), DRAWN));
}

/// A new one: 128 random bits, in hexadecimal. Nobody can foresee it.
pub(super) fn fresh() -> HeaderValue {
    let mut digits = [0; 2 * BYTES];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(random()) {
        for (digit, half) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
            *digit = if half < 10 {
                b'0' + half
            } else {
                b'a' - 10 + half
            };
        }
    }
    HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static("-"))
}

fn random() -> [u8; BYTES] {
    RANDOM.with_borrow_mut(|(drawn, used)| {
        if *used + BYTES > drawn.len() {
            // It does not fail once a process has begun. If it did, IDs would come again, which nothing depends on.
            let _ = aws_lc_rs::rand::fill(drawn);
            *used = 0;
        }
        let bytes = drawn.get(*used..).and_then(<[u8]>::first_chunk);
        *used += BYTES;
        bytes.copied().unwrap_or_default()
    })
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
