//! Owns Vestibule's account at a CA. It is found by its key, or registered if that is allowed. If it is not allowed and
//! there is no account, this connects to nothing.
//!
//! A key is stored before it is registered, so that a crash leaves no account without its key. With an external account
//! binding the key is stored right after the registration, because the library binds only keys that it makes itself. So
//! an issuer with a binding gets a new key wherever the stored one has no account.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
use instant_acme::{Account, ExternalAccountKey, HttpClient, Key, NewAccount};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use vestibule_model::endpoint::AuthorityRules;
use vestibule_model::key::ObjectName;
use vestibule_model::object::{AcmeIssuer, ExternalAccount};
use zeroize::Zeroizing;

use super::http::{Gate, Http, host_of};
use super::{Ca, Directory, failure, refused};
use crate::clock::wall;
use crate::effects::{Effects, Observation, StoredSecret, Write, Written};
use crate::keys::PrivateKey;
use crate::problem::{AcmeFailure, AcmeOperation, FailureKind};
use crate::state::MAX_URL;

/// The facts about an account that planning needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccountInfo {
    /// Its URL.
    pub(crate) url: String,
    /// Thumbprint of its key (RFC 7638), the second half of key authorizations.
    pub(crate) thumbprint: String,
    /// Whether the CA says when to renew.
    pub(crate) renewal_info: bool,
}

/// Whether an account may be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Registering {
    /// Not now. An existing account is still opened.
    No,
    /// Only at this host, where one registration is counted.
    At(Arc<str>),
    /// Wherever the directory says. It is not counted.
    Anywhere,
}

/// The result of opening an account.
#[derive(Debug)]
pub(crate) enum OpenedAccount<A> {
    /// The account is open.
    Open {
        account: A,
        /// If an earlier process registered and counted it: the host, and how long ago by our clock.
        registered: Option<(Arc<str>, Duration)>,
    },
    /// There is no account, and none may be registered. `host` is where it would be registered, if that is known by
    /// now.
    Unregistered { host: Option<Arc<str>> },
}

/// The content of the annotation on an account's Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Remembered {
    directory: String,
    url: String,
    contact: Vec<String>,
    /// The host at which it was registered, if it was counted there.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Arc<str>>,
    /// When it was registered there, in seconds by our clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    registered_at: Option<i64>,
}

