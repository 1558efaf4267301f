//! How a run is shown while it goes.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::meter::StepRecord;

/// Between two plain lines at least this much time passes.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

const TEMPLATE: &str = "{bar:30} {pos}/{len}  {msg}  {eta} left";

/// A progress bar on standard error with the loss, tokens a second, milliseconds a step and the time
/// left; plain lines every few seconds where standard error is no terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    steps: usize,
    /// Milliseconds a step, smoothed, for single ones jump; none before the second step, since the
    /// first one begins with nothing under way.
    smoothed_ms: Option<f64>,
    last_line: Instant,
}

impl Progress {
    /// A bar for this many steps.
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Progress {
            bar,
            steps,
            smoothed_ms: None,
            last_line: Instant::now(),
        }
    }

    /// Shows a finished step.
    pub fn show(&mut self, record: &StepRecord) {
        let message = self.message(record);
        if !self.bar.is_hidden() {
            self.bar.set_message(message);
            self.bar.set_position(record.step as u64 + 1);
            return;
        }
        let is_last = record.step + 1 == self.steps;
        if record.step == 0 || is_last || self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            eprintln!("step {}/{}  {message}", record.step + 1, self.steps);
        }
    }

    /// Leaves the bar as it is.
    pub fn finish(&self) {
        self.bar.abandon();
    }

    fn message(&mut self, record: &StepRecord) -> String {
        let ms = match self.smoothed_ms {
            Some(ms) => 0.9 * ms + 0.1 * record.step_ms,
            None => record.step_ms,
        };
        self.smoothed_ms = (record.step > 0).then_some(ms);
        let tokens_per_s = record.tokens_per_s * record.step_ms / ms.max(1e-6);
        format!(
            "loss {:.3}  {tokens_per_s:.0} tokens/s  {ms:.1} ms/step",
            record.loss
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: usize, loss: f32, step_ms: f64) -> StepRecord {
        StepRecord {
            step,
            loss,
            step_ms,
            tokens_per_s: 1000.0 / (step_ms / 1e3),
        }
    }

    #[test]
    fn the_pace_is_smoothed_from_the_second_step_on() {
        let mut progress = Progress::new(3);
        let mut message = |step, loss, ms| progress.message(&record(step, loss, ms));
        assert_eq!(
            message(0, 5.0, 500.0),
            "loss 5.000  2000 tokens/s  500.0 ms/step"
        );
        assert_eq!(
            message(1, 4.0, 10.0),
            "loss 4.000  100000 tokens/s  10.0 ms/step"
        );
        assert_eq!(
            message(2, 3.0, 20.0),
            "loss 3.000  90909 tokens/s  11.0 ms/step"
        );
    }
}
