//! Listeners: the state of each, and its resource.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message as _;
use vestibule_crds::gateway_api::unsupported_protocol;
use vestibule_model::condition::Reason;
use vestibule_model::conflict::{Conflict, Precedence};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{Listener, ListenerTls, TlsMode};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::SetVerdict;
use vestibule_model::protocol::{Port, Protocol, Transport};
use vestibule_model::{annotations, issuer};
use vestibule_stream::proto::{self, resource, tls_listener};
use vestibule_stream::{Encoded, Resource, ResourceKey};

use super::binds::{Bind, DesiredPort};
use super::certificate::SecretState;
use super::frontend::ClientCertificateRequest;
use super::issuance::{Asking, Want, Wants};
use super::reach::ChallengeListener;
use super::source::{self, User};
use super::usable_certificates::UsableCertificates;
use super::{Dirty, Output, Translator, listener_of, listener_resource, set_user};

/// The state of a listener whose object takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about it that do not depend on one another"
)]
pub(super) struct ListenerState {
    /// Why it is not accepted, if it is not. A conflict outranks every other reason: the conformance test
    /// `listenerset-protocol-conflict` wants `ProtocolConflict` even of implementations without the protocol.
    pub(super) refused: Option<Box<Finding>>,
    pub(super) conflict: Option<Conflict>,
    /// The first reference that does not resolve, if any.
    pub(super) unresolved: Option<Box<Finding>>,
    pub(super) supported_kinds: Vec<(&'static str, &'static str)>,
    pub(super) overlaps: bool,
    /// Secrets that it may use, each once and in order, even if they do not exist.
    pub(super) certificates: Vec<ObjectName>,
    /// Why it cannot serve although it is accepted: it terminates TLS and has no usable certificate.
    pub(super) unusable: Option<Box<Finding>>,
    /// The Gateway that it belongs to, directly or through its ListenerSet.
    pub(super) gateway: ObjectName,
    /// What the Gateway asks of clients.
    pub(super) asked: ClientCertificateRequest,
    /// Whether it is refused because no client could pass its validation. It is bound all the same, and
    /// closes every connection, so that no wider listener takes them.
    closed: bool,
    /// The internal port that it needs, where ports are allocated.
    pub(super) port: Option<DesiredPort>,
    /// Whether every claim that it needs is recorded. Until then it is not served.
    pub(super) claimed: bool,
    /// Whether it has a socket, allocated or its own.
    pub(super) bound: bool,
    /// What CAs find there, if they may connect to it.
    challenge_listener: Option<ChallengeListener>,
    /// Why it asks for no certificate although it names an issuer.
    pub(super) unasked: Option<Box<Finding>>,
    /// The finding that a certificate that it serves has expired.
    pub(super) expired: Option<Box<Finding>>,
    /// The finding that none of the certificates that it serves is for its hostname.
    pub(super) mismatched: Option<Box<Finding>>,
    /// Every finding about it.
    pub(super) findings: Vec<Finding>,
}

impl ListenerState {
    /// Whether it has its hostname on its port. It has if it is accepted, or closed because no client could
    /// pass its validation.
    pub(super) fn takes_part(&self) -> bool {
        self.refused.is_none() || self.closed
    }

    /// Whether the proxies get it. They also get a listener without a usable certificate: they bind it and
    /// close its connections, except that they answer challenges there. It never speaks plaintext.
    pub(super) fn is_served(&self) -> bool {
        self.takes_part() && !self.supported_kinds.is_empty()
    }

    /// Whether its connections reach routes: the proxies get it, and do not close every connection. While its
    /// certificate is being read, the proxies keep what they have ([`crate::publish::settle`]), so nothing is different.
    pub(super) fn carries_routes(&self) -> bool {
        let usable = self.unusable.as_deref().is_none_or(source::is_unread);
        self.is_served() && !self.closed && usable
    }
}

/// The internal port that a listener needs, and the socket that it has.
type PortAndBind = (Option<DesiredPort>, Option<Bind>);

