//! How the proxies find the address of the client if load balancers or other proxies are in front of a Gateway: which
//! of these hops they believe, and from which header they read the address.

use std::net::IpAddr;

use crate::certificate::AddressBlock;
use crate::service::words;

/// Most hops that a proxy follows back towards the client. It ignores the rest of a longer list.
pub const MAX_HOPS: u8 = 32;
/// Most blocks of addresses that one setting may trust.
pub const MAX_TRUSTED: usize = 64;

words! {
    /// Whether connections begin with a PROXY header.
    ProxyProtocolMode {
        /// Every connection begins with one, and comes from a trusted address. Others are closed.
        Strict = "Strict",
        /// Connections from trusted addresses may begin with one. A header from any other address is refused.
        Optional = "Optional",
        /// No connection begins with one.
        Disabled = "Disabled",
    }
}

words! {
    /// The request header in which hops list the addresses of clients.
    ForwardedHeader {
        /// `X-Forwarded-For`, with `X-Forwarded-Proto`, `-Host` and `-Port` beside it.
        XForwardedFor = "X-Forwarded-For",
        /// `Forwarded` (RFC 7239).
        Forwarded = "Forwarded",
    }
}

/// How the proxies find the address of a client. A part that is `None` is not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientAddress {
    /// From the PROXY header with which a connection begins.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// From a header of the request.
    pub forwarded: Option<ForwardedHeaders>,
}

impl ClientAddress {
    /// The setting with which the proxies believe nobody, whatever a setting of lower precedence says.
    #[must_use]
    pub fn believing_nobody() -> Self {
        Self {
            proxy_protocol: Some(ProxyProtocol {
                mode: ProxyProtocolMode::Disabled,
                trusted: Vec::new(),
            }),
            forwarded: ForwardedHeaders::new(ForwardedHeader::XForwardedFor, Some(0), None),
        }
    }

    /// Merges several settings, which are given in order of precedence. Each part is taken as a whole from the first
    /// setting that has it, because a mode belongs together with the addresses that it is for.
    pub fn merge<'a>(settings: impl IntoIterator<Item = &'a Self>) -> Self {
        settings
            .into_iter()
            .fold(Self::default(), |set, next| Self {
                proxy_protocol: set.proxy_protocol.or_else(|| next.proxy_protocol.clone()),
                forwarded: set.forwarded.or_else(|| next.forwarded.clone()),
            })
    }

    /// The same setting without the parts that have no effect.
    #[must_use]
    pub fn effective(self) -> Self {
        Self {
            proxy_protocol: self
                .proxy_protocol
                .filter(|of| of.mode != ProxyProtocolMode::Disabled),
            forwarded: self.forwarded.filter(|of| of.hops != Some(0)),
        }
    }
}

/// Whether connections begin with a PROXY header, and from which addresses it is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyProtocol {
    /// Whether they must, may or must not.
    pub mode: ProxyProtocolMode,
    /// The addresses from which a header is believed.
    pub trusted: Vec<AddressBlock>,
}

impl ProxyProtocol {
    /// Whether the header of a connection from `address` is believed.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        covers(&self.trusted, address)
    }
}

/// Which hops the proxies believe when these say where a request came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedHeaders {
    header: ForwardedHeader,
    hops: Option<u8>,
    trusted: Option<Vec<AddressBlock>>,
}

impl ForwardedHeaders {
    /// Believes at most `hops` hops (if that is given), as long as each of them has one of the `trusted` addresses (if
    /// these are given). Returns `None` if neither is given, because the proxies would then believe everybody.
    #[must_use]
    pub fn new(
        header: ForwardedHeader,
        hops: Option<u8>,
        trusted: Option<Vec<AddressBlock>>,
    ) -> Option<Self> {
        (hops.is_some() || trusted.is_some()).then_some(Self {
            header,
            hops,
            trusted,
        })
    }

