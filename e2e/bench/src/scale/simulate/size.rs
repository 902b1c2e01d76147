//! One size of the simulation: the operator by itself, and proxies that keep nothing, in one process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use vestibule_operator::publish::{self, Publisher};

use super::{Spent, thin};
use crate::scale::control::{BATCH, Control};
use crate::scale::counted;
use crate::scale::part::Used;
use crate::scale::world::{Edit, Routes, World, pages};
use crate::{proc, sys};

/// Longest wait without a look around.
const LOOK: Duration = Duration::from_millis(100);
/// Longest that the fleet may take.
const PATIENCE: Duration = Duration::from_mins(20);

/// One size.
#[derive(clap::Args, Debug)]
pub(crate) struct SizeArgs {
    #[arg(long)]
    sets: usize,
    #[arg(long)]
    namespaces: usize,
    #[arg(long)]
    proxies: usize,
    #[arg(long)]
    routes: Routes,
    #[arg(long)]
    edits: usize,
    #[arg(long)]
    batch_mib: usize,
    #[arg(long)]
    most_gib: f64,
    #[arg(long)]
    foreign: bool,
    #[arg(long)]
    recording: Option<PathBuf>,
}

/// The figures of one size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Size {
    pub(crate) sets: usize,
    pub(crate) objects: usize,
    pub(crate) resources: usize,
    pub(crate) names: usize,
    pub(crate) requests: usize,
    /// Lists were decoded and taken in.
    pub(crate) listed: Spent,
    /// From leading until everything was published, every name was written, and every status once.
    pub(crate) published: Spent,
    pub(crate) claim_writes: u64,
    pub(crate) reads: u64,
    pub(crate) statuses: u64,
    pub(crate) held: Used,
    /// The first proxy has everything.
    pub(crate) full: Spent,
    pub(crate) full_bytes: u64,
    /// Every status says Programmed=True.
    pub(crate) programmed: Spent,
    pub(crate) programmed_statuses: u64,
    /// Edits with one proxy.
    pub(crate) edits: Vec<Edited>,
    /// Edits with all of them.
    pub(crate) fleet_edits: Vec<Edited>,
    /// All other proxies start at once.
    pub(crate) cold: Option<Cold>,
    /// A real proxy.
    pub(crate) proxy: Option<super::proxy::Measured>,
}

/// One edit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Edited {
    pub(crate) edit: Edit,
    /// Milliseconds until every proxy acknowledged.
    pub(crate) acked: f64,
    /// Milliseconds of CPU until then, and until every status was written.
    pub(crate) cpu: f64,
    /// Bytes that one proxy was sent.
    pub(crate) bytes: u64,
    pub(crate) statuses: u64,
    pub(crate) claims: u64,
}

/// Proxies that start at once.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cold {
    pub(crate) proxies: usize,
    pub(crate) spent: Spent,
    /// Bytes that all of them were sent.
    pub(crate) bytes: u64,
    /// Resident before, and the most meanwhile, MiB.
    pub(crate) resident: f64,
    pub(crate) peak: f64,
    /// Time for the statuses that follow.
    pub(crate) settled: Spent,
}

/// Measures it, and prints the figures.
pub(crate) fn run(args: &SizeArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let measured = runtime.block_on(async { Simulation::start(args)?.measure(args).await })?;
    serde_json::to_writer(std::io::stdout(), &measured)?;
    println!();
    Ok(())
}

struct Simulation {
    control: Control,
    publisher: Arc<Publisher>,
    facts: watch::Receiver<u64>,
    /// Names of the proxies.
    names: BTreeSet<String>,
    /// Where the first of them writes its batches.
    recording: Option<File>,
    edits: usize,
}

impl Simulation {
    fn start(args: &SizeArgs) -> Result<Self> {
        let publisher = Publisher::new(publish::Config {
            batch_bytes: args.batch_mib << 20,
            // A machine that is busy with other things is no proxy that hangs.
            patience: PATIENCE,
            ..publish::Config::default()
        });
        publisher.set_ready(BTreeSet::new());
        let mut world = World::new(args.sets, args.namespaces, args.routes, [1, 2, 3])?;
        if args.foreign {
            world = world.of_another_release();
        }
        Ok(Self {
            control: Control::new(world, Arc::clone(&publisher), 30_000)?,
            facts: publisher.acks(),
            publisher,
            names: BTreeSet::new(),
            recording: args.recording.as_ref().map(File::create).transpose()?,
            edits: 0,
        })
    }

    async fn measure(mut self, args: &SizeArgs) -> Result<Size> {
        let mut size = Size {
            sets: args.sets,
            ..Size::default()
        };
        self.load(args, &mut size).await?;
        if args.foreign {
            ensure!(size.resources == 0, "another release's objects are served");
            return Ok(size);
        }
        let begin = Spent::begin();
        self.connect(1)?;
        self.acked(args).await?;
        size.full = begin.end();
        size.full_bytes = self.sent()?;
        let (begin, statuses) = (Spent::begin(), self.control.asked.statuses);
        self.control.acks_moved();
        self.settle().await?;
        size.programmed = begin.end();
        size.programmed_statuses = self.control.asked.statuses - statuses;
        let not = self.control.not_programmed();
        ensure!(not.is_empty(), "{} are not Programmed", not.len());
        stage(&size, "programmed");
        size.edits = self.edit_all(args).await?;
        if args.proxies > 1 {
            size.cold = Some(self.cold(args).await?);
            stage(&size, "all proxies are there");
            size.fleet_edits = self.edit_all(args).await?;
        }
        Ok(size)
    }

