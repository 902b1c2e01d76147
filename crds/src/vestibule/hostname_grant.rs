//! HostnameGrant: which namespaces may use which hostnames on the Gateways in its namespace, and within which
//! limits.

use std::collections::{BTreeMap, BTreeSet};

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vestibule_model::certificate::{AddressBlock, GrantedMailbox};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::hostname_grant::{self, ConnectionLimits, MAX_CONNECTION_SHARES};
use vestibule_model::path::{MAX_PREFIX, PathPrefix, PathPrefixError};
use vestibule_model::protocol::{Port, Protocol};
use vestibule_model::selector::LabelSelector;

use super::selector::{MAX_REQUIREMENTS, SelectorSpec};
use crate::gateway_api::requirements;
use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{meta, names};

/// Most Gateways of a grant, and most ports.
const MAX_GATEWAYS: usize = 16;
/// Most namespaces that a grant names.
const MAX_NAMESPACES: usize = 256;
/// Most hostnames.
const MAX_HOSTNAMES: usize = 256;
/// Most issuers.
const MAX_ISSUERS: usize = 32;
/// Most IP addresses, and most mailboxes.
const MAX_ALTERNATIVES: usize = 64;
/// An IP address, or a block of them; which ones are read is for the reader to say.
const ADDRESS: &str = "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$";
/// A mailbox, or "*@" and a domain.
const MAILBOX: &str = r"^(\*|[a-zA-Z0-9_+-]+(\.[a-zA-Z0-9_+-]+)*)@[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// Largest limit.
const MAX_LIMIT: u32 = 100_000;
/// Largest limit on connections. A proxy can have more connections than a namespace has objects.
const MAX_CONNECTIONS: u32 = 100_000_000;
/// A hostname, "*." and a hostname, or "*".
const HOSTNAME: &str =
    r"^(\*|(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$";

/// A hostname. A wildcard cannot be shared: who shares has to know what.
const SHARED: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// CEL: neither a name that clients read as an address nor one with a label that is too long.
const SERVABLE: &str = "!self.matches('(^|[.])([0-9]+|0x[0-9a-f]*)$') && !self.matches('[^.]{64}')";

/// Most hostnames of which parts are shared, and most parts of one of them.
const MAX_SHARED_PATHS: usize = 64;
const MAX_PATHS: usize = 16;

/// A path of at least one element, without a slash at the end. What is escaped, and what some read as the end of an
/// element, it does not have.
const PATH: &str = r"^(/[-A-Za-z0-9._~!$&'()*+,=:@]+)+$";

/// CEL: no element of dots.
const PLAIN_PATH: &str = "!self.matches('/[.][.]?(/|$)')";

/// CEL: neither around, at nor inside a path where CAs look for proof of a domain, as [`PathPrefix`] says it.
const NO_VALIDATION: &str = "self != '/.well-known' && !self.matches('^/[.]well-known/(acme-challenge|pki-validation)(/|$)')";

/// CEL: something is given.
const GIVES: &str = "(has(self.hostnames) && size(self.hostnames) > 0) || (has(self.sharedHostnames) && size(self.sharedHostnames) > 0) || (has(self.sharedPaths) && size(self.sharedPaths) > 0)";

