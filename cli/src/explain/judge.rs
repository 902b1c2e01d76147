//! Builds the report. It has one part for each port of each Gateway that has a listener for the name. TCP and UDP ports
//! with the same number are different ports.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use vestibule_model::condition::Reason;
use vestibule_model::gateway::TlsMode;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Port, Transport, TransportPort};

use super::asked::{self, NameDemand};
use super::candidates::{
    AttachedRoute, Candidate, attached, candidates, is_published, references, routes_of_interest,
};
use super::certificate::Leaf;
use super::chain::Chain;
use super::cluster_state::ClusterState;
use super::report::{
    CertificateView, ChainStep, Check, Disagreement, ListenerView, Other, PortReport, Report,
    ServingState, StepOutcome, listener_text,
};
use super::routing::left_out;
use super::{ownership, routes, unread, unserved};

/// A listener whose hostname covers the name, and the routes that translation attached to it for the name.
struct MatchingListener {
    candidate: Candidate,
    attached: Vec<AttachedRoute>,
}

/// Explains a name.
pub(super) fn explain(cluster_state: &ClusterState, query: &HostPattern, now: Timestamp) -> Report {
    let candidates = candidates(&cluster_state.translator, query);
    let of_interest = routes_of_interest(&cluster_state.translator, query, &candidates);
    let foreign = |candidate: &Candidate| {
        cluster_state
            .translator
            .merge()
            .is_foreign(&candidate.gateway)
    };
    let any_ours = candidates.iter().any(|candidate| !foreign(candidate));
    let all_matching: Vec<MatchingListener> = candidates
        .into_iter()
        .filter(|candidate| {
            // A listener for every name is not worth a report if it belongs to another controller.
            let idle = candidate.listener.hostname == HostPattern::Any || any_ours;
            !(foreign(candidate) && idle)
        })
        .map(|candidate| MatchingListener {
            attached: attached_to(cluster_state, &candidate, query, &of_interest),
            candidate,
        })
        .collect();
    let mut by_port: BTreeMap<(ObjectName, TransportPort), Vec<&MatchingListener>> =
        BTreeMap::new();
    for matching in &all_matching {
        let Some(port) = matching.candidate.port() else {
            continue;
        };
        // A protocol that this release does not serve is shown under TCP.
        let transport = matching.candidate.listener.protocol.transport();
        let port = (port, transport.unwrap_or(Transport::Tcp));
        let port_report = (matching.candidate.gateway.clone(), port);
        by_port.entry(port_report).or_default().push(matching);
    }
    let judge = Judge {
        cluster_state,
        query,
        of_interest: &of_interest,
        all_matching: &all_matching,
        now,
    };
    let places = by_port
        .into_iter()
        .map(|((gateway, (port, _)), here)| judge.port_report(&gateway, port, &here))
        .collect();
    let (places, state) = asked::settle(places);
    let (mut routes, mut nowhere) = (Vec::new(), None);
    let state = state.unwrap_or_else(|| {
        if let Some(wish) = unserved::unplaced(cluster_state, query, &of_interest) {
            routes = wish.routes;
            nowhere = Some(wish.step);
        } else if places.is_empty() || !cluster_state.is_whole() {
            nowhere = Some(unserved::nobody(cluster_state, query));
        }
        // If nobody asks for the name at a place, it is right that the place does not serve it.
        match &nowhere {
            Some(step) if step.outcome == StepOutcome::Unknown => ServingState::Unknown,
            _ => ServingState::Down,
        }
    });
    Report {
        hostname: query.to_string(),
        state,
        nowhere,
        routes,
        places,
        unread: unread::each(cluster_state)
            .into_iter()
            .chain(unread::undecoded(cluster_state))
            .collect(),
        unread_lines: unread::grouped(cluster_state)
            .into_iter()
            .chain(unread::undecoded(cluster_state))
            .collect(),
        partial: !cluster_state.is_whole(),
    }
}

/// The routes that are attached to a listener for the name. If not everything may be read, routes are left out whose
/// status says that they are not attached.
fn attached_to(
    cluster_state: &ClusterState,
    candidate: &Candidate,
    query: &HostPattern,
    of_interest: &BTreeSet<ObjectKey>,
) -> Vec<AttachedRoute> {
    let translator = &cluster_state.translator;
    let mut routes = attached(translator, &candidate.key, query, of_interest);
    if !cluster_state.is_whole() {
        routes.retain(|one| {
            let object = translator.object(&one.key);
            let route = object.and_then(|object| object.as_route());
            route.is_some_and(|route| {
                references(route, candidate).any(|reference| {
                    let reported = cluster_state.reported_on_route(&one.key, reference);
                    !reported.is("Accepted", "False")
                        && left_out(cluster_state, &one.key, reference, query).is_none()
                })
            })
        });
    }
    routes
}

struct Judge<'a> {
    cluster_state: &'a ClusterState,
    query: &'a HostPattern,
    of_interest: &'a BTreeSet<ObjectKey>,
    /// Matching listeners at all places, the most specific one first.
    all_matching: &'a [MatchingListener],
    now: Timestamp,
}

