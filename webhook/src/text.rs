//! The texts a user sees: bounded, on one line.

use std::fmt::Write as _;

use vestibule_model::finding::Finding;

/// Findings told in full; the rest are counted.
const MAX_TOLD: usize = 8;
/// Longest text of one finding in characters. The parts it quotes are bounded where objects are
/// read; this holds for any finding.
const MAX_FINDING: usize = 1024;

/// The message of a refusal.
pub(crate) fn message<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let mut all = findings.into_iter();
    let mut text = all
        .by_ref()
        .take(MAX_TOLD)
        .map(one_line)
        .collect::<Vec<_>>()
        .join("; ");
    let rest = all.count();
    if rest > 0 {
        // Writing to a String does not fail.
        let _ = write!(text, "; and {rest} more");
    }
    text
}

/// Warnings, one each.
pub(crate) fn warnings<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Vec<String> {
    let mut all = findings.into_iter();
    let mut texts: Vec<String> = all.by_ref().take(MAX_TOLD).map(one_line).collect();
    let rest = all.count();
    if rest > 0 {
        texts.push(format!("and {rest} more"));
    }
    texts
}

fn one_line(finding: &Finding) -> String {
    let mut text: String = finding
        .to_string()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_FINDING + 1)
        .collect();
    if let Some((end, _)) = text.char_indices().nth(MAX_FINDING) {
        text.truncate(end);
        text.push('…');
    }
    text
}
