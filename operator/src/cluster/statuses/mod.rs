//! Statuses: what is to be written when ([`plan`]), and the writing.

pub mod plan;
mod steady;
