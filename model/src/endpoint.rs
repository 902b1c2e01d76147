//! Which addresses a backend may have, and which addresses the CA of a tenant's issuer may have.
//!
//! Anybody who may write an EndpointSlice or start a pod chooses where the proxies connect to. Without these rules they
//! could reach what only the proxies can reach: the node of a proxy, or the metadata service of the cloud with its
//! credentials. The same holds for the operator, which connects to the CA that an issuer names.

#[cfg(feature = "arguments")]
mod arguments;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::certificate::AddressBlock;

#[cfg(feature = "arguments")]
pub use arguments::EndpointArguments;

/// Addresses, other than link-local ones, where clouds serve metadata: Azure (with its DNS and DHCP), Alibaba, Oracle
/// (its first one); AWS (also for credentials of pods), Google Cloud and Scaleway for IPv6.
const METADATA: [IpAddr; 7] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Which addresses a backend may not have. The operator judges by them what it publishes, and the proxy what it is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointRules {
    /// Whether a backend may have a loopback address. It may only where the proxy runs on a laptop.
    pub loopback: bool,
    /// Further addresses, which the settings of the release deny.
    pub denied: Vec<AddressBlock>,
}

/// Why no backend may have an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// It is the proxy's own host.
    Loopback,
    /// It is on the link of the proxy's node.
    LinkLocal,
    /// It is not the address of one host.
    NoHost,
    /// A cloud serves metadata there.
    Metadata,
    /// It is not an address of the public internet.
    NotPublic,
    /// A pod of the release has it.
    OwnPod,
    /// A Gateway is reached there.
    Gateway,
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
            Self::NotPublic => f.write_str("is not a public address"),
            Self::OwnPod => f.write_str("is the address of a pod of Vestibule itself"),
            Self::Gateway => f.write_str("is the address of a Gateway"),
            Self::ByRelease(block) => write!(f, "is in {block}, which the platform denies"),
        }
    }
}

impl EndpointRules {
    /// The rules where backends and proxy share a host: backends may have loopback addresses.
    #[must_use]
    pub const fn with_loopback() -> Self {
        Self {
            loopback: true,
            denied: Vec::new(),
        }
    }

    /// Why no backend may have `address`; `None` if one may. If an IPv6 address contains an IPv4 address ([`forms`]), that
    /// one is judged as well.
    #[must_use]
    pub fn denies(&self, address: IpAddr) -> Option<Denied> {
        forms(address).find_map(|form| self.denies_one(form))
    }

    fn denies_one(&self, address: IpAddr) -> Option<Denied> {
        let (no_host, link_local) = match address {
            IpAddr::V4(v4) => {
                let [first, ..] = v4.octets();
                // 0.0.0.0/8 reaches this host. From 224.0.0.0 on, there are only multicast groups and reserved
                // addresses.
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

/// Which addresses the operator connects to for the issuer of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorityRules {
    /// Every address, because the issuer belongs to the admin, or because there is only one user.
    Any,
    /// Public addresses, and those that the release allows in addition.
    Public {
        /// The addresses that the release allows, even if they are not public.
        allowed: Vec<AddressBlock>,
    },
}

/// IPv4 networks that are not part of the public internet (IANA's special-purpose registry). Those that
/// [`EndpointRules`] already deny are left out. 192.88.99.0/24, the relays of 6to4, lead to whoever runs a relay.
const NOT_PUBLIC_V4: [(Ipv4Addr, u32); 10] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
];

impl AuthorityRules {
    /// Why the operator does not connect to `address`; `None` if it does. If an IPv6 address contains an IPv4 address
    /// (mapped, for 6to4, or for NAT64), that one is judged instead.
    #[must_use]
    pub fn denies(&self, address: IpAddr) -> Option<Denied> {
        let Self::Public { allowed } = self else {
            return None;
        };
        let address = address.to_canonical();
        let allowed = |of: IpAddr| allowed.iter().any(|block| block.covers(of));
        if allowed(address) {
            return None;
        }
        let inner = match address {
            IpAddr::V6(outer) => translated(outer).or_else(|| six_to_four(outer)),
            IpAddr::V4(_) => None,
        };
        match inner.map(IpAddr::V4) {
            Some(inner) if allowed(inner) => None,
            Some(inner) => not_public(inner),
            None => not_public(address),
        }
    }
}

fn not_public(address: IpAddr) -> Option<Denied> {
    // Whatever is denied to backends is denied here too. In addition, private addresses are denied, which backends may
    // have.
    EndpointRules::default().denies(address).or_else(|| {
        let public = match address {
            IpAddr::V4(v4) => !NOT_PUBLIC_V4.iter().any(|(network, length)| {
                let rest = 32 - length;
                v4.to_bits() >> rest == network.to_bits() >> rest
            }),
            // All global unicast addresses are in 2000::/3. In there, 2001::/23 is for protocols such as Teredo, and
            // 2001:db8::/32 and 3fff::/20 are for documentation.
            IpAddr::V6(v6) => match v6.segments() {
                [0x2001, second, ..] => second >= 0x0200 && second != 0x0db8,
                [0x3fff, second, ..] => second >= 0x1000,
                [first, ..] => first & 0xe000 == 0x2000,
            },
        };
        (!public).then_some(Denied::NotPublic)
    })
}

/// The IPv4 address that a relay of 6to4 would connect to: `2002::/16`.
fn six_to_four(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [0x2002, high, low, ..] = address.segments() else {
        return None;
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}

/// An address, followed by the IPv4 address that it contains, if any. A connection to the first may end at the second,
/// where something translates or relays it: NAT64, 6to4, or a kernel that knows the older ways to write IPv4 as IPv6.
pub fn forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let address = address.to_canonical();
    let inner = match address {
        IpAddr::V6(outer) => translated(outer)
            .or_else(|| six_to_four(outer))
            .or_else(|| embedded(outer)),
        IpAddr::V4(_) => None,
    };
    std::iter::once(address).chain(inner.map(IpAddr::V4))
}

/// The IPv4 address that a NAT64 gateway would connect to: `64:ff9b::/96`.
fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [0x64, 0xff9b, 0, 0, 0, 0, ..] = address.segments() else {
        return None;
    };
    Some(last(address))
}

/// The IPv4 address in the last 32 bits of an address for a NAT64 of one's own (`64:ff9b:1::/48`, RFC 8215), of one that
/// is translated (`::ffff:0:0:0/96`, RFC 2765), or compatible with IPv4 (`::/96`).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0x64, 0xff9b, 1, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => Some(last(address)),
        // `::` and `::1` are addresses of IPv6.
        [0, 0, 0, 0, 0, 0, high, _] if high > 0 => Some(last(address)),
        _ => None,
    }
}