/// A grant lets namespaces use hostnames on the Gateways of its own namespace. As soon as a Gateway
/// has one grant, ListenerSets and routes of other namespaces may only use what they are granted; several
/// grants for a namespace add up. The Gateway's own namespace needs none.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource,
)]
#[kube(
    group = "vestibule.dev",
    version = "v1alpha1",
    kind = "HostnameGrant",
    plural = "hostnamegrants",
    singular = "hostnamegrant",
    shortname = "hgrant",
    category = "vestibule",
    namespaced,
    status = "HostnameGrantStatus",
    derive = "PartialEq",
    doc = "HostnameGrant says which namespaces may use which hostnames on the Gateways beside it, and how much.",
    printcolumn = r#"{"name":"Hostnames","type":"string","jsonPath":".spec.hostnames"}"#,
    printcolumn = r#"{"name":"Namespaces","type":"string","jsonPath":".spec.namespaces.names"}"#,
    printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": GIVES,
    "message": "must have hostnames, sharedHostnames or sharedPaths",
}]))]
pub struct HostnameGrantSpec {
    /// Names of Gateways in the grant's namespace. Default: every one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_GATEWAYS,
        "items" = {"type": "string", "minLength": 1, "maxLength": 253},
        "x-kubernetes-list-type" = "set",
    ))]
    pub gateways: Vec<String>,
    /// Namespaces that may use the hostnames.
    pub namespaces: NamespacesSpec,
    /// Hostnames that the namespaces may use: a hostname ("shop.example.com"), everything below one at any depth, the
    /// wildcard itself included but not the name itself ("*.team.example.com"), or everything, listeners without a
    /// hostname included ("*").
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_HOSTNAMES,
        "items" = {
            "type": "string", "minLength": 1, "maxLength": 253, "pattern": HOSTNAME,
            "x-kubernetes-validations": [{
                "rule": SERVABLE,
                "message": "must not be an IP address in any form, nor have a label of more than 63 characters",
            }],
        },
        "x-kubernetes-list-type" = "set",
    ))]
    pub hostnames: Vec<String>,
    /// Hostnames that they share with whoever holds them: their HTTPRoutes and GRPCRoutes on the Gateways' own
    /// listeners may have them beside the holder's. Nobody holds a name by this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_HOSTNAMES,
        "items" = {
            "type": "string", "minLength": 1, "maxLength": 253, "pattern": SHARED,
            "x-kubernetes-validations": [{
                "rule": SERVABLE,
                "message": "must not be an IP address in any form, nor have a label of more than 63 characters",
            }],
        },
        "x-kubernetes-list-type" = "set",
    ))]
    pub shared_hostnames: Vec<String>,
    /// Parts of hostnames that they share with whoever holds them: their HTTPRoutes and GRPCRoutes on the Gateways' own
    /// listeners may have these paths of the name, and no others. Nobody holds a name by this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_SHARED_PATHS,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["hostname"],
    ))]
    pub shared_paths: Vec<SharedPathsSpec>,
    /// Ports of listeners. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_GATEWAYS,
        "items" = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535},
        "x-kubernetes-list-type" = "set",
    ))]
    pub ports: Vec<i64>,
    /// Protocols of listeners: HTTP, HTTPS, TLS, TCP, UDP. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 5,
        "items" = {"type": "string", "enum": ["HTTP", "HTTPS", "TLS", "TCP", "UDP"]},
        "x-kubernetes-list-type" = "set",
    ))]
    pub protocols: Vec<String>,
    /// Issuers that certificates for the hostnames may come from, whether a ListenerSet names them or
    /// inherits them from its Gateway. Absent: any; an empty list: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxItems" = MAX_ISSUERS, "x-kubernetes-list-type" = "atomic"))]
    pub issuers: Option<Vec<IssuerSpec>>,
    /// Names that certificates of the namespaces may have beside the hostnames of their listeners. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificatesSpec>,
    /// Limits for each of the namespaces on each of the Gateways. Of several grants for a namespace
    /// the largest limit counts that is stated; without any there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<GrantLimitsSpec>,
}

/// Parts of one hostname.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharedPathsSpec {
    /// The hostname; no wildcard.
    #[schemars(extend(
        "minLength" = 1,
        "maxLength" = 253,
        "pattern" = SHARED,
        "x-kubernetes-validations" = [{
            "rule": SERVABLE,
            "message": "must not be an IP address in any form, nor have a label of more than 63 characters",
        }],
    ))]
    pub hostname: String,
    /// Path prefixes, by element: "/api" is /api and everything below it, and not /apix. Not "/", without a slash at
    /// the end, and no path where CAs look for proof of a domain.
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = MAX_PATHS,
        "items" = {
            "type": "string", "minLength": 2, "maxLength": MAX_PREFIX, "pattern": PATH,
            "x-kubernetes-validations": [
                {"rule": PLAIN_PATH, "message": "must not have a path element of dots"},
                {
                    "rule": NO_VALIDATION,
                    "message": "must not take in a path where CAs look for proof of a domain, nor be inside one",
                },
            ],
        },
        "x-kubernetes-list-type" = "set",
    ))]
    pub paths: Vec<String>,
}

