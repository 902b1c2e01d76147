//! One size of the scale bench: a process that is the operator, with a vestibule-proxy beside it. Told
//! by lines on standard input what to do next; answers each with a line of JSON.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use vestibule_operator::publish::{self, Publisher};

use super::control::{BATCH, Control};
use super::counted;
use super::probe::{self, Probe, Request};
use super::world::{Answer, Edit, Routes, World, pages};
use crate::child::{Guarded, allow_loopback};
use crate::{proc, sys};

/// Name of the proxy, and of the one that takes its place.
const PROXY: &str = "proxy";
/// Longest that anything may take.
const PATIENCE: Duration = Duration::from_mins(10);
/// Longest wait without a look at whether the proxy lives.
const LOOK: Duration = Duration::from_secs(1);
/// Between two edits, so that each is alone.
const PAUSE: Duration = Duration::from_millis(4);
/// Before an edit that is the first after a pause.
const REST: Duration = Duration::from_millis(500);
/// Edits of each kind that are made before those that count.
const WARM_UP: usize = 3;
const MEBIBYTE: f64 = 1_048_576.0;

/// Arguments of one part.
#[derive(clap::Args, Debug)]
pub(crate) struct PartArgs {
    /// ListenerSets.
    #[arg(long)]
    sets: usize,
    /// Namespaces that they are spread over.
    #[arg(long)]
    namespaces: usize,
    /// Kind of route.
    #[arg(long)]
    routes: Routes,
    /// vestibule-proxy
    #[arg(long)]
    proxy: PathBuf,
    /// The core the proxies run on.
    #[arg(long)]
    proxy_core: usize,
    /// First of the ports that are taken: the stream, the proxy's admin endpoint, and internal ports.
    #[arg(long)]
    port: u16,
    /// Where the proxies' logs go.
    #[arg(long)]
    folder: PathBuf,
}

/// What a process has used.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Used {
    /// Heap, stacks and the like, MiB.
    pub(crate) heap: f64,
    /// Resident set, MiB.
    pub(crate) resident: f64,
    /// Most that was ever resident, MiB.
    pub(crate) peak: f64,
    /// CPU so far, seconds.
    pub(crate) cpu: f64,
}

impl Used {
    pub(crate) fn of(pid: u32) -> Self {
        let memory = proc::memory_alone(pid);
        Self {
            heap: memory.user as f64 / MEBIBYTE,
            resident: memory.resident as f64 / MEBIBYTE,
            peak: proc::peak(pid) as f64 / MEBIBYTE,
            cpu: proc::cpu(pid).as_secs_f64(),
        }
    }
}

/// Figures of the time in which all objects of the teams are brought in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Loaded {
    /// Objects.
    pub(crate) objects: usize,
    /// Resources that follow from them.
    pub(crate) resources: usize,
    /// Names that are held, and the `HostnameClaim`s that say so.
    pub(crate) names: usize,
    pub(crate) claims: usize,
    /// Certificates that an engine is asked for.
    pub(crate) requests: usize,
    /// Internal ports.
    pub(crate) ports: usize,
    /// Writes of claims, and reads of Secrets that came before they were used.
    pub(crate) claim_writes: u64,
    pub(crate) reads: u64,
    /// Seconds until every object had its turn in the queue and was translated, and the number of turns.
    pub(crate) translated: f64,
    pub(crate) turns: u64,
    /// Seconds until everything was acknowledged.
    pub(crate) acked: f64,
    /// Seconds until every status was written, Programmed=True.
    pub(crate) programmed: f64,
    /// Statuses written.
    pub(crate) writes: u64,
    /// Before anything came, and after.
    pub(crate) operator: [Used; 2],
    /// The same of the proxy.
    pub(crate) proxy: [Used; 2],
    /// Seconds from the start of a fresh proxy's process to its acknowledgement of everything.
    pub(crate) fresh: f64,
    /// Bytes sent to it.
    pub(crate) fresh_bytes: u64,
    /// What it has used by then.
    pub(crate) fresh_used: Used,
}