fn last(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_that_only_proxies_reach_is_denied_however_it_is_written() {
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
            ("fd00:ec2::23", Denied::Metadata),
            ("fd00:42::42", Denied::Metadata),
            ("fd20:ce::254", Denied::Metadata),
            ("192.0.0.192", Denied::Metadata),
            ("64:ff9b:1::a9fe:a9fe", Denied::LinkLocal),
            ("::169.254.169.254", Denied::LinkLocal),
            ("::ffff:0:169.254.169.254", Denied::LinkLocal),
            ("2002:a9fe:a9fe::1", Denied::LinkLocal),
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
        let laptop = EndpointRules::with_loopback();
        assert_eq!(laptop.denies("::ffff:127.0.0.1".parse().unwrap()), None);
        let metadata = laptop.denies("169.254.169.254".parse().unwrap());
        assert_eq!(metadata, Some(Denied::LinkLocal));
    }

    /// Where a network plugin enforces policies, the proxies cannot reach metadata, even if they should connect to it.
    #[test]
    fn the_network_policy_of_the_proxies_denies_metadata() {
        let template = include_str!("../../charts/vestibule/templates/networkpolicies.yaml");
        let lists = template.lines().filter(|line| line.contains(":= list "));
        let blocks: Vec<AddressBlock> = lists
            .flat_map(|line| line.split('"').skip(1).step_by(2))
            .map(|block| AddressBlock::parse(block).unwrap())
            .collect();
        let link_local: [IpAddr; 2] =
            ["169.254.169.254", "fe80::1"].map(|address| address.parse().unwrap());
        for address in METADATA.into_iter().chain(link_local) {
            let is_denied = blocks.iter().any(|block| block.covers(address));
            assert!(is_denied, "{address}");
        }
    }

    #[test]
    fn a_tenants_issuer_leads_to_public_addresses_only_however_they_are_written() {
        let public = AuthorityRules::Public {
            allowed: Vec::new(),
        };
        let why = |rules: &AuthorityRules, text: &str| rules.denies(text.parse().unwrap());
        for good in [
            "172.65.32.248",
            "172.32.0.1",
            "100.128.0.1",
            "198.20.0.1",
            "::ffff:172.65.32.248",
            "2606:4700:60:0:f53d:5624:85c7:3a2c",
            "2001:4860::1",
            "64:ff9b::172.65.32.248",
            "2002:ac41:20f8::1",
        ] {
            assert_eq!(why(&public, good), None, "{good}");
        }
        for bad in [
            "0.0.0.0",
            "10.96.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.19.0.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::10.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2001::1",
            "2001:db8::1",
            "2002:0a00:0001::1",
            "2002:7f00:0001::1",
            "3fff::1",
            "100::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(why(&public, bad).is_some(), "{bad}");
            assert_eq!(why(&AuthorityRules::Any, bad), None, "{bad}");
        }
        let lab = AuthorityRules::Public {
            allowed: ["10.20.0.0/16", "fd00:20::/32"]
                .map(|text| AddressBlock::parse(text).unwrap())
                .to_vec(),
        };
        for good in [
            "10.20.3.4",
            "::ffff:10.20.3.4",
            "64:ff9b::10.20.3.4",
            "fd00:20::1",
            "172.65.32.248",
        ] {
            assert_eq!(why(&lab, good), None, "{good}");
        }
        for bad in ["10.21.0.1", "127.0.0.1", "fd00:21::1"] {
            assert!(why(&lab, bad).is_some(), "{bad}");
        }
    }
}