/// Namespaces by name, by label, or both: a namespace that is named or selected is meant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.names) || has(self.selector)",
    "message": "must have names, a selector, or both",
}]))]
pub struct NamespacesSpec {
    /// Their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = MAX_NAMESPACES,
        "items" = {"type": "string", "minLength": 1, "maxLength": 63},
        "x-kubernetes-list-type" = "set",
    ))]
    pub names: Vec<String>,
    /// Their labels; {} means every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<SelectorSpec>,
}

/// An issuer of certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IssuerSpec {
    /// Its API group, such as vestibule.dev or cert-manager.io.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub group: String,
    /// Its kind, such as ClusterACMEIssuer or ClusterIssuer.
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub kind: String,
    /// Its name. Default: any of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub name: Option<String>,
}

/// Names that certificates may have beside the hostnames of their listeners, if annotations of the ListenerSet ask for
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificatesSpec {
    /// If true, certificates may have further hostnames that the grant covers and that the namespace holds on the
    /// Gateway (annotation cert-manager.io/alt-names). Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alternative_names: bool,
    /// IP addresses that certificates may have (annotation cert-manager.io/ip-sans): an address ("192.0.2.1") or a
    /// block ("192.0.2.0/24"). Whether they belong to the namespace, nobody checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_ALTERNATIVES,
        "items" = {"type": "string", "minLength": 2, "maxLength": 49, "pattern": ADDRESS},
        "x-kubernetes-list-type" = "set",
    ))]
    pub ip_addresses: Vec<String>,
    /// Mailboxes that certificates may have (annotation cert-manager.io/email-sans): one ("ops@example.com"), or all of
    /// a domain ("*@example.com"). Whether they belong to the namespace, nobody checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = MAX_ALTERNATIVES,
        "items" = {"type": "string", "minLength": 3, "maxLength": 318, "pattern": MAILBOX},
        "x-kubernetes-list-type" = "set",
    ))]
    pub email_addresses: Vec<String>,
}

/// Limits per namespace and Gateway. Those on connections are per namespace and proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantLimitsSpec {
    /// Most listeners of ListenerSets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32", "minimum" = 0, "maximum" = MAX_LIMIT))]
    pub listeners: Option<i64>,
    /// Most hostnames with a certificate from an issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32", "minimum" = 0, "maximum" = MAX_LIMIT))]
    pub certificates: Option<i64>,
    /// Most hostnames that a namespace holds, a wildcard counted as one. Without a limit, that of the release counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32", "minimum" = 0, "maximum" = MAX_LIMIT))]
    pub hostnames: Option<i64>,
    /// Most ports of ListenerSets that the Gateway does not have itself. Without a limit, that of the release counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32", "minimum" = 0, "maximum" = MAX_LIMIT))]
    pub ports: Option<i64>,
    /// Equal shares of the guaranteed connections for which a namespace counts, on all Gateways together.
    /// Without a value, it counts for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32", "minimum" = 1, "maximum" = MAX_CONNECTION_SHARES))]
    pub connection_shares: Option<i64>,
    /// Most connections of clients at one time, in each proxy and on all Gateways together. Borrowed ones
    /// count. Without a limit, a namespace can have all that are free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32", "minimum" = 1, "maximum" = MAX_CONNECTIONS))]
    pub connections: Option<i64>,
}

/// The state of a grant, as Vestibule sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostnameGrantStatus {
    /// Accepted: all of it can be read and is in force. ResolvedRefs: the Gateways it names are there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 8,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
    ))]
    pub conditions: Vec<super::acme_issuer::IssuerCondition>,
}

