//! How fast a run goes.
//!
//! Steps are launched ahead of those whose losses are read, and several may be finished when the first
//! of them is asked for. So a step's time is the mean over the last few, which the bunching does not
//! change.

use std::collections::VecDeque;
use std::time::Instant;

use serde::Serialize;

/// What is known of a finished step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    /// Which step, from 0.
    pub step: usize,
    /// Its loss, before its update.
    pub loss: f32,
    /// Milliseconds of a step, the mean over the last few.
    pub step_ms: f64,
    /// Tokens trained on in a second, at that pace.
    pub tokens_per_s: f64,
}

/// Measures the pace of finished steps.
#[derive(Clone, Debug)]
pub struct Meter {
    tokens_per_step: usize,
    steps: usize,
    /// When the last steps were finished, and the start before them.
    finished: VecDeque<Instant>,
}

/// Over how many steps a time is averaged: more than are launched ahead.
const AVERAGED: usize = 8;

impl Meter {
    /// Starts the clock of the first step.
    pub fn start(tokens_per_step: usize) -> Self {
        Meter {
            tokens_per_step,
            steps: 0,
            finished: VecDeque::from([Instant::now()]),
        }
    }

    /// Records that the next step is finished, with this loss.
    pub fn finished(&mut self, loss: f32) -> StepRecord {
        let now = Instant::now();
        let since = self.finished.front().map_or(now, |first| *first);
        let seconds = (now - since).as_secs_f64() / self.finished.len() as f64;
        self.finished.push_back(now);
        if self.finished.len() > AVERAGED {
            self.finished.pop_front();
        }
        self.steps += 1;
        StepRecord {
            step: self.steps - 1,
            loss,
            step_ms: seconds * 1e3,
            tokens_per_s: self.tokens_per_step as f64 / seconds.max(1e-9),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_step_lasts_what_the_last_few_did_on_average() {
        let mut meter = Meter::start(100);
        std::thread::sleep(Duration::from_millis(20));
        let first = meter.finished(2.5);
        let second = meter.finished(2.0);
        assert_eq!((first.step, second.step), (0, 1));
        assert_eq!((first.loss, second.loss), (2.5, 2.0));
        assert!(first.step_ms >= 20.0, "{first:?}");
        assert!(
            second.step_ms < first.step_ms && second.step_ms >= 10.0,
            "{second:?}"
        );
        let expected = 100.0 / (first.step_ms / 1e3);
        assert!(
            (first.tokens_per_s / expected - 1.0).abs() < 1e-6,
            "{first:?}"
        );
    }
}
