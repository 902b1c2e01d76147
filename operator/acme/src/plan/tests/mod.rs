//! The planner against simulated CAs, Secrets and proxies.

mod fixtures;
mod forged;
mod histories;
mod orders;
mod registrations;
mod shares;
mod simulation;
mod turns;
mod world;
