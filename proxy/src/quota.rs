//! Owns the quota of connections and UDP sessions for each tenant. A part of all places is reserved for the tenants, in
//! equal shares. A tenant has one of them, or as many as the configuration says. The rest is lent to any tenant that
//! asks. Connections, connections to backends, and sessions have separate places.
//!
//! A tenant that holds less than what its shares guarantee always gets a place, whatever the others do, because lent
//! places are never taken from the reserved part. A tenant that holds all of that gets more as long as there are places to
//! lend, and as long as it has fewer than the configuration allows it. A place that was lent is not called back. If there
//! are too many, it is not lent again after its connection has ended.
//!
//! What each tenant is guaranteed changes when a tenant comes, goes or has other shares. Then it is counted anew how much
//! is lent. Nobody loses a place by that: what a tenant holds above its new guarantee counts as lent.
//!
//! While memory or files run short, all kinds count together, and a tenant that uses an equal part of them or more gets no
//! further place.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::iter::Sum;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use vestibule_serve::log_queue::{Share, Turn};

use crate::close_reason::CloseReason;
use crate::rate::RateLimit;

/// Most tenants with series of their own: those that hold most, or were refused most. The others share one series with
/// an empty label.
const MAX_SERIES: usize = 1000;

/// How many places there are, and how many of them are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaLimits {
    /// Number of all places.
    pub(crate) all: usize,
    /// Percentage of them that is reserved for the tenants.
    pub(crate) guaranteed_percent: u8,
    /// Whether the proxy is overloaded. Then a tenant gets no more while it uses an equal part of memory and files or
    /// more, whatever kind of place it asks for.
    pub(crate) scarce: bool,
}

impl QuotaLimits {
    /// How many places are reserved for the tenants.
    fn reserved(self) -> usize {
        let percent = usize::from(self.guaranteed_percent.min(100));
        self.all / 100 * percent + self.all % 100 * percent / 100
    }
}

/// How many of `reserved` places are guaranteed to a tenant that has `shares` of `all` shares. It is rounded down, so all
/// tenants together are guaranteed no more than what is reserved.
fn guaranteed(reserved: usize, shares: usize, all: usize) -> usize {
    let all = all.max(1);
    // This is `reserved * shares / all`. The product of all places and a number of shares may be too large.
    reserved / all * shares + reserved % all * shares / all
}

/// What the configuration says about the places of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TenantLimits {
    /// For how many equal shares of the reserved places it counts.
    pub(crate) shares: u8,
    /// Most connections of clients at one time, those that are lent included.
    pub(crate) most_connections: Option<NonZeroU32>,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self {
            shares: 1,
            most_connections: None,
        }
    }
}

/// The quotas of all tenants with configuration in force or with a connection. Clones share them.
#[derive(Clone, Default)]
pub struct TenantQuotas {
    all: Arc<Mutex<All>>,
    nobody: Arc<TenantCounters>,
}

#[derive(Default)]
struct All {
    tenants: HashMap<Arc<str>, Tenant>,
    /// What the configuration says about tenants, also about those that are not among `tenants` (yet).
    limits: HashMap<Arc<str>, TenantLimits>,
    /// Shares of all `tenants` together.
    shares: usize,
    /// Counts the changes of who the tenants are and of their limits.
    version: u64,
    connections: Pool,
    sessions: Pool,
    backend_connections: Pool,
    /// The [weight](Tenant::weight) of all tenants together.
    weight: usize,
    /// Tenants that hold any place.
    holders: usize,
}

/// The places of one kind.
///
/// `lent` is the sum of what each tenant holds above its guarantee. Each place that is taken or given back keeps it so, and
/// a change of the guarantees counts it anew. So the tenants hold at most `guaranteed + lent` places. A place is lent
/// only if this sum stays within all places, so a tenant below its guarantee needs no place of another one. After a
/// change of the guarantees, more places may be held than there are, until some that were lent come back.
#[derive(Default)]
struct Pool {
    /// What `guaranteed` and `lent` were counted with.
    basis: QuotaBasis,
    /// Places that are guaranteed to all tenants together.
    guaranteed: usize,
    /// Places that tenants hold beyond what is guaranteed to them.
    lent: usize,
    /// Places that tenants hold.
    held: usize,
}

