//! The programs that users run: `kubectl`, `helm`, `openssl`, `curl`, and the harness's own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// Longest that one program may take.
const PATIENCE: Duration = Duration::from_mins(5);

/// What a program did.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    command: String,
    /// Whether it exited with zero.
    pub(crate) ok: bool,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
}

impl Done {
    /// The output of a program that must have succeeded.
    pub(crate) fn must(self) -> Result<String> {
        if !self.ok {
            bail!("{} failed: {}{}", self.command, self.stderr, self.stdout);
        }
        Ok(self.stdout)
    }

    /// The error output of a program that must have failed.
    pub(crate) fn must_fail(self) -> Result<String> {
        if self.ok {
            bail!(
                "{} succeeded, and should not have: {}",
                self.command,
                self.stdout
            );
        }
        Ok(self.stderr + &self.stdout)
    }
}

/// Runs a program with this on its standard input.
pub(crate) async fn run<A: AsRef<OsStr>>(
    program: &Path,
    arguments: &[A],
    environment: &[(&str, &OsStr)],
    input: &str,
) -> Result<Done> {
    let mut words = vec![
        program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    ];
    words.extend(
        arguments
            .iter()
            .map(|a| a.as_ref().to_string_lossy().into_owned()),
    );
    // Scripts of the documentation are one argument of many lines.
    let command = words
        .join(" ")
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut child = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    let input = input.to_owned();
    let finished = async {
        // A program that ends before it has read all is judged by its exit status.
        let (_, output) = tokio::join!(
            async move { stdin.write_all(input.as_bytes()).await },
            child.wait_with_output()
        );
        output
    };
    let output = timeout(PATIENCE, finished)
        .await
        .with_context(|| format!("{command} took more than {} s", PATIENCE.as_secs()))??;
    Ok(Done {
        command,
        ok: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// `kubectl` under one identity.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// The program, with this kubeconfig.
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self {
            program,
            kubeconfig,
        }
    }

    /// The kubeconfig in use.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs it.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Result<Done> {
        self.feed(arguments, "").await
    }

    /// Runs it with this on its standard input.
    pub(crate) async fn feed(&self, arguments: &[&str], input: &str) -> Result<Done> {
        let environment = [("KUBECONFIG", self.kubeconfig.as_os_str())];
        run(&self.program, arguments, &environment, input).await
    }

    /// `kubectl apply` of the objects in one go.
    pub(crate) async fn apply(&self, objects: &[Value]) -> Result<Done> {
        self.feed(&["apply", "-f", "-"], &list(objects)).await
    }

    /// `kubectl apply` with the server's merge and field ownership.
    pub(crate) async fn apply_on_server(&self, objects: &[Value]) -> Result<Done> {
        self.feed(&["apply", "--server-side", "-f", "-"], &list(objects))
            .await
    }

    /// Whether the identity may do this.
    pub(crate) async fn can(&self, verb: &str, resource: &str, namespace: &str) -> Result<bool> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let subresource = format!("--subresource={subresource}");
        let done = self
            .run(&[
                "auth",
                "can-i",
                verb,
                resource,
                &subresource,
                "-n",
                namespace,
            ])
            .await?;
        match done.stdout.trim() {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => bail!(
                "kubectl auth can-i {verb} {resource}: {}{}",
                done.stdout,
                done.stderr
            ),
        }
    }
}

fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}
