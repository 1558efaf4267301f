//! Learning rates that follow the number of steps.
//!
//! A schedule is computed in the step from its integer counter, so that every step is one program.

use shardax_core::{DType, Tensor};

/// What becomes of the rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// It stays at the peak.
    None,
    /// It falls by equal amounts to `end` times the peak, at the last step.
    Linear {
        /// Part of the peak that is left.
        end: f64,
    },
    /// It falls along half a cosine to `end` times the peak, at the last step.
    /// (Loshchilov, Hutter: "SGDR", 2017, without restarts.)
    Cosine {
        /// Part of the peak that is left.
        end: f64,
    },
}

/// A learning rate by step: it rises linearly to `peak` over the first steps, and then decays.
///
/// With `t` counting steps from 0, the rate is `peak (t + 1) / warmup` until it is the peak, so that the first step moves
/// already; after the last of `steps` it stays as it is.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_train::{AdamW, Decay, Schedule};
///
/// let schedule = Schedule { peak: 3e-4, warmup: 100, steps: 10_000, decay: Decay::Cosine { end: 0.1 } };
/// let adam = AdamW::default();
/// let update = |w: Tensor, g: Tensor, step: Tensor| {
///     adam.update_at(schedule.at(step), w, g, adam.init(&w), step).0
/// };
/// let w = TensorType::new(DType::F32, [4, 4]);
/// trace(update, (w.clone(), w, TensorType::scalar(DType::I32)))?;
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The largest rate.
    pub peak: f64,
    /// Over how many steps the rate rises; 0 begins at the peak.
    pub warmup: u64,
    /// How many steps there are in all, warm-up included.
    pub steps: u64,
    /// What becomes of the rate after the warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The rate at a step, a scalar in f32; `step` counts from 0 and is of any type and shape.
    ///
    /// Beyond 2^24 steps, which f32 does not count one by one, the rate is that of a step within one in sixteen million.
    #[track_caller]
    pub fn at(&self, step: Tensor) -> Tensor {
        let t = step.cast(DType::F32);
        let warm = (t + 1.0) / self.warmup.max(1) as f64;
        let length = self.steps.saturating_sub(self.warmup).max(1) as f64;
        let passed = ((t - self.warmup as f64) / length).clamp(0.0, 1.0);
        let left = match self.decay {
            Decay::None => passed.zeros_like() + 1.0,
            Decay::Linear { end } => 1.0 - passed * (1.0 - end),
            Decay::Cosine { end } => {
                let half = ((passed * std::f64::consts::PI).cos() + 1.0) * 0.5;
                half * (1.0 - end) + end
            }
        };
        warm.minimum(1.0) * left * self.peak
    }
}
