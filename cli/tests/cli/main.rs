//! The command as a process.

mod check;
mod common;
mod run;
