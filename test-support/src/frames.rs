//! Raw frames of HTTP/2 (RFC 9113), for clients and backends that no library would be.

/// The bytes with which a client begins a connection.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of a frame that begins a message.
pub const HEADERS: u8 = 1;
/// The type of a frame that ends a stream.
pub const RST_STREAM: u8 = 3;
/// The type of a frame with settings.
pub const SETTINGS: u8 = 4;
/// The type of a frame that the other side answers with the same one.
pub const PING: u8 = 6;
/// The type of a frame that ends the connection.
pub const GOAWAY: u8 = 7;
/// The type of a frame that opens a window.
pub const WINDOW_UPDATE: u8 = 8;
/// The flag of the last frame of a head.
pub const END_HEADERS: u8 = 4;
/// The flag of the last frame of a message.
pub const END_STREAM: u8 = 1;

/// The error code for what breaks the protocol.
pub const PROTOCOL_ERROR: u32 = 1;
/// The error code for what is too much.
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    let head = [high, middle, low, kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// The first bytes of a client: [`PREFACE`] and its settings.
#[must_use]
pub fn preface() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat()
}

/// The error code of the last GOAWAY in the bytes of a server.
#[must_use]
pub fn goaway(mut bytes: &[u8]) -> Option<u32> {
    let mut code = None;
    while let [high, middle, low, kind, _, _, _, _, _, rest @ ..] = bytes {
        let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
        let Some((payload, behind)) = rest.split_at_checked(length) else {
            break;
        };
        if *kind == GOAWAY {
            let last = payload.get(4..8).and_then(|last| last.try_into().ok());
            code = last.map(u32::from_be_bytes);
        }
        bytes = behind;
    }
    code
}
