//! Planning: decides the next step of each certificate. It is pure. Time, random numbers and the results of tasks are
//! inputs, and the outputs are [`PlanStep`]s.
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
//! A certificate rests without a slot while only time, the CA or proxies can bring its next step on, and queues for
//! that step. An order has [`LIFETIME`] from its creation, which neither steps nor new leaders extend.
//!
//! One task of a certificate runs at a time. The result of a task that is no longer awaited is ignored. Everything that
//! must survive is in the Secret before it matters: an order before its first challenge is published, the new key with
//! the order, and a failure before it is waited out.
//!
//! These are the modules from the bottom up. Each adds steps to [`Planner`] and calls only those below it:
//!
//! - `lane`, `queue`, `tally` and `issuers` are types without steps.
//! - `turn` holds and gives up turns, slots and names. `need` says what a certificate needs.
//! - `misfit` gives up what a change made useless. `accounts` opens the accounts of issuers.
//! - `store` writes to the Secret and ends orders. `run` has the steps of an order.
//! - `secret` and `results` take the results of tasks and go on with the next step.
//! - `assess` looks at a certificate when something changed or is due, and `grant` gives turns.
//! - `messages` reports the state of each certificate.

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
use vestibule_model::issuance::{CertificateRequest, Issuance};
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_model::object::AcmeIssuer;
use vestibule_model::selector::LabelSelector;

use self::issuers::Issuers;
use self::lane::Lane;
use self::queue::Queue;
use self::tally::Tally;
use crate::backoff::Random;
use crate::budget::{Budget, Budgets, RecordedOrderBudget, Registrations};
use crate::client::{AccountInfo, OpenedAccount, Registering, View};
use crate::clock::Now;
use crate::effects::{ChallengeAck, Input, IssuerState, Observation, StoredSecret, Write, Written};
use crate::keys::PrivateKey;
use crate::leaf::Leaf;
use crate::problem::AcmeFailure;
use crate::renewal::Window;
use crate::state::RememberedState;

/// A step that the engine has to perform.
#[derive(Debug)]
pub(crate) enum PlanStep {
    /// Run a task of a certificate. Its result comes back as [`Event::Done`] with the ticket.
    Task(ObjectName, Ticket, Task),
    /// Open the account of an issuer. `again` says that the CA did not know it.
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
    /// Report the state of a certificate. `None` means that there is none any more.
    Issuance(ObjectName, Option<Issuance>),
    /// Report the state of an issuer.
    Issuer(ObjectKey, IssuerState),
    /// Count or report an observation.
    Observe(Observation),
    /// Drop the open account of an issuer that has changed or gone. What is being opened for it is not used either.
    DropAccount(ObjectKey),
    /// Forget what is kept of this order, because nothing will ask about it again.
    Forget(ObjectKey, String),
    /// Close an order that is given up, so that the CA need not wait for the rest of its names.
    Close(ObjectKey, GivenUp),
}

/// An order that is given up. This process has compared its identifiers with these names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub(crate) url: String,
    pub(crate) hostnames: BTreeSet<Hostname>,
}

/// A challenge to publish.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Publish {
    pub(crate) tenant: Arc<str>,
    pub(crate) key_authorization: String,
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
pub(crate) enum Task {
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
        /// An order for the same Secret that is given up. It is closed first, because the CA may share the checks of a
        /// name between both orders.
        given_up: Option<GivenUp>,
    },
    /// Ask for the state of an order, which has to be for these names.
    Look {
        issuer: ObjectKey,
        url: String,
        hostnames: BTreeSet<Hostname>,
    },
    /// Tell the CA that these challenges are answered.
    Declare {
        issuer: ObjectKey,
        url: String,
        gateway: ObjectName,
        /// All names of the order.
        hostnames: BTreeSet<Hostname>,
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
    /// Ask the CA when to renew.
    Window { issuer: ObjectKey, leaf: Leaf },
}

/// Identifies a task.
pub(crate) type Ticket = u64;

/// The result of a task.
#[derive(Debug)]
pub(crate) enum Done {
    /// Result of [`Task::Read`], with what the chain and key in the Secret say.
    Read(Result<Option<(StoredSecret, Option<Leaf>)>, AcmeFailure>),
    /// Result of [`Task::Write`].
    Wrote(Result<Written, AcmeFailure>),
    /// Result of [`Task::Order`]: the URL of the order, and a new key.
    Ordered(Result<(String, PrivateKey), AcmeFailure>),
    /// Result of [`Task::Look`] and [`Task::Finalize`].
    Looked(Result<View, AcmeFailure>),
    /// Result of [`Task::Declare`].
    Declared(Result<(), AcmeFailure>),
    /// Result of [`Task::Download`], with what the chain says if it fits the key.
    Downloaded(Result<(Vec<u8>, Option<Leaf>), AcmeFailure>),
    /// Result of [`Task::Window`].
    Window(Result<(Window, Option<Duration>), AcmeFailure>),
}

