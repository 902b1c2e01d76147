//! Paths that a grant shares: what can be shared, which matches lie inside, and who is kept to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::Hostname;
use vestibule_model::hostname_grant::{GrantedNamespaces, HostnameGrant};
use vestibule_model::http::{HttpMatch, HttpRoute, MethodMatch, PathMatch, ValueMatch};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::Merge;
use vestibule_model::meta::Meta;
use vestibule_model::names::{AskedBy, NameDecision};
use vestibule_model::path::{MAX_PREFIX, PathPrefix, PathPrefixError, list, reaching_outside};
use vestibule_model::pattern::Pattern;
use vestibule_model::route::{Route, TlsRoute};
use vestibule_model::selector::NamespaceScope;

use crate::support::{CONTROLLER, class, gateway, http_route, listener, name, pattern, port};

const SHOP: &str = "shop.example.com";

fn part(text: &str) -> PathPrefix {
    PathPrefix::parse(text).expect(text)
}

fn exact(path: &str) -> PathMatch {
    PathMatch::Exact(path.into())
}

fn prefix(path: &str) -> PathMatch {
    PathMatch::Prefix(path.into())
}

fn regex(text: &str) -> PathMatch {
    PathMatch::Regex(Pattern::parse(text).expect(text))
}

/// A rule for each list of paths.
fn route_of(rules: &[&[PathMatch]]) -> HttpRoute {
    let one = |path: &PathMatch| HttpMatch {
        path: path.clone(),
        ..HttpMatch::default()
    };
    let at = ObjectKey {
        kind: Kind::HttpRoute,
        name: name("b/web"),
    };
    let rules = rules.iter().map(|paths| paths.iter().map(one).collect());
    let mut route = http_route(&at, rules.collect());
    route.hostnames = vec![(0, pattern(SHOP))];
    route
}

fn outside(route: &HttpRoute, parts: &[&str]) -> Option<Finding> {
    let parts: Vec<PathPrefix> = parts.iter().map(|text| part(text)).collect();
    reaching_outside(route, &parts, &pattern(SHOP), &name("infra/gw"))
}

#[test]
fn calls_are_inside_a_part_by_their_service_and_method() {
    let text = |text: &str| Some(ValueMatch::Exact(text.into()));
    let any = |text: &str| Some(ValueMatch::Regex(Pattern::parse(text).expect(text)));
    let route = |service, method| HttpRoute {
        kind: Kind::GrpcRoute,
        ..route_of(&[&[PathMatch::Method(MethodMatch { service, method })]])
    };
    for (part, service, method, inside) in [
        ("/a.B", text("a.B"), None, true),
        ("/a.B", text("a.B"), text("Call"), true),
        ("/a.B", text("a.B"), any("C.*"), true),
        ("/a.B/Call", text("a.B"), text("Call"), true),
        ("/a.B/Call", text("a.B"), text("Calls"), false),
        ("/a.B/Call", text("a.B"), any("Call"), false),
        ("/a.B/Call", text("a.B"), None, false),
        ("/a.B", text("a.Bc"), None, false),
        ("/a.B", any("a[.]B"), None, false),
        ("/a.B", None, text("Call"), false),
        ("/a.B", None, None, false),
    ] {
        let finding = outside(&route(service.clone(), method.clone()), &[part]);
        assert_eq!(finding.is_none(), inside, "{part} {service:?} {method:?}");
        if let Some(finding) = finding {
            assert_eq!(finding.field, "spec.rules[0].matches[0].method");
            assert!(finding.action.contains("GRPCRoute"), "{finding}");
        }
    }
}

#[test]
fn a_part_has_elements_and_is_written_in_one_way() {
    use PathPrefixError::{
        Character, Dots, EmptyElement, Everything, Relative, TooLong, Validation,
    };
    for good in [
        "/api",
        "/api/v2",
        "/API",
        "/a.b/..c/...",
        "/~u/$x,(y)=:@!*+'&_-",
        "/.well-known/openid-configuration",
        "/.well-known/acme-challenges",
        "/.well-known/pki-validation.txt",
        "/.well-known/PKI-Validation",
        "/x/.well-known/acme-challenge",
    ] {
        assert_eq!(part(good).as_str(), good);
        let again: Vec<String> = part(good).elements().map(|e| format!("/{e}")).collect();
        assert_eq!(again.concat(), good);
    }
    for (bad, why) in [
        ("", Relative),
        ("api", Relative),
        ("*", Relative),
        ("/", Everything),
        ("/api/", EmptyElement),
        ("//api", EmptyElement),
        ("/a//b", EmptyElement),
        ("/.", Dots),
        ("/a/../b", Dots),
        ("/a/.", Dots),
        ("/a%2fb", Character),
        ("/%61pi", Character),
        ("/a;b", Character),
        ("/..;", Character),
        ("/a?b", Character),
        ("/a#b", Character),
        ("/a\\b", Character),
        ("/a b", Character),
        ("/é", Character),
        ("/a\n", Character),
        ("/.well-known", Validation),
        ("/.well-known/acme-challenge", Validation),
        ("/.well-known/acme-challenge/token", Validation),
        ("/.well-known/pki-validation", Validation),
        ("/.well-known/pki-validation/gsdv.txt", Validation),
    ] {
        assert_eq!(PathPrefix::parse(bad), Err(why), "{bad}");
    }
    let long = format!("/{}", "a".repeat(MAX_PREFIX));
    assert_eq!(PathPrefix::parse(&long), Err(TooLong));
    assert!(PathPrefix::parse(&long[..MAX_PREFIX]).is_ok());
}

