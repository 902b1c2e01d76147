//! ACMEIssuer and ClusterACMEIssuer: CAs from which the built-in engine gets certificates, with the account for it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vestibule_model::challenge::ChallengeType;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object;

use crate::text::quote;
use crate::unknown::UnknownFields;
use crate::{meta, names};

/// Longest URL of a directory.
const MAX_URL: usize = 2048;
/// Most contacts.
const MAX_CONTACTS: usize = 8;
/// Longest contact.
const MAX_CONTACT: usize = 256;
/// Longest name of a profile, and longest key identifier.
const MAX_WORD: usize = 256;
/// Most characters of a bundle of authorities.
const MAX_BUNDLE: usize = 65_536;
/// Entry of the Secret of an external account binding, unless it says otherwise.
const MAC_KEY: &str = "secret";
/// Ending of the name of an account's Secret; the issuer's name comes before it.
const ACCOUNT_SUFFIX: &str = "-acme-account";

/// A name of an object.
const NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

macro_rules! issuer {
    (
        $(#[$meta:meta])*
        $kind:literal $plural:literal $singular:literal $short:literal $spec:ident
        $(, $scope:ident)? ; secrets in $namespace:literal
    ) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource,
        )]
        #[kube(
            group = "vestibule.dev",
            version = "v1alpha1",
            kind = $kind,
            plural = $plural,
            singular = $singular,
            shortname = $short,
            category = "vestibule",
            $($scope,)?
            status = "IssuerStatus",
            derive = "PartialEq",
            doc = "A certificate authority that Vestibule gets certificates from by ACME.",
            printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
            printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
            printcolumn = r#"{"name":"Directory","type":"string","jsonPath":".spec.directory","priority":1}"#,
            printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
        )]
        #[serde(rename_all = "camelCase")]
        pub struct $spec {
            /// URL of the CA's ACME directory, such as
            /// `https://acme-v02.api.letsencrypt.org/directory`. Whoever uses the issuer agrees to the CA's
            /// terms of service.
            #[schemars(extend(
                "maxLength" = MAX_URL,
                "x-kubernetes-validations" = [{
                    "rule": "isURL(self) && url(self).getScheme() == 'https'",
                    "message": "must be an https:// URL",
                }, {
                    "rule": "!self.matches('^https://[^/?#]*@')",
                    "message": "must not hold a user or a password",
                }],
            ))]
            pub directory: String,
            /// Addresses that the CA writes to about the account: mailto: URLs.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            #[schemars(extend(
                "maxItems" = MAX_CONTACTS,
                "items" = {"type": "string", "maxLength": MAX_CONTACT, "pattern": "^mailto:[^@\\s,?]+@[^@\\s,?]+$"},
            ))]
            pub contact: Vec<String>,
            #[doc = concat!("The Secret, in ", $namespace, ", that holds the account's key; it is made if")]
            /// it does not exist. Default: the issuer's name followed by "-acme-account".
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub account_key_secret_ref: Option<SecretName>,
            /// The account is bound to one that the CA knows already (external account binding).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub external_account_binding: Option<ExternalAccountBinding>,
            /// Profile of the certificates, one that the CA's directory lists, such as "shortlived".
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(extend("minLength" = 1, "maxLength" = MAX_WORD))]
            pub profile: Option<String>,
            /// Certificates (PEM) of the authorities that the CA's own server is trusted by. Default: those
            /// of the public web. For a CA of one's own.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(extend("minLength" = 1, "maxLength" = MAX_BUNDLE))]
            pub ca_bundle: Option<String>,
            /// Ways in which the CA may check a name, the preferred one first: the first that can be answered for a
            /// name is used. TLS-ALPN-01 takes a TLS or HTTPS listener on port 443, HTTP-01 an HTTP
            /// listener on port 80. Default: both, in this order.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            #[schemars(extend(
                "maxItems" = 2,
                "items" = {"type": "string", "enum": ["TLS-ALPN-01", "HTTP-01"]},
                "x-kubernetes-list-type" = "set",
            ))]
            pub challenges: Vec<String>,
        }
    };
}

issuer! {
    /// A CA for the listeners of one namespace: those whose ListenerSet or Gateway has the annotation
    /// vestibule.dev/acme-issuer with its name.
    "ACMEIssuer" "acmeissuers" "acmeissuer" "acmei" ACMEIssuerSpec, namespaced;
    secrets in "the issuer's namespace"
}

