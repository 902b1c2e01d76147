//! The `vestibule` command.

mod admission;
mod backend;
mod check;
mod clock;
mod explain;
mod hints;
mod manifests;
mod output;
mod programmed;
mod run;
mod settings;
mod status;
mod verdict;

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use mimalloc::MiMalloc;

/// `docs/adr/0027-memory-that-is-given-back.md` says why.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Name of the command as a plugin of kubectl.
const PLUGIN: &str = "kubectl-vestibule";

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
    Explain(Box<explain::ExplainArgs>),
    Run(run::RunArgs),
    Status(Box<status::StatusArgs>),
}

fn main() -> ExitCode {
    let (command, failure, outcome) = match arguments().command {
        Command::Check(args) => ("check", 2, check::check(&args)),
        Command::Explain(args) => ("explain", 2, explain::explain(&args)),
        Command::Run(args) => ("run", 1, run::run(args)),
        Command::Status(args) => ("status", 2, status::status(&args)),
    };
    outcome.unwrap_or_else(|error| {
        // If standard error is closed, the exit status alone has to be enough.
        let _ = writeln!(io::stderr(), "vestibule {command}: {}", one_line(&error));
        ExitCode::from(failure)
    })
}

/// The arguments. If the command runs as `kubectl-vestibule`, which kubectl does for `kubectl vestibule`, the help
/// shows it under that name.
fn arguments() -> Arguments {
    let own = env::args_os().next().map(PathBuf::from);
    let plugin = own
        .as_ref()
        .and_then(|own| own.file_stem()?.to_str())
        .is_some_and(|name| name == PLUGIN);
    let command = Arguments::command();
    let command = if plugin {
        command
            .name("kubectl vestibule")
            .bin_name("kubectl vestibule")
    } else {
        command
    };
    let matches = command.get_matches();
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// An error and its causes on one line, each of them once.
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
