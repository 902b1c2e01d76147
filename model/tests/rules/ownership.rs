//! Ownership: what grants give is read here once more in the plainest way, and after any history the merge
//! says the same, of every listener, and says each time whom a change concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use vestibule_model::attach::attach_route;
use vestibule_model::certificate::{
    AddressBlock, AlternativeNames, CertificateOptions, GrantedMailbox, Mailbox,
};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::gateway::{Gateway, Listener, ListenerSet, ListenerTls, TlsMode};
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::hostname_grant::{
    ConnectionLimits, GrantLimits, GrantedCertificates, GrantedIssuer, GrantedNamespaces,
    HostnameGrant,
};
use vestibule_model::issuer::choose;
use vestibule_model::key::{ListenerKey, ObjectName, ParentKey};
use vestibule_model::merge::{Affected, Merge};
use vestibule_model::meta::Meta;
use vestibule_model::protocol::Protocol;
use vestibule_model::reference::Reference;
use vestibule_model::route::Route;
use vestibule_model::selector::{LabelSelector, Labels, NamespaceScope, Requirement};
use vestibule_test_support::properties::keep_failures_with_cases;

use crate::support::{
    CONTROLLER, class, gateway, listener, name, parent_ref, pattern, port, route, set,
};

fn names(text: &str) -> HostPattern {
    if text == "*" {
        HostPattern::Any
    } else {
        pattern(text)
    }
}

/// A grant in `infra` of these hostnames to these namespaces.
pub(crate) fn grant(at: &str, namespaces: &[&str], hostnames: &[&str]) -> HostnameGrant {
    HostnameGrant {
        name: name(at),
        meta: Meta::default(),
        gateways: BTreeSet::new(),
        namespaces: GrantedNamespaces {
            names: namespaces.iter().map(|n| Arc::from(*n)).collect(),
            selector: None,
        },
        hostnames: hostnames.iter().map(|h| names(h)).collect(),
        shared: BTreeSet::new(),
        shared_paths: BTreeMap::new(),
        ports: BTreeSet::new(),
        protocols: BTreeSet::new(),
        issuers: None,
        certificates: Box::default(),
        limits: GrantLimits::default(),
        findings: Vec::new(),
    }
}

fn put(merge: &mut Merge, grant: &HostnameGrant) -> Affected {
    merge.put_grant(&grant.name, Some(Arc::new(grant.clone())))
}

/// An HTTPS listener with a certificate in a Secret of `namespace`.
fn https(index: usize, name: &str, host: &str, namespace: &str) -> Listener {
    let mut made = listener(index, name, 443, "HTTPS", host);
    made.tls = Some(ListenerTls {
        mode: TlsMode::Terminate,
        certificates: vec![Reference {
            group: "".into(),
            kind: "Secret".into(),
            target: ObjectName::new(namespace, name),
            field: format!("spec.listeners[{index}].tls.certificateRefs[0]"),
        }],
    });
    made
}

fn start() -> Merge {
    let mut merge = Merge::new(CONTROLLER);
    let ours: Arc<str> = "vestibule".into();
    merge.put_class(&ours, Some(class(&ours)));
    merge
}

fn with_gateway() -> Merge {
    let mut merge = start();
    merge.put_gateway(&name("infra/gw"), Some(gateway("infra/gw", vec![]).into()));
    merge
}

fn listener_key(set: &str, listener: &str) -> ListenerKey {
    ListenerKey::new(ParentKey::ListenerSet(name(set)), listener)
}

#[test]
fn a_gateway_without_grants_is_free_and_its_first_grant_closes_it() {
    let mut merge = with_gateway();
    let made = set(
        "a/s",
        "infra/gw",
        0,
        vec![listener(0, "l", 443, "TLS", "x.example")],
    );
    merge.put_set(&made.name, Some(made.clone().into()));
    let key = listener_key("a/s", "l");
    assert!(merge.claim(&key).is_some());
    // A grant for somebody else, on another Gateway: nothing of ours.
    let mut other = grant("infra/g", &["b"], &["*"]);
    other.gateways.insert("elsewhere".into());
    assert_eq!(put(&mut merge, &other).listeners.len(), 0);
    assert!(merge.claim(&key).is_some());
    other.gateways.clear();
    assert!(put(&mut merge, &other).listeners.contains(&key));
    assert!(merge.claim(&key).is_none());
    let finding = merge.not_owned(&key).unwrap();
    assert_eq!(finding.reason, Reason::HostnameNotOwned);
    assert_eq!(finding.field, "spec.listeners[0].hostname");
    assert!(finding.message.contains("infra/gw"), "{finding}");
    assert!(!finding.to_string().contains("\"b\""), "{finding}");
    // One that cannot be read gives nothing either, and counts.
    let finding = Finding::refused(Reason::Unreadable, "spec", "", "");
    let unreadable = HostnameGrant::unreadable(other.name.clone(), Meta::default(), finding);
    put(&mut merge, &unreadable);
    assert!(merge.claim(&key).is_none());
    assert!(merge.put_grant(&other.name, None).listeners.contains(&key));
    assert!(merge.claim(&key).is_some());
}

