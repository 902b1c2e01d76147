//! The rules of the model, as golden cases and properties.

mod attach;
mod conflict;
mod fair_total;
mod grant;
mod hostname;
mod http;
mod issuer;
mod merge;
mod names;
mod ownership;
mod paths;
mod pattern;
mod pattern_budget;
mod policy;
mod ports;
mod route_budget;
mod secrecy;
mod source_budget;
mod support;
