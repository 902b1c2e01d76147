//! A directory of manifests: what is in it, as objects, and what changes when it changes.
//!
//! [`files`] reads it, [`tracker`] decides which files are worth reading, [`source`] turns their
//! texts into objects and keeps the last good ones, [`follow`] drives the three.

pub(crate) mod files;
pub(crate) mod follow;
pub(crate) mod source;
pub(crate) mod tracker;