impl Judge<'_> {
    fn port_report(
        &self,
        gateway: &ObjectName,
        port: Port,
        here: &[&MatchingListener],
    ) -> (PortReport, NameDemand) {
        let chosen = self.chosen(here);
        let MatchingListener {
            candidate: main,
            attached,
        } = here[chosen];
        let routes = routes::views(self.cluster_state, main, attached);
        let rejected: Vec<ObjectKey> = self
            .of_interest
            .iter()
            .filter(|key| !attached.iter().any(|one| one.key == **key))
            .filter(|key| self.wants(key, main))
            .cloned()
            .collect();
        let certificate = self.certificate(main);
        let chain = Chain {
            cluster_state: self.cluster_state,
            query: self.query,
            candidate: main,
            routes: &routes,
            rejected: &rejected,
            certificate: certificate.as_ref(),
            now: self.now,
        };
        let (steps, addresses) = (chain.steps(), chain.addresses());
        let candidates: Vec<&Candidate> = here.iter().map(|one| &one.candidate).collect();
        let asked = NameDemand::new(
            &self.cluster_state.translator,
            self.query,
            main,
            &candidates,
            (attached, &rejected),
        );
        let others = here.iter().enumerate();
        let report = PortReport {
            gateway: gateway.into(),
            port: port.get(),
            addresses,
            state: state(&steps),
            // The other places decide about that too.
            asked_for: false,
            listener: view(main),
            grants: ownership::grants(self.cluster_state, main),
            holders: ownership::holders(self.cluster_state, main, self.query, attached, &rejected),
            certificate,
            differences: self.differences(main, attached),
            routes,
            chain: steps,
            others: others
                .filter(|(index, _)| *index != chosen)
                .map(|(_, one)| self.other(&one.candidate, main))
                .collect(),
        };
        (report, asked)
    }

    /// Which of the listeners of a place to explain. They are ordered, the most specific one first, and the first one
    /// that the proxies have gets the name. If that one leads nowhere, the problem is that a more specific one is not
    /// served.
    fn chosen(&self, here: &[&MatchingListener]) -> usize {
        let serving = here
            .iter()
            .position(|one| self.is_in_force(&one.candidate))
            .unwrap_or_default();
        let specificity =
            |one: &MatchingListener| HostPattern::specificity(&one.candidate.listener.hostname);
        let is_wider = specificity(here[0]) > specificity(here[serving]);
        if is_wider && here[serving].attached.is_empty() {
            0
        } else {
            serving
        }
    }

    /// Whether a route asks this listener for the name. It does if it refers to this listener. It also does if none of
    /// the listeners to which it refers takes it, and this one has a kind that could.
    fn wants(&self, key: &ObjectKey, listener: &Candidate) -> bool {
        let object = self.cluster_state.translator.object(key);
        let Some(route) = object.and_then(|object| object.as_route()) else {
            return false;
        };
        references(route, listener).any(|reference| {
            let led_to = || {
                self.all_matching
                    .iter()
                    .filter(|one| references(route, &one.candidate).any(|other| other == reference))
            };
            let is_taken = || {
                let mut attached = led_to().flat_map(|one| &one.attached);
                attached.any(|one| one.key == *key)
            };
            let fits = |one: &Candidate| one.route_kinds().contains(&key.kind);
            reference.section.is_some()
                || !is_taken() && (fits(listener) || !led_to().any(|one| fits(&one.candidate)))
        })
    }

    /// Whether the proxies serve the name by this listener: translation publishes it, its namespace owns the name, and
    /// its status does not refuse it (which matters if translation does not see everything).
    fn is_in_force(&self, candidate: &Candidate) -> bool {
        let key = &candidate.key;
        let translator = &self.cluster_state.translator;
        if !is_published(translator, key) || candidate.other_owner(translator, self.query).is_some()
        {
            return false;
        }
        let set = self.cluster_state.reported_on(&key.parent, None);
        let reported = self
            .cluster_state
            .reported_on(&key.parent, Some(&key.listener));
        let set_refused = !self.cluster_state.is_whole()
            && set
                .get("Accepted")
                .is_some_and(|c| c.is("False") && !c.is_for(Reason::ListenersNotValid));
        let refused = reported.is("Conflicted", "True") || reported.is("Accepted", "False");
        !set_refused && !refused
    }

    fn certificate(&self, candidate: &Candidate) -> Option<CertificateView> {
        let translator = &self.cluster_state.translator;
        let tls = candidate.listener.tls.as_ref();
        let tls = tls.filter(|tls| tls.mode == TlsMode::Terminate)?;
        let secrets: Vec<ObjectKey> = tls
            .certificates
            .iter()
            .filter(|reference| reference.is(Kind::Secret))
            .map(|reference| ObjectKey::secret(reference.target.clone()))
            .collect();
        // Sources that no grant permits are not read, even if the caller may read them.
        let granted: BTreeSet<&ObjectKey> = translator.sources().collect();
        let leaf_of = |key: &ObjectKey| match translator.object(key)?.as_ref() {
            Object::Secret(secret) if granted.contains(key) => Leaf::of(secret),
            _ => None,
        };
        let for_it = |key: &&ObjectKey| {
            leaf_of(key).is_some_and(|leaf| leaf.trouble(self.query, self.now).is_none())
        };
        let secret = secrets.iter().find(for_it).or_else(|| secrets.first())?;
        let leaf = leaf_of(secret);
        let request = translator.requests().get(&secret.name);
        let requested_from = request
            .and_then(|request| request.issuer.as_ref())
            .map(|issuer| format!("{} {}", issuer.kind, issuer.name));
        Some(match leaf {
            Some(leaf) => CertificateView {
                secret: (&secret.name).into(),
                names: leaf.names,
                issuer: leaf.issuer,
                not_before: leaf.not_before.to_string(),
                not_after: leaf.not_after.to_string(),
                requested_from,
            },
            None => CertificateView {
                secret: (&secret.name).into(),
                names: Vec::new(),
                issuer: String::new(),
                not_before: String::new(),
                not_after: String::new(),
                requested_from,
            },
        })
    }

    fn other(&self, candidate: &Candidate, main: &Candidate) -> Other {
        let key = &candidate.key;
        let set = self.cluster_state.reported_on(&key.parent, None);
        let reported = self
            .cluster_state
            .reported_on(&key.parent, Some(&key.listener));
        let conflicted = reported.get("Conflicted").filter(|c| c.is("True"));
        let refused = reported.get("Accepted").filter(|c| c.is("False"));
        let set = set
            .get("Accepted")
            .filter(|c| c.is("False") && !c.is_for(Reason::ListenersNotValid));
        let (reason, message) = match conflicted.or(refused).or(set) {
            Some(cond) => (cond.reason.clone(), cond.message.clone()),
            None if self.is_in_force(candidate) && self.is_in_force(main) => (
                "LessSpecific".into(),
                format!("{} is more specific", listener_text(&main.key)),
            ),
            None if self.is_in_force(candidate) => (
                "NoRoute".into(),
                "gets the connections meanwhile, and has no route for the name".into(),
            ),
            None => (
                "NotServed".into(),
                "it is not served; explain one of its own names".into(),
            ),
        };
        Other {
            listener: view(candidate),
            reason,
            message,
        }
    }

    fn differences(&self, candidate: &Candidate, attached: &[AttachedRoute]) -> Vec<Disagreement> {
        if self.cluster_state.live.is_none() {
            return Vec::new();
        }
        let key = &candidate.key;
        let mut all = Vec::new();
        let mut add = |subject: String, reported: super::conditions::ReportedStatus| {
            if reported.stale || reported.unwritten || !reported.differences.is_empty() {
                all.push(Disagreement {
                    subject,
                    stale: reported.stale,
                    unwritten: reported.unwritten,
                    conditions: reported.differences,
                });
            }
        };
        let gateway = vestibule_model::key::ParentKey::Gateway(candidate.gateway.clone());
        if gateway != key.parent && !self.cluster_state.is_assumed(&gateway.object()) {
            add(
                gateway.object().to_string(),
                self.cluster_state.reported_on(&gateway, None),
            );
        }
        add(
            key.parent.object().to_string(),
            self.cluster_state.reported_on(&key.parent, None),
        );
        add(
            listener_text(key),
            self.cluster_state
                .reported_on(&key.parent, Some(&key.listener)),
        );
        for one in attached {
            let object = self.cluster_state.translator.object(&one.key);
            let Some(route) = object.and_then(|object| object.as_route()) else {
                continue;
            };
            for reference in references(route, candidate) {
                add(
                    one.key.to_string(),
                    self.cluster_state.reported_on_route(&one.key, reference),
                );
            }
        }
        all
    }
}