impl Remembered {
    fn read(record: &StoredSecret) -> Self {
        record
            .state
            .as_deref()
            .filter(|text| text.len() < 16 * 1024)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

/// Opens the account of an issuer. If there is none, it registers one where `registering` allows that. `created` says
/// afterwards whether the CA made a new one where [`Registering::At`] counts it. `again` says that the CA did not know
/// the account in the Secret.
pub(crate) async fn open<E: Effects>(
    effects: &Arc<E>,
    issuer: &AcmeIssuer,
    namespace: &Arc<str>,
    rules: Arc<AuthorityRules>,
    registering: &Registering,
    created: &Arc<AtomicBool>,
    again: bool,
) -> Result<OpenedAccount<Ca>, AcmeFailure> {
    let count = {
        let (effects, issuer) = (effects.clone(), issuer.key.clone());
        Arc::new(move |answered| {
            let issuer = issuer.clone();
            effects.observe(Observation::Asked { issuer, answered });
        })
    };
    let http = Http::new(issuer.ca_bundle.as_deref(), rules, count)
        .map_err(|problem| account_failure(format!("spec.caBundle {problem}")))?;
    let secret = beside(issuer, &issuer.account_key_secret, namespace);
    let record = effects
        .read(&secret)
        .await
        .map_err(|error| AcmeFailure::unreachable(error.to_string()))?;
    let remembered = record.as_ref().map(Remembered::read).unwrap_or_default();
    let known = !again
        && record
            .as_ref()
            .is_some_and(|record| !record.private_key.is_empty())
        && !remembered.url.is_empty()
        && remembered.directory == *issuer.directory;
    if !known && record.as_ref().is_some_and(|record| !record.ours) {
        return Err(account_failure(format!(
            "Secret {secret} is not of Vestibule's making: name another one in spec.accountKeySecretRef, or give \
             it the type and labels that Vestibule's have"
        )));
    }
    if !known && *registering == Registering::No {
        return Ok(OpenedAccount::Unregistered { host: None });
    }
    let directory = directory(&http, issuer).await?;
    let (http, gate) = match registering {
        Registering::At(host) if !known => {
            let there = directory.new_account.as_deref().and_then(host_of);
            let there = there.ok_or_else(not_acme)?;
            if there != *host {
                return Ok(OpenedAccount::Unregistered { host: Some(there) });
            }
            let (http, gate) = http.gated(there, created.clone());
            (http, Some(gate))
        }
        _ => (http, None),
    };
    let opening = AccountOpener {
        effects,
        issuer,
        http: &http,
        gate: gate.as_deref(),
        directory: &directory,
        secret,
        namespace,
    };
    let (account, registered) = match record {
        Some(record) if known => {
            let at = remembered.host.clone().zip(remembered.registered_at);
            let registered = at.map(|(host, at)| {
                let age = u64::try_from(wall().saturating_sub(at)).unwrap_or_default();
                (host, Duration::from_secs(age))
            });
            (opening.known(&record, remembered).await?, registered)
        }
        record => (opening.register(record).await?, None),
    };
    Ok(OpenedAccount::Open {
        account: Ca::new(http.clone(), account, directory, &issuer.directory),
        registered,
    })
}

async fn directory(http: &Http, issuer: &AcmeIssuer) -> Result<Directory, AcmeFailure> {
    let (body, _) = http.get(&issuer.directory).await.map_err(|error| {
        match refused(&error, AcmeOperation::Account) {
            // The advice for refused accounts does not fit here, because the answer may come from any kind of server.
            failure if failure.kind == FailureKind::Account => not_acme(),
            failure => failure,
        }
    })?;
    let mut directory: Directory = serde_json::from_slice(&body).map_err(|_| not_acme())?;
    if directory.new_order.is_none() || directory.urls().any(|url| url.len() > MAX_URL) {
        return Err(not_acme());
    }
    if let Some(profile) = issuer.profile.as_deref() {
        let offered = &directory.meta.profiles;
        if !offered.contains_key(profile) {
            let names: Vec<&str> = offered.keys().take(10).map(String::as_str).collect();
            return Err(account_failure(if names.is_empty() {
                format!("spec.profile is {profile:?}, but the CA has no profiles: remove it")
            } else {
                format!(
                    "spec.profile is {profile:?}, but the CA offers {}",
                    names.join(", ")
                )
            }));
        }
    }
    // The directory stays in memory for as long as the account is open, and nobody needs the names any more.
    directory.meta.profiles.clear();
    Ok(directory)
}

fn not_acme() -> AcmeFailure {
    account_failure("what spec.directory names is not the directory of an ACME server")
}

fn account_failure(message: impl AsRef<str>) -> AcmeFailure {
    AcmeFailure::new(FailureKind::Account, message)
}

/// A Secret in the namespace of the issuer, or in the release's if the issuer is of the cluster.
fn beside(issuer: &AcmeIssuer, name: &Arc<str>, namespace: &Arc<str>) -> ObjectName {
    let own = &issuer.key.name.namespace;
    let namespace = if own.is_empty() { namespace } else { own };
    ObjectName::new(namespace.clone(), name.clone())
}

/// An account that is being opened. `C` is the client for the library, which tests replace.
struct AccountOpener<'a, E, C> {
    effects: &'a Arc<E>,
    issuer: &'a AcmeIssuer,
    http: &'a C,
    gate: Option<&'a Gate>,
    directory: &'a Directory,
    secret: ObjectName,
    namespace: &'a Arc<str>,
}

impl<E: Effects, C: HttpClient + Clone> AccountOpener<'_, E, C> {
    /// Registers an account with the stored key, or with a new one.
    async fn register(&self, record: Option<StoredSecret>) -> Result<Account, AcmeFailure> {
        if let Some(external) = &self.issuer.external_account {
            if let Some(record) = &record
                && !record.private_key.is_empty()
                && let Some(account) = self.existing(record).await?
            {
                return Ok(account);
            }
            return self.bound(record.as_ref(), external).await;
        }
        let record = match record {
            Some(record) if !record.private_key.is_empty() => record,
            other => self.make(other.as_ref()).await?,
        };
        let (key, pkcs8) = key(&record.private_key)?;
        let (account, _) = Account::builder_with_http(self.client())
            .create_from_key(
                (key, PrivateKeyDer::Pkcs8(pkcs8)),
                self.issuer.directory.to_string(),
            )
            .await
            .map_err(|error| self.explain(failure(error, AcmeOperation::Account)))?;
        self.adopt(&record, &account).await?;
        Ok(account)
    }