#[test]
fn a_part_is_taken_by_element() {
    let api = part("/api");
    for inside in [
        "/api",
        "/api/",
        "/api/x",
        "/api//x",
        "/api/x;y=z",
        "/api/%61",
    ] {
        assert!(api.contains(inside), "{inside}");
    }
    for outside in [
        "/",
        "",
        "*",
        "/apix",
        "/API",
        "/ap",
        "/x/api",
        "//api",
        "/%61pi",
        "/api;x",
        // What a backend could read as another path is in no part.
        "/api/..",
        "/api/../admin",
        "/api/./x",
        "/api/%2e%2e/admin",
        "/api/.%2E/admin",
        "/api/..;/admin",
        "/api/..%3bx/admin",
        "/api/..%2fadmin",
        "/api/x%2Fy",
        "/api/..\\admin",
        "/api%5cx",
    ] {
        assert!(!api.contains(outside), "{outside}");
    }
}

#[test]
fn every_match_of_every_rule_lies_inside() {
    let parts = &["/api", "/docs/v2"];
    let fine: &[PathMatch] = &[prefix("/api"), prefix("/api/"), exact("/docs/v2/x")];
    assert_eq!(outside(&route_of(&[fine, &[exact("/api")]]), parts), None);
    for (rules, field) in [
        (
            vec![fine, &[exact("/api"), prefix("/")][..]],
            "spec.rules[1].matches[1].path",
        ),
        (
            vec![&[prefix("/docs")][..], fine],
            "spec.rules[0].matches[0].path",
        ),
        (vec![&[exact("/apix")][..]], "spec.rules[0].matches[0].path"),
        (
            vec![&[exact("/api/../admin")][..]],
            "spec.rules[0].matches[0].path",
        ),
        (
            vec![&[HttpMatch::default().path][..]],
            "spec.rules[0].matches[0].path",
        ),
        // Whatever it matches.
        (
            vec![&[regex("/api/x")][..]],
            "spec.rules[0].matches[0].path",
        ),
    ] {
        let finding = outside(&route_of(&rules), parts).expect(field);
        assert_eq!(
            (finding.reason, &*finding.field),
            (Reason::HostnameNotOwned, field)
        );
        assert!(finding.refuses());
        let paths = "shares only paths /api, /docs/v2 of hostname";
        assert!(finding.message.contains(paths), "{finding}");
    }
    // A rule that is refused answers with an error wherever it matches.
    let mut refused = route_of(&[&[prefix("/api")], &[prefix("/")]]);
    let why = Finding::refused(Reason::UnsupportedValue, "spec.rules[1]", "is wrong", "");
    refused.rules[1].findings.push(why);
    let finding = outside(&refused, parts).expect("a finding");
    assert_eq!(finding.field, "spec.rules[1].matches");
    // What has no match left takes nothing.
    refused.rules[1].matches.clear();
    assert_eq!(outside(&refused, parts), None);
}

#[test]
fn lists_are_short() {
    let parts: Vec<PathPrefix> = (0..7).map(|n| part(&format!("/{n}"))).collect();
    assert_eq!(list(&parts[..1]), "path /0");
    assert_eq!(list(&parts), "paths /0, /1, /2, /3, /4 and 2 more");
}

/// A grant that gives nothing.
fn grant(at: &str, namespace: &str) -> HostnameGrant {
    let none = Finding::refused(Reason::Unreadable, "spec", "", "");
    HostnameGrant {
        namespaces: GrantedNamespaces {
            names: BTreeSet::from([Arc::from(namespace)]),
            selector: None,
        },
        findings: Vec::new(),
        ..HostnameGrant::unreadable(name(at), Meta::default(), none)
    }
}

fn shop() -> Hostname {
    Hostname::parse(SHOP).expect("a hostname")
}

fn sharing(at: &str, namespace: &str, paths: &[&str]) -> HostnameGrant {
    let paths = paths.iter().map(|path| part(path)).collect();
    HostnameGrant {
        shared_paths: BTreeMap::from([(shop(), paths)]),
        ..grant(at, namespace)
    }
}

