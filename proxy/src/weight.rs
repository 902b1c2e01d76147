//! Owns the choice by weight: which of several backends takes the next connection or request.

/// Chooses one of `all` by its share of the `total` weight, with the upper half of `random`. It is `None` if none of
/// them has any weight.
pub(crate) fn by_weight<T>(
    all: &[T],
    weight: impl Fn(&T) -> u32,
    total: u64,
    random: u64,
) -> Option<&T> {
    if total == 0 {
        return None;
    }
    let mut at = scale(random >> 32, total);
    all.iter().find(|candidate| {
        let weight = u64::from(weight(candidate));
        let here = at < weight;
        at = at.saturating_sub(weight);
        here
    })
}

/// Maps 32 random bits evenly to `0..bound`, or 0 if `bound` is 0.
pub(crate) fn scale(random32: u64, bound: u64) -> u64 {
    u64::try_from((u128::from(random32) * u128::from(bound)) >> 32).unwrap_or(0)
}
