//! condition
