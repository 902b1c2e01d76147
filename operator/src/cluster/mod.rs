//! The operator in a cluster: watches, translates, publishes, and writes what follows.

mod clock;
pub mod lease;
pub mod metrics;
pub mod ports;
pub mod ready;
pub mod services;
pub mod statuses;

/// Label that says who made an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label with the UID of the Gateway that a Service is for.
const GATEWAY_UID: &str = "vestibule.dev/gateway-uid";