/// What the guarantee of a tenant depends on, besides its own limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct QuotaBasis {
    /// Number of places that are reserved.
    reserved: usize,
    /// [`All::shares`].
    shares: usize,
    /// [`All::version`].
    version: u64,
}

impl QuotaBasis {
    /// Number of places of a kind that a tenant can always have. It cannot use what is above its limit, so that is left to
    /// others.
    fn guaranteed_to(self, tenant: &Tenant, kind: Kind) -> usize {
        let shares = usize::from(tenant.limits.shares);
        let guaranteed = guaranteed(self.reserved, shares, self.shares);
        tenant
            .most(kind)
            .map_or(guaranteed, |most| guaranteed.min(most))
    }
}

/// What there are places for.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Connections,
    Sessions,
    /// Connections to backends for requests. A client of HTTP/2 can cause a hundred of them with one connection.
    BackendConnections,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Connections, Self::Sessions, Self::BackendConnections];
}

struct Tenant {
    account: Weak<TenantQuota>,
    limits: TenantLimits,
    connections: Taken,
    sessions: Taken,
    backend_connections: Taken,
}

/// The places of one kind that a tenant holds.
#[derive(Clone, Copy, Default)]
struct Taken {
    held: usize,
    refused: Refused,
}

/// How many places of one kind a tenant asked for and did not get, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refused {
    /// It held its whole share, and there was nothing to lend; or it held all that the configuration allows it.
    tenant_limit: u64,
    /// Memory, files or connections were short, and it used an equal part of them or more.
    overload: u64,
}

impl Sum for Refused {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, of| Self {
            tenant_limit: sum.tenant_limit + of.tenant_limit,
            overload: sum.overload + of.overload,
        })
    }
}

impl Refused {
    fn total(self) -> u64 {
        self.tenant_limit + self.overload
    }

    /// The counts with the words for their reasons.
    fn by_reason(self) -> [(&'static str, u64); 2] {
        [
            (CloseReason::TenantLimit.reason(), self.tenant_limit),
            (CloseReason::Overload.reason(), self.overload),
        ]
    }
}

impl Tenant {
    fn taken(&self, kind: Kind) -> &Taken {
        match kind {
            Kind::Connections => &self.connections,
            Kind::Sessions => &self.sessions,
            Kind::BackendConnections => &self.backend_connections,
        }
    }

    /// Most places of a kind that it may hold, if the configuration limits them.
    fn most(&self, kind: Kind) -> Option<usize> {
        let is_limited = matches!(kind, Kind::Connections);
        let most = self.limits.most_connections.filter(|_| is_limited)?;
        Some(usize::try_from(most.get()).unwrap_or(usize::MAX))
    }

    /// How much of memory and open files the tenant uses, in files. A connection of a client has one, and a second one to
    /// its backend, now or soon. A client of HTTP/2 can have a hundred to backends. So a tenant with few connections may
    /// use most of what is short.
    fn weight(&self) -> usize {
        let [clients, backends] = [&self.connections, &self.backend_connections].map(|of| of.held);
        clients + clients.max(backends) + self.sessions.held
    }

    fn taken_mut(&mut self, kind: Kind) -> &mut Taken {
        match kind {
            Kind::Connections => &mut self.connections,
            Kind::Sessions => &mut self.sessions,
            Kind::BackendConnections => &mut self.backend_connections,
        }
    }
}

/// Further counters of a tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantCounters {
    refused_handshakes: AtomicU64,
    /// Rate of lines in the log.
    lines: RateLimit,
    /// Its lines that wait for the reader of the log.
    log: Arc<Share>,
}

impl TenantCounters {
    /// Counts a handshake that was dropped because too many waited.
    pub(crate) fn refused_handshake(&self) {
        self.refused_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused_handshakes(&self) -> u64 {
        self.refused_handshakes.load(Ordering::Relaxed)
    }

    /// The turn for one more line of the log, if fewer than `per_second` were written in this second. `now` is
    /// [`crate::rate::now`].
    pub(crate) fn line(&self, per_second: u32, now: u64) -> Option<Turn> {
        let may = self.lines.take(per_second, now);
        if !may {
            self.log.lost();
        }
        may.then(|| Turn::of(&self.log))
    }

    /// Number of its lines that were left out of the log.
    pub(crate) fn dropped_lines(&self) -> u64 {
        self.log.dropped()
    }
}

impl fmt::Debug for TenantQuotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.all.lock().tenants.len();
        f.debug_tuple("TenantQuotas").field(&known).finish()
    }
}

