//! Bounds texts from others before they are passed on.

/// Longest text of a problem that is passed on, in bytes.
const MAX_PROBLEM: usize = 512;

/// Returns `text` without control characters. A longer text is cut to at most `limit` bytes and gets an ellipsis.
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

/// Returns the message of an error from the API server, within bounds.
pub(super) fn problem(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => bounded(&status.message, MAX_PROBLEM),
        // The text of this error may quote the content that could not be read.
        kube::Error::SerdeError(_) => "the answer does not read".to_owned(),
        other => bounded(&other.to_string(), MAX_PROBLEM),
    }
}
