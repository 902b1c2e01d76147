//! Reads the certificate annotations. Those of cert-manager are read in the same way as by its own annotation support
//! (`pkg/controller/certificate-shim/helper.go`, v1.21.2). The result is checked in the same way as its webhook checks
//! a Certificate (`internal/apis/certmanager/validation/certificate.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use vestibule_model::certificate::{
    AlternativeNames, CertificateAnnotations, CertificateOptions, KeyAlgorithm, KeyEncoding,
    KeyRotation, MAX_ALTERNATIVE_NAMES, Mailbox, PrivateKeyOptions, Subject, address,
};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::Hostname;
use vestibule_model::key::VESTIBULE_GROUP;

use crate::text::quote;

const PREFIX: &str = "cert-manager.io/";
/// The annotation that has, for the built-in engine, the meaning of `cert-manager.io/ignore-tls-listeners`.
const ACME_IGNORED: &str = "vestibule.dev/ignore-tls-listeners";
const HTTP01_FALLBACK: &str = "acme.cert-manager.io/http01-parentreffallback";
const HTTP01_IN_PLACE: &str = "acme.cert-manager.io/http01-edit-in-place";
const HTTP01_CLASS: &str = "acme.cert-manager.io/http01-ingress-class";
const HTTP01_CLASS_NAME: &str = "acme.cert-manager.io/http01-ingress-ingressclassname";

/// The annotations that are read here. Together with those that name issuers
/// ([`ANNOTATIONS`](vestibule_model::issuer::ANNOTATIONS)), they are everything in the metadata of a Gateway or
/// ListenerSet that changes its certificates.
pub const CERTIFICATE_ANNOTATIONS: [&str; 29] = [
    HTTP01_IN_PLACE,
    HTTP01_CLASS,
    HTTP01_CLASS_NAME,
    HTTP01_FALLBACK,
    "cert-manager.io/alt-names",
    "cert-manager.io/common-name",
    "cert-manager.io/duration",
    "cert-manager.io/email-sans",
    "cert-manager.io/ignore-tls-listeners",
    "cert-manager.io/ip-sans",
    "cert-manager.io/issue-temporary-certificate",
    "cert-manager.io/private-key-algorithm",
    "cert-manager.io/private-key-encoding",
    "cert-manager.io/private-key-rotation-policy",
    "cert-manager.io/private-key-size",
    "cert-manager.io/renew-before",
    "cert-manager.io/renew-before-percentage",
    "cert-manager.io/revision-history-limit",
    "cert-manager.io/secret-template",
    "cert-manager.io/subject-countries",
    "cert-manager.io/subject-localities",
    "cert-manager.io/subject-organizationalunits",
    "cert-manager.io/subject-organizations",
    "cert-manager.io/subject-postalcodes",
    "cert-manager.io/subject-provinces",
    "cert-manager.io/subject-serialnumber",
    "cert-manager.io/subject-streetaddresses",
    "cert-manager.io/usages",
    ACME_IGNORED,
];

/// Default duration of a certificate in cert-manager.
const DEFAULT_DURATION: Duration = Duration::from_hours(90 * 24);
/// Shortest duration, and shortest time of a renewal before the end, that cert-manager accepts.
const MIN_DURATION: Duration = Duration::from_hours(1);
const MIN_RENEW_BEFORE: Duration = Duration::from_mins(5);
/// Longest common name (RFC 5280, `ub-common-name`).
const MAX_COMMON_NAME: usize = 64;
const RSA_BITS: std::ops::RangeInclusive<u32> = 2048..=8192;
const ECDSA_BITS: [u32; 3] = [256, 384, 521];

/// The usages that cert-manager knows.
const USAGES: [&str; 23] = [
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
    "any",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "ocsp signing",
    "microsoft sgc",
    "netscape sgc",
];

