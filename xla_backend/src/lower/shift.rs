//! Shifts along a dimension that devices split.
//!
//! `concatenate([x.slice(0, 1..), last])` moves every element by one place, as the targets of a language
//! model do: a device lacks one element, which its neighbor has. The partitioner brings all operands of
//! a concatenation to every device if the dimension is split; what is padded it knows how to shift.

use rustc_hash::FxHashSet;
use shardax_core::ir::split::Splits;
use shardax_core::ir::{Equation, Graph, Op, ValueId};
use shardax_sharding::{Axes, PartitionSpec, Partitioner};

use super::Block;
use super::sharding::Annotations;

/// How many operations are looked back at for where a value was cut from.
const FURTHEST: usize = 32;

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

/// How what moves along a dimension lies that several axes split: as before it moved.
///
/// Left to itself, Shardy may choose a part of these axes for what is moved, where the value after it is annotated
/// otherwise, and make a program of which shapes do not fit.
pub(super) fn in_place(
    graph: &Graph,
    equation: &Equation,
    block: &Block,
    annotations: &Annotations,
) -> Option<PartitionSpec> {
    if annotations.is_single() || annotations.partitioner() != Partitioner::Shardy {
        return None;
    }
    let result = graph.ty(equation.results[0]);
    let mut entries = vec![Axes::default().open(); result.rank()];
    let mut is_told = false;
    for (dim, entry) in entries.iter_mut().enumerate() {
        let moves = match &equation.op {
            Op::Concatenate(along) => dim == *along,
            Op::Pad { low, high, .. } => low[dim] != 0 || high[dim] != 0,
            _ => false,
        };
        let mut operands = equation.operands.iter();
        let axes = operands.find_map(|&operand| before(block, operand, dim));
        if let Some(axes) = axes.filter(|_| moves) {
            let devices: usize = annotations
                .parts(axes)
                .iter()
                .map(|part| part.size)
                .product();
            if result.shape[dim].is_multiple_of(devices) {
                *entry = axes.clone();
                is_told = true;
            }
        }
    }
    is_told.then(|| entries.into_iter().collect())
}

/// The axes that split a dimension of what a value is cut from.
fn before<'b>(block: &'b Block, value: ValueId, dim: usize) -> Option<&'b Axes> {
    let mut left = vec![value];
    let mut seen = FxHashSet::default();
    while let Some(value) = left.pop() {
        let split = block.splits.get(value.index())?.get(dim);
        match split.filter(|axes| !axes.is_empty()) {
            Some(axes) if axes.names().len() > 1 => return Some(axes),
            Some(_) => continue,
            None => {}
        }
        let Some(Some(equation)) = block.definitions.get(value.index()) else {
            continue;
        };
        let keeps_places = matches!(
            equation.op,
            Op::Slice { .. } | Op::Unary(_) | Op::Binary(_) | Op::Convert(_) | Op::Select
        );
        if keeps_places && seen.len() < FURTHEST && seen.insert(value) {
            left.extend(&equation.operands);
        }
    }
    None
}

/// The value that another one is a slice of.
fn part_of(definitions: &[Option<&Equation>], part: ValueId) -> Option<ValueId> {
    let equation = definitions[part.index()]?;
    matches!(equation.op, Op::Slice { .. }).then(|| equation.operands[0])
}
