//! Decides when a certificate is renewed: within the window that the CA suggests (RFC 9773), and otherwise after two
//! thirds of its lifetime.
//!
//! Nothing of this is stored. The instant within a window is drawn from a digest of the certificate and the window, so
//! that the next leader draws the same.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::leaf::Leaf;

/// A clock that differs by less, in seconds, is taken as right, because CAs date certificates back by an hour.
const TOLERANCE: i64 = 86_400;
/// Bounds of the wait before the window is asked for again.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(24));
/// The wait before the window is asked for again if the CA does not say, or could not answer.
const ASK_AGAIN_DEFAULT: Duration = Duration::from_hours(6);

/// A window that a CA suggests, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Its start.
    pub(crate) start: i64,
    /// Its end.
    pub(crate) end: i64,
}

/// When to renew, in seconds by our clock. `issued_at` is when its order was made, by the same clock.
///
/// If our clock was far from the CA's at that time, every instant that the CA names is moved by the difference. So a
/// clock that is wrong and stays wrong renews as often as a right one.
#[must_use]
pub(crate) fn renew_at(
    leaf: &Leaf,
    issued_at: Option<i64>,
    window: Option<Window>,
    now: i64,
) -> i64 {
    let lifetime = leaf.lifetime();
    let offset = issued_at
        // A time in the future was written by a clock that has been set back since.
        .filter(|at| *at <= now.saturating_add(TOLERANCE))
        .map_or(0, |at| at.saturating_sub(leaf.not_before));
    // The tenant may have written any time, and the lowest number has no absolute value.
    let offset = if offset.unsigned_abs() > TOLERANCE.unsigned_abs() {
        offset
    } else {
        0
    };
    let latest = leaf.not_after.saturating_sub(lifetime / 10);
    let at = match window.filter(|window| window.start < window.end) {
        Some(window) => {
            let width = window.end.saturating_sub(window.start);
            let chosen = window.start.saturating_add(part(
                width,
                &[
                    &leaf.serial,
                    &window.start.to_be_bytes(),
                    &window.end.to_be_bytes(),
                ],
            ));
            chosen.min(latest)
        }
        // Renew up to a twentieth of the lifetime earlier, so that certificates issued together are not all renewed
        // together.
        None => leaf
            .not_before
            .saturating_add(lifetime / 3 * 2)
            .saturating_sub(part(lifetime / 20, &[&leaf.serial])),
    };
    at.saturating_add(offset)
}

/// The wait before the window is asked for again.
#[must_use]
pub(crate) fn ask_again(retry_after: Option<Duration>) -> Duration {
    retry_after
        .unwrap_or(ASK_AGAIN_DEFAULT)
        .clamp(ASK_AGAIN.0, ASK_AGAIN.1)
}

/// A number of 0..width that depends only on these bytes.
fn part(width: i64, seed: &[&[u8]]) -> i64 {
    let mut digest = Sha256::new();
    for bytes in seed {
        digest.update(bytes);
    }
    let digest: [u8; 32] = digest.finalize().into();
    let drawn = digest
        .first_chunk()
        .map_or(0, |first| u64::from_be_bytes(*first));
    let width = u128::try_from(width.max(0)).unwrap_or_default();
    i64::try_from((u128::from(drawn) * width) >> 64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 86_400;

    fn leaf(not_before: i64, days: i64, serial: u8) -> Leaf {
        Leaf {
            not_before,
            not_after: not_before + days * DAY,
            serial: vec![serial],
            ..Leaf::default()
        }
    }

    proptest! {
        #[test]
        fn the_instant_lies_in_the_window_and_stays(serial: u8, start in 0..60 * DAY, width in 1..5 * DAY) {
            let leaf = leaf(0, 90, serial);
            let window = Window { start, end: start + width };
            let at = renew_at(&leaf, Some(0), Some(window), 0);
            prop_assert!((window.start..window.end).contains(&at));
            prop_assert_eq!(at, renew_at(&leaf, Some(0), Some(window), 5 * DAY));
        }

        /// Whatever the clock said at the issuance, on that clock it is not due before half its life.
        #[test]
        fn a_wrong_clock_renews_no_more_often(serial: u8, days in 6..398_i64, skew in -4000 * DAY..4000 * DAY) {
            let leaf = leaf(20_000 * DAY, days, serial);
            let now = leaf.not_before + skew;
            let due = renew_at(&leaf, Some(now), None, now);
            prop_assert!(skew.abs() <= DAY || due - now >= days * DAY / 2);
            let window = Window { start: leaf.not_before + days * DAY / 3 * 2, end: leaf.not_before + days * DAY / 4 * 3 };
            prop_assert!(skew.abs() <= DAY || renew_at(&leaf, Some(now), Some(window), now) - now >= days * DAY / 2);
        }
    }

    #[test]
    fn two_thirds_of_six_days() {
        let at = renew_at(&leaf(0, 6, 1), Some(3600), None, 3600);
        assert!((4 * DAY - 6 * DAY / 20..=4 * DAY).contains(&at));
    }

    /// A tenant writes the stamp, and the CA writes everything else.
    #[test]
    fn no_number_is_too_large_or_too_small() {
        let extremes = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
        for issued_at in extremes {
            for (not_before, not_after) in [(i64::MIN, i64::MAX), (0, 90 * DAY), (i64::MAX, 0)] {
                let leaf = Leaf {
                    not_before,
                    not_after,
                    ..Leaf::default()
                };
                for (start, end) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (0, 1)] {
                    for now in extremes {
                        let window = Some(Window { start, end });
                        let _ = renew_at(&leaf, Some(issued_at), window, now);
                        let _ = renew_at(&leaf, Some(issued_at), None, now);
                    }
                }
            }
        }
        // It is renewed at once rather than never, as with every stamp that is long past.
        assert!(renew_at(&leaf(0, 90, 1), Some(i64::MIN), None, 0) < 0);
    }

    #[test]
    fn a_stamp_of_the_future_is_not_believed() {
        let leaf = leaf(0, 90, 1);
        assert!(renew_at(&leaf, Some(4000 * DAY), None, 10 * DAY) <= 60 * DAY);
    }

    #[test]
    fn a_window_that_makes_no_sense_is_none() {
        let leaf = leaf(0, 90, 1);
        let none = renew_at(&leaf, None, None, 0);
        assert_eq!(
            renew_at(&leaf, None, Some(Window { start: 7, end: 7 }), 0),
            none
        );
        let late = Window {
            start: 200 * DAY,
            end: 201 * DAY,
        };
        assert_eq!(renew_at(&leaf, None, Some(late), 0), 81 * DAY);
    }

    #[test]
    fn asked_again_within_bounds() {
        assert_eq!(ask_again(None), Duration::from_hours(6));
        assert_eq!(ask_again(Some(Duration::ZERO)), Duration::from_mins(1));
        assert_eq!(
            ask_again(Some(Duration::from_hours(240))),
            Duration::from_hours(24)
        );
    }
}
