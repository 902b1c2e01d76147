//! Decides which places count for the overall state of a name: those where the one who has the name asks for it, by the
//! most specific hostname that anybody asks with.

use vestibule_model::hostname::{HostPattern, Specificity};
use vestibule_model::key::{ObjectKey, ParentKey};
use vestibule_model::protocol::Group;
use vestibule_operator::translate::Translator;

use super::candidates::{AttachedRoute, Candidate, owner, serves};
use super::report::{PortReport, ServingState};

/// How closely somebody asks for a name at a place. The greatest is the closest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closeness {
    /// By a TCPRoute or UDPRoute, which takes the whole port, whatever name a client looked up.
    Port,
    /// By a hostname of this specificity, of a listener or a route.
    Hostname(Specificity),
}

impl Closeness {
    /// Whether somebody asks by a hostname that does not stand for every name.
    fn is_named(self) -> bool {
        self > Self::Hostname(HostPattern::Any.specificity())
    }
}

/// How closely somebody asks for a name at a place, and for whom it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameDemand {
    /// How closely, if anybody does.
    closeness: Option<Closeness>,
    /// The owner of the name, if only namespaces ask here that may not serve it.
    owner: Option<String>,
}

impl NameDemand {
    /// Looks at who asks for the name at the place of these listeners. `main` is the listener that is explained, with the routes
    /// that are attached to it and those that are not.
    pub(super) fn new(
        translator: &Translator,
        query: &HostPattern,
        main: &Candidate,
        here: &[&Candidate],
        (attached, rejected): (&[AttachedRoute], &[ObjectKey]),
    ) -> Self {
        let naming: Vec<&Candidate> = here
            .iter()
            .filter(|one| {
                let hostname = &one.listener.hostname;
                matches!(hostname, HostPattern::Exact(_)) || hostname == query
            })
            .copied()
            .collect();
        let hostnames = rejected.iter().filter_map(|key| {
            let route = translator.object(key)?.as_route()?;
            let hostnames = route.hostnames().iter().map(|(_, hostname)| hostname);
            hostnames
                .filter(|hostname| hostname.covers(query))
                .max_by_key(|hostname| hostname.specificity())
        });
        let of_listener = main.listener.hostname.specificity();
        let by_route = attached.iter().map(|route| &route.rank).chain(hostnames);
        // A listener narrows the hostname of its route, so the more specific of the two counts.
        let by_route = by_route.map(|hostname| hostname.specificity().max(of_listener));
        let by_listener = naming.iter().map(|one| one.listener.hostname.specificity());
        let closest = by_route.chain(by_listener).max();
        let is_raw = main.listener.protocol.group() == Group::Raw;
        let closeness = closest.map(|specificity| {
            if is_raw {
                Closeness::Port
            } else {
                Closeness::Hostname(specificity)
            }
        });
        let owner = owner(translator, &main.gateway, query).map(|(_, owner)| owner);
        let owner = owner.filter(|owner| {
            let is_owners = |one: &Candidate| match &one.key.parent {
                // The owner of a Gateway decides what it serves.
                ParentKey::Gateway(_) => true,
                ParentKey::ListenerSet(set) => *set.namespace == **owner,
            };
            let may_listen = naming.iter().any(|one| is_owners(one));
            // The owner of a ListenerSet decides which routes it takes.
            let is_of_set = matches!(main.key.parent, ParentKey::ListenerSet(_));
            let is_taken = is_of_set && is_owners(main) && !attached.is_empty();
            let mut routes = attached.iter().map(|route| &route.key).chain(rejected);
            !may_listen
                && !is_taken
                && !routes.any(|route| serves(translator, &main.gateway, route, query))
        });
        Self { closeness, owner }
    }
}

/// Says of each place whether somebody asks for the name there, and returns the overall state; `None` if nobody asks
/// anywhere.
///
/// A place where only others ask for a name does not count if the name is live at a place of its owner. Otherwise any
/// tenant could make the names of all others look broken, by an object that is refused.
pub(super) fn settle(
    mut places: Vec<(PortReport, NameDemand)>,
) -> (Vec<PortReport>, Option<ServingState>) {
    let counts: Vec<bool> = places
        .iter()
        .map(|(place, asked)| {
            let owner = asked.owner.as_deref();
            !owner.is_some_and(|owner| places.iter().any(|(at, _)| is_live_for(at, place, owner)))
        })
        .collect();
    let counting = places.iter().zip(&counts).filter(|(_, counts)| **counts);
    let closest = counting.filter_map(|((_, asked), _)| asked.closeness).max();
    for (place, asked) in &mut places {
        place.asked_for = asked.closeness.is_some() && asked.closeness >= closest;
    }
    let states = places
        .iter()
        .zip(&counts)
        .filter(|((place, _), counts)| **counts && place.asked_for)
        .map(|((place, _), _)| place.state);
    let state = if closest.is_some_and(Closeness::is_named) {
        states.max()
    } else {
        // Nobody means this name in particular. So it is enough that one of those who take every name answers.
        states.min()
    };
    (places.into_iter().map(|(place, _)| place).collect(), state)
}

/// Whether the name is live at a place of its owner on the Gateway of another place.
fn is_live_for(place: &PortReport, other: &PortReport, owner: &str) -> bool {
    let mut routes = place.routes.iter().filter(|route| !route.shadowed);
    let listener = place.listener.key.parent.object();
    let is_of_owner = *listener.name.namespace == *owner
        || routes.any(|route| *route.key.name.namespace == *owner);
    place.gateway == other.gateway && place.state == ServingState::Live && is_of_owner
}