issuer! {
    /// A CA for the listeners of every namespace: those whose ListenerSet or Gateway has the annotation
    /// vestibule.dev/acme-cluster-issuer with its name.
    "ClusterACMEIssuer" "clusteracmeissuers" "clusteracmeissuer" "cacmei" ClusterACMEIssuerSpec;
    secrets in "the namespace that Vestibule runs in"
}

/// A Secret beside the issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretName {
    /// Name of the Secret.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = NAME))]
    pub name: String,
}

/// An account that the CA knows already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalAccountBinding {
    /// Key identifier, as the CA gave it.
    #[serde(rename = "keyID")]
    #[schemars(extend("minLength" = 1, "maxLength" = MAX_WORD))]
    pub key_id: String,
    /// The Secret that holds the MAC key as the CA gave it (base64url), beside the account's.
    pub key_secret_ref: SecretEntry,
}

/// An entry of a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretEntry {
    /// Name of the Secret.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = NAME))]
    pub name: String,
    /// The entry. Default: "secret".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub key: Option<String>,
}

/// The state of the issuer at its CA.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuerStatus {
    /// Ready: the CA knows the account.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 8,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
    ))]
    pub conditions: Vec<IssuerCondition>,
    /// URL of the account at the CA.
    #[serde(
        default,
        rename = "accountURL",
        skip_serializing_if = "Option::is_none"
    )]
    pub account_url: Option<String>,
    /// The last error of the CA, or of the connection to it, about the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<IssuerError>,
    /// The controller that writes this status, as GatewayClasses name it: that of the release that came first.
    /// Other releases that may use the issuer leave the status to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 253))]
    pub controller_name: Option<String>,
}

/// A condition of an issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuerCondition {
    /// Its type.
    #[serde(rename = "type")]
    #[schemars(extend("maxLength" = 316))]
    pub kind: String,
    /// True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Generation that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last change of its status.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The reason in one word.
    #[schemars(extend("maxLength" = 1024))]
    pub reason: String,
    /// The reason as a text for people.
    #[schemars(extend("maxLength" = 32768))]
    pub message: String,
}

/// An error of a CA.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuerError {
    /// Type of the CA's problem document (RFC 7807), if it sent one.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The error as a text for people.
    #[schemars(extend("maxLength" = 32768))]
    pub message: String,
    /// Time of the error.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
}

/// The fields that both kinds of issuers have.
struct Spec {
    directory: String,
    contact: Vec<String>,
    account_key_secret_ref: Option<SecretName>,
    external_account_binding: Option<ExternalAccountBinding>,
    profile: Option<String>,
    ca_bundle: Option<String>,
    challenges: Vec<String>,
}

macro_rules! spec {
    ($spec:expr) => {{
        let spec = $spec;
        Spec {
            directory: spec.directory,
            contact: spec.contact,
            account_key_secret_ref: spec.account_key_secret_ref,
            external_account_binding: spec.external_account_binding,
            profile: spec.profile,
            ca_bundle: spec.ca_bundle,
            challenges: spec.challenges,
        }
    }};
}

pub(crate) fn convert_acme_issuer(wire: ACMEIssuer, unknown: &UnknownFields) -> object::AcmeIssuer {
    let key = ObjectKey {
        kind: Kind::AcmeIssuer,
        name: meta::name(&wire.metadata),
    };
    convert(key, wire.metadata, spec!(wire.spec), unknown)
}

pub(crate) fn convert_cluster_acme_issuer(
    wire: ClusterACMEIssuer,
    unknown: &UnknownFields,
) -> object::AcmeIssuer {
    let key = ObjectKey {
        kind: Kind::ClusterAcmeIssuer,
        name: ObjectName::new("", wire.metadata.name.as_deref().unwrap_or_default()),
    };
    convert(key, wire.metadata, spec!(wire.spec), unknown)
}

