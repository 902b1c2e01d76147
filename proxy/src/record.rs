//! Owns the protection of TLS records after the handshake. It encrypts (seals) and decrypts (opens) them in place.
//!
//! rustls does the handshake, the key schedule and the key updates, and hands over the traffic keys (its interface for
//! kernel TLS). Its own record layer copies every record twice and keeps buffers for each connection. This one works in
//! the buffer from which the socket is written, or into which it is read. It covers everything that rustls negotiates:
//! the AEAD suites of TLS 1.3 (RFC 8446 section 5.2) and of TLS 1.2 (RFC 5246 section 6.2.3.3, RFC 5288, RFC 7905). The
//! ciphers themselves come from aws-lc.

use std::ops::Range;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::{ConnectionTrafficSecrets, ProtocolVersion};

/// Length of a record header in bytes: content type, version, length.
pub(crate) const HEADER: usize = 5;
/// Longest plaintext of a record in bytes.
pub(crate) const MAX_PLAINTEXT: usize = 1 << 14;
/// Longest protected payload that is read. TLS 1.3 allows 256 bytes more than the plaintext, and TLS 1.2 allows 2048.
pub(crate) const MAX_PROTECTED: usize = MAX_PLAINTEXT + 2048;
/// Length of the authentication tag, which is the same for every cipher here.
const TAG: usize = 16;
/// The part of the nonce that a TLS 1.2 record with AES-GCM carries.
const EXPLICIT_NONCE: usize = 8;
/// Largest number of records that are protected with one AES-GCM key. RFC 8446 section 5.5 allows 2^24.5.
const GCM_RECORDS: u64 = 1 << 24;

/// Content types of records.
pub(crate) mod content {
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const DATA: u8 = 23;
}

/// Descriptions of the alerts that this proxy itself sends or understands.
pub(crate) mod alert {
    pub(crate) const CLOSE_NOTIFY: u8 = 0;
    pub(crate) const UNEXPECTED_MESSAGE: u8 = 10;
    pub(crate) const BAD_RECORD_MAC: u8 = 20;
    pub(crate) const RECORD_OVERFLOW: u8 = 22;
    pub(crate) const CERTIFICATE_UNKNOWN: u8 = 46;
    pub(crate) const ILLEGAL_PARAMETER: u8 = 47;
    pub(crate) const DECODE_ERROR: u8 = 50;
    pub(crate) const INTERNAL_ERROR: u8 = 80;
    pub(crate) const USER_CANCELED: u8 = 90;
    pub(crate) const NO_RENEGOTIATION: u8 = 100;
}

/// A record that ends the connection with this alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal(pub(crate) u8);

/// The layout of a record, which depends on version and cipher.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Header, ciphertext of (payload, content type), tag. Nonce: IV xor sequence number.
    Tls13,
    /// Header, explicit nonce, ciphertext, tag. Nonce: 4 bytes of the IV, explicit nonce.
    Tls12Gcm,
    /// Header, ciphertext, tag. Nonce: IV xor sequence number.
    Tls12ChaCha,
}

/// The keys of one direction and the number of its next record.
pub(crate) struct Keys {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
    limit: u64,
    form: Form,
}

