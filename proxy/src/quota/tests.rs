use proptest::prelude::*;

use super::*;

#[test]
fn while_something_is_short_requests_get_a_connection_for_each_client() {
    let accounts = TenantQuotas::default();
    let [many, few] = ["many", "few"].map(|tenant| accounts.of(&tenant.into()));
    let enough = quota_limits(1000);
    let scarce = QuotaLimits {
        scarce: true,
        ..enough
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(many.take(enough).unwrap());
    }
    for _ in 0..3 {
        held.push(many.take_backend_connection(scarce).unwrap());
    }
    assert!(many.take_backend_connection(scarce).is_none());
    held.push(few.take_backend_connection(scarce).unwrap());
    // With enough of everything, a client of HTTP/2 may have more.
    for _ in 0..20 {
        held.push(many.take_backend_connection(enough).unwrap());
    }
    assert!(many.take_backend_connection(scarce).is_none());
    held.push(few.take_backend_connection(scarce).unwrap());
    let (_, samples) = accounts.samples();
    let refused: Refused = samples
        .iter()
        .map(|of| of.backend_connections.refused)
        .sum();
    assert_eq!((refused.tenant_limit, refused.overload), (0, 2));
    drop(held);
    assert!(accounts.samples().1.iter().all(|of| of.held() == 0));
}

#[test]
fn while_something_is_short_who_has_few_clients_and_many_backends_waits() {
    let accounts = TenantQuotas::default();
    let [popular, greedy, new] =
        ["popular", "greedy", "new"].map(|tenant| accounts.of(&tenant.into()));
    let enough = quota_limits(10_000);
    let scarce = QuotaLimits {
        scarce: true,
        ..enough
    };
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(popular.take(enough).unwrap());
        held.push(popular.take_backend_connection(enough).unwrap());
    }
    for _ in 0..24 {
        held.push(greedy.take(enough).unwrap());
    }
    for _ in 0..2280 {
        held.push(greedy.take_backend_connection(enough).unwrap());
    }
    assert!(greedy.take(scarce).is_none());
    assert!(greedy.take_session(scarce).is_none());
    for _ in 0..100 {
        held.push(popular.take(scarce).unwrap());
        held.push(popular.take_backend_connection(scarce).unwrap());
    }
    held.push(new.take(scarce).unwrap());
    drop(held);
    let all = accounts.all.lock();
    assert_eq!((all.weight, all.holders), (0, 0));
}

fn quota_limits(all: usize) -> QuotaLimits {
    QuotaLimits {
        all,
        guaranteed_percent: 50,
        scarce: false,
    }
}

fn take_all(account: &Arc<TenantQuota>, quota_limits: QuotaLimits) -> Vec<QuotaGuard> {
    std::iter::from_fn(|| account.take(quota_limits)).collect()
}

#[test]
fn places_that_are_kept_for_other_tenants_are_not_lent() {
    let accounts = TenantQuotas::default();
    let [a, b, c] = ["a", "b", "c"].map(|tenant| accounts.of(&tenant.into()));
    let held = take_all(&a, quota_limits(60));
    assert_eq!(held.len(), 10 + 30);
    // Nothing is left to lend, and each has its share.
    let others = [
        take_all(&b, quota_limits(60)),
        take_all(&c, quota_limits(60)),
    ];
    assert_eq!(others.each_ref().map(Vec::len), [10, 10]);
    // What was lent is lent to somebody else once it is back.
    drop(held);
    assert_eq!(take_all(&b, quota_limits(60)).len(), 30);
}

#[test]
fn one_tenant_alone_may_have_everything() {
    let accounts = TenantQuotas::default();
    let a = accounts.of(&"a".into());
    assert_eq!(take_all(&a, quota_limits(7)).len(), 7);
    // Without a guarantee it is who comes first.
    let none = QuotaLimits {
        guaranteed_percent: 0,
        ..quota_limits(7)
    };
    let b = accounts.of(&"b".into());
    assert_eq!(take_all(&b, none).len(), 7);
    let all = QuotaLimits {
        guaranteed_percent: 100,
        ..quota_limits(7)
    };
    assert_eq!(take_all(&b, all).len(), 3 + 1);
}