#[test]
fn hostnames_are_covered_as_a_whole() {
    let mut merge = with_gateway();
    put(
        &mut merge,
        &grant(
            "infra/g",
            &["a"],
            &["shop.example.com", "*.team.example.com"],
        ),
    );
    put(&mut merge, &grant("infra/all", &["b"], &["*"]));
    let (at, https) = (name("infra/gw"), Protocol::Https);
    let owns = |namespace: &str, names: &str| {
        let verdict = merge.owns(&at, namespace, port(443), &https, &pattern(names));
        verdict.is_ok()
    };
    for (names, expected) in [
        ("shop.example.com", true),
        ("x.team.example.com", true),
        ("y.x.team.example.com", true),
        ("*.team.example.com", true),
        ("*.x.team.example.com", true),
        ("team.example.com", false),
        ("*.shop.example.com", false),
        ("*.example.com", false),
        ("", false),
    ] {
        assert_eq!(owns("a", names), expected, "{names:?}");
        assert!(owns("b", names), "{names:?}");
        assert!(owns("infra", names), "{names:?}");
        assert!(!owns("c", names), "{names:?}");
    }
}

#[test]
fn a_port_or_protocol_that_is_not_granted_is_named() {
    let mut merge = with_gateway();
    let mut made = grant("infra/g", &["a"], &["x.example"]);
    made.ports.insert(port(443));
    made.protocols.insert(Protocol::Tls);
    put(&mut merge, &made);
    let at = name("infra/gw");
    for (number, protocol, expected) in [
        (443, "TLS", None),
        (8443, "TLS", Some("port")),
        (443, "HTTPS", Some("protocol")),
    ] {
        let protocol = Protocol::from_text(protocol);
        let verdict = merge.owns(&at, "a", port(number), &protocol, &pattern("x.example"));
        assert_eq!(verdict.err().map(|f| f.field).as_deref(), expected);
    }
}

/// CAs look for proof of a domain on ports 80 and 443, and TCP gets the connections for every hostname there.
#[test]
fn tcp_on_the_ports_of_every_name_takes_a_grant_that_says_so() {
    let verdicts = |merge: &mut Merge, namespace: &str| {
        let listeners = [(80, "TCP"), (443, "TCP"), (5432, "TCP"), (443, "UDP")];
        let listeners = listeners.into_iter().enumerate();
        let listeners = listeners.map(|(index, (number, protocol))| {
            listener(index, &format!("l{index}"), number, protocol, "")
        });
        let made = set(
            &format!("{namespace}/s"),
            "infra/gw",
            0,
            listeners.collect(),
        );
        merge.put_set(&made.name, Some(made.clone().into()));
        let refused = made.listeners.iter().map(|listener| {
            let key = listener_key(&made.name.to_string(), &listener.name);
            merge.not_owned(&key).map(|finding| finding.field.clone())
        });
        let refused: Vec<_> = refused.collect();
        let of_change = merge.ownership_of_change(None, &made);
        assert_eq!(of_change.len(), refused.iter().flatten().count());
        merge.put_set(&made.name, None);
        refused
    };
    let field = |index| Some(format!("spec.listeners[{index}].protocol"));
    let (closed, open) = ([field(0), field(1), None, None], [const { None }; 4]);
    let mut merge = with_gateway();
    assert_eq!(verdicts(&mut merge, "a"), closed);
    assert_eq!(verdicts(&mut merge, "infra"), open);
    // A grant of everything, as one begins with, does not say so.
    let mut made = grant("infra/g", &["a"], &["*"]);
    put(&mut merge, &made);
    assert_eq!(verdicts(&mut merge, "a"), closed);
    made.protocols = ["TCP", "UDP"].map(Protocol::from_text).into();
    put(&mut merge, &made);
    assert_eq!(verdicts(&mut merge, "a"), open);
    made.ports = [port(443), port(5432)].into();
    put(&mut merge, &made);
    assert_eq!(verdicts(&mut merge, "a"), [field(0), None, None, None]);
}

#[test]
fn of_a_route_what_its_namespace_owns_is_left() {
    let mut merge = with_gateway();
    let mut own = listener(0, "web", 443, "TLS", "");
    own.allowed_namespaces = NamespaceScope::All;
    merge.put_gateway(
        &name("infra/gw"),
        Some(gateway("infra/gw", vec![own.clone()]).into()),
    );
    put(&mut merge, &grant("infra/g", &["a"], &["x.example"]));
    let parent = ParentKey::Gateway(name("infra/gw"));
    let left = |hosts: &[&str]| {
        let made = route("a/r", hosts);
        let listeners = [own.clone()];
        let reference = parent_ref("gw", None, None);
        let route = Route::Tls(&made);
        let attached = attach_route(route, &reference, &parent, &listeners, None).unwrap();
        let (left, findings) = merge.owned_by_route(route, &parent, attached);
        let left: Vec<String> = left
            .iter()
            .flat_map(|attached| &attached.hostnames)
            .map(|hostname| hostname.matches.to_string())
            .collect();
        let findings: Vec<(bool, String)> = findings
            .iter()
            .map(|f| (f.refuses(), f.field.clone()))
            .collect();
        (left, findings)
    };
    assert_eq!(left(&["x.example"]), (vec!["x.example".into()], vec![]));
    assert_eq!(
        left(&["y.example", "x.example"]),
        (
            vec!["x.example".into()],
            vec![(false, "spec.hostnames[0]".into())]
        )
    );
    assert_eq!(
        left(&["y.example", "*.example"]),
        (vec![], vec![(true, "spec.hostnames[0]".into())])
    );
}

