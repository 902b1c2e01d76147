//! Medians, ratios and goals as tables, which become markdown here and HTML in the page.

use std::fmt::Write as _;

use crate::goal::{Goal, goals};
use crate::measure::Sample;
use crate::metric::{Better, Group, Metric, Setting};
use crate::peers::Peer;

/// A median and whether only noisy figures went into it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    pub(crate) value: f64,
    pub(crate) noisy: bool,
}

/// Lines of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) lines: Vec<Vec<String>>,
}

/// What was measured of one group with one setting.
pub(crate) struct Section<'a> {
    pub(crate) group: Group,
    pub(crate) setting: Setting,
    pub(crate) peers: Vec<Peer>,
    samples: Vec<&'a Sample>,
}

/// All that was measured, in the order of groups.
pub(crate) fn sections(samples: &[Sample]) -> Vec<Section<'_>> {
    let mut settings: Vec<Setting> = samples.iter().map(|sample| sample.trial.setting).collect();
    settings.sort();
    settings.dedup();
    let mut sections = Vec::new();
    for setting in settings {
        for group in Group::all() {
            let of =
                |sample: &&Sample| (sample.trial.group, sample.trial.setting) == (*group, setting);
            let samples: Vec<&Sample> = samples.iter().filter(of).collect();
            let mut peers: Vec<Peer> = samples.iter().map(|sample| sample.trial.peer).collect();
            peers.sort();
            peers.dedup();
            if !peers.is_empty() {
                sections.push(Section {
                    group: *group,
                    setting,
                    peers,
                    samples,
                });
            }
        }
    }
    sections
}

/// The tables of everything that was measured.
pub(crate) fn markdown(samples: &[Sample]) -> String {
    let mut text = String::new();
    for section in sections(samples) {
        let _ = writeln!(text, "### {}\n", section.title());
        for table in section.tables() {
            table.markdown(&mut text);
        }
    }
    text
}

impl Table {
    fn markdown(&self, text: &mut String) {
        let _ = writeln!(text, "| {} |", self.head.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(self.head.len()));
        for line in &self.lines {
            let _ = writeln!(text, "| {} |", line.join(" | "));
        }
        text.push('\n');
    }
}