/// One edit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Edited {
    /// Its kind.
    pub(crate) edit: Edit,
    /// Milliseconds to the acknowledgement.
    pub(crate) acked: f64,
    /// Milliseconds to the first answer that shows it.
    pub(crate) served: f64,
    /// Bytes of the batches sent for it.
    pub(crate) bytes: u64,
    /// Statuses written for it.
    pub(crate) writes: u64,
    /// Claims written for it.
    pub(crate) claims: u64,
    /// Asked again since the answer did not show it though it was acknowledged.
    pub(crate) late: u32,
}

/// One round of edits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Each kind once, each after a pause in which nobody did anything.
    pub(crate) firsts: Vec<Edited>,
    /// Each, measured, after some that warmed everything up.
    pub(crate) edits: Vec<Edited>,
    /// Edits back to back, without traffic.
    pub(crate) burst: usize,
    /// Seconds they took, until the last was acknowledged and every status written.
    pub(crate) burst_seconds: f64,
    /// CPU of the operator for them, seconds.
    pub(crate) burst_operator: f64,
    /// CPU of the proxy for them, seconds.
    pub(crate) burst_proxy: f64,
}

/// Runs a part until its standard input ends.
pub(crate) fn run(args: &PartArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    // On the main thread: the kernel ends the proxies when the thread that started them ends.
    let done = runtime.block_on(serve(args));
    runtime.shutdown_background();
    done
}

async fn serve(args: &PartArgs) -> Result<()> {
    let mut part = Part::start(args).await?;
    say(&part.load(args).await?)?;
    let mut lines = std::io::stdin().lock().lines();
    while let Some(line) = lines.next().transpose()? {
        let count: usize = line.trim().parse().context("a number of edits")?;
        say(&part.round(count).await?)?;
    }
    Ok(())
}