#[test]
fn while_something_is_scarce_nobody_gets_more_than_an_equal_part() {
    let accounts = TenantQuotas::default();
    let [a, b, c] = ["a", "b", "c"].map(|tenant| accounts.of(&tenant.into()));
    let (enough, scarce) = (
        quota_limits(600),
        QuotaLimits {
            scarce: true,
            ..quota_limits(600)
        },
    );
    let several = |account: &Arc<TenantQuota>, count: usize| -> Vec<QuotaGuard> {
        (0..count).filter_map(|_| account.take(enough)).collect()
    };
    let mut of_a = several(&a, 90);
    // It has all there is, so it gets no more.
    assert!(a.take(scarce).is_none());
    let of_b = several(&b, 10);
    assert!(a.take(scarce).is_none());
    // The others go on until they have as many, and whoever has none gets one.
    let more = take_all(&b, scarce);
    assert_eq!((of_b.len(), more.len()), (10, 80));
    assert!(c.take(scarce).is_some());
    // Where the share is used up as well, that is the reason, because more memory would not help.
    let full = QuotaLimits { all: 90, ..scarce };
    assert!(a.take(full).is_none());
    let (_, samples) = accounts.samples();
    let of_a_refused = samples.iter().find(|of| &*of.tenant == "a").unwrap();
    let by_reason = [("TenantLimit", 1), ("Overload", 2)];
    assert_eq!(of_a_refused.connections.refused.by_reason(), by_reason);
    of_a.truncate(20);
    assert!(a.take(scarce).is_some());
    assert!(b.take(scarce).is_none());
    assert!(b.take(enough).is_some());
}

fn limits(shares: u8, most: u32) -> TenantLimits {
    TenantLimits {
        shares,
        most_connections: NonZeroU32::new(most),
    }
}

#[test]
fn a_tenant_with_more_shares_is_sure_of_more_whatever_others_hold() {
    let accounts = TenantQuotas::default();
    // Before the tenant comes, and whether it comes or not.
    accounts.limit(&[
        ("a".into(), Some(limits(3, 0))),
        ("absent".into(), Some(limits(100, 0))),
    ]);
    let [a, b, c] = ["a", "b", "c"].map(|tenant| accounts.of(&tenant.into()));
    let of_b = take_all(&b, quota_limits(100));
    assert_eq!(of_b.len(), 10 + 50);
    let others = [&a, &c].map(|account| take_all(account, quota_limits(100)));
    assert_eq!(others.each_ref().map(Vec::len), [30, 10]);
    // The same holds for sessions.
    let sessions = |account: &Arc<TenantQuota>| -> Vec<QuotaGuard> {
        std::iter::from_fn(|| account.take_session(quota_limits(100))).collect()
    };
    let sessions = [&b, &a, &c].map(sessions);
    assert_eq!(sessions.each_ref().map(Vec::len), [60, 30, 10]);
    // Whoever is alone has everything, with however many shares.
    drop((of_b, others, sessions, b, c));
    assert_eq!(take_all(&a, quota_limits(100)).len(), 100);
    let (_, samples) = accounts.samples();
    assert_eq!((&*samples[0].tenant, samples[0].shares), ("a", 3));
    assert_eq!(accounts.limited(), 2);
}

