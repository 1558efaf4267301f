//! Rotary position embedding: pairs of features, turned by an angle that grows with the position.
//!
//! Products of queries and keys then depend on the difference of positions only (Su et al.:
//! "RoFormer", 2021). The scalings stretch the angles of a trained model to longer sequences.

use std::f64::consts::{PI, TAU};
use std::panic::Location;

use super::{check_float, check_number, refuse};
use crate::tensor::{Tensor, concatenate};
use crate::trace::method;

/// A rotary embedding. Pair `i` of `dims / 2` turns by `position * base^(-2 i / dims)`, before scaling.
///
/// ```
/// use shardax_core::nn::{Rope, RopeScaling};
///
/// let llama_3_1 = Rope {
///     base: 500_000.0,
///     scaling: RopeScaling::Llama3 {
///         factor: 8.0,
///         low_freq_factor: 1.0,
///         high_freq_factor: 4.0,
///         original_length: 8192,
///     },
///     ..Rope::default()
/// };
/// # let _ = llama_3_1;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// What the wavelengths grow to, over `2 pi`.
    pub base: f64,
    /// How many features of a head turn, an even number; the rest stay as they are. `None` is all.
    /// (GPT-NeoX turns a quarter.)
    pub dims: Option<usize>,
    /// Whether a pair is two neighbors, as in the paper and GPT-J; otherwise it is a feature of the
    /// first half and that of the second, as in GPT-NeoX, Llama's published weights and most others.
    pub interleaved: bool,
    /// How angles are stretched.
    pub scaling: RopeScaling,
}

impl Default for Rope {
    /// Base 10,000, all features, in halves, not scaled.
    fn default() -> Self {
        Rope {
            base: 10_000.0,
            dims: None,
            interleaved: false,
            scaling: RopeScaling::None,
        }
    }
}

/// How a [`Rope`] reaches beyond the length that it was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by the factor.
    /// (Chen et al.: "Extending context window of large language models via positional interpolation",
    /// 2023.)
    Linear {
        /// New length over the original one.
        factor: f64,
    },
    /// The base becomes `base * factor^(d / (d - 2))`, so that the slowest pair is interpolated and the
    /// fastest not at all. (The "NTK-aware" scaling that section 3.1 of the YaRN paper describes.)
    Ntk {
        /// New length over the original one.
        factor: f64,
    },
    /// NTK-aware scaling by as much as the sequence at hand needs: with `l` the largest position plus 1,
    /// at least `original_length`, the factor is `factor * l / original_length - (factor - 1)`.
    /// (Peng et al.: "YaRN", 2023, section 3.3, as the published models have it.)
    DynamicNtk {
        /// How fast the factor grows with the length; 1 gives the paper's `l / original_length`.
        factor: f64,
        /// The length that the model was trained on.
        original_length: usize,
    },
    /// Pairs that turn more than `beta_fast` times within the original length stay, those that turn
    /// less than `beta_slow` times are interpolated, and those between are mixed. Cosine and sine are
    /// multiplied by `attention_factor`. (Peng et al.: "YaRN: efficient context window extension of
    /// large language models", 2023, with the ramp between whole numbers of pairs as in its code.)
    Yarn {
        /// New length over the original one.
        factor: f64,
        /// The length that the model was trained on.
        original_length: usize,
        /// 32 in the paper.
        beta_fast: f64,
        /// 1 in the paper.
        beta_slow: f64,
        /// `None` is the paper's `0.1 ln(factor) + 1`.
        attention_factor: Option<f64>,
    },
    /// Wavelengths below `original_length / high_freq_factor` stay, those above `original_length /
    /// low_freq_factor` are stretched by the factor, and those between are mixed.
    /// (Llama Team: "The Llama 3 herd of models", 2024, and the code published with Llama 3.1.)
    Llama3 {
        /// How much the longest wavelengths are stretched.
        factor: f64,
        /// 1 in Llama 3.1.
        low_freq_factor: f64,
        /// 4 in Llama 3.1.
        high_freq_factor: f64,
        /// 8192 in Llama 3.1.
        original_length: usize,
    },
}