fn say(what: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

struct Part {
    sets: usize,
    control: Control,
    publisher: Arc<Publisher>,
    facts: watch::Receiver<u64>,
    probe: Probe,
    proxy: Option<Guarded>,
    /// Edits so far.
    made: usize,
}

impl Part {
    async fn start(args: &PartArgs) -> Result<Self> {
        let backends = probe::backends().await?;
        let publisher = Publisher::new(publish::Config::default());
        publisher.set_ready(BTreeSet::from([PROXY.to_owned()]));
        let stream = ([127, 0, 0, 1], args.port).into();
        let server = publish::server()
            .add_service(publish::service(&publisher))
            .serve(stream);
        tokio::spawn(async move {
            if let Err(error) = server.await {
                eprintln!("the stream ended: {error}");
            }
        });
        let world = World::new(args.sets, args.namespaces, args.routes, backends)?;
        let mut part = Self {
            sets: args.sets,
            control: Control::new(world, Arc::clone(&publisher), args.port + 2)?,
            facts: publisher.acks(),
            publisher,
            probe: Probe::new()?,
            proxy: Some(proxy(args, "first")?),
            made: 0,
        };
        let platform = part.control.world.platform();
        part.control.put(&platform)?;
        part.control.lead()?;
        part.acked().await?;
        part.settle().await?;
        Ok(part)
    }

    /// Brings the teams' objects in, kinds side by side as lists come, with the proxy connected.
    async fn load(&mut self, args: &PartArgs) -> Result<Loaded> {
        let us = std::process::id();
        let before = [Used::of(us), Used::of(self.proxy_pid())];
        let own_before = sys::own_cpu().as_secs_f64();
        let (asked_before, turns_before) = (self.control.asked, self.control.turns);
        let teams = self.control.world.teams();
        let objects = teams.iter().map(Vec::len).sum();
        let begin = Instant::now();
        for page in pages(&teams) {
            for batch in page.chunks(BATCH) {
                self.control.put(batch)?;
                // The watches go on until the queue is full.
                while self.control.is_full() {
                    self.turn().await?;
                }
            }
        }
        self.turn().await?;
        while self.control.backlog {
            self.turn().await?;
        }
        let translated = begin.elapsed().as_secs_f64();
        let turns = self.control.turns - turns_before;
        self.acked().await?;
        let acked = begin.elapsed().as_secs_f64();
        self.settle().await?;
        let programmed = begin.elapsed().as_secs_f64();
        let not = self.control.not_programmed();
        ensure!(
            not.is_empty(),
            "{} are not Programmed, such as {:?}",
            not.len(),
            not.first()
        );
        let mut after = [Used::of(us), Used::of(self.proxy_pid())];
        // The proxy is a child, whose CPU is another figure.
        after[0].cpu = sys::own_cpu().as_secs_f64();
        let held = self.control.held();
        let mut loaded = Loaded {
            objects,
            resources: self.control.resources(),
            names: held.names,
            claims: held.claims,
            requests: held.requests,
            ports: held.ports,
            claim_writes: self.control.asked.claims - asked_before.claims,
            reads: self.control.asked.reads - asked_before.reads,
            translated,
            turns,
            acked,
            programmed,
            writes: self.control.asked.statuses - asked_before.statuses,
            operator: [
                Used {
                    cpu: own_before,
                    ..before[0]
                },
                after[0],
            ],
            proxy: [before[1], after[1]],
            ..Loaded::default()
        };
        self.traffic().await?;
        self.fresh(args, &mut loaded).await?;
        Ok(loaded)
    }

    /// One turn of the operator's loop, with what the proxy has acknowledged by now.
    /// Says whether there is more to do at once.
    async fn turn(&mut self) -> Result<bool> {
        let more = self.control.turn_after(&mut self.facts)?;
        tokio::task::yield_now().await;
        Ok(more)
    }

    /// A few names answer.
    async fn traffic(&self) -> Result<()> {
        for set in [0, self.sets / 2, self.sets - 1] {
            for listener in [0, 1, 15] {
                let answer = self.probe.ask(&self.request(set, listener)?).await?;
                let due = self.control.world.answer(set, listener);
                ensure!(
                    answer == Some(due),
                    "listener {listener} of set {set} is answered by {answer:?}"
                );
            }
        }
        Ok(())
    }

    /// What is to be asked on a listener.
    fn request(&self, set: usize, listener: usize) -> Result<Request> {
        let world = &self.control.world;
        let way = world.way(listener);
        let port = self.control.internal(way.port())?;
        self.probe
            .request(way, port, &world.hostname(set, listener))
    }

    /// The proxy ends, and one that holds nothing takes its place, and everything.
    async fn fresh(&mut self, args: &PartArgs, loaded: &mut Loaded) -> Result<()> {
        drop(self.proxy.take());
        while counted::connected(&self.publisher)? > 0 {
            tokio::time::timeout(PATIENCE, self.facts.changed()).await??;
        }
        let before = self.sent()?;
        let begin = Instant::now();
        self.proxy = Some(proxy(args, "fresh")?);
        // What the former one acknowledged no longer counts as soon as one is connected that holds nothing.
        while counted::connected(&self.publisher)? == 0 || self.publisher.programmed(&[]).acked == 0
        {
            ensure!(
                begin.elapsed() < PATIENCE,
                "a fresh proxy is not there within {PATIENCE:?}"
            );
            tokio::time::timeout(PATIENCE, self.facts.changed()).await??;
        }
        loaded.fresh = begin.elapsed().as_secs_f64();
        self.has_no_rejects()?;
        loaded.fresh_bytes = self.sent()? - before;
        loaded.fresh_used = Used::of(self.proxy_pid());
        self.traffic().await?;
        self.control.acks_moved();
        self.settle().await
    }

    /// Every kind of edit by itself after a pause, then some that do not count, then `count` edits of every kind in
    /// turn, each until it is served; then as many back to back.
    async fn round(&mut self, count: usize) -> Result<Round> {
        let mut round = Round::default();
        for edit in Edit::ALL {
            tokio::time::sleep(REST).await;
            let set = self.next_set();
            round.firsts.push(self.edit(set, edit).await?);
        }
        round.edits = Edit::measured(WARM_UP * Edit::ALL.len(), count, async |edit| {
            let set = self.next_set();
            let edited = self.edit(set, edit).await?;
            tokio::time::sleep(PAUSE).await;
            Ok(edited)
        })
        .await?;
        let proxy = self.proxy_pid();
        let us = || (sys::own_cpu().as_secs_f64(), proc::cpu(proxy).as_secs_f64());
        let (begin, before) = (Instant::now(), us());
        for edit in Edit::ALL.into_iter().cycle().take(count) {
            let set = self.next_set();
            let object = self.control.world.edit(set, edit);
            self.control.put(&[object])?;
            self.acked().await?;
        }
        self.settle().await?;
        let after = us();
        round.burst = count;
        round.burst_seconds = begin.elapsed().as_secs_f64();
        round.burst_operator = after.0 - before.0;
        round.burst_proxy = after.1 - before.1;
        Ok(round)
    }

    /// The set of the next edit: all over the namespaces.
    fn next_set(&mut self) -> usize {
        let set = self.control.world.edited_set(self.made);
        self.made += 1;
        set
    }

    async fn edit(&mut self, set: usize, edit: Edit) -> Result<Edited> {
        let object = self.control.world.edit(set, edit);
        let listener = edit.listener();
        let request = self.request(set, listener)?;
        let due: Answer = self.control.world.answer(set, listener);
        let was = self.probe.ask(&request).await?;
        ensure!(
            was != Some(due),
            "{edit:?} of set {set} is served before it is made"
        );
        let event = self.control.event(object)?;
        let before = (self.sent()?, self.control.asked);

        let begin = Instant::now();
        self.control.take(&[event])?;
        self.acked().await?;
        let acked = begin.elapsed();
        let mut late = 0;
        while self.probe.ask(&request).await? != Some(due) {
            late += 1;
            ensure!(begin.elapsed() < PATIENCE, "{edit:?} is not served");
        }
        let served = begin.elapsed();

        self.settle().await?;
        Ok(Edited {
            edit,
            acked: acked.as_secs_f64() * 1e3,
            served: served.as_secs_f64() * 1e3,
            bytes: self.sent()? - before.0,
            writes: self.control.asked.statuses - before.1.statuses,
            claims: self.control.asked.claims - before.1.claims,
            late,
        })
    }

    fn proxy_pid(&self) -> u32 {
        // Of nobody, where there is none.
        self.proxy.as_ref().map_or(0, Guarded::pid)
    }

    fn sent(&self) -> Result<u64> {
        counted::sent_bytes(&self.publisher)
    }

    fn has_no_rejects(&self) -> Result<()> {
        let rejects = self.publisher.rejects();
        ensure!(rejects.is_empty(), "the proxy rejects {rejects:?}");
        Ok(())
    }

    /// Until everything that follows from what was taken is published, and in force in the proxy.
    async fn acked(&mut self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let more = self.turn().await?;
            if !self.control.is_under_way() && self.control.behind() == 0 {
                return Ok(());
            }
            self.has_no_rejects()?;
            if let Some(proxy) = &mut self.proxy
                && let Some(ended) = proxy.ended()?
            {
                bail!("the proxy ended: {ended}");
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "not acknowledged within {PATIENCE:?}"
            );
            if !more {
                self.control.wait(&mut self.facts, LOOK).await?;
            }
        }
    }

    /// Until every status is written and none waits.
    async fn settle(&mut self) -> Result<()> {
        let begin = Instant::now();
        let in_time = || {
            ensure!(
                begin.elapsed() < PATIENCE,
                "statuses wait for more than {PATIENCE:?}"
            );
            Ok(())
        };
        let control = &mut self.control;
        control.settle(&mut self.facts, LOOK, false, in_time).await
    }
}

/// Starts a proxy; its log has this name.
fn proxy(args: &PartArgs, log: &str) -> Result<Guarded> {
    let mut command = Command::new(&args.proxy);
    command
        .arg("--config-stream")
        .arg(format!("127.0.0.1:{}", args.port))
        .args(["--name", PROXY])
        .arg("--admin")
        .arg(format!("127.0.0.1:{}", args.port + 1))
        .args(["--shutdown-delay-seconds", "0", "--drain-seconds", "0"])
        .args(["--access-log", "false"])
        .env("RUST_LOG", "warn");
    allow_loopback(&mut command);
    let log = args.folder.join(format!("{log}-{}.log", args.sets));
    Guarded::start(command, "vestibule-proxy", args.proxy_core, &log, false)
}