#[test]
fn admission_refuses_what_is_new_and_leaves_what_was() {
    use Reason::{HostnameNotOwned, QuotaExceeded};
    let mut merge = with_gateway();
    let mut made = grant("infra/g", &["a"], &["*.a"]);
    made.limits.listeners = Some(2);
    put(&mut merge, &made);
    let with = |hosts: &[&str]| {
        let listeners = hosts.iter().enumerate();
        let listeners = listeners.map(|(n, host)| listener(n, host, 443, "TLS", host));
        set("a/s", "infra/gw", 5, listeners.collect())
    };
    let reasons = |old: Option<&ListenerSet>, new: &ListenerSet| -> Vec<Reason> {
        let findings = merge.ownership_of_change(old, new);
        findings.iter().map(|finding| finding.reason).collect()
    };
    assert_eq!(reasons(None, &with(&["x.a", "y.a"])), []);
    assert_eq!(reasons(None, &with(&["x.a", "x.b"])), [HostnameNotOwned]);
    assert_eq!(
        reasons(None, &with(&["x.a", "y.a", "z.a"])),
        [QuotaExceeded]
    );
    // What it had is not judged again.
    let old = with(&["x.b", "x.a", "y.a", "z.a"]);
    assert_eq!(reasons(Some(&old), &old), []);
    assert_eq!(reasons(Some(&old), &with(&["x.b", "x.a"])), []);
    let more = with(&["x.b", "x.a", "y.a", "z.a", "u.a", "y.b"]);
    assert_eq!(
        reasons(Some(&old), &more),
        [HostnameNotOwned, QuotaExceeded]
    );
}

/// docs/grants.md, on changing a grant: if it is edited in place, or the new one comes first, no name is lost for a moment.
#[test]
fn a_grant_that_is_edited_takes_nothing_away_on_the_way_and_one_that_is_replaced_does() {
    let mut merge = with_gateway();
    put(&mut merge, &grant("infra/keeps-it-closed", &["b"], &["*"]));
    let old = grant("infra/g", &["a"], &["x.example"]);
    put(&mut merge, &old);
    let made = set(
        "a/s",
        "infra/gw",
        0,
        vec![listener(0, "l", 443, "TLS", "x.example")],
    );
    merge.put_set(&made.name, Some(made.clone().into()));
    let key = listener_key("a/s", "l");
    // In place.
    let mut edited = grant("infra/g", &["a", "c"], &["y.example", "*.example"]);
    edited.ports.insert(port(443));
    assert!(!put(&mut merge, &edited).listeners.contains(&key));
    // The new one first.
    put(&mut merge, &grant("infra/new", &["a"], &["x.example"]));
    assert!(!merge.put_grant(&old.name, None).listeners.contains(&key));
    assert!(merge.claim(&key).is_some());
    // Deleted and made again.
    let replaced = grant("infra/new", &["a"], &["x.example"]);
    assert!(
        merge
            .put_grant(&replaced.name, None)
            .listeners
            .contains(&key)
    );
    assert!(merge.claim(&key).is_none());
    put(&mut merge, &replaced);
    assert!(merge.claim(&key).is_some());
}

/// A grant of the same name on another port says nothing about the issuers here.
#[test]
fn issuers_are_those_of_the_grant_that_gives_the_listener() {
    let mut merge = with_gateway();
    let issuer = GrantedIssuer {
        group: "vestibule.dev".into(),
        kind: "ACMEIssuer".into(),
        name: Some("ca".into()),
    };
    let mut here = grant("infra/here", &["a"], &["x.example"]);
    here.ports.insert(port(443));
    here.issuers = Some(vec![]);
    let mut there = grant("infra/there", &["a"], &["x.example"]);
    there.ports.insert(port(8443));
    there.issuers = Some(vec![issuer.clone()]);
    let mut spoken = grant("infra/spoken", &["a"], &["x.example"]);
    spoken.protocols.insert(Protocol::Tls);
    spoken.issuers = Some(vec![issuer]);
    for made in [&here, &there, &spoken] {
        put(&mut merge, made);
    }
    let mut second = https(1, "l8443", "x.example", "a");
    second.port = Some(port(8443));
    let listeners = vec![https(0, "l443", "x.example", "a"), second];
    let mut made = set("a/s", "infra/gw", 0, listeners);
    made.issuers.acme_issuer = Some("ca".into());
    merge.put_set(&made.name, Some(made.clone().into()));
    let reason = |listener: &str| {
        let key = listener_key("a/s", listener);
        assert!(merge.not_owned(&key).is_none());
        merge.not_issued(&key).map(|finding| finding.reason)
    };
    assert_eq!(reason("l443"), Some(Reason::IssuerNotAllowed));
    assert_eq!(reason("l8443"), None);
    let refused = merge.ownership_of_change(None, &made);
    let reasons: Vec<Reason> = refused.iter().map(|finding| finding.reason).collect();
    assert_eq!(reasons, [Reason::IssuerNotAllowed]);
}

