//! Certificates to be issued: the certificate that each listener wants, the request that follows for each Secret, and its
//! progress.
//!
//! A listener wants a certificate if all of this is true:
//! - The listener is allowed, accepted and without conflict, and its object is not being deleted.
//! - It terminates TLS, and its hostname is exact.
//! - Its namespace holds the hostname (a listener of the Gateway itself needs no claim), may use the issuer, and is
//!   not over its limit on certificates.
//! - The Secret is in its own namespace.
//!
//! Each Secret has one request. It belongs to the first object that names the Secret, in the order of the merge.
//! Other objects of the namespace join it if they ask for the same.
//!
//! No request of a tenant contains a name to whose certificates another namespace has the right through another
//! Gateway ([`super::across`]).
//!
//! No request contains a name that another namespace serves on port 443, whatever the engine. So whoever terminates
//! a name on some other port gets no certificate for it. cert-manager may check a name by HTTP, so a request to it
//! contains no name that another namespace serves on port 80 either.
//!
//! A name that annotations add is in a request if a grant gives it and, for a hostname, if the namespace holds it
//! on the Gateway. Otherwise a finding says that it is left out, and the rest of the certificate is requested
//! without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::annotations::certificate_problems;
use vestibule_model::certificate::{
    ALTERNATIVE_NAMES, AlternativeNames, CertificateAnnotations, CertificateOptions,
};
use vestibule_model::challenge::{Reach, Reaches};
use vestibule_model::condition::{Condition, ConditionType, Reason};
use vestibule_model::conflict::Precedence;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{Listener, TlsMode};
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::issuance::{CertificateRequest, Issuance, IssuanceState};
use vestibule_model::issuer::{Engine, IssuerRef};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::small::SmallSet;

use super::across::held_elsewhere;
use super::reach::Interest;
use super::{Dirty, Output, Translator};

const ISSUED: ConditionType = ConditionType::CertificateIssued;

/// The certificate that a listener wants in one Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Want {
    hostname: Hostname,
    issuer: Option<IssuerRef>,
    /// The options, with only those of the added names that grants give.
    options: Arc<CertificateOptions>,
    place: Precedence,
    owner_uid: Arc<str>,
    gateway: ObjectName,
    gateway_uid: Arc<str>,
}

impl Want {
    /// The hostnames that it asks for.
    fn hostnames(&self) -> impl Iterator<Item = &Hostname> {
        std::iter::once(&self.hostname).chain(&self.options.alternative_names.hostnames)
    }
}

/// What a listener wants, by Secret; or the finding that says why it asks for nothing although it names an issuer.
pub(super) type Wants = Result<BTreeMap<ObjectName, Want>, Finding>;

/// A listener, with what its object and its Gateway say about certificates.
pub(super) struct Asking<'a> {
    pub(super) key: &'a ListenerKey,
    pub(super) listener: &'a Listener,
    /// All listeners of the object.
    pub(super) siblings: &'a [Listener],
    pub(super) issuer: Result<Option<IssuerRef>, Finding>,
    pub(super) annotations: &'a CertificateAnnotations,
    /// Why its namespace gets no certificate from the issuer, if it gets none.
    pub(super) denied: Option<&'a Finding>,
    /// Why the names that the annotations add may not be in a certificate, if they may not.
    pub(super) withheld: Option<&'a Finding>,
    pub(super) place: Precedence,
    pub(super) uid: Arc<str>,
    pub(super) gateway: (ObjectName, Arc<str>),
    /// Whether it has a usable certificate already.
    pub(super) usable: bool,
}