    /// The account that the stored key has at the CA, or `None` if it has none. It needs no binding, which some CAs
    /// accept only once.
    async fn existing(&self, record: &StoredSecret) -> Result<Option<Account>, AcmeFailure> {
        let (key, pkcs8) = key(&record.private_key)?;
        let found = Account::builder_with_http(self.client())
            .from_key(
                (key, PrivateKeyDer::Pkcs8(pkcs8)),
                self.issuer.directory.to_string(),
            )
            .await
            .map_err(|error| failure(error, AcmeOperation::Account));
        match found {
            Ok((account, _)) => {
                self.adopt(record, &account).await?;
                Ok(Some(account))
            }
            Err(refused) if refused.is_of_unknown_key() => Ok(None),
            Err(refused) => Err(self.explain(refused)),
        }
    }

    /// Stores that the stored key has this account, after the CA has its contact.
    async fn adopt(&self, record: &StoredSecret, account: &Account) -> Result<(), AcmeFailure> {
        self.pass();
        if !self.issuer.contact.is_empty() {
            self.update_contact(account).await?;
        }
        self.store(Some(record), None, account).await
    }

    /// Opens an account whose URL is known. This asks the CA for nothing unless the contact changed.
    async fn known(
        &self,
        record: &StoredSecret,
        remembered: Remembered,
    ) -> Result<Account, AcmeFailure> {
        let account = self.open(record, remembered.url.clone()).await?;
        let same = remembered
            .contact
            .iter()
            .map(String::as_str)
            .eq(self.contact());
        // An account in a Secret that is not Vestibule's is used as it is.
        if record.ours && !same {
            self.update_contact(&account).await?;
            let remembered = Remembered {
                contact: self.contact().map(Into::into).collect(),
                ..remembered
            };
            self.write(Some(record), None, &remembered).await?;
        }
        Ok(account)
    }

    async fn open(&self, record: &StoredSecret, url: String) -> Result<Account, AcmeFailure> {
        let (_, pkcs8) = key(&record.private_key)?;
        Account::builder_with_http(self.client())
            .from_parts(url, pkcs8, self.issuer.directory.to_string())
            .await
            .map_err(|error| failure(error, AcmeOperation::Account))
    }

    /// Registers an account that is bound to one that the CA knows from elsewhere.
    async fn bound(
        &self,
        record: Option<&StoredSecret>,
        external: &ExternalAccount,
    ) -> Result<Account, AcmeFailure> {
        let secret = beside(self.issuer, &external.secret, self.namespace);
        let entry = self
            .effects
            .entry(&secret, &external.key)
            .await
            .map_err(|error| AcmeFailure::unreachable(error.to_string()))?
            .ok_or_else(|| {
                account_failure(format!(
                    "spec.externalAccountBinding: Secret {secret} has no {:?}",
                    &*external.key
                ))
            })?;
        let mac = mac_key(&entry).ok_or_else(|| {
            account_failure(format!(
                "spec.externalAccountBinding: {:?} of Secret {secret} is not base64url",
                &*external.key
            ))
        })?;
        let binding = ExternalAccountKey::new(external.key_id.to_string(), &mac);
        let contact: Vec<&str> = self.contact().collect();
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let (account, credentials) = Account::builder_with_http(self.client())
            .create(&new, self.issuer.directory.to_string(), Some(&binding))
            .await
            .map_err(|error| self.explain(failure(error, AcmeOperation::Account)))?;
        self.pass();
        let key = PrivateKey::from_der(credentials.private_key().secret_pkcs8_der());
        self.store(record, Some(key), &account).await?;
        Ok(account)
    }

    /// Makes a new key and stores it.
    async fn make(&self, record: Option<&StoredSecret>) -> Result<StoredSecret, AcmeFailure> {
        if self.directory.meta.external_account_required {
            return Err(account_failure(
                "the CA registers only accounts that it knows already: set spec.externalAccountBinding",
            ));
        }
        let private_key =
            PrivateKey::generate().map_err(|error| AcmeFailure::unreachable(error.to_string()))?;
        let version = self
            .write(record, Some(private_key.clone()), &Remembered::default())
            .await?;
        Ok(StoredSecret {
            version,
            ours: true,
            private_key,
            ..StoredSecret::default()
        })
    }

    /// Opens the gate: there is an account now, so later requests may go to any host.
    fn pass(&self) {
        if let Some(gate) = self.gate {
            gate.open();
        }
    }