/// A set of `a` with one listener and cert-manager's issuer `ca`, whose annotations add these names.
fn adding(hostnames: &[&str], addresses: &[&str], mailboxes: &[&str]) -> ListenerSet {
    let listeners = vec![https(0, "l", "x.example", "a")];
    let mut made = set("a/s", "infra/gw", 0, listeners);
    made.issuers.cert_manager_issuer = Some("ca".into());
    let hostname = |text: &&str| Hostname::parse(text).expect("a hostname");
    let alternative_names = AlternativeNames {
        hostnames: hostnames.iter().map(hostname).collect(),
        addresses: addresses
            .iter()
            .map(|a| a.parse().expect("an address"))
            .collect(),
        mailboxes: mailboxes
            .iter()
            .map(|text| Mailbox::parse(text).expect("a mailbox"))
            .collect(),
    };
    made.certificates.options = Arc::new(CertificateOptions {
        alternative_names,
        ..CertificateOptions::default()
    });
    made
}

fn cert_manager(name: &str) -> GrantedIssuer {
    GrantedIssuer {
        group: "cert-manager.io".into(),
        kind: "Issuer".into(),
        name: Some(name.into()),
    }
}

#[test]
fn certificates_have_further_names_only_where_a_grant_says_so() {
    let mut merge = with_gateway();
    let mut given = grant("infra/g", &["a"], &["x.example", "*.team.example"]);
    let hostname = adding(&["y.team.example"], &[], &[]);
    let field = |merge: &Merge, set: &ListenerSet| merge.would_withhold(set).map(|f| f.field);
    let of = |annotation: &str| {
        Some(format!(
            "metadata.annotations[cert-manager.io/{annotation}]"
        ))
    };
    // Neither on a Gateway that is free for all, nor by a grant that is silent about it.
    assert_eq!(field(&merge, &hostname), of("alt-names"));
    put(&mut merge, &given);
    assert_eq!(field(&merge, &hostname), of("alt-names"));
    assert_eq!(field(&merge, &adding(&[], &[], &[])), None);
    *given.certificates = GrantedCertificates {
        alternative_names: true,
        addresses: vec![AddressBlock::parse("192.0.2.0/24").expect("a block")],
        mailboxes: vec![GrantedMailbox::parse("*@team.example").expect("mailboxes")],
    };
    put(&mut merge, &given);
    assert_eq!(field(&merge, &hostname), None);
    for (set, expected) in [
        (
            adding(
                &["x.example", "y.team.example"],
                &["192.0.2.9"],
                &["a@team.example"],
            ),
            None,
        ),
        // One that is not given withholds them all.
        (
            adding(&["x.example", "team.example"], &[], &[]),
            of("alt-names"),
        ),
        (adding(&["victim.example"], &[], &[]), of("alt-names")),
        (adding(&[], &["192.0.3.1"], &[]), of("ip-sans")),
        (adding(&[], &["::1"], &[]), of("ip-sans")),
        (adding(&[], &[], &["a@example"]), of("email-sans")),
        (adding(&[], &[], &["a@b.team.example"]), of("email-sans")),
    ] {
        assert_eq!(
            field(&merge, &set),
            expected,
            "{:?}",
            set.certificates.options
        );
    }
    // What gives the names says from which issuers; another grant's issuers do not count for them.
    given.issuers = Some(vec![cert_manager("other")]);
    put(&mut merge, &given);
    put(&mut merge, &grant("infra/more", &["a"], &["*"]));
    assert_eq!(field(&merge, &hostname), of("alt-names"));
    given.issuers = Some(vec![cert_manager("ca")]);
    put(&mut merge, &given);
    assert_eq!(field(&merge, &hostname), None);
    // Those of another namespace, or on another Gateway, give nothing either.
    for narrow in [
        |grant: &mut HostnameGrant| grant.namespaces.names = BTreeSet::from(["b".into()]),
        |grant: &mut HostnameGrant| grant.gateways = BTreeSet::from(["other".into()]),
        |grant: &mut HostnameGrant| grant.meta.deleting = true,
    ] {
        let mut narrowed = given.clone();
        narrow(&mut narrowed);
        put(&mut merge, &narrowed);
        assert_eq!(field(&merge, &hostname), of("alt-names"));
    }
    // Whoever writes grants needs none.
    let mut own = hostname.clone();
    own.name = name("infra/s");
    assert_eq!(field(&merge, &own), None);
}

