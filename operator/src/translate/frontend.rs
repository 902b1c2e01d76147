//! `spec.tls` of Gateways: which client certificates a Gateway asks for, and the certificate that it shows to backends.
//! It is resolved once for each Gateway, and holds for the Gateway's own listeners and those of its ListenerSets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::backend_key::BackendKey;
use vestibule_model::condition::{Condition, ConditionType, Reason};
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{Gateway, Listener};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::protocol::Port;
use vestibule_model::reference::Reference;
use vestibule_model::selector::NamespaceScope;
use vestibule_model::tls_policy::{ClientValidation, ValidationMode};
use vestibule_stream::proto;

use super::certificate::SecretState;
use super::report::fails;
use super::source::{self, User};
use super::trust::{Trust, bundle_name};
use super::{Dirty, Output, Translator};

/// The resolved `spec.tls` of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GatewayTlsState {
    default: Option<Validation>,
    per_port: BTreeMap<Port, Validation>,
    /// The certificate that the Gateway shows to backends.
    client_certificate: Option<ClientCertificate>,
    /// The namespaces to whose backends the Gateway shows it; `None`: all namespaces.
    shown_to: Option<NamespaceScope>,
    /// Every finding about it.
    pub(super) findings: Vec<Finding>,
}

/// A validation of client certificates, with its references resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Validation {
    trust: Trust,
    /// Why no client can pass the validation, if none can.
    none: Option<Finding>,
}

/// The certificate that the Gateway shows to backends.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClientCertificate {
    /// The Secret; `None` if the reference may not be followed.
    secret: Option<ObjectName>,
    problem: Option<Finding>,
}

/// The client certificates that a Gateway asks for on one listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClientCertificateRequest {
    /// The sources of the CA certificates, and the mode; `None`: the listener asks for no client certificate.
    pub(super) validation: Option<(Vec<ObjectKey>, ValidationMode)>,
    /// The first reference that does not resolve, if any.
    pub(super) unresolved: Option<Box<Finding>>,
    /// Why no client can be let in, if none can.
    pub(super) closed: Option<Box<Finding>>,
}

impl ClientCertificateRequest {
    pub(super) fn encode(&self) -> Option<proto::ClientValidation> {
        let (sources, mode) = self.validation.as_ref()?;
        let mode = match mode {
            ValidationMode::AllowValidOnly => proto::ClientValidationMode::AllowValidOnly,
            ValidationMode::AllowInsecureFallback => {
                proto::ClientValidationMode::AllowInsecureFallback
            }
        };
        Some(proto::ClientValidation {
            trust_bundles: sources.iter().map(bundle_name).collect(),
            mode: mode.into(),
        })
    }
}

impl GatewayTlsState {
    fn validation(&self, port: Option<Port>) -> Option<&Validation> {
        port.and_then(|port| self.per_port.get(&port))
            .or(self.default.as_ref())
    }

    /// The sources of the CA certificates for clients.
    fn bundles(&self) -> Vec<ObjectKey> {
        let per_port = self.per_port.values();
        let sources: BTreeSet<&ObjectKey> = self
            .default
            .iter()
            .chain(per_port)
            .flat_map(|validation| &validation.trust.sources)
            .collect();
        sources.into_iter().cloned().collect()
    }

    /// Every source that `spec.tls` uses, including the Secret of the certificate for backends.
    fn sources(&self) -> Vec<ObjectKey> {
        let secret = self.secret().map(|name| ObjectKey::secret(name.clone()));
        self.bundles().into_iter().chain(secret).collect()
    }

    fn secret(&self) -> Option<&ObjectName> {
        self.client_certificate.as_ref()?.secret.as_ref()
    }

    /// The Secret of the certificate for backends, if it can be used.
    pub(super) fn usable_secret(&self) -> Option<&ObjectName> {
        let certificate = self.client_certificate.as_ref()?;
        let secret = certificate.secret.as_ref()?;
        certificate.problem.is_none().then_some(secret)
    }
}