#[test]
fn a_tenant_has_no_more_connections_than_the_configuration_allows() {
    let accounts = TenantQuotas::default();
    let a = accounts.of(&"a".into());
    accounts.limit(&[("a".into(), Some(limits(1, 5)))]);
    let of_a = take_all(&a, quota_limits(100));
    assert_eq!(of_a.len(), 5);
    assert_eq!(accounts.samples().1[0].connections.refused.tenant_limit, 1);
    // The limit is one of clients' connections alone.
    let sessions: Vec<_> = std::iter::from_fn(|| a.take_session(quota_limits(100))).collect();
    let backends: Vec<_> =
        std::iter::from_fn(|| a.take_backend_connection(quota_limits(100))).collect();
    assert_eq!((sessions.len(), backends.len()), (100, 100));
    // What is above the limit of a is kept for nobody.
    let b = accounts.of(&"b".into());
    assert_eq!(take_all(&b, quota_limits(100)).len(), 25 + 70);
    // A lower limit ends none of its connections.
    accounts.limit(&[("a".into(), Some(limits(1, 3)))]);
    let mut of_a = of_a;
    for _ in 0..2 {
        assert!(a.take(quota_limits(100)).is_none());
        drop(of_a.pop());
    }
    assert!(a.take(quota_limits(100)).is_none());
    drop(of_a.pop());
    of_a.extend(a.take(quota_limits(100)));
    assert_eq!(of_a.len(), 3);
    accounts.limit(&[("a".into(), None)]);
    assert!(a.take(quota_limits(100)).is_some());
    assert_eq!(accounts.limited(), 0);
}

#[test]
fn a_change_of_shares_breaks_no_connection_and_holds_from_then_on() {
    let accounts = TenantQuotas::default();
    let [a, b] = ["a", "b"].map(|tenant| accounts.of(&tenant.into()));
    let mut of_a = take_all(&a, quota_limits(40));
    assert_eq!(of_a.len(), 10 + 20);
    accounts.limit(&[("b".into(), Some(limits(3, 0)))]);
    // Now 25 of them count as lent, and that is more than there are to lend. So b has its 15, and no more.
    assert!(a.take(quota_limits(40)).is_none());
    let of_b = take_all(&b, quota_limits(40));
    assert_eq!((of_a.len(), of_b.len()), (30, 15));
    // Enough of them have to end before one is lent again.
    of_a.truncate(25);
    assert!(a.take(quota_limits(40)).is_none());
    assert!(b.take(quota_limits(40)).is_none());
    of_a.pop();
    assert!(b.take(quota_limits(40)).is_some());
    // The shares change hands in one step, so there are as many as before.
    accounts.limit(&[("a".into(), Some(limits(3, 0))), ("b".into(), None)]);
    drop(of_b);
    of_a.extend(take_all(&a, quota_limits(40)));
    assert_eq!(of_a.len(), 15 + 20);
    assert_eq!(take_all(&b, quota_limits(40)).len(), 5);
    drop(of_a);
    let all = accounts.all.lock();
    assert_eq!((all.connections.lent, all.connections.held), (0, 0));
}

#[test]
fn accounts_that_nobody_has_are_no_tenants() {
    let accounts = TenantQuotas::default();
    let a = accounts.of(&"a".into());
    let again = accounts.of(&"a".into());
    assert!(Arc::ptr_eq(&a, &again));
    let quota_guard = accounts.of(&"b".into()).take(quota_limits(40)).unwrap();
    assert_eq!(take_all(&a, quota_limits(40)).len(), 10 + 20);
    drop(quota_guard);
    assert_eq!(take_all(&a, quota_limits(40)).len(), 40);
    drop((a, again));
    assert!(accounts.all.lock().tenants.is_empty());
}