impl Rope {
    /// Turns the features of `x`, `[..., seq, heads, head_dim]`, by the angles of `positions`: integers or
    /// floats, `[seq]`, or with leading dimensions `[..., seq]` that broadcast to those of `x`.
    ///
    /// Angles are computed in f32 (f64 for `x` in f64), and so is the rotation; the result has the type
    /// of `x`.
    ///
    /// ```
    /// use shardax_core::nn::Rope;
    /// use shardax_core::{DType, Tensor, TensorType, trace};
    ///
    /// let turned = |q: Tensor| Rope::default().apply(q, Tensor::arange(DType::I32, q.size(-3)));
    /// let ty = TensorType::new(DType::BF16, [2, 16, 4, 64]);
    /// assert_eq!(trace(turned, ty.clone())?.output_types()[0], ty);
    /// # Ok::<(), shardax_core::Error>(())
    /// ```
    #[track_caller]
    pub fn apply(&self, x: Tensor, positions: Tensor) -> Tensor {
        method("rope", Location::caller(), || {
            let dims = self.check(x, positions);
            let wide = x.dtype().accumulator();
            let positions = positions.cast(wide);
            let (frequencies, magnitude) = self.frequencies(dims, positions);
            let angles = positions.expand_dims(-1) * frequencies;
            // [..., seq, pairs] beside [..., seq, heads, pairs].
            let angles = angles.expand_dims(-2);
            let (cos, sin) = (angles.cos() * magnitude, angles.sin() * magnitude);
            let turning = x.slice(-1, ..dims).cast(wide);
            let turned = match self.interleaved {
                true => turn_neighbors(turning, cos, sin),
                false => turn_halves(turning, cos, sin),
            };
            let turned = turned.cast(x.dtype());
            match dims == x.size(-1) {
                true => turned,
                false => concatenate([turned, x.slice(-1, dims..)], -1),
            }
        })
    }

    /// How many features turn, if everything fits.
    #[track_caller]
    fn check(&self, x: Tensor, positions: Tensor) -> usize {
        let op = "rope";
        check_float(op, "x", x);
        let (ty, at) = (x.ty(), positions.ty());
        let outer = ty.rank().saturating_sub(2);
        let aligned = at.shape.iter().rev().zip(ty.shape[..outer].iter().rev());
        let fits = ty.rank() >= 3
            && (1..=outer).contains(&at.rank())
            && at.shape.last() == ty.shape.get(outer.saturating_sub(1))
            && aligned.clone().all(|(&a, &b)| a == b || a == 1);
        if !fits || !(at.dtype.is_integer() || at.dtype.is_float()) {
            let problem = format!("`x` is {ty} and `positions` {at}");
            let help = "give `x` as [..., seq, heads, head_dim], and a number for each position, \
                        [seq] or [..., seq]";
            refuse(op, problem, help)
        }
        let features = ty.shape[outer + 1];
        let dims = self.dims.unwrap_or(features);
        if dims > features || !dims.is_multiple_of(2) {
            let problem = format!("`dims` is {dims}, and a head of {ty} has {features} features");
            refuse(op, problem, "give an even number that is not larger")
        }
        self.check_scaling(op, dims);
        dims
    }

    #[track_caller]
    fn check_scaling(&self, op: &'static str, dims: usize) {
        let positive = (0.0, f64::INFINITY);
        check_number(op, "base", self.base, positive);
        let (factor, length) = match self.scaling {
            RopeScaling::None => return,
            RopeScaling::Linear { factor } | RopeScaling::Ntk { factor } => (factor, 1),
            RopeScaling::DynamicNtk {
                factor,
                original_length,
            } => (factor, original_length),
            RopeScaling::Yarn {
                factor,
                original_length,
                beta_fast,
                beta_slow,
                ..
            } => {
                check_number(op, "beta_slow", beta_slow, positive);
                check_number(op, "beta_fast", beta_fast, (beta_slow, f64::INFINITY));
                (factor, original_length)
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_length,
            } => {
                check_number(op, "low_freq_factor", low_freq_factor, positive);
                let above = (low_freq_factor, f64::INFINITY);
                check_number(op, "high_freq_factor", high_freq_factor, above);
                (factor, original_length)
            }
        };
        check_number(op, "factor", factor, positive);
        check_number(op, "original_length", length as f64, positive);
        let by_base = matches!(
            self.scaling,
            RopeScaling::Ntk { .. } | RopeScaling::DynamicNtk { .. }
        );
        if by_base && dims <= 2 {
            let problem = format!("`dims` is {dims}, and NTK-aware scaling changes the base");
            refuse(op, problem, "it needs more than one pair of features")
        }
    }

