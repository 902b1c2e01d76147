//! Histories of edits, a model of what they mean, and clients that compare.

pub(crate) mod bed;
pub(crate) mod clients;
pub(crate) mod gate;
pub(crate) mod history;
pub(crate) mod ledger;
pub(crate) mod model;
pub(crate) mod nameless;
pub(crate) mod plain;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod servers;
pub(crate) mod wire;