#[test]
fn a_change_of_what_certificates_may_have_concerns_the_listeners() {
    let mut merge = with_gateway();
    let made = adding(&["y.example"], &[], &[]);
    merge.put_set(&made.name, Some(made.clone().into()));
    let key = listener_key("a/s", "l");
    assert!(merge.withheld(&made.name).is_some());
    // It keeps nobody from having the listener.
    assert!(merge.not_owned(&key).is_none() && merge.not_issued(&key).is_none());
    let mut given = grant("infra/g", &["a"], &["*"]);
    given.certificates.alternative_names = true;
    assert!(put(&mut merge, &given).listeners.contains(&key));
    assert_eq!(merge.withheld(&made.name), None);
    // Such names count like others.
    given.limits.certificates = Some(1);
    assert!(put(&mut merge, &given).listeners.contains(&key));
    let reason = merge.not_issued(&key).map(|finding| finding.reason);
    assert_eq!(reason, Some(Reason::QuotaExceeded));
    given.limits.certificates = Some(2);
    put(&mut merge, &given);
    assert_eq!(merge.not_issued(&key), None);
    assert!(merge.put_grant(&given.name, None).listeners.contains(&key));
    assert!(merge.withheld(&made.name).is_some());
}

/// A GatewayClass brings all of its Gateways at once, and a grant may be for many of them.
#[test]
fn a_class_names_each_limiting_grant_once() {
    let mut merge = with_gateway();
    for at in ["infra/second", "infra/third", "other/gw"] {
        merge.put_gateway(&name(at), Some(gateway(at, vec![]).into()));
    }
    let limiting = |at: &str| {
        let mut made = grant(at, &["a"], &["*"]);
        made.limits.connections = ConnectionLimits {
            shares: Some(2),
            most: None,
        };
        made
    };
    let for_all = limiting("infra/g");
    let mut for_two = limiting("infra/h");
    for_two.gateways = BTreeSet::from(["second".into(), "third".into()]);
    let elsewhere = limiting("other/g");
    for grant in [&for_all, &for_two, &elsewhere] {
        put(&mut merge, grant);
    }
    put(&mut merge, &grant("infra/plain", &["a"], &["*"]));
    let ours: Arc<str> = "vestibule".into();
    let each = [for_all, for_two, elsewhere].map(Arc::new);
    assert_eq!(merge.put_class(&ours, None).limiting, each);
    assert_eq!(
        merge.put_class(&ours, Some(class(&ours))).limiting,
        each,
        "the limits hold again"
    );
}

#[test]
fn limits_on_connections_are_those_of_all_gateways_together() {
    let mut merge = with_gateway();
    let stated = |shares, most| ConnectionLimits { shares, most };
    let mut given = grant("infra/g", &["a", "infra"], &["*"]);
    given.limits.connections = stated(Some(3), None);
    assert_eq!(put(&mut merge, &given).limiting.len(), 1);
    assert_eq!(merge.connection_limits("a"), stated(Some(3), None));
    assert_eq!(merge.connection_limits("b"), ConnectionLimits::default());
    // The namespace of the grant gives itself nothing.
    assert!(merge.connection_limits("infra").is_empty());
    // Of each kind, the largest counts that is stated, wherever it is stated for a Gateway that is there.
    let mut other = grant("other/g", &["a", "infra"], &["*"]);
    other.limits.connections = stated(Some(2), Some(5));
    put(&mut merge, &other);
    assert_eq!(merge.connection_limits("a"), stated(Some(3), None));
    let theirs = name("other/gw");
    let affected = merge.put_gateway(&theirs, Some(gateway("other/gw", vec![]).into()));
    assert_eq!(affected.limiting, [Arc::new(other.clone())]);
    assert_eq!(merge.connection_limits("a"), stated(Some(3), Some(5)));
    assert_eq!(merge.connection_limits("infra"), stated(Some(2), Some(5)));
    // An edit that changes nothing about Gateways or limits concerns nobody.
    let affected = merge.put_gateway(&theirs, Some(gateway("other/gw", vec![]).into()));
    assert_eq!(affected.limiting, []);
    assert!(merge.limits_connections());
    put(&mut merge, &grant("other/g", &["a"], &["*"]));
    put(&mut merge, &grant("infra/g", &["a"], &["*"]));
    assert!(!merge.limits_connections());
    assert!(merge.connection_limits("a").is_empty());
}

#[derive(Debug, Clone)]
enum Op {
    Grant(ObjectName, Option<Arc<HostnameGrant>>),
    Gateway(ObjectName, Option<Arc<Gateway>>),
    Set(ObjectName, Option<Arc<ListenerSet>>),
    Namespace(Arc<str>, Option<Labels>),
}

impl Op {
    fn apply(&self, merge: &mut Merge) -> Affected {
        match self.clone() {
            Self::Grant(name, grant) => merge.put_grant(&name, grant),
            Self::Gateway(name, gateway) => merge.put_gateway(&name, gateway),
            Self::Set(name, set) => merge.put_set(&name, set),
            Self::Namespace(name, labels) => merge.put_namespace(&name, labels),
        }
    }
}