fn convert(
    key: ObjectKey,
    metadata: ObjectMeta,
    spec: Spec,
    unknown: &UnknownFields,
) -> object::AcmeIssuer {
    let mut findings = unknown.warnings_outside(&[]);
    let mut refuse = |field: &str, message: String, action: &str| {
        findings.push(Finding::refused(
            Reason::InvalidParameters,
            field,
            message,
            action,
        ));
    };
    if let Err(message) = check_directory(&spec.directory) {
        refuse(
            "spec.directory",
            message,
            "use the https:// URL of the CA's directory",
        );
    }
    if spec.contact.len() > MAX_CONTACTS {
        refuse(
            "spec.contact",
            format!("has more than {MAX_CONTACTS} entries"),
            "keep the ones that are read",
        );
    }
    for (index, contact) in spec.contact.iter().enumerate() {
        if !is_contact(contact) {
            refuse(
                &format!("spec.contact[{index}]"),
                format!("{} is no contact", quote(contact)),
                "write mailto:somebody@example.com",
            );
        }
    }
    let account_key_secret = match spec.account_key_secret_ref {
        Some(reference) => reference.name,
        None => format!("{}{ACCOUNT_SUFFIX}", key.name.name),
    };
    if !names::is_subdomain(&account_key_secret) {
        let finding = names::not_a_name("spec.accountKeySecretRef.name", &account_key_secret);
        refuse(&finding.field, finding.message, &finding.action);
    }
    if let Some(binding) = &spec.external_account_binding {
        if binding.key_id.is_empty() || binding.key_id.len() > MAX_WORD {
            refuse(
                "spec.externalAccountBinding.keyID",
                format!("is not 1 to {MAX_WORD} bytes"),
                "copy it from the CA",
            );
        }
        if !names::is_subdomain(&binding.key_secret_ref.name) {
            let field = "spec.externalAccountBinding.keySecretRef.name";
            let finding = names::not_a_name(field, &binding.key_secret_ref.name);
            refuse(&finding.field, finding.message, &finding.action);
        }
    }
    if spec
        .profile
        .as_ref()
        .is_some_and(|p| p.is_empty() || p.len() > MAX_WORD)
    {
        refuse(
            "spec.profile",
            format!("is not 1 to {MAX_WORD} bytes"),
            "use one that the CA's directory lists, or remove it",
        );
    }
    if let Some(bundle) = &spec.ca_bundle
        && (bundle.len() > MAX_BUNDLE || !bundle.contains("-----BEGIN CERTIFICATE-----"))
    {
        refuse(
            "spec.caBundle",
            format!("is no bundle of certificates in PEM of at most {MAX_BUNDLE} bytes"),
            "put the PEM certificate of the CA's authority there, or remove it",
        );
    }
    let challenges = challenges(&spec.challenges, &mut findings);
    object::AcmeIssuer {
        key,
        meta: meta::convert(&metadata),
        labels: metadata.labels.unwrap_or_default(),
        directory: spec.directory.into(),
        contact: spec.contact.into_iter().map(Into::into).collect(),
        account_key_secret: account_key_secret.into(),
        external_account: spec
            .external_account_binding
            .map(|binding| object::ExternalAccount {
                key_id: binding.key_id.into(),
                secret: binding.key_secret_ref.name.into(),
                key: binding
                    .key_secret_ref
                    .key
                    .as_deref()
                    .unwrap_or(MAC_KEY)
                    .into(),
            }),
        profile: spec.profile.map(Into::into),
        ca_bundle: spec.ca_bundle.map(Into::into),
        challenges,
        findings,
    }
}

/// The challenge types, in order; all of them if none is named.
fn challenges(texts: &[String], findings: &mut Vec<Finding>) -> Vec<ChallengeType> {
    let mut challenges = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let (message, action) = match ChallengeType::from_spec(text) {
            Some(kind) if challenges.contains(&kind) => {
                ("is one too many".to_owned(), "name each type once")
            }
            Some(kind) => {
                challenges.push(kind);
                continue;
            }
            None => (
                format!("{} is no challenge that Vestibule answers", quote(text)),
                "use TLS-ALPN-01 or HTTP-01",
            ),
        };
        findings.push(Finding::refused(
            Reason::InvalidParameters,
            format!("spec.challenges[{index}]"),
            message,
            action,
        ));
    }
    if challenges.is_empty() {
        challenges.extend(ChallengeType::ALL);
    }
    challenges
}

fn check_directory(url: &str) -> Result<(), String> {
    let Some(rest) = url.strip_prefix("https://") else {
        return Err(if url.is_empty() {
            "is absent".into()
        } else {
            format!("{} is not an https:// URL", quote(url))
        });
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let sound = !host.is_empty()
        && !host.contains('@')
        && url.len() <= MAX_URL
        && url.bytes().all(|b| b.is_ascii_graphic());
    if sound {
        Ok(())
    } else {
        Err(format!("{} is not a URL", quote(url)))
    }
}

fn is_contact(text: &str) -> bool {
    let Some((user, host)) = text.strip_prefix("mailto:").and_then(|a| a.split_once('@')) else {
        return false;
    };
    let sound = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_graphic() && !b"@,?".contains(&b))
    };
    text.len() <= MAX_CONTACT && sound(user) && sound(host)
}