/// Reads the annotations of a Gateway or ListenerSet.
pub(crate) fn annotations(meta: &ObjectMeta) -> CertificateAnnotations {
    let none = BTreeMap::new();
    let mut reader = Reader {
        annotations: meta.annotations.as_ref().unwrap_or(&none),
        findings: Vec::new(),
    };
    let alternative_names = reader.alternative_names();
    let (secret_annotations, secret_labels) = reader.secret_template();
    let duration = reader.duration("duration");
    let renew_before = reader.duration("renew-before");
    let percentage = reader.number("renew-before-percentage");
    reader.check_times(duration, renew_before, percentage);
    let options = CertificateOptions {
        common_name: reader.common_name(),
        alternative_names,
        subject: reader.subject(),
        duration,
        renew_before,
        renew_before_percentage: percentage.and_then(|p| u8::try_from(p).ok()),
        usages: reader.usages(),
        revision_history_limit: reader.revision_history_limit(),
        private_key: reader.private_key(),
        secret_annotations,
        secret_labels,
        http01_parent_fallback: reader.full(HTTP01_FALLBACK).is_some_and(is_true),
        http01_ingress_class: reader.non_empty(HTTP01_CLASS),
        http01_ingress_class_name: reader.non_empty(HTTP01_CLASS_NAME),
        ignored_listeners: listeners(reader.get("ignore-tls-listeners")),
        acme_ignored_listeners: listeners(reader.full(ACME_IGNORED)),
        // For these two, cert-manager accepts no other word.
        temporary: reader.get("issue-temporary-certificate") == Some("true"),
        http01_edit_in_place: reader.full(HTTP01_IN_PLACE) == Some("true"),
        copied_annotations: BTreeMap::new(),
        labels: meta.labels.clone().unwrap_or_default(),
    };
    CertificateAnnotations {
        options: Arc::new(options),
        findings: reader.findings,
    }
}

/// The annotations, and what is wrong with them.
struct Reader<'a> {
    annotations: &'a BTreeMap<String, String>,
    findings: Vec<Finding>,
}