/// The quota of one tenant. The tenant counts as long as something holds this.
#[derive(Debug)]
pub(crate) struct TenantQuota {
    tenant: Arc<str>,
    counts: TenantCounters,
    all: TenantQuotas,
}

/// A connection or UDP session that counts against its tenant's quota until this is dropped.
#[derive(Debug)]
pub(crate) struct QuotaGuard {
    account: Arc<TenantQuota>,
    kind: Kind,
}

impl TenantQuotas {
    /// The quota of `tenant`.
    pub(crate) fn of(&self, tenant: &Arc<str>) -> Arc<TenantQuota> {
        let mut all = self.all.lock();
        let known = all.tenants.get_mut(tenant);
        if let Some(account) = known.as_ref().and_then(|known| known.account.upgrade()) {
            return account;
        }
        let account = Arc::new(TenantQuota {
            tenant: Arc::clone(tenant),
            counts: TenantCounters::default(),
            all: self.clone(),
        });
        if let Some(known) = known {
            // The former quota is just being dropped by another thread.
            known.account = Arc::downgrade(&account);
        } else {
            let new = Tenant {
                account: Arc::downgrade(&account),
                limits: all.limits.get(tenant).copied().unwrap_or_default(),
                connections: Taken::default(),
                sessions: Taken::default(),
                backend_connections: Taken::default(),
            };
            all.add(Arc::clone(tenant), new);
        }
        account
    }

    /// Takes what the configuration says about tenants from now on. `None` means that it says nothing any more. A tenant
    /// keeps what it holds.
    pub(crate) fn limit(&self, changes: &[(Arc<str>, Option<TenantLimits>)]) {
        if !changes.is_empty() {
            self.all.lock().limit(changes);
        }
    }

    /// What the configuration says about tenants, in order of their names.
    pub(crate) fn limits(&self) -> Vec<(Arc<str>, TenantLimits)> {
        let all = self.all.lock();
        let limits = all.limits.iter();
        let mut limits: Vec<_> = limits.map(|(name, of)| (Arc::clone(name), *of)).collect();
        drop(all);
        limits.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        limits
    }

    /// Number of tenants about which the configuration says something.
    pub(crate) fn limited(&self) -> usize {
        self.all.lock().limits.len()
    }

    /// The quota of `tenant`, if it has one already.
    pub(crate) fn find(&self, tenant: &str) -> Option<Arc<TenantQuota>> {
        self.all.lock().tenants.get(tenant)?.account.upgrade()
    }

    /// Counters for connections that belong to no tenant.
    pub(crate) fn nobody(&self) -> &TenantCounters {
        &self.nobody
    }

    /// Number of places of connections that are in use.
    pub(crate) fn held(&self) -> usize {
        self.all.lock().connections.held
    }
}

impl TenantQuota {
    /// The namespace.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    pub(crate) fn counts(&self) -> &TenantCounters {
        &self.counts
    }

    /// Takes a place for a connection, if this tenant may have one more.
    pub(crate) fn take(self: &Arc<Self>, quota_limits: QuotaLimits) -> Option<QuotaGuard> {
        self.take_of(Kind::Connections, quota_limits)
    }

    /// Takes a place for a UDP session, if this tenant may have one more.
    pub(crate) fn take_session(self: &Arc<Self>, quota_limits: QuotaLimits) -> Option<QuotaGuard> {
        self.take_of(Kind::Sessions, quota_limits)
    }

    /// Takes a place for a connection to a backend, if this tenant may have one more. There are as many of these places
    /// as of connections of clients, shared in the same way.
    pub(crate) fn take_backend_connection(
        self: &Arc<Self>,
        quota_limits: QuotaLimits,
    ) -> Option<QuotaGuard> {
        self.take_of(Kind::BackendConnections, quota_limits)
    }

    fn take_of(self: &Arc<Self>, kind: Kind, quota_limits: QuotaLimits) -> Option<QuotaGuard> {
        let mut all = self.all.all.lock();
        let taken = all.take(kind, &self.tenant, quota_limits);
        taken.then(|| QuotaGuard {
            account: Arc::clone(self),
            kind,
        })
    }
}