#[test]
fn udp_sessions_and_connections_take_no_places_from_each_other() {
    let accounts = TenantQuotas::default();
    let a = accounts.of(&"a".into());
    let limits = quota_limits(4);
    let connections = take_all(&a, limits);
    let sessions: Vec<_> = std::iter::from_fn(|| a.take_session(limits)).collect();
    assert_eq!((connections.len(), sessions.len()), (4, 4));
    assert_eq!(accounts.held(), 4);
    drop(connections);
    assert!(a.take_session(limits).is_none());
    let (_, samples) = accounts.samples();
    let [connections, sessions_of_a] = [samples[0].connections, samples[0].sessions];
    assert_eq!(connections.refused.by_reason()[0], ("TenantLimit", 1));
    assert_eq!(sessions_of_a.refused.by_reason()[0], ("TenantLimit", 2));
    assert_eq!(sessions_of_a.held, 4);
    drop(sessions);
    assert!(a.take_session(limits).is_some());
}

#[test]
fn series_are_bounded() {
    let accounts = TenantQuotas::default();
    let all: Vec<_> = (0..MAX_SERIES + 5)
        .map(|n| accounts.of(&format!("team-{n}").into()))
        .collect();
    let first = |account: &Arc<TenantQuota>| account.take(quota_limits(MAX_SERIES * 10));
    let held: Vec<_> = all.iter().filter_map(first).collect();
    let ([share, _], samples) = accounts.samples();
    assert_eq!((share, held.len()), (4, MAX_SERIES + 5));
    assert_eq!(samples.len(), MAX_SERIES + 1);
    let last = samples.last().unwrap();
    assert_eq!((&*last.tenant, last.connections.held), ("", 5));
}

/// Most places that tenants with one share each hold together at any time, if there are never more than `tenants` of them: all
/// places, half of the reserved ones, a third of them, and so on.
///
/// After a place was borrowed, no more places are held than there are, because what is lent and what is guaranteed to all fit
/// into them. So as long as more are held, tenants take only what they are guaranteed. Look back from such a moment to the last
/// one at which no more were held than there are, and call those who took a place since then the takers. Consider only who still
/// holds something, because whoever holds a place counts as a tenant all the time. Sort the takers by their last take. At the
/// last take of the n-th, at least n tenants were there, so this one has an n-th of the reserved places at most.
///
/// - If somebody holds something and took nothing, there was one tenant more each time. Those who took nothing have no more than
///   all places, and the takers have a half of the reserved ones, a third, and so on.
/// - If all of them are takers, the first has all reserved places at most, and the others have a half, a third, and so on.
fn most_held(quota_limits: QuotaLimits, tenants: usize) -> usize {
    let newcomers = (2..=tenants).map(|there| guaranteed(quota_limits.reserved(), 1, there));
    quota_limits.all + newcomers.sum::<usize>()
}

/// Nobody can promise less than [`most_held`]: one tenant borrows everything, and the others come one after the other.
#[test]
fn newcomers_get_their_shares_of_what_is_lent_already() {
    for guaranteed_percent in [0, 50, 100] {
        let quota_limits = QuotaLimits {
            all: 60,
            guaranteed_percent,
            scarce: false,
        };
        let accounts = TenantQuotas::default();
        let mut known = Vec::new();
        let mut held = Vec::new();
        for tenants in 1..=6_usize {
            let account = accounts.of(&tenants.to_string().into());
            held.extend(take_all(&account, quota_limits));
            known.push(account);
            assert_eq!(held.len(), most_held(quota_limits, tenants));
        }
    }
}

