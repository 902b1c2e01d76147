//! The cluster side against a real API server, with the rights that the chart gives it and no more.
//! `VESTIBULE_TEST_KUBECONFIG` names the server; `e2e/cluster/apiserver` starts one.

mod claims;
mod crowd;
mod grants;
mod handover;
mod issuance;
mod policies;
mod services;
mod session_keys;
mod shared;
mod statuses;
mod support;
