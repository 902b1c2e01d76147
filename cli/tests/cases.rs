//! The case table: objects in, verdicts and statuses out, through every part that judges.
//!
//! Each file of `cases/` is a stream of YAML documents: the first says what the case is about and where
//! the rule comes from, the last (`expected`) what has to come out, and those between are the objects, in
//! the order in which they were created. A case is run through translation, through the webhook's rules
//! (object by object, as `kubectl apply` would), and through `vestibule check`; it fails if one of them
//! says something else than expected, or than the others.
//!
//! A case with `cluster` is translated as in a cluster: every internal port that is needed is allocated
//! (unless `ports` is false), and `services` says by Gateway what its Service has come to. Programmed then
//! comes out with the reasons that only a cluster has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vestibule_crds::yaml;
use vestibule_model::condition::{Address, Condition, ConditionType, ProgrammedBasis, Reason};
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;
use vestibule_model::parameters::ServiceParameters;
use vestibule_model::policy::Policy;
use vestibule_model::protocol::Port;
use vestibule_operator::translate::{
    Assigned, Binds, CONTROLLER, Change, ClaimMode, DesiredService, Output, ServiceProblem,
    ServiceSettings, Settings, Status, Translator,
};
use vestibule_webhook::{AdmissionState, Operation, Reviewer};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    case: String,
    source: String,
    #[serde(default = "enforce")]
    mode: String,
    #[serde(default)]
    exempt: BTreeSet<String>,
    cluster: Option<Cluster>,
    /// The specs of the `HostnameClaims` that translation assumes. The webhook reads them (`webhook/tests/cases.rs`).
    #[serde(default, rename = "recorded")]
    _recorded: Vec<Value>,
}

/// What a case says of the cluster.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cluster {
    /// Whether internal ports are allocated.
    #[serde(default = "yes")]
    ports: bool,
    /// Namespace and name of a Gateway → what its Service has come to.
    #[serde(default)]
    services: BTreeMap<String, Service>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Service {
    #[serde(default)]
    addresses: Vec<String>,
    problem: Option<String>,
}

fn yes() -> bool {
    true
}

fn enforce() -> String {
    "Enforce".into()
}

/// What comes out for one object. Empty parts are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// `allowed`, `warned` or `refused`.
    admission: String,
    /// `Reason at field`, with `warning: ` before those that refuse nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    findings: Vec<String>,
    /// `Type=Status/Reason` of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<String>,
    /// The same by listener, with the number of attached routes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    listeners: BTreeMap<String, Vec<String>>,
    /// The same by parent reference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parents: Vec<Vec<String>>,
    /// The same by Gateway, of a policy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ancestors: BTreeMap<String, Vec<String>>,
    /// Number of attached ListenerSets, where there are any.
    #[serde(default, skip_serializing_if = "is_zero")]
    attached_listener_sets: usize,
    /// `status.addresses`, where there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
    /// What is to become of the Services of a Gateway: `kept`, or the type, ports (→ internal) and
    /// requested addresses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    service: String,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "what serde calls it with"
)]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Findings about what an object refers to, or about what others let it do. They come and go without
/// the object, so admission, which is asked once, does not refuse for them.
fn is_circumstantial(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NotAllowed
            | Reason::NotAllowedByListeners
            | Reason::NoMatchingParent
            | Reason::NoMatchingListenerHostname
            | Reason::InvalidCertificateRef
            | Reason::NoValidCACertificate
            | Reason::InvalidCACertificateRef
            | Reason::InvalidCACertificateKind
            | Reason::InvalidRouteKinds
            | Reason::RefNotPermitted
            | Reason::BackendNotFound
            | Reason::InvalidBackendTLSPolicy
            | Reason::InvalidKind
            | Reason::UnsupportedProtocol
            | Reason::PortUnavailable
            | Reason::NotIssuable
            | Reason::ServedByOthers
            | Reason::RequestsDiffer
            | Reason::Expired
            | Reason::CertificateNameMismatch
    )
}

struct Case {
    name: String,
    policy: Policy,
    cluster: Option<Cluster>,
    objects: Vec<Object>,
    documents: Vec<Value>,
    expected: BTreeMap<String, Expected>,
}

