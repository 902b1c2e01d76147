//! The usable certificates of one listener, and the warnings about them.

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectName;

use super::certificate::UsableCertificate;

/// A certificate in a message: the field of the reference to it, its Secret, and what is wrong with it.
type Named<'a> = (&'a str, ObjectName, String);

/// The usable certificates of a listener.
#[derive(Debug)]
pub(super) struct UsableCertificates<'a> {
    hostname: &'a HostPattern,
    count: usize,
    /// Whether one of them has not expired.
    valid: bool,
    /// The first one that has expired, and when.
    expired: Option<Named<'a>>,
    /// Whether one of them is for the hostname, or for a name in it if it is a wildcard, or the listener has no hostname.
    matched: bool,
    /// The first one that is not for the hostname, and its names.
    other: Option<Named<'a>>,
}

impl<'a> UsableCertificates<'a> {
    pub(super) fn of(hostname: &'a HostPattern) -> Self {
        Self {
            hostname,
            count: 0,
            valid: false,
            expired: None,
            matched: false,
            other: None,
        }
    }

    /// Adds the certificate in `secret`, to which the reference in `field` leads.
    pub(super) fn push(
        &mut self,
        field: &'a str,
        secret: &ObjectName,
        certificate: &UsableCertificate,
    ) {
        self.count += 1;
        match &certificate.expired {
            None => self.valid = true,
            Some(since) => {
                let expired = || (field, secret.clone(), since.clone());
                self.expired.get_or_insert_with(expired);
            }
        }
        // After the first that is for the hostname, the names of the others decide nothing.
        self.matched = self.matched || certificate.names.are_for(self.hostname);
        if !self.matched {
            let other = || (field, secret.clone(), certificate.names.to_string());
            self.other.get_or_insert_with(other);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The finding that one of them has expired.
    pub(super) fn expired(&self) -> Option<Finding> {
        let (field, secret, since) = self.expired.as_ref()?;
        let served = if self.valid {
            "only clients for which no other certificate of the listener fits as well get it"
        } else {
            "it is served because nothing better exists"
        };
        Some(Finding::warning(
            Reason::Expired,
            *field,
            format!("the certificate in Secret {secret} expired at {since}, and {served}"),
            "renew it, or see why it is not renewed",
        ))
    }

    /// The finding that none of them is for the hostname. The length of its message is bounded, as that of a hostname is.
    pub(super) fn mismatched(&self) -> Option<Finding> {
        let (field, secret, names) = self.other.as_ref().filter(|_| !self.matched)?;
        let (others, they) = match self.count {
            1 => ("", "it"),
            _ => (", and neither is another one of the listener", "them"),
        };
        let refused = if self.hostname.is_wildcard() {
            "for all of these names"
        } else {
            "for this name"
        };
        Some(Finding::warning(
            Reason::CertificateNameMismatch,
            *field,
            format!(
                "the certificate in Secret {secret} is not valid for {} (it names {names}){others}, so clients refuse \
                 {they} {refused}",
                self.hostname
            ),
            "have one issued for this name, or refer to the Secret of one",
        ))
    }
}