/// The result of resolving the references of a listener to certificates.
#[derive(Debug, Default)]
struct Resolved {
    /// The Secrets that the listener may use, each once, even if they do not exist.
    certificates: Vec<ObjectName>,
    /// Why the listener cannot serve, if it cannot.
    unusable: Option<Finding>,
    /// A finding for each reference that does not resolve.
    broken: Vec<Finding>,
    /// The finding that a certificate that is served has expired.
    expired: Option<Finding>,
    /// The finding that no certificate is for the hostname of the listener.
    mismatched: Option<Finding>,
}

/// A listener that takes part, as [`Translator::judge_listener`] judges it.
struct JudgedListener {
    state: ListenerState,
    resource: Option<Encoded>,
    wants: BTreeMap<ObjectName, Want>,
    /// When its object was created, in seconds since the epoch.
    created: i64,
    /// Its place in its object.
    field: String,
    /// How many bytes it has in the configuration if it is served, without what its Gateway asks of clients.
    bytes: u64,
}

impl Translator {
    pub(super) fn translate_listeners(&mut self, dirty: &mut Dirty, output: &mut Output) {
        let mut moved = BTreeSet::new();
        for key in &dirty.listeners {
            moved.extend(self.binds.settle(&self.settings.binds, &self.merge, key));
        }
        dirty.listeners.extend(moved);
        let mut listeners = std::mem::take(&mut dirty.listeners);
        // The size of a listener does not depend on the budgets, so there is at most one more round: that of the listeners whose
        // refusal has changed.
        loop {
            for key in listeners {
                self.translate_listener(&key, dirty, output);
            }
            // Which namespaces have no limit may have changed, even if no listener did.
            listeners = self.listener_budgets.settle();
            if listeners.is_empty() {
                break;
            }
        }
    }

