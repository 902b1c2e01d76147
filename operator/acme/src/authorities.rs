//! Bounds what it costs to verify a signature of an authority that a team chose. A verifier tries every authority of one
//! name, and nobody needs the private keys of authorities that are made up.

use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

/// Largest RSA key of an authority, in bits.
const MAX_RSA_BITS: usize = 4096;
/// Largest public exponent of an RSA key. The usual ones are 3 and 65537.
const MAX_EXPONENT: u64 = 65537;

/// Says why no signature of this authority is verified, if so: its RSA key is larger than those of all public
/// authorities, so that each signature would cost as much as many handshakes. Or nobody can say what it costs.
#[must_use]
pub fn costly(der: &[u8]) -> Option<String> {
    let unread =
        || Some("something that is not a certificate, or whose key cannot be read".to_owned());
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return unread();
    };
    let key = match certificate.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => key,
        Ok(_) => return None,
        Err(_) => return unread(),
    };
    let bits = key.key_size();
    if bits > MAX_RSA_BITS {
        return Some(format!(
            "an authority with an RSA key of {bits} bits, which is more than {MAX_RSA_BITS}"
        ));
    }
    let is_usual = key.try_exponent().is_ok_and(|it| it <= MAX_EXPONENT);
    (!is_usual).then(|| {
        format!("an authority with an RSA key whose public exponent is more than {MAX_EXPONENT}")
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A certificate with an RSA key of a made-up modulus. Its signature is wrong, and nobody has its private key.
    fn made_up(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
        fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
            let content = parts.concat();
            let length = u16::try_from(content.len()).unwrap().to_be_bytes();
            [&[tag, 0x82][..], &length, &content].concat()
        }
        let key = element(0x30, &[&element(2, &[modulus]), &element(2, &[exponent])]);
        // rsaEncryption, with parameters NULL.
        let algorithm = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
        let public = element(0x30, &[algorithm, &element(3, &[&[0], &key])]);
        let name = b"\x30\x00";
        let validity = b"\x30\x1e\x17\x0d260101000000Z\x17\x0d360101000000Z";
        let signed_with = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b\x05\x00";
        let parts: [&[u8]; 7] = [
            b"\xa0\x03\x02\x01\x02",
            b"\x02\x01\x01",
            signed_with,
            name,
            validity,
            name,
            &public,
        ];
        let body = element(0x30, &parts);
        element(0x30, &[&body, signed_with, &element(3, &[&[0; 17]])])
    }

    #[test]
    fn large_keys_and_exponents_are_costly() {
        let modulus = |bits: usize| [&[0][..], &vec![0xff; bits / 8]].concat();
        for (bits, exponent, costly_for) in [
            (2048, &[1, 0, 1][..], None),
            (4096, &[3], None),
            (4096, &[1, 0, 1], None),
            (4104, &[1, 0, 1], Some("4104 bits")),
            (8192, &[3], Some("8192 bits")),
            (2048, &[1, 0, 3], Some("exponent")),
            (2048, &[1, 0, 0, 0, 1], Some("exponent")),
            (2048, &[1; 200], Some("exponent")),
        ] {
            let why = costly(&made_up(&modulus(bits), exponent));
            let is_as_expected = match (&why, costly_for) {
                (Some(why), Some(part)) => why.contains(part),
                (why, part) => why.is_none() && part.is_none(),
            };
            assert!(is_as_expected, "{bits} bits, {exponent:?}: {why:?}");
        }
        let key = KeyPair::generate().unwrap();
        let other = CertificateParams::new([]).unwrap().self_signed(&key);
        assert_eq!(costly(other.unwrap().der()), None);
        // What cannot be read here, webpki may still take for an authority.
        assert!(costly(b"no certificate").is_some());
    }
}
