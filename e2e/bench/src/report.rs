//! Medians, ratios and goals as markdown, and every figure as JSON.

use std::fmt::Write as _;

use crate::measure::Sample;
use crate::metric::{Goal, Group, Metric};
use crate::peers::Peer;

/// A median and whether only noisy figures went into it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Median {
    value: f64,
    noisy: bool,
}

/// The tables of the groups measured.
pub(crate) fn markdown(samples: &[Sample]) -> String {
    let mut text = String::new();
    for group in [Group::Passthrough, Group::Terminate, Group::Hosts] {
        let mut peers: Vec<Peer> = Vec::new();
        for sample in samples.iter().filter(|sample| sample.group == group) {
            if !peers.contains(&sample.peer) {
                peers.push(sample.peer);
            }
        }
        if !peers.is_empty() {
            table(&mut text, samples, group, &peers);
            goals(&mut text, samples, group);
        }
    }
    text
}

fn table(text: &mut String, samples: &[Sample], group: Group, peers: &[Peer]) {
    let _ = writeln!(text, "### {group:?}\n");
    // Metrics down, peers across: fifteen columns would not fit a page.
    let _ = write!(text, "| |");
    for peer in peers {
        let _ = write!(text, " {} |", peer.name());
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(peers.len()));
    for metric in group.metrics() {
        let _ = write!(text, "| {} |", metric.title());
        let base = median(samples, group, Peer::Haproxy, *metric);
        for peer in peers {
            let _ = write!(
                text,
                " {} |",
                cell(median(samples, group, *peer, *metric), base, *metric)
            );
        }
        text.push('\n');
    }
    text.push('\n');
}

fn cell(median: Option<Median>, base: Option<Median>, metric: Metric) -> String {
    let Some(median) = median else {
        return "–".to_owned();
    };
    let mark = if median.noisy { "~" } else { "" };
    let value = format!("{mark}{:.*}", metric.decimals(), median.value);
    match base {
        Some(base) if metric.has_ratio() && base.value.abs() > f64::EPSILON => {
            format!("{value} ({:.2})", median.value / base.value)
        }
        _ => value,
    }
}

fn goals(text: &mut String, samples: &[Sample], group: Group) {
    let mut lines = String::new();
    for (metric, goal) in group.goals() {
        for ours in [Peer::Ours, Peer::OursQuiet] {
            let Some(value) = median(samples, group, ours, metric) else {
                continue;
            };
            let at = |peer| median(samples, group, peer, metric).map(|median| (peer, median.value));
            let (against, base, bound) = match goal {
                Goal::AtMost(bound) => ("–".to_owned(), None, bound),
                Goal::Of(peer, bound) => {
                    let Some((peer, base)) = at(peer) else {
                        continue;
                    };
                    (peer.name().to_owned(), Some(base), bound)
                }
                Goal::OfBest(bound) => {
                    let best = [Peer::Haproxy, Peer::HaproxyNext, Peer::Envoy]
                        .into_iter()
                        .filter_map(at)
                        .min_by(|one, other| one.1.total_cmp(&other.1));
                    let Some((peer, base)) = best else { continue };
                    (peer.name().to_owned(), Some(base), bound)
                }
            };
            let figure = base.map_or(value.value, |base| value.value / base);
            let verdict = if figure <= bound { "met" } else { "**missed**" };
            let _ = writeln!(
                lines,
                "| {} | {} | {against} | {figure:.2} | ≤ {bound} | {verdict}{} |",
                ours.name(),
                metric.title(),
                if value.noisy { " (noisy)" } else { "" },
            );
        }
    }
    if !lines.is_empty() {
        let _ = writeln!(
            text,
            "| | row | against | figure or ratio | goal | |\n|---|---|---|---|---|---|\n{lines}"
        );
    }
}

/// Of the quiet figures; of all if none is quiet.
fn median(samples: &[Sample], group: Group, peer: Peer, metric: Metric) -> Option<Median> {
    let of = |quiet_only: bool| {
        let mut values: Vec<f64> = samples
            .iter()
            .filter(|sample| (sample.group, sample.peer, sample.metric) == (group, peer, metric))
            .filter(|sample| sample.quiet || !quiet_only)
            .map(|sample| sample.value)
            .collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (mut values, noisy) = (of(true), false);
    let noisy = if values.is_empty() {
        values = of(false);
        true
    } else {
        noisy
    };
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    let value = if values.len() % 2 == 0 {
        f64::midpoint(*values.get(middle - 1)?, upper)
    } else {
        upper
    };
    Some(Median { value, noisy })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(peer: Peer, value: f64, quiet: bool) -> Sample {
        Sample {
            group: Group::Passthrough,
            peer,
            metric: Metric::CpuPerGb1,
            round: 1,
            value,
            foreign: 0.0,
            quiet,
        }
    }

    #[test]
    fn noisy_figures_count_only_where_there_is_no_quiet_one() {
        let mut samples = vec![sample(Peer::Ours, 9.0, false)];
        let get = |samples: &[Sample]| {
            median(samples, Group::Passthrough, Peer::Ours, Metric::CpuPerGb1).unwrap()
        };
        assert_eq!(
            get(&samples),
            Median {
                value: 9.0,
                noisy: true
            }
        );
        samples.extend([sample(Peer::Ours, 1.0, true), sample(Peer::Ours, 2.0, true)]);
        assert_eq!(
            get(&samples),
            Median {
                value: 1.5,
                noisy: false
            }
        );
    }

    #[test]
    fn tables_carry_ratios_and_verdicts() {
        let samples = [
            sample(Peer::Haproxy, 0.8, true),
            sample(Peer::HaproxySplice, 0.2, true),
            sample(Peer::Ours, 0.12, true),
        ];
        let text = markdown(&samples);
        assert!(
            text.contains("| CPU s/GB, 1 conn | 0.800 (1.00) | 0.200 (0.25) | 0.120 (0.15) |"),
            "{text}"
        );
        assert!(
            text.contains("| Vestibule | CPU s/GB, 1 conn | HAProxy | 0.15 | ≤ 0.2 | met |"),
            "{text}"
        );
        assert!(
            text.contains("HAProxy, splice on | 0.60 | ≤ 0.5 | **missed** |"),
            "{text}"
        );
    }
}
