//! Reads a backend's response in HTTP/1.1 as the proxy does: a byte that says how it is cut and whether the request was a
//! HEAD, then the bytes. However they are cut, they are the same response, and its content is among the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule_proxy::http::backend_http1::ResponseReader;

/// The status, the fields, the content, the trailers, and whether another request may follow. `None` if it is no response, or
/// not a complete one.
type Read = Option<(u16, Vec<Field>, Vec<u8>, Vec<Field>, bool)>;

type Field = (String, Vec<u8>);

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let to_head = first & 1 == 1;
    let whole = read(bytes, usize::MAX, to_head);
    let cut = read(bytes, usize::from(first >> 1) + 1, to_head);
    assert_eq!(cut, whole, "{:?}", String::from_utf8_lossy(bytes));
    if let Some((_, fields, content, ..)) = whole {
        assert!(content.len() < bytes.len());
        let lengths = fields.iter().filter(|(name, _)| name == "content-length");
        let is_chunked = fields.iter().any(|(name, _)| name == "transfer-encoding");
        assert!(!is_chunked || lengths.clone().count() == 0);
        for (_, length) in lengths.filter(|_| !content.is_empty()) {
            let length: usize = String::from_utf8_lossy(length).trim().parse().unwrap();
            assert_eq!(length, content.len());
        }
    }
});

fn read(bytes: &[u8], size: usize, to_head: bool) -> Read {
    let mut reader = ResponseReader::to(to_head);
    let mut begun = None;
    let mut content = Vec::new();
    for piece in bytes.chunks(size.min(bytes.len().max(1))) {
        let mut piece = piece.to_vec();
        if begun.is_none() {
            begun = reader.head(&mut piece).ok()?;
            if let Some(begun) = &begun {
                // These bytes are not HTTP.
                if begun.response.status() == 101 {
                    return None;
                }
                content.extend_from_slice(&begun.first);
            }
        } else {
            let count = reader.body(&mut piece).ok()?;
            content.extend_from_slice(&piece[..count]);
        }
    }
    let begun = begun?;
    let follows = reader.lets_another_follow();
    if !reader.has_arrived() {
        reader.end().ok()?;
    }
    let trailers = reader.take_trailers().unwrap_or_default();
    let fields = |of: &hyper::HeaderMap| {
        let all = of.iter();
        all.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect::<Vec<_>>()
    };
    let head = begun.response;
    Some((
        head.status().as_u16(),
        fields(head.headers()),
        content,
        fields(&trailers),
        follows,
    ))
}
