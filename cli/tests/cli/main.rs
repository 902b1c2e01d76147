//! The command as a process.

mod acme;
mod check;
mod cluster;
mod common;
mod explain;
mod run;
