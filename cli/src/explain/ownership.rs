//! Shows who may have a name (`HostnameGrant`) and who holds it (`HostnameClaim`), if the caller may read these
//! objects. Other callers only see what the status of their own objects says.

use jiff::Timestamp;
use vestibule_model::claim::{ClaimKey, Claimed};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey, PortKey};
use vestibule_model::names::NameDecision;
use vestibule_model::object::Object;
use vestibule_model::protocol::Group;
use vestibule_operator::translate::ClaimState;

use super::candidates::{AttachedRoute, Candidate, owner};
use super::chain::Chain;
use super::cluster_state::ClusterState;
use super::conditions::StatusSource;
use super::report::{ChainStep, Check, HolderView, ObjectView, StepOutcome};
use super::steps::{ok, step};

/// Most grants that are named.
const NAMED: usize = 5;
/// The action for a name whose holder no longer asks for it.
pub(super) const WAIT: &str =
    "wait: it goes to others when its holder has been without it for claims.gracePeriodSeconds";

/// The namespace that needs grants for a listener: that of a ListenerSet on a Gateway with grants. It is `None` if the
/// caller may not read the grants.
fn tenant<'a>(cluster_state: &ClusterState, candidate: &'a Candidate) -> Option<&'a str> {
    let ParentKey::ListenerSet(set) = &candidate.key.parent else {
        return None;
    };
    is_guarded(cluster_state, &candidate.gateway, &set.namespace).then_some(&*set.namespace)
}

/// Whether a namespace needs grants of a Gateway, and the caller may read them.
pub(super) fn is_guarded(
    cluster_state: &ClusterState,
    gateway: &ObjectName,
    namespace: &str,
) -> bool {
    *gateway.namespace != *namespace
        && cluster_state.reads_beside(Kind::HostnameGrant, &gateway.namespace)
        && cluster_state.translator.merge().is_guarded(gateway)
}

/// The grants of a Gateway that are for a namespace.
fn grants_for<'a>(
    cluster_state: &'a ClusterState,
    gateway: &'a ObjectName,
    namespace: &'a str,
) -> impl Iterator<Item = &'a HostnameGrant> {
    let merge = cluster_state.translator.merge();
    merge
        .grants_in(&gateway.namespace)
        .map(AsRef::as_ref)
        .filter(move |grant| {
            !grant.meta.deleting
                && grant.is_for(&gateway.name)
                && grant.selects(namespace, merge.labels(namespace))
        })
}

/// Whether it is known which grants of a Gateway are for a namespace. It is not known if some of them select by label,
/// and the labels of the namespace may not be read.
pub(super) fn is_told(cluster_state: &ClusterState, gateway: &ObjectName, namespace: &str) -> bool {
    let merge = cluster_state.translator.merge();
    let mut grants = merge.grants_in(&gateway.namespace);
    merge.labels(namespace).is_some()
        || cluster_state.live.is_none()
        || !grants.any(|grant| grant.is_for(&gateway.name) && grant.namespaces.selector.is_some())
}

fn key_of(grant: &HostnameGrant) -> ObjectKey {
    ObjectKey {
        kind: Kind::HostnameGrant,
        name: grant.name.clone(),
    }
}

/// The grants that give a listener's hostname to its namespace.
fn granting<'a>(
    cluster_state: &'a ClusterState,
    candidate: &'a Candidate,
) -> Vec<&'a HostnameGrant> {
    let (Some(namespace), Some(port)) = (tenant(cluster_state, candidate), candidate.port()) else {
        return Vec::new();
    };
    let listener = &candidate.listener;
    grants_for(cluster_state, &candidate.gateway, namespace)
        .filter(|grant| grant.gives(port, &listener.protocol, &listener.hostname))
        .collect()
}

/// The same for the report.
pub(super) fn grants(cluster_state: &ClusterState, candidate: &Candidate) -> Vec<ObjectView> {
    let granting = granting(cluster_state, candidate);
    granting
        .into_iter()
        .map(|grant| (&key_of(grant)).into())
        .collect()
}

