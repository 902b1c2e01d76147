//! The certificate annotations of a Gateway or ListenerSet, parsed, except those that name the issuer. They are the
//! annotations that cert-manager itself supports (`pkg/controller/certificate-shim/helper.go`, v1.21.2).
//!
//! `alt-names`, `ip-sans` and `email-sans` add names that no listener carries. Such a name counts only if a
//! `HostnameGrant` gives it ([`crate::ownership`]), and a hostname must also belong to the namespace. Otherwise the
//! name becomes a finding, and so does a `common-name` that is not the hostname of a listener.

mod alternative;
pub mod chain;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::condition::Reason;
use crate::finding::Finding;
use crate::selector::Labels;

pub use alternative::{
    AddressBlock, AlternativeNames, GrantedMailbox, InvalidAddressBlock, MAX_ALTERNATIVE_NAMES,
    Mailbox, address,
};

/// Annotations that add names to a certificate, in the order of [`AlternativeNames`]' fields.
pub const ALTERNATIVE_NAMES: [&str; 3] = [
    "cert-manager.io/alt-names",
    "cert-manager.io/ip-sans",
    "cert-manager.io/email-sans",
];

/// Label, with the value `true`, of the Secrets that the built-in engine made.
pub const ACME_LABEL: &str = "vestibule.dev/acme";

/// Largest size of a certificate chain in bytes, as DER. A chain is sent in each handshake, and kept until a client has
/// read it. Chains of public CAs have 3 to 8 KiB, and many clients refuse one of more than 64 KiB.
pub const MAX_CHAIN_BYTES: usize = 32 * 1024;

/// Largest size of a private key in bytes, as DER. An RSA key of 8192 bits has less than 5 KiB.
pub const MAX_KEY_BYTES: usize = 8 * 1024;

/// Largest size of the CA certificates in one Secret or ConfigMap in bytes, as DER. Every proxy has a copy. All public CAs
/// together have less than 256 KiB.
pub const MAX_BUNDLE_BYTES: usize = 512 * 1024;

/// Most certificates beside its own one that a client, a backend or a CA's server may show. A verifier looks for a path
/// from the own certificate to a trust anchor through the others, in every order. Five have 325 orders, and twenty have
/// more than any processor can try. With made-up certificates of one name it tries all of them, before anybody has
/// proven to have a key.
pub const MAX_INTERMEDIATES: usize = 5;

/// Most authorities of one name in the trust bundles of a backend. A verifier verifies a signature by each authority whose
/// name is that of the issuer. A team chooses authorities and backends, so it could have any number of one name.
pub const MAX_AUTHORITIES_OF_A_NAME: usize = 16;

/// The certificate annotations of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateAnnotations {
    /// The options that the annotations set.
    pub options: Arc<CertificateOptions>,
    /// The findings that need no look at the listeners; see [`crate::annotations::certificate_problems`].
    pub findings: Vec<Finding>,
}

impl CertificateAnnotations {
    /// The same annotations, as they would be on an object with the labels of `other`.
    #[must_use]
    pub fn with_labels_of(&self, other: &Self) -> Self {
        let labels = &other.options.labels;
        if self.options.labels == *labels {
            return self.clone();
        }
        let options = CertificateOptions {
            labels: labels.clone(),
            ..CertificateOptions::clone(&self.options)
        };
        Self {
            options: Arc::new(options),
            findings: self.findings.clone(),
        }
    }

    /// Warnings about the added names that the built-in engine leaves out of its certificates. It never refuses,
    /// because it ignores all other annotations of cert-manager.
    #[must_use]
    pub fn left_out_by_acme(&self) -> Vec<Finding> {
        let [hostnames, addresses, mailboxes] = ALTERNATIVE_NAMES;
        let field = |key: &str| format!("metadata.annotations[{key}]");
        let names = &self.options.alternative_names;
        let unread = field(hostnames);
        let unread = self.findings.iter().any(|finding| finding.field == unread);
        let mut left_out = Vec::new();
        if unread {
            left_out.push(Finding::warning(
                Reason::InvalidAnnotation,
                field(hostnames),
                "is not a list of hostnames, so certificates are without the names that it adds",
                "list exact hostnames, separated by commas",
            ));
        }
        for (key, there) in [
            (addresses, !names.addresses.is_empty()),
            (mailboxes, !names.mailboxes.is_empty()),
        ] {
            if there {
                left_out.push(Finding::warning(
                    Reason::InvalidAnnotation,
                    field(key),
                    "says nothing to the built-in engine, whose certificates are for hostnames only",
                    "remove it, or name an issuer of cert-manager's",
                ));
            }
        }
        left_out
    }
}

