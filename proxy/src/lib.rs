//! The data plane. It accepts connections, reads the server name or the request, and then relays or answers. Its
//! configuration comes from the operator or from a file. It does not depend on Kubernetes.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod accesslog;
mod acknowledgement;
mod admin;
pub mod apply;
mod attached_names;
mod backend;
mod basis;
pub mod bind;
pub mod bounds;
mod challenge;
mod client_address;
mod client_socket;
pub mod close_reason;
mod concerned;
pub mod connection;
mod control;
mod cut;
mod deadline;
mod dial;
pub mod expiry;
mod gate;
mod grpc;
mod health;
pub mod hello;
pub mod http;
pub mod http_route;
#[cfg(test)]
mod in_memory;
mod itself;
mod keepalive;
mod lifetime;
pub mod limits;
pub mod listen;
pub mod listener;
pub mod metrics;
mod ordered_chain;
pub mod overload;
mod overload_watch;
mod owners;
mod pack;
mod pattern_map;
pub mod plane;
pub mod proxy;
pub mod proxy_header;
pub mod quota;
mod rate;
mod record;
pub mod relay;
mod replayed;
mod retry_budget;
mod shares;
mod shutdown;
mod side;
mod slot_map;
mod slots;
mod splice;
pub mod table;
pub mod tenants;
pub mod terminate;
mod tried;
pub mod udp;
mod udp_places;
mod upstream;
mod validation;
mod weight;
pub mod worker;
mod worker_choice;

pub use proxy::{ConfigSource, Proxy, ProxyConfig};
