//! The built-in ACME engine: certificates for requests, from the CAs that issuers name.
//!
//! `plan` decides, purely; `client` asks CAs; `engine` runs what was decided. The cluster, or a
//! directory, is behind [`Effects`].

mod backoff;
mod budget;
mod challenge;
mod client;
mod clock;
mod effects;
mod engine;
mod keys;
mod leaf;
mod plan;
mod problem;
mod renewal;
mod state;

pub use self::budget::Budgets;
pub use self::clock::wall;
pub use self::effects::{
    Answered, ChallengeAck, Effects, Input, IssuerState, Observation, OrderOutcome, StoreError,
    StoredSecret, Waiting, Write, Written,
};
pub use self::engine::Engine;
pub use self::keys::{KeyError, PrivateKey};
pub use self::leaf::Leaf;
pub use self::plan::Settings;
pub use self::state::{Failed, Issued, Order, RememberedState, STATE_ANNOTATION};
