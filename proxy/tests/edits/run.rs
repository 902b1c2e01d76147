//! A history with everybody who is there while it happens.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vestibule_stream::ResourceKind;

use super::bed::Bed;
use super::clients::{Conn, World};
use super::gate::Stop;
use super::history::{self, Edit, History, Ports, Random};
use super::ledger::{Config, Ledger, difference};
use super::model::Hello;
use super::servers::Props;
use super::wire::Pace;
use crate::common::PATIENCE;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Edits of the history.
    pub(crate) edits: usize,
    /// How many clients there are of each kind.
    pub(crate) clients: usize,
    /// How often two configurations take turns, after such an edit.
    pub(crate) turns: usize,
    /// Answers that are waited for after an edit.
    pub(crate) answers: usize,
}

/// What was done.
pub(crate) struct Done {
    pub(crate) edits: usize,
    pub(crate) answers: usize,
    pub(crate) served: usize,
    /// Requests in progress at an edit, in the mean.
    pub(crate) met: usize,
    /// Answers by kind of client and status.
    pub(crate) kinds: BTreeMap<String, usize>,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            edits,
            answers,
            served,
            met,
            kinds,
        } = self;
        write!(
            f,
            "{edits} edits with {met} requests in progress at each in the mean; {answers} answers, {served} of \
             them by a backend: {kinds:?}"
        )
    }
}

/// Runs a history; panics with what was wrong.
pub(crate) fn run(seed: u64, size: Size) -> Done {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (told, watching) = tokio::sync::watch::channel(0);
    let props = Arc::new(runtime.block_on(Props::start(&history::HOSTS, &watching)));
    let mut bed = Bed::start();
    let ports = bed.ports();
    let mut history = History::new(seed, &props, ports);
    let first = Edit {
        config: Arc::new(history.config.clone()),
        bad: Vec::new(),
        full: true,
        what: "the first".into(),
    };
    bed.apply(&Config::default(), &first);
    let ledger = Arc::new(Ledger::new(Arc::clone(&first.config)));
    let world = Arc::new(World::new(props, Arc::clone(&ledger)));
    let mut clients = Vec::new();
    {
        let _inside = runtime.enter();
        // The backends are there before the ledger.
        let mut of_ledger = ledger.told();
        tokio::spawn(async move {
            while of_ledger.changed().await.is_ok() {
                told.send_replace(*of_ledger.borrow_and_update());
            }
        });
        let all = std::iter::repeat_n(CLIENTS, size.clients).flatten();
        for (does, index) in all.zip(1..) {
            let random = Random::new(seed ^ (index << 32));
            clients.push(tokio::spawn(client(
                Arc::clone(&world),
                random,
                ports,
                *does,
            )));
        }
    }
    let mut driver = Driver {
        bed,
        ledger: &ledger,
        world: &world,
        config: first.config,
        whats: vec![first.what],
    };
    for _ in 0..size.edits {
        if world.is_over() {
            break;
        }
        let before = Arc::clone(&driver.config);
        let edit = history.next();
        driver.apply(&edit);
        if !history.random.once_in(3) && same_ports(&before, &edit.config) {
            // As fast as they come, for what is decided within microseconds, or with answers in between.
            let answers = if history.random.once_in(4) { 5 } else { 0 };
            let turns = if answers > 0 {
                size.turns / 4
            } else {
                size.turns
            };
            for _ in 0..turns {
                driver.turn(&before);
                driver.answers(answers);
                driver.turn(&edit.config);
                driver.answers(answers);
            }
        }
        driver.answers(size.answers);
    }
    world.ended.store(true, Ordering::SeqCst);
    ledger.release();
    runtime.block_on(async {
        for client in clients {
            let ended = tokio::time::timeout(PATIENCE, client).await;
            ended.expect("a client does not end").unwrap();
        }
    });
    driver.judge(seed);
    let done = Done {
        edits: driver.whats.len() - 1,
        answers: world.answers.load(Ordering::SeqCst),
        served: world.served.load(Ordering::SeqCst),
        met: world.met.load(Ordering::SeqCst) / driver.whats.len(),
        kinds: world.kinds.lock().drain().collect(),
    };
    runtime.shutdown_background();
    done
}

struct Driver<'a> {
    bed: Bed,
    ledger: &'a Ledger,
    world: &'a World,
    config: Arc<Config>,
    /// What each edit was.
    whats: Vec<String>,
}