impl Cluster {
    /// What the shell tells translation, from what translation asked for.
    fn inputs(&self, output: Output, objects: &[Object]) -> Vec<Change> {
        let wanted = output.ports.into_iter().filter(|(_, wanted)| *wanted);
        let ports = (10_000..)
            .zip(wanted)
            .filter(|_| self.ports)
            .map(|(internal, (wish, _))| (wish, Port::new(internal)))
            .collect();
        let addresses = objects.iter().filter_map(|object| {
            let Object::Gateway(gateway) = object else {
                return None;
            };
            let service = self.services.get(&gateway.name.to_string())?;
            let address = |text: &String| match text.parse() {
                Ok(ip) => Address::Ip(ip),
                Err(_) => Address::Hostname(text.as_str().into()),
            };
            let assigned = Assigned {
                addresses: service.addresses.iter().map(address).collect(),
                sockets: BTreeSet::new(),
                problem: service.problem.clone().map(ServiceProblem::Refused),
            };
            Some(Change::Addresses(gateway.meta.uid.clone(), Some(assigned)))
        });
        std::iter::once(Change::Ports(ports))
            .chain(addresses)
            .collect()
    }
}

fn service(wish: &DesiredService) -> String {
    let service = match wish {
        DesiredService::Keep => return "kept".into(),
        DesiredService::Make(service) => service,
    };
    let ports: Vec<String> = service
        .ports
        .iter()
        .map(|((port, transport), internal)| format!("{}:{port}→{internal}", transport.as_str()))
        .collect();
    let requested: Vec<String> = service.requested.iter().map(ToString::to_string).collect();
    let asks = if requested.is_empty() {
        String::new()
    } else {
        format!(" asks for {}", requested.join(", "))
    };
    format!("{} {}{asks}", service.service_type, ports.join(" "))
}

impl Case {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a readable case");
        let mut documents: Vec<Value> = yaml::documents(&text)
            .expect("YAML")
            .into_iter()
            .map(|(_, document)| document)
            .collect();
        let header: Header =
            serde_json::from_value(documents.remove(0)).expect("the first document is the header");
        assert!(!header.case.is_empty() && !header.source.is_empty());
        let expected = documents
            .pop_if(|last| last.get("expected").is_some())
            .map(|mut last| last["expected"].take())
            .unwrap_or_default();
        let objects = documents
            .iter()
            .filter_map(|document| vestibule_crds::decode(document.clone()).into_object())
            .map(|(object, _)| object)
            .collect();
        Self {
            name: path.file_stem().unwrap().to_string_lossy().into(),
            policy: Policy {
                mode: header.mode.parse().expect("a mode"),
                exempt: header.exempt,
                ..Policy::default()
            },
            cluster: header.cluster,
            objects,
            documents,
            expected: serde_json::from_value(match expected {
                Value::Null => json!({}),
                other => other,
            })
            .expect("expectations"),
        }
    }

    fn translated(&self) -> Translator {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let binds = match self.cluster {
            None => Binds::Direct {
                address,
                ports: BTreeMap::new(),
            },
            Some(_) => Binds::Allocated {
                address,
                services: ServiceSettings {
                    release: "vestibule".into(),
                    namespace: "vestibule-system".into(),
                    cluster_domain: "cluster.local".into(),
                    selector: BTreeMap::from([("app".into(), "proxy".into())]),
                    components: BTreeSet::new(),
                    defaults: ServiceParameters::default(),
                },
            },
        };
        let mut translator = Translator::new(Settings {
            controller: CONTROLLER.into(),
            policy: self.policy.clone(),
            binds,
            claims: ClaimMode::Assumed,
            shim_for_sets: false,
        });
        let output = translator.apply(self.objects.iter().cloned().map(Change::Put));
        if let Some(cluster) = &self.cluster {
            translator.apply(cluster.inputs(output, &self.objects));
        }
        translator
    }

    /// The webhook's findings by object, each asked about while only the objects before it exist. Names and ports have
    /// the holders that translation assumes.
    fn reviewed(&self) -> BTreeMap<ObjectKey, (bool, Vec<Finding>)> {
        let mut facts = AdmissionState::new(CONTROLLER);
        facts.put_holders(self.translated().holders());
        let mut answers = BTreeMap::new();
        for object in &self.objects {
            let review =
                Reviewer::new(&facts, &self.policy).review(Operation::Create, None, object);
            assert_eq!(review.allowed, review.message.is_none(), "{}", self.name);
            answers.insert(object.key(), (review.allowed, review.findings));
            // Whether or not it was refused: statuses are about objects that are there.
            facts.put(object.clone());
        }
        answers
    }

    /// What `vestibule check` says, by `Kind namespace/name`.
    fn checked(&self) -> BTreeMap<String, Value> {
        let directory = tempdir(&self.name);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": self.documents});
        std::fs::write(directory.join("objects.json"), list.to_string()).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vestibule"));
        command
            .args(["check", "--output", "json", "--admission-mode"])
            .arg(self.policy.mode.to_string());
        for namespace in &self.policy.exempt {
            command.args(["--exempt-namespace", namespace]);
        }
        let output = command.arg(&directory).output().expect("vestibule runs");
        std::fs::remove_dir_all(&directory).expect("removed");
        let verdicts: Vec<Value> = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        let refused = verdicts.iter().any(|v| v["verdict"] == "refused");
        assert_eq!(
            output.status.code(),
            Some(i32::from(refused)),
            "{}",
            self.name
        );
        verdicts
            .into_iter()
            .map(|verdict| {
                let text = |field: &str| verdict[field].as_str().unwrap_or_default().to_owned();
                let name = match text("namespace").as_str() {
                    "" => text("name"),
                    namespace => format!("{namespace}/{}", text("name")),
                };
                (format!("{} {name}", text("kind")), verdict)
            })
            .collect()
    }
}