/// Something that planning learns.
#[derive(Debug)]
pub(crate) enum Event {
    /// An input from outside.
    Input(Input),
    /// A task is done.
    Done(ObjectName, Ticket, Done),
    /// An account was opened, or could not be.
    Account {
        issuer: ObjectKey,
        ticket: Ticket,
        /// Whether the CA may have made a new account, whatever the result is.
        created: bool,
        result: Result<OpenedAccount<AccountInfo>, AcmeFailure>,
    },
}

/// Whether a certificate has its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing runs. It is looked at again when something changes, or at its time.
    Rest,
    /// It waits for its turn.
    Queued(Lane),
    /// It has its turn.
    Active(Stage),
}

/// The stage of a certificate that has its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// An order is being made.
    Order,
    /// The Secret is being written, with what follows the write.
    Write(After),
    /// The Secret is read again because it was not as expected, with what follows the write that failed.
    Reread(After),
    /// The CA is asked for the state of the order.
    Look,
    /// The CA is told that challenges are answered.
    Declare,
    Finalize,
    Download,
}

/// The step that follows a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// The order goes on.
    Ordered,
    /// The certificate has been issued.
    Issued,
    /// The failure is waited out.
    Failed,
}

/// A certificate.
#[derive(Debug)]
struct Entry {
    request: CertificateRequest,
    issuer: Option<ObjectKey>,
    phase: Phase,
    /// The ticket of the running task.
    ticket: Option<Ticket>,
    /// The Secret may have changed, so it has to be read.
    stale: bool,
    /// The Secret has been read at least once, or could not be.
    seen: bool,
    /// The order that its Secret remembers may be an earlier leader's, so it is to be counted. Of a request that came
    /// later, this process knows what it ordered.
    counts: bool,
    /// The content of the Secret, or `None` if it does not exist.
    record: Option<Seen>,
    state: RememberedState,
    /// The order in memory, if there is one.
    running: Option<Running>,
    /// Challenges that are published.
    published: BTreeMap<ChallengeKey, ChallengeAck>,
    /// When to look again.
    wake: Option<Duration>,
    /// Nothing is tried before then, because something could not be reached or an order was made just now.
    not_before: Duration,
    /// When this process first knew of the failure that is being waited out.
    failed_since: Duration,
    /// How many times in a row something could not be reached.
    unreached: u32,
    /// While an order is being made: the digest of what it is for, and whether it renews.
    ordering: Option<(String, bool)>,
    /// An order of the same account that is given up, until the next order closes it.
    given_up: Option<GivenUp>,
    /// Why it waits, if nothing else says so.
    trouble: Option<AcmeFailure>,
    /// The window in which the CA wants it renewed.
    window: Option<Window>,
    /// When to ask for that window again.
    ask_window: Duration,
    /// The progress that was last reported.
    said: Option<Issuance>,
    said_renewal: Option<i64>,
}

/// The content of a Secret, as far as planning needs it.
#[derive(Debug)]
struct Seen {
    version: Arc<str>,
    ours: bool,
    leaf: Option<Leaf>,
}

/// How it is known whose an order is. A tenant can write the URL of another team's order into its Secret, and the
/// account may be everybody's.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    /// A Secret says so, and nobody has asked the CA.
    Claimed,
    /// The same, but the budget of its namespace has paid for asking the CA.
    Paid,
    /// It is for these names: this process asked for them, or the CA says so.
    Known(BTreeSet<Hostname>),
}

/// An order in memory.
#[derive(Debug)]
struct Running {
    url: String,
    origin: Origin,
    account: String,
    /// Digest of what the order is for.
    wanted: String,
    key: PrivateKey,
    since: i64,
    /// Whether the order is in the Secret. Before that, none of its challenges is published.
    persisted: bool,
    /// Whether challenges have been declared ready.
    declared: bool,
    /// Whether the CA waits for nothing any more, so that the order need not be closed.
    over: bool,
    /// How many times the CA was asked for its state since the last step.
    looks: u32,
    /// How many times the order was finalized.
    finalized: u32,
    /// When the order is given up, whatever its state.
    deadline: Duration,
    /// How many times its write conflicted with another one.
    conflicts: u32,
    /// A chain that still has to be stored.
    chain: Option<(Vec<u8>, Leaf)>,
}

/// Settings of planning.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// Namespace of the release, in which cluster issuers have their Secrets.
    pub namespace: Arc<str>,
    /// Labels of the issuers to use. Other issuers belong to another release.
    pub issuers: LabelSelector,
    /// Orders per hour. They apply to new certificates and to renewals separately.
    pub budgets: Budgets,
    /// Number of slots, which is the number of orders for which something is asked or written at a time. It is at least
    /// 2. One namespace gets at most a quarter of them, and so does one issuer.
    pub in_flight: usize,
    /// Number of accounts that issuers of tenants may register at one host of a CA in three hours.
    pub registrations: NonZeroU32,
    /// The addresses that issuers of tenants may lead to.
    pub authorities: AuthorityRules,
    /// How long to wait for a Gateway's address to take connections before a CA is told to connect to it. With zero,
    /// the address is not checked.
    pub reach: Duration,
    /// The first request for a renewal window comes after a random time below this, so that not all come at once after
    /// a start.
    pub spread: Duration,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl EngineSettings {
    /// Slots of one namespace, or one issuer: a quarter of all, at least one.
    fn share(&self) -> usize {
        (self.in_flight / 4).max(1)
    }
}

