//! Lists what could not be read, so that a reader knows what the report may lack: each object for programs, and
//! grouped by the missing right for people.

use std::collections::BTreeMap;

use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;

use super::cluster_state::{ClusterState, Unread};

/// Everything that the caller may not read, one line for each.
pub(crate) fn each(cluster_state: &ClusterState) -> Vec<String> {
    let Some(live) = &cluster_state.live else {
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
    kinds.chain(objects).chain(release(cluster_state)).collect()
}

/// The same, with one line for all objects of a sort.
pub(crate) fn grouped(cluster_state: &ClusterState) -> Vec<String> {
    let Some(live) = &cluster_state.live else {
        return Vec::new();
    };
    let mut groups: BTreeMap<(u8, String), Vec<String>> = BTreeMap::new();
    let mut add = |order: u8, what: String, one: String| {
        groups.entry((order, what)).or_default().push(one);
    };
    for (kind, unread) in &live.unread {
        match unread {
            Unread::Everywhere => add(0, "you may not list".into(), kind.to_string()),
            Unread::Elsewhere(namespace) => {
                let what = format!("you may not list outside namespace {namespace}");
                add(1, what, kind.to_string());
            }
        }
    }
    for key in &live.denied {
        match key.kind {
            Kind::EndpointSlice => {
                let what = "you may not list the endpoints of";
                add(3, what.into(), format!("Service {}", key.name));
            }
            Kind::ReferenceGrant => {
                let what = "you may not list ReferenceGrant in namespace";
                add(4, what.into(), key.name.namespace.to_string());
            }
            _ => add(2, "you may not get".into(), key.to_string()),
        }
    }
    let lines = groups
        .into_iter()
        .map(|((_, what), all)| format!("{what}: {}", all.join(", ")));
    lines.chain(release(cluster_state)).collect()
}

/// The line about the admission settings of the release, if they are needed and not known.
fn release(cluster_state: &ClusterState) -> Option<String> {
    let hidden = cluster_state.live.as_ref()?.release_hidden && cluster_state.is_whole();
    hidden.then(|| {
        "Deployment of the operator: you may not list them, so admission is taken to be as \
         --admission-mode and --exempt-namespace say"
            .to_owned()
    })
}

/// Objects whose listeners or hostnames are not known, because they cannot be decoded.
pub(super) fn undecoded(cluster_state: &ClusterState) -> impl Iterator<Item = String> {
    let objects = cluster_state.translator.objects();
    objects.filter_map(|(key, object)| match object.as_ref() {
        Object::Unreadable(_, _, finding) if counts(key) => Some(format!("{key}: {finding}")),
        _ => None,
    })
}

/// Whether an object can affect which listener or route serves a name.
fn counts(key: &ObjectKey) -> bool {
    let kinds = [
        Kind::Gateway,
        Kind::ListenerSet,
        Kind::HostnameGrant,
        Kind::HostnameClaim,
    ];
    key.kind.is_route() || kinds.contains(&key.kind)
}