impl Drop for TenantQuota {
    fn drop(&mut self) {
        let mut all = self.all.all.lock();
        // Meanwhile another thread may have made a new quota for this tenant.
        let gone = |tenant: &Tenant| tenant.account.strong_count() == 0;
        if all.tenants.get(&self.tenant).is_some_and(gone) {
            all.remove(&self.tenant);
        }
    }
}

impl QuotaGuard {
    /// The quota to which the place belongs.
    pub(crate) fn account(&self) -> &Arc<TenantQuota> {
        &self.account
    }

    /// Whether the place belongs to this quota.
    pub(crate) fn is_of(&self, account: &Arc<TenantQuota>) -> bool {
        Arc::ptr_eq(&self.account, account)
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        let mut all = self.account.all.all.lock();
        all.give_back(self.kind, &self.account.tenant);
    }
}

impl All {
    /// The places of a kind, and the tenants who share them.
    fn of(&mut self, kind: Kind) -> (&mut Pool, &mut HashMap<Arc<str>, Tenant>) {
        let pool = match kind {
            Kind::Connections => &mut self.connections,
            Kind::Sessions => &mut self.sessions,
            Kind::BackendConnections => &mut self.backend_connections,
        };
        (pool, &mut self.tenants)
    }

    fn add(&mut self, name: Arc<str>, tenant: Tenant) {
        self.shares += usize::from(tenant.limits.shares);
        self.version += 1;
        self.tenants.insert(name, tenant);
    }

    fn remove(&mut self, tenant: &str) {
        if let Some(tenant) = self.tenants.remove(tenant) {
            self.shares -= usize::from(tenant.limits.shares);
            self.version += 1;
        }
    }

    fn limit(&mut self, changes: &[(Arc<str>, Option<TenantLimits>)]) {
        for (name, limits) in changes {
            match limits {
                Some(limits) => _ = self.limits.insert(Arc::clone(name), *limits),
                None => _ = self.limits.remove(name),
            }
            if let Some(tenant) = self.tenants.get_mut(name) {
                let former = std::mem::replace(&mut tenant.limits, limits.unwrap_or_default());
                self.shares -= usize::from(former.shares);
                self.shares += usize::from(tenant.limits.shares);
                self.version += 1;
            }
        }
        // What is given back until the next place is taken has to be counted with the new limits as well.
        for kind in Kind::ALL {
            let reserved = self.of(kind).0.basis.reserved;
            self.count(kind, self.basis(reserved));
        }
    }

    /// The present basis of guarantees, with so many reserved places.
    fn basis(&self, reserved: usize) -> QuotaBasis {
        QuotaBasis {
            reserved,
            shares: self.shares,
            version: self.version,
        }
    }

    /// Counts what is guaranteed and what is lent of a kind.
    fn count(&mut self, kind: Kind, basis: QuotaBasis) {
        let (pool, tenants) = self.of(kind);
        (pool.basis, pool.guaranteed, pool.lent) = (basis, 0, 0);
        for tenant in tenants.values() {
            let guaranteed = basis.guaranteed_to(tenant, kind);
            pool.guaranteed += guaranteed;
            pool.lent += tenant.taken(kind).held.saturating_sub(guaranteed);
        }
    }

