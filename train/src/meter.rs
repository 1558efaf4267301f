//! How fast a run goes.

use std::time::Instant;

use serde::Serialize;

/// What is known of a finished step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    /// Which step, from 0.
    pub step: usize,
    /// Its loss, before its update.
    pub loss: f32,
    /// Milliseconds since the step before it was finished.
    pub step_ms: f64,
    /// Tokens trained on in a second, at this step's pace.
    pub tokens_per_s: f64,
}

/// Measures from one finished step to the next.
#[derive(Clone, Debug)]
pub struct Meter {
    tokens_per_step: usize,
    steps: usize,
    last: Instant,
}

impl Meter {
    /// Starts the clock of the first step.
    pub fn start(tokens_per_step: usize) -> Self {
        Meter {
            tokens_per_step,
            steps: 0,
            last: Instant::now(),
        }
    }

    /// Records that the next step is finished, with this loss.
    pub fn finished(&mut self, loss: f32) -> StepRecord {
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
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
    fn a_step_lasts_from_the_end_of_the_one_before() {
        let mut meter = Meter::start(100);
        std::thread::sleep(Duration::from_millis(20));
        let first = meter.finished(2.5);
        let second = meter.finished(2.0);
        assert_eq!((first.step, second.step), (0, 1));
        assert_eq!((first.loss, second.loss), (2.5, 2.0));
        assert!(first.step_ms >= 20.0, "{first:?}");
        assert!(second.step_ms < first.step_ms, "{second:?}");
        let expected = 100.0 / (first.step_ms / 1e3);
        assert!(
            (first.tokens_per_s / expected - 1.0).abs() < 1e-6,
            "{first:?}"
        );
    }
}