/// The options of certificates that an object asks for. The issuer decides about everything that is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateOptions {
    /// `common-name`.
    pub common_name: Option<Arc<str>>,
    /// `alt-names`, `ip-sans` and `email-sans`. On an object, these are the names that it asks for. In a request for a
    /// certificate, these are the names that it may have.
    pub alternative_names: AlternativeNames,
    /// `subject-*`.
    pub subject: Subject,
    /// `duration`.
    pub duration: Option<Duration>,
    /// `renew-before`.
    pub renew_before: Option<Duration>,
    /// `renew-before-percentage`.
    pub renew_before_percentage: Option<u8>,
    /// `usages`, as written. cert-manager knows all of them.
    pub usages: Vec<Arc<str>>,
    /// `revision-history-limit`.
    pub revision_history_limit: Option<i32>,
    /// `private-key-*`.
    pub private_key: PrivateKeyOptions,
    /// `secret-template`: annotations.
    pub secret_annotations: BTreeMap<String, String>,
    /// `secret-template`: labels.
    pub secret_labels: BTreeMap<String, String>,
    /// `acme.cert-manager.io/http01-parentreffallback`: the solver's route refers to the Gateway instead of the set.
    pub http01_parent_fallback: bool,
    /// `acme.cert-manager.io/http01-ingress-class`.
    pub http01_ingress_class: Option<Arc<str>>,
    /// `acme.cert-manager.io/http01-ingress-ingressclassname`.
    pub http01_ingress_class_name: Option<Arc<str>>,
    /// `cert-manager.io/ignore-tls-listeners`: listeners for which nothing is requested from cert-manager.
    pub ignored_listeners: BTreeSet<Arc<str>>,
    /// `vestibule.dev/ignore-tls-listeners`: listeners for which nothing is requested from the built-in engine.
    pub acme_ignored_listeners: BTreeSet<Arc<str>>,
    /// `cert-manager.io/issue-temporary-certificate`: a self-signed certificate serves until there is another.
    pub temporary: bool,
    /// `acme.cert-manager.io/http01-edit-in-place`: the solver edits the Ingress that has the name of the object, and a
    /// temporary certificate serves meanwhile.
    pub http01_edit_in_place: bool,
    /// Annotations of the object that the operator's settings have copied to its Certificates.
    pub copied_annotations: BTreeMap<String, String>,
    /// Labels of the object, which its Certificates carry too.
    pub labels: Labels,
}

impl CertificateOptions {
    /// Whether two objects ask for the same certificate, as far as options decide it. Labels and ignored listeners are
    /// left out, because they belong to the object and not to a certificate.
    #[must_use]
    pub fn same_certificate(&self, other: &Self) -> bool {
        let bare = |options: &Self| Self {
            ignored_listeners: BTreeSet::new(),
            acme_ignored_listeners: BTreeSet::new(),
            labels: Labels::new(),
            ..options.clone()
        };
        self == other || bare(self) == bare(other)
    }
}

/// Fields of the subject, in the order in which they are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// `subject-organizations`.
    pub organizations: Vec<Arc<str>>,
    /// `subject-organizationalunits`.
    pub organizational_units: Vec<Arc<str>>,
    /// `subject-countries`.
    pub countries: Vec<Arc<str>>,
    /// `subject-provinces`.
    pub provinces: Vec<Arc<str>>,
    /// `subject-localities`.
    pub localities: Vec<Arc<str>>,
    /// `subject-postalcodes`.
    pub postal_codes: Vec<Arc<str>>,
    /// `subject-streetaddresses`.
    pub street_addresses: Vec<Arc<str>>,
    /// `subject-serialnumber`.
    pub serial_number: Option<Arc<str>>,
}

/// The private key that the object asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrivateKeyOptions {
    /// `private-key-algorithm`.
    pub algorithm: Option<KeyAlgorithm>,
    /// `private-key-encoding`.
    pub encoding: Option<KeyEncoding>,
    /// `private-key-size`, in bits; fits the algorithm.
    pub size: Option<u32>,
    /// `private-key-rotation-policy`.
    pub rotation: Option<KeyRotation>,
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// The word that cert-manager uses for it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Reads cert-manager's word; `None` for every other one.
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words! {
    /// Algorithm of a private key.
    KeyAlgorithm {
        /// RSA, 2048 to 8192 bits.
        Rsa = "RSA",
        /// ECDSA on P-256, P-384 or P-521.
        Ecdsa = "ECDSA",
        /// Ed25519.
        Ed25519 = "Ed25519",
    }
}

words! {
    /// How a private key is written.
    KeyEncoding {
        /// PKCS #1, or SEC 1 for ECDSA.
        Pkcs1 = "PKCS1",
        /// PKCS #8.
        Pkcs8 = "PKCS8",
    }
}

words! {
    /// Whether a renewal makes a new private key.
    KeyRotation {
        /// The key stays.
        Never = "Never",
        /// Each certificate has a key of its own.
        Always = "Always",
    }
}