const SETS: [&str; 5] = ["a/s", "a/t", "a-b/s", "b/s", "infra/s"];
const GATEWAYS: [&str; 2] = ["infra/gw", "infra/gw-2"];
const SPACES: [&str; 4] = ["a", "a-b", "b", "infra"];

fn some<T: Clone + std::fmt::Debug + 'static>(of: &[T]) -> impl Strategy<Value = Vec<T>> + use<T> {
    prop::sample::subsequence(of.to_vec(), 0..=of.len())
}

fn grants() -> impl Strategy<Value = HostnameGrant> {
    let limit = || prop::option::weighted(0.4, 0_u32..4);
    let connections =
        (limit(), limit()).prop_map(|(shares, most)| ConnectionLimits { shares, most });
    (
        prop::sample::select(vec!["infra/g", "infra/h", "infra/i", "a/g"]),
        prop::sample::select(vec![vec![], vec!["gw"], vec!["gw-2"]]),
        some(&["a", "a-b"]),
        any::<bool>(),
        some(&["*", "a", "*.a", "b.a"]),
        prop::sample::select(vec![vec![], vec![], vec![443]]),
        prop::sample::select(vec![None, None, Some(vec![]), Some(vec!["ca"])]),
        (limit(), limit(), connections, prop::bool::weighted(0.1)),
    )
        .prop_map(
            |(at, gateways, namespaces, labelled, hostnames, ports, issuers, rest)| {
                let (listeners, certificates, connections, deleting) = rest;
                let mut made = grant(at, &namespaces, &hostnames);
                made.gateways = gateways.into_iter().map(Arc::from).collect();
                made.namespaces.selector = labelled.then(|| LabelSelector {
                    requirements: vec![Requirement::Exists("tenant".into())],
                });
                made.ports = ports.into_iter().map(port).collect();
                made.issuers = issuers.map(|names: Vec<&str>| {
                    let issuer = |name: &str| GrantedIssuer {
                        group: "vestibule.dev".into(),
                        kind: "ACMEIssuer".into(),
                        name: Some(name.into()),
                    };
                    names.into_iter().map(issuer).collect()
                });
                made.limits = GrantLimits {
                    listeners,
                    certificates,
                    connections,
                    ..GrantLimits::default()
                };
                made.meta.deleting = deleting;
                made
            },
        )
}

fn sets() -> impl Strategy<Value = ListenerSet> {
    let listeners = prop::collection::vec(
        (
            prop::sample::select(vec![443, 443, 8443]),
            prop::sample::select(vec!["", "a", "b.a", "c.b.a", "*.a"]),
        ),
        0..4,
    );
    (
        prop::sample::select(SETS.to_vec()),
        prop::sample::select(vec!["infra/gw", "infra/gw", "infra/gw-2"]),
        0_i64..3,
        listeners,
        prop::sample::select(vec![None, Some("ca"), Some("other")]),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(at, parent, created, parts, issuer, deleting)| {
            let namespace = name(at).namespace.clone();
            let listeners = parts.into_iter().enumerate().map(|(n, (number, host))| {
                let mut made = https(n, &format!("l{n}"), host, &namespace);
                made.port = Some(port(number));
                made
            });
            let mut made = set(at, parent, created, listeners.collect());
            made.issuers.acme_issuer = issuer.map(Into::into);
            made.meta.deleting = deleting;
            made
        })
}

fn ops() -> impl Strategy<Value = Op> {
    let namespaces = (
        prop::sample::select(vec!["a", "a-b", "b"]),
        any::<bool>(),
        prop::bool::weighted(0.8),
    )
        .prop_map(|(name, tenant, there)| {
            let labels = tenant.then(|| ("tenant".to_owned(), "yes".to_owned()));
            Op::Namespace(name.into(), there.then(|| labels.into_iter().collect()))
        });
    let gateways = (
        prop::sample::select(GATEWAYS.to_vec()),
        prop::sample::select(vec![None, Some("ca")]),
        prop::bool::weighted(0.9),
    )
        .prop_map(|(at, issuer, there)| {
            let mut made = gateway(at, vec![]);
            made.issuers.acme_issuer = issuer.map(Into::into);
            Op::Gateway(name(at), there.then(|| made.into()))
        });
    prop_oneof![
        1 => namespaces,
        1 => gateways,
        4 => (grants(), prop::bool::weighted(0.7)).prop_map(|(grant, there)| {
            Op::Grant(grant.name.clone(), there.then(|| grant.into()))
        }),
        5 => (sets(), prop::bool::weighted(0.9)).prop_map(|(set, there)| {
            Op::Set(set.name.clone(), there.then(|| set.into()))
        }),
    ]
}

/// What there is.
#[derive(Debug, Default)]
struct World {
    grants: BTreeMap<ObjectName, Arc<HostnameGrant>>,
    gateways: BTreeMap<ObjectName, Arc<Gateway>>,
    sets: BTreeMap<ObjectName, Arc<ListenerSet>>,
    namespaces: BTreeMap<Arc<str>, Labels>,
}

