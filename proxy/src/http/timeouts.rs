//! Owns the timeouts of a request: for one attempt, for all of it, and for the time without progress.
//!
//! Until the head of the response, the first two are as precise as a timer. After that, and for progress, a request is
//! checked once in each tick of `lifetime`. An attempt ends with the end of its response, not with its head.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::bounds::Bounds;
use crate::http_route::route::Rule;
use crate::lifetime::{Alarm, in_ticks, ticks};
use crate::limits::SHORTEST_STREAM_IDLE;
use crate::overload::{Overload, OverloadLevel};

/// The tick at which a byte of a request or its response moved last.
#[derive(Debug)]
pub(super) struct RequestProgress(AtomicU32);

impl RequestProgress {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(ticks()))
    }

    pub(super) fn moved(&self) {
        self.0.store(ticks(), Ordering::Relaxed);
    }

    /// The tick at which it will have been without progress for too long.
    fn over(&self, idle: u32) -> u32 {
        self.0.load(Ordering::Relaxed).saturating_add(idle)
    }
}

/// The time that a request may take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowed {
    /// Most ticks without progress.
    idle: Option<u32>,
    /// Time from the request's head to the end of its response, for all attempts together.
    request: Option<Duration>,
    /// Whether the client chose `request`.
    by_client: bool,
    /// Time of one attempt, up to the end of its response.
    backend: Option<Duration>,
    /// Time from the request's head to the beginning of the attempt that is under way.
    begun: Duration,
}

/// Which of these times is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    Idle,
    Request,
    Backend,
}

impl Late {
    /// The word for metrics and logs.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Idle => "StreamIdleTimeout",
            Self::Request => "RequestTimeout",
            Self::Backend => "BackendTimeout",
        }
    }
}

impl Allowed {
    /// The timeouts of a rule or, if it sets none, those of the listener. In a rule, zero means that there is no limit.
    pub(super) fn of(rule: &Rule, bounds: &Bounds) -> Self {
        Self {
            idle: bounds.stream_idle.map(in_ticks),
            request: match rule.request_timeout {
                None => bounds.request,
                Some(time) => (!time.is_zero()).then_some(time),
            },
            by_client: false,
            backend: rule.backend_timeout,
            begun: Duration::ZERO,
        }
    }

    /// The same for an attempt that begins when `elapsed` has passed since the request's head.
    pub(super) fn beginning_at(mut self, elapsed: Duration) -> Self {
        self.begun = elapsed;
        self
    }

    /// Does not count `time` for the attempt that is under way, because the proxy took nothing from the backend.
    pub(super) fn pause(&mut self, time: Duration) {
        self.begun = self.begun.saturating_add(time);
    }

    /// Bounds the request by the time that its client waits.
    pub(super) fn at_most(mut self, time: Option<Duration>) -> Self {
        if let Some(time) = time.filter(|time| self.request.is_none_or(|all| *time < all)) {
            self.request = Some(time);
            self.by_client = true;
        }
        self
    }

    /// Whether the client chose the time that is over. Then it says nothing about the backend, because a client can
    /// choose a time in which no backend answers.
    pub(super) fn is_of_client(&self, late: Late) -> bool {
        self.by_client && late == Late::Request
    }

    /// Runs an attempt that begins now, and ends it if it takes too long. Each attempt may take as long as `backend` says,
    /// and all of them together as long as `request` says. While nothing moves, it waits for less time in overload.
    pub(super) async fn run<F: Future>(
        &self,
        progress: &RequestProgress,
        overload: &Overload,
        attempt: Pin<&mut F>,
    ) -> Result<F::Output, Late> {
        let attempt = while_moving(self.idle, progress, overload, attempt);
        let Some((time, late)) = self.next_end(self.begun) else {
            return attempt.await;
        };
        // If the time is over already, no backend gets the request.
        if time.is_zero() {
            return Err(late);
        }
        let ended = tokio::time::timeout(time, attempt).await;
        ended.unwrap_or(Err(late))
    }

    /// The time that is left for all attempts, if it is bounded.
    pub(super) fn left(&self, elapsed: Duration) -> Option<Duration> {
        self.request.map(|all| all.saturating_sub(elapsed))
    }

