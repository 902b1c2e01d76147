//! Puts the report together: one place for each port of each Gateway that takes the name in.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::{Object, Port, TlsMode};

use super::candidates::{
    AttachedRoute, Candidate, attached, candidates, is_published, references, routes_of_interest,
};
use super::certificate::Leaf;
use super::chain::{Chain, step};
use super::picture::{Picture, Unread};
use super::report::{
    CertificateView, Check, Disagreement, ListenerView, Other, Outcome, Place, Report, State, Step,
    listener_text,
};
use super::{ownership, routes};

/// Explains a name.
pub(super) fn explain(picture: &Picture, query: &HostPattern, now: Timestamp) -> Report {
    let candidates = candidates(&picture.translator, query);
    let of_interest = routes_of_interest(&picture.translator, query, &candidates);
    let foreign = |candidate: &Candidate| picture.translator.merge().is_foreign(&candidate.gateway);
    let any_ours = candidates.iter().any(|candidate| !foreign(candidate));
    let mut by_place: BTreeMap<(ObjectName, Port), Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        // Another controller's listener for every name is nothing to tell.
        let idle = candidate.listener.hostname == HostPattern::Any || any_ours;
        if foreign(&candidate) && idle {
            continue;
        }
        let Some(port) = candidate.port() else {
            continue;
        };
        let place = (candidate.gateway.clone(), port);
        by_place.entry(place).or_default().push(candidate);
    }
    let judge = Judge {
        picture,
        query,
        of_interest: &of_interest,
        now,
    };
    let places: Vec<Place> = by_place
        .into_iter()
        .map(|((gateway, port), candidates)| judge.place(&gateway, port, &candidates))
        .collect();
    // Where nobody asks for it, that it is not served is as it should be.
    let asked = places.iter().filter(|place| place.asked_for);
    let state = asked.map(|place| place.state).max().unwrap_or(State::Down);
    Report {
        hostname: query.to_string(),
        state,
        nowhere: places.is_empty().then(|| judge.nowhere()),
        places,
        unread: unread(picture)
            .into_iter()
            .chain(unreadable(picture))
            .collect(),
    }
}

/// Objects whose listeners or hostnames are not known, since they do not decode.
fn unreadable(picture: &Picture) -> impl Iterator<Item = String> {
    let objects = picture.translator.objects();
    objects.filter_map(|(key, object)| match object.as_ref() {
        Object::Unreadable(_, _, finding)
            if key.kind.is_route()
                || matches!(
                    key.kind,
                    Kind::Gateway | Kind::ListenerSet | Kind::HostnameGrant | Kind::HostnameClaim
                ) =>
        {
            Some(format!("{key}: {finding}"))
        }
        _ => None,
    })
}

/// What could not be read, for people.
pub(crate) fn unread(picture: &Picture) -> Vec<String> {
    let Some(live) = &picture.live else {
        return Vec::new();
    };
    let kinds = live.unread.iter().map(|(kind, unread)| match unread {
        Unread::Elsewhere(namespace) => {
            format!("{kind} outside namespace {namespace}: you may not list them")
        }
        Unread::Everywhere => format!("{kind}: you may not list them"),
    });
    let objects = live.denied.iter().map(|key| match key.kind {
        Kind::EndpointSlice => format!("endpoints of Service {}: you may not list them", key.name),
        Kind::ReferenceGrant => {
            let namespace = &key.name.namespace;
            format!("ReferenceGrant in namespace {namespace}: you may not list them")
        }
        _ => format!("{key}: you may not get it"),
    });
    kinds.chain(objects).collect()
}

struct Judge<'a> {
    picture: &'a Picture,
    query: &'a HostPattern,
    of_interest: &'a BTreeSet<ObjectKey>,
    now: Timestamp,
}

