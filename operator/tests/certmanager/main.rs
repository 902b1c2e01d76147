//! The cert-manager engine against a real API server and the real cert-manager: each test starts servers of
//! its own, since cert-manager works for a whole cluster. `VESTIBULE_TEST_KUBECONFIG` says that the tools to
//! do so are there; the server that it names is not used.

mod engine;
mod gate;
mod precedence;
mod shim;
mod support;