    /// The angle of each pair at position 1, and the factor of cosine and sine.
    #[track_caller]
    fn frequencies(&self, dims: usize, positions: Tensor) -> (Tensor, f64) {
        let d = dims as f64;
        let pairs = dims / 2;
        // The exponent of the base, from 0 to -1.
        let exponents: Vec<f64> = (0..pairs).map(|i| -2.0 * i as f64 / d).collect();
        let constant =
            |values: Vec<f64>| Tensor::constant(&values, [pairs]).cast(positions.dtype());
        let plain = || -> Vec<f64> { exponents.iter().map(|&e| self.base.powf(e)).collect() };
        match self.scaling {
            RopeScaling::None => (constant(plain()), 1.0),
            RopeScaling::Linear { factor } => {
                let slower = plain().into_iter().map(|f| f / factor);
                (constant(slower.collect()), 1.0)
            }
            RopeScaling::Ntk { factor } => {
                let base = self.base * factor.powf(d / (d - 2.0));
                (
                    constant(exponents.iter().map(|&e| base.powf(e)).collect()),
                    1.0,
                )
            }
            RopeScaling::DynamicNtk {
                factor,
                original_length,
            } => {
                let original = original_length as f64;
                let length = (positions.stop_gradient().max(..) + 1.0).maximum(original);
                let stretch = length * (factor / original) - (factor - 1.0);
                let log_base = stretch.log() * (d / (d - 2.0)) + self.base.ln();
                ((constant(exponents) * log_base).exp(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                original_length,
                beta_fast,
                beta_slow,
                attention_factor,
            } => {
                // The pair that turns this many times within the original length.
                let pair = |turns: f64| {
                    let wavelength = original_length as f64 / turns;
                    d * (wavelength / TAU).ln() / (2.0 * self.base.ln())
                };
                let low = pair(beta_fast).floor().max(0.0);
                let high = pair(beta_slow).ceil().min(d - 1.0);
                // A ramp of no width would be no number at its place.
                let width = (high - low).max(1e-3);
                let mixed = plain().into_iter().enumerate().map(|(i, frequency)| {
                    let slow = ((i as f64 - low) / width).clamp(0.0, 1.0);
                    frequency / factor * slow + frequency * (1.0 - slow)
                });
                let paper = 0.1 * factor.max(1.0).ln() + 1.0;
                (constant(mixed.collect()), attention_factor.unwrap_or(paper))
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_length,
            } => {
                let mixed = plain().into_iter().map(|frequency| {
                    let turns = original_length as f64 * frequency / (2.0 * PI);
                    let fast = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    frequency / factor * (1.0 - fast) + frequency * fast
                });
                (constant(mixed.collect()), 1.0)
            }
        }
    }
}

#[track_caller]
fn turn_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor {
    let half = x.size(-1) / 2;
    let (a, b) = (x.slice(-1, ..half), x.slice(-1, half..));
    concatenate([a * cos - b * sin, b * cos + a * sin], -1)
}

#[track_caller]
fn turn_neighbors(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor {
    let shape = x.shape();
    let mut pairs = shape.clone();
    let half = x.size(-1) / 2;
    pairs.truncate(shape.len() - 1);
    pairs.extend([half, 2]);
    let paired = x.reshape(&pairs);
    let (a, b) = (paired.index(-1, 0), paired.index(-1, 1));
    let turned = [a * cos - b * sin, b * cos + a * sin];
    concatenate(turned.map(|t| t.expand_dims(-1)), -1).reshape(&shape)
}