impl Judge<'_> {
    fn place(&self, gateway: &ObjectName, port: Port, candidates: &[Candidate]) -> Place {
        // They come most specific first: the first that the proxies have gets the name.
        let serving = candidates.iter().position(|one| self.is_in_force(one));
        let chosen = serving.unwrap_or_default();
        let main = &candidates[chosen];
        let attached = self.attached(main);
        let routes = routes::views(self.picture, &attached);
        let rejected: Vec<ObjectKey> = self
            .of_interest
            .iter()
            .filter(|key| !attached.iter().any(|one| one.key == **key))
            .filter(|key| self.leads_to(key, main))
            .cloned()
            .collect();
        let certificate = self.certificate(main);
        let chain = Chain {
            picture: self.picture,
            query: self.query,
            candidate: main,
            routes: &routes,
            rejected: &rejected,
            certificate: certificate.as_ref(),
            now: self.now,
        };
        let (steps, addresses) = (chain.steps(), chain.addresses());
        let named = candidates.iter().any(|one| {
            matches!(one.listener.hostname, HostPattern::Exact(_))
                || one.listener.hostname == *self.query
        });
        let others = candidates.iter().enumerate();
        Place {
            gateway: gateway.into(),
            port: port.get(),
            addresses,
            state: state(&steps),
            asked_for: named || !attached.is_empty() || !rejected.is_empty(),
            listener: view(main),
            grants: ownership::grants(self.picture, main),
            holders: ownership::holders(self.picture, main, self.query, &attached, &rejected),
            certificate,
            differences: self.differences(main, &attached),
            routes,
            chain: steps,
            others: others
                .filter(|(index, _)| *index != chosen)
                .map(|(_, one)| self.other(one, main))
                .collect(),
        }
    }

    /// Whether the proxies are to have it: published by translation, and (where that does not see
    /// everything) not refused by its status.
    fn is_in_force(&self, candidate: &Candidate) -> bool {
        let key = &candidate.key;
        if !is_published(&self.picture.translator, key) {
            return false;
        }
        let set = self.picture.said_of(&key.parent, None);
        let said = self.picture.said_of(&key.parent, Some(&key.listener));
        let set_refused = !self.picture.is_whole()
            && set
                .get("Accepted")
                .is_some_and(|c| c.is("False") && c.reason != "ListenersNotValid");
        let refused = said.is("Conflicted", "True") || said.is("Accepted", "False");
        !set_refused && !refused
    }

    fn attached(&self, candidate: &Candidate) -> Vec<AttachedRoute> {
        let translator = &self.picture.translator;
        let mut routes = attached(translator, &candidate.key, self.query, self.of_interest);
        if !self.picture.is_whole() {
            routes.retain(|one| {
                let route = translator
                    .object(&one.key)
                    .and_then(|object| object.as_route());
                route.is_some_and(|route| {
                    references(route, &candidate.key).any(|reference| {
                        let said = self.picture.said_of_route(&one.key, reference);
                        !said.is("Accepted", "False")
                    })
                })
            });
        }
        routes
    }

    fn leads_to(&self, route: &ObjectKey, candidate: &Candidate) -> bool {
        let object = self.picture.translator.object(route);
        let route = object.and_then(|object| object.as_route());
        route.is_some_and(|route| references(route, &candidate.key).next().is_some())
    }

    fn certificate(&self, candidate: &Candidate) -> Option<CertificateView> {
        let translator = &self.picture.translator;
        let tls = candidate.listener.tls.as_ref();
        let tls = tls.filter(|tls| tls.mode == TlsMode::Terminate)?;
        let secrets: Vec<ObjectKey> = tls
            .certificates
            .iter()
            .filter(|reference| reference.is(Kind::Secret))
            .map(|reference| ObjectKey {
                kind: Kind::Secret,
                name: reference.target.clone(),
            })
            .collect();
        // What no grant opens is not looked into, whatever the caller may read.
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
        let set = self.picture.said_of(&key.parent, None);
        let said = self.picture.said_of(&key.parent, Some(&key.listener));
        let conflicted = said.get("Conflicted").filter(|c| c.is("True"));
        let refused = said.get("Accepted").filter(|c| c.is("False"));
        let set = set
            .get("Accepted")
            .filter(|c| c.is("False") && c.reason != "ListenersNotValid");
        let (reason, message) = match conflicted.or(refused).or(set) {
            Some(cond) => (cond.reason.clone(), cond.message.clone()),
            None if self.is_in_force(candidate) => (
                "LessSpecific".into(),
                format!("{} is more specific", listener_text(&main.key)),
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
        if self.picture.live.is_none() {
            return Vec::new();
        }
        let key = &candidate.key;
        let mut all = Vec::new();
        let mut add = |subject: String, said: super::conditions::Said| {
            if said.stale || said.unwritten || !said.differences.is_empty() {
                all.push(Disagreement {
                    subject,
                    stale: said.stale,
                    unwritten: said.unwritten,
                    conditions: said.differences,
                });
            }
        };
        let gateway = vestibule_model::key::ParentKey::Gateway(candidate.gateway.clone());
        if gateway != key.parent && !self.picture.is_assumed(&gateway.object()) {
            add(
                gateway.object().to_string(),
                self.picture.said_of(&gateway, None),
            );
        }
        add(
            key.parent.object().to_string(),
            self.picture.said_of(&key.parent, None),
        );
        add(
            listener_text(key),
            self.picture.said_of(&key.parent, Some(&key.listener)),
        );
        for one in attached {
            let object = self.picture.translator.object(&one.key);
            let Some(route) = object.and_then(|object| object.as_route()) else {
                continue;
            };
            for reference in references(route, key) {
                add(
                    one.key.to_string(),
                    self.picture.said_of_route(&one.key, reference),
                );
            }
        }
        all
    }

    /// No listener takes the name in: who asks for it, and what to do.
    fn nowhere(&self) -> Step {
        let action = format!(
            "add a listener with hostname {} to a ListenerSet of your namespace, or to the Gateway",
            self.query
        );
        let Some(route) = self.of_interest.first() else {
            let message = if self.picture.is_whole() {
                "no listener of any Gateway or ListenerSet has it, and no route asks for it"
            } else {
                "no listener and no route that you may read has it"
            };
            let subject = self.query.to_string();
            return step(
                Check::Listener,
                Outcome::Wrong,
                &subject,
                "NoListener",
                message.into(),
                action,
            );
        };
        let object = self.picture.translator.object(route);
        let references = object.and_then(|object| object.as_route());
        let references = references
            .map(|route| route.parents().to_vec())
            .unwrap_or_default();
        for reference in &references {
            let said = self.picture.said_of_route(route, reference);
            if let Some(cond) = said.get("Accepted").filter(|c| c.is("False")) {
                let (subject, message) = (route.to_string(), cond.message.clone());
                return step(
                    Check::Route,
                    Outcome::Wrong,
                    &subject,
                    &cond.reason,
                    message,
                    action,
                );
            }
        }
        let parents: Vec<String> = references
            .iter()
            .filter_map(|reference| {
                Some(
                    reference
                        .parent(&route.name.namespace)?
                        .object()
                        .to_string(),
                )
            })
            .collect();
        let message = format!(
            "asks for it from {}, which has no listener for it",
            parents.join(", ")
        );
        step(
            Check::Route,
            Outcome::Wrong,
            &route.to_string(),
            "NoListener",
            message,
            action,
        )
    }
}

fn state(steps: &[Step]) -> State {
    let unknown = |step: &Step| step.outcome == Outcome::Unknown;
    let programmed = |step: &Step| {
        step.check == Check::Programmed && matches!(step.outcome, Outcome::Ok | Outcome::Warning)
    };
    if steps.iter().any(|step| step.outcome == Outcome::Wrong) {
        return State::Down;
    }
    // That the proxies hold it is a fact, whatever else may not be read; but not that a backend is there.
    let last = |check| {
        steps
            .iter()
            .any(|step| step.check == check && unknown(step))
    };
    if last(Check::Route) || last(Check::Backends) {
        return State::Unknown;
    }
    if steps.iter().any(programmed) || !steps.iter().any(unknown) {
        return State::Live;
    }
    State::Unknown
}

fn view(candidate: &Candidate) -> ListenerView {
    let listener = &candidate.listener;
    ListenerView {
        object: (&candidate.key.parent.object()).into(),
        name: listener.name.to_string(),
        hostname: listener.hostname.to_string(),
        protocol: listener.protocol.to_string(),
        tls: listener.tls.as_ref().map(|tls| match tls.mode {
            TlsMode::Passthrough => "Passthrough",
            TlsMode::Terminate => "Terminate",
        }),
        key: candidate.key.clone(),
    }
}
