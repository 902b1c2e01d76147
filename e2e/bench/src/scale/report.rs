//! The table of the scale bench: a line per figure, a column per size, the goal beside it.

use std::fmt::Write as _;

use super::ScaleOutcome;
use super::part::{Edited, Round};
use super::world::{Edit, LISTENERS, Routes};

/// A line: what, a cell for each size, the goal.
struct Line {
    what: String,
    cells: Vec<String>,
    goal: String,
}

/// The table of one kind of route.
pub(crate) fn markdown(routes: Routes, namespaces: usize, outcomes: &[ScaleOutcome]) -> String {
    let mut out = format!(
        "{}s: {LISTENERS} listeners and routes for each set, {namespaces} namespaces, one Gateway\n\n| |",
        routes.kind()
    );
    for outcome in outcomes {
        let _ = write!(
            out,
            " {} sets, {} routes |",
            outcome.sets,
            outcome.sets as usize * LISTENERS
        );
    }
    out.push_str(" Goal |\n|---|");
    out.push_str(&"---:|".repeat(outcomes.len()));
    out.push_str("---|\n");
    for line in lines(outcomes) {
        let _ = writeln!(
            out,
            "| {} | {} | {} |",
            line.what,
            line.cells.join(" | "),
            line.goal
        );
    }
    let all = outcomes
        .iter()
        .flat_map(|one| edits(one).chain(firsts(one)));
    let late: u32 = all.map(|edit| edit.late).sum();
    let foreign = outcomes
        .iter()
        .map(|outcome| outcome.foreign)
        .fold(0.0, f64::max);
    let _ = writeln!(
        out,
        "\nEdits acknowledged but not served at the first request after that: {late}. Others used up to {foreign:.2} \
         cores during a round."
    );
    out
}

fn edits(outcome: &ScaleOutcome) -> impl Iterator<Item = &Edited> {
    outcome.rounds.iter().flat_map(|round| &round.edits)
}

/// Those after a pause.
fn firsts(outcome: &ScaleOutcome) -> impl Iterator<Item = &Edited> {
    outcome.rounds.iter().flat_map(|round| &round.firsts)
}

fn lines(outcomes: &[ScaleOutcome]) -> Vec<Line> {
    let mut lines = brought_in(outcomes);
    lines.extend(edited(outcomes));
    lines.extend(held(outcomes));
    lines
}

/// A line of any figure.
fn line(
    outcomes: &[ScaleOutcome],
    what: &str,
    goal: &str,
    cell: impl Fn(&ScaleOutcome) -> String,
) -> Line {
    Line {
        what: what.into(),
        cells: outcomes.iter().map(cell).collect(),
        goal: goal.into(),
    }
}

fn brought_in(outcomes: &[ScaleOutcome]) -> Vec<Line> {
    vec![
        line(outcomes, "objects, resources on the stream", "", |one| {
            format!("{}, {}", one.loaded.objects, one.loaded.resources)
        }),
        line(
            outcomes,
            "names held, HostnameClaims, certificates requested, internal ports",
            "",
            |one| {
                let loaded = &one.loaded;
                format!(
                    "{}, {}, {}, {}",
                    loaded.names, loaded.claims, loaded.requests, loaded.ports
                )
            },
        ),
        line(
            outcomes,
            "every object translated, s; turns of the queue for that",
            "",
            |one| format!("{:.2}; {}", one.loaded.translated, one.loaded.turns),
        ),
        line(outcomes, "all of them acknowledged, s", "", |one| {
            format!("{:.2}", one.loaded.acked)
        }),
        line(
            outcomes,
            "every status says Programmed=True, s",
            "",
            |one| format!("{:.2}", one.loaded.programmed),
        ),
        line(
            outcomes,
            "for that: statuses written, claims written, Secrets read",
            "",
            |one| {
                let loaded = &one.loaded;
                format!(
                    "{}, {}, {}",
                    loaded.writes, loaded.claim_writes, loaded.reads
                )
            },
        ),
        line(outcomes, "CPU for that: operator, proxy, s", "", |one| {
            let used = |[before, after]: [super::part::Used; 2]| after.cpu - before.cpu;
            format!(
                "{:.2}, {:.2}",
                used(one.loaded.operator),
                used(one.loaded.proxy)
            )
        }),
    ]
}

fn edited(outcomes: &[ScaleOutcome]) -> Vec<Line> {
    let (what, goal) = ("edit to served, p50 / p99, ms", "≤ 50 / ≤ 200");
    let acked = "edit to acknowledged, p50 / p99, ms";
    let mut lines = vec![
        edit_line(outcomes, what, None, |edit| edit.served, goal),
        ratio_line(outcomes),
        edit_line(outcomes, acked, None, |edit| edit.acked, ""),
        first_line(outcomes),
    ];
    for edit in Edit::ALL {
        let what = format!("{}: to served, p50 / p99, ms", edit.title());
        lines.push(edit_line(
            outcomes,
            &what,
            Some(edit),
            |edit| edit.served,
            "",
        ));
    }
    for edit in Edit::ALL {
        lines.push(line(
            outcomes,
            &format!("{}: bytes sent, least – most", edit.title()),
            "the same",
            |one| {
                let bytes = || {
                    edits(one)
                        .filter(|edited| edited.edit == edit)
                        .map(|edit| edit.bytes)
                };
                format!(
                    "{} – {}",
                    bytes().min().unwrap_or(0),
                    bytes().max().unwrap_or(0)
                )
            },
        ));
    }
    for edit in Edit::ALL {
        lines.push(line(
            outcomes,
            &format!("{}: statuses, claims written, most", edit.title()),
            "",
            |one| {
                let most = |of: fn(&Edited) -> u64| {
                    let edits = edits(one).filter(|edited| edited.edit == edit);
                    edits.map(of).max().unwrap_or(0)
                };
                format!("{}, {}", most(|one| one.writes), most(|one| one.claims))
            },
        ));
    }
    lines
}

