//! Conditions of an object: looked up, compared, printed.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::api::{items, text};

/// The generation that a status has to be about.
fn generation(object: &Value) -> Option<i64> {
    object
        .pointer("/metadata/generation")
        .and_then(Value::as_i64)
}

fn check(
    conditions: &[Value],
    generation: Option<i64>,
    kind: &str,
    status: &str,
    reason: Option<&str>,
) -> Result<String> {
    let condition = conditions
        .iter()
        .find(|condition| text(condition, "/type") == kind)
        .with_context(|| format!("no condition {kind} among {}", describe(conditions)))?;
    let observed = condition.get("observedGeneration").and_then(Value::as_i64);
    if observed != generation {
        bail!("{kind} is about generation {observed:?}, not {generation:?}");
    }
    if text(condition, "/status") != status
        || reason.is_some_and(|r| r != text(condition, "/reason"))
    {
        bail!(
            "expected {kind}={status}/{}, found {} ({})",
            reason.unwrap_or("any"),
            describe(conditions),
            text(condition, "/message")
        );
    }
    Ok(text(condition, "/message").to_owned())
}

/// `Type=Status/Reason` of each condition.
pub(crate) fn describe(conditions: &[Value]) -> String {
    let words: Vec<String> = conditions
        .iter()
        .map(|c| {
            format!(
                "{}={}/{}",
                text(c, "/type"),
                text(c, "/status"),
                text(c, "/reason")
            )
        })
        .collect();
    format!("[{}]", words.join(" "))
}

/// Checks that the object has this condition, about its present generation. Returns the message.
pub(crate) fn of_object(
    object: &Value,
    kind: &str,
    status: &str,
    reason: Option<&str>,
) -> Result<String> {
    check(
        items(object, "/status/conditions"),
        generation(object),
        kind,
        status,
        reason,
    )
}

/// The same of one of its listeners.
pub(crate) fn of_listener(
    object: &Value,
    listener: &str,
    kind: &str,
    status: &str,
    reason: Option<&str>,
) -> Result<String> {
    let entry = listener_entry(object, listener)?;
    check(
        items(entry, "/conditions"),
        generation(object),
        kind,
        status,
        reason,
    )
    .with_context(|| format!("listener {listener}"))
}

/// Status of one of its listeners.
pub(crate) fn listener_entry<'a>(object: &'a Value, listener: &str) -> Result<&'a Value> {
    items(object, "/status/listeners")
        .iter()
        .find(|entry| text(entry, "/name") == listener)
        .with_context(|| format!("no status of listener {listener}"))
}

/// The same of a route at each of its parents. There has to be one entry for each parentRef.
pub(crate) fn of_route(
    route: &Value,
    kind: &str,
    status: &str,
    reason: Option<&str>,
) -> Result<()> {
    let parents = items(route, "/status/parents");
    if parents.len() != items(route, "/spec/parentRefs").len() {
        bail!("{} entries of parents", parents.len());
    }
    for parent in parents {
        check(
            items(parent, "/conditions"),
            generation(route),
            kind,
            status,
            reason,
        )?;
    }
    Ok(())
}

/// Checks that an object and all its listeners are accepted and programmed, and that the listeners count
/// this many routes each.
pub(crate) fn is_served(object: &Value, routes: u64) -> Result<()> {
    for kind in ["Accepted", "Programmed"] {
        of_object(object, kind, "True", None)?;
    }
    for listener in items(object, "/spec/listeners") {
        let name = text(listener, "/name");
        for kind in ["Accepted", "ResolvedRefs", "Programmed"] {
            of_listener(object, name, kind, "True", None)?;
        }
        let attached = listener_entry(object, name)?
            .get("attachedRoutes")
            .and_then(Value::as_u64);
        if attached != Some(routes) {
            bail!("listener {name} counts {attached:?} routes, not {routes}");
        }
    }
    Ok(())
}

/// Checks that an object and all its listeners are programmed and free of conflict, and that these are all
/// of its listeners, with this many routes each.
pub(crate) fn is_programmed(object: &Value, listeners: &[(&str, u64)]) -> Result<()> {
    for kind in ["Accepted", "Programmed"] {
        of_object(object, kind, "True", None)?;
    }
    for (name, _) in listeners {
        for kind in ["Accepted", "ResolvedRefs", "Programmed"] {
            of_listener(object, name, kind, "True", None)?;
        }
        of_listener(object, name, "Conflicted", "False", None)?;
    }
    counts_routes(object, listeners)
}

/// Checks that the status is about these listeners and no others, with this many routes each.
pub(crate) fn counts_routes(object: &Value, listeners: &[(&str, u64)]) -> Result<()> {
    let entries = items(object, "/status/listeners");
    if entries.len() != listeners.len() {
        bail!("{} listeners, not {}", entries.len(), listeners.len());
    }
    for (name, routes) in listeners {
        let attached = listener_entry(object, name)?.get("attachedRoutes");
        let attached = attached.and_then(Value::as_u64);
        if attached != Some(*routes) {
            bail!("listener {name} counts {attached:?} routes, not {routes}");
        }
    }
    Ok(())
}

/// Checks that a Gateway counts this many ListenerSets.
pub(crate) fn counts_sets(gateway: &Value, sets: u64) -> Result<()> {
    let attached = gateway.pointer("/status/attachedListenerSets");
    let attached = attached.and_then(Value::as_u64);
    if attached != Some(sets) {
        bail!("it counts {attached:?} sets, not {sets}");
    }
    Ok(())
}

/// Checks that a route is accepted, with its references resolved.
pub(crate) fn is_attached(route: &Value) -> Result<()> {
    of_route(route, "Accepted", "True", None)?;
    of_route(route, "ResolvedRefs", "True", None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_condition_of_an_older_generation_does_not_count() {
        let object = json!({
            "metadata": {"generation": 2},
            "status": {"conditions": [
                {"type": "Accepted", "status": "True", "reason": "Accepted", "observedGeneration": 1},
                {"type": "Programmed", "status": "False", "reason": "Pending", "observedGeneration": 2},
            ]},
        });
        assert!(of_object(&object, "Accepted", "True", None).is_err());
        assert!(of_object(&object, "Programmed", "False", Some("Pending")).is_ok());
        assert!(of_object(&object, "Programmed", "True", None).is_err());
    }
}
