//! Owns reading what hops in front of this proxy report about a request: its client, scheme and host. It is read before
//! these headers are removed from the request, and only as far as the hops are trusted.
//!
//! Lists are read from their end, where the nearest hop wrote, up to the first address that is not one of a trusted
//! hop. So nothing that a client wrote at the beginning, unbalanced quotes included, can change how the end is read. The
//! next reader may read from the beginning, so it gets only the end of a list that could be read in two ways.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use vestibule_model::client_address::{ForwardedHeader, ForwardedHeaders, MAX_HOPS};

use super::field_names::{
    X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PROTO, X_REQUEST_ID,
};
use crate::http_route::filter::Scheme;

/// Longest request ID that is kept.
const MAX_REQUEST_ID: usize = 128;

/// What a trusted hop reported.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HopInfo {
    /// The client: the first address, from the nearest hop on, that is not one of a trusted hop.
    pub(super) client: IpAddr,
    /// The whole list of addresses, as it arrived. Of a malformed `Forwarded`, it is the end of the list.
    pub(super) list: Option<Vec<u8>>,
    pub(super) scheme: Option<Scheme>,
    pub(super) host: Option<HeaderValue>,
    pub(super) port: Option<u16>,
    pub(super) request_id: Option<HeaderValue>,
}

impl HopInfo {
    /// Reads what is reported about a request from `peer`; `None` if `peer` is not trusted.
    pub(super) fn read(
        headers: &HeaderMap,
        trust: &ForwardedHeaders,
        peer: IpAddr,
    ) -> Option<Self> {
        if !trust.trusts(0, peer) {
            return None;
        }
        let of_list = match trust.header() {
            ForwardedHeader::XForwardedFor => Self::x_forwarded(headers, trust, peer),
            ForwardedHeader::Forwarded => Self::forwarded(headers, trust, peer),
        };
        Some(Self {
            // This is a copy. The log keeps it during the whole request, and should not keep the buffer of the head.
            request_id: only(headers, &X_REQUEST_ID)
                .filter(|id| is_request_id(id.as_bytes()))
                .and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok()),
            ..of_list
        })
    }

    fn x_forwarded(headers: &HeaderMap, trust: &ForwardedHeaders, peer: IpAddr) -> Self {
        let (client, _) = follow(headers, &X_FORWARDED_FOR, trust, peer, |entry| {
            Some((node(entry)?, ()))
        });
        let scheme = only(headers, &X_FORWARDED_PROTO).and_then(|value| scheme(value.as_bytes()));
        let host = only(headers, &X_FORWARDED_HOST).and_then(|value| host(value.as_bytes()));
        let port = only(headers, &X_FORWARDED_PORT).and_then(|value| port(value.as_bytes()));
        Self {
            client,
            list: list(headers, &X_FORWARDED_FOR),
            port: port.or_else(|| default_port(scheme, host.as_ref())),
            host: host.map(|(value, _)| value),
            scheme,
            request_id: None,
        }
    }

    fn forwarded(headers: &HeaderMap, trust: &ForwardedHeaders, peer: IpAddr) -> Self {
        let (client, element) = follow(headers, &FORWARDED, trust, peer, |entry| {
            let element = Element::parse(entry)?;
            Some((node(&element.from)?, element))
        });
        let element = element.unwrap_or_default();
        let scheme = scheme(&element.proto);
        let host = host(&element.host);
        Self {
            client,
            list: list(headers, &FORWARDED).and_then(unambiguous),
            port: default_port(scheme, host.as_ref()),
            host: host.map(|(value, _)| value),
            scheme,
            request_id: None,
        }
    }
}

/// Follows a list from its end, one address for each trusted hop. Returns the last address, and what else `read` found
/// in its entry.
fn follow<T>(
    headers: &HeaderMap,
    name: &HeaderName,
    trust: &ForwardedHeaders,
    peer: IpAddr,
    read: impl Fn(&[u8]) -> Option<(IpAddr, T)>,
) -> (IpAddr, Option<T>) {
    let (mut client, mut of_client) = (peer, None);
    let lines = headers.get_all(name).iter().rev();
    let entries = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    let entries = entries
        .map(<[u8]>::trim_ascii)
        .filter(|entry| !entry.is_empty());
    for (distance, entry) in (0..=MAX_HOPS).zip(entries) {
        if !trust.trusts(distance, client) {
            break;
        }
        // If a hop does not give an address, nothing is guessed. Then the hop itself is the last known address.
        let Some((address, more)) = read(entry) else {
            break;
        };
        (client, of_client) = (address, Some(more));
    }
    (client, of_client)
}

/// All lines of a list, joined to one.
fn list(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = headers
        .get_all(name)
        .iter()
        .map(|line| line.as_bytes().trim_ascii())
        .filter(|line| !line.is_empty())
        .collect();
    (!lines.is_empty()).then(|| lines.join(&b", "[..]))
}

/// A list of `Forwarded` that every reader takes apart in the same way: the whole list or, if its quotes are not those of
/// whole values, the elements at its end that are well-formed by themselves.
fn unambiguous(list: Vec<u8>) -> Option<Vec<u8>> {
    if is_quoted_well(&list) {
        return Some(list);
    }
    let entries = list.rsplit(|byte| *byte == b',');
    let whole = entries
        .take_while(|entry| is_quoted_well(entry) && Element::parse(entry.trim_ascii()).is_some());
    // Each has a comma in front of it.
    let length: usize = whole.map(|entry| entry.len() + 1).sum();
    let end = list.get(list.len().saturating_sub(length.saturating_sub(1))..)?;
    let end = end.trim_ascii();
    (!end.is_empty()).then(|| end.to_vec())
}

