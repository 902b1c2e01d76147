//! Reads the admission settings of a release from the arguments of its operator, if the caller may read them.

use kube::api::ListParams;
use kube::{Client, Error};
use serde_json::Value;
use vestibule_model::certificate::AddressBlock;
use vestibule_model::policy::{Policy, exempt_namespaces};
use vestibule_operator::translate::CONTROLLER;

/// Labels that the chart gives the operator's Deployment, whatever the name of the release is.
const LABELS: &str = "app.kubernetes.io/part-of=vestibule,app.kubernetes.io/component=operator";
/// Most Deployments that are read.
const MOST: u32 = 100;

/// What is known about the release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Release {
    /// Its settings.
    Known(Policy),
    /// No Deployment has the chart's labels and this controller name.
    Absent,
    /// The caller may not list Deployments.
    Hidden,
}

/// Looks for the release of a controller.
pub(super) async fn read(client: &Client, controller: &str) -> Release {
    let request = kube::core::Request::new("/apis/apps/v1/deployments")
        .list(&ListParams::default().labels(LABELS).limit(MOST));
    let Ok(request) = request else {
        return Release::Hidden;
    };
    match client.request::<Value>(request).await {
        Ok(list) => of_deployments(&list, controller),
        Err(Error::Api(status)) if status.code == 404 => Release::Absent,
        // If something else is wrong with the server, the next request reports it.
        Err(_) => Release::Hidden,
    }
}

/// The release in a list of Deployments. If there are several, it is the first by namespace and name. Two releases of
/// one controller are a mistake anyway.
fn of_deployments(list: &Value, controller: &str) -> Release {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .filter_map(|one| of_arguments(one.pointer("/spec/template/spec/containers/0/args")?))
        .find(|(of, _)| of == controller)
        .map_or(Release::Absent, |(_, policy)| Release::Known(policy))
}

/// The name of the controller and the policy of an operator with these arguments.
fn of_arguments(arguments: &Value) -> Option<(String, Policy)> {
    let (mut controller, mut policy) = (CONTROLLER.to_owned(), Policy::default());
    let totals = &mut policy.totals;
    for argument in arguments.as_array()?.iter().filter_map(Value::as_str) {
        match argument.split_once('=') {
            Some(("--controller", name)) => name.clone_into(&mut controller),
            Some(("--policy-mode", mode)) => policy.mode = mode.parse().ok()?,
            Some(("--exempt-namespace", names)) => {
                policy.exempt.extend(exempt_namespaces(names));
            }
            Some(("--names-per-namespace", most)) => {
                policy.names_per_namespace = most.parse().ok()?;
            }
            Some(("--ports-per-namespace", most)) => {
                policy.ports_per_namespace = most.parse().ok()?;
            }
            Some(("--max-rsa-bits", most)) => policy.max_rsa_bits = most.parse().ok()?,
            Some(("--regex-mib", most)) => policy.regex_mib = most.parse().ok()?,
            Some(("--route-entries", most)) => policy.route_entries = most.parse().ok()?,
            Some(("--certificate-mib", most)) => policy.certificate_mib = most.parse().ok()?,
            Some(("--all-certificates-mib", most)) => {
                totals.certificates_mib = most.parse().ok()?;
            }
            Some(("--all-routes-mib", most)) => totals.routes_mib = most.parse().ok()?,
            Some(("--all-backends-mib", most)) => totals.backends_mib = most.parse().ok()?,
            Some(("--all-listeners-mib", most)) => totals.listeners_mib = most.parse().ok()?,
            Some(("--deny-endpoint-cidrs", blocks)) => {
                let blocks = blocks.split(',').map(str::parse::<AddressBlock>);
                policy.endpoints.denied = blocks.collect::<Result<_, _>>().ok()?;
            }
            _ => {}
        }
    }
    Some((controller, policy))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vestibule_model::endpoint::EndpointRules;
    use vestibule_model::policy::{ConfigurationTotals, Mode};

    use super::*;

    fn deployment(arguments: &Value) -> Value {
        json!({"spec": {"template": {"spec": {"containers": [{"args": arguments}]}}}})
    }

    #[test]
    fn the_arguments_of_the_operator_of_this_controller_count() {
        let other = json!(["--controller=example.com/other", "--policy-mode=Off"]);
        let own = json!([
            "--release=edge",
            "--policy-mode=Warn",
            "--exempt-namespace=old, older,",
            "--names-per-namespace=7",
            "--ports-per-namespace=8",
            "--max-rsa-bits=2048",
            "--regex-mib=5",
            "--route-entries=6",
            "--certificate-mib=9",
            "--all-certificates-mib=10",
            "--all-routes-mib=11",
            "--all-backends-mib=12",
            "--all-listeners-mib=13",
            "--deny-endpoint-cidrs=10.96.0.0/12,fd00::/8"
        ]);
        let list = json!({"items": [deployment(&other), {}, deployment(&own)]});
        let exempt = ["old", "older"].map(str::to_owned).into();
        let mode = Mode::Warn;
        assert_eq!(
            of_deployments(&list, CONTROLLER),
            Release::Known(Policy {
                mode,
                exempt,
                names_per_namespace: 7,
                ports_per_namespace: 8,
                endpoints: EndpointRules {
                    loopback: false,
                    denied: ["10.96.0.0/12", "fd00::/8"]
                        .map(|block| AddressBlock::parse(block).unwrap())
                        .into(),
                },
                max_rsa_bits: 2048,
                regex_mib: 5,
                route_entries: 6,
                certificate_mib: 9,
                totals: ConfigurationTotals {
                    certificates_mib: 10,
                    routes_mib: 11,
                    backends_mib: 12,
                    listeners_mib: 13,
                },
            })
        );
        assert_eq!(of_deployments(&list, "example.com/nobody"), Release::Absent);
        assert_eq!(of_deployments(&json!({}), CONTROLLER), Release::Absent);
    }

    /// The labels and arguments that are looked for are those that the chart renders.
    #[test]
    fn the_chart_has_these_labels_and_arguments() {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/vestibule/templates");
        let read = |file: &str| std::fs::read_to_string(format!("{chart}/{file}")).unwrap();
        let deployment = read("operator/deployment.yaml");
        assert!(deployment.contains(r#""component" "operator""#));
        for argument in [
            "--controller=",
            "--policy-mode=",
            "--exempt-namespace=",
            "--names-per-namespace=",
            "--ports-per-namespace=",
        ] {
            assert!(deployment.contains(&format!("- {argument}")), "{argument}");
        }
        let names = read("_names.tpl");
        assert!(names.contains("app.kubernetes.io/part-of: vestibule\n"));
        assert!(names.contains("app.kubernetes.io/component: {{ .component }}\n"));
    }
}
