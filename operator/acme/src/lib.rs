//! The built-in ACME engine gets certificates for requests from the CAs that issuers name.
//!
//! `plan` decides what to do and is pure. `client` talks to CAs, and `engine` runs what `plan`
//! decided. [`Effects`] hides whether the cluster or a directory is behind it.

mod backoff;
mod budget;
mod challenge;
mod client;
mod clock;
mod effects;
mod engine;
mod keys;
mod leaf;
mod open_accounts;
mod plan;
mod problem;
mod renewal;
mod state;

pub use budget::Budgets;
pub use clock::wall;
pub use effects::{
    Answered, ChallengeAck, Effects, Input, IssuerState, Observation, OrderOutcome, StoreError,
    StoredSecret, WaitingCounts, Write, Written,
};
pub use engine::Engine;
pub use keys::PrivateKey;
pub use leaf::Leaf;
pub use plan::EngineSettings;
pub use state::{Failed, Issued, Order, RememberedState, STATE_ANNOTATION};
