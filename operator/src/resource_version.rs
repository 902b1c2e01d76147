//! Owns the order of versions of one object (`metadata.resourceVersion`).

/// Whether the version in a response to a write is later than the version that the watch has shown.
///
/// The response may arrive after events that the write caused, for example when a load balancer sets its address
/// quickly. If the response then replaced the later version, the address would be lost. Versions of one kind are
/// numbers that rise (KEP-5504). If they are not numbers, the version of the watch counts, since it will show every
/// later one.
pub(crate) fn is_later(response: &str, shown: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    number(response)
        .zip(number(shown))
        .is_some_and(|(response, shown)| response > shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_numbers() {
        assert!(is_later("10", "9"));
        assert!(!is_later("9", "10"));
        assert!(!is_later("9", "9"));
        // If versions are not numbers, the watch will show every later one.
        assert!(!is_later("b", "a"));
    }
}