fn start() -> Merge {
    let mut merge = Merge::new(CONTROLLER);
    let ours: Arc<str> = "vestibule".into();
    merge.put_class(&ours, Some(class(&ours)));
    let mut listeners = vec![
        listener(0, "web", 80, "HTTP", ""),
        listener(1, "tls", 443, "HTTPS", ""),
    ];
    for listener in &mut listeners {
        listener.allowed_namespaces = NamespaceScope::All;
    }
    merge.put_gateway(
        &name("infra/gw"),
        Some(gateway("infra/gw", listeners).into()),
    );
    merge
}

fn put(merge: &mut Merge, grant: &HostnameGrant) {
    merge.put_grant(&grant.name, Some(Arc::new(grant.clone())));
}

fn own(section: &str) -> ListenerKey {
    ListenerKey::new(ParentKey::Gateway(name("infra/gw")), section)
}

fn kept_to(merge: &Merge, route: &HttpRoute, at: &ListenerKey) -> Vec<String> {
    let parts = merge.shared_paths(&Route::Http(route).key(), at, &pattern(SHOP));
    parts.iter().map(ToString::to_string).collect()
}

fn hold(merge: &mut Merge, holder: &str) {
    let key = ClaimKey::names(&name("infra/gw"), &pattern(SHOP));
    merge.put_claims(BTreeMap::from([(key, Some(Holder::from(holder)))]));
}

#[test]
fn a_namespace_is_kept_to_its_parts_unless_it_has_the_name_otherwise() {
    let mut merge = start();
    let (route, web) = (route_of(&[&[prefix("/")]]), own("web"));
    put(&mut merge, &sharing("infra/b", "b", &["/api"]));
    assert!(merge.is_guarded(&name("infra/gw")));
    let by = AskedBy::HttpRoute;
    let decide = |merge: &Merge, namespace, host| {
        merge.decide(&name("infra/gw"), namespace, &pattern(host), by)
    };
    assert_eq!(decide(&merge, "b", SHOP), NameDecision::Has);
    for (namespace, host) in [
        ("c", SHOP),
        ("b", "x.shop.example.com"),
        ("b", "*.example.com"),
    ] {
        assert_eq!(decide(&merge, namespace, host), NameDecision::NotGranted);
    }
    assert_eq!(kept_to(&merge, &route, &web), ["/api"]);
    let finding = merge.outside_shared_paths(Route::Http(&route), &web, &pattern(SHOP));
    let finding = finding.expect("a finding");
    assert!(!finding.to_string().contains("namespace b"), "{finding}");
    // Several grants add up.
    put(&mut merge, &sharing("infra/more", "b", &["/docs", "/api"]));
    assert_eq!(kept_to(&merge, &route, &web), ["/api", "/docs"]);
    // Another namespace holds the name, or the Gateway's own does.
    for holder in ["a", "infra"] {
        hold(&mut merge, holder);
        assert_eq!(kept_to(&merge, &route, &web), ["/api", "/docs"]);
    }
    // All of the name is shared as well.
    let mut whole = grant("infra/whole", "b");
    whole.shared.insert(shop());
    put(&mut merge, &whole);
    assert_eq!(kept_to(&merge, &route, &web), [""; 0]);
    assert_eq!(
        merge.outside_shared_paths(Route::Http(&route), &web, &pattern(SHOP)),
        None
    );
    merge.put_grant(&whole.name, None);
    // It holds the name, as far as its other grants give it.
    let mut gives = grant("infra/gives", "b");
    gives.hostnames.push(pattern(SHOP));
    gives.ports.insert(port(443));
    put(&mut merge, &gives);
    assert_eq!(kept_to(&merge, &route, &own("tls")), ["/api", "/docs"]);
    hold(&mut merge, "b");
    assert_eq!(kept_to(&merge, &route, &own("tls")), [""; 0]);
    assert_eq!(kept_to(&merge, &route, &web), ["/api", "/docs"]);
    // A record that does not count any more gives nothing.
    merge.put_grant(&gives.name, None);
    assert_eq!(kept_to(&merge, &route, &own("tls")), ["/api", "/docs"]);
}

#[test]
fn parts_are_for_http_routes_on_the_gateways_own_listeners() {
    let mut merge = start();
    put(&mut merge, &sharing("infra/b", "b", &["/api"]));
    let gateway = name("infra/gw");
    for by in [AskedBy::Listener, AskedBy::TlsRoute] {
        let decision = merge.decide(&gateway, "b", &pattern(SHOP), by);
        assert_eq!(decision, NameDecision::NotGranted, "{by:?}");
    }
    let tls = TlsRoute {
        name: ObjectName::new("b", "web"),
        meta: Meta::default(),
        parents: Vec::new(),
        hostnames: vec![(0, pattern(SHOP))],
        backends: Vec::new(),
        findings: Vec::new(),
    };
    let key: ObjectKey = Route::Tls(&tls).key();
    assert_eq!(merge.shared_paths(&key, &own("tls"), &pattern(SHOP)), []);
    // The Gateway's own routes need no grant, and are kept to none.
    put(&mut merge, &sharing("infra/own", "infra", &["/api"]));
    let mut route = route_of(&[&[prefix("/")]]);
    route.name = name("infra/web");
    assert_eq!(kept_to(&merge, &route, &own("web")), [""; 0]);
}