fn state(steps: &[ChainStep]) -> ServingState {
    let unknown = |step: &ChainStep| step.outcome == StepOutcome::Unknown;
    let programmed = |step: &ChainStep| {
        step.check == Check::Programmed
            && matches!(step.outcome, StepOutcome::Ok | StepOutcome::Warning)
    };
    if steps.iter().any(|step| step.outcome == StepOutcome::Wrong) {
        return ServingState::Down;
    }
    // If the status says that the proxies hold it, that is certain, whatever may not be read. It is not certain
    // that there is a backend.
    let last = |check| {
        steps
            .iter()
            .any(|step| step.check == check && unknown(step))
    };
    if last(Check::Route) || last(Check::Backends) {
        return ServingState::Unknown;
    }
    if steps.iter().any(programmed) || !steps.iter().any(unknown) {
        return ServingState::Live;
    }
    ServingState::Unknown
}

fn view(candidate: &Candidate) -> ListenerView {
    let listener = &candidate.listener;
    ListenerView {
        object: (&candidate.key.parent.object()).into(),
        name: listener.name.to_string(),
        hostname: listener.hostname.to_string(),
        protocol: listener.protocol.clone(),
        tls: listener.tls.as_ref().map(|tls| match tls.mode {
            TlsMode::Passthrough => "Passthrough",
            TlsMode::Terminate => "Terminate",
        }),
        key: candidate.key.clone(),
    }
}