    async fn store(
        &self,
        record: Option<&StoredSecret>,
        key: Option<PrivateKey>,
        account: &Account,
    ) -> Result<(), AcmeFailure> {
        let host = self.gate.and_then(Gate::created_at);
        let remembered = Remembered {
            directory: self.issuer.directory.to_string(),
            url: account.id().to_owned(),
            contact: self.contact().map(Into::into).collect(),
            registered_at: host.is_some().then(wall),
            host,
        };
        self.write(record, key, &remembered).await?;
        Ok(())
    }

    async fn write(
        &self,
        record: Option<&StoredSecret>,
        key: Option<PrivateKey>,
        remembered: &Remembered,
    ) -> Result<Arc<str>, AcmeFailure> {
        let write = Write {
            expected: record.map(|record| record.version.clone()),
            state: serde_json::to_string(remembered).unwrap_or_default().into(),
            pair: key.map(|key| (Vec::new(), key)),
            next_key: None,
        };
        match self.effects.write(&self.secret, write).await {
            Ok(Written::Done(version)) => Ok(version),
            Ok(Written::Conflict) => Err(AcmeFailure::unreachable(format!(
                "Secret {} was changed by somebody else meanwhile",
                self.secret
            ))),
            Ok(Written::Refused(why)) => Err(account_failure(format!(
                "the account's key cannot be stored in Secret {}: {why}",
                self.secret
            ))),
            Err(error) => Err(AcmeFailure::unreachable(error.to_string())),
        }
    }

    async fn update_contact(&self, account: &Account) -> Result<(), AcmeFailure> {
        let contact: Vec<&str> = self.contact().collect();
        account
            .update_contacts(&contact)
            .await
            .map_err(|error| self.explain(failure(error, AcmeOperation::Account)))
    }

    fn contact(&self) -> impl Iterator<Item = &str> {
        self.issuer.contact.iter().map(|contact| &**contact)
    }

    fn client(&self) -> Box<dyn HttpClient> {
        Box::new(self.http.clone())
    }

    /// Adds what to do if the CA has deactivated an account whose key Vestibule made.
    fn explain(&self, mut failure: AcmeFailure) -> AcmeFailure {
        // The problem has the type `unauthorized` for a key that is not the account's as well (RFC 8555, section 7.3.6),
        // and its subproblems are about names. `deactivated` is a status of the account, which the CA does not show to
        // those that it refuses. So only the detail, which is text, tells the two apart. A CA with other words gets no
        // advice.
        if failure.kind == FailureKind::Account
            && failure.message.contains("deactivated")
            && self.issuer.external_account.is_none()
        {
            let advice = format!(
                "{}: delete Secret {}, and a new account is registered",
                failure.message, self.secret
            );
            failure = AcmeFailure {
                problem: failure.problem,
                ..account_failure(advice)
            };
        }
        failure
    }
}

fn key(pem: &PrivateKey) -> Result<(Key, PrivatePkcs8KeyDer<'static>), AcmeFailure> {
    let der = pem
        .der()
        .map_err(|error| account_failure(format!("the account's key: {error}")))?;
    let pkcs8 = PrivatePkcs8KeyDer::from(der.to_vec());
    let key = Key::from_pkcs8_der(pkcs8.clone_key())
        .map_err(|error| failure(error, AcmeOperation::Account))?;
    Ok((key, pkcs8))
}