/// The step for a refusal by grants, for callers who may read these: the finding, and what the namespace was granted
/// instead.
pub(super) fn refusal(
    cluster_state: &ClusterState,
    gateway: &ObjectName,
    namespace: &str,
    finding: &Finding,
) -> (String, String) {
    let all: Vec<String> = grants_for(cluster_state, gateway, namespace)
        .map(|grant| format!("{} ({})", texts(&grant.hostnames), key_of(grant)))
        .collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let instead = match all.as_slice() {
        [] => "no HostnameGrant there is for it".to_owned(),
        some => format!(
            "it was granted {}{more}",
            some.iter()
                .take(NAMED)
                .cloned()
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    let action = format!(
        "use a hostname that is granted, or have the platform admin write a HostnameGrant in namespace {}",
        gateway.namespace
    );
    (format!("{}; {instead}", finding.message), action)
}

fn texts(hostnames: &[HostPattern]) -> String {
    let named: Vec<String> = hostnames.iter().take(NAMED).map(text).collect();
    let more = match hostnames.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match named.as_slice() {
        [] => "nothing".to_owned(),
        named => format!("{}{more}", named.join(", ")),
    }
}

fn text(hostname: &HostPattern) -> String {
    match hostname {
        HostPattern::Any => "*".to_owned(),
        hostname => hostname.to_string(),
    }
}

impl Chain<'_> {
    /// The step about grants: whether the listener's hostname was granted to its namespace.
    pub(super) fn grant(&self) -> Option<ChainStep> {
        let namespace = tenant(self.cluster_state, self.candidate)?;
        let (gateway, listener) = (&self.candidate.gateway, &self.candidate.listener);
        if let Some(grant) = granting(self.cluster_state, self.candidate).first() {
            let message = format!(
                "gives namespace {namespace} {}",
                match &listener.hostname {
                    HostPattern::Any => "every hostname".to_owned(),
                    hostname => format!("hostname \"{hostname}\""),
                }
            );
            return Some(ok(
                Check::Grant,
                &key_of(grant),
                &message,
                StatusSource::Translation,
            ));
        }
        if !is_told(self.cluster_state, gateway, namespace) {
            return None;
        }
        let finding = self
            .cluster_state
            .translator
            .merge()
            .owns(
                gateway,
                namespace,
                self.candidate.port()?,
                &listener.protocol,
                &listener.hostname,
            )
            .err()?;
        let (message, action) = refusal(self.cluster_state, gateway, namespace, &finding);
        Some(step(
            Check::Grant,
            StepOutcome::Wrong,
            &super::report::listener_text(&self.candidate.key),
            finding.reason.as_str(),
            message,
            action,
        ))
    }
}

/// The claims that a listener needs to be served: to its hostname, and to the protocol of its port.
fn claims_of(candidate: &Candidate) -> Vec<ClaimKey> {
    let listener = &candidate.listener;
    let names = (listener.protocol.group() != Group::Raw)
        .then(|| ClaimKey::names(&candidate.gateway, &listener.hostname));
    let port = candidate.port().zip(listener.protocol.transport());
    let port = port.map(|(port, transport)| {
        ClaimKey::port(&PortKey {
            gateway: candidate.gateway.clone(),
            port,
            transport,
        })
    });
    names.into_iter().chain(port).collect()
}

/// The holders of the listener's hostname, of the hostnames of routes that ask for the name there, and of the name
/// itself.
pub(super) fn holders(
    cluster_state: &ClusterState,
    candidate: &Candidate,
    query: &HostPattern,
    attached: &[AttachedRoute],
    rejected: &[ObjectKey],
) -> Vec<HolderView> {
    let listener = &candidate.listener;
    let rejected = rejected.iter().filter_map(|key| {
        let route = cluster_state.translator.object(key)?.as_route()?;
        let hostnames = route.hostnames().iter().map(|(_, hostname)| hostname);
        Some(hostnames.filter(|one| one.covers(query)))
    });
    let written = attached.iter().map(|route| &route.rank);
    // These are the hostnames that are left of them on this listener.
    let left = written
        .chain(rejected.flatten())
        .filter_map(|hostname| listener.hostname.intersect(hostname));
    let owned = owner(&cluster_state.translator, &candidate.gateway, query);
    let owned = owned.filter(|_| listener.protocol.group() != Group::Raw);
    let owned = owned.map(|(names, _)| names);
    let mut all = vec![listener.hostname.clone()];
    for names in left.chain(owned) {
        if !all.contains(&names) {
            all.push(names);
        }
    }
    let keys = all
        .iter()
        .map(|names| ClaimKey::names(&candidate.gateway, names));
    keys.filter_map(|key| holder(cluster_state, &key)).collect()
}

/// The holder of a name or a port, by its `HostnameClaim`.
fn holder(cluster_state: &ClusterState, key: &ClaimKey) -> Option<HolderView> {
    let object = ObjectKey {
        kind: Kind::HostnameClaim,
        name: key.object_name(),
    };
    let claim = match cluster_state.translator.object(&object)?.as_ref() {
        Object::HostnameClaim(claim) if claim.held_key() == Some(key) => claim,
        _ => return None,
    };
    let since = claim.since;
    let state = cluster_state.translator.claim_states().get(key);
    Some(HolderView {
        namespace: claim.holder.namespace.to_string(),
        since: Timestamp::from_second(since).map_or_else(|_| String::new(), |at| at.to_string()),
        hostname: match &key.of {
            Claimed::Names(names) => names.to_string(),
            Claimed::Port(..) => String::new(),
        },
        in_use: !matches!(state, Some(ClaimState::Unused | ClaimState::Revoked)),
        object: (&object).into(),
    })
}

impl Chain<'_> {
    /// The step that the name belongs to another namespace, in words that do not name it.
    pub(super) fn taken(&self, object: &ObjectKey) -> ChainStep {
        let (reason, message, action) = NameDecision::Taken
            .finding("", self.query, &self.candidate.gateway)
            .map_or_else(
                || (Reason::HostnameConflict, String::new(), String::new()),
                |finding| (finding.reason, finding.message, finding.action),
            );
        let reason = reason.as_str();
        step(
            Check::Claim,
            StepOutcome::Wrong,
            &object.to_string(),
            reason,
            message,
            action,
        )
    }

    /// The step about claims: whether another namespace holds the listener's hostname or the name itself, if the caller
    /// may know that.
    pub(super) fn claim(&self) -> Option<ChainStep> {
        let ParentKey::ListenerSet(set) = &self.candidate.key.parent else {
            return None;
        };
        let translator = &self.cluster_state.translator;
        // A namespace may have the hostname of the listener, and still not own the name inside it. If it is not known
        // which grants are for the namespace, translation may have refused its listeners, and does not know the owner.
        let is_known = is_told(self.cluster_state, &self.candidate.gateway, &set.namespace);
        let other = is_known.then(|| self.candidate.other_owner(translator, self.query));
        let other = other.flatten();
        let other = other.map(|(names, _)| ClaimKey::names(&self.candidate.gateway, &names));
        // If the listener has lost its own hostname, the conditions of the listener say so.
        let is_inside = other
            .as_ref()
            .is_some_and(|other| !claims_of(self.candidate).contains(other));
        let held = other
            .into_iter()
            .chain(claims_of(self.candidate))
            .filter_map(|key| Some((holder(self.cluster_state, &key)?, key)));
        let held: Vec<(HolderView, ClaimKey)> = held.collect();
        // All namespaces with a name share a port and its protocol. The holder of a port matters only where nobody else
        // may use it.
        let is_alone = self.candidate.listener.protocol.group() == Group::Raw;
        let matters = |key: &ClaimKey| matches!(key.of, Claimed::Names(_)) || is_alone;
        let holder = held.into_iter().find(|(_, key)| matters(key));
        let Some((holder, key)) = holder else {
            return is_inside.then(|| self.taken(&self.candidate.key.parent.object()));
        };
        let object = ObjectKey::new(
            Kind::HostnameClaim,
            &*holder.object.namespace,
            &*holder.object.name,
        );
        let HolderView {
            namespace, since, ..
        } = &holder;
        let what = match &key.of {
            Claimed::Port(port, _) => format!("port {port}"),
            Claimed::Names(HostPattern::Any) => "every hostname that nobody else holds".to_owned(),
            Claimed::Names(names) => format!("hostname \"{names}\""),
        };
        if *namespace == *set.namespace {
            let message = format!("says that namespace {namespace} has held {what} since {since}");
            return Some(ok(
                Check::Claim,
                &object,
                &message,
                StatusSource::Translation,
            ));
        }
        // If the Gateway itself has it, the conditions of the listener say so.
        let refused = self.cluster_state.reported_on(
            &self.candidate.key.parent,
            Some(&self.candidate.key.listener),
        );
        let reason = refused.get("Conflicted").filter(|cond| cond.is("True"));
        let reason = reason.map_or("HostnameConflict", |cond| cond.reason.as_str());
        let (message, action) = if holder.in_use {
            (
                format!("namespace {namespace} has held {what} since {since}, and serves it"),
                "use another hostname; to hand it over, have its holder remove it, or take it out of \
                 its holder's HostnameGrant"
                    .to_owned(),
            )
        } else {
            (
                format!(
                    "namespace {namespace} has held {what} since {since}, and no longer uses it"
                ),
                WAIT.to_owned(),
            )
        };
        Some(step(
            Check::Claim,
            StepOutcome::Wrong,
            &object.to_string(),
            reason,
            message,
            action,
        ))
    }
}