impl Asking<'_> {
    /// What the listener wants.
    pub(super) fn wants(self) -> Wants {
        let none = || Ok(BTreeMap::new());
        let terminates = |tls: &&vestibule_model::gateway::ListenerTls| {
            tls.mode == TlsMode::Terminate && !tls.certificates.is_empty()
        };
        let Some(tls) = self.listener.tls.as_ref().filter(terminates) else {
            return none();
        };
        let issuer = self.issuer?;
        let namespace = &self.key.parent.name().namespace;
        let engine = issuer.as_ref().map(|issuer| issuer.engine);
        let options = &self.annotations.options;
        if engine.is_some_and(|engine| engine.ignores(options, &self.key.listener)) {
            return none();
        }
        if engine == Some(Engine::CertManager) {
            let problems = certificate_problems(self.annotations, self.siblings);
            if let Some(refusal) = problems.into_iter().find(Finding::refuses) {
                return Err(refusal);
            }
        }
        // A listener whose owner has put a certificate there lacks nothing, so no finding is needed.
        let unless_served = |finding: Finding| match (engine, self.usable) {
            (Some(_), false) => Err(finding),
            _ => none(),
        };
        let HostPattern::Exact(hostname) = &self.listener.hostname else {
            return unless_served(Finding::warning(
                Reason::NotIssuable,
                format!("{}.hostname", self.listener.field),
                match &self.listener.hostname {
                    HostPattern::Any => {
                        "is absent, and certificates are issued for exact hostnames only".into()
                    }
                    wildcard => format!(
                        "\"{wildcard}\" is a wildcard, and certificates are issued for exact hostnames only"
                    ),
                },
                "put a certificate into the Secret yourself, or add a listener for each hostname",
            ));
        };
        // cert-manager's own support asks for every Secret of a listener, or for none.
        let references = match engine {
            Some(Engine::CertManager) => tls.certificates.as_slice(),
            _ => tls.certificates.get(..1).unwrap_or_default(),
        };
        let elsewhere = references
            .iter()
            .find(|r| !r.is(Kind::Secret) || r.target.namespace != *namespace);
        if let Some(reference) = elsewhere {
            return unless_served(Finding::warning(
                Reason::NotIssuable,
                reference.field.clone(),
                "is no Secret of this namespace, so no certificate is issued into it",
                "name a Secret of this namespace",
            ));
        }
        if let Some(denied) = self.denied {
            return Err(denied.clone());
        }
        if let Some(withheld) = self
            .withheld
            .filter(|_| engine == Some(Engine::CertManager))
        {
            return Err(withheld.clone());
        }
        let want = Want {
            hostname: hostname.clone(),
            issuer,
            options: permitted(options, engine.filter(|_| self.withheld.is_none())),
            place: self.place,
            owner_uid: self.uid,
            gateway: self.gateway.0,
            gateway_uid: self.gateway.1,
        };
        let secrets = references.iter().map(|r| r.target.clone());
        Ok(secrets.map(|secret| (secret, want.clone())).collect())
    }
}

/// The options, with those of the added names that `engine` puts into certificates. With `None`, no added name is
/// permitted.
fn permitted(options: &Arc<CertificateOptions>, engine: Option<Engine>) -> Arc<CertificateOptions> {
    let asked = &options.alternative_names;
    let names = match engine {
        Some(Engine::CertManager) => return options.clone(),
        _ if asked.is_empty() => return options.clone(),
        Some(Engine::Acme) => AlternativeNames {
            hostnames: asked.hostnames.clone(),
            ..AlternativeNames::default()
        },
        None => AlternativeNames::default(),
    };
    Arc::new(CertificateOptions {
        alternative_names: names,
        ..CertificateOptions::clone(options)
    })
}

impl Translator {
    /// Records what a listener wants, and marks the requests that this changes.
    pub(super) fn settle_wants(
        &mut self,
        key: &ListenerKey,
        wants: BTreeMap<ObjectName, Want>,
        dirty: &mut Dirty,
    ) {
        let interest = Interest::Listener(key.clone());
        let secrets: SmallSet<ObjectName> = wants.keys().cloned().collect();
        let former = self.wants.remove(key).unwrap_or_default();
        // The former interests are removed before the new ones are set, because a listener has one interest in a
        // name, even if it wants the name in two Secrets.
        for secret in &former {
            let Some(requesters) = self.requesters.get_mut(secret) else {
                continue;
            };
            let old = requesters.remove(key);
            if requesters.is_empty() {
                self.requesters.remove(secret);
            }
            if old.as_ref() != wants.get(secret) {
                dirty.requests.insert(secret.clone());
            }
            for (old, hostname) in old
                .iter()
                .flat_map(|old| old.hostnames().map(move |h| (old, h)))
            {
                self.challenge_index
                    .set_interest(&old.gateway, hostname, &interest, false);
            }
            if !secrets.contains(secret) && self.set_problem(key, secret, None) {
                dirty.parents.insert(key.parent.clone());
            }
        }
        for (secret, want) in wants {
            for hostname in want.hostnames() {
                self.challenge_index
                    .set_interest(&want.gateway, hostname, &interest, true);
            }
            if !former.contains(&secret) {
                dirty.requests.insert(secret.clone());
            }
            let requesters = self.requesters.entry(secret).or_default();
            requesters.insert(key.clone(), want);
        }
        if secrets != former {
            dirty.parents.insert(key.parent.clone());
        }
        if !secrets.is_empty() {
            self.wants.insert(key.clone(), secrets);
        }
    }