impl<'a> Reader<'a> {
    fn full(&self, key: &str) -> Option<&'a str> {
        debug_assert!(
            CERTIFICATE_ANNOTATIONS.contains(&key),
            "{key} is not listed"
        );
        self.annotations.get(key).map(String::as_str)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.full(&format!("{PREFIX}{name}"))
    }

    fn non_empty(&self, key: &str) -> Option<Arc<str>> {
        self.full(key)
            .filter(|value| !value.is_empty())
            .map(Into::into)
    }

    fn refuse(&mut self, name: &str, message: impl Into<String>, action: &str) {
        self.findings.push(Finding::refused(
            Reason::InvalidAnnotation,
            format!("metadata.annotations[{PREFIX}{name}]"),
            format!("{}, so no certificate is requested", message.into()),
            action,
        ));
    }

    /// Names that no listener carries. If a list has a wrong entry, nothing of it counts.
    fn alternative_names(&mut self) -> AlternativeNames {
        let hostname = |text: &str| Hostname::parse(text).ok();
        AlternativeNames {
            hostnames: self.names(
                "alt-names",
                hostname,
                "list exact hostnames, without wildcards",
            ),
            addresses: self.names::<IpAddr>("ip-sans", address, "list IP addresses"),
            mailboxes: self.names(
                "email-sans",
                Mailbox::parse,
                "list plain addresses, as in ops@example.com",
            ),
        }
    }

    /// Reads entries that are separated by commas.
    fn names<T: Ord>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
        action: &str,
    ) -> BTreeSet<T> {
        let text = self.get(name).unwrap_or_default();
        if text.is_empty() {
            return BTreeSet::new();
        }
        let mut names = BTreeSet::new();
        for (index, entry) in text.split(',').map(str::trim).enumerate() {
            if index >= MAX_ALTERNATIVE_NAMES {
                let message = format!("has more than {MAX_ALTERNATIVE_NAMES} entries");
                self.refuse(name, message, "remove some");
                return BTreeSet::new();
            }
            let Some(parsed) = parse(entry) else {
                let message = format!("has {}, which is not one of what it lists", quote(entry));
                self.refuse(name, message, action);
                return BTreeSet::new();
            };
            names.insert(parsed);
        }
        names
    }

    fn common_name(&mut self) -> Option<Arc<str>> {
        let name = self.get("common-name").filter(|name| !name.is_empty())?;
        if name.len() > MAX_COMMON_NAME {
            self.refuse(
                "common-name",
                format!("has more than {MAX_COMMON_NAME} characters"),
                "remove it: clients look at the hostnames",
            );
            return None;
        }
        Some(name.into())
    }

    fn subject(&mut self) -> Subject {
        Subject {
            organizations: self.list("subject-organizations"),
            organizational_units: self.list("subject-organizationalunits"),
            countries: self.list("subject-countries"),
            provinces: self.list("subject-provinces"),
            localities: self.list("subject-localities"),
            postal_codes: self.list("subject-postalcodes"),
            street_addresses: self.list("subject-streetaddresses"),
            serial_number: self
                .get("subject-serialnumber")
                .filter(|text| !text.is_empty())
                .map(Into::into),
        }
    }

    /// Reads a line of CSV.
    fn list(&mut self, name: &str) -> Vec<Arc<str>> {
        let Some(text) = self.get(name) else {
            return Vec::new();
        };
        csv(text).unwrap_or_else(|| {
            let message = format!("{} is not one line of comma-separated values", quote(text));
            self.refuse(
                name,
                message,
                "put values with commas or quotes into quotes",
            );
            Vec::new()
        })
    }

    fn duration(&mut self, name: &str) -> Option<Duration> {
        let text = self.get(name)?;
        let parsed = duration(text);
        if parsed.is_none() {
            let message = format!("{} is not a duration", quote(text));
            self.refuse(name, message, "write it as in 2160h or 1h30m");
        }
        parsed
    }

    fn number(&mut self, name: &str) -> Option<i32> {
        let text = self.get(name)?;
        let parsed: Option<i32> = text.parse().ok();
        if parsed.is_none() {
            let message = format!("{} is not a whole number", quote(text));
            self.refuse(name, message, "write a number");
        }
        parsed
    }

    fn check_times(
        &mut self,
        duration: Option<Duration>,
        renew_before: Option<Duration>,
        percentage: Option<i32>,
    ) {
        let whole = duration.unwrap_or(DEFAULT_DURATION);
        if whole < MIN_DURATION {
            self.refuse("duration", "is less than an hour", "use 1h or more");
        }
        if let Some(before) = renew_before {
            if percentage.is_some() {
                self.refuse(
                    "renew-before-percentage",
                    "is set beside renew-before",
                    "keep one of the two",
                );
            }
            if before < MIN_RENEW_BEFORE || before >= whole {
                self.refuse(
                    "renew-before",
                    "is not between 5m and the duration",
                    "use less than the duration, which is 2160h if nothing is said",
                );
            }
        }
        if let Some(percentage) = percentage {
            let left = u32::try_from(100 - percentage.clamp(0, 100)).unwrap_or_default();
            let before = whole * left / 100;
            if !(0..=100).contains(&percentage) || before < MIN_RENEW_BEFORE || before >= whole {
                self.refuse(
                    "renew-before-percentage",
                    "is not a share of the duration that leaves 5m or more",
                    "use 1 to 99",
                );
            }
        }
    }

    fn usages(&mut self) -> Vec<Arc<str>> {
        let Some(text) = self.get("usages") else {
            return Vec::new();
        };
        let mut usages = Vec::new();
        for usage in text.split(',').map(|usage| usage.trim_matches(' ')) {
            if USAGES.contains(&usage) {
                usages.push(usage.into());
            } else {
                let message = format!("{} is no usage of a key", quote(usage));
                self.refuse(
                    "usages",
                    message,
                    "use those of cert-manager, such as \"server auth\"",
                );
                return Vec::new();
            }
        }
        usages
    }

    fn revision_history_limit(&mut self) -> Option<i32> {
        let limit = self.number("revision-history-limit")?;
        if limit < 1 {
            self.refuse("revision-history-limit", "is less than 1", "use 1 or more");
            return None;
        }
        Some(limit)
    }

    fn private_key(&mut self) -> PrivateKeyOptions {
        let algorithm = self.word(
            "private-key-algorithm",
            KeyAlgorithm::from_text,
            "use RSA, ECDSA or Ed25519",
        );
        let encoding = self.word(
            "private-key-encoding",
            KeyEncoding::from_text,
            "use PKCS1 or PKCS8",
        );
        let rotation = self.word(
            "private-key-rotation-policy",
            KeyRotation::from_text,
            "use Always or Never",
        );
        PrivateKeyOptions {
            algorithm,
            encoding,
            size: self.key_size(algorithm),
            rotation,
        }
    }

    fn key_size(&mut self, algorithm: Option<KeyAlgorithm>) -> Option<u32> {
        let size = self.number("private-key-size")?;
        let size = u32::try_from(size).unwrap_or_default();
        let (fits, action) = match algorithm.unwrap_or(KeyAlgorithm::Rsa) {
            KeyAlgorithm::Rsa => (RSA_BITS.contains(&size), "use 2048 to 8192"),
            KeyAlgorithm::Ecdsa => (ECDSA_BITS.contains(&size), "use 256, 384 or 521"),
            // Ed25519 has only one size, so any positive value is accepted.
            KeyAlgorithm::Ed25519 => return (size > 0).then_some(size),
        };
        if !fits {
            self.refuse("private-key-size", "does not fit the algorithm", action);
            return None;
        }
        Some(size)
    }

    fn word<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
        action: &str,
    ) -> Option<T> {
        let text = self.get(name)?;
        let parsed = parse(text);
        if parsed.is_none() {
            let message = format!("{} is not one of its values", quote(text));
            self.refuse(name, message, action);
        }
        parsed
    }

    /// Annotations and labels of the Secret.
    fn secret_template(&mut self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        /// `spec.secretTemplate` of a Certificate.
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Template {
            #[serde(default)]
            annotations: Option<BTreeMap<String, String>>,
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
        }
        const NAME: &str = "secret-template";
        let Some(text) = self.get(NAME) else {
            return Default::default();
        };
        let Ok(template) = serde_json::from_str::<Template>(text) else {
            self.refuse(
                NAME,
                "is not JSON with annotations and labels and nothing else",
                r#"write it as in {"labels": {"team": "a"}}"#,
            );
            return Default::default();
        };
        let annotations = template.annotations.unwrap_or_default();
        let labels = template.labels.unwrap_or_default();
        let ours = format!("{VESTIBULE_GROUP}/");
        let reserved = annotations
            .keys()
            .find(|key| key.starts_with(PREFIX) || key.starts_with(&ours))
            .or_else(|| labels.keys().find(|key| key.starts_with(&ours)));
        if let Some(key) = reserved {
            let message = format!("sets {}, which is not for people to set", quote(key));
            self.refuse(NAME, message, "remove it there");
            return Default::default();
        }
        (annotations, labels)
    }
}

