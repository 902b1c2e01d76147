//! `vestibule status` gives an overview of Gateways, ListenerSets and routes, with problems first.

mod overview;

use std::fmt;
use std::process::ExitCode;

use clap::Args;

use crate::check::NOTHING;
use crate::explain::PlaceArgs;
use crate::explain::text::write_unread;
use crate::output::print;
use overview::{ObjectHealth, Overview, Row, overview};

/// Prints the state of Gateways, ListenerSets and routes, problems first.
///
/// Looks at a cluster with your rights (with --namespace only at that one), or at a directory of manifests.
/// Exits with 0 if nothing is wrong, 1 if something is, 2 if that cannot be read.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    place: PlaceArgs,
}

/// Runs the command.
pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let cluster_state = args.place.cluster_state(None)?;
    let overview = overview(&cluster_state, args.place.cluster.namespace.as_deref());
    print(args.place.output, &overview, &Text(&overview))?;
    let wrong = overview
        .objects
        .iter()
        .any(|row| row.health == ObjectHealth::Wrong);
    Ok(ExitCode::from(u8::from(wrong)))
}

struct Text<'a>(&'a Overview);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = &self.0.objects;
        let width = rows.iter().map(|row| subject(row).len()).max().unwrap_or(0);
        for row in rows {
            let mark = match row.health {
                ObjectHealth::Wrong => "WRONG",
                ObjectHealth::Waiting => "waiting",
                ObjectHealth::Warning => "warning",
                ObjectHealth::Ok => "ok",
            };
            let subject = subject(row);
            match row.problems.as_slice() {
                [] => writeln!(f, "{mark:<8} {subject:<width$}  {}", row.summary)?,
                [first, rest @ ..] => {
                    writeln!(f, "{mark:<8} {subject:<width$}  {first}")?;
                    for problem in rest {
                        writeln!(f, "{:<8} {:<width$}  {problem}", "", "")?;
                    }
                }
            }
        }
        let count = |health| rows.iter().filter(|row| row.health == health).count();
        writeln!(
            f,
            "{} {}: {} wrong, {} waiting, {} with warnings, {} ok",
            rows.len(),
            if rows.len() == 1 { "object" } else { "objects" },
            count(ObjectHealth::Wrong),
            count(ObjectHealth::Waiting),
            count(ObjectHealth::Warning),
            count(ObjectHealth::Ok)
        )?;
        if rows.is_empty() {
            writeln!(f, "{NOTHING}")?;
        }
        write_unread(f, &self.0.unread_lines)
    }
}

fn subject(row: &Row) -> String {
    match row.namespace.as_str() {
        "" => format!("{} {}", row.kind, row.name),
        namespace => format!("{} {namespace}/{}", row.kind, row.name),
    }
}