impl Driver<'_> {
    fn apply(&mut self, edit: &Edit) {
        let number = self.ledger.begin(&edit.config);
        self.bed.apply(&self.config, edit);
        self.ledger.end(number);
        self.config = Arc::clone(&edit.config);
        self.whats.push(edit.what.clone());
    }

    /// Goes back, or forth again.
    fn turn(&mut self, to: &Arc<Config>) {
        let edit = Edit {
            config: Arc::clone(to),
            bad: Vec::new(),
            full: false,
            what: "back or forth".into(),
        };
        self.apply(&edit);
    }

    /// Waits for so many more answers.
    fn answers(&self, count: usize) {
        if count == 0 {
            return std::thread::yield_now();
        }
        let answers = &self.world.answers;
        let until = answers.load(Ordering::SeqCst) + count;
        let end = Instant::now() + PATIENCE;
        while answers.load(Ordering::SeqCst) < until && self.world.faults.lock().is_empty() {
            assert!(Instant::now() < end, "the clients get no answers");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn judge(&self, seed: u64) {
        let faults = self.world.faults.lock();
        let Some(first) = faults.first() else {
            return;
        };
        let mut text = format!("seed {seed}: {} faults, the first:\n{first}", faults.len());
        for fault in faults.iter().skip(1) {
            let head = fault.lines().take(3).collect::<Vec<_>>();
            let _ = writeln!(text, "another one:\n{}", head.join("\n"));
        }
        let last = self.whats.len();
        text += "\nThe last edits:\n";
        for number in last.saturating_sub(4).max(1)..last {
            let spells = self.ledger.within(number - 1..=number);
            let what = &self.whats[number];
            let _ = writeln!(text, "{number}: {what}");
            if let [before, after] = &spells[..] {
                let (upserts, removals) = difference(&before.config, &after.config);
                for (key, resource) in &upserts {
                    if matches!(
                        key.kind(),
                        ResourceKind::Certificate | ResourceKind::TrustBundle
                    ) {
                        let _ = writeln!(text, "  + {key}");
                    } else {
                        let _ = writeln!(text, "  + {key} {:?}", resource.resource);
                    }
                }
                for key in &removals {
                    let _ = writeln!(text, "  - {key}");
                }
            }
        }
        panic!("{text}");
    }
}

/// Whether all ports that are listened on stay so.
fn same_ports(a: &Config, b: &Config) -> bool {
    let ports = |of: &Config| {
        let listeners = of.of(ResourceKind::Listener);
        let ports = listeners.filter_map(|(_, resource)| super::model::port_of(resource));
        ports.collect::<std::collections::BTreeSet<u32>>()
    };
    ports(a) == ports(b)
}

/// What a client does all the time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    /// A connection for each request.
    Once {
        tls: bool,
    },
    /// Several requests on a connection.
    Keeps {
        tls: bool,
    },
    /// HTTP/2, several requests at a time.
    Two {
        tls: bool,
    },
    /// A WebSocket that stands until the end; others come and go.
    Socket {
        tls: bool,
    },
    /// Asks as a CA does.
    Ca,
    /// Stops within its hello or its handshake until edits are done.
    Hello,
    Handshake,
    /// Stops within a request, or has the backend stop.
    Paced {
        tls: bool,
    },
}

const CLIENTS: &[Does] = &[
    Does::Once { tls: false },
    Does::Once { tls: false },
    Does::Once { tls: true },
    Does::Once { tls: true },
    Does::Keeps { tls: false },
    Does::Keeps { tls: false },
    Does::Keeps { tls: true },
    Does::Keeps { tls: true },
    Does::Two { tls: false },
    Does::Two { tls: true },
    Does::Socket { tls: false },
    Does::Socket { tls: true },
    Does::Socket { tls: true },
    Does::Ca,
    Does::Hello,
    Does::Hello,
    Does::Handshake,
    Does::Handshake,
    Does::Handshake,
    Does::Paced { tls: false },
    Does::Paced { tls: false },
    Does::Paced { tls: true },
];

