//! Planning: which certificate's next step is what. Pure: time, chance and everything that is learnt are
//! inputs; what is to be done comes out as [`PlanStep`]s.
//!
//! ```text
//!            ┌────────────────────────────── rest ◄────────────────────────────┐
//!            ▼      due, reachable, issuer ready, not backing off              │
//! read ──► assess ──► queue ──► order ──► persist ──► look ──► publish ──► declare ──► look
//!            ▲       (budgets,                         ▲ ▲      (all proxies           │ready
//!            │        slots)                           │ └──── a stored order          ▼
//!            └── the Secret or the request changed ────┘       goes on here         finalize ──► download ──► store
//! ```
//!
//! Between steps that only time, the CA or proxies bring on, it rests without a slot, and queues for the next
//! one. From its creation an order has [`LIFETIME`]; neither steps nor leaders begin it anew.
//!
//! One task of a certificate runs at a time. What comes back from a task that is no longer awaited is
//! ignored. Everything that must survive is in the Secret before it matters: an order before its first
//! challenge is published, the new key with it, a failure before it is waited out.
//!
//! The rooms from the bottom up; each adds steps to [`Planner`] and calls only those below it:
//!
//! - `lane`, `queue`, `tally` and `issuers` are types without steps.
//! - `turn` holds and gives up turns, slots and names; `need` says what a certificate needs.
//! - `misfit` gives up what a change left without a use; `accounts` opens the accounts of issuers.
//! - `store` writes to the Secret and ends orders; `run` has the steps of an order.
//! - `secret` and `results` take what tasks bring, and go on with the next step.
//! - `assess` looks at a certificate when something changed or is due, and `grant` gives turns.
//! - `messages` says how far each certificate is.

mod accounts;
mod assess;
mod grant;
mod issuers;
mod lane;
mod messages;
mod misfit;
mod need;
mod queue;
mod results;
mod run;
mod secret;
mod store;
mod tally;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use vestibule_model::challenge::{ChallengeKey, ChallengeType};
use vestibule_model::endpoint::AuthorityRules;
use vestibule_model::hostname::Hostname;
use vestibule_model::issuance::Issuance;
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::AcmeIssuer;
use vestibule_model::selector::LabelSelector;

use self::issuers::Issuers;
use self::lane::Lane;
use self::queue::Queue;
use self::tally::Tally;
use super::backoff::Random;
use super::budget::{Budget, Budgets, Registrations};
use super::client::{AccountInfo, Opened, Registering, View};
use super::clock::Now;
use super::effects::{ChallengeAck, Input, IssuerState, Observation, StoredSecret, Write, Written};
use super::keys::PrivateKey;
use super::leaf::Leaf;
use super::problem::AcmeFailure;
use super::renewal::Window;
use super::state::RememberedState;
use crate::translate::CertificateRequest;

/// What is to be done.
#[derive(Debug)]
pub(super) enum PlanStep {
    /// A task of a certificate; its result comes back as [`Event::Done`] with the ticket.
    Task(ObjectName, Ticket, Task),
    /// Open the account of an issuer. `again`: the CA did not know it.
    Account {
        issuer: Arc<AcmeIssuer>,
        ticket: Ticket,
        registering: Registering,
        again: bool,
    },
    /// Publish a challenge for a tenant.
    Publish(ChallengeKey, Publish),
    /// Withdraw a challenge.
    Withdraw(ChallengeKey),
    /// Say how far a certificate is; `None`: nothing any more.
    Issuance(ObjectName, Option<Issuance>),
    /// Say how an issuer is.
    Issuer(ObjectKey, IssuerState),
    /// Count, or tell people.
    Observe(Observation),
    /// Nobody will ask about this order again.
    Forget(ObjectKey, String),
    /// Nor will anything come of it: the CA need not wait for the rest of its names.
    Close(ObjectKey, String),
}

/// What is published.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Publish {
    pub(super) tenant: Arc<str>,
    pub(super) key_authorization: String,
}

impl std::fmt::Debug for Publish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publish")
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

/// A task of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// Read the Secret.
    Read,
    /// Write it.
    Write(Write),
    /// Make an order, and a key for its certificate.
    Order {
        issuer: ObjectKey,
        hostnames: BTreeSet<Hostname>,
        profile: Option<Arc<str>>,
        replaces: Option<Leaf>,
        /// An order for the same Secret that is given up. It is closed first: what the CA would check for
        /// one it may check for the other.
        given_up: Option<String>,
    },
    /// Ask how far an order is.
    Look { issuer: ObjectKey, url: String },
    /// Say that these challenges are answered.
    Declare {
        issuer: ObjectKey,
        url: String,
        gateway: ObjectName,
        names: Vec<(Hostname, ChallengeType)>,
    },
    /// Send the request for the certificate.
    Finalize {
        issuer: ObjectKey,
        url: String,
        hostnames: BTreeSet<Hostname>,
        key: PrivateKey,
    },
    /// Get the certificate.
    Download {
        issuer: ObjectKey,
        url: String,
        key: PrivateKey,
    },
    /// Ask when to renew.
    Window { issuer: ObjectKey, leaf: Leaf },
}

