//! The domain of Vestibule: what its objects mean and what follows from them.
//!
//! The crate has pure types and functions that webhook, operator, proxy and CLI share, so that all four give the same
//! verdict. It does no I/O and has no clock and no Kubernetes client: time and objects are inputs.
//!
//! Rules are cited by their source in the Gateway API repository: a GEP ("GEP-1713"), a file of Go types
//! (`gateway_types.go`), or a conformance test. If these disagree, the conformance test counts more than the type, and
//! the type more than the GEP.

pub mod annotations;
pub mod attach;
pub mod backend_budget;
pub mod backend_key;
pub mod certificate;
pub mod challenge;
pub mod claim;
pub mod client_address;
pub mod condition;
pub mod conflict;
pub mod endpoint;
pub mod fair_total;
pub mod finding;
pub mod gateway;
pub mod grant;
pub mod hostname;
pub mod hostname_grant;
pub mod http;
pub mod issuance;
pub mod issuer;
pub mod key;
pub mod listener_budget;
pub mod merge;
pub mod meta;
pub mod names;
mod namespace_budget;
pub mod object;
pub mod origin;
pub mod ownership;
pub mod parameters;
pub mod path;
pub mod pattern;
pub mod pattern_budget;
pub mod policy;
pub mod port;
pub mod protocol;
pub mod reference;
pub mod reversed;
pub mod route;
pub mod route_budget;
mod route_bytes;
pub mod selector;
pub mod send_proxy;
pub mod service;
pub mod small;
pub mod source_budget;
pub mod tls_policy;
