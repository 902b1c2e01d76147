//! Owns the challenges in force. It checks each of them before a CA can see it, and keeps two of them from having the
//! same place.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_stream::{ResourceKey, ResourceKind, proto};
use x509_parser::prelude::GeneralName;

use super::private_key::signing_key;
use super::reject::RejectReason;
use super::tls::{hex, read_certificate};
use super::{Rejects, State, parse};
use crate::bind::Transport;
use crate::challenge::{
    Challenge, ChallengeLookup, ChallengeQuery, ChallengeReply, HTTP_01, TLS_ALPN_01,
};
use crate::listener::Layer;

/// Most characters of a token, and of the thumbprint of an account. By RFC 8555, a token has at least 22 characters,
/// and a thumbprint has 43.
const MAX_TOKEN: usize = 256;
/// `id-pe-acmeIdentifier` (RFC 8737 section 3).
const ACME_IDENTIFIER: &str = "1.3.6.1.5.5.7.1.31";
const FORM: &str = "<namespace>/<gateway>/tls-alpn-01/<hostname> or <namespace>/<gateway>/http-01/<hostname>/<token>";

/// A challenge that can be put in force.
pub(super) struct ChallengeSpec {
    gateway: String,
    tenant: String,
    selection_key: ChallengeLookup,
    answer: AnswerSpec,
}

enum AnswerSpec {
    Tls(Arc<CertifiedKey>),
    Http(Bytes),
}

/// A challenge in force.
pub(super) struct HeldChallenge {
    pub(super) selection_key: ChallengeLookup,
    pub(super) challenge: Arc<Challenge>,
    /// SHA-256 of the answer that a CA gets, in hexadecimal.
    pub(super) sha256: Box<str>,
}

impl ChallengeSpec {
    pub(super) fn parse(name: &str, wire: &proto::Challenge) -> Result<Self, RejectReason> {
        use proto::challenge::Answer as Wire;
        let gateway = super::resource_names::required(&wire.gateway, "gateway")?;
        let tenant = super::resource_names::required(&wire.tenant, "tenant")?;
        let bind = parse::bind(wire.bind.as_ref(), Transport::Tcp)?;
        let HostPattern::Exact(hostname) = parse::pattern(&wire.hostname)? else {
            return Err(RejectReason::InvalidChallenge("its hostname is a pattern"));
        };
        let (question, answer) = match &wire.answer {
            None => return Err(RejectReason::UnknownResource("the challenge")),
            Some(Wire::TlsAlpn01(wire)) => {
                let certified = certificate(&hostname, wire)?;
                (ChallengeQuery::Tls(hostname), AnswerSpec::Tls(certified))
            }
            Some(Wire::Http01(wire)) => {
                let body = key_authorization(wire)?;
                let question = ChallengeQuery::Http(hostname, wire.token.as_str().into());
                (question, AnswerSpec::Http(body))
            }
        };
        // Logs and acknowledgements show the name, so it must agree with the content.
        if !is_name_of(name, &gateway, &question) {
            return Err(RejectReason::InvalidName(FORM));
        }
        Ok(Self {
            gateway,
            tenant,
            selection_key: (bind, question),
            answer,
        })
    }

    /// The layer of connections that ask for it.
    fn layer(&self) -> Layer {
        match self.answer {
            AnswerSpec::Tls(_) => Layer::Tls,
            AnswerSpec::Http(_) => Layer::Plain,
        }
    }
}

fn is_name_of(name: &str, gateway: &str, question: &ChallengeQuery) -> bool {
    let parts: Vec<&str> = super::resource_names::segments(name).collect();
    let (kind, token) = match question {
        ChallengeQuery::Tls(_) => (TLS_ALPN_01, None),
        ChallengeQuery::Http(_, token) => (HTTP_01, Some(&**token)),
    };
    let [namespace, of, named, host, rest @ ..] = &*parts else {
        return false;
    };
    gateway.split_once('/') == Some((namespace, of))
        && *named == kind
        && Hostname::parse(host).is_ok_and(|host| host == *question.hostname())
        && rest.iter().copied().eq(token)
}