fn tempdir(name: &str) -> std::path::PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("case-{name}"));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

fn condition(condition: &Condition) -> String {
    format!(
        "{}={}/{}",
        condition.kind,
        condition.truth.as_str(),
        condition.reason
    )
}

fn programmed(basis: &ProgrammedBasis) -> String {
    match basis {
        ProgrammedBasis::NotPublished(reason, _) => {
            format!("{}=False/{reason}", ConditionType::Programmed)
        }
        ProgrammedBasis::NotYet(_) => {
            format!("{}=False/{}", ConditionType::Programmed, Reason::Pending)
        }
        ProgrammedBasis::WhenAcknowledged(_) => format!("{}=when held", ConditionType::Programmed),
    }
}

fn brief(finding: &Finding) -> String {
    let weight = match finding.severity {
        Severity::Refused => "",
        Severity::Warning => "warning: ",
    };
    format!("{weight}{} at {}", finding.reason, finding.field)
}

/// The outcome of a case by object, in the form of its expectations.
fn outcome(case: &Case) -> BTreeMap<String, Expected> {
    let translator = case.translated();
    let reviewed = case.reviewed();
    let mut outcome = BTreeMap::new();
    for object in &case.objects {
        let key = object.key();
        let (allowed, said) = &reviewed[&key];
        let mut expected = Expected {
            admission: match (allowed, said.is_empty()) {
                (true, true) => "allowed",
                (true, false) => "warned",
                (false, _) => "refused",
            }
            .into(),
            findings: translator
                .findings()
                .get(&key)
                .into_iter()
                .flatten()
                .map(brief)
                .collect(),
            ..Expected::default()
        };
        match translator.statuses().get(&key) {
            None => {}
            Some(Status::Class(status)) => {
                expected.conditions = status.conditions.iter().map(condition).collect();
            }
            Some(Status::Listeners(status)) => {
                expected.conditions = status.conditions.iter().map(condition).collect();
                expected.conditions.push(programmed(&status.programmed));
                expected.attached_listener_sets = status.attached_listener_sets;
                let address = |address: &Address| match address {
                    Address::Ip(ip) => ip.to_string(),
                    Address::Hostname(name) => name.to_string(),
                };
                expected.addresses = status.addresses.iter().flatten().map(address).collect();
                if let Object::Gateway(gateway) = object {
                    let wish = translator.services().get(&gateway.meta.uid);
                    expected.service = wish.map(service).unwrap_or_default();
                }
                for listener in &status.listeners {
                    let mut said: Vec<_> = listener.conditions.iter().map(condition).collect();
                    // Exactly the accepted ones have no conflict, so the table need not say it.
                    let at_ease = said.len();
                    said.retain(|condition| condition != "Conflicted=False/NoConflicts");
                    assert_eq!(
                        said.len() < at_ease,
                        said.contains(&"Accepted=True/Accepted".to_owned()),
                        "{}: {key}",
                        case.name
                    );
                    said.push(programmed(&listener.programmed));
                    said.push(format!("{} routes", listener.attached_routes));
                    expected.listeners.insert(listener.name.to_string(), said);
                }
            }
            Some(Status::Grant(status)) => {
                expected.conditions = status.conditions.iter().map(condition).collect();
            }
            Some(Status::Policy(status)) => {
                let said = status.ancestors.iter().map(|ancestor| {
                    let conditions = ancestor.conditions.iter().map(condition).collect();
                    (ancestor.gateway.to_string(), conditions)
                });
                expected.ancestors = said.collect();
            }
            Some(Status::Route(status)) => {
                expected.parents = status
                    .parents
                    .iter()
                    .map(|parent| parent.conditions.iter().map(condition).collect())
                    .collect();
            }
        }
        if expected
            != (Expected {
                admission: "allowed".into(),
                ..Expected::default()
            })
        {
            outcome.insert(key.to_string(), expected);
        }
    }
    outcome
}