impl Section<'_> {
    /// Heading.
    pub(crate) fn title(&self) -> String {
        format!("{} ({})", self.group.title(), self.setting)
    }

    /// What is to be compared, what explains it, and the goals; those that have lines.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.figures(true), self.figures(false), self.goals()];
        tables.retain(|table| !table.lines.is_empty());
        tables
    }

    /// Every line that the group can have.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> {
        self.group.loads().iter().flat_map(|load| {
            load.figures().iter().map(|figure| Metric {
                load: *load,
                figure: *figure,
            })
        })
    }

    /// Metrics down, peers across: fifty columns would not fit a page.
    fn figures(&self, main: bool) -> Table {
        let names = self.peers.iter().map(|peer| peer.name().to_owned());
        let mut table = Table {
            head: std::iter::once(String::new()).chain(names).collect(),
            lines: Vec::new(),
        };
        for metric in self.metrics().filter(|metric| metric.is_main() == main) {
            let best = self.best(metric, Peer::is_rival);
            let medians: Vec<_> = self
                .peers
                .iter()
                .map(|peer| self.median(*peer, metric))
                .collect();
            if medians.iter().all(Option::is_none) {
                continue;
            }
            let cells = medians
                .into_iter()
                .map(|median| self.cell(median, best.map(|(_, best)| best), metric));
            let title = std::iter::once(metric.title(self.group));
            table.lines.push(title.chain(cells).collect());
        }
        table
    }

    fn cell(&self, median: Option<Median>, best: Option<f64>, metric: Metric) -> String {
        let Some(median) = median else {
            return "–".to_owned();
        };
        let mark = if median.noisy { "~" } else { "" };
        let value = format!("{mark}{:.*}", metric.decimals(self.group), median.value);
        match best {
            Some(best) if best > 0.0 => format!("{value} ({:.2})", median.value / best),
            _ => value,
        }
    }

    fn goals(&self) -> Table {
        let head = ["", "line", "against", "figure or ratio", "goal", ""];
        let mut table = Table {
            head: head.map(str::to_owned).to_vec(),
            lines: Vec::new(),
        };
        for (metric, goal) in goals(self.group) {
            for ours in [Peer::Ours, Peer::OursDefault] {
                let Some(value) = self.median(ours, metric) else {
                    continue;
                };
                let (base, bound) = match goal {
                    Goal::AtMost(bound) => (None, bound),
                    Goal::Of(peers, bound) => {
                        let base = self.best(metric, |peer| peers.contains(&peer));
                        let Some(base) = base else { continue };
                        (Some(base), bound)
                    }
                    Goal::OfBest(bound) => {
                        let base = self.best(metric, Peer::is_rival);
                        let Some(base) = base else { continue };
                        (Some(base), bound)
                    }
                };
                let figure = base.map_or(value.value, |(_, base)| value.value / base);
                let against = base.map_or("–", |(peer, _)| peer.name());
                let verdict = if figure <= bound { "met" } else { "**missed**" };
                table.lines.push(vec![
                    ours.name().to_owned(),
                    metric.title(self.group),
                    against.to_owned(),
                    format!("{figure:.2}"),
                    format!("≤ {bound}"),
                    format!("{verdict}{}", if value.noisy { " (noisy)" } else { "" }),
                ]);
            }
        }
        table
    }

    /// The best of these peers on a line, if more or less of it is better.
    pub(crate) fn best(&self, metric: Metric, of: impl Fn(Peer) -> bool) -> Option<(Peer, f64)> {
        let better = metric.better()?;
        let medians = self.peers.iter().filter(|peer| of(**peer));
        let medians = medians.filter_map(|peer| Some((*peer, self.median(*peer, metric)?.value)));
        medians.min_by(|one, other| match better {
            Better::Less => one.1.total_cmp(&other.1),
            Better::More => other.1.total_cmp(&one.1),
        })
    }

    /// Of the quiet figures; of all if none is quiet.
    pub(crate) fn median(&self, peer: Peer, metric: Metric) -> Option<Median> {
        let of = |quiet_only: bool| {
            let mut values: Vec<f64> = self
                .samples
                .iter()
                .filter(|sample| (sample.trial.peer, sample.metric) == (peer, metric))
                .filter(|sample| sample.quiet || !quiet_only)
                .map(|sample| sample.value)
                .collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let mut values = of(true);
        let noisy = values.is_empty();
        if noisy {
            values = of(false);
        }
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let value = if values.len().is_multiple_of(2) {
            f64::midpoint(*values.get(middle - 1)?, upper)
        } else {
            upper
        };
        Some(Median { value, noisy })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::measure::Trial;
    use crate::metric::{Figure, Load, Logging};

    pub(crate) const CPU: Metric = Metric {
        load: Load::Down1,
        figure: Figure::Cpu,
    };

    pub(crate) fn sample(peer: Peer, value: f64, quiet: bool) -> Sample {
        Sample {
            trial: Trial {
                group: Group::Passthrough,
                peer,
                setting: Setting {
                    workers: 1,
                    logging: Logging::Off,
                },
                round: 1,
            },
            metric: CPU,
            value,
            foreign: 0.0,
            quiet,
        }
    }

    #[test]
    fn noisy_figures_count_only_where_there_is_no_quiet_one() {
        let mut samples = vec![sample(Peer::Ours, 9.0, false)];
        let get = |samples: &[Sample]| sections(samples)[0].median(Peer::Ours, CPU).unwrap();
        let noisy = Median {
            value: 9.0,
            noisy: true,
        };
        assert_eq!(get(&samples), noisy);
        samples.extend([sample(Peer::Ours, 1.0, true), sample(Peer::Ours, 2.0, true)]);
        let quiet = Median {
            value: 1.5,
            noisy: false,
        };
        assert_eq!(get(&samples), quiet);
    }

    #[test]
    fn tables_carry_ratios_to_the_best_of_all_peers_and_verdicts() {
        let samples = [
            sample(Peer::Haproxy, 0.8, true),
            sample(Peer::HaproxySplice, 0.25, true),
            sample(Peer::Nginx, 0.2, true),
            sample(Peer::Ours, 0.16, true),
        ];
        let text = markdown(&samples);
        let line = "| download, 1 connection: CPU s/GB | 0.160 (0.80) | 0.800 (4.00) | 0.250 (1.25) | 0.200 (1.00) |";
        assert!(text.contains(line), "{text}");
        // This goal is against splicing, whoever else is better.
        let line = "| HAProxy, splice on | 0.64 | ≤ 0.6 | **missed** |";
        assert!(text.contains(line), "{text}");
        let best = sections(&samples)[0].best(CPU, Peer::is_rival);
        assert_eq!(best, Some((Peer::Nginx, 0.2)));
    }

    #[test]
    fn settings_have_tables_of_their_own() {
        let mut logged = sample(Peer::Ours, 1.0, true);
        logged.trial.setting.logging = Logging::File;
        let samples = [sample(Peer::Ours, 2.0, true), logged];
        let titles: Vec<String> = sections(&samples).iter().map(Section::title).collect();
        let expected = [
            "TLS passed through (one worker, no log)",
            "TLS passed through (one worker, log to a file)",
        ];
        assert_eq!(titles, expected);
    }
}
