//! Decides whether an update changes anything by which an object is judged.

use vestibule_model::gateway::{Gateway, GatewayClass, ListenerSet};
use vestibule_model::hostname_grant::HostnameGrant;
use vestibule_model::http::HttpRoute;
use vestibule_model::object::{AcmeIssuer, Object};
use vestibule_model::parameters::GatewayParameters;
use vestibule_model::route::{PortRoute, TlsRoute};
use vestibule_model::tls_policy::BackendTlsPolicy;

/// Whether the object is being deleted, so that nothing of it counts any more.
pub(crate) fn is_deleting(object: &Object) -> bool {
    object.meta().is_some_and(|meta| meta.deleting)
}

/// Whether two versions of an object are equal in everything that Vestibule reads. Metadata are ignored, except those
/// annotations that are part of the parsed object.
pub(crate) fn same_spec(old: &Object, new: &Object) -> bool {
    macro_rules! but_for_meta {
        ($kind:ident, $old:expr, $new:expr) => {{
            let (old, new): (&$kind, &$kind) = ($old, $new);
            *new == $kind {
                meta: new.meta.clone(),
                ..old.clone()
            }
        }};
    }
    match (old, new) {
        (Object::GatewayClass(old), Object::GatewayClass(new)) => {
            but_for_meta!(GatewayClass, old, new)
        }
        (Object::Gateway(old), Object::Gateway(new)) => {
            **new
                == Gateway {
                    meta: new.meta.clone(),
                    certificates: old.certificates.with_labels_of(&new.certificates),
                    ..Gateway::clone(old)
                }
        }
        (Object::ListenerSet(old), Object::ListenerSet(new)) => {
            **new
                == ListenerSet {
                    meta: new.meta.clone(),
                    certificates: old.certificates.with_labels_of(&new.certificates),
                    ..ListenerSet::clone(old)
                }
        }
        (Object::TlsRoute(old), Object::TlsRoute(new)) => but_for_meta!(TlsRoute, old, new),
        (Object::HttpRoute(old), Object::HttpRoute(new)) => but_for_meta!(HttpRoute, old, new),
        (Object::PortRoute(old), Object::PortRoute(new)) => but_for_meta!(PortRoute, old, new),
        (Object::BackendTlsPolicy(old), Object::BackendTlsPolicy(new)) => {
            but_for_meta!(BackendTlsPolicy, old, new)
        }
        (Object::AcmeIssuer(old), Object::AcmeIssuer(new)) => but_for_meta!(AcmeIssuer, old, new),
        (Object::GatewayParameters(old), Object::GatewayParameters(new)) => {
            but_for_meta!(GatewayParameters, old, new)
        }
        (Object::HostnameGrant(old), Object::HostnameGrant(new)) => {
            but_for_meta!(HostnameGrant, old, new)
        }
        (Object::Unreadable(old_key, _, old), Object::Unreadable(new_key, _, new)) => {
            old_key == new_key && old == new
        }
        _ => false,
    }
}
