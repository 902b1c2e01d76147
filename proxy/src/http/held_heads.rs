//! Owns the count of what the heads of an HTTP/2 client hold, from their arrival until their answers begin.
//!
//! The bound on one head allows a hundred of them to hold many megabytes, which the client sends with a few bytes each, because
//! HTTP/2 lets it repeat a long field. So the heads of a connection are weighed together.

use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::Request;
use hyper::header::COOKIE;

use super::head_size;

/// Bytes that the heads of any connection may weigh together. A hundred requests of a browser with 8 KiB of cookies each
/// weigh four fifths of it.
const ALWAYS: usize = 2 * 1024 * 1024;
/// Bytes for each request that a connection may have at one time. So each head may be as large with many requests as
/// with a hundred.
const EACH: usize = 20 * 1024;
/// Bytes that a field takes in lists, in addition to those that [`head_size`] counts. A `HeaderMap` has 104 bytes and a few
/// more for each field. There are two of them for a request: the head as it arrived, and the one that is sent, which may have
/// room for twice as many fields. 350 bytes were measured for both.
const LISTS: usize = 320;
/// What [`head_size`] counts for a cookie in a field of its own, less the two bytes that join it to the others.
const CRUMB: usize = 36;

/// The bytes that the head of a request takes in memory. Cookies become one field soon, so they are weighed as one.
fn weight<B>(request: &Request<B>) -> usize {
    let fields = request.headers();
    let joined = fields.get_all(COOKIE).iter().count().saturating_sub(1);
    let lists = (fields.len() - joined) * LISTS;
    head_size::of_request(request) - joined * CRUMB + lists
}

/// The weight of all heads of one connection. It is used by one thread.
#[derive(Debug)]
pub(super) struct HeldHeads {
    /// Most bytes that they weigh together.
    most: usize,
    held: AtomicUsize,
}

impl HeldHeads {
    /// Those of a connection that may have so many requests at one time.
    pub(super) fn new(streams: u32) -> Self {
        let streams = usize::try_from(streams).unwrap_or(usize::MAX);
        Self {
            most: streams.saturating_mul(EACH).max(ALWAYS),
            held: AtomicUsize::new(0),
        }
    }

    /// Counts the head of a request until the guard is dropped. The result is `None` if the heads of the connection would
    /// weigh too much with it. One head alone always passes.
    pub(super) fn hold<B>(&self, request: &Request<B>) -> Option<HeldHead<'_>> {
        let weight = weight(request);
        let others = self.held.load(Ordering::Relaxed);
        if others > 0 && others.saturating_add(weight) > self.most {
            return None;
        }
        self.held.fetch_add(weight, Ordering::Relaxed);
        Some(HeldHead { all: self, weight })
    }
}

/// A head that counts. Its `Drop` gives its weight back, however the request ends.
#[derive(Debug)]
pub(super) struct HeldHead<'a> {
    all: &'a HeldHeads,
    weight: usize,
}

impl Drop for HeldHead<'_> {
    fn drop(&mut self) {
        self.all.held.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with so many fields and cookies, each of which has a value of so many bytes.
    fn request(fields: usize, cookies: usize, value: usize) -> Request<()> {
        let mut request = Request::get("http://a.example.com/");
        for n in 0..fields {
            request = request.header(format!("n-{n:02}"), "v".repeat(value));
        }
        for _ in 0..cookies {
            request = request.header(COOKIE, "c".repeat(value));
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_field_weighs_more_than_its_bytes_and_cookies_weigh_as_one_field() {
        let none = weight(&request(0, 0, 0));
        assert_eq!(weight(&request(1, 0, 100)) - none, 320 + 32 + 4 + 100);
        assert_eq!(weight(&request(10, 0, 9)) - none, 10 * (320 + 32 + 4 + 9));
        let cookie = weight(&request(0, 1, 100));
        assert_eq!(cookie - none, 320 + 32 + 6 + 100);
        assert_eq!(weight(&request(0, 180, 100)) - cookie, 179 * (100 + 2));
    }

    #[test]
    fn heads_hold_no_more_than_they_may_together_and_give_it_back() {
        let heads = HeldHeads::new(100);
        let large = request(4, 0, 15_000);
        let mut held: Vec<_> = std::iter::from_fn(|| heads.hold(&large)).collect();
        assert_eq!(held.len(), ALWAYS / weight(&large));
        // A small one still passes, as long as there is room.
        let small = heads.hold(&request(1, 0, 10)).unwrap();
        assert!(heads.hold(&large).is_none());
        held.pop();
        held.push(heads.hold(&large).unwrap());
        assert!(heads.hold(&large).is_none());
        drop((held, small));
        assert_eq!(heads.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn heads_may_hold_more_where_more_requests_are_allowed() {
        for streams in [0, 1, 100] {
            assert_eq!(HeldHeads::new(streams).most, ALWAYS, "{streams}");
        }
        assert_eq!(HeldHeads::new(1000).most, 1000 * EACH);
        assert_eq!(HeldHeads::new(100_000).most, 100_000 * EACH);
        // A thousand requests of a browser pass, as a hundred do where a hundred are allowed.
        let heads = HeldHeads::new(1000);
        let browser = request(20, 180, 45);
        let held: Vec<_> = (0..1000).map_while(|_| heads.hold(&browser)).collect();
        assert_eq!(held.len(), 1000);
    }

    #[test]
    fn one_head_alone_passes_and_nothing_beside_it() {
        let heads = HeldHeads::new(100);
        let huge = request(1, 0, 2 * ALWAYS);
        let held = heads.hold(&huge).unwrap();
        assert!(heads.hold(&request(0, 0, 0)).is_none());
        drop(held);
        assert!(heads.hold(&huge).is_some());
    }

    /// The cookies come in the fields into which HTTP/2 clients split them.
    #[test]
    fn a_hundred_requests_of_a_browser_with_many_cookies_pass() {
        let heads = HeldHeads::new(100);
        let browser = request(20, 180, 45);
        let held: Vec<_> = (0..100).map_while(|_| heads.hold(&browser)).collect();
        assert_eq!(held.len(), 100);
    }
}