    /// Whether an engine puts another certificate into one of these Secrets when what is there is not for the name. The
    /// built-in engine writes only into Secrets that it made. This does not ask how far the certificate is, because what an
    /// engine has said so far is about the names before the last edit.
    pub(super) fn is_reissued(&self, wants: &BTreeMap<ObjectName, Want>) -> bool {
        let is_ours = |secret: &ObjectName| {
            let object = self.objects.get(&ObjectKey::secret(secret.clone()));
            matches!(object.map(Arc::as_ref), Some(Object::Secret(secret)) if secret.acme)
        };
        wants.iter().any(|(secret, want)| {
            let engine = want.issuer.as_ref().map(|issuer| issuer.engine);
            match engine {
                Some(Engine::CertManager) => true,
                Some(Engine::Acme) => is_ours(secret),
                None => false,
            }
        })
    }

    /// Judges the requests again whose wants may have changed, or the answers to whose challenges.
    pub(super) fn translate_requests(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for secret in std::mem::take(&mut dirty.requests) {
            output.work.requests += 1;
            let (request, problems) = self.judge_request(&secret);
            for (listener, problem) in problems {
                if self.set_problem(&listener, &secret, problem) {
                    dirty.parents.insert(listener.parent.clone());
                }
            }
            if self.requests.get(&secret).map(AsRef::as_ref) == request.as_ref() {
                continue;
            }
            let request = request.map(Arc::new);
            // The conditions of the listeners say whether a request exists.
            let listeners = self.requesters.get(&secret).into_iter().flatten();
            dirty
                .parents
                .extend(listeners.map(|(listener, _)| listener.parent.clone()));
            match &request {
                Some(request) => self.requests.insert(secret.clone(), request.clone()),
                None => self.requests.remove(&secret),
            };
            output.certificates.insert(secret, request);
        }
    }

    /// The request that follows from the wants for a Secret, and for each listener the finding that keeps its names
    /// out of it, if any.
    fn judge_request(
        &self,
        secret: &ObjectName,
    ) -> (
        Option<CertificateRequest>,
        Vec<(ListenerKey, Option<Finding>)>,
    ) {
        let mut wants: Vec<(&ListenerKey, &Want)> =
            self.requesters.get(secret).into_iter().flatten().collect();
        wants.sort_by(|(a, at), (b, bt)| at.place.cmp(&bt.place).then(a.cmp(b)));
        let mut request: Option<CertificateRequest> = None;
        let mut problems = Vec::with_capacity(wants.len());
        for (key, want) in wants {
            let reach = self.reaches(&want.gateway, &want.hostname, &secret.namespace);
            let others = self.stands_in_the_way(reach, want, &secret.namespace);
            let problem = match &mut request {
                _ if others.is_some() => others,
                None => {
                    request = Some(CertificateRequest {
                        secret: secret.clone(),
                        hostnames: BTreeSet::from([want.hostname.clone()]),
                        issuer: want.issuer.clone(),
                        owner: key.parent.object(),
                        owner_uid: want.owner_uid.clone(),
                        gateway: want.gateway.clone(),
                        gateway_uid: want.gateway_uid.clone(),
                        options: want.options.clone(),
                        reach: BTreeMap::from([(want.hostname.clone(), reach)]),
                    });
                    None
                }
                Some(request) => join(request, key, want, reach),
            };
            problems.push((
                key.clone(),
                problem.map(|problem| locate(problem, key, self)),
            ));
        }
        if let Some(request) = &mut request
            && let Some(problem) = self.add_hostnames(request)
        {
            for (_, said) in problems.iter_mut().filter(|(_, said)| said.is_none()) {
                *said = Some(problem.clone());
            }
        }
        // The annotations of an object hold for all its Secrets. If the common name belongs to another of them,
        // this certificate goes without it.
        if let Some(request) = &mut request
            && let Some(name) = &request.options.common_name
            && !request
                .hostnames
                .iter()
                .any(|host| host.as_str() == name.trim_end_matches('.').to_ascii_lowercase())
        {
            request.options = Arc::new(CertificateOptions {
                common_name: None,
                ..CertificateOptions::clone(&request.options)
            });
        }
        (request, problems)
    }

