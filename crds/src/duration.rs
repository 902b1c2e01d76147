//! Durations in the form of Gateway API (GEP-2257): up to four numbers, each with a unit, such as `1h30m`.

use std::time::Duration;

/// This form as a regular expression, for schemas.
pub(crate) const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";
/// Most numbers in one text.
const MAX_PARTS: usize = 4;
/// Most digits of a number.
const MAX_DIGITS: usize = 5;

/// Reads a duration; `None` if the text is not one.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut millis = 0u64;
    for part in 0..=MAX_PARTS {
        if rest.is_empty() {
            return (part > 0).then(|| Duration::from_millis(millis));
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = rest.split_at_checked(digits)?;
        if digits > MAX_DIGITS {
            return None;
        }
        let number: u64 = number.parse().ok()?;
        let letters = unit.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = unit.split_at_checked(letters)?;
        let scale = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        // This cannot overflow: it is at most four times 99,999 hours.
        millis += number * scale;
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        for (text, millis) in [
            ("0s", 0),
            ("0h", 0),
            ("500ms", 500),
            ("10s", 10_000),
            ("1h30m", 5_400_000),
            ("1h1m1s1ms", 3_661_001),
            ("10s30m1h", 5_410_000),
            ("99999h99999h99999h99999h", 4 * 99_999 * 3_600_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_none() {
        for text in [
            "",
            "1",
            "s",
            "1.5s",
            "-1s",
            "1d",
            "1 s",
            "100000s",
            "1us",
            "1sm",
            "1s1s1s1s1s",
            "1s ",
            "1é",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