    fn take(&mut self, kind: Kind, tenant: &str, quota_limits: QuotaLimits) -> bool {
        let basis = self.basis(quota_limits.reserved());
        if self.of(kind).0.basis != basis {
            self.count(kind, basis);
        }
        let (all_weight, holders) = (self.weight, self.holders);
        let (pool, all) = self.of(kind);
        let Some(tenant) = all.get_mut(tenant) else {
            return false;
        };
        let guaranteed = basis.guaranteed_to(tenant, kind);
        let most = tenant.most(kind);
        // While something is short, there is still a connection to a backend for each connection of a client.
        let is_covered = matches!(kind, Kind::BackendConnections)
            && tenant.backend_connections.held < tenant.connections.held;
        let weight = tenant.weight();
        let above_others = weight > 0 && weight * holders >= all_weight;
        let taken = tenant.taken_mut(kind);
        // Below its guarantee, a tenant takes a place that was never lent to anybody, so it needs no look at the others. Above
        // it, the place is a loan, and there are loans only for what the guarantees of all tenants leave.
        let borrows = taken.held >= guaranteed;
        let nothing_to_lend = pool.lent >= quota_limits.all.saturating_sub(pool.guaranteed);
        let has_most = most.is_some_and(|most| taken.held >= most);
        if (borrows && nothing_to_lend) || has_most {
            taken.refused.tenant_limit += 1;
            return false;
        }
        if quota_limits.scarce && above_others && !is_covered {
            taken.refused.overload += 1;
            return false;
        }
        taken.held += 1;
        pool.held += 1;
        pool.lent += usize::from(borrows);
        let more = tenant.weight() - weight;
        self.weight += more;
        self.holders += usize::from(weight == 0);
        true
    }

    fn give_back(&mut self, kind: Kind, tenant: &str) {
        let (pool, all) = self.of(kind);
        if let Some(tenant) = all.get_mut(tenant) {
            let before = tenant.weight();
            let guaranteed = pool.basis.guaranteed_to(tenant, kind);
            let taken = tenant.taken_mut(kind);
            pool.lent -= usize::from(taken.held > guaranteed);
            taken.held = taken.held.saturating_sub(1);
            pool.held = pool.held.saturating_sub(1);
            let after = tenant.weight();
            self.weight = self.weight.saturating_sub(before - after);
            self.holders -= usize::from(after == 0 && before > 0);
        }
    }
}

type ValueOf<T> = fn(&Sample) -> T;

/// The values of a tenant for the metrics.
struct Sample {
    tenant: Arc<str>,
    shares: usize,
    connections: Taken,
    sessions: Taken,
    backend_connections: Taken,
    refused_handshakes: u64,
    dropped_lines: u64,
}

impl Sample {
    fn of(name: &Arc<str>, tenant: &Tenant) -> (Self, Option<Arc<TenantQuota>>) {
        let account = tenant.account.upgrade();
        let counts = account.as_deref().map(TenantQuota::counts);
        let sample = Self {
            tenant: Arc::clone(name),
            shares: usize::from(tenant.limits.shares),
            connections: tenant.connections,
            sessions: tenant.sessions,
            backend_connections: tenant.backend_connections,
            refused_handshakes: counts.map_or(0, TenantCounters::refused_handshakes),
            dropped_lines: counts.map_or(0, TenantCounters::dropped_lines),
        };
        (sample, account)
    }

    fn is_empty(&self) -> bool {
        self.held() == 0 && self.wrongs() == 0
    }

    fn held(&self) -> usize {
        self.connections.held + self.sessions.held + self.backend_connections.held
    }

    /// How many of its connections, sessions, handshakes and log lines were refused or dropped. Tenants with most of
    /// them get a series first.
    fn wrongs(&self) -> u64 {
        let handshakes = self.refused_handshakes;
        let kinds = [self.connections, self.sessions, self.backend_connections];
        let refused: u64 = kinds.iter().map(|of| of.refused.total()).sum();
        refused + handshakes + self.dropped_lines
    }
}

impl TenantQuotas {
    /// What one share guarantees of connections and of sessions, and the values of all tenants.
    fn samples(&self) -> ([usize; 2], Vec<Sample>) {
        let all = self.all.lock();
        // The quotas are dropped after the lock is released, because dropping the last reference to one takes the
        // lock.
        let of = all.tenants.iter();
        let of: Vec<_> = of.map(|(name, of)| Sample::of(name, of)).collect();
        let share = |pool: &Pool| guaranteed(pool.basis.reserved, 1, pool.basis.shares);
        let shares = [&all.connections, &all.sessions].map(share);
        drop(all);
        let of = of.into_iter().map(|(sample, _)| sample);
        let mut samples: Vec<Sample> = of.filter(|sample| !sample.is_empty()).collect();
        samples.sort_unstable_by(|a, b| {
            (b.wrongs(), b.held(), &a.tenant).cmp(&(a.wrongs(), a.held(), &b.tenant))
        });
        let others = samples.split_off(samples.len().min(MAX_SERIES));
        let sum = |of: fn(&Sample) -> u64| others.iter().map(of).sum::<u64>();
        let taken = |of: fn(&Sample) -> Taken| Taken {
            held: others.iter().map(|sample| of(sample).held).sum(),
            refused: others.iter().map(|sample| of(sample).refused).sum(),
        };
        let others = Sample {
            tenant: "".into(),
            shares: others.iter().map(|sample| sample.shares).sum(),
            connections: taken(|of| of.connections),
            sessions: taken(|of| of.sessions),
            backend_connections: taken(|of| of.backend_connections),
            refused_handshakes: sum(|of| of.refused_handshakes),
            dropped_lines: sum(|of| of.dropped_lines) + self.nobody.dropped_lines(),
        };
        if !others.is_empty() {
            samples.push(others);
        }
        (shares, samples)
    }
}

