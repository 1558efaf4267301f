//! Shifts along a dimension that devices split.
//!
//! `concatenate([x.slice(0, 1..), last])` moves every element by one place, as the targets of a language
//! model do: a device lacks one element, which its neighbor has. The partitioner brings all operands of
//! a concatenation to every device if the dimension is split; what is padded it knows how to shift.

use rustc_hash::FxHashSet;
use shardax_core::split::Splits;
use shardax_core::{Equation, Graph, Op, ValueId};

/// By result, the concatenations of a graph that shift a value along a dimension that is split.
pub(super) type Shifts = FxHashSet<ValueId>;

/// The shifts of a graph.
pub(super) fn shifts(graph: &Graph, definitions: &[Option<&Equation>], splits: &Splits) -> Shifts {
    let found = graph.equations().iter().filter_map(|equation| {
        let Op::Concatenate(dim) = equation.op else {
            return None;
        };
        let result = equation.results[0];
        let [first, second] = equation.operands[..] else {
            return None;
        };
        let parts = [first, second].map(|part| part_of(definitions, part));
        // What leaves at one end and comes back at the other is known to the partitioner.
        let is_rotation = parts[0].is_some() && parts[0] == parts[1];
        let is_shifted = |x: &ValueId| {
            let size = graph.ty(*x).shape[dim];
            size == graph.ty(result).shape[dim] && !splits[x.index()][dim].is_empty()
        };
        let is_shift = !is_rotation && parts.iter().flatten().any(is_shifted);
        is_shift.then_some(result)
    });
    found.collect()
}

/// The value that another one is a slice of.
fn part_of(definitions: &[Option<&Equation>], part: ValueId) -> Option<ValueId> {
    let equation = definitions[part.index()]?;
    matches!(equation.op, Op::Slice { .. }).then(|| equation.operands[0])
}
