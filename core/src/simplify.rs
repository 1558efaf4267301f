//! Equations that need not be written.
//!
//! Rules and methods are written without regard for special cases: a derivative multiplies by
//! ones, undoes a transposition, divides two constants. What a person would have left out is left
//! out here, when the equation is about to be appended.

use std::collections::HashMap;

use shardax_sharding::Role;

use crate::graph::{Graph, ValueId, Values};
use crate::literal::{Literal, Number};
use crate::op::{Binary, Constraint, Op, Unary};
use crate::types::Shape;

/// What is known of the values of a graph that is being written.
#[derive(Default)]
pub(crate) struct Simplifier {
    /// Constants and their broadcasts, so that a program has each once.
    constants: HashMap<Literal, ValueId>,
    broadcasts: HashMap<(ValueId, Shape), ValueId>,
    /// Values whose elements are all one number.
    splats: HashMap<ValueId, Literal>,
    /// Equations that may cancel with a later one, by their result.
    inverses: HashMap<ValueId, (Op, ValueId)>,
    /// Parameters as they were before they were gathered for use.
    gathered: HashMap<ValueId, (Constraint, ValueId)>,
}

impl Simplifier {
    /// Takes note of an equation that was written.
    pub(crate) fn remember(&mut self, op: &Op, operands: &[ValueId], results: &[ValueId]) {
        match op {
            Op::Constant(literal) => {
                self.constants.insert(literal.clone(), results[0]);
                if literal.is_splat() {
                    self.splats.insert(results[0], literal.clone());
                }
            }
            Op::Broadcast { shape, dims } if dims.is_empty() => {
                self.broadcasts
                    .insert((operands[0], shape.clone()), results[0]);
                self.inverses.insert(results[0], (op.clone(), operands[0]));
                if let Some(literal) = self.splats.get(&operands[0]) {
                    self.splats.insert(results[0], literal.clone());
                }
            }
            Op::Shard(constraint) if constraint.role == Role::ParameterAtUse => {
                self.gathered
                    .insert(results[0], (constraint.clone(), operands[0]));
            }
            Op::Broadcast { .. } | Op::Reshape(_) | Op::Transpose(_) | Op::Unary(Unary::Neg) => {
                self.inverses.insert(results[0], (op.clone(), operands[0]));
            }
            _ => {}
        }
    }

    /// What a parameter in use was before it was gathered, and how.
    pub(crate) fn before_gathering(&self, value: ValueId) -> Option<(Constraint, ValueId)> {
        self.gathered.get(&value).cloned()
    }

    /// The number that every element is, where that is known.
    pub(crate) fn number(&self, value: ValueId) -> Option<Number> {
        self.splats.get(&value).and_then(Literal::number)
    }

    /// The product or quotient itself, where its second operand cannot make it NaN.
    fn plain(&self, op: Op, operands: &[ValueId]) -> Op {
        let factor = |i: usize| {
            let number = self.number(operands[i]).map(Number::as_f64);
            number.is_some_and(|n| n.is_finite() && n != 0.0)
        };
        match op {
            Op::Binary(Binary::MulOrZero) if factor(0) || factor(1) => Op::Binary(Binary::Mul),
            Op::Binary(Binary::DivOrZero) if factor(1) => Op::Binary(Binary::Div),
            op => op,
        }
    }

    /// One equation for two in a row: a derivative undoes what its function did.
    pub(crate) fn composed(&self, op: Op, operands: Values) -> (Op, Values) {
        let op = self.plain(op, &operands);
        let Some((first, inner)) = operands.first().and_then(|o| self.inverses.get(o)) else {
            return (op, operands);
        };
        let inner = Values::from_elem(*inner, 1);
        match (first, &op) {
            (Op::Reshape(_), Op::Reshape(_)) => (op, inner),
            (Op::Broadcast { dims: first, .. }, Op::Broadcast { shape, dims }) => (
                Op::Broadcast {
                    shape: shape.clone(),
                    dims: first.iter().map(|&d| dims[d]).collect(),
                },
                inner,
            ),
            (Op::Transpose(first), Op::Transpose(second)) => (
                Op::Transpose(second.iter().map(|&d| first[d]).collect()),
                inner,
            ),
            _ => (op, operands),
        }
    }

