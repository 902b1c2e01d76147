//! The scenarios on a cluster, and the helpers that they run in it: backend, load balancer, clients.

mod api;
mod app;
mod applies;
mod attacks;
mod ca;
mod certificate;
mod client;
mod clock;
mod conditions;
mod curl;
mod dig;
mod echo;
mod encoding;
mod held;
mod hostile;
mod http3;
mod lb;
mod load;
mod manifests;
mod memory;
mod needles;
mod openssl;
mod proxies;
mod report;
mod requests;
mod runner;
mod scenarios;
mod tools;
mod traffic;
mod wait;
mod websocket;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::{Parser, Subcommand};

use crate::runner::print;
use crate::world::World;

/// End-to-end scenarios of Vestibule.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the scenarios on the cluster of KUBECONFIG.
    Run {
        /// Only scenarios whose name contains this (repeatable).
        #[arg(long)]
        filter: Vec<String>,
        /// Print the names and stop.
        #[arg(long)]
        list: bool,
        /// Leave the namespaces of scenarios that passed.
        #[arg(long)]
        keep: bool,
        /// A program to run beside those scenarios that run together. What it prints goes into the file
        /// `beside.log` of this run.
        #[arg(long)]
        beside: Option<PathBuf>,
    },
    /// Install the chart with the values of the scenarios, and the load balancer.
    Install,
    /// Uninstall both.
    Uninstall,
    /// Write state and logs of the release into a folder.
    Collect {
        /// Which folder.
        folder: PathBuf,
    },
    /// Print memory, CPU and image sizes of the release on the cluster of KUBECONFIG.
    Report(report::Args),
    /// Open new connections at a fixed rate, or hold some open, and count.
    Load(load::Args),
    /// Send an admission server requests that mean no good, at a fixed rate, and count.
    Hostile(hostile::Args),
    /// Be a backend.
    Echo(echo::Args),
    /// Be a backend of HTTP/3.
    Http3(http3::Args),
    /// Be the cloud's load balancer.
    Lb(lb::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    match start(Cli::parse().command).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            print(&format!("vestibule-e2e: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn start(command: Command) -> Result<bool> {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow!("a crypto provider is installed already"))?;
    match command {
        Command::Run {
            filter,
            list,
            keep,
            beside,
        } => {
            let scenarios = scenarios::all();
            if list {
                for scenario in scenarios {
                    print(&format!("{:?}\t{}", scenario.phase, scenario.name));
                }
                return Ok(true);
            }
            let world = Arc::new(World::enter().await?);
            runner::run(
                world,
                scenarios,
                &runner::Options {
                    filter,
                    keep,
                    beside,
                },
            )
            .await
        }
        Command::Install => World::enter().await?.set_up().await.map(|()| true),
        Command::Uninstall => World::enter().await?.tear_down().await.map(|()| true),
        Command::Collect { folder } => World::enter().await?.collect(&folder).await.map(|()| true),
        Command::Report(args) => report::run(&World::enter().await?, &args)
            .await
            .map(|()| true),
        Command::Load(args) => load::run_for(args).await.map(|()| true),
        Command::Hostile(args) => hostile::run_for(args).await.map(|()| true),
        Command::Echo(args) => echo::run(args).await.map(|()| true),
        Command::Http3(args) => http3::run(args).await.map(|()| true),
        Command::Lb(args) => lb::run(args).await.map(|()| true),
    }
}