/// Why a listener is refused, and why it gets no certificate.
type Said = (Option<Reason>, Option<Reason>);

impl World {
    fn take(&mut self, op: &Op) {
        fn set<K: Ord, V>(all: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => all.insert(key, value),
                None => all.remove(&key),
            };
        }
        match op.clone() {
            Op::Grant(name, grant) => set(&mut self.grants, name, grant),
            Op::Gateway(name, gateway) => set(&mut self.gateways, name, gateway),
            Op::Set(name, made) => set(&mut self.sets, name, made),
            Op::Namespace(name, labels) => set(&mut self.namespaces, name, labels),
        }
    }

    /// What is stated about the connections of a namespace, by grants for a Gateway that is there.
    fn connections(&self, namespace: &str) -> ConnectionLimits {
        let labels = self.namespaces.get(namespace);
        let labelled = labels.is_some_and(|labels| labels.contains_key("tenant"));
        let is_mine = |g: &&Arc<HostnameGrant>| {
            g.namespaces.names.contains(namespace) || (g.namespaces.selector.is_some() && labelled)
        };
        let counts = |g: &&Arc<HostnameGrant>| {
            let mut gateways = self.gateways.keys();
            *g.name.namespace != *namespace
                && !g.meta.deleting
                && gateways.any(|at| {
                    at.namespace == g.name.namespace
                        && (g.gateways.is_empty() || g.gateways.contains(&at.name))
                })
        };
        let mine = self.grants.values().filter(is_mine).filter(counts);
        let stated: Vec<ConnectionLimits> = mine.map(|g| g.limits.connections).collect();
        ConnectionLimits {
            shares: stated.iter().filter_map(|of| of.shares).max(),
            most: stated.iter().filter_map(|of| of.most).max(),
        }
    }

    /// Every listener that takes part, as the kind's page has it.
    fn verdicts(&self) -> BTreeMap<ListenerKey, Said> {
        let mut all = BTreeMap::new();
        for gateway in self.gateways.values() {
            for namespace in SPACES {
                self.verdicts_of(gateway, namespace, &mut all);
            }
        }
        all
    }

    fn verdicts_of(
        &self,
        gateway: &Gateway,
        namespace: &str,
        all: &mut BTreeMap<ListenerKey, Said>,
    ) {
        let here: Vec<&HostnameGrant> = self
            .grants
            .values()
            .map(AsRef::as_ref)
            .filter(|g| g.name.namespace == gateway.name.namespace)
            .filter(|g| g.gateways.is_empty() || g.gateways.contains(&gateway.name.name))
            .collect();
        let free = here.is_empty() || *gateway.name.namespace == *namespace;
        let labels = self.namespaces.get(namespace);
        let labelled = labels.is_some_and(|labels| labels.contains_key("tenant"));
        let mine: Vec<&HostnameGrant> = here
            .into_iter()
            .filter(|g| !g.meta.deleting)
            .filter(|g| {
                g.namespaces.names.contains(namespace)
                    || (g.namespaces.selector.is_some() && labelled)
            })
            .collect();
        let most = |limit: fn(&GrantLimits) -> Option<u32>| {
            let stated = mine.iter().filter_map(|g| limit(&g.limits));
            stated
                .max()
                .filter(|_| !free)
                .map_or(usize::MAX, |l| l as usize)
        };
        let mut sets: Vec<&ListenerSet> = self
            .sets
            .values()
            .map(AsRef::as_ref)
            .filter(|s| *s.name.namespace == *namespace && !s.meta.deleting)
            .filter(|s| s.gateway.as_ref() == Some(&gateway.name))
            .collect();
        sets.sort_by_key(|s| (s.meta.created, s.name.to_string()));
        let (mut listeners, mut certificates) = (0, BTreeSet::new());
        for set in sets {
            let issuer = choose(&set.issuers, &gateway.issuers, &gateway.name).unwrap();
            for listener in &set.listeners {
                let covers =
                    |g: &&&HostnameGrant| g.hostnames.iter().any(|h| h.covers(&listener.hostname));
                let opens = |g: &&HostnameGrant| {
                    g.ports.is_empty() || g.ports.contains(&listener.port.unwrap())
                };
                let said = all.entry(listener.key(&set.parent_key())).or_default();
                if !free && !mine.iter().filter(covers).any(opens) {
                    *said = (Some(Reason::HostnameNotOwned), None);
                    continue;
                }
                listeners += 1;
                if listeners > most(|l| l.listeners) {
                    *said = (Some(Reason::QuotaExceeded), None);
                }
                let HostPattern::Exact(host) = &listener.hostname else {
                    continue;
                };
                let Some(issuer) = &issuer else { continue };
                let allowed = mine.iter().filter(covers).filter(|g| opens(g)).any(|g| {
                    g.issuers.as_ref().is_none_or(|issuers| {
                        issuers
                            .iter()
                            .any(|i| i.name.as_ref() == Some(&issuer.name))
                    })
                });
                if !free && !allowed {
                    said.1 = Some(Reason::IssuerNotAllowed);
                } else if said.0.is_none() && !certificates.contains(host) {
                    if certificates.len() < most(|l| l.certificates) {
                        certificates.insert(host.clone());
                    } else {
                        said.1 = Some(Reason::QuotaExceeded);
                    }
                }
            }
        }
    }
}

