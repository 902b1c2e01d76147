//! Reads the claims of a token without verifying them.

use serde::Deserialize;

/// The claims of a ServiceAccount's token (a JWT) that are used here.
#[derive(Debug, Deserialize)]
pub(super) struct TokenClaims {
    /// The user.
    pub(super) sub: String,
    /// When it expires, in seconds since the Unix epoch.
    pub(super) exp: i64,
    aud: Audiences,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
}

impl TokenClaims {
    /// Reads the claims. Returns `None` if `token` is not a JWT with these claims. The signature is not checked.
    pub(super) fn read(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        serde_json::from_slice(&decode(claims)?).ok()
    }

    pub(super) fn is_for(&self, audience: &str) -> bool {
        match &self.aud {
            Audiences::One(one) => one == audience,
            Audiences::Many(many) => many.iter().any(|one| one == audience),
        }
    }
}

/// Decodes base64 with the URL-safe alphabet, without padding (RFC 4648, section 5).
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for character in text.bytes() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
pub(super) fn encode(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            let index = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap();
            text.push(char::from(ALPHABET[index]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_claims_of_a_kubelets_token() {
        let claims = r#"{"aud":["vestibule-config"],"exp":1790000000,"iat":1,"iss":"x",
            "kubernetes.io":{"namespace":"ns","pod":{"name":"p","uid":"u"}},
            "sub":"system:serviceaccount:ns:r-proxy"}"#;
        let token = format!("aGVhZA.{}.c2ln", encode(claims.as_bytes()));
        let claims = TokenClaims::read(&token).unwrap();
        assert_eq!(claims.sub, "system:serviceaccount:ns:r-proxy");
        assert_eq!(claims.exp, 1_790_000_000);
        assert!(claims.is_for("vestibule-config"));
        assert!(!claims.is_for("vestibule"));
    }

    #[test]
    fn token_claims_are_none_for_text_that_is_no_token() {
        for text in [
            "",
            ".",
            "..",
            "a.b.c",
            "a.b.c.d",
            "a.e30.c",
            "a.====.c",
            "a.bm90anNvbg.c",
        ] {
            assert!(TokenClaims::read(text).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_taken(text in ".{0,200}") {
            let _ = TokenClaims::read(&text);
        }
    }
}