/// Admission refuses what status refuses, with the same words, but for what depends on others.
///
/// Of a name that somebody holds it says the same as the status. Conflicts are compared by their fields, because of two
/// listeners on one port admission says which other one is in the way.
fn admission_agrees_with_status(case: &Case) {
    let translator = case.translated();
    let is_conflict =
        |reason| matches!(reason, Reason::HostnameConflict | Reason::ProtocolConflict);
    let own = |findings: &[Finding]| -> BTreeSet<(Reason, String)> {
        findings
            .iter()
            .filter(|f| !is_circumstantial(f.reason) && !is_conflict(f.reason))
            .map(|f| (f.reason, f.to_string()))
            .collect()
    };
    // The listener or hostname that conflicts.
    let conflicts = |findings: &[Finding], is_meant: &dyn Fn(Reason) -> bool| -> BTreeSet<String> {
        let meant = findings.iter().filter(|f| is_meant(f.reason));
        meant
            .map(|f| {
                f.field
                    .trim_end_matches(".protocol")
                    .trim_end_matches(".hostname")
                    .to_owned()
            })
            .collect()
    };
    for (key, (_, said)) in case.reviewed() {
        let in_status = translator
            .findings()
            .get(&key)
            .map(Vec::as_slice)
            .unwrap_or_default();
        if matches!(
            key.kind.as_str(),
            "TLSRoute" | "HTTPRoute" | "GRPCRoute" | "ListenerSet"
        ) && translator.statuses().contains_key(&key)
            && case.policy.mode_in(&key.name.namespace) != vestibule_model::policy::Mode::Off
        {
            let name = &case.name;
            assert_eq!(own(&said), own(in_status), "{name}: {key}");
            let refused = conflicts(&said, &is_conflict);
            let lost = conflicts(in_status, &is_conflict);
            assert!(
                refused.is_subset(&lost),
                "{name}: {key}: {refused:?}, {lost:?}"
            );
            let of_ports = conflicts(in_status, &|reason| reason == Reason::ProtocolConflict);
            assert!(
                of_ports.is_subset(&refused),
                "{name}: {key}: {of_ports:?}, {refused:?}"
            );
        }
    }
}

