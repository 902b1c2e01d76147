//! Measures the groups of gRPC and of retries.

use anyhow::Result;

use super::http::HTTP2;
use super::{Bench, Trial, Work, with_options};
use crate::metric::{Figure, Group, Load};

/// Messages of the servers' streams for each request that other loads have. A message costs less than a request.
const MESSAGES: usize = 5;
/// Clients whose requests fail.
const FAILING: usize = 100;

impl Bench {
    pub(super) fn grpc(&mut self, trial: Trial) -> Result<()> {
        let running = self.start_one(trial)?;
        let (connections, calls) = HTTP2;
        let seconds = self.plan.sizes.seconds.to_string();
        let messages = self.plan.sizes.requests * MESSAGES / connections;
        let loads = [
            (Load::GrpcUnary, "unary", calls, seconds.clone()),
            (Load::GrpcStream, "stream", calls, seconds),
            (Load::GrpcDown, "down", 1, messages.to_string()),
        ];
        for (load, method, calls, amount) in loads {
            if !self.wants(trial.group, load) {
                continue;
            }
            let (connections, calls) = (connections.to_string(), calls.to_string());
            let own = ["calls", method, &connections, &calls, &amount];
            let work = with_options(trial.group, &own);
            // What one peer does not do must not hide what it does.
            let result = self
                .cost(&running, &work)
                .and_then(|cost| self.record(trial, load, &cost, cost.outcome.answered as f64));
            if let Err(error) = result {
                self.fail(trial, &error.context(load.title()));
            }
        }
        Ok(())
    }

    /// Requests whose every answer is one that is to be retried.
    pub(super) fn retries(&mut self, trial: Trial) -> Result<()> {
        let running = self.start_one(trial)?;
        let work = self.failing(FAILING, self.plan.sizes.seconds);
        let cost = self.cost(&running, &work)?;
        let answered = cost.outcome.answered as f64;
        self.record(trial, Load::Failing, &cost, answered)?;
        let tries = [(Figure::Tries, cost.outcome.tries as f64 / answered)];
        self.add(trial, Load::Failing, cost.foreign, &tries);
        Ok(())
    }

    /// Requests that fail, from so many clients at once.
    pub(super) fn failing(&self, clients: usize, seconds: f64) -> Work {
        let [backend, ..] = self.ports.failing.map(|address| address.to_string());
        let (clients, seconds) = (clients.to_string(), seconds.to_string());
        let own = ["failing", &clients, &seconds, "--backend", &backend];
        with_options(Group::Retries, &own)
    }
}
