//! grant
