//! Finds hostnames that the API server refuses by the schema of a kind of Gateway API, although decoding accepts them. In
//! a cluster there is no such object, so these findings are for manifests: `kubectl apply` would refuse the whole object.

use serde_json::Value;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::{HostPattern, MAX_HOSTNAME};
use vestibule_model::key::Kind;

use crate::text::quote;

/// The filters of HTTPRoutes that have a hostname.
const FILTERS: [&str; 2] = ["requestRedirect", "urlRewrite"];

/// The findings about hostnames that decoding accepts and the schema of `kind` refuses.
pub(crate) fn refusals(kind: Kind, body: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let spec = body.get("spec").unwrap_or(&Value::Null);
    match kind {
        Kind::Gateway | Kind::ListenerSet => {
            for (at, listener) in items(spec, "listeners", "spec") {
                check(listener, "hostname", &at, &mut findings);
                // Decoding takes it for every name. Everywhere else it refuses an empty hostname itself.
                if listener.get("hostname").and_then(Value::as_str) == Some("") {
                    let action = "write a name, or leave the field out".to_owned();
                    findings.push(refused(format!("{at}.hostname"), "", "is empty", action));
                }
            }
        }
        Kind::HttpRoute | Kind::GrpcRoute | Kind::TlsRoute => {
            for (at, hostname) in items(spec, "hostnames", "spec") {
                findings.extend(refusal(hostname, at));
            }
            for (rule_at, rule) in items(spec, "rules", "spec") {
                filters(rule, &rule_at, &mut findings);
                for (at, backend) in items(rule, "backendRefs", &rule_at) {
                    filters(backend, &at, &mut findings);
                }
            }
        }
        Kind::BackendTlsPolicy => {
            let validation = spec.get("validation").unwrap_or(&Value::Null);
            check(validation, "hostname", "spec.validation", &mut findings);
            for (at, name) in items(validation, "subjectAltNames", "spec.validation") {
                check(name, "hostname", &at, &mut findings);
            }
        }
        _ => {}
    }
    findings
}

/// The hostnames in the filters of a rule or of one of its backends.
fn filters(of: &Value, at: &str, findings: &mut Vec<Finding>) {
    for (at, filter) in items(of, "filters", at) {
        for name in FILTERS {
            if let Some(settings) = filter.get(name) {
                check(settings, "hostname", &format!("{at}.{name}"), findings);
            }
        }
    }
}

/// The items of the list `name` in `value`, each with its path. `at` is the path of `value`.
fn items<'a>(
    value: &'a Value,
    name: &str,
    at: &str,
) -> impl Iterator<Item = (String, &'a Value)> + use<'a> {
    let path = format!("{at}.{name}");
    let list = value.get(name).and_then(Value::as_array);
    let list = list.into_iter().flatten().enumerate();
    list.map(move |(index, item)| (format!("{path}[{index}]"), item))
}

fn check(of: &Value, name: &str, at: &str, findings: &mut Vec<Finding>) {
    if let Some(hostname) = of.get(name) {
        findings.extend(refusal(hostname, format!("{at}.{name}")));
    }
}

/// The refusal of a hostname that is valid except for how it is written. There are other findings about the rest.
fn refusal(hostname: &Value, field: String) -> Option<Finding> {
    let text = hostname.as_str()?;
    let pattern = HostPattern::parse(text).ok()?;
    let wrong = if text.bytes().any(|b| b.is_ascii_uppercase()) {
        "has upper-case letters"
    } else if text.ends_with('.') {
        "ends with a dot"
    } else {
        debug_assert!(text.len() <= MAX_HOSTNAME, "parsing bounds the length");
        return None;
    };
    Some(refused(field, text, wrong, format!("write \"{pattern}\"")))
}

fn refused(field: String, text: &str, wrong: &str, action: String) -> Finding {
    Finding::refused(
        Reason::InvalidHostname,
        field,
        format!(
            "{} {wrong}, so the API server refuses the object (kubectl apply says: Invalid value)",
            quote(text)
        ),
        action,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The paths of the refusals, and what to write instead.
    fn said(kind: Kind, spec: &Value) -> Vec<(String, String)> {
        let findings = refusals(kind, &json!({ "spec": spec }));
        assert!(findings.iter().all(Finding::refuses));
        findings.into_iter().map(|f| (f.field, f.action)).collect()
    }

    fn pair(field: &str, action: &str) -> (String, String) {
        (field.to_owned(), action.to_owned())
    }

    #[test]
    fn schema_refusals_are_reported_at_their_field() {
        let route = json!({
            "hostnames": ["a.example.com", "A.example.com", "*.example.com.", "-.example.com"],
            "rules": [{
                "filters": [{"requestRedirect": {"hostname": "Other.example.com"}}],
                "backendRefs": [{"filters": [{"urlRewrite": {"hostname": "b.example.com."}}]}],
            }],
        });
        assert_eq!(
            said(Kind::HttpRoute, &route),
            [
                pair("spec.hostnames[1]", "write \"a.example.com\""),
                pair("spec.hostnames[2]", "write \"*.example.com\""),
                pair(
                    "spec.rules[0].filters[0].requestRedirect.hostname",
                    "write \"other.example.com\""
                ),
                pair(
                    "spec.rules[0].backendRefs[0].filters[0].urlRewrite.hostname",
                    "write \"b.example.com\""
                ),
            ]
        );
        let set = json!({"listeners": [{"hostname": ""}, {}, {"hostname": "*.Example.com"}]});
        assert_eq!(
            said(Kind::ListenerSet, &set),
            [
                pair(
                    "spec.listeners[0].hostname",
                    "write a name, or leave the field out"
                ),
                pair("spec.listeners[2].hostname", "write \"*.example.com\""),
            ]
        );
        let policy = json!({"validation": {"hostname": "B.internal"}});
        assert_eq!(
            said(Kind::BackendTlsPolicy, &policy),
            [pair("spec.validation.hostname", "write \"b.internal\"")]
        );
        // Grants are of our own, and their schema takes either case.
        assert_eq!(said(Kind::HostnameGrant, &route), []);
    }
}