/// Reads a grant. If a part that restricts the grant cannot be read, the grant gives nothing. If a hostname is not
/// valid, only that hostname is not given.
pub(crate) fn convert(
    wire: HostnameGrant,
    unknown: &UnknownFields,
) -> hostname_grant::HostnameGrant {
    let spec = wire.spec;
    let mut reader = Reader {
        findings: unknown.refusals_between(&["spec"], &["spec", "limits"]),
    };
    let gateways = reader.names("spec.gateways", &spec.gateways, MAX_GATEWAYS);
    let namespaces = reader.namespaces(spec.namespaces);
    let ports = reader.ports(&spec.ports);
    let protocols = reader.protocols(&spec.protocols);
    let issuers = spec.issuers.map(|issuers| reader.issuers(issuers));
    let mut limits = reader.limits(&spec.limits.unwrap_or_default());
    let void = !reader.findings.is_empty();
    if void {
        // Shares are something that a grant gives. Its limits stay.
        limits.connections.shares = None;
    }
    let certificates = reader.certificates(&spec.certificates.unwrap_or_default());
    let hostnames = reader.hostnames(&spec.hostnames);
    let shared = reader.shared(&spec.shared_hostnames);
    let shared_paths = reader.shared_paths(&spec.shared_paths);
    let gives = !(hostnames.is_empty() && shared.is_empty() && shared_paths.is_empty());
    if !gives && reader.findings.is_empty() {
        reader.refuse(
            "spec.hostnames",
            "names no hostname, so nothing is granted",
            "name the hostnames",
        );
    }
    let mut findings = reader.findings;
    findings.extend(unknown.warnings_outside(&[&["spec"]]));
    if unknown.any_below(&["spec", "limits"]) {
        findings.push(Finding::warning(
            Reason::UnknownField,
            "spec.limits",
            "has a field this release does not know, so it has no effect",
            "check its spelling, or upgrade Vestibule",
        ));
    }
    hostname_grant::HostnameGrant {
        name: meta::name(&wire.metadata),
        meta: meta::convert(&wire.metadata),
        gateways,
        namespaces,
        hostnames: if void { Vec::new() } else { hostnames },
        shared: if void { BTreeSet::new() } else { shared },
        shared_paths: if void { BTreeMap::new() } else { shared_paths },
        ports,
        protocols,
        issuers,
        certificates: if void {
            Box::default()
        } else {
            Box::new(certificates)
        },
        limits,
        findings,
    }
}

struct Reader {
    findings: Vec<Finding>,
}

impl Reader {
    fn refuse(&mut self, field: impl Into<String>, message: impl Into<String>, action: &str) {
        let finding = Finding::refused(Reason::InvalidValue, field, message, action);
        self.findings.push(finding);
    }

    /// How many entries of a list are read. If there are more, that is a refusal. What is left out is not given, or, of a
    /// list that restricts the grant, the grant gives nothing.
    fn bound(&mut self, field: &str, count: usize, most: usize) -> usize {
        if count > most {
            let message = format!("has {count} entries, and {most} is the most");
            self.refuse(field, message, "spread them over several grants");
        }
        count.min(most)
    }

    /// The names of Gateways or namespaces. If there are too many, the grant gives nothing, and keeps all of them: a
    /// Gateway whose name is left out would count as one without grants, and a namespace as one without limits.
    fn names(
        &mut self,
        field: &str,
        texts: &[String],
        most: usize,
    ) -> BTreeSet<std::sync::Arc<str>> {
        let count = self.bound(field, texts.len(), most);
        for (index, text) in texts.iter().take(count).enumerate() {
            if !names::is_subdomain(text) {
                let finding = names::not_a_name(&format!("{field}[{index}]"), text);
                self.findings.push(finding);
            }
        }
        texts.iter().map(|text| text.as_str().into()).collect()
    }

    fn namespaces(&mut self, spec: NamespacesSpec) -> hostname_grant::GrantedNamespaces {
        if spec.names.is_empty() && spec.selector.is_none() {
            self.refuse(
                "spec.namespaces",
                "has neither names nor a selector",
                "name the namespaces, or select them by label ({} is every namespace)",
            );
        }
        let names = self.names("spec.namespaces.names", &spec.names, MAX_NAMESPACES);
        let selector = spec.selector.map(|selector| self.selector(selector));
        hostname_grant::GrantedNamespaces { names, selector }
    }

