//! Bounds what it costs to verify a chain of certificates that somebody else chose. A verifier tries every certificate and
//! every authority whose name is that of the issuer, in every order. Nobody needs the private key of a certificate that is
//! made up, and a signature of a large key costs as much to verify as many handshakes.

use std::fmt;

use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

use super::MAX_INTERMEDIATES;

/// Largest RSA key of a certificate, in bits.
const MAX_RSA_BITS: usize = 4096;
/// Largest public exponent of an RSA key. The usual ones are 3 and 65537.
const MAX_EXPONENT: u64 = 65537;

/// A key whose signatures cost more to verify than those of all public authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostlyKey {
    /// An RSA key of this many bits.
    Bits(usize),
    /// An RSA key with a large public exponent.
    Exponent,
    /// A key that cannot be read here. A verifier may still be able to.
    Unreadable,
}

impl fmt::Display for CostlyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits(bits) => write!(
                f,
                "an RSA key of {bits} bits, which is more than {MAX_RSA_BITS}"
            ),
            Self::Exponent => write!(
                f,
                "an RSA key whose public exponent is more than {MAX_EXPONENT}"
            ),
            Self::Unreadable => f.write_str("a key that cannot be read"),
        }
    }
}

/// Why no signature of a chain is verified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainProblem {
    /// There are this many certificates.
    #[error("{0} certificates were shown, and at most {max} are looked at", max = MAX_INTERMEDIATES + 1)]
    TooMany(usize),
    /// The first certificate cannot be read.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// Several certificates have the name of one issuer.
    #[error("several of the certificates have the name of one issuer")]
    Ambiguous,
    /// A certificate of the chain has such a key.
    #[error("a certificate has {0}")]
    Costly(CostlyKey),
}

/// The key of a certificate, if its signatures cost too much, or nobody can say what they cost.
#[must_use]
pub fn costly_key(der: &[u8]) -> Option<CostlyKey> {
    read(der).map_or(Some(CostlyKey::Unreadable), |certificate| {
        costly_key_of(&certificate)
    })
}

fn costly_key_of(certificate: &X509Certificate<'_>) -> Option<CostlyKey> {
    let key = match certificate.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => key,
        Ok(_) => return None,
        Err(_) => return Some(CostlyKey::Unreadable),
    };
    let bits = key.key_size();
    if bits > MAX_RSA_BITS {
        return Some(CostlyKey::Bits(bits));
    }
    let is_usual = key.try_exponent().is_ok_and(|it| it <= MAX_EXPONENT);
    (!is_usual).then_some(CostlyKey::Exponent)
}

fn read(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(certificate)
}

/// The certificates that lead from one certificate to an authority. [`in_order`] finds them.
#[derive(Debug, PartialEq, Eq)]
pub struct OrderedChain<'a> {
    /// The certificates behind the first one, in order: each has the name of the issuer of the one before it.
    pub intermediates: Vec<&'a [u8]>,
    /// The names, in DER, of the issuers of the first certificate and of each of these. An authority that can be at the
    /// end of the chain has one of these names.
    pub issuers: Vec<&'a [u8]>,
}

