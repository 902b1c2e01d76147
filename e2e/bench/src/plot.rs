//! Bars in SVG on a logarithmic scale, and the frame of a page that has them.

use std::fmt::Write as _;

/// Sizes in pixels.
const LABELS: f64 = 300.0;
const WIDTH: f64 = 640.0;
const BAR: f64 = 14.0;
const GAP: f64 = 14.0;
const TOP: f64 = 30.0;

/// A logarithmic scale.
pub(crate) struct Scale {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: &'static [f64],
}

impl Scale {
    fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        WIDTH * (value / self.low).ln() / (self.high / self.low).ln()
    }
}

/// One bar. Those of a row come one after the other.
pub(crate) struct Bar {
    /// What the row is of.
    pub(crate) row: String,
    /// Its colour.
    pub(crate) colour: &'static str,
    /// Its length.
    pub(crate) value: f64,
    /// What is beside it.
    pub(crate) text: String,
    /// Whether that is in red.
    pub(crate) bad: bool,
}

/// The bars, and dashed lines at the goals.
pub(crate) fn bars(bars: &[Bar], scale: &Scale, goals: &[f64]) -> String {
    let mut body = String::new();
    let mut y = TOP;
    let mut last: Option<&str> = None;
    for bar in bars {
        if last != Some(&bar.row) {
            y += GAP;
            last = Some(&bar.row);
            let _ = writeln!(
                body,
                "<text x=\"0\" y=\"{:.0}\">{}</text>",
                y + BAR - 3.0,
                escape(&bar.row)
            );
        }
        let width = scale.place(bar.value).max(1.0);
        let bad = if bar.bad { " class=\"bad\"" } else { "" };
        let _ = writeln!(
            body,
            "<rect x=\"{LABELS}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{:.0}\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\"{bad}>{}</text>",
            BAR - 2.0,
            bar.colour,
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
        LABELS + WIDTH + 200.0,
        y + GAP
    )
}

/// Names and their colours.
pub(crate) fn legend(all: impl IntoIterator<Item = (&'static str, &'static str)>) -> String {
    let one = |(name, colour)| {
        format!(
            "<svg width=\"12\" height=\"12\"><rect width=\"12\" height=\"12\" fill=\"{colour}\"/></svg> {}",
            escape(name)
        )
    };
    all.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A whole page.
pub(crate) fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font:14px sans-serif;margin:2em;max-width:90em}}text{{font:12px sans-serif}}\
         .bad{{fill:#b91c1c}}.tick{{stroke:#e5e7eb}}.goal{{stroke:#16a34a;stroke-dasharray:4 3}}\
         table{{border-collapse:collapse;margin:1em 0}}td,th{{border:1px solid #e5e7eb;padding:2px 8px;text-align:right}}\
         td:first-child,th:first-child{{text-align:left}}</style>\n<h1>{title}</h1>\n{body}\n</html>\n"
    )
}

/// Text as HTML has it.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
