//! Changes: each one updates the objects and the indexes over them, and marks the units that depend on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey};
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::Port;

use super::{Assigned, DesiredPort, Dirty, SessionKeys, Translator, set_user};

/// A change of an object, or of another input of translation.
#[derive(Debug, Clone)]
pub enum Change {
    /// The object is new or has changed.
    Put(Object),
    /// The object is gone.
    Remove(ObjectKey),
    /// The caller looked for this Secret or `ConfigMap`, and it does not exist. It has an effect only with
    /// [`Translator::reading_sources`].
    Absent(ObjectKey),
    /// Internal ports that were allocated; `None`: the port was given up. The caller has to persist an allocation
    /// before it sends this. It has an effect only with [`Binds::Allocated`](super::Binds::Allocated).
    Ports(BTreeMap<DesiredPort, Option<Port>>),
    /// The holder of each name or port; `None`: nobody holds it any more. The caller has to persist a claim before it
    /// sends this. A caller that keeps no claims itself can put `HostnameClaim` objects instead.
    Claims(BTreeMap<ClaimKey, Option<Holder>>),
    /// The namespace from which an admin takes each name; `None`: the admin no longer takes it. The caller has to
    /// persist this first, as with claims.
    Taken(BTreeMap<ClaimKey, Option<Arc<str>>>),
    /// When the holder of each name or port got it, in seconds since the epoch; `None`: nobody holds it any more. It
    /// belongs to [`Self::Claims`]. A claim without a time counts as younger than all others.
    Since(BTreeMap<ClaimKey, Option<i64>>),
    /// The addresses of the front of the Gateway with this UID; `None`: the front does not exist. It has an effect
    /// only with [`Binds::Allocated`](super::Binds::Allocated).
    Addresses(Arc<str>, Option<Assigned>),
    /// Answers to challenges of CAs; `None`: the challenge is over.
    Challenges(BTreeMap<ChallengeKey, Option<ChallengeAnswer>>),
    /// How far the certificates of these Secrets are; `None`: nobody issues a certificate into the Secret.
    Issuance(BTreeMap<ObjectName, Option<Issuance>>),
    /// The keys of sessions. Before the first ones arrive, no rule keeps sessions.
    SessionKeys(SessionKeys),
    /// The time, in seconds since the epoch. A certificate that is not valid yet is not served, and one that has
    /// expired is reported. Before the first time arrives, neither is judged.
    Time(i64),
}

impl Translator {
    pub(super) fn take(&mut self, change: Change, dirty: &mut Dirty) {
        let (key, new) = match change {
            Change::Put(mut object) => {
                object.shrink_to_fit();
                (object.key(), Some(Arc::new(object)))
            }
            Change::Remove(key) => (key, None),
            Change::Absent(key) => {
                if self.take_absent(&key) {
                    self.mark(&key, None, None, dirty);
                }
                return;
            }
            Change::Ports(ports) => return self.take_ports(ports, dirty),
            Change::Claims(changes) => return self.take_claims(changes, dirty),
            Change::Taken(changes) => return self.take_taken(changes, dirty),
            Change::Since(changes) => return self.take_since(changes, dirty),
            Change::Challenges(changes) => return self.take_challenges(changes, dirty),
            Change::Time(now) => return self.take_time(now, dirty),
            Change::SessionKeys(keys) => return self.take_session_keys(keys, dirty),
            Change::Issuance(changes) => return self.take_issuance(changes, dirty),
            Change::Addresses(uid, assigned) => return self.take_addresses(uid, assigned, dirty),
        };
        // Most events change nothing that matters here, such as those of our own writes of statuses. The old object then
        // stays. Other parts share it, and would keep it beside an equal one.
        if new.as_ref() == self.objects.get(&key) {
            return;
        }
        let old = match &new {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(&key),
        };
        self.note_presence(&key, new.is_some());
        self.note_first_policies([old.as_deref(), new.as_deref()], dirty);
        if let Some(old) = &old {
            self.index.remove(&key, old);
        }
        if let Some(new) = &new {
            self.index.insert(&key, new);
        }
        self.mark(&key, old.as_deref(), new.as_deref(), dirty);
    }

