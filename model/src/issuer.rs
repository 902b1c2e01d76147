//! issuer