    /// The value of an equation that need not be written: it would change nothing, or is there.
    pub(crate) fn known(&self, graph: &Graph, op: &Op, operands: &Values) -> Option<ValueId> {
        let ty = |i: usize| graph.ty(operands[i]);
        let all = |i: usize, number: f64| {
            let literal = self.splats.get(&operands[i])?;
            matches!(literal.number(), Some(n) if n.as_f64() == number).then_some(())
        };
        match op {
            Op::Constant(literal) => self.constants.get(literal).copied(),
            Op::Broadcast { shape, dims } if dims.is_empty() && !shape.is_empty() => {
                self.broadcasts.get(&(operands[0], shape.clone())).copied()
            }
            Op::Broadcast { shape, .. } | Op::Reshape(shape) => {
                (*shape == ty(0).shape).then(|| operands[0])
            }
            Op::Convert(dtype) => (*dtype == ty(0).dtype).then(|| operands[0]),
            Op::Transpose(permutation) => permutation.is_sorted().then(|| operands[0]),
            Op::Slice {
                starts,
                limits,
                strides,
            } => {
                let whole = starts.iter().all(|&s| s == 0)
                    && *limits == ty(0).shape
                    && strides.iter().all(|&s| s == 1);
                whole.then(|| operands[0])
            }
            Op::Unary(Unary::Neg) => match self.inverses.get(&operands[0]) {
                Some((Op::Unary(Unary::Neg), inner)) => Some(*inner),
                _ => None,
            },
            Op::Binary(Binary::Mul) => {
                let [left, right] = [all(0, 1.0), all(1, 1.0)];
                left.map(|()| operands[1]).or(right.map(|()| operands[0]))
            }
            Op::Binary(Binary::Add) => {
                let [left, right] = [all(0, 0.0), all(1, 0.0)];
                left.map(|()| operands[1]).or(right.map(|()| operands[0]))
            }
            Op::Binary(Binary::Sub) => all(1, 0.0).map(|()| operands[0]),
            Op::Binary(Binary::Div) => all(1, 1.0).map(|()| operands[0]),
            _ => None,
        }
    }

    /// The number that every element of the result is, for arithmetic on constant floats. It is
    /// computed in f64, which rounds like the operation itself in every narrower type.
    pub(crate) fn folded(&self, op: &Op, operands: &[ValueId]) -> Option<Literal> {
        let first = self.splats.get(operands.first()?)?.ty().dtype;
        let number = |i: usize| {
            let literal = self.splats.get(&operands[i])?;
            literal
                .number()
                .filter(|_| first.is_float())
                .map(Number::as_f64)
        };
        let value = match op {
            Op::Unary(Unary::Neg) => -number(0)?,
            Op::Binary(Binary::Add) => number(0)? + number(1)?,
            Op::Binary(Binary::Sub) => number(0)? - number(1)?,
            Op::Binary(Binary::Mul) => number(0)? * number(1)?,
            Op::Binary(Binary::Div) => number(0)? / number(1)?,
            Op::Convert(dtype) if dtype.is_float() => number(0)?,
            _ => return None,
        };
        let dtype = match op {
            Op::Convert(dtype) => *dtype,
            _ => first,
        };
        Literal::scalar(Number::Float(value), dtype)
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Tensor, TensorType, trace};

    fn printed(f: impl Fn(Tensor) -> Tensor) -> String {
        match trace(f, TensorType::new(DType::F32, [2, 3])) {
            Ok(traced) => traced.graph.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_changes_nothing_is_not_written() {
        let same = printed(|x| x);
        assert_eq!(printed(|x| x * 1 + 0 - 0.0), same);
        assert_eq!(printed(|x| 1.0 * (0 + x) / 1), same);
        assert_eq!(printed(|x| -(-x)), same);
        assert_eq!(
            printed(|x| x.reshape([3, 2]).reshape([6]).reshape([2, 3])),
            same
        );
        assert_eq!(printed(|x| x.transpose([1, 0]).transpose([1, 0])), same);
        assert_eq!(
            printed(|x| x.slice(0, 0..2).cast(DType::F32).broadcast_to([2, 3])),
            same
        );
        let three = printed(|x| {
            x.reshape([1, 2, 3])
                .transpose([1, 2, 0])
                .transpose([2, 0, 1])
        });
        assert_eq!(three, printed(|x| x.reshape([1, 2, 3])));
    }

    #[test]
    fn what_changes_something_is() {
        let same = printed(|x| x);
        assert_ne!(printed(|x| 0 - x), same);
        assert_ne!(printed(|x| 1 / x), same);
        assert_ne!(printed(|x| x * 2), same);
        assert_ne!(printed(|x| x.slice(0, 1..).pad(0, 1, 0, 0)), same);
        assert_ne!(printed(|x| x.reshape([3, 2]).transpose([1, 0])), same);
    }

    #[test]
    fn constant_arithmetic_is_done_at_once() {
        let folded = printed(|x| {
            let half = (Tensor::ones(DType::F32, [3]) - 0.75) * 4 / 2;
            x + -half
        });
        assert_eq!(folded, printed(|x| x + Tensor::full(-0.5, DType::F32, [3])));
        // An integer division is left to the compiler, and so is what overflows.
        let whole = printed(|x| x + (Tensor::scalar(7, DType::I32) / 2));
        assert!(whole.contains("div"), "{whole}");
    }
}