impl Collector for TenantQuotas {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let ([connections, sessions], samples) = self.samples();
        let guaranteed = [
            (
                "tenant_guaranteed_connections",
                "Connections that a tenant with one share can have at one time, whatever the others have",
                connections,
            ),
            (
                "tenant_guaranteed_udp_sessions",
                "UDP sessions that a tenant with one share can have at one time, whatever the others have",
                sessions,
            ),
        ];
        for (name, help, share) in guaranteed {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(share).unwrap_or(i64::MAX)).encode(metric)?;
        }
        let held: [(&str, &str, ValueOf<usize>); 4] = [
            (
                "tenant_connection_shares",
                "Equal shares of the guaranteed connections and sessions for which the tenant counts",
                |of| of.shares,
            ),
            (
                "tenant_held_connections",
                "Connections that count towards what the tenant may have",
                |of| of.connections.held,
            ),
            (
                "tenant_held_udp_sessions",
                "UDP sessions that count towards what the tenant may have",
                |of| of.sessions.held,
            ),
            (
                "tenant_held_backend_connections",
                "Connections to backends for requests of the tenant's routes, idle ones included",
                |of| of.backend_connections.held,
            ),
        ];
        for (name, help, value) in held {
            encode_by_tenant(&mut encoder, (name, help), &samples, |sample| {
                ConstGauge::new(i64::try_from(value(sample)).unwrap_or(i64::MAX))
            })?;
        }
        let refused: [(&str, &str, ValueOf<Refused>); 3] = [
            (
                "tenant_refused_connections",
                "Connections and requests of the tenant refused, because of its share or of overload",
                |of| of.connections.refused,
            ),
            (
                "tenant_refused_udp_sessions",
                "Times that no UDP session of the tenant was begun, because of its share or of overload",
                |of| of.sessions.refused,
            ),
            (
                "tenant_refused_backend_connections",
                "Requests of the tenant refused without a connection to a backend, because of its share or of overload",
                |of| of.backend_connections.refused,
            ),
        ];
        for (name, help, value) in refused {
            encode_refused(&mut encoder, (name, help), &samples, value)?;
        }
        let counters: [(&str, &str, ValueOf<u64>); 2] = [
            (
                "tenant_refused_handshakes",
                "TLS handshakes given up because too many of the tenant waited",
                |of| of.refused_handshakes,
            ),
            (
                "tenant_log_lines_dropped",
                "Lines of the log left out because the tenant had all that it may have in a second, or waiting",
                |of| of.dropped_lines,
            ),
        ];
        for (name, help, value) in counters {
            encode_by_tenant(&mut encoder, (name, help), &samples, |sample| {
                ConstCounter::new(value(sample))
            })?;
        }
        Ok(())
    }
}

/// Writes one counter, with a series for each sample and reason. A series is there before it counts anything, so that
/// Prometheus sees the first increase.
fn encode_refused(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    samples: &[Sample],
    value: ValueOf<Refused>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for sample in samples {
        for (reason, count) in value(sample).by_reason() {
            let labels = [("tenant", &*sample.tenant), ("reason", reason)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Writes one metric, with a series for each sample.
fn encode_by_tenant<M: EncodeMetric + TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    samples: &[Sample],
    metric: impl Fn(&Sample) -> M,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, M::TYPE)?;
    for sample in samples {
        let labels = [("tenant", &*sample.tenant)];
        metric(sample).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
