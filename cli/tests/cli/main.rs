//! The command as a process.

mod check;
mod cluster;
mod common;
mod explain;
mod run;
