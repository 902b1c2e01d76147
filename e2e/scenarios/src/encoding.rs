//! base64, as Secrets have it.

use anyhow::Result;
use k8s_openapi::ByteString;
use serde_json::Value;

/// Bytes as base64.
pub(crate) fn base64(bytes: &[u8]) -> String {
    match serde_json::to_value(ByteString(bytes.to_vec())) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}

/// The bytes that base64 stands for.
pub(crate) fn from_base64(text: &str) -> Result<Vec<u8>> {
    let bytes: ByteString = serde_json::from_value(text.into())?;
    Ok(bytes.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_goes_both_ways() {
        assert_eq!(base64(b"\x00\xffa"), "AP9h");
        assert_eq!(from_base64("AP9h").unwrap(), b"\x00\xffa");
        assert!(from_base64("!").is_err());
    }
}
