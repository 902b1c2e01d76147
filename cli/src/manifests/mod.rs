//! A directory of manifests: the objects in it, and how they change when files change.
//!
//! [`files`] reads it, [`tracker`] decides which files are worth reading, [`source`] turns their texts into objects
//! and keeps the last good ones, and [`follow`] drives the three.

pub(crate) mod files;
pub(crate) mod follow;
pub(crate) mod source;
pub(crate) mod tracker;