    /// The header in which the hops list addresses.
    #[must_use]
    pub fn header(&self) -> ForwardedHeader {
        self.header
    }

    /// How many hops there are, if that is set.
    #[must_use]
    pub fn hops(&self) -> Option<u8> {
        self.hops
    }

    /// The addresses that hops have, if that is set.
    #[must_use]
    pub fn trusted(&self) -> Option<&[AddressBlock]> {
        self.trusted.as_deref()
    }

    /// Whether the hop at `address` is believed. `distance` is the number of hops between it and the proxy.
    #[must_use]
    pub fn trusts(&self, distance: u8, address: IpAddr) -> bool {
        let trusted = self.trusted.as_deref();
        distance < self.hops.unwrap_or(MAX_HOPS).min(MAX_HOPS)
            && trusted.is_none_or(|blocks| covers(blocks, address))
    }
}

fn covers(blocks: &[AddressBlock], address: IpAddr) -> bool {
    let address = address.to_canonical();
    blocks.iter().any(|block| block.covers(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(texts: &[&str]) -> Vec<AddressBlock> {
        let parse = |text: &&str| AddressBlock::parse(text).expect("a block");
        texts.iter().map(parse).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn hops_count_by_number_by_address_or_by_both() {
        let new = |hops, trusted: Option<&[&str]>| {
            ForwardedHeaders::new(ForwardedHeader::XForwardedFor, hops, trusted.map(blocks))
        };
        assert_eq!(new(None, None), None);
        let by_number = new(Some(2), None).expect("hops");
        assert!(by_number.trusts(1, ip("203.0.113.1")));
        assert!(!by_number.trusts(2, ip("203.0.113.1")));
        let by_address = new(None, Some(&["10.0.0.0/8", "2001:db8::/32"])).expect("blocks");
        assert!(by_address.trusts(MAX_HOPS - 1, ip("::ffff:10.1.2.3")));
        assert!(by_address.trusts(0, ip("2001:db8::1")));
        assert!(!by_address.trusts(MAX_HOPS, ip("10.1.2.3")));
        assert!(!by_address.trusts(0, ip("11.1.2.3")));
        let both = new(Some(1), Some(&["10.0.0.0/8"])).expect("both");
        assert!(both.trusts(0, ip("10.1.2.3")));
        assert!(!both.trusts(1, ip("10.1.2.3")));
        assert!(!both.trusts(0, ip("11.1.2.3")));
        // A list without a readable block trusts nobody, and not everybody.
        assert!(
            !new(Some(1), Some(&[]))
                .expect("none")
                .trusts(0, ip("10.1.2.3"))
        );
    }

    #[test]
    fn each_part_is_the_first_ones_and_can_be_switched_off() {
        let protocol = |mode| ProxyProtocol {
            mode,
            trusted: blocks(&["10.0.0.0/8"]),
        };
        let hops = |hops| ForwardedHeaders::new(ForwardedHeader::Forwarded, Some(hops), None);
        let class = ClientAddress {
            proxy_protocol: Some(protocol(ProxyProtocolMode::Strict)),
            forwarded: hops(2),
        };
        let own = ClientAddress {
            proxy_protocol: Some(protocol(ProxyProtocolMode::Disabled)),
            forwarded: None,
        };
        let merged = ClientAddress::merge([&own, &class]);
        assert_eq!(merged.proxy_protocol, own.proxy_protocol);
        assert_eq!(merged.forwarded, class.forwarded);
        let effective = merged.effective();
        assert_eq!(effective.proxy_protocol, None);
        assert_eq!(effective.forwarded, class.forwarded);
        let off = ClientAddress {
            forwarded: hops(0),
            ..ClientAddress::default()
        };
        let effective = ClientAddress::merge([&off, &class]).effective();
        assert_eq!(effective.forwarded, None);
        assert_eq!(effective.proxy_protocol, class.proxy_protocol);
    }
}