    fn selector(&mut self, spec: SelectorSpec) -> LabelSelector {
        let field = "spec.namespaces.selector";
        let count = spec.match_labels.len().max(spec.match_expressions.len());
        self.bound(field, count, MAX_REQUIREMENTS);
        let (selector, problems) = requirements(spec.into_wire());
        for problem in problems {
            let field = format!("{field}.{}", problem.part);
            self.refuse(field, problem.message, problem.action);
        }
        selector
    }

    fn hostnames(&mut self, texts: &[String]) -> Vec<HostPattern> {
        let count = self.bound("spec.hostnames", texts.len(), MAX_HOSTNAMES);
        let mut hostnames = Vec::with_capacity(count);
        for (index, text) in texts.iter().take(count).enumerate() {
            let field = format!("spec.hostnames[{index}]");
            if text == "*" {
                hostnames.push(HostPattern::Any);
            } else if text.is_empty() {
                self.refuse(field, "is empty", "write \"*\" to grant every hostname");
            } else {
                match HostPattern::parse(text) {
                    Ok(pattern) => hostnames.push(pattern),
                    Err(error) => {
                        let finding = names::not_a_hostname(field, text, &error);
                        self.findings.push(finding);
                    }
                }
            }
        }
        hostnames
    }

    fn shared(&mut self, texts: &[String]) -> BTreeSet<Hostname> {
        let count = self.bound("spec.sharedHostnames", texts.len(), MAX_HOSTNAMES);
        let texts = texts.iter().take(count).enumerate();
        texts
            .filter_map(|(index, text)| {
                self.shared_name(format!("spec.sharedHostnames[{index}]"), text)
            })
            .collect()
    }

    fn shared_name(&mut self, field: String, text: &str) -> Option<Hostname> {
        if text.starts_with('*') {
            let message = format!(
                "{} is a wildcard, and only a hostname can be shared",
                quote(text)
            );
            self.refuse(field, message, "list each of the hostnames");
            return None;
        }
        let read = Hostname::parse(text);
        read.map_err(|error| {
            let finding = names::not_a_hostname(field, text, &error);
            self.findings.push(finding);
        })
        .ok()
    }

    /// The shared paths of hostnames. Entries that cannot be read are not shared.
    fn shared_paths(
        &mut self,
        specs: &[SharedPathsSpec],
    ) -> BTreeMap<Hostname, BTreeSet<PathPrefix>> {
        let count = self.bound("spec.sharedPaths", specs.len(), MAX_SHARED_PATHS);
        let mut shared: BTreeMap<Hostname, BTreeSet<PathPrefix>> = BTreeMap::new();
        for (index, spec) in specs.iter().take(count).enumerate() {
            let field = format!("spec.sharedPaths[{index}]");
            let name = self.shared_name(format!("{field}.hostname"), &spec.hostname);
            let paths = self.paths(&format!("{field}.paths"), &spec.paths);
            if let Some(name) = name
                && !paths.is_empty()
            {
                shared.entry(name).or_default().extend(paths);
            }
        }
        shared
    }

    fn paths(&mut self, field: &str, texts: &[String]) -> BTreeSet<PathPrefix> {
        if texts.is_empty() {
            self.refuse(
                field,
                "is empty, so nothing of the hostname is shared",
                "list the paths, or the hostname in sharedHostnames",
            );
        }
        let count = self.bound(field, texts.len(), MAX_PATHS);
        let mut paths = BTreeSet::new();
        for (index, text) in texts.iter().take(count).enumerate() {
            match PathPrefix::parse(text) {
                Ok(path) => _ = paths.insert(path),
                Err(error) => {
                    let action = match error {
                        PathPrefixError::Everything => "list the hostname in sharedHostnames",
                        PathPrefixError::Validation => "share other paths",
                        _ => "write a path such as /api",
                    };
                    let message = format!("{} {error}", quote(text));
                    self.refuse(format!("{field}[{index}]"), message, action);
                }
            }
        }
        paths
    }