fn said(merge: &Merge, world: &World) -> BTreeMap<ListenerKey, Said> {
    let reason = |finding: Option<&Finding>| finding.map(|finding| finding.reason);
    let mut all = BTreeMap::new();
    for set in world.sets.values() {
        for listener in &set.listeners {
            let key = listener.key(&set.parent_key());
            let said = (
                reason(merge.not_owned(&key)),
                reason(merge.not_issued(&key)),
            );
            let takes_part = !set.meta.deleting
                && set
                    .gateway
                    .as_ref()
                    .is_some_and(|g| world.gateways.contains_key(g));
            assert_eq!(
                merge.claim(&key).is_some(),
                takes_part && said.0.is_none() && merge.refused_name(&key).is_none(),
                "{key}"
            );
            if takes_part {
                all.insert(key, said);
            } else {
                assert_eq!(said, (None, None), "{key}");
            }
        }
    }
    all
}

/// Everything it says of every listener, to the letter.
fn texts(merge: &Merge, world: &World) -> BTreeMap<ListenerKey, String> {
    let listeners = world.sets.values().flat_map(|set| {
        let parent = set.parent_key();
        set.listeners
            .iter()
            .map(move |listener| listener.key(&parent))
    });
    listeners
        .map(|key| {
            let (owned, issued) = (merge.not_owned(&key), merge.not_issued(&key));
            let text = format!("{owned:?} {issued:?} {:?}", merge.claim(&key));
            (key, text)
        })
        .collect()
}

proptest! {
    #![proptest_config(keep_failures_with_cases(1000))]

    #[test]
    fn after_any_history_it_is_as_the_grants_read(ops in prop::collection::vec(ops(), 1..30)) {
        let mut merge = start();
        let mut world = World::default();
        for at in GATEWAYS {
            let op = Op::Gateway(name(at), Some(gateway(at, vec![]).into()));
            op.apply(&mut merge);
            world.take(&op);
        }
        let mut before = texts(&merge, &world);
        let mut limits = SPACES.map(|_| ConnectionLimits::default());
        for op in ops {
            let affected = op.apply(&mut merge);
            world.take(&op);
            prop_assert_eq!(said(&merge, &world), world.verdicts(), "{:?}", op);
            for (namespace, former) in SPACES.into_iter().zip(&mut limits) {
                let now = merge.connection_limits(namespace);
                prop_assert_eq!(now, world.connections(namespace), "{:?}: {}", op, namespace);
                if std::mem::replace(former, now) != now {
                    let selects = |grant: &Arc<HostnameGrant>| {
                        grant.selects(namespace, merge.labels(namespace))
                    };
                    let is_told = affected.limiting.iter().any(selects)
                        || matches!(&op, Op::Namespace(name, _) if **name == *namespace);
                    prop_assert!(is_told, "{:?}: {}", op, namespace);
                }
            }
            let after = texts(&merge, &world);
            for (key, text) in &after {
                if before.get(key).is_some_and(|old| old != text) {
                    prop_assert!(affected.listeners.contains(key), "{:?}: {}", op, key);
                }
            }
            before = after;
        }
    }

    /// A set that admission lets through has no listener refused by a grant that it did not have before, and
    /// takes nobody else's place under a limit.
    #[test]
    fn listener_set_that_admission_lets_through_is_within_the_grants(
        ops in prop::collection::vec(ops(), 1..20),
        mut edited in sets(),
    ) {
        let mut merge = with_gateway();
        for op in ops {
            op.apply(&mut merge);
        }
        edited.meta.deleting = false;
        let old = merge.set(&edited.name).cloned();
        if let Some(old) = &old {
            edited.meta.created = old.meta.created;
        }
        if old.as_ref().is_some_and(|old| old.meta.deleting) || merge.ownership_of_change(old.as_deref(), &edited) != vec![] {
            return Ok(());
        }
        let refused = |merge: &Merge| -> BTreeSet<ListenerKey> {
            let all = SETS.map(name).into_iter().filter_map(|at| merge.set(&at).cloned());
            all.flat_map(|set| {
                let parent = set.parent_key();
                set.listeners.iter().map(|l| l.key(&parent)).collect::<Vec<_>>()
            })
            .filter(|key| merge.not_owned(key).is_some())
            .collect()
        };
        let before = refused(&merge);
        merge.put_set(&edited.name.clone(), Some(edited.clone().into()));
        let own = edited.parent_key();
        for key in refused(&merge).difference(&before) {
            // Its own can come to be over a limit that it was over with another listener.
            let over = merge.not_owned(key).is_some_and(|f| f.reason == Reason::QuotaExceeded);
            prop_assert!(key.parent == own && over && before.iter().any(|b| b.parent == own), "{key}");
        }
        prop_assert_eq!(merge.ownership_of_change(Some(&edited), &edited), vec![]);
    }
}
