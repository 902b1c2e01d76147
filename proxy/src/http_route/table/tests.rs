//! Tests of the selection of a rule: the API's order by examples, and the index against a naive
//! reference.

use hyper::header::HeaderName;
use hyper::{Method, Request};
use proptest::prelude::*;
use vestibule_model::path::PathPrefix;
use vestibule_model::pattern::{Matcher, Steps};

use super::super::route::{RuleParts, Value, ValueMatch};
use super::*;
use crate::owners::HostnameGuard;
use crate::quota::TenantQuotas;

/// A match in short: `=/exact`, `~regex`, `/prefix` or `@service/method` (`*` is any, `~` before a regular expression),
/// then `METHOD`, `header:value`, `param=value`.
fn of(text: &str) -> Match {
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let mut of = Match::default();
    let mut headers = Vec::new();
    let mut query = Vec::new();
    for word in words.by_ref() {
        if let Some(path) = word.strip_prefix('=') {
            of.path = PathMatch::Exact(path.into());
        } else if let Some(text) = word.strip_prefix('~') {
            of.path = PathMatch::Regex(Matcher::compile(text).unwrap());
        } else if let Some(text) = word.strip_prefix('@') {
            let (service, method) = text.split_once('/').unwrap();
            let [service, method] = [service, method].map(|part| match part.strip_prefix('~') {
                Some(pattern) => Some(Value::Regex(Matcher::compile(pattern).unwrap())),
                None => (part != "*").then(|| Value::Exact(part.into())),
            });
            of.path = PathMatch::Method { service, method };
        } else if word.starts_with('/') {
            of.path = PathMatch::Prefix(word.strip_suffix('/').unwrap_or(word).into());
        } else if let Some((name, value)) = word.split_once(':') {
            headers.push(ValueMatch {
                name: HeaderName::try_from(name).unwrap(),
                value: Value::Exact(value.into()),
            });
        } else if let Some((name, value)) = word.split_once('=') {
            query.push(ValueMatch {
                name: name.into(),
                value: Value::Exact(value.into()),
            });
        } else {
            of.method = Some(Method::from_bytes(word.as_bytes()).unwrap());
        }
    }
    of.headers = headers.into();
    of.query = query.into();
    of
}

#[test]
fn a_route_says_of_which_kind_it_is() {
    assert_eq!(route("calls", 0, &["@shop.Cart/Add"]).kind(), "GRPCRoute");
    assert_eq!(route("pages", 0, &["/"]).kind(), "HTTPRoute");
}

/// A route with one rule per text; commas separate the matches of a rule.
fn route(name: &str, created: i64, rules: &[&str]) -> Arc<HttpRoute> {
    route_of("team-a", name, created, rules)
}

fn route_of(tenant: &str, name: &str, created: i64, rules: &[&str]) -> Arc<HttpRoute> {
    // A GRPCRoute has matches of methods alone.
    let grpc = rules.iter().any(|rule| rule.starts_with('@'));
    let rules = rules.iter().map(|rule| {
        Rule::from(RuleParts {
            matches: rule.split(',').map(of).collect(),
            ..RuleParts::default()
        })
    });
    let account = TenantQuotas::default().of(&tenant.into());
    Arc::new(HttpRoute::new((name.into(), grpc), account, created, rules))
}

/// `METHOD /path?query header:value`.
fn request(text: &str) -> Request<()> {
    let mut words = text.split(' ');
    let mut request = Request::builder()
        .method(words.next().unwrap())
        .uri(words.next().unwrap());
    for word in words {
        let (name, value) = word.split_once(':').unwrap();
        request = request.header(name, value);
    }
    request.body(()).unwrap()
}

type Attached<'a> = (&'a str, &'a str, Arc<HttpRoute>);

