//! Which addresses a backend may have. Whoever may write an EndpointSlice, or set a pod up, could otherwise have the
//! proxies reach what only they reach: the node that they are on, or the metadata of the cloud, with its credentials.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::certificate::AddressBlock;

/// Where clouds serve metadata, beside link-local addresses: Azure's (and its DNS and DHCP), Alibaba's, Oracle's first
/// one, and those of AWS and Google Cloud in IPv6.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Which addresses a backend may not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointRules {
    /// The proxy's own host may be one: for a proxy on a laptop.
    pub loopback: bool,
    /// What the release denies.
    pub denied: Vec<AddressBlock>,
}

/// Why no backend may have an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// It is the proxy's own host.
    Loopback,
    /// It is on the link of the proxy's node.
    LinkLocal,
    /// It is not of one host.
    NoHost,
    /// A cloud serves metadata there.
    Metadata,
    /// The release denies it.
    ByRelease(AddressBlock),
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("is a loopback address"),
            Self::LinkLocal => f.write_str("is a link-local address"),
            Self::NoHost => f.write_str("is not the address of one host"),
            Self::Metadata => f.write_str("is where a cloud serves metadata"),
            Self::ByRelease(block) => write!(f, "is in {block}, which the platform denies"),
        }
    }
}

impl EndpointRules {
    /// Why no backend may have `address`; `None` if one may. An IPv4 address within an IPv6 one (mapped, or behind
    /// NAT64, RFC 6052) is judged as well.
    #[must_use]
    pub fn denies(&self, address: IpAddr) -> Option<Denied> {
        let address = address.to_canonical();
        let inner = match address {
            IpAddr::V6(outer) => translated(outer).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        let mut judged = [Some(address), inner].into_iter().flatten();
        judged.find_map(|of| self.denies_one(of))
    }

    fn denies_one(&self, address: IpAddr) -> Option<Denied> {
        let (no_host, link_local) = match address {
            IpAddr::V4(v4) => {
                let [first, ..] = v4.octets();
                // 0.0.0.0/8 reaches this host, and from 224 on there are groups and reserved addresses.
                (first == 0 || first >= 224, v4.is_link_local())
            }
            IpAddr::V6(v6) => (
                v6.is_unspecified() || v6.is_multicast(),
                v6.is_unicast_link_local(),
            ),
        };
        if no_host {
            Some(Denied::NoHost)
        } else if address.is_loopback() {
            (!self.loopback).then_some(Denied::Loopback)
        } else if link_local {
            Some(Denied::LinkLocal)
        } else if METADATA.contains(&address) {
            Some(Denied::Metadata)
        } else {
            let block = self.denied.iter().find(|block| block.covers(address));
            block.copied().map(Denied::ByRelease)
        }
    }
}

/// The IPv4 address that a NAT64 gateway would connect to: `64:ff9b::/96`.
fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = address.segments() else {
        return None;
    };
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    Some(Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_proxies_reach_is_denied_however_it_is_written() {
        let release = EndpointRules {
            loopback: false,
            denied: vec![
                AddressBlock::parse("10.96.0.0/12").unwrap(),
                AddressBlock::parse("2001:db8::/32").unwrap(),
            ],
        };
        let why = |text: &str| release.denies(text.parse().unwrap());
        for good in [
            "10.244.1.7",
            "192.168.0.1",
            "fd00:10:244::5",
            "2001:db9::1",
            "203.0.113.9",
        ] {
            assert_eq!(why(good), None, "{good}");
        }
        for (bad, expected) in [
            ("127.0.0.1", Denied::Loopback),
            ("127.8.8.8", Denied::Loopback),
            ("::1", Denied::Loopback),
            ("::ffff:127.0.0.1", Denied::Loopback),
            ("64:ff9b::7f00:1", Denied::Loopback),
            ("169.254.169.254", Denied::LinkLocal),
            ("::ffff:169.254.169.254", Denied::LinkLocal),
            ("64:ff9b::a9fe:a9fe", Denied::LinkLocal),
            ("fe80::1", Denied::LinkLocal),
            ("0.0.0.0", Denied::NoHost),
            ("0.0.0.1", Denied::NoHost),
            ("::", Denied::NoHost),
            ("224.0.0.1", Denied::NoHost),
            ("255.255.255.255", Denied::NoHost),
            ("ff02::1", Denied::NoHost),
            ("168.63.129.16", Denied::Metadata),
            ("100.100.100.200", Denied::Metadata),
            ("fd00:ec2::254", Denied::Metadata),
        ] {
            assert_eq!(why(bad), Some(expected), "{bad}");
        }
        for bad in [
            "10.96.0.1",
            "10.111.255.255",
            "::ffff:10.96.0.1",
            "2001:db8::1",
        ] {
            let said = why(bad).unwrap().to_string();
            assert!(said.contains("which the platform denies"), "{said}");
        }
        let laptop = EndpointRules {
            loopback: true,
            ..EndpointRules::default()
        };
        assert_eq!(laptop.denies("::ffff:127.0.0.1".parse().unwrap()), None);
        let metadata = laptop.denies("169.254.169.254".parse().unwrap());
        assert_eq!(metadata, Some(Denied::LinkLocal));
    }
}
