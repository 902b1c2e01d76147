//! One name, one namespace: the sentences of the rule as golden cases, each with the attacks that it answers. The
//! index against a plain reading of the rule, over random histories, is in `history`, the sentences about guests are in
//! `guests`, those about names that nobody holds yet in `unrecorded`, and what an edit costs is in `cost`.

mod cost;
mod grants;
mod guests;
mod history;
mod reference;
mod unrecorded;

use std::collections::BTreeSet;
use std::sync::Arc;

use vestibule_model::claim::Holder;
use vestibule_model::condition::Reason;
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ParentKey};
use vestibule_model::names::{
    AffectedNames, AskedBy, GatewayNames, NameClaimState, NameDecision, NameSource, Rank, is_narrow,
};

use crate::support::{name, pattern};

use AskedBy::{Guest, HttpRoute, Listener, TlsRoute};
use NameDecision::{Free, Has, Inside, NotGranted, Reserved, Taken, TooWide};
use grants::{Entry, Grants};

const WAYS: [AskedBy; 4] = [Listener, Guest, TlsRoute, HttpRoute];

/// A listener of a ListenerSet.
fn listener(set: &str, listener: &str) -> NameSource {
    NameSource::Listener(ListenerKey::new(
        ParentKey::ListenerSet(name(set)),
        listener,
    ))
}

fn own_key(listener: &str) -> ListenerKey {
    ListenerKey::new(ParentKey::Gateway(name("infra/gw")), listener)
}

/// A listener of the Gateway itself.
fn own(listener: &str) -> NameSource {
    NameSource::Listener(own_key(listener))
}

fn route(kind: Kind, at: &str) -> NameSource {
    let name = name(at);
    NameSource::Route(ObjectKey { kind, name })
}

fn http(at: &str) -> NameSource {
    route(Kind::HttpRoute, at)
}

fn tls(at: &str) -> NameSource {
    route(Kind::TlsRoute, at)
}

/// The same, refused for a mistake of its own.
fn refused(source: &NameSource) -> NameSource {
    NameSource::Refused(Box::new(source.clone()))
}

fn rank(source: &NameSource, created: i64) -> Rank {
    match source {
        NameSource::Listener(listener) => Rank::of(created, listener.parent.name()),
        NameSource::Guest(guest) => Rank::of(created, guest.0.parent.name()),
        NameSource::Route(route) => Rank::of(created, &route.name),
        NameSource::Refused(source) => rank(source, created),
    }
}

fn host(text: &str) -> Hostname {
    Hostname::parse(text).unwrap()
}

/// The names of a Gateway `infra/gw`, and who may have what there.
struct Edge {
    names: GatewayNames,
    grants: Grants,
}

impl Edge {
    /// Without grants.
    fn free() -> Self {
        Self {
            names: GatewayNames::new(name("infra/gw")),
            grants: Grants::default(),
        }
    }

