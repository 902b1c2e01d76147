//! The largest head that an HTTP/2 server announces: a byte that says how the bytes are cut, then
//! frames of a server, against a plain reader of RFC 9113 that has all bytes at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule_proxy::http::head_size::Announced;

/// Bytes of the header of a frame.
const HEAD: usize = 9;
const SETTINGS: u8 = 4;
const SETTING: usize = 6;
const MAX_HEADER_LIST_SIZE: [u8; 2] = [0, 6];

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let expected = read(bytes);
    for size in [bytes.len().max(1), usize::from(*cut) + 1, 1] {
        let mut announced = Announced::new();
        let all = bytes.chunks(size);
        let last = all.filter_map(|piece| announced.follow(piece)).last();
        assert_eq!(last, expected, "in pieces of {size}");
    }
});

/// The last announcement, as the specification reads: frames, and in those with settings an identifier and a value each.
fn read(mut rest: &[u8]) -> Option<u32> {
    let mut most = None;
    while let Some((head, behind)) = rest.split_at_checked(HEAD) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (payload, next) = behind.split_at(length.min(behind.len()));
        if head[3] == SETTINGS {
            for setting in payload.chunks_exact(SETTING) {
                if setting[..2] == MAX_HEADER_LIST_SIZE {
                    most = setting[2..].try_into().ok().map(u32::from_be_bytes);
                }
            }
        }
        rest = next;
    }
    most
}
