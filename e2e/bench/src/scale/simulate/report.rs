//! The tables of the simulation.

use std::fmt::Write as _;

use super::Spent;
use super::claims::Claims;
use super::size::{Edited, Size};
use crate::scale::part::Used;
use crate::scale::report::percentile;
use crate::scale::world::{LISTENERS, Routes};

const MEBIBYTE: f64 = 1_048_576.0;

/// The table of all sizes.
pub(super) fn sizes(routes: Routes, namespaces: usize, sizes: &[Size]) -> String {
    let mut out = format!(
        "{}s: {LISTENERS} hostnames, listeners and routes for each set, {namespaces} namespaces, one Gateway. Seconds \
         are those of the clock, with CPU in brackets.\n\n| |",
        routes.kind()
    );
    for size in sizes {
        let _ = write!(out, " {} routes |", size.sets * LISTENERS);
    }
    out.push_str("\n|---|");
    out.push_str(&"---:|".repeat(sizes.len()));
    out.push('\n');
    for (what, cell) in LINES {
        let cells: Vec<String> = sizes.iter().map(cell).collect();
        let _ = writeln!(out, "| {what} | {} |", cells.join(" | "));
    }
    out
}

type Line = (&'static str, fn(&Size) -> String);

const LINES: &[Line] = &[
    ("objects, resources on the stream", |size| {
        format!("{}, {}", size.objects, size.resources)
    }),
    ("names held, certificates requested", |size| {
        format!("{}, {}", size.names, size.requests)
    }),
    ("all objects decoded, s", |size| spent(size.listed)),
    (
        "from leading until published, claims and statuses written, s",
        |size| spent(size.published),
    ),
    ("for that: claims, statuses written, Secrets read", |size| {
        let Size {
            claim_writes,
            statuses,
            reads,
            ..
        } = size;
        format!("{claim_writes}, {statuses}, {reads}")
    }),
    ("operator: heap, most resident, MiB", |size| {
        format!("{:.0}, {:.0}", size.held.heap, size.held.peak)
    }),
    ("full batch, MiB", |size| mebibytes(size.full_bytes)),
    ("one proxy takes it, s", |size| spent(size.full)),
    ("every status says Programmed=True, s", |size| {
        spent(size.programmed)
    }),
    ("statuses written for that", |size| {
        size.programmed_statuses.to_string()
    }),
    ("one edit until acknowledged, p50 / p99, ms", |size| {
        edits(&size.edits, |edit| edit.acked)
    }),
    ("CPU of one edit, p50 / p99, ms", |size| {
        edits(&size.edits, |edit| edit.cpu)
    }),
    ("bytes of one edit, p50 / p99", |size| {
        edits(&size.edits, |edit| edit.bytes as f64)
    }),
    ("a real proxy reads it: until ready, s", |size| {
        spent(size.proxy.unwrap_or_default().ready)
    }),
    ("it holds: heap, resident, most resident, MiB", |size| {
        let Used {
            heap,
            resident,
            peak,
            ..
        } = size.proxy.unwrap_or_default().used;
        format!("{heap:.0}, {resident:.0}, {peak:.0}")
    }),
    ("its CPU for one edit, ms", |size| {
        format!("{:.1}", size.proxy.unwrap_or_default().edit)
    }),
    ("proxies that start at once", |size| {
        size.cold.map_or(0, |cold| cold.proxies).to_string()
    }),
    ("all of them have everything, s", |size| {
        spent(size.cold.unwrap_or_default().spent)
    }),
    ("sent for that, MiB", |size| {
        mebibytes(size.cold.unwrap_or_default().bytes)
    }),
    ("operator: resident before, most meanwhile, MiB", |size| {
        let cold = size.cold.unwrap_or_default();
        format!("{:.0}, {:.0}", cold.resident, cold.peak)
    }),
    ("statuses settled after that, s", |size| {
        spent(size.cold.unwrap_or_default().settled)
    }),
    (
        "one edit until all proxies acknowledged, p50 / p99, ms",
        |size| edits(&size.fleet_edits, |edit| edit.acked),
    ),
    ("CPU of one edit with all proxies, p50 / p99, ms", |size| {
        edits(&size.fleet_edits, |edit| edit.cpu)
    }),
];

/// The table of claims by themselves.
pub(super) fn claims(namespaces: usize, claims: &[Claims]) -> String {
    let mut out = format!(
        "Claims by themselves, {namespaces} namespaces\n\n| names | all are served, s | all are written, s | writes | \
         heap, MiB | a new leader lists them, s | one more name, ms (writes) |\n|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for one in claims {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.0} | {} | {:.2} ({}) |",
            one.names,
            spent(one.asked),
            spent(one.written),
            one.writes,
            one.held.heap,
            spent(one.listed),
            one.edit / 1e3,
            one.edit_writes
        );
    }
    out
}

fn spent(spent: Spent) -> String {
    format!("{:.2} ({:.2})", spent.seconds, spent.cpu)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / MEBIBYTE)
}

fn edits(edits: &[Edited], of: fn(&Edited) -> f64) -> String {
    let mut figures: Vec<f64> = edits.iter().map(of).collect();
    figures.sort_by(f64::total_cmp);
    format!(
        "{:.1} / {:.1}",
        percentile(&figures, 50),
        percentile(&figures, 99)
    )
}
