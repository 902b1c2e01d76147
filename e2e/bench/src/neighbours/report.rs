//! The table, and what is held against the goals.

use std::fmt::Write as _;

use super::proxies::Proxy;
use super::steady::Times;
use super::{Figures, Row};

/// Growth of the 99th percentile that a neighbour may cause.
pub(super) const GOAL: f64 = 1.2;
/// The same of one who needs the whole CPU.
pub(super) const FLOOD_GOAL: f64 = 2.0;
/// Cores of CPU from which on the proxy has none to spare.
const WHOLE: f64 = 0.95;

impl Figures {
    /// Growth of the 99th percentile of requests, and of handshakes.
    pub(super) fn growth(&self) -> [f64; 2] {
        let growth = |alone: Times, beside: Times| {
            if alone.p99 > 0.0 && beside.p99 > 0.0 {
                beside.p99 / alone.p99
            } else {
                f64::INFINITY
            }
        };
        [
            growth(self.alone.requests, self.beside.requests),
            growth(self.alone.handshakes, self.beside.handshakes),
        ]
    }

    /// The larger of the two.
    pub(super) fn worst(&self) -> f64 {
        let [requests, handshakes] = self.growth();
        requests.max(handshakes)
    }

    pub(super) fn failed(&self) -> usize {
        self.beside.requests.failed + self.beside.handshakes.failed
    }

    pub(super) fn goal(&self) -> f64 {
        if self.cpu >= WHOLE { FLOOD_GOAL } else { GOAL }
    }

    pub(super) fn is_met(&self) -> bool {
        self.failed() == 0 && self.worst() <= self.goal() && self.survived
    }
}

/// Of each row and proxy, the round in the middle by growth.
pub(super) fn middle(all: &[Figures]) -> Vec<&Figures> {
    let mut keys: Vec<(Row, Proxy)> = Vec::new();
    for figures in all {
        if !keys.contains(&(figures.row, figures.proxy)) {
            keys.push((figures.row, figures.proxy));
        }
    }
    let of = |(row, proxy): (Row, Proxy)| {
        let is_of = |figures: &&Figures| (figures.row, figures.proxy) == (row, proxy);
        let mut rounds: Vec<&Figures> = all.iter().filter(is_of).collect();
        rounds.sort_by(|one, other| one.worst().total_cmp(&other.worst()));
        rounds.get((rounds.len() - 1) / 2).copied()
    };
    keys.into_iter().filter_map(of).collect()
}

/// The tables.
pub(super) fn markdown(all: &[Figures]) -> String {
    let mut text = String::from(
        "| Beside | Proxy | Requests: p50, p99, p99.9 ms, alone → beside | ÷ | Handshakes, likewise | ÷ | Failed | \
         CPU | Peak memory, MB | The attack | Goal |\n|---|---|---|---:|---|---:|---:|---:|---:|---|---|\n",
    );
    for figures in middle(all) {
        let [requests, handshakes] = figures.growth();
        let goal = if figures.proxy == Proxy::Vestibule {
            let verdict = if figures.is_met() {
                "met"
            } else {
                "**missed**"
            };
            format!("≤ {}: {verdict}", figures.goal())
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} → {} | {requests:.2} | {} → {} | {handshakes:.2} | {}{} | {:.2} | {:.0} (before {:.0}) | \
             {} | {goal} |",
            figures.row.title(),
            figures.proxy.name(),
            times(figures.alone.requests),
            times(figures.beside.requests),
            times(figures.alone.handshakes),
            times(figures.beside.handshakes),
            figures.failed(),
            if figures.survived {
                ""
            } else {
                ", the proxy ended"
            },
            figures.cpu,
            figures.peak as f64 / 1e6,
            figures.resident as f64 / 1e6,
            attack(figures),
        );
    }
    text.push('\n');
    for figures in middle(all) {
        for (failure, count) in figures.beside.failures.iter().take(5) {
            let (row, proxy) = (figures.row.title(), figures.proxy.name());
            let _ = writeln!(text, "- beside {row}, {proxy}: {count} × {failure}");
        }
        let late = figures.beside.late.max(figures.alone.late);
        if late > 5.0 || figures.foreign > 0.1 {
            let _ = writeln!(
                text,
                "- noisy: beside {}, {}: clients woke up {late:.1} ms late, others used {:.2} cores",
                figures.row.title(),
                figures.proxy.name(),
                figures.foreign
            );
        }
    }
    text
}

fn times(times: Times) -> String {
    format!("{:.1}, {:.1}, {:.1}", times.p50, times.p99, times.p999)
}

/// The attack, and its result.
fn attack(figures: &Figures) -> String {
    let done = &figures.attack;
    match figures.row {
        Row::Bulk => format!(
            "{:.1} GB, {} of {} connections ended",
            done.bytes as f64 / 1e9,
            done.ended,
            done.opened
        ),
        Row::Handshakes | Row::Tunnels | Row::Rsa => {
            format!("{} hellos answered, {} refused", done.turns, done.ended)
        }
        Row::Idle | Row::SlowRead => {
            format!("{} stood; {} ended", figures.standing, done.ended)
        }
        Row::RapidReset => format!(
            "{} × 100 requests, {} connections ended",
            done.turns, done.ended
        ),
        Row::Regex | Row::RegexLargest => format!("{} answers, {} ended", done.turns, done.ended),
        Row::SlowHellos => format!("{} opened, {} ended", done.opened, done.ended),
        Row::LogPipe => "–".to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::neighbours::attack::Done;
    use crate::neighbours::steady::SteadyOutcome;

    pub(in crate::neighbours) fn figures(p99: f64, failed: usize, cpu: f64) -> Figures {
        let times = |p99, failed| Times {
            count: 100,
            failed,
            p50: 0.5,
            p99,
            p999: 9.0,
        };
        let outcome = |p99, failed| SteadyOutcome {
            requests: times(p99, failed),
            handshakes: times(1.0, 0),
            ..SteadyOutcome::default()
        };
        Figures {
            row: Row::Rsa,
            proxy: Proxy::Vestibule,
            round: 1,
            alone: outcome(1.0, 0),
            beside: outcome(p99, failed),
            cpu,
            foreign: 0.0,
            resident: 30_000_000,
            peak: 40_000_000,
            standing: 0,
            attack: Done::default(),
            survived: true,
        }
    }

    #[test]
    fn the_goal_depends_on_whether_cpu_is_left() {
        assert!(figures(1.1, 0, 0.5).is_met());
        assert!(!figures(1.3, 0, 0.5).is_met());
        assert!(figures(1.9, 0, 0.99).is_met());
        assert!(!figures(2.1, 0, 0.99).is_met());
        assert!(!figures(1.0, 1, 0.5).is_met());
    }

    #[test]
    fn the_round_in_the_middle_is_shown() {
        let all = [
            figures(3.0, 0, 0.5),
            figures(1.1, 0, 0.5),
            figures(1.2, 0, 0.5),
        ];
        let text = markdown(&all);
        let row = text.lines().find(|line| line.contains("RSA")).expect(&text);
        assert!(
            row.contains("| 1.20 |") && row.contains("≤ 1.2: met"),
            "{row}"
        );
    }
}