/// Identifies a task.
pub(super) type Ticket = u64;

/// What came of a task.
#[derive(Debug)]
pub(super) enum Done {
    /// Of [`Task::Read`], with what the chain and key in it say.
    Read(Result<Option<(StoredSecret, Option<Leaf>)>, AcmeFailure>),
    /// Of [`Task::Write`].
    Wrote(Result<Written, AcmeFailure>),
    /// Of [`Task::Order`]: its URL, and a new key.
    Ordered(Result<(String, PrivateKey), AcmeFailure>),
    /// Of [`Task::Look`] and [`Task::Finalize`].
    Looked(Result<View, AcmeFailure>),
    /// Of [`Task::Declare`].
    Declared(Result<(), AcmeFailure>),
    /// Of [`Task::Download`], with what the chain says if it fits the key.
    Downloaded(Result<(Vec<u8>, Option<Leaf>), AcmeFailure>),
    /// Of [`Task::Window`].
    Window(Result<(Window, Option<Duration>), AcmeFailure>),
}

/// What is learnt.
#[derive(Debug)]
pub(super) enum Event {
    /// From outside.
    Input(Input),
    /// A task is done.
    Done(ObjectName, Ticket, Done),
    /// What became of an account.
    Account {
        issuer: ObjectKey,
        ticket: Ticket,
        /// The CA may have made a new one, whatever came of it.
        created: bool,
        result: Result<Opened<AccountInfo>, AcmeFailure>,
    },
}

/// Where a certificate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing runs. It is looked at again when something changes, or at its time.
    Rest,
    /// Waits for its turn.
    Queued(Lane),
    /// Has its turn.
    Active(Stage),
}

/// What a certificate that has its turn is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// An order is being made.
    Order,
    /// Something is written; what follows.
    Write(After),
    /// The Secret is read again, since it was not as expected; what was to be written.
    Reread(After),
    /// The CA is asked how far it is.
    Look,
    /// The CA is told.
    Declare,
    Finalize,
    Download,
}

/// What follows a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// The order goes on.
    Ordered,
    /// The certificate is there.
    Issued,
    /// A failure is waited out.
    Failed,
}

/// A certificate.
#[derive(Debug)]
struct Entry {
    request: CertificateRequest,
    issuer: Option<ObjectKey>,
    phase: Phase,
    /// The task that runs.
    ticket: Option<Ticket>,
    /// The Secret is to be read: it may have changed.
    stale: bool,
    /// It has been read at least once, or could not be.
    seen: bool,
    /// What the Secret holds; `None`: there is none.
    record: Option<Seen>,
    state: RememberedState,
    /// An order that is in memory, and whether it is in the Secret.
    running: Option<Running>,
    /// Challenges that are out.
    published: BTreeMap<ChallengeKey, ChallengeAck>,
    /// When to look again.
    wake: Option<Duration>,
    /// Not before then: something could not be reached, or an order was made just now.
    not_before: Duration,
    /// When the failure that is backed off from was first known here.
    failed_since: Duration,
    /// How often in a row something could not be reached.
    unreached: u32,
    /// What an order is being made for, and whether to renew; until it is there.
    ordering: Option<(String, bool)>,
    /// An order of the same account that is given up, until the next one.
    given_up: Option<String>,
    /// Why it waits, where nothing else says so.
    trouble: Option<AcmeFailure>,
    /// When the CA wants it renewed.
    window: Option<Window>,
    /// When to ask for it again.
    ask_window: Duration,
    /// What was last said.
    said: Option<Issuance>,
    said_renewal: Option<i64>,
}

/// What a Secret holds, as far as planning needs it.
#[derive(Debug)]
struct Seen {
    version: Arc<str>,
    ours: bool,
    leaf: Option<Leaf>,
}

/// An order that is in memory.
#[derive(Debug)]
struct Running {
    url: String,
    account: String,
    /// Digest of what it is for.
    wanted: String,
    key: PrivateKey,
    since: i64,
    /// It is in the Secret. Before that no challenge of it is published.
    persisted: bool,
    /// Challenges have been declared ready.
    declared: bool,
    /// The CA waits for nothing any more: there is nothing to be closed.
    over: bool,
    /// How often it was asked about since.
    looks: u32,
    /// How often the certificate was asked for.
    finalized: u32,
    /// It is given up then, whatever it is at.
    deadline: Duration,
    /// How often its write met somebody else's.
    conflicts: u32,
    /// A chain that is to be stored.
    chain: Option<(Vec<u8>, Leaf)>,
}

