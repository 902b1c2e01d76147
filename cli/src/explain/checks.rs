//! The order of the checks: from the class down to the proxies. They stop at the first step that is wrong.

use super::backends::backends;
use super::chain::Chain;
use super::report::{ChainStep, StepOutcome};

impl Chain<'_> {
    /// The steps, up to the first that is wrong.
    pub(super) fn steps(&self) -> Vec<ChainStep> {
        let mut steps = Vec::new();
        let all: [fn(&Self) -> Option<ChainStep>; 10] = [
            Self::class,
            Self::gateway,
            Self::set,
            Self::grant,
            Self::claim,
            Self::listener,
            Self::certificate,
            Self::route,
            |chain| backends(chain.routes),
            Self::programmed,
        ];
        for step in all {
            let Some(step) = step(self) else { continue };
            let wrong = step.outcome == StepOutcome::Wrong;
            steps.push(step);
            if wrong {
                break;
            }
        }
        steps
    }
}
