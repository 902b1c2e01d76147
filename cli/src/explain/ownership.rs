//! Who may have a name, by `HostnameGrant`s, and who holds it, by `HostnameClaim`s: as far as the caller may
//! read them. Who may not is told what the status of his own objects says.

use jiff::Timestamp;
use vestibule_model::claim::{ClaimKey, ClaimUse};
use vestibule_model::finding::Finding;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::merge::PortKey;
use vestibule_model::object::Object;
use vestibule_model::ownership::HostnameGrant;
use vestibule_operator::translate::Standing;

use super::candidates::{AttachedRoute, Candidate};
use super::chain::{Chain, ok, step};
use super::conditions::By;
use super::picture::Picture;
use super::report::{Check, HolderView, ObjectView, Outcome, Step};

/// Most grants that are named.
const NAMED: usize = 5;
/// What to do about a name whose holder has nothing for it any more.
pub(super) const WAIT: &str =
    "wait: it goes to others when its holder has been without it for claims.gracePeriodSeconds";

/// The namespace that needs grants for a listener: that of a ListenerSet on a Gateway with grants, where the
/// caller may read them.
fn tenant<'a>(picture: &Picture, candidate: &'a Candidate) -> Option<&'a str> {
    let ParentKey::ListenerSet(set) = &candidate.key.parent else {
        return None;
    };
    is_guarded(picture, &candidate.gateway, &set.namespace).then_some(&*set.namespace)
}

/// Whether a namespace needs grants of a Gateway, and the caller may read them.
pub(super) fn is_guarded(picture: &Picture, gateway: &ObjectName, namespace: &str) -> bool {
    *gateway.namespace != *namespace
        && picture.reads_beside(Kind::HostnameGrant, &gateway.namespace)
        && picture.translator.merge().is_guarded(gateway)
}

/// The grants of a Gateway that are for a namespace.
fn grants_for<'a>(
    picture: &'a Picture,
    gateway: &'a ObjectName,
    namespace: &'a str,
) -> impl Iterator<Item = &'a HostnameGrant> {
    let merge = picture.translator.merge();
    merge
        .grants_in(&gateway.namespace)
        .map(AsRef::as_ref)
        .filter(move |grant| {
            !grant.meta.deleting
                && grant.is_for(&gateway.name)
                && grant.selects(namespace, merge.labels(namespace))
        })
}

/// Whether it can be told which grants of a Gateway are for a namespace: not where some go by labels, and
/// its labels may not be read.
pub(super) fn is_told(picture: &Picture, gateway: &ObjectName, namespace: &str) -> bool {
    let merge = picture.translator.merge();
    let mut grants = merge.grants_in(&gateway.namespace);
    merge.labels(namespace).is_some()
        || picture.live.is_none()
        || !grants.any(|grant| grant.is_for(&gateway.name) && grant.namespaces.selector.is_some())
}

fn key_of(grant: &HostnameGrant) -> ObjectKey {
    ObjectKey {
        kind: Kind::HostnameGrant,
        name: grant.name.clone(),
    }
}

/// The grants that give a listener's hostname to its namespace.
fn granting<'a>(picture: &'a Picture, candidate: &'a Candidate) -> Vec<&'a HostnameGrant> {
    let (Some(namespace), Some(port)) = (tenant(picture, candidate), candidate.port()) else {
        return Vec::new();
    };
    let listener = &candidate.listener;
    grants_for(picture, &candidate.gateway, namespace)
        .filter(|grant| grant.gives(port, &listener.protocol, &listener.hostname))
        .collect()
}

/// The same for the report.
pub(super) fn grants(picture: &Picture, candidate: &Candidate) -> Vec<ObjectView> {
    let granting = granting(picture, candidate);
    granting
        .into_iter()
        .map(|grant| (&key_of(grant)).into())
        .collect()
}

/// What a refusal by grants comes to for those who may read them: the finding, with what the namespace was
/// granted instead.
pub(super) fn refusal(
    picture: &Picture,
    gateway: &ObjectName,
    namespace: &str,
    finding: &Finding,
) -> (String, String) {
    let all: Vec<String> = grants_for(picture, gateway, namespace)
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
    /// Whether the listener's hostname was granted to its namespace.
    pub(super) fn grant(&self) -> Option<Step> {
        let namespace = tenant(self.picture, self.candidate)?;
        let (gateway, listener) = (&self.candidate.gateway, &self.candidate.listener);
        if let Some(grant) = granting(self.picture, self.candidate).first() {
            let message = format!(
                "gives namespace {namespace} {}",
                match &listener.hostname {
                    HostPattern::Any => "every hostname".to_owned(),
                    hostname => format!("hostname \"{hostname}\""),
                }
            );
            return Some(ok(Check::Grant, &key_of(grant), &message, By::Translation));
        }
        if !is_told(self.picture, gateway, namespace) {
            return None;
        }
        let finding = self
            .picture
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
        let (message, action) = refusal(self.picture, gateway, namespace, &finding);
        Some(step(
            Check::Grant,
            Outcome::Wrong,
            &super::report::listener_text(&self.candidate.key),
            finding.reason.as_str(),
            message,
            action,
        ))
    }
}