/// The planner.
#[derive(Debug)]
pub(crate) struct Planner {
    settings: EngineSettings,
    random: Random,
    entries: BTreeMap<ObjectName, Entry>,
    issuers: Issuers,
    /// The budgets of new certificates and of renewals, in this order.
    budgets: [Budget; 2],
    registrations: Registrations,
    /// The budget of asking a CA for orders that Secrets name.
    claims: RecordedOrderBudget,
    queue: Queue,
    /// Which certificate holds the challenges of a name at a Gateway.
    locks: BTreeMap<(ObjectName, Hostname), ObjectName>,
    /// Certificates by their issuer.
    by_issuer: BTreeMap<ObjectKey, BTreeSet<ObjectName>>,
    /// Certificates to look at.
    dirty: BTreeSet<ObjectName>,
    timers: BTreeSet<(Duration, ObjectName)>,
    /// Certificates that have their turn, and with it a slot.
    active: Tally,
    /// Certificates whose order is being made or is not over.
    under_way: Tally,
    /// Renewals that have their turn.
    renewing: BTreeSet<ObjectName>,
    /// Certificates whose Secret has not been read yet.
    unseen: BTreeSet<ObjectName>,
    /// Whether the first requests have come, which are all that there are.
    told: bool,
    /// Number of running requests for renewal windows.
    asking: usize,
    tickets: Ticket,
    steps: Vec<PlanStep>,
    /// Certificates about which there may be something new to say.
    touched: BTreeSet<ObjectName>,
    waiting: crate::effects::WaitingCounts,
    counted: Duration,
}

/// An order that is not done this long after it was made is given up.
const LIFETIME: Duration = Duration::from_hours(1);
/// A certificate is looked at at least this often, so that a jump of the clock is noticed.
const LONGEST_REST: Duration = Duration::from_mins(10);

impl Planner {
    pub(crate) fn new(settings: EngineSettings) -> Self {
        let settings = EngineSettings {
            in_flight: settings.in_flight.max(2),
            ..settings
        };
        Self {
            random: Random::new(settings.seed),
            budgets: [Budget::new(settings.budgets), Budget::new(settings.budgets)],
            registrations: Registrations::new(settings.registrations),
            claims: RecordedOrderBudget::new(settings.budgets),
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
            told: false,
            asking: 0,
            tickets: 0,
            steps: Vec::new(),
            touched: BTreeSet::new(),
            waiting: crate::effects::WaitingCounts::default(),
            counted: Duration::ZERO,
        }
    }

    /// Takes in an event.
    pub(crate) fn learn(&mut self, event: Event, now: Now) {
        match event {
            Event::Input(Input::Requests(changes)) => {
                let first = !std::mem::replace(&mut self.told, true);
                for (secret, request) in changes {
                    self.request(secret, request, first, now);
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

    /// Returns the steps to perform now.
    pub(crate) fn advance(&mut self, now: Now) -> Vec<PlanStep> {
        while let Some((at, _)) = self.timers.first()
            && *at <= now.steady
            && let Some((_, secret)) = self.timers.pop_first()
        {
            if let Some(entry) = self.entries.get_mut(&secret) {
                entry.wake = None;
                self.dirty.insert(secret);
            }
        }
        // A certificate that gives up a name or a slot makes those that wait for it dirty again. A few rounds nearly
        // always reach all of them, and the next step takes the rest.
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

    /// When [`Self::advance`] is due even if nothing is learnt.
    pub(crate) fn next(&self, now: Now) -> Duration {
        let longest = now.steady + LONGEST_REST;
        if !self.dirty.is_empty() {
            return now.steady;
        }
        let timer = self.timers.first().map_or(longest, |(at, _)| *at);
        let tokens = self.next_grant(now).unwrap_or(longest);
        let issuer = self.issuers.next().unwrap_or(longest);
        timer.min(tokens).min(issuer).min(longest)
    }

    /// Takes in a request, or its removal. `first` says that it is among the first that this process is told.
    fn request(
        &mut self,
        secret: ObjectName,
        request: Option<CertificateRequest>,
        first: bool,
        now: Now,
    ) {
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
            self.reconsider(&secret);
            return;
        }
        let entry = Entry {
            request,
            issuer: issuer.clone(),
            phase: Phase::Rest,
            ticket: None,
            stale: true,
            seen: false,
            counts: first,
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

    /// Drops a request and withdraws its challenges. Its order stays in the Secret and open at the CA, in case the
    /// request comes back.
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
            self.abandoned(secret, issuer, running.url, turn::UNWANTED);
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
