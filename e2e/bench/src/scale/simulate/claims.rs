//! Claims by themselves, without objects and translation: a million names, their writes, and a new leader that lists
//! them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectName;
use vestibule_operator::claims::{
    self, ClaimStore, GatewayPresence, SeenClaim, Time, WriteOutcome,
};
use vestibule_operator::translate::ClaimState;

use super::Spent;
use crate::scale::part::Used;

/// Names that translation tells of at a time.
const CHUNK: usize = 1024;
/// The first second.
const NOW: i64 = 1_767_323_045;

/// How many.
#[derive(clap::Args, Debug)]
pub(crate) struct ClaimsArgs {
    #[arg(long)]
    names: usize,
    #[arg(long)]
    namespaces: usize,
}

/// The figures of a simulation of claims.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) names: usize,
    /// Until every name was served, on the first start of all.
    pub(crate) asked: Spent,
    /// Every write, each answered at once.
    pub(crate) written: Spent,
    pub(crate) writes: usize,
    /// The memory that the process held when all names were written.
    pub(crate) held: Used,
    /// A new leader that lists all objects.
    pub(crate) listed: Spent,
    /// One more name: microseconds until its write is known, and the writes.
    pub(crate) edit: f64,
    pub(crate) edit_writes: usize,
}

/// Runs it, and prints the result.
pub(crate) fn run(args: &ClaimsArgs) -> Result<()> {
    serde_json::to_writer(std::io::stdout(), &measure(args)?)?;
    println!();
    Ok(())
}

struct Leader {
    store: ClaimStore,
    gateway: ObjectName,
    namespaces: usize,
    time: Time,
    objects: BTreeMap<ObjectName, SeenClaim>,
}

impl Leader {
    fn key(&self, name: usize) -> Result<ClaimKey> {
        let tenant = name % self.namespaces;
        let text = format!("app-{name}.team-{tenant}.example.com");
        Ok(ClaimKey::names(&self.gateway, &HostPattern::parse(&text)?))
    }

    /// These names are asked for, each by its namespace, and then used.
    fn ask(&mut self, names: impl Iterator<Item = usize>) -> Result<()> {
        let mut states = BTreeMap::new();
        for name in names {
            let namespace = format!("team-{}", name % self.namespaces);
            let holder = Holder::from(namespace.as_str());
            states.insert(self.key(name)?, Some(ClaimState::Wanted(holder)));
        }
        self.store.translated(states, self.time);
        self.follow();
        Ok(())
    }

    /// Translation is told who holds what, and uses it.
    fn follow(&mut self) {
        let updates = self.store.take_updates();
        self.store.take_since();
        let used = |holder: Option<Holder>| holder.map(|_| ClaimState::Used);
        let states = updates.into_iter().map(|(key, holder)| (key, used(holder)));
        self.store.translated(states.collect(), self.time);
        self.store.take_updates();
    }

    /// Everything that is due is written. Returns how many writes that were.
    fn write(&mut self) -> usize {
        let mut writes = 0;
        self.time.now += Duration::from_millis(50);
        let ours = |_: &ObjectName| GatewayPresence::Ours("uid".into());
        while let Some(request) = self.store.next_request(self.time.now, ours) {
            writes += 1;
            let seen = request.stored(writes as u64);
            if let Some(seen) = &seen {
                self.objects.insert(request.name.clone(), seen.clone());
            }
            self.store
                .done(&request.name, WriteOutcome::Known(seen.clone()), self.time);
            self.store.observe(&request.name, seen, self.time);
        }
        self.follow();
        writes
    }
}

fn measure(args: &ClaimsArgs) -> Result<Claims> {
    let time = Time {
        seconds: NOW,
        now: Instant::now(),
    };
    let mut leader = Leader {
        store: ClaimStore::new(claims::GRACE),
        gateway: ObjectName::new("platform", "edge"),
        namespaces: args.namespaces,
        time,
        objects: BTreeMap::new(),
    };
    leader.store.begin(time);
    leader.store.lead(true, time);
    let mut measured = Claims {
        names: args.names,
        ..Claims::default()
    };
    let begin = Spent::begin();
    for first in (0..args.names).step_by(CHUNK) {
        leader.ask(first..(first + CHUNK).min(args.names))?;
    }
    measured.asked = begin.end();
    let begin = Spent::begin();
    measured.writes = leader.write();
    // Every object is looked at once more, and nothing follows from that.
    measured.writes += leader.write();
    measured.written = begin.end();
    measured.held = Used::of(std::process::id());
    let counts = leader.store.counts();
    ensure!(
        counts.held == args.names && counts.pending == 0,
        "{counts:?}"
    );
    let begin = Instant::now();
    leader.ask(args.names..=args.names)?;
    measured.edit_writes = leader.write();
    measured.edit = begin.elapsed().as_secs_f64() * 1e6;

    let objects = std::mem::take(&mut leader.objects);
    drop(leader);
    let mut store = ClaimStore::new(claims::GRACE);
    let begin = Spent::begin();
    store.begin(time);
    store.list();
    store.catch_up(objects, time);
    store.lead(true, time);
    measured.listed = begin.end();
    let held = store.counts().objects;
    ensure!(
        held == args.names + 1,
        "the new leader knows {held} objects"
    );
    Ok(measured)
}