    fn translate_listener(&mut self, key: &ListenerKey, dirty: &mut Dirty, output: &mut Output) {
        output.work.listeners += 1;
        let mut judged = self.judge_listener(key, None, output);
        let (created, bytes) = judged
            .as_ref()
            .map_or((0, 0), |judged| (judged.created, judged.bytes));
        self.listener_budgets.put(key, created, bytes);
        let field = judged.as_ref().map_or("", |judged| &*judged.field);
        if let Some(over) = self.listener_budgets.refusal(key, field) {
            judged = self.judge_listener(key, Some(over), output);
        }
        let (state, resource, wants) = match judged {
            Some(JudgedListener {
                state,
                resource,
                wants,
                ..
            }) => {
                // Lists in the copy have no room for more entries, which would be held for as long as the listener.
                (Some(Arc::new(state.clone())), resource, wants)
            }
            None => (None, None, BTreeMap::new()),
        };
        self.settle_resource(listener_resource(key), resource, output);
        self.settle_wants(key, wants, dirty);
        let old = match state.clone() {
            Some(state) => self.listeners.insert(key.clone(), state),
            None => self.listeners.remove(key),
        };
        if old == state {
            return;
        }
        let carries_routes = |state: &Option<Arc<ListenerState>>| {
            state.as_deref().is_some_and(ListenerState::carries_routes)
        };
        if carries_routes(&old) != carries_routes(&state) {
            // The statuses of its routes say whether any of their listeners serves them.
            dirty
                .others
                .extend(self.index.routes_to(&key.parent).cloned());
        }
        let place = |state: &'_ Option<Arc<ListenerState>>| {
            let state = state.as_ref()?;
            Some((state.gateway.clone(), state.challenge_listener.clone()?))
        };
        let (before, after) = (place(&old), place(&state));
        let moved = self.challenge_index.move_listener(
            key,
            before.as_ref().map(|(gateway, place)| (gateway, place)),
            after.as_ref().map(|(gateway, place)| (gateway, place)),
        );
        let interests = self.concerned(moved);
        self.mark_interested(interests, dirty);
        self.settle_uses(key, old.as_deref(), state.as_deref(), dirty, output);
        if let ParentKey::Gateway(name) = &key.parent {
            dirty.gateways.insert(name.clone());
        }
        dirty.parents.insert(key.parent.clone());
    }

    /// Brings up to date which Secrets and ports a listener uses.
    fn settle_uses(
        &mut self,
        key: &ListenerKey,
        old: Option<&ListenerState>,
        new: Option<&ListenerState>,
        dirty: &mut Dirty,
        output: &mut Output,
    ) {
        let may_use = |state: Option<&ListenerState>| -> BTreeSet<ObjectName> {
            state
                .iter()
                .flat_map(|s| s.certificates.iter().cloned())
                .collect()
        };
        let serves = |state: Option<&ListenerState>| may_use(state.filter(|s| s.is_served()));
        let (before, after) = (serves(old), serves(new));
        let user = User::Listener(key.clone());
        for secret in before.symmetric_difference(&after) {
            self.set_certificate_user(secret, &user, after.contains(secret), dirty);
        }
        let (before, after) = (may_use(old), may_use(new));
        for secret in before.symmetric_difference(&after) {
            let source = ObjectKey::secret(secret.clone());
            self.set_source_user(&source, &user, after.contains(secret), output);
        }
        let port = |state: Option<&ListenerState>| state.and_then(|s| s.port.clone());
        let (before, after) = (port(old), port(new));
        if before != after {
            for (desired, wanted) in [(before, false), (after, true)] {
                let Some(desired) = desired else { continue };
                set_user(&mut self.port_users, &desired, key, wanted);
                dirty.uids.insert(desired.gateway);
            }
        }
    }

    /// When the object of listeners was created, in seconds since the epoch; `None` if it takes no part.
    fn created_if_it_takes_part(&self, parent: &ParentKey) -> Option<i64> {
        match parent {
            ParentKey::Gateway(name) => Some(self.merge.gateway(name)?.meta.created),
            ParentKey::ListenerSet(name) => {
                let set = self.merge.set(name)?;
                let allowed = self.merge.verdict(set) == SetVerdict::Allowed;
                (allowed && !set.meta.deleting).then_some(set.meta.created)
            }
        }
    }

    /// `over` is why the listener is refused if it is over the budget.
    fn judge_listener(
        &mut self,
        key: &ListenerKey,
        over: Option<Finding>,
        output: &mut Output,
    ) -> Option<JudgedListener> {
        let (listeners, gateway) = self.merge.listeners(&key.parent)?;
        let listener = listeners.iter().find(|l| l.name == key.listener)?.clone();
        let gateway = gateway.clone();
        let created = self.created_if_it_takes_part(&key.parent)?;
        let mut findings = listener.findings.clone();
        let conflict = self.merge.conflict(key);
        let (supported_kinds, foreign_kind) = vestibule_model::attach::supported_kinds(&listener);
        let mut refused = self.refusal(key, &listener, &gateway, conflict).err();
        let (mut port, mut bind) = (None, None);
        if refused.is_none() {
            match self.port_and_bind(key, &listener.field, !supported_kinds.is_empty()) {
                Ok(place) => (port, bind) = place,
                Err(finding) => refused = Some(finding),
            }
        }
        let asked = self.asked(key, &listener, &gateway);
        // A listener over the budget may be back soon. Its certificate stays until then.
        let wants_certificates = refused.is_none() && asked.closed.is_none();
        refused = refused.or(over);
        let closed = refused.is_none() && asked.closed.is_some();
        if closed {
            refused = asked.closed.as_deref().cloned();
        }
        findings.extend(
            refused
                .iter()
                .filter(|f| !listener.findings.contains(f))
                .cloned(),
        );

        let Resolved {
            certificates,
            unusable,
            broken,
            expired,
            mismatched,
        } = self.resolve_certificates(key, &listener, output);
        findings.extend(broken.iter().chain(&foreign_kind).cloned());
        findings.extend(unusable.iter().filter(|f| !broken.contains(f)).cloned());
        if let ParentKey::ListenerSet(_) = key.parent {
            // For its own listeners, the Gateway has this finding already.
            findings.extend(asked.unresolved.as_deref().cloned());
        }

        let claimed = self.merge.is_claimed(key);
        if !claimed {
            bind = None;
        }
        let may_ask = wants_certificates && claimed;
        let wants = if may_ask {
            self.wants(key, &listener, &gateway, unusable.is_none())
        } else {
            Ok(BTreeMap::new())
        };
        let (wants, unasked) = match wants {
            Ok(wants) => (wants, None),
            Err(finding) => (BTreeMap::new(), Some(finding)),
        };
        // Before it may ask, nobody knows what it will have. What an engine replaces is not its owner's to replace.
        let mismatched = mismatched.filter(|_| may_ask && !self.is_reissued(&wants));
        let warnings = unasked.iter().chain(&expired).chain(&mismatched);
        findings.extend(warnings.cloned());
        let own = broken.into_iter().next().or(foreign_kind);
        // A finding that closes the listener comes before one that only makes it wait.
        let unresolved = match asked.unresolved.as_deref().cloned() {
            of_gateway if closed => of_gateway.or(own),
            of_gateway => own.or(of_gateway),
        };
        let mut state = ListenerState {
            refused: refused.map(Box::new),
            conflict,
            unresolved: unresolved.map(Box::new),
            closed,
            asked,
            gateway: gateway.clone(),
            supported_kinds,
            overlaps: self.merge.overlaps(key),
            certificates,
            unusable: unusable.map(Box::new),
            port,
            claimed,
            bound: bind.is_some(),
            challenge_listener: None,
            unasked: unasked.map(Box::new),
            expired: expired.map(Box::new),
            mismatched: mismatched.map(Box::new),
            findings,
        };
        if state.is_served() {
            state.challenge_listener = bind.and_then(|bind| ChallengeListener::of(&listener, bind));
        }
        let (bytes, resource) = self.size_and_resource(key, &listener, bind, &state);
        Some(JudgedListener {
            state,
            resource,
            wants,
            created,
            field: listener.field,
            bytes,
        })
    }

    /// How many bytes a listener has in the configuration without what its Gateway asks of clients, if it is served; and its
    /// resource, which it has when it has a socket.
    ///
    /// The size must not depend on claims and ports, because whoever waits for these keeps its place in the budget. So a
    /// listener without a socket counts with the longest port.
    fn size_and_resource(
        &self,
        key: &ListenerKey,
        listener: &Listener,
        bind: Option<Bind>,
        state: &ListenerState,
    ) -> (u64, Option<Encoded>) {
        let longest = Bind {
            address: self.settings.binds.address(),
            port: u16::MAX,
            transport: Transport::Tcp,
        };
        let Some(own) = state
            .is_served()
            .then(|| encode(key, listener, bind.unwrap_or(longest), state))
            .flatten()
        else {
            return (0, None);
        };
        let bytes = own.encoded_len() + key.to_string().len();
        let resource = bind.and_then(|_| encoded(key, own, state));
        (u64::try_from(bytes).unwrap_or(u64::MAX), resource)
    }

    /// What a listener that is not refused wants from a certificate engine.
    fn wants(
        &self,
        key: &ListenerKey,
        listener: &Listener,
        gateway: &ObjectName,
        usable: bool,
    ) -> Wants {
        let Some(of_gateway) = self.merge.gateway(gateway) else {
            return Ok(BTreeMap::new());
        };
        let index = |listeners: &[Listener]| {
            let index = listeners.iter().position(|l| l.name == listener.name);
            index.unwrap_or_default()
        };
        let gateway = (gateway.clone(), of_gateway.meta.uid.clone());
        match &key.parent {
            ParentKey::Gateway(_) => Asking {
                key,
                listener,
                siblings: &of_gateway.listeners,
                issuer: of_gateway.issuers.choice(),
                annotations: &of_gateway.certificates,
                denied: None,
                withheld: None,
                place: Precedence::Gateway(index(&of_gateway.listeners)),
                uid: gateway.1.clone(),
                gateway,
                usable,
            }
            .wants(),
            ParentKey::ListenerSet(name) => {
                let Some(set) = self.merge.set(name) else {
                    return Ok(BTreeMap::new());
                };
                let index = index(&set.listeners);
                let shim = self.settings.shim_for_sets;
                if let Some(finding) = shim
                    .then(|| annotations::asked_twice(set, of_gateway, &listener.name))
                    .flatten()
                {
                    return Err(finding);
                }
                Asking {
                    key,
                    listener,
                    siblings: &set.listeners,
                    issuer: issuer::choose(&set.issuers, &of_gateway.issuers, &gateway.0),
                    annotations: &set.certificates,
                    denied: self.merge.not_issued(key),
                    withheld: self.merge.withheld(name),
                    place: Precedence::of_set(set.meta.created, &set.name, index),
                    uid: set.meta.uid.clone(),
                    gateway,
                    usable,
                }
                .wants()
            }
        }
    }

    /// Where a listener that is not refused is bound: the internal port that it needs, and its socket. Before
    /// the port is allocated, it has no socket.
    fn port_and_bind(
        &self,
        key: &ListenerKey,
        field: &str,
        takes_routes: bool,
    ) -> Result<PortAndBind, Finding> {
        let binds = &self.settings.binds;
        if binds.services().is_none() {
            return Ok((None, Some(self.binds.bind(key, field)?)));
        }
        let desired = self
            .merge
            .claim(key)
            .filter(|_| takes_routes)
            .and_then(|(port, _)| {
                Some(DesiredPort {
                    gateway: self.merge.gateway(&port.gateway)?.meta.uid.clone(),
                    port: port.port,
                    transport: port.transport,
                })
            });
        let bind = desired.as_ref().and_then(|desired| {
            let internal = self.allocated.get(desired)?;
            binds.allocated(desired, *internal)
        });
        Ok((desired, bind))
    }

    /// The port that a listener has on its Gateway's Service, and the internal port behind it; `None` if the
    /// port is not allocated, or if Gateways have no Services.
    #[must_use]
    pub fn port_on_service(&self, listener: &ListenerKey) -> Option<(&DesiredPort, Port)> {
        let desired = self.listeners.get(listener)?.port.as_ref()?;
        Some((desired, *self.allocated.get(desired)?))
    }

    /// Whether a listener that the proxies have as `old` only waits until its claims are recorded and its
    /// port is allocated, and will then serve at least the same names on the same port. It costs the same however many
    /// other listeners there are, since it is asked about each removal that is not published yet, again and again.
    #[must_use]
    pub fn listener_waits(&self, name: &ResourceKey, old: &proto::Listener) -> bool {
        let Some(key) = listener_of(name) else {
            return false;
        };
        let waits = self.listeners.get(&key).is_some_and(|state| {
            let has_both = state.claimed && state.bound;
            state.is_served() && !has_both
        });
        if !waits {
            return false;
        }
        let hostname = HostPattern::parse(&old.hostname);
        let listeners = self.merge.listeners(&key.parent);
        let now = listeners.and_then(|(all, _)| all.iter().find(|l| l.name == key.listener));
        now.zip(hostname.ok()).is_some_and(|(now, before)| {
            now.port.map(|port| u32::from(port.get())) == Some(old.port)
                && now.hostname.covers(&before)
        })
    }

    /// Why a listener is not accepted, for reasons other than its socket and the validation of clients.
    fn refusal(
        &self,
        key: &ListenerKey,
        listener: &Listener,
        gateway: &ObjectName,
        conflict: Option<Conflict>,
    ) -> Result<(), Finding> {
        let refused = self.merge.refused_name(key);
        let with_holder = refused.and_then(|refused| {
            refused.listener_finding(&listener.field, &listener.hostname, gateway)
        });
        if let Some(refusal) = with_holder {
            return Err(refusal);
        }
        if let (Some(conflict), Some((port, claim))) = (conflict, self.merge.claim(key)) {
            return Err(conflict.finding(claim, &listener.field, port.port.get(), gateway));
        }
        if let Some(refusal) = listener.findings.iter().find(|f| f.refuses()) {
            return Err(refusal.clone());
        }
        if let Some(refusal) = self.merge.not_owned(key) {
            return Err(refusal.clone());
        }
        let guard = self
            .merge
            .gateway(gateway)
            .and_then(|gateway| gateway.tls.guard(&listener.protocol, listener.port));
        if let Some(guard) = guard {
            return Err(match key.parent {
                ParentKey::Gateway(_) => guard.clone(),
                ParentKey::ListenerSet(_) => Finding {
                    // The cause is the Gateway, which may change soon, so admission does not refuse the set
                    // for this.
                    reason: Reason::NotAllowed,
                    field: format!("{}.protocol", listener.field),
                    message: format!("{} of Gateway {gateway}: {}", guard.field, guard.message),
                    action: "use another protocol, or ask the owner of the Gateway".into(),
                    ..guard.clone()
                },
            });
        }
        unsupported_protocol(listener).map_or(Ok(()), Err)
    }

    /// Resolves the references of a listener to certificates.
    fn resolve_certificates(
        &mut self,
        key: &ListenerKey,
        listener: &Listener,
        output: &mut Output,
    ) -> Resolved {
        let certificates = match &listener.tls {
            Some(ListenerTls {
                mode: TlsMode::Terminate,
                certificates,
            }) => certificates.as_slice(),
            // Upstream allows this (v1.6.0 removed the rule against it), but such a listener cannot serve.
            None if listener.protocol == Protocol::Https => {
                return Resolved {
                    unusable: Some(lacks_tls(listener)),
                    ..Resolved::default()
                };
            }
            _ => return Resolved::default(),
        };
        let invalid = |field: &str, message: String, action: &str| {
            Finding::refused(Reason::InvalidCertificateRef, field, message, action)
        };
        let mut findings = Vec::new();
        let mut permitted = Vec::new();
        let mut usable = UsableCertificates::of(&listener.hostname);
        let referrer = key.parent.object();
        if certificates.is_empty() {
            findings.push(invalid(
                &format!("{}.tls.certificateRefs", listener.field),
                "names no certificate".into(),
                "name the Secret that holds it",
            ));
        }
        for reference in certificates {
            if !reference.is(Kind::Secret) {
                findings.push(invalid(
                    &reference.field,
                    format!(
                        "{:?} of group {:?} is not supported",
                        reference.kind, reference.group
                    ),
                    "refer to a Secret",
                ));
                continue;
            }
            // The grant is judged first, because without one nobody may learn whether the Secret exists.
            let target = match self.permit(&referrer, reference) {
                Ok(target) => target,
                Err(finding) => {
                    findings.push(finding);
                    continue;
                }
            };
            let source = ObjectKey::secret(target.clone());
            let over = self.source_budgets.refusal(&source, &reference.field);
            let meanwhile = match over {
                None => "; until then proxies go on with the last good one, if they have it",
                Some(_) => "",
            };
            let broken = |problem: &str, action: &str, over: Option<Finding>| {
                let action = format!("{action}{meanwhile}");
                source::also_over(invalid(&reference.field, problem.into(), &action), over)
            };
            match self.secret_state(&target, output) {
                SecretState::Usable(_) if over.is_some() => findings.extend(over),
                SecretState::Usable(certificate) => {
                    usable.push(&reference.field, &target, certificate);
                }
                SecretState::Unread => {
                    findings.push(source::unread(Kind::Secret, &target, &reference.field));
                }
                SecretState::Issuing => findings.push(invalid(
                    &reference.field,
                    format!("Secret {target} waits for its certificate, which is being issued"),
                    "see the condition vestibule.dev/CertificateIssued",
                )),
                SecretState::NotYetValid(problem) => {
                    let action = "wait, or put a certificate there that is valid";
                    findings.push(broken(problem, action, over));
                }
                SecretState::Missing => {
                    let create = "create it, or have a certificate issued into it";
                    let (message, action) = self.absent(Kind::Secret, &target, create);
                    findings.push(invalid(&reference.field, message, action));
                }
                SecretState::Unusable(problem) => {
                    let action = "put a PEM certificate chain into \"tls.crt\" and its PEM key into \"tls.key\"";
                    findings.push(broken(problem, action, over));
                }
            }
            if !permitted.contains(&target) {
                permitted.push(target);
            }
        }
        let unusable = source::problem(&findings).filter(|_| usable.is_empty());
        // A reference that does not resolve may be the one to the certificate for the hostname.
        let mismatched = usable.mismatched().filter(|_| findings.is_empty());
        Resolved {
            certificates: permitted,
            unusable: unusable.cloned(),
            expired: usable.expired(),
            mismatched,
            broken: findings,
        }
    }
}