    /// How long the attempt may go on, and which limit ends it then.
    fn next_end(&self, elapsed: Duration) -> Option<(Duration, Late)> {
        let request = self.left(elapsed).map(|left| (left, Late::Request));
        let backend = self.backend.map(|all| {
            let taken = elapsed.saturating_sub(self.begun);
            (all.saturating_sub(taken), Late::Backend)
        });
        // If both are equal, this is the first one.
        let both = request.into_iter().chain(backend);
        both.min_by_key(|(left, _)| *left)
    }

    /// The timeouts for the rest of a response whose head has arrived.
    pub(super) fn rest(&self, elapsed: Duration) -> Option<Watch> {
        let end = self.next_end(elapsed);
        if self.idle.is_none() && end.is_none() {
            return None;
        }
        Some(Watch {
            idle: self.idle,
            end: end.map(|(left, late)| (ticks().saturating_add(in_ticks(left)), late)),
            alarm: Alarm::default(),
        })
    }
}

/// The ticks without progress that an attempt may have at a level of overload. Nearly out of something, the proxy does not
/// wait for any backend for long, because a request that waits holds its head and perhaps a body.
fn idle_at(idle: Option<u32>, step: OverloadLevel) -> Option<u32> {
    if step < OverloadLevel::Timeouts {
        return idle;
    }
    let most = in_ticks(SHORTEST_STREAM_IDLE);
    Some(idle.map_or(most, |idle| idle.min(most)))
}

/// Runs an attempt, and ends it if nothing moves for `idle` ticks, or for less in overload.
async fn while_moving<F: Future>(
    idle: Option<u32>,
    progress: &RequestProgress,
    overload: &Overload,
    mut attempt: Pin<&mut F>,
) -> Result<F::Output, Late> {
    let mut alarm = Alarm::default();
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = attempt.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        let now = ticks();
        let over = idle_at(idle, overload.step()).map(|idle| progress.over(idle));
        if over.is_some_and(|over| now >= over) {
            return Poll::Ready(Err(Late::Idle));
        }
        // The level may rise meanwhile. That wakes the tasks of connections, but not those of HTTP/2 requests.
        let look = now.saturating_add(in_ticks(SHORTEST_STREAM_IDLE));
        alarm.set(cx, over.map_or(look, |over| over.min(look)));
        Poll::Pending
    })
    .await
}

/// Timeouts of a response on its way.
#[derive(Debug)]
pub(super) struct Watch {
    idle: Option<u32>,
    /// The tick at which it must have ended, and the limit that ends it then.
    end: Option<(u32, Late)>,
    alarm: Alarm,
}

impl Watch {
    /// Ready when it takes too long. Until then, the task is woken when that may be the case.
    pub(super) fn poll(&mut self, cx: &Context<'_>, progress: &RequestProgress) -> Poll<Late> {
        let now = ticks();
        if let Some((end, late)) = self.end
            && now >= end
        {
            return Poll::Ready(late);
        }
        let idle = self.idle.map(|idle| progress.over(idle));
        if idle.is_some_and(|over| now >= over) {
            return Poll::Ready(Late::Idle);
        }
        let end = self.end.map(|(end, _)| end);
        if let Some(next) = idle.into_iter().chain(end).min() {
            self.alarm.set(cx, next);
        }
        Poll::Pending
    }

    /// Whether its end has passed, even if bytes still move.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some_and(|(end, _)| ticks() >= end)
    }
}