    /// With these grants, as (namespace, pattern); the namespace `*` is everybody, the empty pattern everything.
    fn granting(entries: &[(&'static str, &str)]) -> Self {
        let mut edge = Self::free();
        for (namespace, names) in entries {
            edge.grant(namespace, names, false);
        }
        edge
    }

    /// Adds a grant before anything else is there.
    fn grant(&mut self, namespace: &'static str, names: &str, shared: bool) {
        self.grants.entries.push(Entry {
            namespace: (namespace != "*").then_some(namespace),
            names: pattern(names),
            shared,
        });
    }

    fn put(&mut self, source: &NameSource, created: i64, names: &[&str]) -> AffectedNames {
        let rank = rank(source, created);
        let names: BTreeSet<HostPattern> = names.iter().map(|text| pattern(text)).collect();
        let affected = self.names.put(&self.grants, source, &rank, &names);
        self.settled(affected)
    }

    /// Adds what follows from a change inside wildcards.
    fn settled(&mut self, mut affected: AffectedNames) -> AffectedNames {
        affected.extend(self.names.settle(&self.grants));
        affected
    }

    fn hold(&mut self, names: &str, holder: &str) -> AffectedNames {
        self.hold_as(names, &Holder::from(holder))
    }

    fn hold_as(&mut self, names: &str, holder: &Holder) -> AffectedNames {
        let affected = self.names.hold(&self.grants, &pattern(names), Some(holder));
        self.settled(affected)
    }

    fn free_again(&mut self, names: &str) -> AffectedNames {
        let affected = self.names.hold(&self.grants, &pattern(names), None);
        self.settled(affected)
    }

    fn recheck(&mut self, namespace: &str) -> AffectedNames {
        let affected = self.names.recheck(&self.grants, &namespace.into());
        self.settled(affected)
    }

    fn decide(&self, namespace: &str, names: &str, by: AskedBy) -> NameDecision {
        let names = pattern(names);
        self.names.decide(&self.grants, namespace, &names, by)
    }

    fn owner(&self, hostname: &str) -> Option<Arc<str>> {
        self.names.owner(&host(hostname))
    }

    fn next(&self, names: &str) -> Option<&str> {
        self.names.next(&pattern(names)).map(|next| &**next)
    }

    fn claim_state(&self, names: &str) -> Option<NameClaimState> {
        self.names.claim_state(&pattern(names))
    }

    /// Whether something with the pattern `names` serves a hostname.
    fn serves(&self, source: &NameSource, names: &str, hostname: &str) -> bool {
        self.names.serves(source, &pattern(names), &host(hostname))
    }
}

#[test]
fn a_hostname_belongs_to_one_namespace_on_every_port_and_for_every_kind_of_route() {
    let mut edge = Edge::free();
    edge.put(&listener("t1/web", "https"), 5, &["web.example.com"]);
    assert_eq!(edge.next("web.example.com"), Some("t1"));
    edge.hold("web.example.com", "t1");
    for by in WAYS {
        assert_eq!(edge.decide("t1", "web.example.com", by), Has);
        assert_eq!(edge.decide("t2", "web.example.com", by), Taken);
        assert_eq!(edge.decide("t2", "other.example.com", by), Free);
    }
    // The attacks of the issue: an HTTPRoute on the Gateway's own port 80, and a listener on port 80 or 8443 for
    // another team's TLS name, all of them by older objects than the holder's.
    let attacks = [
        http("t2/regex"),
        tls("t2/route"),
        listener("t2/web", "http-80"),
        listener("t2/web", "https-8443"),
    ];
    for source in &attacks {
        edge.put(source, 1, &["web.example.com"]);
        let decision = edge.names.decision(source, &pattern("web.example.com"));
        assert_eq!(decision, Some(Taken), "{source:?}");
        assert!(
            !edge.serves(source, "web.example.com", "web.example.com"),
            "{source:?}"
        );
    }
    assert_eq!(edge.next("web.example.com"), None);
    assert_eq!(edge.owner("web.example.com").as_deref(), Some("t1"));
}

#[test]
fn source_that_is_refused_gets_no_name_and_keeps_those_its_namespace_holds() {
    for source in [http("t1/r"), tls("t1/r"), listener("t1/web", "https")] {
        let mut edge = Edge::free();
        let mistaken = refused(&source);
        edge.put(&mistaken, 1, &["web.example.com", "new.example.com"]);
        assert_eq!(edge.next("web.example.com"), None, "it asks for nothing");
        edge.put(&http("t2/r"), 5, &["new.example.com"]);
        assert_eq!(edge.next("new.example.com"), Some("t2"));
        edge.hold("new.example.com", "t2");

        // Its namespace held one of the names before the mistake, and another namespace waits for it.
        edge.hold("web.example.com", "t1");
        edge.put(&http("t2/waits"), 0, &["web.example.com"]);
        assert_eq!(
            edge.claim_state("web.example.com"),
            Some(NameClaimState::Used)
        );
        assert_eq!(edge.next("web.example.com"), None);
        assert_eq!(edge.owner("new.example.com").as_deref(), Some("t2"));

        // Without the object nothing keeps the name.
        edge.put(&mistaken, 1, &[]);
        assert_eq!(
            edge.claim_state("web.example.com"),
            Some(NameClaimState::Idle)
        );
    }
}

#[test]
fn name_of_the_gateway_stays_reserved_while_a_refused_source_lists_it() {
    let mut edge = Edge::free();
    for source in [http("infra/login"), own("login")] {
        edge.put(&source, 0, &["login.example.com"]);
        edge.put(&http("t1/waits"), 5, &["login.example.com"]);
        assert_eq!(edge.next("login.example.com"), None);
        edge.put(&refused(&source), 0, &["login.example.com"]);
        edge.put(&source, 0, &[]);
        assert_eq!(edge.next("login.example.com"), None);
        assert_eq!(edge.owner("login.example.com").as_deref(), Some("infra"));
        edge.put(&refused(&source), 0, &[]);
        assert_eq!(edge.next("login.example.com"), Some("t1"));
    }
    // A mistake in one listener keeps nobody from another one of the same name, which admits them.
    edge.grants
        .admitted
        .insert(own_key("shop"), BTreeSet::from(["t1".into()]));
    edge.put(&own("shop"), 0, &["shop.example.com"]);
    edge.put(&refused(&own("other")), 0, &["shop.example.com"]);
    assert_eq!(edge.decide("t1", "shop.example.com", HttpRoute), Free);
    assert_eq!(edge.decide("t2", "shop.example.com", HttpRoute), Reserved);
}

#[test]
fn name_that_nobody_holds_goes_by_age_and_then_by_the_name_of_the_object() {
    let mut edge = Edge::free();
    edge.put(&http("t3/r"), 7, &["x.example.com"]);
    edge.put(&listener("t2/s", "l"), 7, &["x.example.com"]);
    edge.put(&tls("t1/r"), 9, &["x.example.com", "y.example.com"]);
    assert_eq!(edge.next("x.example.com"), Some("t2"));
    assert_eq!(edge.next("y.example.com"), Some("t1"));
    assert_eq!(edge.next("z.example.com"), None);
    // Age is the object's; a new version of it has the same.
    edge.put(&tls("t1/r"), 3, &["x.example.com"]);
    assert_eq!(edge.next("x.example.com"), Some("t1"));
    assert_eq!(edge.next("y.example.com"), None);
    // Until it is recorded, nobody owns it.
    assert_eq!(edge.owner("x.example.com"), None);
    assert!(!edge.serves(&tls("t1/r"), "x.example.com", "x.example.com"));
}

#[test]
fn a_wildcard_or_no_hostname_at_all_does_not_take_the_name() {
    let mut edge = Edge::granting(&[("t1", "web.example.com"), ("t2", "")]);
    edge.put(&listener("t1/web", "https"), 5, &["web.example.com"]);
    edge.hold("web.example.com", "t1");
    // A wildcard around names that others hold is allowed, and does not include them.
    for wide in ["*.example.com", "*.com", ""] {
        assert_eq!(edge.decide("t2", wide, HttpRoute), Free);
        edge.put(&http("t2/wide"), 1, &[wide]);
        edge.hold(wide, "t2");
        assert_eq!(edge.decide("t2", wide, HttpRoute), Has);
        assert_eq!(edge.owner("web.example.com").as_deref(), Some("t1"));
        // On any port, whether or not the holder has anything there.
        assert!(!edge.serves(&http("t2/wide"), wide, "web.example.com"));
        assert!(!edge.serves(&listener("t2/set", "http-80"), wide, "web.example.com"));
        assert!(edge.serves(&http("t2/wide"), wide, "www.example.com"));
    }
    assert!(edge.serves(
        &listener("t1/web", "https"),
        "web.example.com",
        "web.example.com"
    ));
}

#[test]
fn during_the_grace_a_name_is_still_its_holders() {
    let mut edge = Edge::free();
    let source = listener("t1/web", "https");
    edge.put(&source, 5, &["web.example.com"]);
    edge.hold("web.example.com", "t1");
    assert_eq!(
        edge.claim_state("web.example.com"),
        Some(NameClaimState::Used)
    );
    let affected = edge.names.remove(&edge.grants, &source);
    assert!(affected.records.contains(&pattern("web.example.com")));
    assert_eq!(
        edge.claim_state("web.example.com"),
        Some(NameClaimState::Idle)
    );
    edge.put(&http("t2/exact"), 1, &["web.example.com"]);
    edge.put(&http("t2/any"), 1, &[""]);
    edge.hold("", "t2");
    assert_eq!(edge.decide("t2", "web.example.com", HttpRoute), Taken);
    assert_eq!(edge.next("web.example.com"), None);
    assert_eq!(edge.owner("web.example.com").as_deref(), Some("t1"));
    assert!(!edge.serves(&http("t2/exact"), "web.example.com", "web.example.com"));
    assert!(!edge.serves(&http("t2/any"), "", "web.example.com"));
    // After it, the name goes to whoever asks for it, and until then to who has all that nobody holds.
    let affected = edge.free_again("web.example.com");
    let waits = (pattern("web.example.com"), http("t2/exact"));
    assert_eq!(affected.asks, BTreeSet::from([waits]));
    assert_eq!(edge.next("web.example.com"), Some("t2"));
    assert_eq!(edge.owner("web.example.com").as_deref(), Some("t2"));
}

#[test]
fn a_name_inside_a_wildcard_that_another_tenant_holds_is_not_free() {
    let mut edge = Edge::free();
    edge.put(&http("t2/r"), 1, &["x.shop.example.com"]);
    assert_eq!(edge.next("x.shop.example.com"), Some("t2"));
    let affected = edge.hold("*.shop.example.com", "t1");
    let ask = (pattern("x.shop.example.com"), http("t2/r"));
    assert_eq!(affected.asks, BTreeSet::from([ask]));
    assert_eq!(edge.next("x.shop.example.com"), None);
    for inside in [
        "x.shop.example.com",
        "y.x.shop.example.com",
        "*.x.shop.example.com",
    ] {
        assert_eq!(edge.decide("t2", inside, Listener), Inside, "{inside}");
        assert_eq!(edge.decide("t1", inside, Listener), Free, "{inside}");
    }
    assert_eq!(edge.owner("x.shop.example.com").as_deref(), Some("t1"));
    // The wildcard does not match its own apex.
    assert_eq!(edge.decide("t2", "shop.example.com", Listener), Free);
    edge.free_again("*.shop.example.com");
    assert_eq!(edge.next("x.shop.example.com"), Some("t2"));
}

#[test]
fn only_a_grant_at_or_below_the_wildcard_gives_a_name_inside_it() {
    let mut edge = Edge::granting(&[
        ("*", "*.apps.example.com"),
        ("t3", "*.shop.apps.example.com"),
        ("t4", "x.shop.apps.example.com"),
        ("t5", ""),
    ]);
    edge.hold("*.shop.apps.example.com", "t1");
    for (namespace, decision) in [
        // A wider grant, such as one for everybody, does not give it.
        ("t2", Inside),
        ("t5", Inside),
        // One for the wildcard itself does, and so does one for the name.
        ("t3", Free),
        ("t4", Free),
    ] {
        for by in WAYS {
            let decided = edge.decide(namespace, "x.shop.apps.example.com", by);
            assert_eq!(decided, decision, "{namespace}");
        }
    }
    assert_eq!(
        edge.decide("t4", "y.shop.apps.example.com", Listener),
        Inside
    );
    // The namespace that was there first keeps the name, also if another has a wide grant.
    edge.hold("old.shop.apps.example.com", "t2");
    assert_eq!(
        edge.decide("t2", "old.shop.apps.example.com", Listener),
        Has
    );
    assert_eq!(
        edge.owner("old.shop.apps.example.com").as_deref(),
        Some("t2")
    );
}

#[test]
fn only_the_nearest_wildcard_closes() {
    let mut edge = Edge::granting(&[("*", "*.example.com"), ("t2", "*.b.example.com")]);
    edge.hold("*.example.com", "t1");
    edge.hold("*.b.example.com", "t2");
    // Inside its own wildcard a namespace is at home, whoever has one around that.
    assert_eq!(edge.decide("t2", "x.b.example.com", Listener), Free);
    assert_eq!(edge.decide("t1", "x.b.example.com", Listener), Inside);
    assert_eq!(edge.decide("t3", "x.b.example.com", Listener), Inside);
    assert_eq!(edge.owner("x.b.example.com").as_deref(), Some("t2"));
    assert_eq!(edge.owner("x.example.com").as_deref(), Some("t1"));
}

#[test]
fn a_wildcard_granted_to_several_namespaces_closes_nothing_below_it() {
    let mut edge = Edge::granting(&[("*", "*.apps.example.com")]);
    edge.hold("*.apps.example.com", "t1");
    assert_eq!(edge.decide("t2", "*.apps.example.com", Listener), Taken);
    for free in ["x.apps.example.com", "*.x.apps.example.com"] {
        assert_eq!(edge.decide("t2", free, Listener), Free, "{free}");
    }
}

#[test]
fn without_grants_a_tenants_wildcard_has_to_lie_below_a_registrable_domain() {
    let edge = Edge::free();
    for (names, decision) in [
        ("*.com", TooWide),
        ("*.example", TooWide),
        ("*.co.uk", TooWide),
        ("*.example.com", Free),
        ("*.example.co.uk", Free),
        ("*.apps.example.com", Free),
        ("com", Free),
        // It is what nobody else holds, and closes nothing.
        ("", Free),
    ] {
        for by in WAYS {
            assert_eq!(edge.decide("t1", names, by), decision, "{names}");
        }
        assert_eq!(edge.decide("infra", names, Listener), Free, "{names}");
        let narrow = is_narrow(&pattern(names), |suffix| {
            suffix.labels() == 1 || suffix.as_str() == "co.uk"
        });
        assert_eq!(narrow, decision == Free, "{names}");
    }
    // A grant decides instead.
    let edge = Edge::granting(&[("t1", "*.com")]);
    assert_eq!(edge.decide("t1", "*.com", Listener), Free);
    assert_eq!(edge.decide("t2", "*.com", Listener), NotGranted);
}

#[test]
fn every_name_that_nobody_else_holds_belongs_to_one_namespace_and_closes_nothing() {
    let mut edge = Edge::free();
    edge.put(&http("t2/any"), 5, &[""]);
    edge.put(&listener("t1/any", "https-8443"), 6, &[""]);
    assert_eq!(edge.next(""), Some("t2"));
    edge.hold("", "t2");
    assert_eq!(edge.decide("t1", "", Listener), Taken);
    assert_eq!(edge.owner("x.example.com").as_deref(), Some("t2"));
    // The others take names out of it as if nobody had it.
    for names in ["x.example.com", "*.example.com"] {
        assert_eq!(edge.decide("t1", names, Listener), Free, "{names}");
    }
    edge.hold("*.example.com", "t1");
    assert_eq!(edge.owner("x.example.com").as_deref(), Some("t1"));
    assert_eq!(edge.owner("x.example.org").as_deref(), Some("t2"));
    assert!(!edge.serves(&http("t2/any"), "", "x.example.com"));
}

#[test]
fn the_gateways_own_names_make_no_name_inside_theirs_unfree() {
    let mut edge = Edge::free();
    edge.put(&own("http-80"), 0, &[""]);
    edge.put(&http("infra/redirect"), 0, &[""]);
    edge.put(&own("shared"), 0, &["*.apps.example.com"]);
    for free in [
        "x.apps.example.com",
        "*.apps.example.com",
        "*.x.apps.example.com",
        "x.example.com",
        "",
    ] {
        for by in WAYS {
            assert_eq!(edge.decide("t1", free, by), Free, "{free}");
        }
    }
    // Names that nobody holds are the Gateway's, as far as its own go.
    assert_eq!(edge.owner("x.apps.example.com").as_deref(), Some("infra"));
    edge.hold("x.apps.example.com", "t1");
    assert_eq!(edge.owner("x.apps.example.com").as_deref(), Some("t1"));
    // Its redirect stands above claims, so it goes on for everybody's names.
    assert!(edge.serves(&http("infra/redirect"), "", "x.apps.example.com"));
    // A shared listener is what a hostname-less route of one tenant is served by.
    edge.hold("*.apps.example.com", "t2");
    assert_eq!(edge.owner("y.apps.example.com").as_deref(), Some("t2"));
    // It takes names inside it out of what a tenant has around it.
    edge.hold("*.example.com", "t3");
    edge.free_again("*.apps.example.com");
    assert_eq!(edge.owner("y.apps.example.com").as_deref(), Some("infra"));
    assert_eq!(edge.decide("t1", "y.apps.example.com", HttpRoute), Free);
    assert_eq!(edge.decide("t1", "y.example.com", HttpRoute), Inside);
}

#[test]
fn an_exact_name_of_the_gateway_is_reserved_on_every_port() {
    let mut edge = Edge::granting(&[("*", "*.example.com")]);
    edge.put(&own("status"), 0, &["status.example.com"]);
    for by in WAYS {
        assert_eq!(edge.decide("t1", "status.example.com", by), Reserved);
        assert_eq!(edge.decide("t1", "x.status.example.com", by), Free);
        // Guests of the Gateway's namespace are not that namespace.
        let expected = if by == Guest { Reserved } else { Free };
        assert_eq!(edge.decide("infra", "status.example.com", by), expected);
    }
    assert_eq!(edge.owner("status.example.com").as_deref(), Some("infra"));
    edge.hold("*.example.com", "t1");
    assert_eq!(edge.owner("status.example.com").as_deref(), Some("infra"));
    assert!(!edge.serves(&http("t1/wild"), "*.example.com", "status.example.com"));
    // A route of the Gateway's namespace reserves as well.
    edge.put(&http("infra/docs"), 0, &["docs.example.com"]);
    assert_eq!(edge.decide("t1", "docs.example.com", HttpRoute), Reserved);
}

#[test]
fn a_reserved_name_is_open_to_routes_that_its_listener_admits() {
    let mut edge = Edge::free();
    let admitted = BTreeSet::from(["t1".into(), "t2".into()]);
    edge.grants.admitted.insert(own_key("shop"), admitted);
    edge.put(&http("t1/shop"), 5, &["shop.example.com"]);
    edge.put(&own("shop"), 0, &["shop.example.com"]);
    for by in [HttpRoute, TlsRoute] {
        assert_eq!(edge.decide("t1", "shop.example.com", by), Free);
        assert_eq!(edge.decide("t3", "shop.example.com", by), Reserved);
    }
    // Not to listeners: those would be other doors to the Gateway's name.
    assert_eq!(edge.decide("t1", "shop.example.com", Listener), Reserved);
    assert_eq!(edge.next("shop.example.com"), Some("t1"));
    edge.hold("shop.example.com", "t1");
    assert_eq!(edge.owner("shop.example.com").as_deref(), Some("t1"));
    assert_eq!(edge.decide("t2", "shop.example.com", HttpRoute), Taken);
    // Nor to anybody where the Gateway's namespace has a route for the name itself.
    edge.put(&http("infra/shop"), 0, &["shop.example.com"]);
    assert_eq!(edge.decide("t1", "shop.example.com", HttpRoute), Reserved);
    assert_eq!(
        edge.claim_state("shop.example.com"),
        Some(NameClaimState::Revoked)
    );
    edge.names.remove(&edge.grants, &http("infra/shop"));
    assert_eq!(edge.decide("t1", "shop.example.com", HttpRoute), Has);
    // The Gateway does not admit it any more.
    edge.grants.admitted.clear();
    let affected = edge.put(&own("shop"), 0, &["shop.example.com"]);
    assert!(affected.records.contains(&pattern("shop.example.com")));
    assert!(affected.owners.contains(&pattern("shop.example.com")));
    assert_eq!(
        edge.claim_state("shop.example.com"),
        Some(NameClaimState::Revoked)
    );
    assert_eq!(edge.owner("shop.example.com").as_deref(), Some("infra"));
}

#[test]
fn claim_state_tells_a_revoked_name_from_one_its_holder_stopped_using() {
    let mut edge = Edge::granting(&[("t1", "x.example.com"), ("t2", "*.example.com")]);
    let source = listener("t1/s", "l");
    edge.put(&source, 5, &["x.example.com"]);
    edge.put(&http("t2/r"), 6, &["x.example.com"]);
    edge.hold("x.example.com", "t1");
    assert_eq!(
        edge.claim_state("x.example.com"),
        Some(NameClaimState::Used)
    );
    // The grant goes: nobody owns the name at once, and the next one is named for the hand-over.
    let all = edge.grants.entries.clone();
    edge.grants.entries.remove(0);
    let affected = edge.recheck("t1");
    assert!(affected.records.contains(&pattern("x.example.com")));
    assert_eq!(affected.asks.len(), 2, "{affected:?}");
    assert_eq!(
        edge.claim_state("x.example.com"),
        Some(NameClaimState::Revoked)
    );
    assert_eq!(edge.owner("x.example.com"), None);
    assert_eq!(edge.decide("t1", "x.example.com", Listener), NotGranted);
    assert_eq!(edge.next("x.example.com"), Some("t2"));
    // It comes back before the record has changed.
    edge.grants.entries = all;
    edge.recheck("t1");
    assert_eq!(
        edge.claim_state("x.example.com"),
        Some(NameClaimState::Used)
    );
    assert_eq!(edge.next("x.example.com"), None);
    // The Gateway does not let the namespace in any more.
    edge.grants.out.insert("t1".into());
    edge.recheck("t1");
    assert_eq!(
        edge.claim_state("x.example.com"),
        Some(NameClaimState::Revoked)
    );
    edge.grants.out.clear();
    edge.recheck("t1");
    // The Gateway takes the name.
    let affected = edge.put(&own("x"), 0, &["x.example.com"]);
    assert!(affected.records.contains(&pattern("x.example.com")));
    assert_eq!(
        edge.claim_state("x.example.com"),
        Some(NameClaimState::Revoked)
    );
    assert_eq!(edge.owner("x.example.com").as_deref(), Some("infra"));
    edge.names.remove(&edge.grants, &own("x"));
    assert_eq!(edge.owner("x.example.com").as_deref(), Some("t1"));
    // It merely stops using it.
    edge.names.remove(&edge.grants, &source);
    assert_eq!(
        edge.claim_state("x.example.com"),
        Some(NameClaimState::Idle)
    );
    assert_eq!(edge.claim_state("y.example.com"), None);
}

#[test]
fn the_first_grant_and_the_last_one_change_it_for_all() {
    let mut edge = Edge::free();
    edge.put(&listener("t1/s", "l"), 5, &["x.example.com"]);
    edge.hold("x.example.com", "t1");
    edge.grant("t2", "x.example.com", false);
    edge.names.recheck_all(&edge.grants);
    assert_eq!(
        edge.claim_state("x.example.com"),
        Some(NameClaimState::Revoked)
    );
    edge.grants.entries.clear();
    edge.names.recheck_all(&edge.grants);
    assert_eq!(
        edge.claim_state("x.example.com"),
        Some(NameClaimState::Used)
    );
}

#[test]
fn sharing_is_for_http_routes_of_those_named_and_makes_nobody_a_holder() {
    let mut edge = Edge::granting(&[("t1", "shop.example.com"), ("t4", "*.example.com")]);
    edge.grant("t2", "shop.example.com", true);
    edge.grant("t3", "shop.example.com", true);
    edge.put(&http("t2/api"), 1, &["shop.example.com"]);
    edge.put(&http("t3/blog"), 2, &["shop.example.com"]);
    // Also while nobody holds the name.
    assert_eq!(edge.next("shop.example.com"), None);
    edge.put(&listener("t1/s", "https"), 9, &["shop.example.com"]);
    assert_eq!(edge.next("shop.example.com"), Some("t1"));
    edge.hold("shop.example.com", "t1");
    for (namespace, by, decision) in [
        ("t2", HttpRoute, Has),
        ("t3", HttpRoute, Has),
        ("t2", TlsRoute, NotGranted),
        ("t2", Listener, NotGranted),
        ("t4", HttpRoute, Taken),
    ] {
        let decided = edge.decide(namespace, "shop.example.com", by);
        assert_eq!(decided, decision, "{namespace} {by:?}");
    }
    assert!(edge.serves(&http("t2/api"), "shop.example.com", "shop.example.com"));
    assert!(!edge.serves(&tls("t2/api"), "shop.example.com", "shop.example.com"));
    assert!(!edge.serves(
        &listener("t2/s", "l"),
        "shop.example.com",
        "shop.example.com"
    ));
    // A route of a sharer that does not name it serves no more than before.
    edge.put(&http("t2/any"), 1, &[""]);
    assert!(!edge.serves(&http("t2/any"), "", "shop.example.com"));
    assert_eq!(edge.owner("shop.example.com").as_deref(), Some("t1"));
    // Nothing else than the name itself is shared.
    assert_eq!(
        edge.decide("t2", "x.shop.example.com", HttpRoute),
        NotGranted
    );
    // A name that is shared lies inside the wildcard of another tenant like any other that is granted.
    edge.hold("*.example.com", "t4");
    assert_eq!(edge.decide("t2", "shop.example.com", HttpRoute), Has);
    // Sharing ends.
    edge.grants.entries.retain(|entry| !entry.shared);
    edge.recheck("t2");
    edge.recheck("t3");
    assert_eq!(
        edge.names
            .decision(&http("t2/api"), &pattern("shop.example.com")),
        Some(NotGranted)
    );
    assert!(!edge.serves(&http("t2/api"), "shop.example.com", "shop.example.com"));
}

#[test]
fn sets_of_the_gateways_namespace_claim_like_others_but_need_no_grant_and_close_nothing() {
    let mut edge = Edge::granting(&[("t1", "*.example.com"), ("t2", "")]);
    edge.hold("*.example.com", "t1");
    edge.hold("x.example.com", "t1");
    assert_eq!(edge.decide("infra", "x.example.com", Listener), Taken);
    assert_eq!(edge.decide("infra", "y.example.com", Listener), Free);
    edge.put(&listener("infra/set", "l"), 1, &["*.b.example.com"]);
    assert_eq!(edge.next("*.b.example.com"), Some("infra"));
    edge.hold("*.b.example.com", "infra");
    assert_eq!(edge.decide("t2", "z.b.example.com", Listener), Free);
    assert_eq!(edge.decide("t2", "z.example.com", Listener), Inside);
}

#[test]
fn the_loser_is_told_what_and_not_whose() {
    let mut edge = Edge::free();
    edge.hold("web.example.com", "secret-team");
    edge.hold("*.shop.example.com", "secret-team");
    edge.put(&own("status"), 0, &["status.example.com"]);
    let gateway = name("infra/gw");
    let said = |names: &str| {
        let decision = edge.decide("t2", names, HttpRoute);
        let finding = decision.finding("spec.hostnames[0]", &pattern(names), &gateway);
        let finding = finding.unwrap();
        assert!(finding.refuses());
        assert!(!finding.to_string().contains("secret-team"), "{finding}");
        // Nor which wildcard it is.
        assert!(!finding.to_string().contains("*.shop"), "{finding}");
        (finding.reason, finding.to_string())
    };
    assert_eq!(
        said("web.example.com"),
        (
            Reason::HostnameConflict,
            "spec.hostnames[0]: hostname \"web.example.com\" belongs to another namespace on every port of Gateway \
             infra/gw; use another hostname, or ask the owner of the Gateway"
                .to_owned()
        )
    );
    assert_eq!(
        said("x.shop.example.com"),
        (
            Reason::HostnameConflict,
            "spec.hostnames[0]: hostname \"x.shop.example.com\" is inside a wildcard that belongs to another \
             namespace on Gateway infra/gw; use another hostname, or ask the owner of the Gateway for a \
             HostnameGrant of just this hostname"
                .to_owned()
        )
    );
    assert_eq!(
        said("status.example.com"),
        (
            Reason::HostnameConflict,
            "spec.hostnames[0]: hostname \"status.example.com\" is reserved for Gateway infra/gw itself on every \
             port; use another hostname, or ask the owner of the Gateway"
                .to_owned()
        )
    );
    assert_eq!(said("*.com").0, Reason::PublicSuffixWildcard);
    for (decision, reason) in [
        (Has, None),
        (Free, None),
        (NotGranted, Some(Reason::HostnameNotOwned)),
        (Taken, Some(Reason::HostnameConflict)),
    ] {
        let finding = decision.finding("f", &HostPattern::Any, &gateway);
        assert_eq!(finding.is_some(), decision.is_refusal());
        assert_eq!(finding.map(|finding| finding.reason), reason);
    }
    // What may never be had is refused as such, whether or not somebody has it.
    let mut edge = Edge::granting(&[("t1", "*.example.com")]);
    edge.hold("web.example.com", "t1");
    for names in ["web.example.com", "free.example.com", "*.example.com"] {
        assert_eq!(edge.decide("t2", names, HttpRoute), NotGranted);
    }
}