async fn client(world: Arc<World>, mut random: Random, ports: Ports, does: Does) {
    while !world.is_over() {
        match does {
            Does::Once { tls } => {
                let dial = history::dial(&mut random, ports, tls);
                let kind = if tls && random.once_in(2) {
                    "resumes"
                } else {
                    "once"
                };
                let mut conn = Conn::open(&world, kind, &dial, Stop::Never, 0).await;
                conn.ask(&history::ask(&mut random, &dial), Pace::Straight)
                    .await;
            }
            Does::Keeps { tls } => {
                let dial = history::dial(&mut random, ports, tls);
                let mut conn = Conn::open(&world, "keeps", &dial, Stop::Never, 0).await;
                for _ in 0..40 {
                    conn.ask(&history::ask(&mut random, &dial), Pace::Straight)
                        .await;
                    if conn.is_closed() || world.is_over() {
                        break;
                    }
                }
            }
            Does::Two { tls } => {
                let mut dial = history::dial(&mut random, ports, tls);
                if let Some(hello) = &mut dial.tls {
                    hello.alpn = vec!["h2", "http/1.1"];
                }
                let mut conn = Conn::open(&world, "two", &dial, Stop::Never, 0).await;
                if !tls {
                    conn.know_two().await;
                }
                for _ in 0..15 {
                    let asks: Vec<_> = (0..3).map(|_| history::ask(&mut random, &dial)).collect();
                    conn.ask_all(&asks).await;
                    if conn.is_closed() || world.is_over() {
                        break;
                    }
                }
            }
            Does::Socket { tls } => socket(&world, &mut random, ports, tls).await,
            Does::Ca => {
                let mut dial = history::dial(&mut random, ports, true);
                dial.port = ports.tls;
                if let Some(Hello { alpn, shows, .. }) = &mut dial.tls {
                    (*alpn, *shows) = (vec!["acme-tls/1"], None);
                }
                let mut conn = Conn::open(&world, "ca", &dial, Stop::Never, 0).await;
                conn.no_ask();
            }
            Does::Paced { tls } => {
                let dial = history::dial(&mut random, ports, tls);
                let mut conn = Conn::open(&world, "paced", &dial, Stop::Never, 0).await;
                for _ in 0..3 {
                    let edits = 1 + random.below(2);
                    let mut ask = history::ask(&mut random, &dial);
                    let pace = match random.below(6) {
                        0 => Pace::Head(edits),
                        1 => Pace::Body(edits),
                        2 => Pace::Drips(edits),
                        _ => Pace::Held(edits),
                    };
                    if pace == Pace::Body(edits) {
                        (ask.method, ask.body) = ("POST", 1000);
                    }
                    conn.ask(&ask, pace).await;
                    if conn.is_closed() || world.is_over() {
                        break;
                    }
                }
            }
            Does::Hello | Does::Handshake => {
                let dial = history::dial(&mut random, ports, true);
                let (kind, stop) = if does == Does::Hello {
                    ("hello", Stop::After(1 + random.below(300)))
                } else {
                    ("handshake", Stop::Answering)
                };
                let edits = 1 + random.below(2);
                let mut conn = Conn::open(&world, kind, &dial, stop, edits).await;
                for _ in 0..2 {
                    conn.ask(&history::ask(&mut random, &dial), Pace::Straight)
                        .await;
                    if conn.is_closed() {
                        break;
                    }
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Keeps `WebSockets` open, up to a number of them, and has bytes come back on each.
async fn socket(world: &Arc<World>, random: &mut Random, ports: Ports, tls: bool) {
    let mut standing: Vec<Conn> = Vec::new();
    let mut round = 0_u64;
    while !world.is_over() {
        round += 1;
        let dial = history::dial(random, ports, tls);
        let mut ask = history::ask(random, &dial);
        if let Some(hello) = dial
            .tls
            .as_ref()
            .filter(|hello| !hello.alpn.contains(&"h2"))
        {
            ask.host.clone_from(&hello.name);
        }
        let mut conn = Conn::open(world, "socket", &dial, Stop::Never, 0).await;
        (ask.upgrade, ask.method, ask.body) = (!conn.is_two(), "GET", 0);
        conn.ask(&ask, Pace::Straight).await;
        if conn.is_upgraded() {
            standing.push(conn);
            if standing.len() > 20 {
                // The first ones stand until the end.
                let index = 10 + random.below(10);
                standing.swap_remove(index);
            }
        }
        for conn in &mut standing {
            conn.echo(&round.to_be_bytes()).await;
        }
    }
}