/// Whether every quote in the text belongs to a quoted string that is a whole value.
fn is_quoted_well(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'"') {
        let (before, quoted) = rest.split_at_checked(at).unwrap_or_default();
        let Some((_, behind)) = value_of(quoted) else {
            return false;
        };
        let next = behind.trim_ascii_start().first();
        if before.last() != Some(&b'=') || !matches!(next, None | Some(b',' | b';')) {
            return false;
        }
        rest = behind;
    }
    true
}

/// The value of a field, if it occurs once. Of several values, it is not known which one the hop wrote.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// The address of an entry: `192.0.2.1`, `2001:db8::1` or `[2001:db8::1]`, with or without a port.
fn node(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        let address: Ipv6Addr = address.parse().ok()?;
        (rest.is_empty() || is_port(rest.strip_prefix(':')?)).then_some(IpAddr::V6(address))?
    } else if let Ok(address) = text.parse() {
        address
    } else {
        let (address, port) = text.split_once(':')?;
        let address: Ipv4Addr = address.parse().ok()?;
        is_port(port).then_some(IpAddr::V4(address))?
    };
    Some(address.to_canonical())
}

/// Whether the text is a port, or something that RFC 7239 (section 6.2) allows in its place.
fn is_port(text: &str) -> bool {
    let obfuscated = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match text.strip_prefix('_') {
        Some(rest) => !rest.is_empty() && rest.bytes().all(obfuscated),
        None => text.parse::<u16>().is_ok(),
    }
}

fn scheme(value: &[u8]) -> Option<Scheme> {
    let is = |scheme: Scheme| value.eq_ignore_ascii_case(scheme.as_str().as_bytes());
    [Scheme::Http, Scheme::Https].into_iter().find(|of| is(*of))
}

/// A host, and its port if it has one.
fn host(value: &[u8]) -> Option<(HeaderValue, Option<u16>)> {
    let authority = Authority::try_from(value).ok()?;
    // An authority may contain user information, and a host may not.
    let is_host = !authority.host().is_empty() && !authority.as_str().contains('@');
    let value = HeaderValue::from_bytes(value).ok().filter(|_| is_host)?;
    Some((value, authority.port_u16()))
}

fn port(value: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(value).ok()?;
    text.parse().ok().filter(|port| *port != 0)
}

/// The port to which the client connected, if the hop does not report it: the port of the host or, without one, the
/// well-known port of the scheme.
fn default_port(scheme: Option<Scheme>, host: Option<&(HeaderValue, Option<u16>)>) -> Option<u16> {
    let of_host = host.and_then(|(_, port)| *port);
    of_host.or_else(|| scheme.map(Scheme::port))
}

/// Whether a request ID is safe to log and to pass on to every backend.
fn is_request_id(id: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:=+/".contains(byte);
    (1..=MAX_REQUEST_ID).contains(&id.len()) && id.iter().all(allowed)
}

/// The relevant parts of an element of `Forwarded` (RFC 7239 section 4). A part that is absent is empty.
#[derive(Debug, Default, PartialEq, Eq)]
struct Element {
    from: Vec<u8>,
    proto: Vec<u8>,
    host: Vec<u8>,
}

impl Element {
    /// Reads an element; `None` if it is malformed, or has a parameter twice.
    fn parse(text: &[u8]) -> Option<Self> {
        let mut element = Self::default();
        let mut rest = text;
        loop {
            let equals = rest.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (rest.get(..equals)?, rest.get(equals + 1..)?);
            let (value, behind) = value_of(value)?;
            let name = name.trim_ascii().to_ascii_lowercase();
            let place = match &*name {
                b"for" => Some(&mut element.from),
                b"proto" => Some(&mut element.proto),
                b"host" => Some(&mut element.host),
                _ => None,
            };
            if let Some(place) = place {
                if !place.is_empty() {
                    return None;
                }
                *place = value;
            }
            match behind.trim_ascii_start() {
                [] => return Some(element),
                [b';', more @ ..] => rest = more,
                _ => return None,
            }
        }
    }
}

/// Reads a token or a quoted string. Returns it with the rest of the text.
fn value_of(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| b"; \t".contains(byte));
        let (value, rest) = text.split_at_checked(end.unwrap_or(text.len()))?;
        return (!value.contains(&b'"')).then(|| (value.to_vec(), rest));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter();
    loop {
        match bytes.next()? {
            b'"' => return Some((value, bytes.as_slice())),
            b'\\' => value.push(*bytes.next()?),
            byte => value.push(*byte),
        }
    }
}

/// The element for the next hop, for a request of `client`.
pub(super) fn element(client: IpAddr, scheme: Scheme, authority: Option<&str>) -> String {
    let mut text = match client {
        IpAddr::V4(address) => format!("for={address}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\""),
    };
    // It was already read as a host, so it contains nothing that needs to be escaped.
    if let Some(authority) = authority {
        text.push_str(";host=\"");
        text.push_str(authority);
        text.push('"');
    }
    text.push_str(";proto=");
    text.push_str(scheme.as_str());
    text
}

#[cfg(test)]
mod tests;
