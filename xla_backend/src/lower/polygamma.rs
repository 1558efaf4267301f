//! The polygamma function where XLA's is not right: below zero, where it sums nine terms whatever they are, and at infinity,
//! where it is NaN.

use shardax_core::{DType, Reducer, TensorType};

use super::Lowering;
use super::elementwise::neutral;
use super::writer::{Loc, Ssa, tensor_type};

impl Lowering<'_> {
    /// The polygamma function of order `n` at `x`, of which XLA's is used above zero alone.
    ///
    /// It is `(-1)^s n!` times the sum of `1 / (x + k)^s` over all `k` from 0, with `s = n + 1`. Over all whole `k`, also
    /// negative ones, the sum has the period 1, and those on one side of zero are the function above zero. With `r` the
    /// fraction of `x`, this is `f(r) + (-1)^s (f(1 - r) - f(1 - x))`.
    pub(super) fn polygamma(&mut self, ty: &TensorType, [n, x]: [Ssa; 2], loc: Loc) -> Ssa {
        let text = tensor_type(ty);
        let mask = tensor_type(&TensorType::new(DType::Bool, &ty.shape));
        let number = |of: &mut Self, value: &str| {
            of.assign(&format!("stablehlo.constant dense<{value}> : {text}"), loc)
        };
        let two = |of: &mut Self, name: &str, x: Ssa, y: Ssa| {
            of.assign(&format!("stablehlo.{name} {x}, {y} : {text}"), loc)
        };
        let floor =
            |of: &mut Self, x: Ssa| of.assign(&format!("stablehlo.floor {x} : {text}"), loc);
        let compare = |of: &mut Self, how: &str, x: Ssa, y: Ssa| {
            let types = format!("({text}, {text}) -> {mask}");
            of.assign(
                &format!("stablehlo.compare {how}, {x}, {y}, FLOAT : {types}"),
                loc,
            )
        };
        let select = |of: &mut Self, which: Ssa, x: Ssa, y: Ssa| {
            of.assign(
                &format!("stablehlo.select {which}, {x}, {y} : {mask}, {text}"),
                loc,
            )
        };
        let above = |of: &mut Self, x: Ssa| {
            let types = format!("({text}, {text}) -> {text}");
            of.assign(&format!("\"chlo.polygamma\"({n}, {x}) : {types}"), loc)
        };
        let zero = self.zeros(ty, loc);
        let [half, one] = ["0.5", "1.0"].map(|value| number(self, value));
        let infinity = number(self, &neutral(Reducer::Min, ty.dtype).to_string());
        let whole = floor(self, x);
        let is_below = compare(self, "LT", x, zero);
        let fraction = two(self, "subtract", x, whole);
        let first = select(self, is_below, fraction, x);
        let first = above(self, first);
        let rest = two(self, "subtract", one, fraction);
        let rest = above(self, rest);
        let beyond = two(self, "subtract", one, x);
        let beyond = above(self, beyond);
        let between = two(self, "subtract", rest, beyond);
        let halved = two(self, "multiply", n, half);
        let rounded = floor(self, halved);
        let is_even = compare(self, "EQ", halved, rounded);
        let [sum, difference] = ["add", "subtract"].map(|name| two(self, name, first, between));
        let below = select(self, is_even, difference, sum);
        let finite = select(self, is_below, below, first);
        // The digamma function grows, and its derivatives vanish.
        let is_first = compare(self, "EQ", n, zero);
        let limit = select(self, is_first, x, zero);
        let is_infinite = compare(self, "EQ", x, infinity);
        select(self, is_infinite, limit, finite)
    }
}
