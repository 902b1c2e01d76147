//! Owns the facts that the rule needs in addition to the names: grants, the namespaces that a Gateway allows, and
//! public suffixes.

use crate::hostname::{HostPattern, Hostname};
use crate::key::ListenerKey;

/// The answers of grants (`HostnameGrant`), `allowedListeners`, `allowedRoutes` and the public suffix list for one
/// Gateway.
///
/// An answer depends only on the Gateway, its grants, and the namespace in question, and not on the objects of other
/// tenants. So after a change, only the namespaces that it concerns have to be decided again
/// ([`GatewayNames::recheck`](super::GatewayNames::recheck)). The Gateway's own namespace needs no permission, so
/// nobody asks about it.
pub trait Permissions {
    /// Whether the Gateway has grants, including those that only share names. Then a namespace has only what a grant
    /// gives it.
    fn is_guarded(&self) -> bool;

    /// The most specific of the patterns that are granted to a namespace and cover all of `names`. Entries that only
    /// share a name do not count. All patterns that cover one name lie inside each other. So there is one most specific
    /// pattern, and if any of them lies at or below some wildcard, this one does.
    fn granted(&self, namespace: &str, names: &HostPattern) -> Option<HostPattern>;

    /// Whether an entry of `sharedHostnames` or `sharedPaths` in a grant lets a namespace share a name. The paths to
    /// which its routes are then restricted are in [`Merge::shared_paths`](crate::merge::Merge::shared_paths).
    fn shares(&self, namespace: &str, name: &Hostname) -> bool;

    /// Whether the Gateway allows anything from a namespace: its ListenerSets, or its routes on some listener.
    fn lets_in(&self, namespace: &str) -> bool;

    /// Whether `listener`, which is one of the Gateway's own, admits routes of a namespace.
    fn admits(&self, listener: &ListenerKey, namespace: &str) -> bool;

    /// How many names a namespace may hold. A namespace that already holds more keeps them, and gets no further ones.
    fn most_names(&self, namespace: &str) -> usize;

    /// Whether anybody can register names directly below `name`, as below `com` and `co.uk`.
    fn is_public_suffix(&self, name: &Hostname) -> bool;
}

/// Whether a namespace may ask for `names` on a Gateway without grants. A wildcard must lie below a registrable domain.
/// Otherwise one tenant could keep all others from names below `*.com`.
///
/// [`HostPattern::Any`] is narrow in this sense although it covers everything: it stands for every name that nobody
/// else holds, so it keeps nobody from a name.
///
/// `is_public_suffix` gets the name after the `*.`. It should also return true for a name whose children are all public
/// suffixes by a wildcard rule of the list (such as `kawasaki.jp`). A plain look-up would call such a name registrable.
#[must_use]
pub fn is_narrow(names: &HostPattern, is_public_suffix: impl Fn(&Hostname) -> bool) -> bool {
    match names {
        HostPattern::Wildcard(suffix) => !is_public_suffix(suffix),
        HostPattern::Any | HostPattern::Exact(_) => true,
    }
}
