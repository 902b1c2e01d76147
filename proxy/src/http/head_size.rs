//! Owns the size of heads and trailers, as HTTP/2 counts it (RFC 9113 section 6.5.2), and what a backend announces in its
//! settings: the largest head that it takes, and how many requests at one time.

use hyper::{HeaderMap, Request};

use super::frames::{FramePosition, SETTINGS};

/// Most fields of trailers, and of the head of a response.
pub(super) const FIELDS: usize = 100;

/// The bytes of a field in addition to its name and value.
const EACH: usize = 32;
/// The fields that HTTP/2 adds to a request, without their values.
const PSEUDO: [&str; 4] = [":method", ":scheme", ":authority", ":path"];
/// From here on, a head has a connection to an HTTP/2 backend for itself. Common servers end the whole connection for a
/// head that is too large, and the lowest common bound is 8 KiB.
const LARGE: usize = 8 * 1024;
/// Bytes of a setting: its identifier and its value.
const SETTING: usize = 6;
/// `SETTINGS_MAX_CONCURRENT_STREAMS`
const STREAMS: [u8; 2] = [0, 3];
/// `SETTINGS_MAX_HEADER_LIST_SIZE`
const MOST: [u8; 2] = [0, 6];

/// The size of these fields.
pub(super) fn of_fields(fields: &HeaderMap) -> usize {
    let fields = fields.iter();
    let sizes = fields.map(|(name, value)| EACH + name.as_str().len() + value.len());
    sizes.sum()
}

/// The size of the head of a request.
pub(super) fn of_request<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let origin = uri.scheme_str().map_or(0, str::len)
        + uri
            .authority()
            .map_or(0, |authority| authority.as_str().len());
    let pseudo: usize = PSEUDO.iter().map(|name| EACH + name.len()).sum();
    let values = request.method().as_str().len() + origin + target;
    pseudo + values + of_fields(request.headers())
}

/// Whether a head of this request could be too large for a common server.
pub(super) fn is_large<B>(request: &Request<B>) -> bool {
    of_request(request) > LARGE
}

/// Reads what an HTTP/2 server announces about heads, and about requests at one time.
pub struct Announced {
    position: FramePosition,
    /// How many requests the server takes at one time, as far as it has said.
    streams: u32,
    /// Whether its first settings have arrived. A server has to send them before anything else (RFC 9113 section 3.4).
    settled: bool,
    /// Whether the present frame has settings.
    is_settings: bool,
    setting: [u8; SETTING],
    /// Bytes of the setting that have arrived.
    begun: usize,
}

impl Default for Announced {
    fn default() -> Self {
        Self::new()
    }
}

impl Announced {
    /// The state at the beginning of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self {
            position: FramePosition::of_server(),
            streams: u32::MAX,
            settled: false,
            is_settings: false,
            setting: [0; SETTING],
            begun: 0,
        }
    }

    /// Reads bytes of the server. Returns the size of the largest head that it takes, if it says one in them.
    pub fn follow(&mut self, bytes: &[u8]) -> Option<u32> {
        let mut most = None;
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = if let Some((taken, header)) = self.position.header(rest) {
                if let Some(header) = header {
                    self.is_settings = header.kind == SETTINGS;
                    self.begun = 0;
                    self.settle();
                }
                taken
            } else {
                let taken = self.position.payload(rest.len());
                if self.is_settings {
                    let settings = rest.get(..taken).unwrap_or_default();
                    most = self.settings(settings).or(most);
                    self.settle();
                }
                taken
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        most
    }

    /// How many requests the server takes at one time. It is `None` until its first settings have arrived.
    #[must_use]
    pub fn streams(&self) -> Option<u32> {
        self.settled.then_some(self.streams)
    }

    /// Records the end of a frame with settings. Those without a payload end with their header.
    fn settle(&mut self) {
        self.settled |= self.is_settings && self.position.left() == 0;
    }

    fn settings(&mut self, bytes: &[u8]) -> Option<u32> {
        let mut most = None;
        for byte in bytes {
            if let Some(place) = self.setting.get_mut(self.begun) {
                *place = *byte;
            }
            self.begun += 1;
            if self.begun == SETTING {
                self.begun = 0;
                let [a, b, value @ ..] = self.setting;
                match [a, b] {
                    MOST => most = Some(u32::from_be_bytes(value)),
                    STREAMS => self.streams = u32::from_be_bytes(value),
                    _ => {}
                }
            }
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use vestibule_test_support::frames::frame;

    use super::*;

    fn setting(id: u8, value: u32) -> Vec<u8> {
        [&[0, id][..], &value.to_be_bytes()].concat()
    }

    #[test]
    fn the_number_of_requests_is_known_from_the_first_settings_on() {
        let told = |frames: &[Vec<u8>]| {
            let bytes = frames.concat();
            let seen_in = |size: usize| {
                let mut announced = Announced::new();
                let mut seen = vec![announced.streams()];
                for piece in bytes.chunks(size) {
                    announced.follow(piece);
                    seen.push(announced.streams());
                }
                seen.dedup();
                seen
            };
            let each = seen_in(1);
            for size in [2, 9, 13, bytes.len()] {
                assert_eq!(seen_in(size).last(), each.last(), "in pieces of {size}");
            }
            each
        };
        // The default is that there is no bound.
        let none = frame(SETTINGS, 0, 0, &[]);
        assert_eq!(told(std::slice::from_ref(&none)), [None, Some(u32::MAX)]);
        let ten = frame(
            SETTINGS,
            0,
            0,
            &[setting(3, 10), setting(6, 4096), setting(4, 6)].concat(),
        );
        // The acknowledgement changes nothing.
        assert_eq!(told(&[ten.clone(), none]), [None, Some(10)]);
        // A frame that only looks like settings, and other settings later.
        let other = frame(6, 0, 0, &setting(3, 7));
        let zero = frame(SETTINGS, 0, 0, &setting(3, 0));
        assert_eq!(told(&[other, ten, zero]), [None, Some(10), Some(0)]);
    }

    #[test]
    fn the_largest_head_is_seen_in_any_pieces() {
        let bytes = [
            frame(
                SETTINGS,
                0,
                0,
                &[setting(3, 100), setting(6, 4096), setting(4, 6)].concat(),
            ),
            // The acknowledgement, and a frame that only looks like settings.
            frame(SETTINGS, 0, 0, &[]),
            frame(6, 0, 0, &[setting(6, 1), vec![0, 6]].concat()),
            frame(SETTINGS, 0, 0, &setting(6, 70_000)),
            frame(SETTINGS, 0, 0, &setting(1, 9)),
        ]
        .concat();
        for size in [1, 2, 5, 9, 13, bytes.len()] {
            let mut announced = Announced::new();
            let all = bytes
                .chunks(size)
                .filter_map(|piece| announced.follow(piece));
            let all: Vec<u32> = all.collect();
            assert_eq!(all.last(), Some(&70_000), "in pieces of {size}");
            assert!(size == bytes.len() || all == [4096, 70_000]);
        }
    }

    #[test]
    fn a_head_counts_as_in_http2() {
        let request = Request::get("http://a.example.com/path").header("name", "value");
        let request = request.body(()).unwrap();
        let (names, values) = (7 + 7 + 10 + 5 + 4, 3 + 4 + 13 + 5 + 5);
        assert_eq!(of_request(&request), 5 * 32 + names + values);
    }
}