impl Translator {
    /// Resolves the references of `spec.tls`. If a Gateway asks its clients for something else than before, its listeners
    /// are judged again.
    pub(super) fn translate_gateway_tls(&mut self, dirty: &mut Dirty, output: &mut Output) {
        for name in std::mem::take(&mut dirty.tls) {
            let gateway = self.merge.gateway(&name).cloned();
            let state = gateway
                .map(|gateway| self.judge_gateway_tls(&gateway, output))
                .filter(|state| *state != GatewayTlsState::default());
            let old = match state.clone() {
                Some(state) => self.gateway_tls.insert(name.clone(), state),
                None => self.gateway_tls.remove(&name),
            };
            if old == state {
                continue;
            }
            let shown_to = state.as_ref().and_then(|state| state.shown_to.clone());
            self.settle_shown_to(&name, shown_to.as_ref(), dirty);
            let user = User::Gateway(name.clone());
            let (old, state) = (old.unwrap_or_default(), state.unwrap_or_default());
            self.settle_bundles(&user, &old.bundles(), &state.bundles(), dirty);
            self.settle_sources(&user, &old.sources(), &state.sources(), output);
            let (before, after) = (old.secret(), state.secret());
            if before != after {
                for (secret, uses) in [(before, false), (after, true)] {
                    if let Some(secret) = secret {
                        self.set_certificate_user(secret, &user, uses, dirty);
                    }
                }
            }
            dirty.settings.insert(name.clone());
            let asks_otherwise = (&old.default, &old.per_port) != (&state.default, &state.per_port);
            let sets = self.merge.sets_of(&name).cloned();
            let sets: Vec<ParentKey> = sets.map(ParentKey::ListenerSet).collect();
            for parent in sets.into_iter().chain([ParentKey::Gateway(name)]) {
                if asks_otherwise {
                    self.index.dirty_listeners(&parent, dirty);
                }
                dirty.parents.insert(parent);
            }
        }
    }

    fn judge_gateway_tls(&mut self, gateway: &Gateway, output: &mut Output) -> GatewayTlsState {
        let tls = &gateway.tls;
        let referrer = gateway.parent_key().object();
        let mut state = GatewayTlsState::default();
        if let Some(asked) = &tls.default {
            state.default = Some(self.judge_validation(&referrer, asked, output));
        }
        for (port, asked) in &tls.per_port {
            if let Some(asked) = asked {
                let judged = self.judge_validation(&referrer, asked, output);
                state.per_port.insert(*port, judged);
            }
        }
        let validations = state.default.iter().chain(state.per_port.values());
        let broken = validations.flat_map(|v| v.trust.broken.iter().chain(&v.none));
        state.findings = broken.cloned().collect();
        if let Some(reference) = &tls.client_certificate {
            let judged = self.judge_client_certificate(&referrer, reference, output);
            state.findings.extend(judged.problem.clone());
            state.client_certificate = Some(judged);
            state.shown_to = self.shown_to(gateway);
        }
        state
    }

    /// The namespaces to whose backends the Gateway shows its certificate; `None`: all namespaces. If the parameters
    /// cannot be used, only the Gateway's own namespace counts, because a mistake must not show the certificate to more
    /// backends than the admin wants.
    fn shown_to(&self, gateway: &Gateway) -> Option<NamespaceScope> {
        let Ok(parameters) = self.parameters(gateway) else {
            return Some(NamespaceScope::Same);
        };
        let mut said = parameters.iter();
        let said = said.find_map(|parameters| parameters.certificate_namespaces.clone());
        said.filter(|scope| *scope != NamespaceScope::All)
    }

    /// Records to which namespaces a Gateway shows its certificate, and marks the backends for which that changes.
    fn settle_shown_to(
        &mut self,
        gateway: &ObjectName,
        scope: Option<&NamespaceScope>,
        dirty: &mut Dirty,
    ) {
        let before = match scope {
            Some(scope) => self.shown_to.insert(gateway.clone(), scope.clone()),
            None => self.shown_to.remove(gateway),
        };
        if before.as_ref() == scope {
            return;
        }
        let own = &gateway.namespace;
        let admits = |scope: Option<&NamespaceScope>, namespace: &str| {
            let labels = self.merge.labels(namespace);
            scope.is_some_and(|scope| scope.admits(own, namespace, labels))
        };
        let backends = self.backend_users.keys();
        let news = backends.filter(|key| {
            let namespace = key.namespace();
            admits(before.as_ref(), namespace) != admits(scope, namespace)
        });
        dirty.backends.extend(news.cloned());
    }

