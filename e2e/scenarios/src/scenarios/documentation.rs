//! The guides for admin and app team, pasted: marked blocks are run in their order.
//!
//! A line `<!-- run: NAME ATTRIBUTES -->` above a fenced block makes it part of the test. `sh` blocks are
//! run by bash; a `yaml` block is written to `file=NAME`, or applied (`apply`); the lines of a `text` block
//! (`matches`) have to appear in the output of the block before it. `fails="WORDS"`: the block has to fail
//! and say this. `retry=SECONDS`: it is run again until it succeeds. `as=admin|team`: under which identity.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::api::{self, text};
use crate::runner::Verdict;
use crate::tools::{Done, run};
use crate::wait::until;
use crate::world::{Stage, TENANT_ROLE, World, is_of_a_scenario};

/// The guides in their order, and whose they are.
const GUIDES: [(&str, &str); 2] = [
    ("docs/getting-started-admin.md", "admin"),
    ("docs/getting-started-app-team.md", "team"),
];
/// Names a file for the environment between blocks.
const ENVIRONMENT: &str = ".environment";

/// Variables that are not carried from block to block, as `export -p` prints them.
const OURS: &str = "^declare -x (PATH|KUBECONFIG|PWD|OLDPWD|SHLVL|_)(=|$)";

/// A marked block.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    name: String,
    attributes: Vec<(String, String)>,
    language: String,
    text: String,
}

impl Block {
    fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Both guides work when pasted.
pub(super) async fn the_guides_work_when_pasted(stage: &Stage) -> Result<Verdict> {
    let world = &stage.world;
    let directory = world.out.join("guides");
    tokio::fs::create_dir_all(&directory).await?;
    for link in ["charts", "policies"] {
        let link_path = directory.join(link);
        if !link_path.exists() {
            tokio::fs::symlink(world.repository.join(link), &link_path).await?;
        }
    }
    tokio::fs::write(directory.join(ENVIRONMENT), "").await?;
    let before = namespaces(world).await?;
    let result = follow(stage, &directory, &before).await;
    for namespace in namespaces(world).await? {
        if !before.contains(&namespace) {
            stage.remember(&namespace);
        }
    }
    // The whole cluster's, which the admin's guide applies; the tenant Role beside it was there before.
    let policy = world.repository.join("policies/tenant-services.yaml");
    let gone = [
        "delete",
        "--ignore-not-found",
        "-f",
        &policy.to_string_lossy(),
    ];
    world.kubectl.run(&gone).await?.must()?;
    if result.is_err() {
        // The guides' own names stand in the way of the next run.
        stage.strike().await?;
    }
    Ok(Verdict::noting(format!("{} blocks", result?)))
}

/// Those that may be the guides': other scenarios, which run beside, have names of their own.
async fn namespaces(world: &World) -> Result<Vec<String>> {
    let list = world.api.list(api::NAMESPACE, "", "").await?;
    let names = list.iter().map(api::name);
    let theirs = names.filter(|name| !is_of_a_scenario(name));
    Ok(theirs.map(str::to_owned).collect())
}

async fn follow(stage: &Stage, directory: &Path, before: &[String]) -> Result<usize> {
    let mut count = 0;
    let mut team = None;
    for (guide, whose) in GUIDES {
        let path = stage.world.repository.join(guide);
        let text = tokio::fs::read_to_string(&path).await.context(guide)?;
        let blocks = blocks(&text).context(guide)?;
        ensure!(!blocks.is_empty(), "{guide} has no marked block");
        let mut output = String::new();
        for block in blocks {
            let place = format!("{guide}:{} ({})", block.line, block.name);
            let whose = block.attribute("as").unwrap_or(whose);
            if whose == "team" && team.is_none() {
                team = Some(team_identity(stage, before).await?);
            }
            let kubeconfig = match (whose, &team) {
                ("team", Some(team)) => team.as_str(),
                _ => &stage.world.kubectl.kubeconfig().to_string_lossy(),
            };
            output = step(&stage.world, directory, kubeconfig, &block, &output)
                .await
                .context(place)?;
            count += 1;
        }
    }
    Ok(count)
}

/// The app team's kubeconfig: of the ServiceAccount to which the admin's guide bound the tenant Role.
async fn team_identity(stage: &Stage, before: &[String]) -> Result<String> {
    let world = &stage.world;
    for binding in world.api.list(api::ROLE_BINDING, "", "").await? {
        let namespace = text(&binding, "/metadata/namespace");
        let theirs = !is_of_a_scenario(namespace) && !before.iter().any(|b| b == namespace);
        if text(&binding, "/roleRef/name") == TENANT_ROLE && theirs {
            let account = text(&binding, "/subjects/0/name");
            let file = world.out.join("guide-team.kubeconfig");
            tokio::fs::write(&file, world.identity(namespace, account).await?).await?;
            return Ok(file.to_string_lossy().into_owned());
        }
    }
    bail!("the admin's guide binds {TENANT_ROLE} to nobody")
}

async fn step(
    world: &World,
    directory: &Path,
    kubeconfig: &str,
    block: &Block,
    before: &str,
) -> Result<String> {
    match (block.language.as_str(), block.attribute("file")) {
        ("yaml", Some(file)) => {
            tokio::fs::write(directory.join(file), &block.text).await?;
            Ok(String::new())
        }
        ("yaml", None) => {
            ensure!(
                block.attribute("apply").is_some(),
                "a yaml block wants `file=` or `apply`"
            );
            let script = format!(
                "kubectl apply -f - <<'END_OF_BLOCK'\n{}\nEND_OF_BLOCK\n",
                block.text
            );
            shell(world, directory, kubeconfig, &script, block).await
        }
        ("sh", _) => shell(world, directory, kubeconfig, &block.text, block).await,
        ("text", _) => {
            for line in block
                .text
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
            {
                ensure!(
                    shows(before, line),
                    "{line:?} is not in the output:\n{before}"
                );
            }
            Ok(before.to_owned())
        }
        (language, _) => bail!("a marked block of language {language:?}"),
    }
}

/// Runs a script; what it exports is there for the next one.
async fn shell(
    world: &World,
    directory: &Path,
    kubeconfig: &str,
    script: &str,
    block: &Block,
) -> Result<String> {
    // What a block exports is there for the next one, but for what says where and who we are.
    let whole = format!(
        "cd '{}'\n. ./{ENVIRONMENT}\nexec 2>&1\ntrap 'export -p | grep -vE \"{OURS}\" >{ENVIRONMENT}' EXIT\n\
         set -euo pipefail\n{script}\n",
        directory.display()
    );
    let path = world.path();
    let image = world.image("e2e");
    let chart = world.repository.join("charts/vestibule");
    let attempt = async || -> Result<Done> {
        run(
            "bash".as_ref(),
            &["-c", &whole],
            &[
                ("PATH", path.as_os_str()),
                ("KUBECONFIG", kubeconfig.as_ref()),
                ("ECHO_IMAGE", image.as_ref()),
                ("CHART", chart.as_os_str()),
                ("REPO", world.repository.as_os_str()),
            ],
            "",
        )
        .await
    };
    if let Some(words) = block.attribute("fails") {
        let said = attempt().await?.must_fail()?;
        ensure!(
            said.contains(words),
            "it fails, but does not say {words:?}: {said}"
        );
        return Ok(said);
    }
    let patience = match block.attribute("retry") {
        Some(seconds) => Duration::from_secs(seconds.parse().context("retry")?),
        None => return attempt().await?.must(),
    };
    until("the block to succeed", patience, async || {
        attempt().await?.must()
    })
    .await
}

/// Whether a line of the output is the expected one, in which `…` or `...` stands for anything.
fn shows(output: &str, expected: &str) -> bool {
    let expected = expected.replace("...", "…");
    let parts: Vec<&str> = expected.split('…').map(str::trim).collect();
    output.lines().any(|line| {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut rest = line.as_str();
        parts.iter().all(|part| {
            let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
            match rest.find(&part) {
                Some(at) => {
                    rest = &rest[at + part.len()..];
                    true
                }
                None => false,
            }
        })
    })
}

/// The marked blocks of a guide.
fn blocks(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(marker) = line
            .trim()
            .strip_prefix("<!-- run:")
            .and_then(|m| m.strip_suffix("-->"))
        else {
            continue;
        };
        let fence = lines
            .next()
            .map(|(_, line)| line.trim())
            .unwrap_or_default();
        let language = fence
            .strip_prefix("```")
            .with_context(|| format!("line {}: no block", number + 1))?;
        let mut body = Vec::new();
        loop {
            match lines.next() {
                Some((_, line)) if line.trim() == "```" => break,
                Some((_, line)) => body.push(line),
                None => bail!("line {}: the block does not end", number + 1),
            }
        }
        let (name, attributes) = attributes(marker);
        blocks.push(Block {
            line: number + 1,
            name,
            attributes,
            language: language.to_owned(),
            text: body.join("\n"),
        });
    }
    Ok(blocks)
}

