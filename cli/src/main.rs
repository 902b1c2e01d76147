//! The `vestibule` command.

mod admission;
mod check;
mod clock;
mod hints;
mod manifests;
mod run;
mod settings;
mod verdict;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// One shared entrance for many tenants.
#[derive(Debug, Parser)]
#[command(name = "vestibule", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::CheckArgs),
    Run(run::RunArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Check(args) => check::check(&args),
        Command::Run(args) => run::run(args),
    }
}