/// Decodes a MAC key. CAs hand them out as base64url, with padding or without.
fn mac_key(entry: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let text = std::str::from_utf8(entry).ok()?.trim();
    BASE64_URL_SAFE_NO_PAD
        .decode(text)
        .or_else(|_| BASE64_URL_SAFE.decode(text))
        .ok()
        .filter(|mac| !mac.is_empty())
        .map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use parking_lot::Mutex;
    use serde_json::json;
    use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeType};
    use vestibule_model::issuance::Issuance;
    use vestibule_model::key::{Kind, ObjectKey};
    use vestibule_model::meta::Meta;

    use super::*;
    use crate::client::tests::{Answers, problem};
    use crate::effects::{IssuerState, StoreError};

    /// Secrets of an issuer: that of its account, and that of its binding.
    #[derive(Debug)]
    struct Secrets {
        account: Mutex<StoredSecret>,
    }

    impl Effects for Secrets {
        async fn read(&self, _: &ObjectName) -> Result<Option<StoredSecret>, StoreError> {
            Ok(Some(self.account.lock().clone()))
        }

        async fn write(&self, _: &ObjectName, write: Write) -> Result<Written, StoreError> {
            let mut account = self.account.lock();
            account.state = Some(write.state);
            if let Some((_, key)) = write.pair {
                account.private_key = key;
            }
            Ok(Written::Done("2".into()))
        }

        async fn entry(
            &self,
            _: &ObjectName,
            _: &str,
        ) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
            Ok(Some(Zeroizing::new(b"bWFj".to_vec())))
        }

        fn challenges(&self, _: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>) {}

        fn issuance(&self, _: BTreeMap<ObjectName, Option<Issuance>>) {}

        fn issuers(&self, _: BTreeMap<ObjectKey, IssuerState>) {}

        fn observe(&self, _: Observation) {}
    }

    /// Registers at a CA that answers so when it is asked for the account of the stored key. Returns what was said to it
    /// for a new account, and whether the key in the Secret was replaced.
    async fn registers(
        existing: (u16, serde_json::Value),
    ) -> (Result<(), AcmeFailure>, Vec<String>, bool) {
        let answers = Answers::default();
        let directory = answers.directory();
        answers.set("/existing-account", existing.0, existing.1);
        answers.set("/new-account", 201, json!({"status": "valid"}));
        let issuer = AcmeIssuer {
            key: ObjectKey::new(Kind::AcmeIssuer, "a", "ca"),
            meta: Meta::default(),
            labels: BTreeMap::new(),
            directory: "https://ca.test/directory".into(),
            contact: Vec::new(),
            account_key_secret: "account".into(),
            external_account: Some(ExternalAccount {
                key_id: "kid".into(),
                secret: "binding".into(),
                key: "secret".into(),
            }),
            profile: None,
            ca_bundle: None,
            challenges: ChallengeType::ALL.to_vec(),
            findings: Vec::new(),
        };
        let record = StoredSecret {
            version: "1".into(),
            ours: true,
            private_key: PrivateKey::generate().expect("a key"),
            ..StoredSecret::default()
        };
        let effects = Arc::new(Secrets {
            account: Mutex::new(record.clone()),
        });
        let namespace: Arc<str> = "system".into();
        let opening = AccountOpener {
            effects: &effects,
            issuer: &issuer,
            http: &answers,
            gate: None,
            directory: &directory,
            secret: ObjectName::new("a", "account"),
            namespace: &namespace,
        };
        let registered = opening.register(Some(record.clone())).await.map(|_| ());
        let replaced = effects.account.lock().private_key != record.private_key;
        (registered, answers.said("/new-account"), replaced)
    }

    #[tokio::test]
    async fn an_issuer_with_a_binding_is_bound_anew_where_its_key_has_no_account() {
        for kind in ["accountDoesNotExist", "externalAccountRequired"] {
            let (registered, said, replaced) = registers((400, problem(kind, "who?"))).await;
            assert_eq!(registered, Ok(()), "{kind}");
            assert_eq!(said.len(), 1, "{kind}: {said:?}");
            assert!(said[0].contains("externalAccountBinding"), "{said:?}");
            assert!(replaced, "the library made the key that it bound");
        }
    }

    #[tokio::test]
    async fn an_account_that_the_stored_key_has_stays_without_another_binding() {
        let (registered, said, replaced) = registers((200, json!({"status": "valid"}))).await;
        assert_eq!(registered, Ok(()));
        assert!(said.is_empty(), "{said:?}");
        assert!(!replaced);
        // Whoever deactivated the account decides whether there is another one.
        let gone = problem("unauthorized", "the account is deactivated");
        for (status, answer) in [(403, gone), (503, serde_json::Value::Null)] {
            let (registered, said, replaced) = registers((status, answer)).await;
            assert!(registered.is_err(), "{status}");
            assert!(said.is_empty(), "{said:?}");
            assert!(!replaced, "{status}");
        }
    }

    #[test]
    fn mac_keys_with_padding_and_without() {
        assert_eq!(
            mac_key(b"YQ").as_deref().map(Vec::as_slice),
            Some(&b"a"[..])
        );
        assert_eq!(
            mac_key(b"YQ==\n").as_deref().map(Vec::as_slice),
            Some(&b"a"[..])
        );
        assert_eq!(mac_key(b"?"), None);
        assert_eq!(mac_key(b" "), None);
        assert_eq!(mac_key(&[0xff]), None);
    }
}
