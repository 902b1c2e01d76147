//! `vestibule explain`: says who serves a name, or why nobody does.

mod asked;
mod backends;
mod candidates;
mod certificate;
mod certificate_step;
mod chain;
mod checks;
pub(crate) mod cluster;
pub(crate) mod cluster_state;
pub(crate) mod conditions;
mod judge;
mod need;
mod ownership;
mod release;
mod report;
mod routes;
mod routing;
mod steps;
pub(crate) mod text;
pub(crate) mod unread;
mod unserved;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use vestibule_model::hostname::{HostPattern, HostnameError};
use vestibule_model::policy::Policy;
use vestibule_operator::translate::{CONTROLLER, Change, Translator};

use crate::output::{Format, print};
use crate::settings::{PolicyArgs, settings_of_check};
use crate::{check, clock};
use cluster::ClusterArgs;
use cluster_state::ClusterState;
use report::ServingState;
use text::Text;

/// Says who serves a hostname, or what is wrong first and what to do.
///
/// Looks at a cluster with your rights, or at a directory of manifests. Exits with 0 if the name is live,
/// 1 if it is not, 2 if that cannot be read.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A name such as shop.example.com, or a wildcard such as '*.example.com'
    #[arg(value_parser = hostname)]
    hostname: HostPattern,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Where to look, and how to say it.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Directory of manifests to look at instead of a cluster: *.yaml, *.yml and *.json, in it and below it
    directory: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
    /// Name of the controller whose GatewayClasses count
    #[arg(long, value_name = "NAME", default_value = CONTROLLER)]
    controller_name: Arc<str>,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

fn hostname(text: &str) -> Result<HostPattern, String> {
    if text.is_empty() {
        return Err("name a hostname".into());
    }
    if text == "*" {
        return Err(
            "it stands for every name; ask about one name, or a wildcard such as '*.example.com'; `vestibule status` \
             shows all listeners and routes"
                .into(),
        );
    }
    match HostPattern::parse(text) {
        // The name is converted to its A-label, as browsers do.
        Err(HostnameError::NotAscii {
            a_label: Some(a_label),
        }) => HostPattern::parse(&a_label),
        Err(HostnameError::Character('/' | ':')) => {
            return Err("name the host alone, without scheme, port and path".into());
        }
        parsed => parsed,
    }
    .map_err(|error| format!("it {error}; {}", error.action()))
}

impl PlaceArgs {
    /// Everything that exists. With `query`, it is only the part of a cluster that concerns that name.
    pub(crate) fn cluster_state(
        &self,
        query: Option<&HostPattern>,
    ) -> anyhow::Result<ClusterState> {
        let (controller, policy) = (&self.controller_name, &self.policy);
        match &self.directory {
            Some(directory) => of_directory(directory, controller, policy.policy()),
            None => cluster::read(&self.cluster, controller, policy, query),
        }
    }
}

/// The present time as an input of translation, which judges certificates by it.
fn time() -> Change {
    Change::Time(clock::now().as_second())
}

/// Reads a directory in the same way as `vestibule check`.
fn of_directory(
    directory: &Path,
    controller: &Arc<str>,
    policy: Policy,
) -> anyhow::Result<ClusterState> {
    let (source, changes) = check::load(directory)?;
    if let Some((path, (line, finding))) = source
        .files()
        .iter()
        .find_map(|(path, file)| Some((path, file.broken.as_ref()?)))
    {
        // The content of this file is not known, so no statement would be reliable.
        bail!("{}:{line}: {finding}", crate::verdict::printable(path));
    }
    let mut translator = Translator::new(settings_of_check(policy, controller));
    translator.apply([time()]);
    translator.apply(changes);
    Ok(ClusterState {
        translator,
        controller: controller.clone(),
        live: None,
    })
}

/// Runs the command.
pub(crate) fn explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let cluster_state = args.place.cluster_state(Some(&args.hostname))?;
    let report = judge::explain(&cluster_state, &args.hostname, clock::now());
    print(args.place.output, &report, &Text(&report))?;
    Ok(ExitCode::from(u8::from(report.state != ServingState::Live)))
}