    /// Why a name may not be requested for a namespace, if it may not.
    fn stands_in_the_way(
        &self,
        reach: Reaches,
        want: &Want,
        namespace: &Arc<str>,
    ) -> Option<Finding> {
        let port = port_of_others(reach, want.issuer.as_ref())?;
        if self.is_held_elsewhere(&want.gateway, &want.hostname, namespace) {
            return Some(held_elsewhere("hostname", &want.hostname));
        }
        Some(Finding::refused(
            Reason::ServedByOthers,
            "hostname",
            format!(
                "another namespace serves \"{}\" on port {port} of Gateway {}, so no certificate is requested for it",
                want.hostname, want.gateway
            ),
            "use another hostname, or have it removed there first",
        ))
    }

    /// Adds the hostnames of annotations to a request. Returns a finding about the first one that is left out, if
    /// any.
    fn add_hostnames(&self, request: &mut CertificateRequest) -> Option<Finding> {
        let options = request.options.clone();
        let mut problem = None;
        for hostname in &options.alternative_names.hostnames {
            if request.hostnames.contains(hostname) {
                continue;
            }
            match self.may_add(request, hostname) {
                Ok(reach) => {
                    request.hostnames.insert(hostname.clone());
                    request.reach.insert(hostname.clone(), reach);
                }
                Err(finding) => problem = problem.or(Some(finding)),
            }
        }
        problem
    }

    /// Whether a hostname that only annotations name may be in a certificate. A tenant has to hold the hostname, or
    /// a wildcard around it. The Gateway's own namespace may also add a hostname that no tenant holds. The finding
    /// does not say who holds it.
    fn may_add(
        &self,
        request: &CertificateRequest,
        hostname: &Hostname,
    ) -> Result<Reaches, Finding> {
        let (gateway, namespace) = (&request.gateway, &request.secret.namespace);
        let [annotation, ..] = ALTERNATIVE_NAMES;
        let field = format!("metadata.annotations[{annotation}]");
        let tenant = self.tenant_of(gateway, hostname);
        let reach = self.reaches(gateway, hostname, namespace);
        let ours = match &tenant {
            Some(tenant) if tenant == namespace => {
                if self.is_held_elsewhere(gateway, hostname, namespace) {
                    return Err(held_elsewhere(field, hostname));
                }
                true
            }
            Some(_) => false,
            None => {
                *namespace == gateway.namespace
                    && !self.is_first_of_others(hostname, namespace)
                    && port_of_others(reach, request.issuer.as_ref()).is_none()
            }
        };
        if ours {
            return Ok(reach);
        }
        Err(Finding::refused(
            Reason::HostnameNotOwned,
            field,
            format!(
                "adds \"{hostname}\", which is no hostname of namespace {namespace} on Gateway {gateway}, so the certificate is without it"
            ),
            "remove it, or add a listener or a route for it first",
        ))
    }

    /// Records the finding that keeps a listener's want from being requested, if any. Returns whether it differs
    /// from before.
    fn set_problem(
        &mut self,
        listener: &ListenerKey,
        secret: &ObjectName,
        problem: Option<Finding>,
    ) -> bool {
        let key = (listener.clone(), secret.clone());
        let news = self.want_problems.get(&key) != problem.as_ref();
        match problem {
            Some(problem) => self.want_problems.insert(key, problem),
            None => self.want_problems.remove(&key),
        };
        news
    }

    /// The finding that keeps one of a listener's wants from being requested, if any.
    pub(super) fn problem_of(&self, listener: &ListenerKey) -> Option<&Finding> {
        let secrets = self.wants.get(listener)?;
        secrets
            .iter()
            .find_map(|secret| self.want_problems.get(&(listener.clone(), secret.clone())))
    }

    pub(super) fn take_issuance(
        &mut self,
        changes: BTreeMap<ObjectName, Option<Issuance>>,
        dirty: &mut Dirty,
    ) {
        for (secret, issuance) in changes {
            let old = match issuance.clone() {
                Some(issuance) => self.issuance.insert(secret.clone(), issuance),
                None => self.issuance.remove(&secret),
            };
            if old == issuance {
                continue;
            }
            let listeners = self.requesters.get(&secret).into_iter().flatten();
            dirty
                .parents
                .extend(listeners.map(|(listener, _)| listener.parent.clone()));
        }
    }

