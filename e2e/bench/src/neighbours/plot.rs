//! A page with two plots: how much later answers came beside each neighbour, and how much memory each proxy had.

use std::fmt::Write as _;

use super::proxies::Proxy;
use super::report::{FLOOD_GOAL, GOAL, middle};
use super::{Figures, Rates, Row};

/// Sizes in pixels.
const LABELS: f64 = 260.0;
const WIDTH: f64 = 640.0;
const BAR: f64 = 14.0;
const GAP: f64 = 14.0;
const TOP: f64 = 30.0;

/// A logarithmic scale.
struct Scale {
    low: f64,
    high: f64,
    ticks: &'static [f64],
}

const GROWTH: Scale = Scale {
    low: 0.5,
    high: 1_000.0,
    ticks: &[0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1_000.0],
};
const MEMORY: Scale = Scale {
    low: 10.0,
    high: 4_000.0,
    ticks: &[10.0, 30.0, 100.0, 300.0, 1_000.0, 4_000.0],
};

impl Scale {
    fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        WIDTH * (value / self.low).ln() / (self.high / self.low).ln()
    }
}

/// One bar.
struct Bar<'a> {
    figures: &'a Figures,
    value: f64,
    text: String,
}

/// The whole page.
pub(super) fn page(all: &[Figures], rates: &Rates, machine: &str) -> String {
    let shown = middle(all);
    let growth = shown.iter().map(|figures| {
        let failed = match figures.failed() {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        Bar {
            figures,
            value: figures.worst(),
            text: format!("{:.2}{failed}", figures.worst()),
        }
    });
    let memory = shown.iter().map(|figures| {
        let megabytes = figures.peak as f64 / 1e6;
        Bar {
            figures,
            value: megabytes,
            text: format!("{megabytes:.0}"),
        }
    });
    let growth = plot(&growth.collect::<Vec<_>>(), &GROWTH, &[GOAL, FLOOD_GOAL]);
    let memory = plot(&memory.collect::<Vec<_>>(), &MEMORY, &[]);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Beside hostile neighbours</title>\n\
         <style>body{{font:14px sans-serif;margin:2em;max-width:70em}}text{{font:12px sans-serif}}\
         .vestibule{{fill:#2563eb}}.haproxy{{fill:#9ca3af}}.envoy{{fill:#d97706}}.bad{{fill:#b91c1c}}\
         .tick{{stroke:#e5e7eb}}.goal{{stroke:#16a34a;stroke-dasharray:4 3}}</style>\n\
         <h1>Beside hostile neighbours</h1>\n\
         <p>One tenant's {} requests and {} handshakes a second, {} s each time; {}. \
         Colours: {}.</p>\n\
         <h2>99th percentile beside the neighbour ÷ alone, the larger of requests and handshakes</h2>\n\
         <p>Dashed: the goals, {GOAL}, and {FLOOD_GOAL} where the neighbour needs the whole CPU. \
         Red: requests failed.</p>\n{growth}\n\
         <h2>Most memory that the proxy had, MB</h2>\n{memory}\n</html>\n",
        rates.requests,
        rates.handshakes,
        rates.seconds,
        escape(machine),
        legend(),
    )
}

fn legend() -> String {
    let all = [Proxy::Vestibule, Proxy::Haproxy, Proxy::Envoy];
    let one = |proxy: Proxy| {
        let square = "<rect width=\"12\" height=\"12\"/>";
        format!(
            "<svg width=\"12\" height=\"12\" class=\"{}\">{square}</svg> {}",
            class(proxy),
            proxy.name()
        )
    };
    all.map(one).join(", ")
}

fn class(proxy: Proxy) -> &'static str {
    match proxy {
        Proxy::Vestibule => "vestibule",
        Proxy::Haproxy => "haproxy",
        Proxy::Envoy => "envoy",
    }
}

fn plot(bars: &[Bar<'_>], scale: &Scale, goals: &[f64]) -> String {
    let mut body = String::new();
    let mut y = TOP;
    let mut last: Option<Row> = None;
    for bar in bars {
        let row = bar.figures.row;
        if last != Some(row) {
            y += GAP;
            last = Some(row);
            let _ = writeln!(
                body,
                "<text x=\"0\" y=\"{:.0}\">{}</text>",
                y + BAR - 3.0,
                escape(row.title())
            );
        }
        let width = scale.place(bar.value).max(1.0);
        let bad = if bar.figures.failed() > 0 {
            " class=\"bad\""
        } else {
            ""
        };
        let _ = writeln!(
            body,
            "<rect x=\"{LABELS}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{:.0}\" class=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\"{bad}>{}</text>",
            BAR - 2.0,
            class(bar.figures.proxy),
            LABELS + width + 4.0,
            y + BAR - 4.0,
            escape(&bar.text)
        );
        y += BAR;
    }
    let mut lines = String::new();
    for tick in scale.ticks {
        let x = LABELS + scale.place(*tick);
        let _ = writeln!(
            lines,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{y:.0}\" class=\"tick\"/>\
             <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{tick}</text>",
            TOP - 8.0
        );
    }
    for goal in goals {
        let x = LABELS + scale.place(*goal);
        let _ = writeln!(
            lines,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{y:.0}\" class=\"goal\"/>"
        );
    }
    format!(
        "<svg width=\"{:.0}\" height=\"{:.0}\">\n{lines}{body}</svg>",
        LABELS + WIDTH + 160.0,
        y + GAP
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neighbours::report::tests::figures;

    #[test]
    fn a_page_has_a_bar_for_each_proxy_and_says_what_failed() {
        let rates = Rates {
            requests: 1000.0,
            handshakes: 200.0,
            seconds: 15.0,
            idle: 10,
        };
        let page = page(&[figures(f64::INFINITY, 3, 1.0)], &rates, "a <machine>");
        assert_eq!(page.matches("<rect x=").count(), 2);
        assert!(page.contains("3 failed") && page.contains("a &lt;machine>"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }
}