    /// Everything is listed, and then the operator leads.
    async fn load(&mut self, args: &SizeArgs, size: &mut Size) -> Result<()> {
        let begin = Spent::begin();
        let platform = self.control.world.platform();
        self.control.put(&platform)?;
        let teams = self.control.world.teams();
        size.objects = teams.iter().map(Vec::len).sum::<usize>() + platform.len();
        for page in pages(&teams) {
            for batch in page.chunks(BATCH) {
                self.control.put(batch)?;
                while self.control.is_full() {
                    self.control.take_events();
                }
            }
            within(args.most_gib)?;
        }
        self.control.take_all();
        size.listed = begin.end();
        stage(size, "listed");
        let begin = Spent::begin();
        self.control.lead()?;
        self.settle_within(Some(args.most_gib)).await?;
        size.published = begin.end();
        let held = self.control.held();
        let asked = self.control.asked;
        size.resources = self.control.resources();
        (size.names, size.requests) = (held.names, held.requests);
        (size.claim_writes, size.reads) = (asked.claims, asked.reads);
        size.statuses = asked.statuses;
        size.held = Used::of(std::process::id());
        stage(size, "published");
        Ok(())
    }

    /// So many more proxies, all at once.
    fn connect(&mut self, count: usize) -> Result<()> {
        let first = self.names.len();
        for number in first..first + count {
            let name = format!("proxy-{number}");
            self.names.insert(name.clone());
            let proxy = thin::run(Arc::clone(&self.publisher), name, self.recording.take());
            tokio::spawn(async move {
                if let Err(error) = proxy.await {
                    eprintln!("{error:#}");
                }
            });
        }
        self.publisher.set_ready(self.names.clone());
        ensure!(self.control.behind() >= count, "nobody is behind");
        Ok(())
    }

    async fn cold(&mut self, args: &SizeArgs) -> Result<Cold> {
        let pid = std::process::id();
        // The kernel's high-water mark of this process begins anew.
        fs::write("/proc/self/clear_refs", "5").context("resetting the high-water mark")?;
        let before = Used::of(pid);
        let bytes = self.sent()?;
        let begin = Spent::begin();
        self.connect(args.proxies - 1)?;
        self.acked(args).await?;
        let spent = begin.end();
        let peak = Used::of(pid).peak;
        let begin = Spent::begin();
        self.control.acks_moved();
        self.settle().await?;
        Ok(Cold {
            proxies: args.proxies - 1,
            spent,
            bytes: self.sent()? - bytes,
            resident: before.resident,
            peak,
            settled: begin.end(),
        })
    }

    /// Edits of every kind in turn, after some that do not count.
    async fn edit_all(&mut self, args: &SizeArgs) -> Result<Vec<Edited>> {
        Edit::measured(Edit::ALL.len(), args.edits, async |edit| {
            self.edit(args, edit).await
        })
        .await
    }

    async fn edit(&mut self, args: &SizeArgs, edit: Edit) -> Result<Edited> {
        let set = self.control.world.edited_set(self.edits);
        self.edits += 1;
        let object = self.control.world.edit(set, edit);
        let event = self.control.event(object)?;
        let (bytes, asked) = (self.sent()?, self.control.asked);
        let begin = Spent::begin();
        self.control.take(&[event])?;
        self.acked(args).await?;
        let served = begin.end();
        self.settle().await?;
        Ok(Edited {
            edit,
            acked: served.seconds * 1e3,
            cpu: begin.end().cpu * 1e3,
            bytes: (self.sent()? - bytes) / self.names.len() as u64,
            statuses: self.control.asked.statuses - asked.statuses,
            claims: self.control.asked.claims - asked.claims,
        })
    }

    /// Bytes that all proxies were sent.
    fn sent(&self) -> Result<u64> {
        counted::sent_bytes(&self.publisher)
    }

    /// Until everything is published and every proxy has it. Statuses are looked at meanwhile, as the operator does.
    async fn acked(&mut self, args: &SizeArgs) -> Result<()> {
        let begin = Instant::now();
        loop {
            let more = self.control.turn_after(&mut self.facts)?;
            if !self.control.is_under_way() && self.control.behind() == 0 {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                bail!("{} proxies are behind", self.control.behind());
            }
            within(args.most_gib)?;
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            self.control.wait(&mut self.facts, LOOK).await?;
        }
    }

    /// Until every status is written that can be.
    async fn settle(&mut self) -> Result<()> {
        self.settle_within(None).await
    }

    async fn settle_within(&mut self, most_gib: Option<f64>) -> Result<()> {
        // Without proxies nobody acknowledges anything.
        let may_wait = self.names.is_empty();
        let in_bounds = || most_gib.map_or(Ok(()), within);
        let control = &mut self.control;
        control
            .settle(&mut self.facts, LOOK, may_wait, in_bounds)
            .await
    }
}

/// Says how far it is, and what is known by now: the last figures of a size that does not come to its end.
fn stage(size: &Size, what: &str) {
    let used = Used::of(std::process::id());
    let known = serde_json::to_string(size).unwrap_or_default();
    eprintln!("{what}, {used:?}, {known}");
}

/// Fails if this process has more than it may have.
fn within(most_gib: f64) -> Result<()> {
    let resident = proc::resident() as f64 / f64::from(1 << 30);
    ensure!(
        resident <= most_gib,
        "it takes {resident:.1} GiB, and {most_gib} are allowed; CPU so far {:.0} s",
        sys::own_cpu().as_secs_f64()
    );
    Ok(())
}
