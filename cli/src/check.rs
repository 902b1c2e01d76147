//! `vestibule check`: prints the verdict on every object of a directory and serves nothing.

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde_json::Value;
use vestibule_crds::status::Observed;
use vestibule_model::finding::Finding;
use vestibule_model::key::ObjectKey;
use vestibule_operator::status::render;
use vestibule_operator::translate::{CONTROLLER, Change, Translator};

use crate::admission::Admission;
use crate::clock;
use crate::manifests::files::{self, LookError};
use crate::manifests::source::{FileChange, ManifestFiles};
use crate::output::{Format, print};
use crate::programmed;
use crate::settings::{PolicyArgs, settings_of_check};
use crate::verdict::{ObjectContext, ObjectOutcome, ObjectVerdict, generation, summary, verdicts};

/// Prints the verdict on every object in a directory of manifests.
///
/// Exits with 0 if nothing is refused, 1 if something is, 2 if the directory cannot be read.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Directory of manifests: *.yaml, *.yml and *.json, in it and below it
    directory: PathBuf,
    /// How to print; for machines it is an array with an entry per object
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Name of the controller whose GatewayClasses count
    #[arg(long, value_name = "NAME", default_value = CONTROLLER)]
    controller_name: Arc<str>,
    #[command(flatten)]
    policy: PolicyArgs,
}

/// The line for a directory or a cluster without anything to report on.
pub(crate) const NOTHING: &str = "there is no Gateway, ListenerSet or route of Vestibule's here";

/// Runs the command.
pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let (source, changes) = match load(&args.directory) {
        Ok(loaded) => loaded,
        Err(error) => {
            writeln!(io::stderr(), "vestibule check: {error}")?;
            return Ok(ExitCode::from(2));
        }
    };
    let verdicts = judge(&source, changes, args);
    let refused = verdicts.iter().any(|v| v.outcome == ObjectOutcome::Refused);
    print(args.output, &verdicts, &Text(&verdicts))?;
    Ok(ExitCode::from(u8::from(refused)))
}

/// All files in a directory, and the objects in them.
pub(crate) fn load(directory: &Path) -> Result<(ManifestFiles, Vec<Change>), LookError> {
    let look = files::look(directory)?;
    let mut source = ManifestFiles::default();
    let unreadable = look.unreadable.into_iter();
    let files = look.files.into_iter().filter_map(|(path, stamp)| {
        let change = files::read(directory, &path, &stamp)?;
        Some((path, change))
    });
    let changes = unreadable
        .map(|(path, why)| (path, FileChange::Failed(why)))
        .chain(files);
    let changes = source.apply(changes, Instant::now());
    Ok((source, changes))
}

fn judge(source: &ManifestFiles, changes: Vec<Change>, args: &CheckArgs) -> Vec<ObjectVerdict> {
    let policy = args.policy.policy();
    let mut translator = Translator::new(settings_of_check(policy.clone(), &args.controller_name));
    let now = clock::now().as_second();
    // Without the time, no certificate would be too old or too new.
    translator.apply(std::iter::once(Change::Time(now)).chain(changes));
    let context = CheckContext {
        admission: Admission::of_all(&translator, &policy),
        translator: &translator,
        observed: now,
    };
    let mut verdicts = verdicts(source, &translator, &context);
    for verdict in &mut verdicts {
        // `run` serves what is left of such an object. A cluster does not get to see it.
        if verdict.admission.is_some() {
            verdict.outcome = ObjectOutcome::Refused;
        }
    }
    verdicts
}

struct CheckContext<'a> {
    admission: Admission,
    translator: &'a Translator,
    observed: i64,
}

impl ObjectContext for CheckContext<'_> {
    fn admission(&self, key: &ObjectKey) -> (Vec<Finding>, Option<String>) {
        self.admission.of(key)
    }

    fn status(&self, key: &ObjectKey) -> Option<Value> {
        let status = self.translator.statuses().get(key)?;
        let observed = Observed {
            generation: generation(self.translator, key),
            now: self.observed,
        };
        Some(render(
            key,
            &Value::Null,
            status,
            self.translator.merge().controller(),
            observed,
            |basis| programmed::without_proxies(basis, "A check serves nothing"),
        ))
    }
}

/// The text for people: a line for each object with findings, and how many objects there are.
struct Text<'a>(&'a [ObjectVerdict]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for verdict in self.0 {
            let quiet = matches!(
                verdict.outcome,
                ObjectOutcome::Accepted | ObjectOutcome::Ignored
            );
            if !quiet {
                writeln!(f, "{verdict}")?;
            }
        }
        writeln!(f, "{}", summary(self.0))?;
        if self.0.is_empty() {
            writeln!(f, "{NOTHING}")?;
        }
        Ok(())
    }
}