/// What a listener's hostname is held as.
fn claim_of(candidate: &Candidate) -> Option<ClaimKey> {
    let listener = &candidate.listener;
    let port = PortKey {
        gateway: candidate.gateway.clone(),
        port: candidate.port()?,
        transport: listener.protocol.transport()?,
    };
    let use_ = ClaimUse::from(listener.protocol.group());
    Some(ClaimKey::new(&port, use_, &listener.hostname))
}

/// Who holds the listener's hostname, and those of TLSRoutes that want the name from it.
pub(super) fn holders(
    picture: &Picture,
    candidate: &Candidate,
    query: &HostPattern,
    attached: &[AttachedRoute],
    rejected: &[ObjectKey],
) -> Vec<HolderView> {
    let Some(own) = claim_of(candidate) else {
        return Vec::new();
    };
    let routes = rejected.iter().filter_map(|key| {
        let route = picture.translator.object(key)?.as_route()?;
        let hostnames = route.hostnames().iter().map(|(_, hostname)| hostname);
        Some((key.kind, hostnames.filter(|one| one.covers(query))))
    });
    let written = attached
        .iter()
        .map(|route| (route.key.kind, &route.rank))
        .chain(routes.flat_map(|(kind, all)| all.map(move |hostname| (kind, hostname))))
        .filter(|(kind, _)| *kind == Kind::TlsRoute);
    let port = own.port_key();
    let mut keys = vec![own];
    for (_, hostname) in written {
        // What is left of it on this listener.
        let Some(names) = candidate.listener.hostname.intersect(hostname) else {
            continue;
        };
        let key = ClaimKey::new(&port, ClaimUse::TlsRoute, &names);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.iter().filter_map(|key| holder(picture, key)).collect()
}

/// Who holds a name, as `HostnameClaim`s say. Of several it is who has held it longest.
fn holder(picture: &Picture, key: &ClaimKey) -> Option<HolderView> {
    let claims = picture
        .translator
        .objects()
        .filter_map(|(_, object)| match object.as_ref() {
            Object::HostnameClaim(claim) if claim.gateway() == key.gateway => Some(claim),
            _ => None,
        });
    let (since, namespace, claim) = claims
        .flat_map(|claim| claim.keys().map(move |(held, since)| (held, since, claim)))
        .filter(|(held, ..)| held == key)
        .map(|(_, since, claim)| (since, &claim.namespace, claim))
        .min_by(|a, b| (a.0, a.1, &a.2.name).cmp(&(b.0, b.1, &b.2.name)))?;
    let standing = picture.translator.standings().get(key);
    let object = ObjectKey {
        kind: Kind::HostnameClaim,
        name: claim.name.clone(),
    };
    Some(HolderView {
        namespace: namespace.to_string(),
        since: Timestamp::from_second(since).map_or_else(|_| String::new(), |at| at.to_string()),
        hostname: match &key.names {
            HostPattern::Any => String::new(),
            names => names.to_string(),
        },
        usage: key.use_.as_str(key.transport),
        in_use: !matches!(standing, Some(Standing::Left | Standing::Revoked)),
        object: (&object).into(),
    })
}

impl Chain<'_> {
    /// Whether another namespace holds the listener's hostname, where the caller may know.
    pub(super) fn claim(&self) -> Option<Step> {
        let ParentKey::ListenerSet(set) = &self.candidate.key.parent else {
            return None;
        };
        let key = claim_of(self.candidate)?;
        let holder = holder(self.picture, &key)?;
        let object = ObjectKey::new(
            Kind::HostnameClaim,
            &*holder.object.namespace,
            &*holder.object.name,
        );
        let HolderView {
            namespace, since, ..
        } = &holder;
        let what = match &key.names {
            HostPattern::Any => format!("port {}", key.port),
            names => format!("hostname \"{names}\" on port {}", key.port),
        };
        if *namespace == *set.namespace {
            let message = format!("says that namespace {namespace} has held {what} since {since}");
            return Some(ok(Check::Claim, &object, &message, By::Translation));
        }
        // Where the Gateway itself has it, the listener says so.
        let refused = self.picture.said_of(
            &self.candidate.key.parent,
            Some(&self.candidate.key.listener),
        );
        let reason = refused.get("Conflicted").filter(|cond| cond.is("True"));
        let reason = reason.map_or("HostnameConflict", |cond| cond.reason.as_str());
        let (message, action) = if holder.in_use {
            (
                format!("namespace {namespace} has held {what} since {since}, and serves it"),
                "use another hostname or port; to hand it over, have its holder remove it, or take it out of \
                 its holder's HostnameGrant"
                    .to_owned(),
            )
        } else {
            (
                format!(
                    "namespace {namespace} has held {what} since {since}, and has nothing for it any more"
                ),
                WAIT.to_owned(),
            )
        };
        Some(step(
            Check::Claim,
            Outcome::Wrong,
            &object.to_string(),
            reason,
            message,
            action,
        ))
    }
}