/// How planning is done.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the release: where cluster issuers have their Secrets.
    pub namespace: Arc<str>,
    /// Labels of the issuers that are used; the others are some other release's.
    pub issuers: LabelSelector,
    /// Orders per hour, for new certificates and for renewals each.
    pub budgets: Budgets,
    /// Orders at a time of which something is asked or written; at least 2. A quarter of them is the most for
    /// one namespace, and for one issuer.
    pub in_flight: usize,
    /// Accounts that issuers of tenants may register at one host of a CA in three hours.
    pub registrations: NonZeroU32,
    /// Where issuers of tenants may lead.
    pub authorities: AuthorityRules,
    /// Before a CA is told to connect, a Gateway's address is waited for so long that takes no connections;
    /// zero: it is not looked at.
    pub reach: Duration,
    /// Renewal windows are first asked for within this time after a start, not all at once.
    pub spread: Duration,
    /// Of chance.
    pub seed: u64,
}

impl Settings {
    /// Slots of one namespace, or one issuer: a quarter of all, at least one.
    fn share(&self) -> usize {
        (self.in_flight / 4).max(1)
    }
}

/// Plans.
#[derive(Debug)]
pub(super) struct Planner {
    settings: Settings,
    random: Random,
    entries: BTreeMap<ObjectName, Entry>,
    issuers: Issuers,
    /// Of new certificates and of renewals.
    budgets: [Budget; 2],
    registrations: Registrations,
    queue: Queue,
    /// Who holds the challenges of a name of a Gateway.
    locks: BTreeMap<(ObjectName, Hostname), ObjectName>,
    /// Certificates by their issuer.
    by_issuer: BTreeMap<ObjectKey, BTreeSet<ObjectName>>,
    /// To be looked at.
    dirty: BTreeSet<ObjectName>,
    timers: BTreeSet<(Duration, ObjectName)>,
    /// Certificates that have their turn, and with it a slot.
    active: Tally,
    /// Those with an order that is being made, or is not over.
    under_way: Tally,
    /// Renewals that have their turn.
    renewing: BTreeSet<ObjectName>,
    /// Not yet read once.
    unseen: BTreeSet<ObjectName>,
    /// Questions for renewal windows that run.
    asking: usize,
    tickets: Ticket,
    steps: Vec<PlanStep>,
    /// Certificates about which there may be something new to say.
    touched: BTreeSet<ObjectName>,
    waiting: super::effects::Waiting,
    counted: Duration,
}

/// An order that is not done this long after it was made is given up.
const LIFETIME: Duration = Duration::from_hours(1);
/// Something is looked at at least this often, so that a clock that jumped is noticed.
const LONGEST_REST: Duration = Duration::from_mins(10);

impl Planner {
    pub(super) fn new(settings: Settings) -> Self {
        let settings = Settings {
            in_flight: settings.in_flight.max(2),
            ..settings
        };
        Self {
            random: Random::new(settings.seed),
            budgets: [Budget::new(settings.budgets), Budget::new(settings.budgets)],
            registrations: Registrations::new(settings.registrations),
            queue: Queue::default(),
            settings,
            entries: BTreeMap::new(),
            issuers: Issuers::default(),
            locks: BTreeMap::new(),
            by_issuer: BTreeMap::new(),
            dirty: BTreeSet::new(),
            timers: BTreeSet::new(),
            active: Tally::default(),
            under_way: Tally::default(),
            renewing: BTreeSet::new(),
            unseen: BTreeSet::new(),
            asking: 0,
            tickets: 0,
            steps: Vec::new(),
            touched: BTreeSet::new(),
            waiting: super::effects::Waiting::default(),
            counted: Duration::ZERO,
        }
    }

    /// Takes in what is learnt.
    pub(super) fn learn(&mut self, event: Event, now: Now) {
        match event {
            Event::Input(Input::Requests(changes)) => {
                for (secret, request) in changes {
                    self.request(secret, request, now);
                }
            }
            Event::Input(Input::Issuers(changes)) => {
                for (key, issuer) in changes {
                    self.issuer_changed(&key, issuer, now);
                }
            }
            Event::Input(Input::Challenges(changes)) => {
                for (key, ack) in changes {
                    self.acked(&key, ack);
                }
            }
            Event::Input(Input::SecretChanged(secret)) => {
                if let Some(entry) = self.entries.get_mut(&secret) {
                    entry.stale = true;
                    self.dirty.insert(secret);
                }
            }
            Event::Done(secret, ticket, done) => self.done(&secret, ticket, done, now),
            Event::Account {
                issuer,
                ticket,
                created,
                result,
            } => self.account_opened(&issuer, ticket, created, result, now),
        }
    }

