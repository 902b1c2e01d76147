//! Loads of messages and requests: as fast as answers come, and at shares of the rate that the slowest peer carries.

use anyhow::{Context, Result};

use super::datagrams::DIRECTIONS;
use super::{Bench, MESSAGE_CONNECTIONS, REQUEST_CONNECTIONS, Trial, Work, role, with_options};
use crate::metric::{Figure, Group, Load};
use crate::peers::{Role, Running};

impl Bench {
    /// Messages as fast as answers come, which also says what rate a peer carries.
    pub(super) fn at_full_speed(&mut self, trial: Trial, running: &Running) -> Result<()> {
        let paced = Load::PACES
            .iter()
            .any(|(load, _)| self.wants(trial.group, *load));
        if paced || self.wants(trial.group, Load::Messages) {
            let cost = self.cost(running, &self.messages(trial.group, None))?;
            let units = cost.outcome.answered as f64 * units_each(trial.group);
            self.record(trial, Load::Messages, &cost, units)?;
        }
        Ok(())
    }

    /// Messages or requests at shares of the rate that the slowest peer carried in this round.
    pub(super) fn paced(&mut self, trial: Trial) -> Result<()> {
        let rates = self.samples.iter().filter(|sample| {
            let of = sample.trial;
            (of.group, of.setting, of.round) == (trial.group, trial.setting, trial.round)
                && (sample.metric.load, sample.metric.figure) == (Load::Messages, Figure::Rate)
        });
        let slowest = rates.map(|sample| sample.value).min_by(f64::total_cmp);
        let slowest = slowest.context("nobody's rate is known")?;
        let running = self.start_one(trial)?;
        for (load, share) in Load::PACES {
            if !self.wants(trial.group, load) {
                continue;
            }
            let each = units_each(trial.group);
            let rate = format!("{:.0}", slowest * share / each);
            let work = self.messages(trial.group, Some(&rate));
            match self.cost(&running, &work) {
                Ok(cost) => {
                    let outcome = &cost.outcome;
                    self.record(trial, load, &cost, outcome.answered as f64 * each)?;
                    let mut figures = vec![
                        (Figure::P50, outcome.p50),
                        (Figure::P99, outcome.p99),
                        (Figure::Late, outcome.late),
                    ];
                    if trial.group == Group::Udp {
                        // Its client leaves out what it is too late for.
                        let begun = (outcome.answered + outcome.lost) as f64 * each;
                        figures.push((Figure::Offered, begun / outcome.seconds));
                        figures.push((Figure::Lost, outcome.lost_percent()));
                    } else {
                        figures.push((Figure::Offered, slowest * share));
                    }
                    self.add(trial, load, cost.foreign, &figures);
                }
                // What a peer does not carry in the end says something of the others' rates, too.
                Err(error) => self.fail(trial, &error.context(load.title())),
            }
        }
        Ok(())
    }

    /// Messages there and back in a group's own protocol.
    pub(super) fn messages(&self, group: Group, rate: Option<&str>) -> Work {
        let at_rate = rate.map(|rate| ["--rate", rate]);
        let at_rate: &[&str] = match &at_rate {
            Some(words) => words,
            None => &[],
        };
        let (kind, connections) = match role(group) {
            Role::Udp => return self.datagram_messages(at_rate),
            Role::Passthrough | Role::Terminate | Role::Tcp => ("message", MESSAGE_CONNECTIONS),
            _ => ("request", REQUEST_CONNECTIONS),
        };
        let seconds = self.plan.sizes.seconds.to_string();
        let own = ["paced", kind, &connections.to_string(), &seconds];
        with_options(group, &[&own[..], at_rate].concat())
    }
}

/// Units of a group's messages in one that came back.
fn units_each(group: Group) -> f64 {
    match group {
        Group::Udp => DIRECTIONS,
        _ => 1.0,
    }
}