    /// Marks the backends of a namespace whose labels changed, if a Gateway selects by labels.
    pub(super) fn mark_shown_to(&self, namespace: &Arc<str>, dirty: &mut Dirty) {
        let by_labels = |scope: &NamespaceScope| matches!(scope, NamespaceScope::Selector(_));
        if self.shown_to.values().any(by_labels) {
            let backends = self.backend_users.range(BackendKey::range_in(namespace));
            let backends = backends.map(|(key, _)| key);
            dirty
                .backends
                .extend(backends.take_while(|key| key.is_in(namespace)).cloned());
        }
    }

    /// Those Gateways that show their certificate to chosen namespaces only, and have chosen this one.
    pub(super) fn certificate_of(&self, namespace: &str) -> Vec<String> {
        let labels = self.merge.labels(namespace);
        let shown = self.shown_to.iter();
        shown
            .filter(|(gateway, scope)| scope.admits(&gateway.namespace, namespace, labels))
            .map(|(gateway, _)| gateway.to_string())
            .collect()
    }

    fn judge_validation(
        &mut self,
        referrer: &ObjectKey,
        asked: &ClientValidation,
        output: &mut Output,
    ) -> Validation {
        let foreign = Reason::InvalidCACertificateKind;
        let mut trust = self.follow_trust(referrer, &asked.authorities, foreign, output);
        if asked.authorities.is_empty() {
            trust.broken.push(Finding::refused(
                Reason::InvalidCACertificateRef,
                format!("{}.caCertificateRefs", asked.field),
                "names no certificate",
                "name the ConfigMap that holds the authority's",
            ));
        }
        let none = (!trust.usable).then(|| match source::problem(&trust.broken) {
            Some(unread) if source::is_unread(unread) => unread.clone(),
            _ => Finding::refused(
                Reason::NoValidCACertificate,
                &asked.field,
                "has no valid certificate of an authority, so no client could be let in",
                "correct its caCertificateRefs",
            ),
        });
        Validation { trust, none }
    }

    fn judge_client_certificate(
        &mut self,
        referrer: &ObjectKey,
        reference: &Reference,
        output: &mut Output,
    ) -> ClientCertificate {
        let invalid = |message: String, action: &str| {
            let reason = Reason::InvalidClientCertificateRef;
            Some(Finding::refused(reason, &reference.field, message, action))
        };
        if !reference.is(Kind::Secret) {
            let problem = invalid(
                format!(
                    "{:?} of group {:?} is not supported",
                    reference.kind, reference.group
                ),
                "refer to a Secret",
            );
            return ClientCertificate {
                secret: None,
                problem,
            };
        }
        let secret = match self.permit(referrer, reference) {
            Ok(secret) => secret,
            Err(finding) => {
                let problem = Some(finding);
                return ClientCertificate {
                    secret: None,
                    problem,
                };
            }
        };
        let source = ObjectKey::secret(secret.clone());
        let over = self.source_budgets.refusal(&source, &reference.field);
        let problem = match self.secret_state(&secret, output) {
            SecretState::Usable(_) => over,
            SecretState::Unread => Some(source::unread(Kind::Secret, &secret, &reference.field)),
            SecretState::Issuing => invalid(
                format!("Secret {secret} waits for its certificate, which is being issued"),
                "wait until it is there",
            ),
            SecretState::NotYetValid(problem) => {
                let finding = invalid(problem.clone(), "wait, or put one there that is valid");
                finding.map(|finding| source::also_over(finding, over))
            }
            SecretState::Missing => {
                let (message, action) = self.absent(Kind::Secret, &secret, "create it");
                invalid(message, action)
            }
            SecretState::Unusable(problem) => invalid(
                problem.clone(),
                "put a PEM certificate chain into \"tls.crt\" and its PEM key into \"tls.key\"",
            )
            .map(|finding| source::also_over(finding, over)),
        };
        ClientCertificate {
            secret: Some(secret),
            problem,
        }
    }