proptest! {
    /// With tenants that come and go, and whatever each of them does.
    #[test]
    fn tenant_below_its_share_is_never_refused(
        all in 0_usize..60,
        percent in 0_u8..=100,
        steps in prop::collection::vec((0_usize..6, 0_u8..8), 0..300),
    ) {
        let quota_limits = QuotaLimits { all, guaranteed_percent: percent, scarce: false };
        let accounts = TenantQuotas::default();
        let mut known: [Option<Arc<TenantQuota>>; 6] = Default::default();
        let mut held: [Vec<QuotaGuard>; 6] = Default::default();
        let bound = most_held(quota_limits, known.len());
        for (who, what) in steps {
            match what {
                0 => known[who] = None,
                1 | 2 => drop(held[who].pop()),
                _ => {
                    let account = accounts.of(&who.to_string().into());
                    known[who] = Some(Arc::clone(&account));
                    let quota_guard = account.take(quota_limits);
                    let tenants = accounts.all.lock().tenants.len();
                    let share = guaranteed(quota_limits.reserved(), 1, tenants);
                    if held[who].len() < share {
                        prop_assert!(quota_guard.is_some());
                    } else if quota_guard.is_some() {
                        let lent: usize = held.iter().map(|of| of.len().saturating_sub(share)).sum();
                        prop_assert!(lent < all - share * tenants);
                    }
                    held[who].extend(quota_guard);
                }
            }
            let total: usize = held.iter().map(Vec::len).sum();
            prop_assert!(total <= bound);
        }
        held.iter_mut().for_each(Vec::clear);
        let all = accounts.all.lock();
        let pool = &all.connections;
        prop_assert_eq!((pool.lent, pool.held), (0, 0));
        prop_assert_eq!((all.weight, all.holders), (0, 0));
        prop_assert!(all.tenants.values().all(|tenant| tenant.connections.held == 0));
    }

    /// With shares and limits that change at any time, compared with a plain reading of the rule.
    #[test]
    fn guarantees_and_limits_hold_whatever_the_configuration_says(
        all in 0_usize..60,
        percent in 0_u8..=100,
        steps in prop::collection::vec((0_usize..4, 0_u8..9, 1_u8..6, 0_u32..20), 0..300),
    ) {
        let quota_limits = QuotaLimits { all, guaranteed_percent: percent, scarce: false };
        let accounts = TenantQuotas::default();
        let mut known: [Option<Arc<TenantQuota>>; 4] = Default::default();
        let mut held: [Vec<QuotaGuard>; 4] = Default::default();
        let mut said = [TenantLimits::default(); 4];
        for (who, what, shares, most) in steps {
            let name: Arc<str> = who.to_string().into();
            match what {
                0 => known[who] = None,
                1 | 2 => drop(held[who].pop()),
                3 => {
                    said[who] = limits(shares, most);
                    accounts.limit(&[(name, Some(said[who]))]);
                }
                4 => {
                    said[who] = TenantLimits::default();
                    accounts.limit(&[(name, None)]);
                }
                _ => {
                    let account = accounts.of(&name);
                    known[who] = Some(Arc::clone(&account));
                    let here: Vec<usize> = (0..4)
                        .filter(|n| known[*n].is_some() || !held[*n].is_empty())
                        .collect();
                    let shares: usize = here.iter().map(|n| usize::from(said[*n].shares)).sum();
                    let most = |n: usize| {
                        let most = said[n].most_connections;
                        most.map_or(usize::MAX, |most| most.get() as usize)
                    };
                    let sure = |n: usize| {
                        let part = quota_limits.reserved() * usize::from(said[n].shares) / shares;
                        part.min(most(n))
                    };
                    let kept: usize = here.iter().map(|n| sure(*n)).sum();
                    prop_assert!(kept <= quota_limits.reserved());
                    let over = here.iter().map(|n| held[*n].len().saturating_sub(sure(*n)));
                    let lent: usize = over.sum();
                    let has = held[who].len();
                    let may = has < most(who) && (has < sure(who) || lent < all - kept);
                    let quota_guard = account.take(quota_limits);
                    prop_assert_eq!(quota_guard.is_some(), may);
                    held[who].extend(quota_guard);
                }
            }
        }
        held.iter_mut().for_each(Vec::clear);
        let here = known.iter().zip(&said).filter(|(account, _)| account.is_some());
        let shares: usize = here.map(|(_, said)| usize::from(said.shares)).sum();
        let all = accounts.all.lock();
        prop_assert_eq!((all.connections.lent, all.connections.held), (0, 0));
        prop_assert_eq!((all.shares, all.weight, all.holders), (shares, 0, 0));
    }
}
