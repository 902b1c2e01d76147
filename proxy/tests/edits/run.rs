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
use vestibule_proxy_testing::PATIENCE;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// The history ends when so many of its edits have changed something and got their answers.
    pub(crate) edits: usize,
    /// How many answers the history waits for after each of its edits.
    pub(crate) answers: usize,
    /// One edit in so many begins turns: the configurations before and after it replace each other.
    pub(crate) turns_once_in: usize,
    /// How often they go back and forth.
    pub(crate) turns: usize,
}

/// What was done.
pub(crate) struct Done {
    /// All edits, turns among them.
    pub(crate) edits: usize,
    /// Edits that changed something and after which at least [`Size::answers`] requests were made and answered
    /// before the next edit.
    pub(crate) answered: usize,
    /// Requests that were answered; ends of connections and echoes do not count.
    pub(crate) answers: usize,
    /// How many of these a backend answered.
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
            answered,
            answers,
            served,
            met,
            kinds,
        } = self;
        write!(
            f,
            "{edits} edits with {met} requests in progress at each in the mean, {answered} of them followed by \
             many answers; {answers} answers, {served} of them by a backend: {kinds:?}"
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
        let all = CLIENTS
            .iter()
            .flat_map(|(does, count)| std::iter::repeat_n(*does, *count));
        for (does, index) in all.zip(1..) {
            let random = Random::new(seed ^ (index << 32));
            let client = client(Arc::clone(&world), random, ports, does);
            clients.push(tokio::spawn(client));
        }
    }
    let mut driver = Driver {
        bed,
        ledger: &ledger,
        world: &world,
        config: first.config,
        whats: vec![first.what],
        changed: false,
        enough: size.answers,
        answered: 0,
    };
    while driver.answered < size.edits && !world.is_over() {
        let before = Arc::clone(&driver.config);
        let edit = history.next();
        driver.apply(&edit);
        if history.random.once_in(size.turns_once_in) && same_ports(&before, &edit.config) {
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
        driver.count();
        world.forget();
    }
    world.ended.store(true, Ordering::SeqCst);
    ledger.release();
    runtime.block_on(async {
        for client in clients {
            // A client may itself be patient with a request that nobody answers.
            let ended = tokio::time::timeout(PATIENCE * 2, client).await;
            ended.expect("a client does not end").unwrap();
        }
    });
    driver.judge(seed);
    let done = Done {
        edits: driver.whats.len() - 1,
        answered: driver.answered,
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
    /// Whether the last edit changed something and is not counted yet.
    changed: bool,
    /// How many answers an edit needs to be counted.
    enough: usize,
    /// How many edits are counted.
    answered: usize,
}

impl Driver<'_> {
    fn apply(&mut self, edit: &Edit) {
        self.count();
        self.changed = edit.config != self.config;
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

    /// How many requests were made and answered since the last edit.
    fn since(&self) -> usize {
        self.world.answers_since(self.whats.len() - 1)
    }

    /// Counts the last edit, once, if it has its answers.
    fn count(&mut self) {
        if self.changed && self.since() >= self.enough {
            self.answered += 1;
            self.changed = false;
        }
    }

    /// Waits until so many requests were made and answered since the last edit.
    fn answers(&self, count: usize) {
        if count == 0 {
            return std::thread::yield_now();
        }
        let end = Instant::now() + PATIENCE;
        while self.since() < count && self.world.faults.lock().is_empty() {
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
    /// Asks what no backend answers and a timeout has to end.
    Vain {
        tls: bool,
    },
}

/// Which clients there are, and how many of each kind. Those that keep their connections make most requests.
const CLIENTS: &[(Does, usize)] = &[
    (Does::Once { tls: false }, 10),
    (Does::Once { tls: true }, 6),
    (Does::Keeps { tls: false }, 20),
    (Does::Keeps { tls: true }, 20),
    (Does::Two { tls: false }, 10),
    (Does::Two { tls: true }, 10),
    (Does::Socket { tls: false }, 4),
    (Does::Socket { tls: true }, 6),
    (Does::Ca, 3),
    (Does::Hello, 14),
    (Does::Handshake, 21),
    (Does::Paced { tls: false }, 14),
    (Does::Paced { tls: true }, 7),
    (Does::Vain { tls: false }, 6),
    (Does::Vain { tls: true }, 4),
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
                for _ in 0..60 {
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
                    let asks: Vec<_> = (0..8).map(|_| history::ask(&mut random, &dial)).collect();
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
            Does::Vain { tls } => vain(&world, &mut random, ports, tls).await,
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
        let first = random.below(3);
        for conn in standing.iter_mut().skip(first).step_by(3) {
            conn.echo(&round.to_be_bytes()).await;
        }
    }
    for conn in &mut standing {
        if !world.faults.lock().is_empty() {
            break;
        }
        conn.last(&round.to_be_bytes()).await;
    }
}

/// Asks what a timeout has to end, for as long as there is such a thing to ask.
async fn vain(world: &Arc<World>, random: &mut Random, ports: Ports, tls: bool) {
    let dial = history::dial(random, ports, tls);
    let mut conn = Conn::open(world, "vain", &dial, Stop::Never, 0).await;
    let mut told = world.ledger.told();
    for _ in 0..8 {
        let mut asks = (0..12).map(|_| history::ask(random, &dial));
        let Some(ask) = asks.find(|ask| conn.is_timed(ask)) else {
            let ask = history::ask(random, &dial);
            conn.ask(&ask, Pace::Straight).await;
            // The next edit may bring one.
            let next = world.ledger.newest() + 1;
            let _ = told.wait_for(|done| *done >= next).await;
            return;
        };
        conn.ask_in_vain(&ask).await;
        if conn.is_closed() || world.is_over() {
            return;
        }
    }
}
