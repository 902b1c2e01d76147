//! Names and label values of the Services. They are bounded in length. What has to be changed or cut
//! gets a hash, so different names stay different.

use sha2::Digest as _;
use vestibule_model::key::ObjectName;

/// Longest name of a Service, and longest value of a label.
const MAX: usize = 63;
/// Hexadecimal digits of a hash in a name.
const HASH: usize = 10;

/// Name of a Gateway's front: `<release>-gw-<hash of the UID>`. The release is cut if the name would
/// be too long.
pub(super) fn front(release: &str, uid: &str) -> String {
    const INFIX: &str = "-gw-";
    let release = cut(release, MAX - INFIX.len() - HASH);
    format!("{release}{INFIX}{}", hash(uid))
}

/// Name of a Gateway's alias. It is the Gateway's own name if a Service may have that name, and
/// otherwise what fits of it, with a hash of it.
pub(super) fn alias(gateway: &ObjectName) -> String {
    let name = &*gateway.name;
    if is_label(name) {
        return name.to_owned();
    }
    let mut text = name.replace('.', "-");
    if !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        text.insert_str(0, "gw-");
    }
    with_hash(&text, name)
}

/// Value of the label `gateway.networking.k8s.io/gateway-name`. It is the Gateway's name, or what
/// fits of it, with a hash of it. (The name may have 253 characters.)
pub(super) fn label(name: &str) -> String {
    if name.len() <= MAX {
        name.to_owned()
    } else {
        with_hash(name, name)
    }
}

/// Whether it is an RFC 1035 label, as the name of a Service has to be.
fn is_label(name: &str) -> bool {
    name.len() <= MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn with_hash(text: &str, hashed: &str) -> String {
    format!("{}-{}", cut(text, MAX - 1 - HASH), hash(hashed))
}

/// The first `max` characters at most, without a separator at the end.
fn cut(text: &str, max: usize) -> &str {
    text.get(..max)
        .unwrap_or(text)
        .trim_end_matches(['-', '.', '_'])
}

/// The first hexadecimal digits of the text's SHA-256.
fn hash(text: &str) -> String {
    use std::fmt::Write as _;

    let digest = sha2::Sha256::digest(text.as_bytes());
    let mut hex = String::with_capacity(HASH);
    for byte in digest.iter().take(HASH / 2) {
        // Writing to a `String` never fails.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fronts_are_unique_by_uid_and_fit() {
        let uid = "6a5e0f3e-2f0e-4f9c-9d35-8f1f0f6f7a11";
        assert_eq!(front("vestibule", uid), "vestibule-gw-27eb6e3213");
        let long = "r".repeat(53);
        assert_eq!(front(&long, uid).len(), 63);
        assert_ne!(front("vestibule", uid), front("vestibule", "another"));
    }

    #[test]
    fn aliases_are_the_gateways_names_where_a_service_may_be_called_so() {
        let alias = |name: &str| alias(&ObjectName::new("ns", name));
        assert_eq!(alias("shared"), "shared");
        for name in ["a.b", "1st", &"a".repeat(64), &"a.".repeat(126)] {
            let alias = alias(name);
            assert!(is_label(&alias), "{name}: {alias}");
            assert_ne!(alias, name);
        }
        assert_ne!(alias("a.b"), alias("a-b"));
        assert_ne!(alias(&"a".repeat(64)), alias(&"a".repeat(65)));
    }

    #[test]
    fn label_values_fit() {
        assert_eq!(label("shared.one"), "shared.one");
        let longest = "a".repeat(253);
        assert_eq!(label(&longest).len(), 63);
        assert_ne!(label(&longest), label(&"a".repeat(252)));
        // A name that is cut must not have a dot before the hyphen.
        let dotted = format!("{}.{}", "a".repeat(51), "b".repeat(60));
        assert!(label(&dotted).starts_with(&format!("{}-", "a".repeat(51))));
    }
}