/// `vestibule check` says what translation says, and shows the refusal that admission gives.
fn check_agrees(case: &Case) {
    let translator = case.translated();
    let reviewed = case.reviewed();
    let checked = case.checked();
    for object in &case.objects {
        let key = object.key();
        let verdict = checked
            .get(&key.to_string())
            .unwrap_or_else(|| panic!("{}: check says nothing of {key}", case.name));
        let shown: BTreeSet<(String, String)> = verdict["findings"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|f| {
                (
                    f["reason"].as_str().unwrap().into(),
                    f["field"].as_str().unwrap().into(),
                )
            })
            .collect();
        let (allowed, said) = &reviewed[&key];
        let decided = translator.findings().get(&key).into_iter().flatten();
        // A warning about a first grant is about the time before it, and `check` reads all objects at once.
        let is_of_change = |f: &&Finding| key.kind.as_str() == "HostnameGrant" && !f.refuses();
        for finding in decided.chain(said.iter().filter(|f| !is_of_change(f))) {
            let entry = (finding.reason.as_str().to_owned(), finding.field.clone());
            assert!(
                shown.contains(&entry),
                "{}: {key}: {entry:?} not in {shown:?}",
                case.name
            );
        }
        assert_eq!(
            verdict["admission"].is_null(),
            *allowed,
            "{}: {key}",
            case.name
        );
    }
}

/// The guide to reasons. It has a row for every reason that a case shows.
const GUIDE: &str = include_str!("../../docs/troubleshooting.md");

/// The rows of the guide: the heading of the section, that of the part (empty without one), and the reason.
fn guide_rows() -> BTreeSet<(&'static str, &'static str, &'static str)> {
    let (mut section, mut part) = ("", "");
    let mut rows = BTreeSet::new();
    for line in GUIDE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            (section, part) = (heading, "");
        } else if let Some(heading) = line.strip_prefix("### ") {
            part = heading;
        } else if let Some(cells) = line.strip_prefix("| `") {
            let first = cells.split('|').next().unwrap_or_default();
            // Every second piece is what stands between two reasons.
            let reasons = first.split('`').step_by(2);
            rows.extend(reasons.map(|reason| (section, part, reason)));
        }
    }
    rows
}

/// The rows that the guide needs for a case: one for each reason shown at `kubectl apply`, and one for each condition.
fn needed_rows(case: &Case) -> BTreeSet<(String, &'static str, String)> {
    let shown = case.reviewed().into_values().flat_map(|(_, said)| said);
    let mut rows: BTreeSet<_> = shown
        .map(|f| {
            (
                "kubectl apply is refused".to_owned(),
                "",
                f.reason.to_string(),
            )
        })
        .collect();
    for (key, said) in outcome(case) {
        let own = match key.split(' ').next() {
            Some("GatewayClass" | "Gateway") => "GatewayClass and Gateway",
            Some("ListenerSet") => "ListenerSet",
            Some("HostnameGrant") => "HostnameGrant",
            _ => "",
        };
        let policy = "BackendTLSPolicy, for each Gateway whose routes use the Service";
        let route = "Routes, for each parent";
        let lists = std::iter::once((own, said.conditions))
            .chain(said.listeners.into_values().map(|list| ("Listeners", list)))
            .chain(said.parents.into_iter().map(|list| (route, list)))
            .chain(said.ancestors.into_values().map(|list| (policy, list)));
        for (part, list) in lists {
            for condition in list {
                let Some((kind, value)) = condition.split_once('=') else {
                    continue;
                };
                let Some((_, reason)) = value.split_once('/') else {
                    continue;
                };
                let part = if kind == "Accepted" { part } else { "" };
                rows.insert((kind.to_owned(), part, reason.to_owned()));
            }
        }
    }
    rows
}

fn cases() -> Vec<Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .expect("the cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().map(|path| Case::read(path)).collect()
}

#[test]
fn every_reason_of_a_case_has_its_row_in_the_guide() {
    let rows = guide_rows();
    let mut missing = BTreeSet::new();
    for case in cases() {
        let needed = needed_rows(&case).into_iter();
        let absent = needed.filter(|(section, part, reason)| {
            !rows.contains(&(section.as_str(), *part, reason.as_str()))
        });
        missing.extend(absent.map(|(section, part, reason)| {
            format!("{}: `{reason}` in \"{section}\" {part}", case.name)
        }));
    }
    let missing: Vec<String> = missing.into_iter().collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_case_comes_out_the_same_everywhere() {
    let mut wrong = Vec::new();
    for case in cases() {
        admission_agrees_with_status(&case);
        check_agrees(&case);
        let outcome = outcome(&case);
        if outcome != case.expected {
            wrong.push(format!(
                "{}: came out as\n---\n{}",
                case.name,
                serde_json::to_string_pretty(&json!({ "expected": outcome })).unwrap()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