#[test]
fn a_grant_that_is_deleted_or_cannot_be_read_shares_nothing() {
    let mut merge = start();
    let (route, web) = (route_of(&[&[prefix("/api")]]), own("web"));
    let mut made = sharing("infra/b", "b", &["/api"]);
    made.meta.deleting = true;
    put(&mut merge, &made);
    let by = AskedBy::HttpRoute;
    let decision = merge.decide(&name("infra/gw"), "b", &pattern(SHOP), by);
    assert_eq!(decision, NameDecision::NotGranted);
    assert_eq!(kept_to(&merge, &route, &web), [""; 0]);
}

fn element() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "a", "b", "ab", "A", "", ".", "..", "%2e", "%2E.", "%61", "..;", ".;x", "a;x", "a%2fb",
        "%2f..", "a\\..", "%5c", "..%3b", "a.", "...",
    ])
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(element(), 0..4).prop_map(|all| format!("/{}", all.join("/")))
}

fn path_match() -> impl Strategy<Value = PathMatch> {
    prop_oneof![
        3 => path().prop_map(|path| exact(&path)),
        3 => path().prop_map(|path| prefix(&path)),
        1 => Just(regex("/a/.*")),
    ]
}

/// The path that a backend could read which decodes, takes `\` for `/` and drops parameters, `None` above the root.
fn resolved(path: &str) -> Option<Vec<String>> {
    let text = path.to_ascii_lowercase();
    let text = text.replace("%2e", ".").replace("%3b", ";");
    let text = text
        .replace("%2f", "/")
        .replace("%5c", "/")
        .replace('\\', "/");
    let mut elements = Vec::new();
    for element in text.split('/').skip(1) {
        match element.split(';').next().unwrap_or_default() {
            "." => {}
            ".." => _ = elements.pop()?,
            other => elements.push(other.to_owned()),
        }
    }
    Some(elements)
}

proptest! {
    /// Whatever is accepted lies inside, for a reader that takes paths as they are written and for one that decodes
    /// and resolves them.
    #[test]
    fn path_matches_that_are_accepted_lie_inside_a_part(
        parts in prop::sample::subsequence(vec!["/a", "/a/b", "/b", "/ab/a"], 1..4),
        rules in prop::collection::vec(prop::collection::vec(path_match(), 1..3), 1..3),
    ) {
        let rules: Vec<&[PathMatch]> = rules.iter().map(Vec::as_slice).collect();
        let route = route_of(&rules);
        let all = rules.iter().flat_map(|rule| rule.iter());
        if let Some(finding) = outside(&route, &parts) {
            let at = |path: &PathMatch| {
                let parts = &parts;
                !parts.iter().any(|text| part(text).contains_match(path))
            };
            let (rule, index) = rules.iter().enumerate().find_map(|(rule, matches)| {
                Some((rule, matches.iter().position(at)?))
            }).expect("one that reaches outside");
            prop_assert_eq!(finding.field, format!("spec.rules[{rule}].matches[{index}].path"));
        } else {
            for path in all {
                let (PathMatch::Exact(path) | PathMatch::Prefix(path)) = path else {
                    return Err(TestCaseError::fail("a regular expression"));
                };
                let elements: Vec<&str> = path.split('/').skip(1).collect();
                let read = resolved(path).expect("inside the root");
                let inside = |text: &&str| {
                    let part: Vec<&str> = text.split('/').skip(1).collect();
                    let part_lower: Vec<String> = part.iter().map(ToString::to_string).collect();
                    elements.starts_with(&part) && read.starts_with(&part_lower)
                };
                prop_assert!(parts.iter().any(inside), "{} {:?}", path, parts);
            }
        }
    }

    #[test]
    fn path_prefix_that_parses_is_canonical(text in "(/[a.%;~]{0,3}){0,4}/?") {
        if let Ok(part) = PathPrefix::parse(&text) {
            prop_assert!(part.contains(&text));
            let (below, longer) = (format!("{text}/x"), format!("{text}x"));
            prop_assert!(part.contains(&below));
            prop_assert!(!part.contains(&longer));
            let elements: Vec<&str> = part.elements().collect();
            prop_assert_eq!(format!("/{}", elements.join("/")), text);
        }
    }
}
