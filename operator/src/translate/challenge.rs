//! Challenges of CAs as resources for the proxies. A challenge is one only while it may be answered
//! for the tenant that asks.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_model::challenge::{
    ChallengeAnswer, ChallengeKey, ChallengeProof, ChallengeType, Reach,
};
use vestibule_model::protocol::Transport;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::reach::Interest;
use super::{Dirty, Output, Translator};

/// The key of a challenge's resource.
#[must_use]
pub fn challenge_resource(key: &ChallengeKey) -> ResourceKey {
    ResourceKey::new(ResourceKind::Challenge, key.to_string())
}

impl Translator {
    pub(super) fn take_challenges(
        &mut self,
        changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>,
        dirty: &mut Dirty,
    ) {
        for (key, answer) in changes {
            let there = answer.is_some();
            let old = match answer.clone() {
                Some(answer) => self.challenges.insert(key.clone(), answer),
                None => self.challenges.remove(&key),
            };
            if old == answer {
                continue;
            }
            let interest = Interest::Challenge(key.clone());
            self.challenge_index
                .set_interest(&key.gateway, &key.hostname, &interest, there);
            dirty.challenges.insert(key);
        }
    }

    /// Marks the challenges and requests that a change of the challenge index concerns.
    pub(super) fn mark_interested(&self, interests: BTreeSet<Interest>, dirty: &mut Dirty) {
        for interest in interests {
            match interest {
                Interest::Challenge(key) => {
                    dirty.challenges.insert(key);
                }
                Interest::Listener(listener) => {
                    let wants = self.wants.get(&listener);
                    dirty.requests.extend(wants.into_iter().flatten().cloned());
                }
            }
        }
    }

    pub(super) fn translate_challenges(&mut self, dirty: &Dirty, output: &mut Output) {
        for key in &dirty.challenges {
            let resource = self.challenge(key);
            self.settle_resource(challenge_resource(key), resource, output);
        }
    }

    fn challenge(&self, key: &ChallengeKey) -> Option<Encoded> {
        let answer = self.challenges.get(key)?;
        let [tls, http] = self.reaches(&key.gateway, &key.hostname, &answer.tenant);
        let reach = match key.kind {
            ChallengeType::TlsAlpn01 => tls,
            ChallengeType::Http01 => http,
        };
        if reach != Reach::Ours || answer.answer.kind() != key.kind {
            return None;
        }
        let bind = self.challenge_index.bind(&key.gateway, key.kind)?;
        let transport = match bind.transport {
            Transport::Tcp => proto::Transport::Tcp,
            Transport::Udp => proto::Transport::Udp,
        };
        let challenge = proto::Challenge {
            gateway: key.gateway.to_string(),
            bind: Some(proto::Bind {
                address: bind.address.to_string(),
                port: bind.port.into(),
                transport: transport.into(),
            }),
            hostname: key.hostname.to_string(),
            tenant: answer.tenant.to_string(),
            answer: Some(match &answer.answer {
                ChallengeProof::TlsAlpn01 {
                    certificate,
                    private_key,
                } => proto::challenge::Answer::TlsAlpn01(proto::TlsAlpn01 {
                    certificate: certificate.clone(),
                    private_key: private_key.to_vec(),
                }),
                ChallengeProof::Http01 { key_authorization } => {
                    proto::challenge::Answer::Http01(proto::Http01 {
                        token: key.token.to_string(),
                        key_authorization: key_authorization.to_string(),
                    })
                }
            }),
        };
        let challenge = resource::Resource::Challenge(challenge);
        // Only what the CA sends could make it too large, and that is bounded where it is read.
        Encoded::new(&Resource::new(key.to_string(), challenge)).ok()
    }
}
