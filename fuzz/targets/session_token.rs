//! Tokens of sessions: a byte of options, then values of a client. Some of the values are sealed by this target with
//! keys of the rule, so that what is behind the seal is read too; all others name no endpoint, whatever they are.
#![no_main]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hyper::header::{COOKIE, HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use vestibule_proxy::http_route::session::{Carrier, MAX_TEXT, Session};

const NAME: &str = "sticky";
const NOW: u32 = 1_800_000_000;
const LIFETIME: u32 = 3600;
/// Backend, beginning, address, port.
const ENTRY: usize = 26;
/// The values of a request that are looked at.
const MAX_VALUES: usize = 4;
const BACKENDS: [&str; 3] = ["team-a/web:80", "team-a/other:80", "team-b/web:80"];

/// The two keys of the rule, and one that is another rule's.
static KEYS: LazyLock<[LessSafeKey; 3]> = LazyLock::new(|| {
    [1, 2, 3].map(|n| {
        let key = UnboundKey::new(&AES_256_GCM_SIV, &[n; 32]).expect("a key");
        LessSafeKey::new(key)
    })
});

fuzz_target!(|data: &[u8]| {
    let Some((options, bytes)) = data.split_first() else {
        return;
    };
    let is_cookie = options & 1 == 0;
    let has_end = options & 2 == 0;
    let mut sealed = HashMap::new();
    let mut values = Vec::new();
    for part in parts(bytes) {
        values.push(value(part, is_cookie, &mut sealed));
    }
    let headers = if is_cookie {
        let Ok(value) = HeaderValue::from_bytes(&values.join(&b"; "[..])) else {
            return;
        };
        HeaderMap::from_iter([(COOKIE, value)])
    } else {
        let name = HeaderName::from_static(NAME);
        let values = values.iter().map(|value| HeaderValue::from_bytes(value));
        let fields = values.flatten().map(|value| (name.clone(), value));
        fields.fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        })
    };
    let carrier = if is_cookie {
        Carrier::Cookie {
            name: NAME.into(),
            path: "/".into(),
            permanent: has_end,
        }
    } else {
        Carrier::Header(HeaderName::from_static(NAME))
    };
    let lifetime = has_end.then(|| Duration::from_secs(LIFETIME.into()));
    let keys: [&[u8]; 2] = [&[1; 32], &[2; 32]];
    let session = Session::new(carrier, lifetime, keys).expect("two keys");
    let presented = session.open(&headers, false, NOW);
    let read = naive(&headers, is_cookie, has_end, &sealed);
    for backend in BACKENDS {
        let expected = read.get(&number(backend)).map(|(_, endpoint)| *endpoint);
        assert_eq!(presented.at(backend), expected, "{backend}");
    }
    // Nothing is sealed for this one.
    assert_eq!(presented.at("team-c/web:80"), None);
});

/// A byte of the kind, a byte of the length, and as many bytes as that.
fn parts(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut parts = Vec::new();
    while let [kind, length, rest @ ..] = bytes {
        let (part, rest) = rest.split_at(rest.len().min(usize::from(*length) * 2));
        parts.push((*kind, part));
        bytes = rest;
    }
    parts
}

/// What the client sends for one part. Enters it into `sealed` if it is a token of the rule.
fn value(
    (kind, part): (u8, &[u8]),
    is_cookie: bool,
    sealed: &mut HashMap<Vec<u8>, Vec<u8>>,
) -> Vec<u8> {
    let with_name = |value: &[u8]| match is_cookie {
        true => [NAME.as_bytes(), b"=", value].concat(),
        false => value.to_vec(),
    };
    let key = match kind % 8 {
        0 => return part.to_vec(),
        1 => return with_name(part),
        kind => usize::from(kind) % 3,
    };
    // The first byte of an entry chooses the backend, which a mutation would never guess.
    let mut plain = part.to_vec();
    for entry in plain.chunks_mut(ENTRY) {
        if let Some(backend) = entry.first_chunk_mut::<4>() {
            *backend = number(BACKENDS[usize::from(backend[0]) % BACKENDS.len()]).to_be_bytes();
        }
    }
    let nonce = [kind; NONCE_LEN];
    let mut bytes = plain.clone();
    KEYS[key]
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(b"vestibule session 1"),
            &mut bytes,
        )
        .expect("it is short");
    let mut token = nonce.to_vec();
    token.append(&mut bytes);
    let mut token = BASE64_URL_SAFE_NO_PAD.encode(token).into_bytes();
    if kind >= 128 {
        // One character less, or another one.
        token.pop();
        token.extend((kind >= 192).then_some(b'!'));
    } else if key < 2 {
        sealed.insert(token.clone(), plain);
    }
    with_name(&token)
}

/// When the newest session with each backend began, and its endpoint.
fn naive(
    headers: &HeaderMap,
    is_cookie: bool,
    has_end: bool,
    sealed: &HashMap<Vec<u8>, Vec<u8>>,
) -> HashMap<u32, (u32, SocketAddr)> {
    let mut values: Vec<&[u8]> = Vec::new();
    if is_cookie {
        for pair in headers[COOKIE].as_bytes().split(|byte| *byte == b';') {
            let pair = pair.trim_ascii();
            values.extend(pair.strip_prefix(format!("{NAME}=").as_bytes()));
        }
    } else {
        values.extend(headers.get_all(NAME).iter().map(HeaderValue::as_bytes));
    }
    let mut newest = HashMap::new();
    for value in values.into_iter().take(MAX_VALUES) {
        let Some(plain) = sealed.get(value) else {
            continue;
        };
        if value.len() > MAX_TEXT || plain.len() % ENTRY != 0 {
            continue;
        }
        for entry in plain.chunks(ENTRY) {
            let number = |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().expect("4"));
            let (backend, began) = (number(0), number(4));
            let has_ended = u64::from(began) + u64::from(LIFETIME) <= u64::from(NOW);
            let ip: [u8; 16] = entry[8..24].try_into().expect("16 bytes");
            let ip: IpAddr = match Ipv6Addr::from(ip).to_ipv4_mapped() {
                Some(ip) => ip.into(),
                None => Ipv6Addr::from(ip).into(),
            };
            let port = u16::from_be_bytes([entry[24], entry[25]]);
            let is_newer = newest.get(&backend).is_none_or(|(known, _)| *known < began);
            if is_newer && !(has_end && has_ended) {
                newest.insert(backend, (began, SocketAddr::new(ip, port)));
            }
        }
    }
    newest
}

/// What a backend is called in a token.
fn number(backend: &str) -> u32 {
    let digest = Sha256::digest(backend.as_bytes());
    u32::from_be_bytes(digest[..4].try_into().expect("4 bytes"))
}
