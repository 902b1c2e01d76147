//! Texts that users see. They are bounded and on one line.

use std::fmt::Write as _;

use vestibule_model::finding::Finding;

/// Most findings that are shown in full. The rest are counted.
pub(crate) const MAX_TOLD: usize = 8;
/// Longest text of one finding in characters. Quoted parts are already bounded when objects are read. This bound holds
/// for every finding.
const MAX_FINDING: usize = 1024;
/// Longest warning in characters. API servers cut longer ones if there are many (`endpoints/filters/warning.go`).
const MAX_WARNING: usize = 256;
/// Most characters of all warnings together. API servers drop everything after 4096, and other webhooks may have
/// warnings too.
const MAX_WARNINGS: usize = 3072;

/// The message of a refusal.
pub(crate) fn message<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let mut all = findings.into_iter();
    let mut text = all
        .by_ref()
        .take(MAX_TOLD)
        .map(|finding| one_line(&finding.to_string(), MAX_FINDING))
        .collect::<Vec<_>>()
        .join("; ");
    let rest = all.count();
    if rest > 0 {
        // Writing to a String does not fail.
        let _ = write!(text, "; and {rest} more");
    }
    text
}

/// Warnings: one line for each finding, or two if one would be too long.
pub(crate) fn warnings<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let (mut told, mut left) = (0, MAX_WARNINGS);
    let mut all = findings.into_iter().peekable();
    while let Some(finding) = all.peek() {
        let lines = warning(finding);
        let length: usize = lines.iter().map(|line| line.chars().count()).sum();
        let Some(rest) = left.checked_sub(length).filter(|_| told < MAX_TOLD) else {
            break;
        };
        texts.extend(lines);
        (told, left) = (told + 1, rest);
        all.next();
    }
    let rest = all.count();
    if rest > 0 {
        texts.push(format!("and {rest} more"));
    }
    texts
}

fn warning(finding: &Finding) -> Vec<String> {
    let whole = one_line(&finding.to_string(), MAX_FINDING);
    if whole.chars().count() <= MAX_WARNING {
        return vec![whole];
    }
    let part = |message: &str, action: &str| {
        let part = Finding {
            message: message.to_owned(),
            action: action.to_owned(),
            ..finding.clone()
        };
        one_line(&part.to_string(), MAX_WARNING)
    };
    if finding.action.is_empty() {
        vec![part(&finding.message, "")]
    } else {
        vec![part(&finding.message, ""), part(&finding.action, "")]
    }
}

/// `text` without control characters, at most `max` characters long.
pub(crate) fn one_line(text: &str, max: usize) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(max + 1)
        .collect();
    // The mark at the cut counts as well.
    if line.chars().count() > max
        && let Some((end, _)) = line.char_indices().nth(max.saturating_sub(1))
    {
        line.truncate(end);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use vestibule_model::condition::Reason;

    use super::*;

    fn finding(message: &str, action: &str) -> Finding {
        Finding::warning(Reason::InvalidHostname, "spec.field", message, action)
    }

    #[test]
    fn a_long_warning_keeps_its_advice() {
        let lines = warnings(&[finding(&"é".repeat(400), "use another hostname")]);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].chars().count(), MAX_WARNING);
        assert!(lines[0].starts_with("spec.field: éé") && lines[0].ends_with("é…"));
        assert_eq!(lines[1], "spec.field: use another hostname");
        assert_eq!(warnings(&[finding(&"x".repeat(400), "")]).len(), 1);
        assert_eq!(
            warnings(&[finding("is short", "be long")]),
            ["spec.field: is short; be long"]
        );
    }

    #[test]
    fn warnings_fit_into_the_headers() {
        let long = finding(&"x".repeat(400), &"y".repeat(400));
        for count in 0..40 {
            let lines = warnings(&vec![long.clone(); count]);
            let total: usize = lines.iter().map(|l| l.chars().count()).sum();
            assert!(total <= MAX_WARNINGS + 16, "{total}");
            if count > MAX_TOLD {
                assert!(lines.last().is_some_and(|l| l.starts_with("and ")));
            }
        }
    }

    #[test]
    fn lines_are_cut_on_characters() {
        assert_eq!(one_line("a\nb\u{1b}c", 10), "a b c");
        assert_eq!(one_line("ééé", 3), "ééé");
        assert_eq!(one_line("éééé", 3), "éé…");
        assert_eq!(one_line("éé", 0), "…");
    }
}
