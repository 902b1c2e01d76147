//! The domain of Vestibule: what its objects mean and what follows from them.
//!
//! Pure types and functions shared by webhook, operator, proxy and CLI, so that all four give the
//! same verdict. No I/O, no clock, no Kubernetes client: time and objects are inputs.
//!
//! Sources of the rules are cited as in the Gateway API repository: "GEP-1713", the Go types
//! (`gateway_types.go`), or the conformance tests; where they disagree, the conformance test wins
//! over the type, the type over the GEP.

pub mod annotations;
pub mod attach;
pub mod certificate;
pub mod challenge;
pub mod claim;
pub mod client_address;
pub mod condition;
pub mod conflict;
pub mod endpoint;
pub mod finding;
pub mod gateway;
pub mod grant;
pub mod hostname;
pub mod hostname_grant;
pub mod http;
pub mod issuance;
pub mod issuer;
pub mod key;
pub mod merge;
pub mod meta;
pub mod names;
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
pub mod selector;
pub mod service;
pub mod tls_policy;