    /// The condition with the progress of a listener's certificate, or `None` if the listener asks for none. `own` is the
    /// finding that keeps the listener from asking, if any.
    pub(super) fn certificate_condition(
        &self,
        listener: &ListenerKey,
        own: Option<&Finding>,
    ) -> Option<Condition> {
        if let Some(problem) = own.or_else(|| self.problem_of(listener)) {
            return Some(Condition::fails(
                ISSUED,
                problem.reason,
                problem.to_string(),
            ));
        }
        let secrets = self.wants.get(listener)?;
        let conditions = secrets.iter().filter_map(|secret| {
            let Some(issuance) = self.issuance.get(secret) else {
                let issuer = self.requests.get(secret)?.issuer.as_ref()?;
                let message = format!(
                    "A certificate is requested from {} {}",
                    issuer.kind, issuer.name
                );
                return Some((1, Condition::fails(ISSUED, Reason::Pending, message)));
            };
            let message = issuance.message.to_string();
            Some(match issuance.state {
                IssuanceState::Issued => (2, Condition::holds(ISSUED, issuance.reason, message)),
                IssuanceState::Pending => (1, Condition::fails(ISSUED, issuance.reason, message)),
                IssuanceState::Failed => (0, Condition::fails(ISSUED, issuance.reason, message)),
            })
        });
        // The condition of a listener is that of its worst Secret.
        conditions.min_by_key(|(rank, _)| *rank).map(|(_, c)| c)
    }

    /// Brings the ACME issuers up to date.
    pub(super) fn translate_issuers(&mut self, dirty: &Dirty, output: &mut Output) {
        for key in &dirty.issuers {
            let issuer = match self.objects.get(key).map(Arc::as_ref) {
                Some(Object::AcmeIssuer(issuer)) => Some(Arc::clone(issuer)),
                _ => None,
            };
            let old = match &issuer {
                Some(issuer) => self.issuers.insert(key.clone(), issuer.clone()),
                None => self.issuers.remove(key),
            };
            if old != issuer {
                output.issuers.insert(key.clone(), issuer);
            }
        }
    }
}

/// The port on which another namespace answers for a name, if the issuer's engine may check the name there.
fn port_of_others([tls, http]: Reaches, issuer: Option<&IssuerRef>) -> Option<u16> {
    let by_cert_manager = issuer.is_some_and(|issuer| issuer.engine == Engine::CertManager);
    if tls == Reach::Others {
        Some(443)
    } else if http == Reach::Others && by_cert_manager {
        Some(80)
    } else {
        None
    }
}

/// Adds a name to the request of the object that asked first. Returns a finding if the name cannot join the
/// request.
fn join(
    request: &mut CertificateRequest,
    key: &ListenerKey,
    want: &Want,
    reach: Reaches,
) -> Option<Finding> {
    let differs = |message: String| {
        Some(Finding::refused(
            Reason::RequestsDiffer,
            "tls.certificateRefs",
            message,
            "use a Secret of its own, or make the two agree",
        ))
    };
    let owner = &request.owner;
    let same = *owner == key.parent.object()
        || (request.issuer == want.issuer && request.options.same_certificate(&want.options));
    if !same {
        return differs(format!(
            "a certificate for Secret {} is asked for by {owner} with another issuer or other options",
            request.secret
        ));
    }
    if request.hostnames.contains(&want.hostname) {
        return None;
    }
    let by_cert_manager = want
        .issuer
        .as_ref()
        .is_some_and(|issuer| issuer.engine == Engine::CertManager);
    // The ACME engine answers the challenges of one order at one Gateway.
    if want.gateway != request.gateway && want.issuer.is_some() && !by_cert_manager {
        return differs(format!(
            "a certificate for Secret {} is asked for by {owner}, on another Gateway",
            request.secret
        ));
    }
    request.hostnames.insert(want.hostname.clone());
    request.reach.insert(want.hostname.clone(), reach);
    None
}

/// Puts the path of the listener in front of the field of a problem.
fn locate(mut problem: Finding, key: &ListenerKey, translator: &Translator) -> Finding {
    let listener = translator
        .merge
        .listeners(&key.parent)
        .and_then(|(listeners, _)| listeners.iter().find(|l| l.name == key.listener));
    if let Some(listener) = listener {
        problem.field = format!("{}.{}", listener.field, problem.field);
    }
    problem
}
