//! Owns HTTPRoutes and GRPCRoutes as requests see them: which rule takes a request, and how the rule treats it. The
//! module `http` serves requests by them.

pub(crate) mod cors;
pub(crate) mod external_auth;
pub(crate) mod filter;
pub(crate) mod header_edit;
pub(crate) mod mirror;
pub(crate) mod retry_policy;
pub(crate) mod route;
pub mod session;
pub(crate) mod table;
pub(crate) mod view;

pub use route::HttpRoute;
pub(crate) use table::HttpTable;
