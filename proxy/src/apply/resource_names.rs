//! Checks the names of resources on the configuration stream.

use super::reject::RejectReason;

pub(super) fn route_name(name: &str) -> Result<(), RejectReason> {
    two_segments(name, "<namespace>/<name>")
}

pub(super) fn certificate_name(name: &str) -> Result<(), RejectReason> {
    two_segments(name, "<namespace>/<secret>")
}

pub(super) fn trust_bundle_name(name: &str) -> Result<(), RejectReason> {
    let mut parts = segments(name);
    if matches!(parts.next(), Some("ConfigMap" | "Secret")) && parts.count() == 2 {
        Ok(())
    } else {
        Err(RejectReason::InvalidName(
            "<ConfigMap|Secret>/<namespace>/<name>",
        ))
    }
}

pub(super) fn two_segments(name: &str, form: &'static str) -> Result<(), RejectReason> {
    if segments(name).count() == 2 {
        Ok(())
    } else {
        Err(RejectReason::InvalidName(form))
    }
}

/// The parts between slashes. There are none if a part is empty, or has a character that no name in Kubernetes has and
/// that could garble a log.
pub(super) fn segments(name: &str) -> impl Iterator<Item = &str> {
    let clean = name.split('/').all(|part| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\'))
    });
    clean.then(|| name.split('/')).into_iter().flatten()
}

pub(super) fn required(text: &str, field: &'static str) -> Result<String, RejectReason> {
    if text.is_empty() {
        Err(RejectReason::MissingField(field))
    } else {
        Ok(text.to_owned())
    }
}
