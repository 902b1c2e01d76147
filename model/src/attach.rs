//! Attachment: which ListenerSets may extend a Gateway, which routes may attach to a listener, and with which
//! hostnames.
//!
//! The rules come from GEP-1713 (the handshake of ListenerSets), `shared_types.go` (ParentReference), GEP-2643 and
//! `site/content/en/docs/concepts/hostnames.md` (intersection of hostnames). A reference reaches its direct parent
//! only: one to a ListenerSet reaches the listeners of that set, and one to a Gateway only `Gateway.spec.listeners`.

use crate::condition::Reason;
use crate::finding::Finding;
use crate::gateway::{Gateway, Listener, ListenerSet};
use crate::hostname::HostPattern;
use crate::key::{GATEWAY_GROUP, ListenerKey, ParentKey};
use crate::protocol::{Protocol, Transport};
use crate::reference::ParentRef;
use crate::route::{PortRoute, Route};
use crate::selector::Labels;

/// Checks whether `gateway` allows `set` to extend it. `labels` are those of the set's namespace.
///
/// # Errors
/// A finding with reason `NotAllowed`, if `spec.allowedListeners` of the Gateway leaves the namespace out.
pub fn admit_set(
    gateway: &Gateway,
    set: &ListenerSet,
    labels: Option<&Labels>,
) -> Result<(), Finding> {
    if gateway
        .allowed_listeners
        .admits(&gateway.name.namespace, &set.name.namespace, labels)
    {
        return Ok(());
    }
    Err(Finding::refused(
        Reason::NotAllowed,
        "spec.parentRef",
        format!(
            "Gateway {} does not allow ListenerSets from namespace {}",
            gateway.name, set.name.namespace
        ),
        "ask the owner of the Gateway to allow it in spec.allowedListeners.namespaces",
    ))
}

/// The kinds of routes that a listener takes, as (group, kind). There is a finding if `allowedRoutes.kinds` lists a
/// kind that the protocol of the listener does not take.
#[must_use]
pub fn supported_kinds(
    listener: &Listener,
) -> (Vec<(&'static str, &'static str)>, Option<Finding>) {
    let native: &[(&str, &str)] = match listener.protocol {
        Protocol::Tls => &[(GATEWAY_GROUP, "TLSRoute")],
        Protocol::Http | Protocol::Https => {
            &[(GATEWAY_GROUP, "HTTPRoute"), (GATEWAY_GROUP, "GRPCRoute")]
        }
        // A TLS listener takes no TCPRoutes: Gateway API allowed them for a while, and no longer does since v1.5.
        Protocol::Tcp => &[(GATEWAY_GROUP, "TCPRoute")],
        Protocol::Udp => &[(GATEWAY_GROUP, "UDPRoute")],
        Protocol::Other(_) => &[],
    };
    if listener.allowed_kinds.is_empty() {
        return (native.to_vec(), None);
    }
    let listed = |kind: &(&str, &str)| {
        listener
            .allowed_kinds
            .iter()
            .any(|(group, name)| **group == *kind.0 && **name == *kind.1)
    };
    let supported = native.iter().copied().filter(|k| listed(k)).collect();
    let foreign = listener
        .allowed_kinds
        .iter()
        .position(|(group, name)| !native.iter().any(|k| *k.0 == **group && *k.1 == **name));
    let finding = foreign.map(|index| {
        Finding::refused(
            Reason::InvalidRouteKinds,
            format!("{}.allowedRoutes.kinds[{index}]", listener.field),
            format!("a {} listener takes no such routes", listener.protocol),
            match native {
                [] => "remove it".to_owned(),
                kinds => {
                    let kinds: Vec<&str> = kinds.iter().map(|(_, kind)| *kind).collect();
                    format!("use {}, or leave kinds out", kinds.join(" or "))
                }
            },
        )
    });
    (supported, finding)
}

/// A hostname of a route, as it applies on one listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteHostname {
    /// The names that the route serves there: its hostname intersected with the listener's.
    pub matches: HostPattern,
    /// The hostname as the route has it. Routes are ranked by it (v1.7.0: "Routes rank by original hostname").
    pub rank: HostPattern,
}

/// A route attached to a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The listener.
    pub listener: ListenerKey,
    /// The hostnames that the route has in common with the listener. There is at least one.
    pub hostnames: Vec<RouteHostname>,
}