/// The certificates of `others` that can lead from the certificate `own` to an authority, in order: the first one has the
/// name of its issuer, and so on. The rest is left out, such as copies and certificates of other chains. No two of the
/// returned ones have one name, so a verifier finds one way through them, and verifies at most one signature for each of
/// them and for each authority of one name.
///
/// # Errors
/// If there are too many certificates, if `own` cannot be read, if several certificates have the name that comes next, or
/// if a key in the chain is costly.
pub fn in_order<'a, C: AsRef<[u8]>>(
    own: &'a [u8],
    others: &'a [C],
) -> Result<OrderedChain<'a>, ChainProblem> {
    if others.len() > MAX_INTERMEDIATES {
        return Err(ChainProblem::TooMany(others.len() + 1));
    }
    let mut last = read(own).ok_or(ChainProblem::Unreadable)?;
    let others = others.iter().map(AsRef::as_ref).filter(|der| *der != own);
    let mut left: Vec<_> = others.filter_map(|der| Some((der, read(der)?))).collect();
    let (mut intermediates, mut issuers) = (Vec::new(), Vec::new());
    loop {
        if let Some(key) = costly_key_of(&last) {
            return Err(ChainProblem::Costly(key));
        }
        let issuer = last.tbs_certificate.issuer.as_raw();
        issuers.push(issuer);
        let (mut named, others): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|(_, other)| other.tbs_certificate.subject.as_raw() == issuer);
        let Some((der, next)) = named.pop() else {
            return Ok(OrderedChain {
                intermediates,
                issuers,
            });
        };
        if named.iter().any(|(other, _)| *other != der) {
            return Err(ChainProblem::Ambiguous);
        }
        intermediates.push(der);
        (last, left) = (next, others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82][..], &length, &content].concat()
    }

    /// A distinguished name with this common name.
    fn name(common: &str) -> Vec<u8> {
        let text = element(0x0c, &[common.as_bytes()]);
        let attribute = element(0x30, &[b"\x06\x03\x55\x04\x03", &text]);
        element(0x30, &[&element(0x31, &[&attribute])])
    }

    /// A certificate with an RSA key of a made-up modulus. Its signature is wrong, and nobody has its private key.
    fn made_up(subject: &str, issuer: &str, modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
        let key = element(0x30, &[&element(2, &[modulus]), &element(2, &[exponent])]);
        // rsaEncryption, with parameters NULL.
        let algorithm = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
        let public = element(0x30, &[algorithm, &element(3, &[&[0], &key])]);
        let validity = b"\x30\x1e\x17\x0d260101000000Z\x17\x0d360101000000Z";
        let signed_with = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b\x05\x00";
        let parts: [&[u8]; 7] = [
            b"\xa0\x03\x02\x01\x02",
            b"\x02\x01\x01",
            signed_with,
            &name(issuer),
            validity,
            &name(subject),
            &public,
        ];
        let body = element(0x30, &parts);
        element(0x30, &[&body, signed_with, &element(3, &[&[0; 17]])])
    }

    fn modulus(bits: usize) -> Vec<u8> {
        [&[0][..], &vec![0xff; bits / 8]].concat()
    }

    /// A certificate with a usual key. Certificates with different seeds have different keys.
    fn usual(subject: &str, issuer: &str, seed: u8) -> Vec<u8> {
        let mut modulus = modulus(2048);
        modulus.push(seed);
        modulus.remove(1);
        made_up(subject, issuer, &modulus, &[1, 0, 1])
    }

    #[test]
    fn large_keys_and_exponents_are_costly() {
        for (bits, exponent, costly) in [
            (2048, &[1, 0, 1][..], None),
            (4096, &[3], None),
            (4096, &[1, 0, 1], None),
            (4104, &[1, 0, 1], Some(CostlyKey::Bits(4104))),
            (8192, &[3], Some(CostlyKey::Bits(8192))),
            (2048, &[1, 0, 3], Some(CostlyKey::Exponent)),
            (2048, &[1, 0, 0, 0, 1], Some(CostlyKey::Exponent)),
            (2048, &[1; 200], Some(CostlyKey::Exponent)),
        ] {
            let made = made_up("own", "ca", &modulus(bits), exponent);
            assert_eq!(costly_key(&made), costly, "{bits} bits, {exponent:?}");
            // Wherever it is in the chain.
            let expected = costly.map(ChainProblem::Costly);
            assert_eq!(in_order::<Vec<u8>>(&made, &[]).err(), expected);
            let others = [made_up("ca", "root", &modulus(bits), exponent)];
            assert_eq!(in_order(&usual("own", "ca", 1), &others).err(), expected);
        }
        assert_eq!(costly_key(b"no certificate"), Some(CostlyKey::Unreadable));
    }

    #[test]
    fn a_chain_is_put_in_order_and_what_leads_nowhere_is_left_out() {
        let own = usual("own", "a", 1);
        let (a, b, root) = (
            usual("a", "b", 2),
            usual("b", "root", 3),
            usual("root", "root", 4),
        );
        let other = made_up("other", "root", &modulus(8192), &[3]);
        for (others, expected) in [
            (vec![], vec![]),
            (vec![&a, &b, &root], vec![&a, &b, &root]),
            (vec![&root, &b, &a], vec![&a, &b, &root]),
            (vec![&own, &a, &a, &b, &b], vec![&a, &b]),
            (vec![&b, &root], vec![]),
            (vec![&other, &a], vec![&a]),
        ] {
            let others: Vec<&[u8]> = others.into_iter().map(|der| &der[..]).collect();
            assert_eq!(in_order(&own, &others).unwrap().intermediates, expected);
        }
        let others = [&b"no certificate"[..], &a];
        let chain = in_order(&own, &others).unwrap();
        assert_eq!(chain.intermediates, [&a]);
        assert_eq!(chain.issuers, [name("a"), name("b")]);
        // An authority that signed itself is its own issuer.
        let others = [&root[..], &b, &a];
        let names = ["a", "b", "root", "root"].map(name);
        assert_eq!(in_order(&own, &others).unwrap().issuers, names);
    }

    /// With several certificates of one name, a verifier would try every order of them.
    #[test]
    fn a_chain_in_which_a_name_is_that_of_several_is_refused() {
        let own = usual("ca", "ca", 1);
        let others: Vec<_> = (2..7).map(|seed| usual("ca", "ca", seed)).collect();
        assert_eq!(in_order(&own, &others), Err(ChainProblem::Ambiguous));
        let chain = in_order(&own, &others[..1]).unwrap();
        assert_eq!(chain.intermediates, [&others[0]]);
        let own = usual("own", "a", 1);
        let others = [
            usual("a", "b", 2),
            usual("b", "a", 3),
            usual("b", "root", 4),
        ];
        assert_eq!(in_order(&own, &others), Err(ChainProblem::Ambiguous));
        // A circle has an end.
        let chain = in_order(&own, &others[..2]).unwrap();
        assert_eq!(chain.intermediates.len(), 2);
    }

    #[test]
    fn certificate_chain_that_is_too_long_or_unreadable_is_refused() {
        let own = usual("own", "a", 1);
        let none = vec![b"no certificate".to_vec(); MAX_INTERMEDIATES + 1];
        let too_many = ChainProblem::TooMany(MAX_INTERMEDIATES + 2);
        assert_eq!(in_order(&own, &none), Err(too_many));
        let none = &none[..MAX_INTERMEDIATES];
        assert_eq!(in_order(&own, none).unwrap().intermediates, [[0; 0]; 0]);
        let unreadable = Err(ChainProblem::Unreadable);
        assert_eq!(in_order(b"no certificate", none), unreadable);
    }
}
