//! The page of the bench beside peers: plots of CPU and latency, and the tables.

use std::fmt::Write as _;

use crate::measure::Sample;
use crate::metric::{Figure, Metric};
use crate::peers::Peer;
use crate::plot::{self, Bar, Scale, escape};
use crate::report::{Section, Table, sections};

const RATIO: Scale = Scale {
    low: 0.1,
    high: 10.0,
    ticks: &[0.1, 0.2, 0.5, 0.9, 1.0, 2.0, 5.0, 10.0],
};
const MICROSECONDS: Scale = Scale {
    low: 10.0,
    high: 100_000.0,
    ticks: &[10.0, 30.0, 100.0, 300.0, 1_000.0, 10_000.0, 100_000.0],
};

/// The whole page; `about` says what was measured, a paragraph for each.
pub(crate) fn page(samples: &[Sample], about: &[String], failures: &[String]) -> String {
    let mut body = String::new();
    for paragraph in about {
        let _ = writeln!(body, "<p>{}</p>", escape(paragraph));
    }
    body.push_str(
        "<p>Ratios are to the best peer of a line, which has 1. The sign ~ marks a figure of which no round was quiet.</p>\n",
    );
    for section in sections(samples) {
        section_of(&mut body, &section);
    }
    if !failures.is_empty() {
        body.push_str("<h2>Not measured</h2>\n<ul>\n");
        for failure in failures {
            let _ = writeln!(body, "<li>{}</li>", escape(failure));
        }
        body.push_str("</ul>\n");
    }
    plot::page("vestibule-proxy beside its peers", &body)
}

fn section_of(body: &mut String, section: &Section<'_>) {
    let peers = section
        .peers
        .iter()
        .map(|peer| (peer.name(), colour(*peer)));
    let _ = writeln!(
        body,
        "<h2>{}</h2>\n<p>{}</p>",
        escape(&section.title()),
        plot::legend(peers)
    );
    let plots = [
        (
            "CPU of the proxy ÷ that of the best peer",
            bars(section, &[Figure::Cpu], true),
            &RATIO,
            &[1.0][..],
        ),
        (
            "Latency at a rate, µs",
            bars(section, &[Figure::P50, Figure::P99], false),
            &MICROSECONDS,
            &[],
        ),
    ];
    for (title, bars, scale, goals) in plots {
        if !bars.is_empty() {
            let plot = plot::bars(&bars, scale, goals);
            let _ = writeln!(body, "<h3>{title}</h3>\n{plot}");
        }
    }
    for table in section.tables() {
        html(body, &table);
    }
}

/// A bar for each peer on each line of these figures.
fn bars(section: &Section<'_>, figures: &[Figure], ratio: bool) -> Vec<Bar> {
    let mut bars = Vec::new();
    let metrics = section
        .metrics()
        .filter(|metric| figures.contains(&metric.figure));
    for metric in metrics {
        let base = if ratio {
            let Some((_, base)) = section.best(metric, Peer::is_rival) else {
                continue;
            };
            base
        } else {
            1.0
        };
        for peer in &section.peers {
            bars.extend(bar(section, *peer, metric, base));
        }
    }
    bars
}

fn bar(section: &Section<'_>, peer: Peer, metric: Metric, base: f64) -> Option<Bar> {
    let median = section.median(peer, metric)?;
    let mark = if median.noisy { "~" } else { "" };
    Some(Bar {
        row: metric.title(section.group),
        colour: colour(peer),
        value: median.value / base,
        text: format!("{mark}{:.*}", metric.decimals(section.group), median.value),
        bad: false,
    })
}

fn html(body: &mut String, table: &Table) {
    let line = |cells: &[String], tag: &str| {
        let cells = cells.iter().map(|cell| {
            let cell = escape(cell).replace("**", "");
            format!("<{tag}>{cell}</{tag}>")
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let _ = write!(body, "<table>\n{}", line(&table.head, "th"));
    for cells in &table.lines {
        body.push_str(&line(cells, "td"));
    }
    body.push_str("</table>\n");
}

fn colour(peer: Peer) -> &'static str {
    match peer {
        Peer::Direct => "#d1d5db",
        Peer::Ours => "#2563eb",
        Peer::OursDefault => "#60a5fa",
        Peer::OursChallenged => "#1e3a8a",
        Peer::Haproxy => "#6b7280",
        Peer::HaproxySplice => "#9ca3af",
        Peer::HaproxyNext => "#374151",
        Peer::HaproxyNextSplice => "#111827",
        Peer::Envoy => "#d97706",
        Peer::Nginx => "#16a34a",
        Peer::Hitch => "#a21caf",
        Peer::Sozu => "#0d9488",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn a_page_has_a_bar_for_each_peer_and_says_what_failed() {
        let samples = [
            sample(Peer::Haproxy, 0.8, true),
            sample(Peer::Ours, 0.2, false),
        ];
        let about = ["a <machine>".to_owned()];
        let page = page(&samples, &about, &["Envoy: it ended".to_owned()]);
        assert_eq!(page.matches("<rect x=").count(), 2);
        assert!(page.contains("~0.200") && page.contains("a &lt;machine>"));
        assert!(page.contains("<li>Envoy: it ended</li>"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(
            page.matches("<table").count(),
            page.matches("</table>").count()
        );
    }
}
