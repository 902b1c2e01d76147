//! Certificates of Vestibule's own servers: an internal authority, what it signs, and the bundle that
//! its clients trust.

pub mod rotation;
#[cfg(test)]
mod rotation_tests;
