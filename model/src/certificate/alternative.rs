//! Names that a certificate has in addition to the hostnames of its listeners, and which of them a grant gives.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use crate::hostname::Hostname;

/// Most names of each kind that an object may add to its certificates.
pub const MAX_ALTERNATIVE_NAMES: usize = 32;

/// Longest part of a mailbox before the "@" (RFC 5321).
const MAX_LOCAL: usize = 64;

/// Names that an object asks for in addition to the hostnames of its listeners: `alt-names`, `ip-sans` and
/// `email-sans`. Grants, and the ownership of hostnames, decide whether the object may have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlternativeNames {
    /// `alt-names`: exact hostnames.
    pub hostnames: BTreeSet<Hostname>,
    /// `ip-sans`. None of them is an IPv4-mapped IPv6 address.
    pub addresses: BTreeSet<IpAddr>,
    /// `email-sans`.
    pub mailboxes: BTreeSet<Mailbox>,
}

impl AlternativeNames {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hostnames.is_empty() && self.addresses.is_empty() && self.mailboxes.is_empty()
    }
}

/// A mailbox of plain characters, such as `ops@example.com`: without quotes, comments or a display name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mailbox {
    local: Arc<str>,
    domain: Hostname,
}

impl Mailbox {
    /// Reads a mailbox. The domain is converted to lower case. The part before the "@" keeps its case, which matters.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (local, domain) = text.split_once('@')?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
        let dots = local.starts_with('.') || local.ends_with('.') || local.contains("..");
        if local.is_empty() || local.len() > MAX_LOCAL || dots || !local.bytes().all(plain) {
            return None;
        }
        Some(Self {
            local: local.into(),
            domain: Hostname::parse(domain).ok()?,
        })
    }
}

impl fmt::Display for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local, self.domain)
    }
}

/// Mailboxes that a grant gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantedMailbox {
    /// One mailbox.
    One(Mailbox),
    /// Every mailbox of just this domain (`*@example.com`), not of those below it.
    Domain(Hostname),
}

impl GrantedMailbox {
    /// Reads a mailbox, or `*@` and a domain.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("*@") {
            Some(domain) => Hostname::parse(domain).ok().map(Self::Domain),
            None => Mailbox::parse(text).map(Self::One),
        }
    }

    /// Whether the mailbox is one of these.
    #[must_use]
    pub fn covers(&self, mailbox: &Mailbox) -> bool {
        match self {
            Self::One(granted) => granted == mailbox,
            Self::Domain(domain) => *domain == mailbox.domain,
        }
    }
}

/// A block of IP addresses (CIDR). A single address is a block of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressBlock {
    network: IpAddr,
    length: u8,
}

impl fmt::Display for AddressBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

impl AddressBlock {
    /// Reads an address, or a block such as `192.0.2.0/24`. The bits after the prefix must be zero.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (network, length) = match text.split_once('/') {
            Some((network, length)) => (network, Some(length)),
            None => (text, None),
        };
        let network = address(network)?;
        let bits: u8 = if network.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => bits,
            Some(length) if length.len() <= 3 && length.bytes().all(|b| b.is_ascii_digit()) => {
                length.parse().ok().filter(|length| *length <= bits)?
            }
            Some(_) => return None,
        };
        (prefix(network, length) == prefix(network, bits)).then_some(Self { network, length })
    }

    /// Whether the address is in the block.
    #[must_use]
    pub fn covers(&self, address: IpAddr) -> bool {
        self.network.is_ipv4() == address.is_ipv4()
            && prefix(self.network, self.length) == prefix(address, self.length)
    }
}

/// The text is no block of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not a range of addresses such as 10.96.0.0/12, with only zeros after the prefix")]
pub struct InvalidAddressBlock;

/// Reads a block from an argument of a binary, as [`AddressBlock::parse`] does. The text may have spaces around it.
impl FromStr for AddressBlock {
    type Err = InvalidAddressBlock;

    fn from_str(text: &str) -> Result<Self, InvalidAddressBlock> {
        Self::parse(text.trim()).ok_or(InvalidAddressBlock)
    }
}

/// Reads an IP address. An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) is not accepted: cert-manager would turn it
/// into the IPv4 address, although a grant of a block of IPv6 addresses does not give that one.
#[must_use]
pub fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    (address.to_canonical() == address).then_some(address)
}

/// The first `length` bits of an address, followed by zeros.
fn prefix(address: IpAddr, length: u8) -> u128 {
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let rest = u32::saturating_sub(width, u32::from(length));
    let kept = u128::MAX.checked_shl(rest).unwrap_or_default();
    bits & kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_covers_what_begins_like_it() {
        let covers = |block: &str, text: &str| {
            let block = AddressBlock::parse(block).expect("a block");
            block.covers(address(text).expect("an address"))
        };
        for (block, inside, outside) in [
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("0.0.0.0/0", "203.0.113.7", "::1"),
            ("::/0", "2001:db8::1", "203.0.113.7"),
            ("2001:db8::/32", "2001:db8:ffff::", "2001:db9::"),
            ("2001:db8::1", "2001:DB8:0::1", "2001:db8::2"),
            ("10.0.0.2/31", "10.0.0.3", "10.0.0.4"),
        ] {
            assert!(covers(block, inside), "{block} {inside}");
            assert!(!covers(block, outside), "{block} {outside}");
        }
    }

    #[test]
    fn address_block_is_none_for_text_that_is_no_block() {
        for text in [
            "",
            "/",
            "192.0.2.1/24",
            "192.0.2.0/33",
            "192.0.2.0/",
            "192.0.2.0/+8",
            "192.0.2",
            "192.0.2.01",
            "2001:db8::1/32",
            "::/129",
            "::ffff:192.0.2.1",
            "::ffff:0:0/96",
            "fe80::1%eth0",
            "example.com",
        ] {
            assert_eq!(AddressBlock::parse(text), None, "{text}");
        }
        assert_eq!(address("::ffff:192.0.2.1"), None);
    }

    #[test]
    fn a_mailbox_is_one_plain_mailbox() {
        let ops = Mailbox::parse("ops+tls@Example.COM.").expect("a mailbox");
        assert_eq!(ops.to_string(), "ops+tls@example.com");
        for text in [
            "",
            "ops",
            "@example.com",
            "ops@",
            "*@example.com",
            ".ops@example.com",
            "a..b@example.com",
            "a@b@example.com",
            "Ops <ops@example.com>",
            "\"a b\"@example.com",
            "ops@192.0.2.1",
            "ops@*.example.com",
            "ops%victim.example@example.com",
            "o\u{308}ps@example.com",
            " ops@example.com",
        ] {
            assert_eq!(Mailbox::parse(text), None, "{text}");
        }
        assert_eq!(
            Mailbox::parse(&format!("{}@a.example", "a".repeat(65))),
            None
        );
        let granted = |text: &str| GrantedMailbox::parse(text).expect("mailboxes");
        assert!(granted("ops+tls@example.com").covers(&ops));
        assert!(granted("*@EXAMPLE.com").covers(&ops));
        assert!(!granted("Ops+tls@example.com").covers(&ops));
        assert!(!granted("*@com").covers(&ops));
        assert!(!granted("*@mail.example.com").covers(&ops));
        for text in [
            "*",
            "*@",
            "*@*",
            "*@*.example.com",
            "o*@example.com",
            "@example.com",
        ] {
            assert_eq!(GrantedMailbox::parse(text), None, "{text}");
        }
    }
}