/// Names of listeners, separated by commas.
fn listeners(text: Option<&str>) -> BTreeSet<Arc<str>> {
    let names = text.unwrap_or_default().split(',').map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    names.map(Into::into).collect()
}

/// Reads a boolean like Go's `strconv.ParseBool`. Everything that it does not know is false.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

/// Reads a duration in Go's form, such as `1h30m` or `1.5h`. Negative ones are not accepted.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at_checked(number)?;
        let unit = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(unit)?;
        let scale: u128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        if !whole.is_empty() {
            nanos = nanos.checked_add(
                whole
                    .parse::<u64>()
                    .ok()
                    .map(u128::from)?
                    .checked_mul(scale)?,
            )?;
        }
        // Digits beyond nanoseconds have no effect.
        let fraction = fraction.get(..fraction.len().min(15))?;
        if !fraction.is_empty() {
            let parts: u128 = fraction.parse().ok()?;
            let digits = u32::try_from(fraction.len()).ok()?;
            nanos = nanos.checked_add(parts * scale / 10u128.pow(digits))?;
        }
        rest = tail;
    }
    let nanos = i64::try_from(nanos).ok()?;
    Some(Duration::from_nanos(nanos.unsigned_abs()))
}

/// The fields of one line of CSV, as Go's `encoding/csv` reads it. It is `None` if there is no line, if there are
/// several, or if a quote is misplaced.
fn csv(text: &str) -> Option<Vec<Arc<str>>> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() || text.contains(['\n', '\r']) {
        return None;
    }
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let (field, tail) = if let Some(quoted) = rest.strip_prefix('"') {
            quoted_field(quoted)?
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            let (field, tail) = rest.split_at_checked(end)?;
            if field.contains('"') {
                return None;
            }
            (field.to_owned(), tail)
        };
        fields.push(field.into());
        match tail.strip_prefix(',') {
            Some(tail) => rest = tail,
            None => return tail.is_empty().then_some(fields),
        }
    }
}

/// Reads a field after its opening quote. Returns its text, and the rest after the closing quote.
fn quoted_field(mut rest: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    loop {
        let (text, tail) = rest.split_once('"')?;
        field.push_str(text);
        match tail.strip_prefix('"') {
            Some(tail) => {
                field.push('"');
                rest = tail;
            }
            None => return Some((field, tail)),
        }
    }
}

#[cfg(test)]
#[path = "certificate_tests.rs"]
mod tests;