fn held(outcomes: &[ScaleOutcome]) -> Vec<Line> {
    vec![
        line(
            outcomes,
            "CPU per edit, back to back: operator, proxy, ms",
            "",
            |one| {
                let per_edit = |of: fn(&Round) -> f64| {
                    let count: usize = one.rounds.iter().map(|round| round.burst).sum();
                    one.rounds.iter().map(of).sum::<f64>() * 1e3 / count.max(1) as f64
                };
                format!(
                    "{:.2}, {:.2}",
                    per_edit(|round| round.burst_operator),
                    per_edit(|round| round.burst_proxy)
                )
            },
        ),
        line(
            outcomes,
            "operator: heap, resident, most resident, MiB",
            "≤ 200 heap",
            |one| used(one.loaded.operator[1]),
        ),
        line(
            outcomes,
            "proxy: heap, resident, most resident, MiB",
            "≤ 60 resident",
            |one| used(one.loaded.proxy[1]),
        ),
        line(
            outcomes,
            "fresh proxy: process start to everything acknowledged, s",
            "≤ 2",
            |one| format!("{:.2}", one.loaded.fresh),
        ),
        line(outcomes, "fresh proxy: bytes sent, MiB", "", |one| {
            format!("{:.1}", one.loaded.fresh_bytes as f64 / 1_048_576.0)
        }),
        line(
            outcomes,
            "fresh proxy: heap, resident, most resident, MiB",
            "≤ 60 resident",
            |one| used(one.loaded.fresh_used),
        ),
        line(outcomes, "fresh proxy: CPU, s", "", |one| {
            format!("{:.2}", one.loaded.fresh_used.cpu)
        }),
    ]
}

fn used(used: super::part::Used) -> String {
    format!("{:.1}, {:.1}, {:.1}", used.heap, used.resident, used.peak)
}

fn edit_line(
    outcomes: &[ScaleOutcome],
    what: &str,
    kind: Option<Edit>,
    of: fn(&Edited) -> f64,
    goal: &str,
) -> Line {
    let cell = |one: &ScaleOutcome| {
        let figures = figures(one, kind, of);
        format!(
            "{:.2} / {:.2}",
            percentile(&figures, 50),
            percentile(&figures, 99)
        )
    };
    Line {
        what: what.into(),
        cells: outcomes.iter().map(cell).collect(),
        goal: goal.into(),
    }
}

/// Edits that are the first after a pause.
fn first_line(outcomes: &[ScaleOutcome]) -> Line {
    let cell = |one: &ScaleOutcome| {
        let mut served: Vec<f64> = firsts(one).map(|edit| edit.served).collect();
        served.sort_by(f64::total_cmp);
        let last = served.last().copied().unwrap_or(f64::NAN);
        format!("{:.2} / {last:.2}", percentile(&served, 50))
    };
    Line {
        what: "first edit after a pause to served, p50 / longest, ms".into(),
        cells: outcomes.iter().map(cell).collect(),
        goal: String::new(),
    }
}

/// How much longer an edit takes than at the first size.
fn ratio_line(outcomes: &[ScaleOutcome]) -> Line {
    let at = |one: &ScaleOutcome, part| percentile(&figures(one, None, |edit| edit.served), part);
    let cell = |one: &ScaleOutcome| {
        let ratio = |part| at(one, part) / outcomes.first().map_or(1.0, |first| at(first, part));
        format!("{:.2} / {:.2}", ratio(50), ratio(99))
    };
    Line {
        what: "the same, ratio to the first size".into(),
        cells: outcomes.iter().map(cell).collect(),
        goal: "≤ 1.2 / ≤ 1.5".into(),
    }
}

fn figures(outcome: &ScaleOutcome, kind: Option<Edit>, of: fn(&Edited) -> f64) -> Vec<f64> {
    let mut figures: Vec<f64> = edits(outcome)
        .filter(|edited| kind.is_none_or(|kind| kind == edited.edit))
        .map(of)
        .collect();
    figures.sort_by(f64::total_cmp);
    figures
}

/// The smallest figure that so many percent do not exceed; of sorted ones.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let figures: Vec<f64> = (1..=200).map(f64::from).collect();
        assert!((percentile(&figures, 50) - 100.0).abs() < 1e-9);
        assert!((percentile(&figures, 99) - 198.0).abs() < 1e-9);
        assert!((percentile(&[7.0], 99) - 7.0).abs() < 1e-9);
        assert!(percentile(&[], 50).is_nan());
    }
}
