//! Loads of messages and requests: as fast as answers come, and at shares of the rate that the slowest peer carries.

use anyhow::{Context, Result};

use super::{Bench, MESSAGE_CONNECTIONS, Place, REQUEST_CONNECTIONS, Work, options, role};
use crate::metric::{Figure, Group, Load};
use crate::peers::{Role, Running};

impl Bench {
    /// Messages as fast as answers come, which also says what rate a peer carries.
    pub(super) fn at_full_speed(&mut self, place: Place, running: &Running) -> Result<()> {
        let paced = Load::PACES
            .iter()
            .any(|(load, _)| self.wants(place.group, *load));
        if paced || self.wants(place.group, Load::Messages) {
            let cost = self.cost(running, &self.messages(place.group, None))?;
            self.record(place, Load::Messages, &cost, cost.outcome.answered as f64)?;
        }
        Ok(())
    }

    /// Messages or requests at shares of the rate that the slowest peer carried in this round.
    pub(super) fn paced(&mut self, place: Place) -> Result<()> {
        let rates = self.samples.iter().filter(|sample| {
            let of = sample.place;
            (of.group, of.setting, of.round) == (place.group, place.setting, place.round)
                && (sample.metric.load, sample.metric.figure) == (Load::Messages, Figure::Rate)
        });
        let slowest = rates.map(|sample| sample.value).min_by(f64::total_cmp);
        let slowest = slowest.context("nobody's rate is known")?;
        let running = self.start_one(place)?;
        for (load, share) in Load::PACES {
            if !self.wants(place.group, load) {
                continue;
            }
            let rate = format!("{:.0}", slowest * share);
            let work = self.messages(place.group, Some(&rate));
            match self.cost(&running, &work) {
                Ok(cost) => {
                    self.record(place, load, &cost, cost.outcome.answered as f64)?;
                    let figures = [
                        (Figure::P50, cost.outcome.p50),
                        (Figure::P99, cost.outcome.p99),
                        (Figure::Offered, slowest * share),
                        (Figure::Late, cost.outcome.late),
                    ];
                    self.add(place, load, cost.foreign, &figures);
                }
                // What a peer does not carry in the end says something of the others' rates, too.
                Err(error) => self.fail(place, &error.context(load.title())),
            }
        }
        Ok(())
    }

    /// Messages there and back in a group's own protocol.
    pub(super) fn messages(&self, group: Group, rate: Option<&str>) -> Work {
        let (kind, connections) = match role(group) {
            Role::Passthrough | Role::Terminate => ("message", MESSAGE_CONNECTIONS),
            Role::Http | Role::Https => ("request", REQUEST_CONNECTIONS),
        };
        let seconds = self.plan.sizes.seconds.to_string();
        let mut args = options(group);
        args.extend(["paced", kind, &connections.to_string(), &seconds].map(str::to_owned));
        if let Some(rate) = rate {
            args.extend(["--rate", rate].map(str::to_owned));
        }
        Work::Client(args)
    }
}