fn table(routes: &[Attached<'_>]) -> HttpTable {
    let mut table = HttpTable::default();
    for (pattern, rank, route) in routes {
        table.insert(&names(pattern, rank), route);
    }
    table
}

fn pattern_of(text: &str) -> HostPattern {
    HostPattern::parse(text).unwrap()
}

fn names(pattern: &str, rank: &str) -> AttachedNames {
    names_of(pattern, rank, false, &[])
}

fn names_of(pattern: &str, rank: &str, shared: bool, paths: &[&str]) -> AttachedNames {
    let paths = paths.iter().map(|text| part(text)).collect();
    AttachedNames::new(pattern_of(pattern), pattern_of(rank), shared, paths)
}

fn part(text: &str) -> PathPrefix {
    PathPrefix::parse(text).unwrap()
}

/// `route/rule`, or nothing.
fn select(table: &HttpTable, host: &str, text: &str) -> String {
    let request = request(text);
    let host = Hostname::parse(host).ok();
    let view = View::new(&request, None, HostnameGuard::OPEN, Steps::default());
    let found = table.find(host.as_ref(), &view);
    found.map_or_else(String::new, |found| {
        format!("{}/{}", found.route.key, found.place.0)
    })
}

#[test]
fn the_order_of_the_api_within_a_hostname() {
    // A rule never comes before one that is earlier in the list, whichever route is older.
    let ordered = [
        "=/a/b GET",
        "=/a/b",
        "~/a/[bc]+",
        "~/a/.*",
        "/a/b POST",
        "/a/b/ x:1 y:2",
        "/a/b x:1 q=1",
        "/a/b q=1 r=2",
        "/a/b",
        "/a GET x:1",
        "/",
    ];
    let asked = "POST /a/b?q=1&r=2 x:1 y:2";
    for length in 1..=ordered.len() {
        let chosen = &ordered[ordered.len() - length..];
        // The rules are tried as rules of one route, in reverse order, and as separate routes.
        let mut rules: Vec<&str> = chosen.to_vec();
        rules.reverse();
        let first = chosen.iter().position(|rule| {
            let request = request(asked);
            of(rule).accepts(&View::new(
                &request,
                None,
                HostnameGuard::OPEN,
                Steps::default(),
            ))
        });
        let expected = rules.len() - 1 - first.unwrap();
        assert_takes(&rules, expected, asked);
    }
}

/// Asserts which rule takes a request: of one route, and of routes with one rule each, the first of which is the oldest.
fn assert_takes(rules: &[&str], expected: usize, asked: &str) {
    let one = table(&[("", "", route("r", 0, rules))]);
    assert_eq!(select(&one, "h", asked), format!("r/{expected}"));
    let many: Vec<Attached<'_>> = rules
        .iter()
        .enumerate()
        .map(|(index, rule)| {
            let created = i64::try_from(index).unwrap();
            ("", "", route(&format!("r{index}"), created, &[rule]))
        })
        .collect();
    assert_eq!(select(&table(&many), "h", asked), format!("r{expected}/0"));
}

/// A call of gRPC.
fn call(path: &str) -> String {
    format!("POST {path} content-type:application/grpc")
}

#[test]
fn the_order_of_the_api_among_methods() {
    // A rule never comes before one that is earlier in the list, whichever route is older. First the service counts,
    // then the method, then the fields.
    let ordered = [
        "@a.B/Call x:1",
        "@a.B/Call",
        "@a.B/~Ca.*",
        "@a.B/~C.*",
        "@a.B/* x:1 y:2",
        "@a.B/* x:1",
        "@a.B/*",
        "@~[ab][.]B/Call",
        "@~a.*/Call x:1",
        "@~a.*/*",
        // A method alone is not above any service, however long its name is.
        "@*/Call x:1",
        "@*/Call",
        "@*/~C.*",
        "@*/* y:2",
        "@*/*",
    ];
    let asked = format!("{} x:1 y:2", call("/a.B/Call"));
    for length in 1..=ordered.len() {
        let chosen = &ordered[ordered.len() - length..];
        let mut rules: Vec<&str> = chosen.to_vec();
        rules.reverse();
        assert_takes(&rules, rules.len() - 1, &asked);
    }
    // Rules that do not match are passed over.
    let routes = [
        ("", "", route("long", 0, &["@a.B/Other", "@a.Bc/Call"])),
        ("", "", route("short", 9, &["@*/Call"])),
        ("", "", route("younger", 10, &["@*/Call"])),
    ];
    assert_eq!(select(&table(&routes), "h", &asked), "short/0");
    assert_eq!(select(&table(&routes[..1]), "h", &asked), "");
    for path in ["/", "/a.B", "/a.B/", "/x/a.B/Other", "/a.B/Other/"] {
        assert_eq!(select(&table(&routes[..1]), "h", &call(path)), "", "{path}");
    }
}

#[test]
fn calls_are_for_grpc_routes_first_and_other_requests_for_http_routes_alone() {
    let web = || route("web", 0, &["/", "=/a.B/Call"]);
    let calls = || route("calls", 9, &["@a.B/Call"]);
    let any = || route("any", 9, &["@*/*"]);
    for filler in [Vec::new(), filler()] {
        let of = |routes: &[Attached<'static>]| table(&[routes, &filler].concat());
        // This also holds if both have the same hostname.
        let both = of(&[("", "", web()), ("", "", calls())]);
        assert_eq!(select(&both, "h", &call("/a.B/Call")), "calls/0");
        assert_eq!(select(&both, "h", &call("/a.B/Other")), "web/0");
        assert_eq!(select(&both, "h", "POST /a.B/Call"), "web/1");
        let web_call = "POST /a.B/Call content-type:application/grpc-web+proto";
        assert_eq!(select(&both, "h", web_call), "calls/0");
        let preflight = "OPTIONS /a.B/Call access-control-request-headers:x-grpc-web";
        assert_eq!(select(&both, "h", preflight), "calls/0");
        let alone = of(&[("", "", any())]);
        assert_eq!(select(&alone, "h", "GET /a.B/Call"), "");
        assert_eq!(select(&alone, "h", &call("/x")), "any/0");
        // The hostname comes before the kind.
        let ranked = of(&[("*.a.com", "*.a.com", any()), ("x.a.com", "x.a.com", web())]);
        assert_eq!(select(&ranked, "x.a.com", &call("/a.B/Call")), "web/1");
        assert_eq!(select(&ranked, "y.a.com", &call("/a.B/Call")), "any/0");
    }
    // Routes of one name and both kinds come and go by themselves.
    let (web, calls) = (route("one", 0, &["/"]), route("one", 0, &["@*/*"]));
    let mut both = table(&[("", "", Arc::clone(&web)), ("", "", Arc::clone(&calls))]);
    both.remove(&names("", ""), &web);
    assert_eq!(select(&both, "h", "GET /"), "");
    assert_eq!(select(&both, "h", &call("/a.B/Call")), "one/0");
    both.remove(&names("", ""), &calls);
    assert!(both.is_empty());
}

/// The bound holds for every configuration and every request.
#[test]
fn finding_a_match_costs_a_bounded_number_of_steps() {
    let slow: Vec<String> = (0..200).map(|n| format!("~/.*x{n}")).collect();
    let fields: Vec<String> = (0..40_000).map(|n| format!("/ x:{n}")).collect();
    let methods: Vec<String> = (0..200).map(|n| format!("@~.*x{n}/*")).collect();
    // All fields of a match but the last one are right.
    let many: Vec<String> = (0..15).map(|n| format!("a{n}:1")).collect();
    let many = many.join(" ");
    let right: Vec<String> = (0..2_000).map(|n| format!("/ {many} x:{n}")).collect();
    let long = call(&format!("/{}/Call", "1".repeat(20_000)));
    for (rules, asked) in [
        (&methods, long),
        (&slow, format!("GET /{}", "1".repeat(20_000))),
        (&fields, "GET / x:none".into()),
        (&right, format!("GET / {many} x:none")),
    ] {
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let found = |rules: &[&str], asked: &str| {
            let request = request(asked);
            let view = View::new(&request, None, HostnameGuard::OPEN, Steps::default());
            let all: Vec<Attached<'_>> = rules
                .chunks(1000)
                .enumerate()
                .map(|(n, rules)| ("", "", route(&format!("r{n}"), 0, rules)))
                .chain([("", "", route("last", 0, &["/"]))])
                .collect();
            let found = table(&all).find(None, &view);
            let found = found.map(|found| found.route.key.to_string());
            (found, view.steps.have_run_out(), view.steps.left())
        };
        let (_, ran_out, left) = found(&rules, &asked);
        assert!(ran_out && left == 0, "{}", rules[0]);
        let (last, ran_out, _) = found(&rules[..10], &asked);
        assert!(!ran_out, "{}", rules[0]);
        assert_eq!(last.as_deref(), Some("last"), "{}", rules[0]);
    }
}

/// All matches of a route may have regular expressions that read a path to its end. This is the number of bytes that they
/// read, and not the number of states that they have.
#[test]
fn a_full_route_of_expressions_reads_a_usual_path_within_the_budget() {
    let path = format!("GET /{}", "1".repeat(1_999));
    let taken = |pattern: fn(usize) -> String| {
        let rules: Vec<String> = (0..128).map(pattern).collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let all = [
            ("", "", route("slow", 0, &rules)),
            ("", "", route("last", 0, &["/"])),
        ];
        let request = request(&path);
        let view = View::new(&request, None, HostnameGuard::OPEN, Steps::default());
        let found = table(&all).find(None, &view).unwrap();
        assert_eq!(&*found.route.key, "last");
        assert!(!view.steps.have_run_out());
        Steps::OF_A_REQUEST - view.steps.left()
    };
    let expected = 128 * (STEPS + 2_000) + STEPS;
    assert_eq!(taken(|n| format!("~/.*x{n}")), expected);
    assert_eq!(taken(|n| format!("~/([01]*1[01]{{5}})x{n}")), expected);
}

#[test]
fn ties_go_to_the_older_route_then_the_name_then_the_first_rule() {
    let routes = [
        ("", "", route("b", 1, &["/x", "/a", "/a"])),
        ("", "", route("a", 1, &["/a"])),
        ("", "", route("c", 0, &["/y"])),
    ];
    assert_eq!(select(&table(&routes), "h", "GET /a"), "a/0");
    assert_eq!(select(&table(&routes[..1]), "h", "GET /a"), "b/1");
    let older = ("", "", route("z", 0, &["/a"]));
    let all = [&routes[..], &[older]].concat();
    assert_eq!(select(&table(&all), "h", "GET /a"), "z/0");
}

#[test]
fn a_more_specific_hostname_is_asked_first_and_falls_through() {
    // HTTPRouteMultipleRoutesAttachmentSameHostnameIntersection: on the listener abc.example.com both
    // routes match the same name; what they were written for ranks them.
    let listener = "abc.example.com";
    let routes = [
        (
            listener,
            "*.example.com",
            route("old", 0, &["/", "/long/prefix", "/only"]),
        ),
        (listener, "abc.example.com", route("new", 9, &["/", "/a"])),
    ];
    for routes in [&routes[..], &[&routes[..], &filler()].concat()] {
        let table = table(routes);
        assert_eq!(select(&table, listener, "GET /long/prefix"), "new/0");
        assert_eq!(select(&table, listener, "GET /a/x"), "new/1");
    }
    let missing = [
        (listener, "*.example.com", route("old", 0, &["/"])),
        (
            listener,
            "abc.example.com",
            route("new", 9, &["/a", "/b x:1"]),
        ),
    ];
    for routes in [&missing[..], &[&missing[..], &filler()].concat()] {
        let table = table(routes);
        assert_eq!(select(&table, listener, "GET /a"), "new/0");
        assert_eq!(select(&table, listener, "GET /b"), "old/0");
        assert_eq!(select(&table, listener, "GET /b x:1"), "new/1");
        assert_eq!(select(&table, "other.example.com", "GET /a"), "");
    }
}

/// Enough to make an index of any table.
fn filler() -> Vec<Attached<'static>> {
    (0..FEW)
        .map(|n| {
            (
                "filler.example.org",
                "filler.example.org",
                route(&format!("f{n}"), 0, &["/"]),
            )
        })
        .collect()
}

/// One hostname: routes with all of it, and routes with parts of it.
fn table_of_parts(whole: &[Arc<HttpRoute>], parts: &[(&[&str], Arc<HttpRoute>)]) -> HttpTable {
    let mut table = HttpTable::default();
    for route in whole {
        table.insert(&names("h.example", "h.example"), route);
    }
    for (paths, route) in parts {
        // This rank is below that of the routes with the whole name. It does not matter, because a part comes first.
        let names = names_of("h.example", "*.example", false, paths);
        table.insert(&names, route);
    }
    table
}

#[test]
fn rules_of_other_routes_reach_into_a_part_only_by_prefixes_at_or_above_it() {
    let sharer = route("part", 9, &["/api/x GET", "=/api/y"]);
    for (rule, inside, around) in [
        ("/", "own/0", "own/0"),
        ("/api", "own/0", ""),
        ("/ GET", "own/0", "own/0"),
        ("/api/z", "", ""),
        ("=/api/z", "", ""),
        ("~/.*", "", "own/0"),
        ("~/api/z", "", ""),
    ] {
        let own = route("own", 0, &[rule]);
        let table = table_of_parts(&[own], &[(&["/api"], Arc::clone(&sharer))]);
        let asked = |text: &str| select(&table, "h.example", text);
        assert_eq!(asked("GET /api/x/1"), "part/0", "{rule}");
        assert_eq!(asked("GET /api/y"), "part/1", "{rule}");
        // No rule of the part's own route takes this path.
        assert_eq!(asked("GET /api/z"), inside, "{rule}");
        for outside in [
            "/", "/apix", "/API/x", "//api/x", "/%61pi/x", "/api;/x", "/xapi",
        ] {
            assert_eq!(asked(&format!("GET {outside}")), around, "{rule} {outside}");
        }
    }
}

#[test]
fn a_route_with_a_part_serves_nothing_outside_whatever_it_matches() {
    let greedy = route("part", 0, &["/", "~/.*", "=/admin", "=/"]);
    let table = table_of_parts(&[], &[(&["/api"], greedy)]);
    assert!(!table.is_empty());
    for path in [
        "/",
        "/admin",
        "/apix",
        "/.well-known/acme-challenge/x",
        "/API",
    ] {
        assert_eq!(
            select(&table, "h.example", &format!("GET {path}")),
            "",
            "{path}"
        );
    }
    assert_eq!(select(&table, "h.example", "OPTIONS *"), "");
    assert_eq!(select(&table, "x.example", "GET /api"), "");
    assert_eq!(select(&table, "192.0.2.1", "GET /api"), "");
    assert_eq!(select(&table, "h.example", "GET /api"), "part/1");
}

#[test]
fn the_inner_part_comes_before_the_outer_one() {
    let own = route("own", 0, &["/"]);
    let outer = route("outer", 0, &["/api", "=/api/v2/x", "~/api/.*"]);
    let inner = route("inner", 9, &["/api/v2/x POST", "/api/v2/y"]);
    let all = [(&["/api"][..], outer), (&["/api/v2"][..], inner)];
    let mut table = table_of_parts(&[own], &all);
    let asked = |table: &HttpTable, text: &str| select(table, "h.example", text);
    assert_eq!(asked(&table, "GET /api/v2/y"), "inner/1");
    // The prefix reaches into the inner part. The exact path and the regular expression do not.
    assert_eq!(asked(&table, "GET /api/v2/x"), "outer/0");
    assert_eq!(asked(&table, "GET /api/v1"), "outer/2");
    assert_eq!(asked(&table, "GET /docs"), "own/0");
    // Routes that were removed keep nobody out.
    for (paths, route) in all {
        let names = names_of("h.example", "*.example", false, paths);
        table.remove(&names, &route);
    }
    assert!(table.parts.is_none());
    assert_eq!(asked(&table, "GET /api/v2/y"), "own/0");
}

#[test]
fn a_request_without_hostname_gets_routes_without_one() {
    let routes = [
        ("", "", route("any", 0, &["/"])),
        ("*.com", "*.com", route("com", 0, &["/"])),
    ];
    assert_eq!(select(&table(&routes), "192.0.2.1", "GET /"), "any/0");
    assert_eq!(select(&table(&routes[1..]), "192.0.2.1", "GET /"), "");
    assert_eq!(select(&table(&routes), "192.0.2.1", "OPTIONS *"), "any/0");
}

fn word() -> impl Strategy<Value = String> {
    "[ab]{1,2}"
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(word(), 0..4).prop_map(|words| format!("/{}", words.join("/")))
}

fn match_text() -> impl Strategy<Value = String> {
    let path = prop_oneof![
        3 => path(),
        1 => path().prop_map(|path| format!("{path}/")),
        2 => path().prop_map(|path| format!("={path}")),
        1 => path().prop_map(|path| format!("~{}.*", path.replace('a', "[ab]"))),
    ];
    let method = prop::sample::select(vec!["", "GET", "POST"]);
    let headers = prop::sample::subsequence(vec!["x:a", "x:b", "y:a"], 0..2);
    let query = prop::sample::subsequence(vec!["p=a", "p=b", "q=a"], 0..2);
    (path, method, headers, query).prop_map(|(path, method, headers, query)| {
        format!("{path} {method} {} {}", headers.join(" "), query.join(" "))
    })
}

fn method_text() -> impl Strategy<Value = String> {
    let part = || {
        prop_oneof![
            3 => word(),
            1 => Just("*".to_owned()),
            1 => word().prop_map(|word| format!("~{word}.*")),
        ]
    };
    let headers = prop::sample::subsequence(vec!["x:a", "x:b", "y:a"], 0..2);
    (part(), part(), headers)
        .prop_map(|(service, method, headers)| format!("@{service}/{method} {}", headers.join(" ")))
}

/// The values of which a route is made: hostname, age, tenant, whether the name is shared with it, the shared parts of
/// the name, and the rules.
type Made = (usize, i64, usize, bool, Vec<&'static str>, Vec<String>);

fn routes() -> impl Strategy<Value = Vec<Made>> {
    fn rules(of: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<String>> {
        let rule = prop::collection::vec(of, 1..3).prop_map(|all| all.join(","));
        prop::collection::vec(rule, 1..4)
    }
    let rules = prop_oneof![2 => rules(match_text()), 1 => rules(method_text())];
    let shared = prop::bool::weighted(0.2);
    let parts = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::sample::subsequence(vec!["/a", "/a/b", "/ab", "/a/b/a"], 1..3),
    ];
    let route = (
        0..HOSTS.len(),
        0..3_i64,
        0..TENANTS.len(),
        shared,
        parts,
        rules,
    );
    prop::collection::vec(route, 0..12)
}

/// Patterns with the hostname that ranks them.
const HOSTS: [(&str, &str); 6] = [
    ("", ""),
    ("*.com", "*.com"),
    ("*.a.com", "*.com"),
    ("*.a.com", "*.a.com"),
    ("x.a.com", "x.a.com"),
    ("x.a.com", "*.a.com"),
];

/// The last one is the Gateway's.
const TENANTS: [&str; 3] = ["team-a", "team-b", "infra"];

proptest! {
    #[test]
    fn the_index_is_the_naive_reference(
        all in routes(),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        asked in prop::collection::vec(
            (
                0..4_usize,
                path(),
                prop::sample::select(vec!["GET", "POST"]),
                (0..6_usize, 0..3_usize),
                prop::option::of(prop::sample::select(&TENANTS[..])),
            ),
            8,
        ),
    ) {
        let mut routes: Vec<(AttachedNames, Arc<HttpRoute>)> = all
            .iter()
            .enumerate()
            .map(|(index, (host, created, tenant, shared, parts, rules))| {
                let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
                let (pattern, rank) = HOSTS[*host];
                let is_exact = matches!(pattern_of(pattern), HostPattern::Exact(_));
                let parts = if is_exact { &parts[..] } else { &[] };
                let names = names_of(pattern, rank, *shared && parts.is_empty(), parts);
                (names, route_of(TENANTS[*tenant], &format!("r{index}"), *created, &rules))
            })
            .collect();
        let mut table = HttpTable::default();
        for (names, route) in &routes {
            table.insert(names, route);
        }
        for index in gone {
            if routes.is_empty() {
                break;
            }
            let (names, route) = routes.swap_remove(index.index(routes.len()));
            table.remove(&names, &route);
        }
        prop_assert!(!routes.is_empty() || table.is_empty());
        for (host, path, method, (headers, query), owner) in asked {
            let host = ["x.a.com", "y.a.com", "b.com", "org"][host];
            let query = ["", "?p=a", "?p=b&p=a&q=a"][query];
            let grpc = ["", " content-type:application/grpc"][headers / 3];
            let is_call = method == "POST" && !grpc.is_empty();
            let headers = ["", " x:a", " x:b y:a"][headers % 3];
            let text = format!("{method} {path}{query}{headers}{grpc}");
            let name = Hostname::parse(host).unwrap();
            let asked = request(&text);
            let view = View::new(&asked, None, HostnameGuard::OPEN, Steps::default());
            let may_serve = |names: &AttachedNames, route: &HttpRoute| {
                let tenant = &*route.tenant;
                names.shared
                    || !names.paths().is_empty()
                    || owner.is_none_or(|owner| owner == tenant || tenant == "infra")
            };
            // The lengths of the parts of a route that contain the path. Below are the lengths of all such parts
            // of all routes.
            let around = |names: &AttachedNames| {
                let parts = names.paths().iter().map(|part| part.as_str().to_owned());
                let parts = parts.filter(|part| path == *part || path.starts_with(&format!("{part}/")));
                parts.map(|part| part.len()).collect::<Vec<_>>()
            };
            let of_host = routes.iter().filter(|(names, _)| names.pattern.matches(&name));
            let all_around: Vec<usize> = of_host
                .flat_map(|(names, _)| around(names))
                .collect();
            let reaches = |own: usize, entry: &Entry| {
                let inner = all_around.iter().filter(|part| **part > own).min();
                inner.is_none_or(|inner| match &entry.of().unwrap().path {
                    PathMatch::Prefix(prefix) => prefix.len() <= *inner,
                    PathMatch::Exact(_)
                    | PathMatch::Regex(_)
                    | PathMatch::Method { method: Some(_), .. } => false,
                    PathMatch::Method { service, .. } => match service {
                        None => true,
                        Some(Value::Exact(service)) => format!("/{service}").len() <= *inner,
                        Some(Value::Regex(_)) => false,
                    },
                })
            };
            let mut candidates: Vec<_> = routes
                .iter()
                .filter(|(names, route)| names.pattern.matches(&name) && may_serve(names, route))
                .flat_map(|(names, route)| {
                    let rank = Reverse(names.rank().specificity());
                    let own = if names.paths().is_empty() { Some(0) } else { around(names).into_iter().max() };
                    let all = Entry::all(route, names.shared);
                    all.filter_map(move |entry| Some((Reverse(own?), rank, entry)))
                })
                .filter(|(own, _, entry)| {
                    reaches(own.0, entry)
                        && (!entry.route.grpc || is_call)
                        && entry.of().unwrap().accepts(&view)
                })
                .collect();
            candidates.sort();
            let expected = candidates.first().map_or_else(String::new, |(_, _, entry)| {
                format!("{}/{}", entry.route.key, entry.place.0)
            });
            let account = owner.map(|owner| TenantQuotas::default().of(&owner.into()));
            let guard = account.as_ref().map_or(HostnameGuard::OPEN, |owner| HostnameGuard::new(owner, "infra"));
            let found = table.find(Some(&name), &View::new(&asked, None, guard, Steps::default()));
            let found = found.map_or_else(String::new, |found| {
                format!("{}/{}", found.route.key, found.place.0)
            });
            prop_assert_eq!(found, expected, "{} {} {:?}", host, text, owner);
        }
    }
}