/// Judges one parent reference of a route against the listeners that its parent declares.
///
/// The reference is accepted if at least one listener takes the route. A listener that is itself not accepted takes
/// routes as well: they are counted, and they are served as soon as the listener is accepted.
///
/// # Errors
/// The finding for the first step that no listener passes: name and port (`NoMatchingParent`), kind and namespace
/// (`NotAllowedByListeners`), hostnames (`NoMatchingListenerHostname`).
pub fn attach_route(
    route: Route<'_>,
    reference: &ParentRef,
    parent: &ParentKey,
    listeners: &[Listener],
    labels: Option<&Labels>,
) -> Result<Vec<Attached>, Finding> {
    let field = reference.field();
    let namespace = &route.name().namespace;
    let selected: Vec<&Listener> = listeners
        .iter()
        .filter(|l| reference.section.as_ref().is_none_or(|s| *s == l.name))
        .filter(|l| reference.port.is_none_or(|p| l.port == Some(p)))
        .collect();
    if selected.is_empty() {
        return Err(not_declared(field, reference, parent));
    }
    let allowing: Vec<&Listener> = selected
        .into_iter()
        .filter(|l| {
            supported_kinds(l)
                .0
                .contains(&(GATEWAY_GROUP, route.kind().as_str()))
                && l.allowed_namespaces
                    .admits(&parent.name().namespace, namespace, labels)
        })
        .collect();
    if allowing.is_empty() {
        return Err(Finding::refused(
            Reason::NotAllowedByListeners,
            field,
            format!(
                "no {} of {} {} takes {}s from namespace {namespace}",
                wanted(reference),
                parent.kind(),
                parent.name(),
                route.kind(),
            ),
            format!(
                "refer to {} listener whose allowedRoutes include this namespace and kind",
                match route {
                    Route::Tls(_) => "a TLS",
                    Route::Http(_) => "an HTTP or HTTPS",
                    Route::Port(PortRoute {
                        transport: Transport::Tcp,
                        ..
                    }) => "a TCP",
                    Route::Port(_) => "a UDP",
                }
            ),
        ));
    }
    let attached: Vec<Attached> = allowing
        .into_iter()
        .filter_map(|listener| {
            let hostnames: Vec<RouteHostname> = route
                .hostnames()
                .iter()
                .filter_map(|(_, rank)| {
                    Some(RouteHostname {
                        matches: listener.hostname.intersect(rank)?,
                        rank: rank.clone(),
                    })
                })
                .collect();
            (!hostnames.is_empty()).then(|| Attached {
                listener: listener.key(parent),
                hostnames,
            })
        })
        .collect();
    if attached.is_empty() {
        let article = if reference.section.is_some() {
            ""
        } else {
            "a "
        };
        return Err(Finding::refused(
            Reason::NoMatchingListenerHostname,
            "spec.hostnames",
            format!(
                "none of the hostnames is one of {article}{} of {} {}",
                wanted(reference),
                parent.kind(),
                parent.name()
            ),
            "use hostnames that lie within a listener's hostname",
        ));
    }
    Ok(attached)
}

/// The finding for a reference that selects no listener.
fn not_declared(field: String, reference: &ParentRef, parent: &ParentKey) -> Finding {
    let any = reference.section.is_none() && reference.port.is_none();
    let article = if any { "any" } else { "a" };
    Finding::refused(
        Reason::NoMatchingParent,
        field,
        format!(
            "{} {} does not declare {article} {}",
            parent.kind(),
            parent.name(),
            wanted(reference)
        ),
        match parent {
            ParentKey::Gateway(_) => {
                "name a listener of the Gateway itself, or refer to the ListenerSet that declares it"
            }
            ParentKey::ListenerSet(_) => {
                "name one of its listeners, or leave sectionName and port out"
            }
        },
    )
}

/// The listeners that a reference selects, for a message about them. Others of the parent may be different.
fn wanted(reference: &ParentRef) -> String {
    match (&reference.section, reference.port) {
        (Some(section), Some(port)) => format!("listener {section:?} on port {port}"),
        (Some(section), None) => format!("listener {section:?}"),
        (None, Some(port)) => format!("listener on port {port}"),
        (None, None) => "listener".to_owned(),
    }
}