    /// What the Gateway asks of the clients of a listener. A finding for a ListenerSet says what is wrong, but does not
    /// name the objects of the Gateway's owner.
    pub(super) fn asked(
        &self,
        key: &ListenerKey,
        listener: &Listener,
        gateway: &ObjectName,
    ) -> ClientCertificateRequest {
        let found = self.merge.gateway(gateway).and_then(|gateway| {
            let asked = gateway.tls.validation(&listener.protocol, listener.port)?;
            let state = self.gateway_tls.get(&gateway.name)?;
            Some((asked, state.validation(listener.port)?))
        });
        let Some((asked, state)) = found else {
            return ClientCertificateRequest::default();
        };
        let told = |finding: &Finding| match key.parent {
            ParentKey::Gateway(_) => finding.clone(),
            ParentKey::ListenerSet(_) if source::is_unread(finding) => Finding {
                field: format!("{}.protocol", listener.field),
                message: format!(
                    "Gateway {gateway} asks clients for certificates, and an authority is being read"
                ),
                ..finding.clone()
            },
            ParentKey::ListenerSet(_) => Finding {
                field: format!("{}.protocol", listener.field),
                message: format!(
                    "Gateway {gateway} asks clients for certificates, and its {} leads to none of \
                     an authority",
                    finding.field
                ),
                action: "ask the owner of the Gateway".into(),
                ..finding.clone()
            },
        };
        ClientCertificateRequest {
            validation: Some((state.trust.sources.clone(), asked.mode)),
            unresolved: state.trust.broken.first().map(told).map(Box::new),
            closed: state.none.as_ref().map(told).map(Box::new),
        }
    }

    /// Whether a Gateway shows its certificate only to the backends of chosen namespaces.
    pub(super) fn is_selective(&self, gateway: &ObjectName) -> bool {
        self.shown_to.contains_key(gateway)
    }

    /// Name of the certificate that a Gateway shows to backends; empty: none. If the reference may not be
    /// followed, the name is one that no certificate has, so the proxies do not connect without the certificate.
    pub(super) fn backend_certificate(&self, gateway: &ObjectName) -> String {
        let state = self.gateway_tls.get(gateway);
        match state.and_then(|state| state.client_certificate.as_ref()) {
            None => String::new(),
            Some(ClientCertificate {
                secret: Some(secret),
                ..
            }) => secret.to_string(),
            Some(_) => ParentKey::Gateway(gateway.clone()).to_string(),
        }
    }

    /// The conditions of a Gateway about `spec.tls` and about its references as a whole. `resolved` says whether the
    /// references of its listeners are resolved.
    pub(super) fn tls_conditions(&self, gateway: &Gateway, resolved: bool) -> Vec<Condition> {
        let refs = ConditionType::ResolvedRefs;
        let state = self.gateway_tls.get(&gateway.name);
        let certificate = state.and_then(|state| state.client_certificate.as_ref());
        let problem = certificate.and_then(|certificate| certificate.problem.as_ref());
        let mut conditions = vec![match problem {
            Some(finding) => fails(refs, finding),
            None if resolved => {
                Condition::holds(refs, Reason::ResolvedRefs, "All references are resolved")
            }
            None => Condition::fails(
                refs,
                Reason::ListenersNotResolved,
                "Not all references of listeners are resolved; see the listeners",
            ),
        }];
        let insecure: Vec<&str> = gateway
            .tls
            .validations()
            .filter(|asked| asked.mode == ValidationMode::AllowInsecureFallback)
            .map(|asked| asked.field.as_str())
            .take(NAMED)
            .collect();
        if !insecure.is_empty() {
            conditions.push(Condition::holds(
                ConditionType::InsecureFrontendValidationMode,
                Reason::ConfigurationChanged,
                format!(
                    "{}: clients without a valid certificate are let in; backends have to tell",
                    insecure.join(", ")
                ),
            ));
        }
        conditions
    }
}

/// Most fields that a message names.
const NAMED: usize = 4;
