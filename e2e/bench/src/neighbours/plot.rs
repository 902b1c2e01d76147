//! A page with two plots: how much later answers came beside each neighbour, and how much memory each proxy had.

use super::proxies::Proxy;
use super::report::{FLOOD_GOAL, GOAL, middle};
use super::{Figures, Rates};
use crate::plot::{self, Bar, Scale, escape};

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

/// The whole page.
pub(super) fn page(all: &[Figures], rates: &Rates, machine: &str) -> String {
    let shown = middle(all);
    let bar = |figures: &Figures, value: f64, text: String| Bar {
        row: figures.row.title().to_owned(),
        colour: colour(figures.proxy),
        value,
        text,
        bad: figures.failed() > 0,
    };
    let growth = shown.iter().map(|figures| {
        let failed = match figures.failed() {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        let worst = figures.worst();
        bar(figures, worst, format!("{worst:.2}{failed}"))
    });
    let memory = shown.iter().map(|figures| {
        let megabytes = figures.peak as f64 / 1e6;
        bar(figures, megabytes, format!("{megabytes:.0}"))
    });
    let growth = plot::bars(&growth.collect::<Vec<_>>(), &GROWTH, &[GOAL, FLOOD_GOAL]);
    let memory = plot::bars(&memory.collect::<Vec<_>>(), &MEMORY, &[]);
    let proxies = [Proxy::Vestibule, Proxy::Haproxy, Proxy::Envoy];
    let legend = plot::legend(proxies.map(|proxy| (proxy.name(), colour(proxy))));
    let body = format!(
        "<p>One tenant's {} requests and {} handshakes a second, {} s each time; {}. Colours: {legend}.</p>\n\
         <h2>99th percentile beside the neighbour ÷ alone, the larger of requests and handshakes</h2>\n\
         <p>Dashed: the goals, {GOAL}, and {FLOOD_GOAL} where the neighbour needs the whole CPU. \
         Red: requests failed.</p>\n{growth}\n<h2>Most memory that the proxy had, MB</h2>\n{memory}",
        rates.requests,
        rates.handshakes,
        rates.seconds,
        escape(machine),
    );
    plot::page("Beside hostile neighbours", &body)
}

fn colour(proxy: Proxy) -> &'static str {
    match proxy {
        Proxy::Vestibule => "#2563eb",
        Proxy::Haproxy => "#9ca3af",
        Proxy::Envoy => "#d97706",
    }
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
