//! Whether a figure stays where it is.

use serde::Serialize;

/// Of the samples' time, what does not count: caches fill, and every tenant is met for the first time.
const WARM_UP: f64 = 0.15;
/// Growth that is none.
const SLACK: f64 = 0.1;

/// A figure over time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Trend {
    /// Median of the first quarter.
    pub(super) first: f64,
    /// Median of the last quarter.
    pub(super) last: f64,
    /// Growth in an hour, by least squares.
    pub(super) slope: f64,
}

impl Trend {
    /// Of pairs of seconds and a figure. `None` of too few.
    pub(super) fn of(samples: &[(f64, f64)]) -> Option<Self> {
        let end = samples.last()?.0;
        let counted: Vec<(f64, f64)> = samples
            .iter()
            .copied()
            .filter(|(at, _)| *at >= end * WARM_UP)
            .collect();
        let quarter = counted.len() / 4;
        if quarter == 0 {
            return None;
        }
        let count = counted.len() as f64;
        let mean_at = counted.iter().map(|(at, _)| at).sum::<f64>() / count;
        let mean = counted.iter().map(|(_, value)| value).sum::<f64>() / count;
        let (mut above, mut below) = (0.0, 0.0);
        for (at, value) in &counted {
            above += (at - mean_at) * (value - mean);
            below += (at - mean_at) * (at - mean_at);
        }
        Some(Self {
            first: median(counted.get(..quarter)?)?,
            last: median(counted.get(counted.len() - quarter..)?)?,
            slope: above / below.max(f64::EPSILON) * 3600.0,
        })
    }

    /// Whether the last quarter is not above the first one, but for a tenth and `room`.
    pub(super) fn is_flat(&self, room: f64) -> bool {
        self.last <= self.first * (1.0 + SLACK) + room
    }
}

fn median(samples: &[(f64, f64)]) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().map(|(_, value)| *value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..100)
            .map(|n| f64::from(n) * 10.0)
            .map(|at| (at, value(at)))
            .collect()
    }

    #[test]
    fn trend_shows_growth_and_ignores_warming_up() {
        let leak = Trend::of(&samples(|at| 50.0 + at / 20.0)).unwrap();
        assert!((leak.slope - 180.0).abs() < 1e-6, "{leak:?}");
        assert!(!leak.is_flat(5.0));
        let warm = Trend::of(&samples(|at| 50.0 + at.min(100.0))).unwrap();
        assert!(warm.slope.abs() < 1e-6 && warm.is_flat(0.0), "{warm:?}");
        assert_eq!(Trend::of(&[(1.0, 1.0)]), None);
    }
}