    /// What is to be done now.
    pub(super) fn advance(&mut self, now: Now) -> Vec<PlanStep> {
        while let Some((at, _)) = self.timers.first()
            && *at <= now.steady
            && let Some((_, secret)) = self.timers.pop_first()
        {
            if let Some(entry) = self.entries.get_mut(&secret) {
                entry.wake = None;
                self.dirty.insert(secret);
            }
        }
        // Whoever gives up what another waits for makes it dirty again: twice is enough for all, and the
        // rest comes at the next step.
        for _ in 0..4 {
            while let Some(secret) = self.dirty.pop_first() {
                self.tend(&secret, now);
                self.recount(&secret);
                self.touched.insert(secret);
            }
            self.grant(now);
            if self.dirty.is_empty() {
                break;
            }
        }
        self.open_accounts(now);
        self.speak(now);
        std::mem::take(&mut self.steps)
    }

    /// When [`Self::advance`] is due although nothing is learnt.
    pub(super) fn next(&self, now: Now) -> Duration {
        let longest = now.steady + LONGEST_REST;
        if !self.dirty.is_empty() {
            return now.steady;
        }
        let timer = self.timers.first().map_or(longest, |(at, _)| *at);
        let tokens = self.next_grant(now).unwrap_or(longest);
        let issuer = self.issuers.next().unwrap_or(longest);
        timer.min(tokens).min(issuer).min(longest)
    }

    /// A request, or that there is none any more.
    fn request(&mut self, secret: ObjectName, request: Option<CertificateRequest>, now: Now) {
        let Some(request) = request else {
            self.drop_entry(&secret);
            return;
        };
        let issuer = issuers::key_of(&request);
        if let Some(entry) = self.entries.get_mut(&secret) {
            let before = std::mem::replace(&mut entry.issuer, issuer.clone());
            entry.request = request;
            if before != issuer {
                self.unlink(before.as_ref(), &secret);
                self.link(issuer, &secret);
            }
            self.reconsider(&secret, now);
            return;
        }
        let entry = Entry {
            request,
            issuer: issuer.clone(),
            phase: Phase::Rest,
            ticket: None,
            stale: true,
            seen: false,
            record: None,
            state: RememberedState::default(),
            running: None,
            published: BTreeMap::new(),
            wake: None,
            not_before: Duration::ZERO,
            failed_since: now.steady,
            unreached: 0,
            ordering: None,
            given_up: None,
            trouble: None,
            window: None,
            ask_window: Duration::ZERO,
            said: None,
            said_renewal: None,
        };
        self.link(issuer, &secret);
        self.unseen.insert(secret.clone());
        self.entries.insert(secret.clone(), entry);
        self.dirty.insert(secret);
    }

    fn link(&mut self, issuer: Option<ObjectKey>, secret: &ObjectName) {
        if let Some(issuer) = issuer {
            let users = self.by_issuer.entry(issuer).or_default();
            users.insert(secret.clone());
        }
    }

    fn unlink(&mut self, issuer: Option<&ObjectKey>, secret: &ObjectName) {
        if let Some(issuer) = issuer
            && let Some(users) = self.by_issuer.get_mut(issuer)
        {
            users.remove(secret);
            if users.is_empty() {
                self.by_issuer.remove(issuer);
            }
        }
    }

    /// A request is gone: so are its challenges. Its order stays in the Secret, and open at the CA, for when
    /// it comes back.
    fn drop_entry(&mut self, secret: &ObjectName) {
        self.leave(secret);
        let Some(entry) = self.entries.remove(secret) else {
            return;
        };
        if let Some(at) = entry.wake {
            self.timers.remove(&(at, secret.clone()));
        }
        self.unlink(entry.issuer.as_ref(), secret);
        self.unseen.remove(secret);
        self.under_way.remove(secret);
        self.dirty.remove(secret);
        if let (Some(running), Some(issuer)) = (entry.running, entry.issuer) {
            self.abandoned(secret, issuer, running.url);
        }
        self.steps.push(PlanStep::Issuance(secret.clone(), None));
        if entry.said_renewal.is_some() {
            let gone = Observation::RenewAt(secret.clone(), None);
            self.steps.push(PlanStep::Observe(gone));
        }
    }

    fn acked(&mut self, key: &ChallengeKey, ack: ChallengeAck) {
        let holder = self.locks.get(&(key.gateway.clone(), key.hostname.clone()));
        if let Some(secret) = holder.cloned()
            && let Some(entry) = self.entries.get_mut(&secret)
            && let Some(known) = entry.published.get_mut(key)
        {
            *known = ack;
            self.dirty.insert(secret);
        }
    }
}

#[cfg(test)]
mod tests;
