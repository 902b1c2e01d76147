//! What the rule needs to know beyond the names themselves: grants, who is let in, and public suffixes.

use crate::hostname::{HostPattern, Hostname};
use crate::key::ListenerKey;

/// What grants (`HostnameGrant`), `allowedListeners`, `allowedRoutes` and the public suffix list say about one Gateway.
///
/// Every answer depends on the namespace that is asked about and on nobody else's objects. So after a change, only
/// the namespaces that it concerns have to be looked at ([`GatewayNames::recheck`](super::GatewayNames::recheck)).
/// The Gateway's own namespace needs no permission and is never asked about.
pub trait Permissions {
    /// Whether the Gateway has grants. Then a namespace has only what a grant gives it. Grants that share count.
    fn is_guarded(&self) -> bool;

    /// Of the grant entries for a namespace that cover all of `names`, the most specific pattern; entries that share
    /// are left out. All patterns that cover one name lie inside each other, so there is always one most specific
    /// pattern, and it lies at or below a wildcard exactly if any of them does.
    fn granted(&self, namespace: &str, names: &HostPattern) -> Option<HostPattern>;

    /// Whether a grant entry with `sharedHostnames` or `sharedPaths` lets a namespace share a name. To which paths that
    /// keeps its routes is another question ([`Merge::shared_paths`](crate::merge::Merge::shared_paths)).
    fn shares(&self, namespace: &str, name: &Hostname) -> bool;

    /// Whether the Gateway lets anything of a namespace in: its ListenerSets, or its routes on some listener.
    fn lets_in(&self, namespace: &str) -> bool;

    /// Whether one of the Gateway's own listeners admits routes of a namespace.
    fn admits(&self, listener: &ListenerKey, namespace: &str) -> bool;

    /// How many names a namespace may hold. Whoever has more keeps them, and gets no other ones.
    fn most_names(&self, namespace: &str) -> usize;

    /// Whether names directly below `name` are given out to anybody, as below `com` and `co.uk`.
    fn is_public_suffix(&self, name: &Hostname) -> bool;
}

/// Whether a namespace may ask for `names` where nothing was granted: a wildcard has to lie below a registrable
/// domain, or one tenant could close `*.com` to all.
///
/// [`HostPattern::Any`] is narrow in this sense although it covers everything, since it closes nothing: it is
/// every name that nobody else holds.
///
/// `is_public_suffix` decides about the name after the `*.`. It should also say yes to a name whose children are
/// all public suffixes by a wildcard rule of the list (such as `kawasaki.jp`), which a plain look-up calls
/// registrable.
#[must_use]
pub fn is_narrow(names: &HostPattern, is_public_suffix: impl Fn(&Hostname) -> bool) -> bool {
    match names {
        HostPattern::Wildcard(suffix) => !is_public_suffix(suffix),
        HostPattern::Any | HostPattern::Exact(_) => true,
    }
}
