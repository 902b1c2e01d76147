//! What of a private key would show in a text, in whatever form it got there.

use std::collections::HashSet;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;

use crate::encoding::base64;

/// How many bytes of a key are looked for: enough that they are nothing else.
const BYTES: usize = 18;
/// Where the secret number begins in a P-256 key as it is stored (PKCS #8).
const P256: (usize, usize) = (138, 36);

/// How many bytes of a form are compared.
const PREFIX: usize = 16;

/// Parts of keys, in their forms.
#[derive(Default)]
pub(crate) struct Needles {
    forms: HashSet<[u8; PREFIX]>,
}

impl Needles {
    /// Looks for one more key, in PEM.
    pub(crate) fn add(&mut self, pem: &[u8]) -> Result<()> {
        let key = PrivateKeyDer::from_pem_slice(pem).context("a key in PEM")?;
        let der = key.secret_der();
        let is_p256 = der.len() == P256.0;
        // Of longer keys (RSA) the middle is secret.
        let start = if is_p256 { P256.1 + 4 } else { der.len() / 2 };
        let part = der.get(start..start + BYTES).context("a short key")?;
        // Secrets hold the PEM in base64: a line of it, whose beginning is secret, once more.
        let lines: Vec<&[u8]> = pem.split(|&byte| byte == b'\n').collect();
        let line = if is_p256 { 2 } else { lines.len() / 2 };
        let line = lines.get(line).and_then(|line| line.get(..BYTES));

        let mut forms = in_base64(part);
        forms.extend(in_base64(line.context("a short line")?));
        let mut hex = String::new();
        for byte in part {
            let _ = write!(hex, "{byte:02x}");
        }
        forms.push(hex.to_uppercase());
        forms.push(hex);
        let listed: Vec<String> = part.iter().map(u8::to_string).collect();
        forms.push(listed.join(", "));
        forms.push(listed.join(","));
        self.insert(part)?;
        for form in forms {
            self.insert(form.as_bytes())?;
        }
        Ok(())
    }

    fn insert(&mut self, form: &[u8]) -> Result<()> {
        let prefix = form.first_chunk().context("a short form")?;
        self.forms.insert(*prefix);
        Ok(())
    }

    /// Whether any of them is in a text. Lines that are broken inside, as PEM's are, count too.
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        self.are_in_as_is(text) || self.are_in_as_is(&joined(text))
    }

    fn are_in_as_is(&self, text: &[u8]) -> bool {
        text.windows(PREFIX).any(|window| {
            window
                .first_chunk()
                .is_some_and(|window| self.forms.contains(window))
        })
    }
}

/// base64 of what this is part of: at each of three alignments, without the characters at the ends, which
/// depend on the neighbours too. Both alphabets.
fn in_base64(part: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    for skipped in 0..3 {
        let text = base64(&[&vec![0; skipped], part].concat());
        let inner: String = text.chars().skip(4).take(16).collect();
        forms.push(inner.replace('+', "-").replace('/', "_"));
        forms.push(inner);
    }
    forms
}

/// Without line breaks, as they are and as JSON writes them.
fn joined(text: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, more @ ..] = rest {
        rest = match rest {
            [b'\n' | b'\r', more @ ..] | [b'\\', b'n', more @ ..] => more,
            _ => {
                whole.push(*first);
                more
            }
        };
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_every_form() {
        let key = rcgen::KeyPair::generate().unwrap();
        let other = rcgen::KeyPair::generate().unwrap();
        let pem = key.serialize_pem();
        let mut needles = Needles::default();
        needles.add(pem.as_bytes()).unwrap();
        let der = key.serialize_der();
        assert!(needles.are_in(pem.as_bytes()));
        assert!(needles.are_in(pem.replace('\n', "\\n").as_bytes()));
        assert!(needles.are_in(&der));
        assert!(needles.are_in(format!("{der:?}").as_bytes()));
        assert!(needles.are_in(base64(pem.as_bytes()).as_bytes()));
        for shift in 0..3 {
            let text = base64(&[&vec![7; shift], der.as_slice()].concat());
            assert!(needles.are_in(text.as_bytes()), "shift {shift}");
        }
        assert!(!needles.are_in(other.serialize_pem().as_bytes()));
    }
}