/// The error of a response that is cut off after its head was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer took too long")]
pub(super) struct AnswerCut;

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    use super::*;
    use crate::http_route::route::RuleParts;
    use crate::lifetime::advance;

    fn rule(request: Option<u64>, backend: Option<u64>) -> Rule {
        Rule::from(RuleParts {
            request_timeout: request.map(Duration::from_millis),
            backend_timeout: backend.map(Duration::from_millis),
            ..Default::default()
        })
    }

    fn no_bounds() -> Bounds {
        Bounds {
            stream_idle: None,
            ..Bounds::default()
        }
    }

    /// Returns which limit ends an attempt that never ends by itself, and after how long.
    async fn ended(allowed: &Allowed, elapsed: u64) -> (Late, Duration) {
        let begun = tokio::time::Instant::now();
        let never = pin!(std::future::pending::<()>());
        let allowed = allowed.beginning_at(Duration::from_millis(elapsed));
        let ended = allowed
            .run(&RequestProgress::new(), &Overload::default(), never)
            .await;
        (ended.unwrap_err(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_is_the_shorter_one() {
        for (request, backend, late, millis) in [
            (Some(5), None, Late::Request, 5),
            (None, Some(5), Late::Backend, 5),
            (Some(9), Some(5), Late::Backend, 5),
            (Some(5), Some(5), Late::Request, 5),
        ] {
            let allowed = Allowed::of(&rule(request, backend), &no_bounds());
            let (was, after) = ended(&allowed, 0).await;
            assert_eq!((was, after.as_millis()), (late, millis));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_try_has_its_own_time_and_all_have_one_together() {
        let allowed = Allowed::of(&rule(Some(9), Some(5)), &no_bounds());
        let (first, took) = ended(&allowed, 0).await;
        assert_eq!((first, took.as_millis()), (Late::Backend, 5));
        // The time of earlier attempts counts.
        let (second, took) = ended(&allowed, 5).await;
        assert_eq!((second, took.as_millis()), (Late::Request, 4));
        // If no time is left, no backend is asked.
        let mut asked = false;
        let attempt = pin!(async { asked = true });
        let allowed = allowed.beginning_at(Duration::from_millis(9));
        let third = allowed
            .run(&RequestProgress::new(), &Overload::default(), attempt)
            .await;
        assert_eq!(third, Err(Late::Request));
        assert!(!asked);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rule_comes_before_the_default_and_zero_is_no_limit() {
        let bounds = Bounds {
            request: Some(Duration::from_millis(7)),
            ..no_bounds()
        };
        let of = |request| Allowed::of(&rule(request, None), &bounds).request;
        assert_eq!(of(None), Some(Duration::from_millis(7)));
        assert_eq!(of(Some(9)), Some(Duration::from_millis(9)));
        assert_eq!(of(Some(0)), None);
    }

    #[test]
    fn timeout_that_the_client_states_is_an_upper_bound() {
        let of = |request, client: Option<u64>| {
            let allowed = Allowed::of(&rule(request, None), &no_bounds());
            allowed.at_most(client.map(Duration::from_millis)).request
        };
        for (request, client, least) in [
            (None, Some(5), Some(5)),
            (Some(0), Some(5), Some(5)),
            (Some(9), Some(5), Some(5)),
            (Some(3), Some(5), Some(3)),
            (Some(3), None, Some(3)),
            (None, Some(0), Some(0)),
        ] {
            assert_eq!(of(request, client), least.map(Duration::from_millis));
        }
    }

    #[test]
    fn a_time_is_the_clients_only_if_it_is_shorter_than_that_of_the_rule() {
        let of = |request, client: Option<u64>, late| {
            let allowed = Allowed::of(&rule(request, Some(1)), &no_bounds());
            allowed
                .at_most(client.map(Duration::from_millis))
                .is_of_client(late)
        };
        for (request, client, is_of_client) in [
            (None, Some(5), true),
            (Some(9), Some(5), true),
            (Some(5), Some(5), false),
            (Some(3), Some(5), false),
            (Some(3), None, false),
        ] {
            assert_eq!(of(request, client, Late::Request), is_of_client);
            assert!(!of(request, client, Late::Backend));
            assert!(!of(request, client, Late::Idle));
        }
    }

    #[tokio::test]
    async fn a_try_in_which_nothing_moves_ends_and_one_that_moves_does_not() {
        let allowed = Allowed {
            idle: Some(3),
            ..Allowed::default()
        };
        let (progress, overload) = (RequestProgress::new(), Overload::default());
        let mut never = pin!(std::future::pending::<()>());
        let mut run = pin!(allowed.run(&progress, &overload, never.as_mut()));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..20 {
            assert!(run.as_mut().poll(&mut cx).is_pending());
            advance();
            advance();
            progress.moved();
        }
        assert!(run.as_mut().poll(&mut cx).is_pending());
        for _ in 0..3 {
            advance();
        }
        assert_eq!(run.as_mut().poll(&mut cx), Poll::Ready(Err(Late::Idle)));
    }

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The level rises while the attempt waits, and nothing but the alarm wakes its task.
    #[tokio::test]
    async fn at_the_last_step_no_try_waits_long_for_its_backend() {
        let most = in_ticks(SHORTEST_STREAM_IDLE);
        for idle in [None, Some(10 * most)] {
            let allowed = Allowed {
                idle,
                ..Allowed::default()
            };
            let (progress, overload) = (RequestProgress::new(), Overload::default());
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut cx = Context::from_waker(&waker);
            let mut never = pin!(std::future::pending::<()>());
            let mut run = pin!(allowed.run(&progress, &overload, never.as_mut()));
            assert!(run.as_mut().poll(&mut cx).is_pending());
            for _ in 0..most {
                advance();
            }
            assert_eq!(woken.0.load(Ordering::SeqCst), 1);
            for step in [OverloadLevel::KeepAlive, OverloadLevel::Shares] {
                overload.set(step);
                assert!(run.as_mut().poll(&mut cx).is_pending());
            }
            overload.set(OverloadLevel::Timeouts);
            progress.moved();
            assert!(run.as_mut().poll(&mut cx).is_pending());
            for _ in 0..most {
                advance();
            }
            assert_eq!(woken.0.load(Ordering::SeqCst), 2);
            assert_eq!(run.as_mut().poll(&mut cx), Poll::Ready(Err(Late::Idle)));
        }
        // A shorter time stays as it is.
        assert_eq!(idle_at(Some(3), OverloadLevel::Timeouts), Some(3));
    }

    #[test]
    fn an_answer_ends_when_nothing_moves_and_when_its_time_is_over() {
        let progress = RequestProgress::new();
        let cx = Context::from_waker(Waker::noop());
        let allowed = Allowed {
            idle: Some(3),
            request: Some(Duration::from_secs(10)),
            ..Allowed::default()
        };
        let mut watch = allowed.rest(Duration::from_secs(4)).unwrap();
        for _ in 0..6 {
            assert_eq!(watch.poll(&cx, &progress), Poll::Pending);
            advance();
            progress.moved();
        }
        assert!(!watch.has_ended());
        advance();
        assert!(watch.has_ended());
        assert_eq!(watch.poll(&cx, &progress), Poll::Ready(Late::Request));
        progress.moved();
        let mut watch = allowed.rest(Duration::ZERO).unwrap();
        for _ in 0..3 {
            assert_eq!(watch.poll(&cx, &progress), Poll::Pending);
            advance();
        }
        assert_eq!(watch.poll(&cx, &progress), Poll::Ready(Late::Idle));
        assert!(Allowed::default().rest(Duration::ZERO).is_none());
    }

    #[test]
    fn an_answer_ends_with_the_time_of_its_attempt_or_of_the_request() {
        let seconds = |of: Option<u64>| of.map(|seconds| seconds * 1000);
        for (request, backend, begun, elapsed, late, left) in [
            (None, Some(5), 0, 2, Late::Backend, 3),
            // Earlier attempts do not count for this one.
            (None, Some(5), 20, 22, Late::Backend, 3),
            (None, Some(5), 20, 30, Late::Backend, 0),
            (Some(60), Some(5), 20, 22, Late::Backend, 3),
            (Some(23), Some(5), 20, 22, Late::Request, 1),
            (Some(5), Some(5), 0, 2, Late::Request, 3),
            (Some(5), None, 3, 4, Late::Request, 1),
        ] {
            let allowed = Allowed::of(&rule(seconds(request), seconds(backend)), &no_bounds())
                .beginning_at(Duration::from_secs(begun));
            let watch = allowed.rest(Duration::from_secs(elapsed)).unwrap();
            let end = ticks() + in_ticks(Duration::from_secs(left));
            assert_eq!(watch.end, Some((end, late)), "{request:?} {backend:?}");
        }
        // The time in which the proxy itself waits does not count.
        let mut allowed = Allowed::of(&rule(None, Some(5_000)), &no_bounds());
        allowed.pause(Duration::from_mins(1));
        let mut watch = allowed.rest(Duration::from_secs(62)).unwrap();
        let cx = Context::from_waker(Waker::noop());
        let progress = RequestProgress::new();
        for _ in 0..in_ticks(Duration::from_secs(3)) {
            assert_eq!(watch.poll(&cx, &progress), Poll::Pending);
            advance();
        }
        assert_eq!(watch.poll(&cx, &progress), Poll::Ready(Late::Backend));
    }
}