    fn ports(&mut self, numbers: &[i64]) -> BTreeSet<Port> {
        let count = self.bound("spec.ports", numbers.len(), MAX_GATEWAYS);
        let mut ports = BTreeSet::new();
        for (index, number) in numbers.iter().take(count).enumerate() {
            match u16::try_from(*number).ok().and_then(Port::new) {
                Some(port) => {
                    ports.insert(port);
                }
                None => self.refuse(
                    format!("spec.ports[{index}]"),
                    format!("{number} is no port"),
                    "use a number from 1 to 65535",
                ),
            }
        }
        ports
    }

    fn protocols(&mut self, texts: &[String]) -> BTreeSet<Protocol> {
        let mut protocols = BTreeSet::new();
        for (index, text) in texts.iter().enumerate() {
            match Protocol::from_text(text) {
                Protocol::Other(_) => self.refuse(
                    format!("spec.protocols[{index}]"),
                    format!("{} is no protocol", quote(text)),
                    "use HTTP, HTTPS, TLS, TCP or UDP",
                ),
                protocol => {
                    protocols.insert(protocol);
                }
            }
        }
        protocols
    }

    fn issuers(&mut self, specs: Vec<IssuerSpec>) -> Vec<hostname_grant::GrantedIssuer> {
        let count = self.bound("spec.issuers", specs.len(), MAX_ISSUERS);
        specs
            .into_iter()
            .take(count)
            .map(|spec| hostname_grant::GrantedIssuer {
                group: spec.group.into(),
                kind: spec.kind.into(),
                name: spec.name.map(Into::into),
            })
            .collect()
    }

    /// Reads what certificates may have. Only entries that cannot be read are left out.
    fn certificates(&mut self, spec: &CertificatesSpec) -> hostname_grant::GrantedCertificates {
        hostname_grant::GrantedCertificates {
            alternative_names: spec.alternative_names,
            addresses: self.alternatives(
                "spec.certificates.ipAddresses",
                &spec.ip_addresses,
                AddressBlock::parse,
                "write an address, or a block whose bits after the prefix are zero, as in 192.0.2.0/24",
            ),
            mailboxes: self.alternatives(
                "spec.certificates.emailAddresses",
                &spec.email_addresses,
                GrantedMailbox::parse,
                "write a mailbox, as in ops@example.com, or *@ and a domain",
            ),
        }
    }

    fn alternatives<T>(
        &mut self,
        field: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Option<T>,
        action: &str,
    ) -> Vec<T> {
        let count = self.bound(field, texts.len(), MAX_ALTERNATIVES);
        let mut read = Vec::with_capacity(count);
        for (index, text) in texts.iter().take(count).enumerate() {
            if let Some(parsed) = parse(text) {
                read.push(parsed);
            } else {
                let message = format!("{} cannot be read", quote(text));
                self.refuse(format!("{field}[{index}]"), message, action);
            }
        }
        read
    }

    fn limits(&mut self, spec: &GrantLimitsSpec) -> hostname_grant::GrantLimits {
        let mut read = |field: &str, limit: Option<i64>, (least, most): (u32, u32)| {
            let limit = limit?;
            let read = u32::try_from(limit).ok();
            let read = read.filter(|limit| (least..=most).contains(limit));
            if read.is_none() {
                self.refuse(
                    format!("spec.limits.{field}"),
                    format!("{limit} is not from {least} to {most}"),
                    "use such a number, or remove it",
                );
            }
            read
        };
        let any = (0, MAX_LIMIT);
        let shares = (1, MAX_CONNECTION_SHARES);
        hostname_grant::GrantLimits {
            listeners: read("listeners", spec.listeners, any),
            certificates: read("certificates", spec.certificates, any),
            hostnames: read("hostnames", spec.hostnames, any),
            ports: read("ports", spec.ports, any),
            connections: ConnectionLimits {
                shares: read("connectionShares", spec.connection_shares, shares),
                most: read("connections", spec.connections, (1, MAX_CONNECTIONS)),
            },
        }
    }
}