    pub(super) fn mark(
        &mut self,
        key: &ObjectKey,
        old: Option<&Object>,
        new: Option<&Object>,
        dirty: &mut Dirty,
    ) {
        let name = &key.name;
        if key.kind.is_route() || matches!(key.kind, Kind::Gateway | Kind::ListenerSet) {
            self.mark_presence(&name.namespace, dirty);
        }
        match key.kind {
            Kind::GatewayClass => {
                let class = match new {
                    Some(Object::GatewayClass(class)) => Some(class.clone()),
                    _ => None,
                };
                let affected = self.merge.put_class(&name.name, class);
                dirty.classes.insert(name.name.clone());
                self.spread(affected, dirty);
            }
            Kind::Gateway => {
                let gateway = match new {
                    Some(Object::Gateway(gateway)) => Some(Arc::clone(gateway)),
                    _ => None,
                };
                if let (Some(Object::Gateway(old)), Some(new)) = (old, &gateway)
                    && (old.issuers != new.issuers
                        || old.tls != new.tls
                        || old.meta.uid != new.meta.uid)
                {
                    // A set that names no issuer takes its Gateway's, and its listeners follow the `spec.tls` and the
                    // internal ports of the Gateway.
                    for set in self.merge.sets_of(name) {
                        let parent = ParentKey::ListenerSet(set.clone());
                        self.index.dirty_listeners(&parent, dirty);
                        dirty.parents.insert(parent);
                    }
                }
                let affected = self.merge.put_gateway(name, gateway);
                dirty.tls.insert(name.clone());
                self.mark_parent(ParentKey::Gateway(name.clone()), old, dirty);
                self.spread(affected, dirty);
            }
            Kind::ListenerSet => {
                let set = match new {
                    Some(Object::ListenerSet(set)) => Some(Arc::clone(set)),
                    _ => None,
                };
                let affected = self.merge.put_set(name, set);
                self.mark_parent(ParentKey::ListenerSet(name.clone()), old, dirty);
                self.spread(affected, dirty);
            }
            Kind::TlsRoute | Kind::TcpRoute | Kind::UdpRoute => {
                dirty.routes.insert(key.clone());
            }
            Kind::HttpRoute | Kind::GrpcRoute => {
                let route = match new {
                    Some(Object::HttpRoute(route)) => Some(route),
                    _ => None,
                };
                dirty.routes.extend(self.patterns.put(key, route));
                dirty.routes.insert(key.clone());
            }
            Kind::GatewayParameters => self.mark_parameters(name, dirty),
            Kind::Namespace => {
                let labels = match new {
                    Some(Object::Namespace(namespace)) => Some(namespace.labels.clone()),
                    _ => None,
                };
                let affected = self.merge.put_namespace(&name.name, labels);
                self.mark_tenant(&name.name, dirty);
                dirty.routes.extend(self.index.routes_in(&name.name));
                self.mark_shown_to(&name.name, dirty);
                self.spread(affected, dirty);
            }
            Kind::ReferenceGrant => self.mark_referrers([old, new], dirty),
            Kind::HostnameGrant => self.mark_grant(name, new, dirty),
            Kind::Secret => {
                self.secrets.remove(name);
                if self.source_users.contains_key(key) {
                    dirty.certificates.insert(name.clone());
                }
                self.mark_source(key, dirty);
            }
            Kind::ConfigMap => self.mark_source(key, dirty),
            Kind::AcmeIssuer | Kind::ClusterAcmeIssuer => {
                dirty.issuers.insert(key.clone());
            }
            Kind::HostnameClaim => self.take_claim_object(name, new, dirty),
            Kind::BackendTlsPolicy => self.mark_policy(key, [old, new], dirty),
            Kind::Service => {
                dirty
                    .routes
                    .extend(self.index.routes_of_service(name).cloned());
                self.dirty_backends(name, dirty);
                self.mark_policies(name, dirty);
            }
            Kind::EndpointSlice => self.mark_slice(name, [old, new], dirty),
        }
        dirty.others.insert(key.clone());
    }

    /// Marks what depends on an EndpointSlice: addresses of the release's pods, and backends. Its own addresses are
    /// judged when all changes are known.
    fn mark_slice(
        &mut self,
        name: &ObjectName,
        [old, new]: [Option<&Object>; 2],
        dirty: &mut Dirty,
    ) {
        let slice = |object: Option<&Object>| match object {
            Some(Object::EndpointSlice(slice)) => Some(slice.clone()),
            _ => None,
        };
        let (before, after) = (slice(old), slice(new));
        self.take_own_pods(before.as_ref(), after.as_ref(), dirty);
        for object in [old, new].into_iter().flatten() {
            if let Object::EndpointSlice(slice) = object
                && let Some(service) = &slice.service
            {
                let service = ObjectName::new(name.namespace.clone(), service.clone());
                self.dirty_backends(&service, dirty);
                set_user(&mut dirty.slices, name, &service, true);
            }
        }
    }

    fn mark_grant(&mut self, name: &ObjectName, new: Option<&Object>, dirty: &mut Dirty) {
        let grant = match new {
            Some(Object::HostnameGrant(grant)) => Some(Arc::clone(grant)),
            Some(Object::Unreadable(_, meta, finding)) => Some(Arc::new(
                HostnameGrant::unreadable(name.clone(), meta.clone(), finding.clone()),
            )),
            _ => None,
        };
        let affected = self.merge.put_grant(name, grant);
        self.spread(affected, dirty);
    }
}
