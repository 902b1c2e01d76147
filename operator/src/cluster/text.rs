//! Texts of others, in bounds, before they are passed on.

/// Longest text of a problem that is passed on, in bytes.
const MAX_PROBLEM: usize = 512;

/// `text` with at most `limit` bytes, and no control characters.
pub(super) fn bounded(text: &str, limit: usize) -> String {
    let mut line = String::with_capacity(text.len().min(limit));
    for c in text.chars() {
        if line.len() + c.len_utf8() > limit {
            line.push('…');
            break;
        }
        line.push(if c.is_control() { ' ' } else { c });
    }
    line
}

/// What the API server says, in bounds.
pub(super) fn problem(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => bounded(&status.message, MAX_PROBLEM),
        // Its text may quote what did not read.
        kube::Error::SerdeError(_) => "the answer does not read".to_owned(),
        other => bounded(&other.to_string(), MAX_PROBLEM),
    }
}
