//! The `vestibule` command.

mod admission;
mod check;
mod clock;
mod hints;
mod manifests;
mod run;
mod settings;
mod verdict;

use std::io::{self, Write};
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

fn main() -> ExitCode {
    let (command, failure, outcome) = match Arguments::parse().command {
        Command::Check(args) => ("check", 2, check::check(&args)),
        Command::Run(args) => ("run", 1, run::run(args)),
    };
    outcome.unwrap_or_else(|error| {
        // With nobody to tell, the status has to do.
        let _ = writeln!(io::stderr(), "vestibule {command}: {}", one_line(&error));
        ExitCode::from(failure)
    })
}

/// An error and its causes, each said once.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}
