//! Equations that need not be written.
//!
//! Rules and methods are written without regard for special cases: a derivative multiplies by
//! ones, undoes a transposition, divides two constants. What a person would have left out is left
//! out here, when the equation is about to be appended.

use std::num::NonZero;

use rustc_hash::FxHashMap;
use shardax_sharding::Role;

use crate::graph::{Equation, Graph, ValueId, Values};
use crate::literal::{Literal, Number};
use crate::op::{Binary, Constraint, Op, Unary};
use crate::types::Shape;

/// What is known of the values of a graph that is being written.
#[derive(Default)]
pub(crate) struct Simplifier {
    /// Constants and their broadcasts, so that a program has each once.
    constants: FxHashMap<Literal, ValueId>,
    broadcasts: FxHashMap<(ValueId, Shape), ValueId>,
    /// The position of the equation that makes a value, by value; none of an input.
    definitions: Vec<Option<NonZero<u32>>>,
}

impl Simplifier {
    /// Takes note of the last equation that was written.
    pub(crate) fn remember(&mut self, graph: &Graph) {
        let Some(equation) = graph.equations().last() else {
            return;
        };
        match &equation.op {
            Op::Constant(literal) => {
                self.constants.insert(literal.clone(), equation.results[0]);
            }
            Op::Broadcast { shape, dims } if dims.is_empty() => {
                self.broadcasts
                    .insert((equation.operands[0], shape.clone()), equation.results[0]);
            }
            _ => {}
        }
        // As many equations as values, of which a number of 32 bits has room.
        let position = NonZero::new(graph.equations().len() as u32);
        self.definitions.resize(graph.value_count(), None);
        for result in &equation.results {
            self.definitions[result.index()] = position;
        }
    }

    /// The equation that makes a value.
    pub(crate) fn definition<'g>(&self, graph: &'g Graph, value: ValueId) -> Option<&'g Equation> {
        let position = (*self.definitions.get(value.index())?)?;
        graph.equations().get(position.get() as usize - 1)
    }

    /// What a parameter in use was before it was gathered, and how.
    pub(crate) fn before_gathering(
        &self,
        graph: &Graph,
        value: ValueId,
    ) -> Option<(Constraint, ValueId)> {
        let equation = self.definition(graph, value)?;
        match &equation.op {
            Op::Shard(constraint) if constraint.role == Role::ParameterAtUse => {
                Some((constraint.as_ref().clone(), equation.operands[0]))
            }
            _ => None,
        }
    }

    /// The constant that every element is, where that is known.
    fn splat<'g>(&self, graph: &'g Graph, value: ValueId) -> Option<&'g Literal> {
        let equation = self.definition(graph, value)?;
        match &equation.op {
            Op::Constant(literal) if literal.is_splat() => Some(literal),
            Op::Broadcast { dims, .. } if dims.is_empty() => {
                self.splat(graph, equation.operands[0])
            }
            _ => None,
        }
    }

    /// The number that every element is, where that is known.
    pub(crate) fn number(&self, graph: &Graph, value: ValueId) -> Option<Number> {
        self.splat(graph, value).and_then(Literal::number)
    }

    /// The product or quotient itself, where its second operand cannot make it NaN.
    fn plain(&self, graph: &Graph, op: &Op, operands: &[ValueId]) -> Option<Op> {
        let factor = |i: usize| {
            let number = self.number(graph, operands[i]).map(Number::as_f64);
            number.is_some_and(|n| n.is_finite() && n != 0.0)
        };
        match op {
            Op::Binary(Binary::MulOrZero) if factor(0) || factor(1) => {
                Some(Op::Binary(Binary::Mul))
            }
            Op::Binary(Binary::DivOrZero) if factor(1) => Some(Op::Binary(Binary::Div)),
            _ => None,
        }
    }

    /// A simpler equation for the same value: one for two in a row, of which the derivative undoes what
    /// its function did, or a product that need not watch for zeros.
    pub(crate) fn simpler(
        &self,
        graph: &Graph,
        op: &Op,
        operands: &[ValueId],
    ) -> Option<(Op, Values)> {
        if let Some(plain) = self.plain(graph, op, operands) {
            return Some((plain, Values::from_slice(operands)));
        }
        let inner = self.definition(graph, *operands.first()?)?;
        let op = match (&inner.op, op) {
            (Op::Reshape(_), Op::Reshape(_)) => op.clone(),
            (Op::Broadcast { dims: first, .. }, Op::Broadcast { shape, dims }) => Op::Broadcast {
                shape: shape.clone(),
                dims: first.iter().map(|&d| dims[d]).collect(),
            },
            (Op::Transpose(first), Op::Transpose(second)) => {
                Op::Transpose(second.iter().map(|&d| first[d]).collect())
            }
            _ => return None,
        };
        Some((op, inner.operands.clone()))
    }

    /// The value of an equation that need not be written: it would change nothing, or is there.
    pub(crate) fn known(&self, graph: &Graph, op: &Op, operands: &Values) -> Option<ValueId> {
        let ty = |i: usize| graph.ty(operands[i]);
        let all = |i: usize, number: f64| {
            let known = self.number(graph, operands[i]).map(Number::as_f64);
            (known == Some(number)).then_some(())
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
            Op::Unary(Unary::Neg) => {
                let inner = self.definition(graph, operands[0])?;
                (inner.op == Op::Unary(Unary::Neg)).then(|| inner.operands[0])
            }
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
    pub(crate) fn folded(&self, graph: &Graph, op: &Op, operands: &[ValueId]) -> Option<Literal> {
        let first = self.splat(graph, *operands.first()?)?.ty().dtype;
        let number = |i: usize| {
            let number = self.number(graph, operands[i])?;
            first.is_float().then(|| number.as_f64())
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