/// Reads the certificate of a challenge. It checks that the certificate can only be used for the challenge: its one
/// name is the hostname, and it has an extension with the digest of a key authorization.
fn certificate(
    hostname: &Hostname,
    wire: &proto::TlsAlpn01,
) -> Result<Arc<CertifiedKey>, RejectReason> {
    let parsed = read_certificate(0, &wire.certificate)?;
    let names = parsed.subject_alternative_name();
    let is_for = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Hostname::parse(name).is_ok_and(|name| name == *hostname),
        _ => false,
    };
    let fits = names.is_ok_and(|names| {
        names.is_some_and(|names| matches!(&*names.value.general_names, [only] if is_for(only)))
    });
    if !fits {
        let why = "its certificate is not for the hostname alone";
        return Err(RejectReason::InvalidChallenge(why));
    }
    let mut extensions = parsed.extensions().iter();
    let identifier = extensions.find(|of| of.oid.to_id_string() == ACME_IDENTIFIER);
    // The value is an OCTET STRING with a SHA-256 digest.
    if !identifier
        .is_some_and(|of| of.critical && matches!(of.value, [4, 32, rest @ ..] if rest.len() == 32))
    {
        let why = "its certificate has no critical acmeIdentifier";
        return Err(RejectReason::InvalidChallenge(why));
    }
    let key = signing_key(&wire.private_key)?;
    // rustls does not accept a certificate with this critical extension, so the keys are compared here.
    let public = key.public_key();
    if public.is_some_and(|public| *public != *parsed.public_key().raw) {
        return Err(RejectReason::KeyMismatch);
    }
    let chain = vec![CertificateDer::from(wire.certificate.clone())];
    Ok(Arc::new(CertifiedKey::new(chain, key)))
}

fn key_authorization(wire: &proto::Http01) -> Result<Bytes, RejectReason> {
    let is_base64url = |text: &str| {
        (1..=MAX_TOKEN).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if !is_base64url(&wire.token) {
        return Err(RejectReason::InvalidChallenge("its token is not base64url"));
    }
    let thumbprint = wire.key_authorization.strip_prefix(&*wire.token);
    let thumbprint = thumbprint.and_then(|rest| rest.strip_prefix('.'));
    if !thumbprint.is_some_and(is_base64url) {
        let why = "its key authorization is not the token and a thumbprint";
        return Err(RejectReason::InvalidChallenge(why));
    }
    Ok(Bytes::copy_from_slice(wire.key_authorization.as_bytes()))
}

impl State {
    /// Rejects challenges without an open port where a CA could ask, and challenges whose place another one has. The
    /// old version of a rejected challenge stays at its place, so a third challenge for that place has to be rejected
    /// then as well. The check is repeated until nothing more is rejected.
    pub(super) fn settle_challenges(
        &self,
        challenges: &mut BTreeMap<String, ChallengeSpec>,
        rejects: &mut Rejects,
    ) {
        loop {
            let mut taken = HashSet::with_capacity(challenges.len());
            let mut losers = Vec::new();
            for (name, spec) in &*challenges {
                let (bind, layer) = (spec.selection_key.0, spec.layer());
                let mut listeners = self.snapshot.listeners(&bind, layer);
                let holder = self.snapshot.challenge_at(&spec.selection_key);
                let kept = holder.is_some_and(|holder| {
                    *holder.key != **name && !challenges.contains_key(&*holder.key)
                });
                if !listeners.any(|listener| *listener.gateway == *spec.gateway) {
                    losers.push((name.clone(), RejectReason::NoListener(bind, layer)));
                } else if kept || !taken.insert(&spec.selection_key) {
                    losers.push((name.clone(), RejectReason::HostnameConflict(bind)));
                }
            }
            if losers.is_empty() {
                return;
            }
            for (name, reason) in losers {
                challenges.remove(&name);
                rejects.add(ResourceKey::new(ResourceKind::Challenge, name), &reason);
            }
        }
    }

    pub(super) fn hold_challenges(&mut self, challenges: BTreeMap<String, ChallengeSpec>) {
        // All challenges leave their places before one takes a place, so that two can swap.
        for name in challenges.keys() {
            self.drop_challenge(name);
        }
        for (name, spec) in challenges {
            let (answer, digest) = match spec.answer {
                AnswerSpec::Tls(certified) => {
                    let leaf = certified.cert.first();
                    let digest = Sha256::digest(leaf.map(AsRef::as_ref).unwrap_or_default());
                    (
                        ChallengeReply::Tls(self.configs.challenge(certified)),
                        digest,
                    )
                }
                AnswerSpec::Http(body) => {
                    let digest = Sha256::digest(&body);
                    (ChallengeReply::Http(body), digest)
                }
            };
            let tenant = self.names.intern(&spec.tenant);
            let challenge = Arc::new(Challenge {
                key: name.as_str().into(),
                gateway: self.names.intern(&spec.gateway),
                account: self.accounts.of(&tenant),
                tenant,
                answer,
            });
            self.snapshot
                .set_challenge(spec.selection_key.clone(), Arc::clone(&challenge));
            let held = HeldChallenge {
                selection_key: spec.selection_key,
                sha256: hex(&digest).into(),
                challenge,
            };
            self.challenges
                .insert(Arc::clone(&held.challenge.key), held);
        }
    }

    pub(super) fn drop_challenge(&mut self, name: &str) {
        if let Some(old) = self.challenges.remove(name) {
            self.snapshot.clear_challenge(&old.selection_key);
        }
    }
}