/// `NAME key=value key="several words" flag`.
fn attributes(marker: &str) -> (String, Vec<(String, String)>) {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for character in marker.trim().chars().chain([' ']) {
        match character {
            '"' => quoted = !quoted,
            ' ' if !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            other => word.push(other),
        }
    }
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_default();
    let attributes = words
        .map(|word| match word.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (word, String::new()),
        })
        .collect();
    (name, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_blocks_are_found_with_their_attributes() {
        let text = "# Guide\n\n```sh\nnot run\n```\n<!-- run: refused fails=\"two words\" as=team -->\n```sh\na\nb\n```\n";
        let blocks = blocks(text).unwrap();
        assert_eq!(blocks.len(), 1);
        assert_eq!(
            (blocks[0].name.as_str(), blocks[0].text.as_str()),
            ("refused", "a\nb")
        );
        assert_eq!(blocks[0].attribute("fails"), Some("two words"));
        assert_eq!(blocks[0].attribute("as"), Some("team"));
        assert!(super::blocks("<!-- run: x -->\n```sh\n").is_err());
    }

    #[test]
    fn output_is_compared_line_by_line_with_gaps() {
        let output = "NAME     ADDRESS\nshared   172.31.240.1   True";
        assert!(shows(output, "shared … True"));
        assert!(shows(output, "shared 172.31.240.1"));
        assert!(!shows(output, "True … shared"));
    }
}