impl Keys {
    /// Takes the keys that rustls hands over. Returns `None` for a version or cipher that this module does not know.
    pub(crate) fn new(
        version: ProtocolVersion,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Option<Self> {
        let tls13 = match version {
            ProtocolVersion::TLSv1_3 => true,
            ProtocolVersion::TLSv1_2 => false,
            _ => return None,
        };
        let gcm = if tls13 { Form::Tls13 } else { Form::Tls12Gcm };
        let chacha = if tls13 {
            Form::Tls13
        } else {
            Form::Tls12ChaCha
        };
        let (algorithm, key, iv, form, limit) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
                (&AES_128_GCM, key, iv, gcm, GCM_RECORDS)
            }
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
                (&AES_256_GCM, key, iv, gcm, GCM_RECORDS)
            }
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (&CHACHA20_POLY1305, key, iv, chacha, u64::MAX)
            }
            _ => return None,
        };
        Some(Self {
            key: LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).ok()?),
            iv: iv.as_ref().try_into().ok()?,
            sequence,
            limit,
            form,
        })
    }

    /// Marks the keys as used up, so that they protect no further record.
    #[cfg(test)]
    pub(crate) fn exhaust(&mut self) {
        self.limit = self.sequence;
    }

    /// Number of bytes of a record before its payload.
    pub(crate) fn head(&self) -> usize {
        HEADER + self.explicit()
    }

    /// Number of bytes of a record after its payload.
    pub(crate) fn tail(&self) -> usize {
        TAG + usize::from(self.form == Form::Tls13)
    }

    /// Whether the keys have protected as many records as they may.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.sequence >= self.limit
    }

    /// Whether keys can be updated. Before TLS 1.3, a connection ends with its keys.
    pub(crate) fn can_update(&self) -> bool {
        self.form == Form::Tls13
    }

    /// Protects the `length` bytes after [`Self::head`] in `record`, and writes header and tag around them. Returns the
    /// length of the record. It is `None` if the record does not fit, or if the sequence number is used up. Then
    /// nothing may be sent.
    pub(crate) fn seal(&mut self, kind: u8, record: &mut [u8], length: usize) -> Option<usize> {
        let (head, tail) = (self.head(), self.tail());
        let total = head + length + tail;
        let wire_length = u16::try_from(total - HEADER).ok()?.to_be_bytes();
        let record = record.get_mut(..total)?;
        let (header, body) = record.split_at_mut_checked(HEADER)?;
        let outer = if self.form == Form::Tls13 {
            content::DATA
        } else {
            kind
        };
        let [high, low] = wire_length;
        let header_bytes = [outer, 3, 3, high, low];
        header.copy_from_slice(&header_bytes);
        let nonce = self.nonce();
        let plaintext_end = body.len().checked_sub(TAG)?;
        let (plaintext, tag_place) = body.split_at_mut_checked(plaintext_end)?;
        let tag = if self.form == Form::Tls13 {
            *plaintext.last_mut()? = kind;
            let nonce = Nonce::assume_unique_for_key(nonce);
            self.key
                .seal_in_place_separate_tag(nonce, Aad::from(header_bytes), plaintext)
        } else {
            let aad = self.aad12(kind, u16::try_from(length).ok()?);
            let (explicit, plaintext) = plaintext.split_at_mut_checked(self.explicit())?;
            // This is empty for forms without an explicit nonce.
            explicit.copy_from_slice(nonce.get(NONCE_LEN - explicit.len()..)?);
            let nonce = Nonce::assume_unique_for_key(nonce);
            self.key
                .seal_in_place_separate_tag(nonce, Aad::from(aad), plaintext)
        };
        tag_place.copy_from_slice(tag.ok()?.as_ref());
        self.sequence = self.sequence.checked_add(1)?;
        Some(total)
    }

    /// Checks the header of a record alone, so that nobody waits for the rest of something that is not TLS.
    pub(crate) fn check(&self, [kind, major, _, high, low]: [u8; HEADER]) -> Result<(), Fatal> {
        let known = match self.form {
            Form::Tls13 => kind == content::DATA,
            _ => matches!(kind, content::ALERT | content::HANDSHAKE | content::DATA),
        };
        if !known || major != 3 {
            return Err(Fatal(alert::UNEXPECTED_MESSAGE));
        }
        let longest = MAX_PLAINTEXT + if self.form == Form::Tls13 { 256 } else { 2048 };
        if usize::from(u16::from_be_bytes([high, low])) > longest {
            return Err(Fatal(alert::RECORD_OVERFLOW));
        }
        Ok(())
    }

    /// Opens the payload of a record in place, after [`Self::check`] has accepted its header. Returns the content type,
    /// and the range of the content in `payload`.
    pub(crate) fn open(
        &mut self,
        header: [u8; HEADER],
        payload: &mut [u8],
    ) -> Result<(u8, Range<usize>), Fatal> {
        const BAD: Fatal = Fatal(alert::BAD_RECORD_MAC);
        let [outer, ..] = header;
        let next = self
            .sequence
            .checked_add(1)
            .ok_or(Fatal(alert::INTERNAL_ERROR))?;
        if self.form == Form::Tls13 {
            let nonce = Nonce::assume_unique_for_key(self.nonce());
            let opened = self.key.open_in_place(nonce, Aad::from(header), payload);
            let inner = opened.map_err(|_| BAD)?;
            self.sequence = next;
            // The inner plaintext includes the content type and padding (RFC 8446 section 5.4).
            if inner.len() > MAX_PLAINTEXT + 1 {
                return Err(Fatal(alert::RECORD_OVERFLOW));
            }
            // Padding of zeros follows the content type, so the last byte that is not zero is the content type.
            let last = inner.iter().rposition(|byte| *byte != 0);
            let last = last.ok_or(Fatal(alert::UNEXPECTED_MESSAGE))?;
            let kind = inner.get(last).copied().ok_or(BAD)?;
            return Ok((kind, 0..last));
        }
        let explicit = self.explicit();
        let length = payload.len().checked_sub(explicit + TAG).ok_or(BAD)?;
        if length > MAX_PLAINTEXT {
            return Err(Fatal(alert::RECORD_OVERFLOW));
        }
        let aad = self.aad12(outer, u16::try_from(length).map_err(|_| BAD)?);
        let (carried, sealed) = payload.split_at_mut_checked(explicit).ok_or(BAD)?;
        let mut nonce = self.nonce();
        // This is empty for forms without an explicit nonce. The peer chooses it freely (RFC 5288 section 3).
        nonce
            .get_mut(NONCE_LEN - explicit..)
            .ok_or(BAD)?
            .copy_from_slice(carried);
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key
            .open_in_place(nonce, Aad::from(aad), sealed)
            .map_err(|_| BAD)?;
        self.sequence = next;
        Ok((outer, explicit..explicit + length))
    }

    fn explicit(&self) -> usize {
        if self.form == Form::Tls12Gcm {
            EXPLICIT_NONCE
        } else {
            0
        }
    }

    /// The IV xor the sequence number. It is unique for a key, because the sequence number never repeats.
    fn nonce(&self) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        for (byte, count) in nonce.iter_mut().rev().zip(self.sequence.to_le_bytes()) {
            *byte ^= count;
        }
        nonce
    }

    fn aad12(&self, kind: u8, length: u16) -> [u8; 13] {
        let mut aad = [0; 13];
        let parts: [&[u8]; 3] = [
            &self.sequence.to_be_bytes(),
            &[kind, 3, 3],
            &length.to_be_bytes(),
        ];
        for (place, byte) in aad.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        aad
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::cipher::{AeadKey, Iv};

    use super::*;

    fn keys() -> Keys {
        let secrets = ConnectionTrafficSecrets::Aes256Gcm {
            key: AeadKey::from([7; 32]),
            iv: Iv::copy(&[9; NONCE_LEN]),
        };
        Keys::new(ProtocolVersion::TLSv1_3, (0, secrets)).unwrap()
    }

    #[test]
    fn padding_counts_towards_the_length_of_a_record() {
        // The content type that `seal` appends is the last byte of padding here.
        for (length, opened) in [
            (MAX_PLAINTEXT, Ok((content::DATA, 0..2))),
            (MAX_PLAINTEXT + 1, Err(Fatal(alert::RECORD_OVERFLOW))),
        ] {
            let mut sealing = keys();
            let mut record = vec![0; sealing.head() + length + sealing.tail()];
            record[HEADER..HEADER + 3].copy_from_slice(&[b'h', b'i', content::DATA]);
            sealing.seal(0, &mut record, length).unwrap();
            let (header, payload) = record.split_first_chunk_mut::<HEADER>().unwrap();
            assert_eq!(keys().check(*header), Ok(()));
            assert_eq!(keys().open(*header, payload), opened, "{length}");
        }
    }
}