fn lacks_tls(listener: &Listener) -> Finding {
    Finding::refused(
        Reason::InvalidTLSConfig,
        format!("{}.tls", listener.field),
        "is absent, and HTTPS takes a certificate",
        "name the Secret that holds it in tls.certificateRefs",
    )
}

/// How a listener ends TLS, if it does.
fn terminate_of(resource: &mut proto::Listener) -> Option<&mut proto::TlsTerminate> {
    match resource.protocol.as_mut()? {
        proto::listener::Protocol::Http(http) => http.terminate.as_mut(),
        proto::listener::Protocol::Tls(proto::TlsListener {
            mode: Some(tls_listener::Mode::Terminate(terminate)),
        }) => Some(terminate),
        _ => None,
    }
}

/// The resource of a listener, with what its Gateway asks of clients.
fn encoded(
    key: &ListenerKey,
    mut resource: proto::Listener,
    state: &ListenerState,
) -> Option<Encoded> {
    if let Some(terminate) = terminate_of(&mut resource) {
        terminate.client_validation = state.asked.encode();
    }
    // Only a name could make it too large, and the API bounds names.
    let resource = resource::Resource::Listener(resource);
    Encoded::new(&Resource::new(key.to_string(), resource)).ok()
}

/// A listener without what its Gateway asks of clients.
fn encode(
    key: &ListenerKey,
    listener: &Listener,
    bind: Bind,
    state: &ListenerState,
) -> Option<proto::Listener> {
    let terminate = || proto::TlsTerminate {
        certificates: state.certificates.iter().map(ToString::to_string).collect(),
        client_validation: None,
    };
    let protocol = match listener.protocol {
        Protocol::Http => proto::listener::Protocol::Http(proto::HttpListener { terminate: None }),
        Protocol::Https => proto::listener::Protocol::Http(proto::HttpListener {
            terminate: Some(terminate()),
        }),
        Protocol::Tcp => proto::listener::Protocol::Tcp(proto::TcpListener {}),
        Protocol::Udp => proto::listener::Protocol::Udp(proto::UdpListener {}),
        _ => {
            let mode = match listener.tls.as_ref()?.mode {
                TlsMode::Passthrough => tls_listener::Mode::Passthrough(proto::TlsPassthrough {}),
                TlsMode::Terminate => tls_listener::Mode::Terminate(terminate()),
            };
            proto::listener::Protocol::Tls(proto::TlsListener { mode: Some(mode) })
        }
    };
    let transport = match bind.transport {
        Transport::Tcp => proto::Transport::Tcp,
        Transport::Udp => proto::Transport::Udp,
    };
    Some(proto::Listener {
        gateway: state.gateway.to_string(),
        bind: Some(proto::Bind {
            address: bind.address.to_string(),
            port: bind.port.into(),
            transport: transport.into(),
        }),
        hostname: listener.hostname.to_string(),
        port: listener.port.map_or(0, |port| port.get().into()),
        tenant: key.parent.name().namespace.to_string(),
        protocol: Some(protocol),
        // The settings come by themselves. Without them the proxies serve nothing.
        needs_gateway_settings: true,
    })
}
