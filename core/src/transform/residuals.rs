//! What a loop keeps of each iteration for its backward pass.
//!
//! The linear half of a loop body reads values of the other half. Stacking all of them would be
//! right and wasteful: a broadcast is as large as what it was made for, a constant is the same in
//! every iteration, and a weight is already there, unstacked. So a value is computed again in the
//! backward loop, rather than stacked, when that takes one cheap operation and does not make more
//! to be stacked: from scanned arrays, constants, and values that are stacked anyhow. A parameter
//! that a layout gathers for use is thereby gathered again, which is what FSDP means.

use std::collections::BTreeSet;

use shardax_sharding::Role;

use super::linearize::linear_values;
use crate::graph::{Equation, Graph, ValueId};
use crate::op::{Binary, Op, Unary};

/// The choice.
pub(crate) struct Residuals {
    /// Inputs of the body that the linear half reads: scanned arrays and constants, ascending.
    pub inputs: Vec<ValueId>,
    /// Values to stack.
    pub stacked: Vec<ValueId>,
}

/// Chooses residuals for the linear part of `graph` that computes `tangents_out`. The first
/// `carries` of `inputs` differ in every iteration and are nowhere outside the loop.
pub(crate) fn choose(
    graph: &Graph,
    inputs: &[ValueId],
    carries: usize,
    tangents_out: &[ValueId],
) -> Residuals {
    let mut definition: Vec<Option<&Equation>> = vec![None; graph.value_count()];
    for equation in graph.equations() {
        for result in &equation.results {
            definition[result.index()] = Some(equation);
        }
    }
    let mut outer = vec![false; graph.value_count()];
    for input in &inputs[carries..] {
        outer[input.index()] = true;
    }
    let mut free = outer.clone();
    // Gathering a parameter again is worth it for the parameter, but not for what it was added to.
    let is_free =
        |op: &Op| is_cheap(op) && !matches!(op, Op::Shard(c) if c.role == Role::ParameterAtUse);
    for equation in graph.equations().iter().filter(|e| is_free(&e.op)) {
        let all = equation.operands.iter().all(|o| free[o.index()]);
        free[equation.results[0].index()] = all;
    }

    let mut wanted = read_by_linear(graph, tangents_out);
    let mut choice = Residuals {
        inputs: Vec::new(),
        stacked: Vec::new(),
    };
    // Latest first: an operand is looked at after everything that may have asked for it.
    while let Some(value) = wanted.pop_last() {
        let Some(equation) = definition[value.index()] else {
            let kept = if outer[value.index()] {
                &mut choice.inputs
            } else {
                &mut choice.stacked
            };
            kept.push(value);
            continue;
        };
        let bytes = |v: ValueId| graph.ty(v).host_bytes();
        let operands = equation.operands.iter().copied();
        let added: BTreeSet<ValueId> = operands
            .filter(|o| !free[o.index()] && !wanted.contains(o))
            .collect();
        let cost: usize = added.iter().map(|&o| bytes(o)).sum();
        if is_cheap(&equation.op) && added.len() <= 1 && cost <= bytes(value) {
            wanted.extend(&equation.operands);
        } else {
            choice.stacked.push(value);
        }
    }
    choice.inputs.sort_unstable();
    choice.stacked.sort_unstable();
    choice
}

/// Values outside of the linear part that it, or a result, reads.
fn read_by_linear(graph: &Graph, tangents_out: &[ValueId]) -> BTreeSet<ValueId> {
    let linear = linear_values(graph.equations(), 0);
    let mut live = BTreeSet::new();
    let mut read = BTreeSet::new();
    for &output in tangents_out {
        if linear.has(output) {
            live.insert(output)
        } else {
            read.insert(output)
        };
    }
    for equation in graph.equations().iter().rev() {
        if !equation.results.iter().any(|r| live.contains(r)) {
            continue;
        }
        for &operand in &equation.operands {
            if linear.has(operand) {
                live.insert(operand)
            } else {
                read.insert(operand)
            };
        }
    }
    read
}

/// Whether computing it again costs no more than reading it back.
fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Compare(_)
        | Op::Select
        | Op::Convert(_)
        | Op::BitcastConvert(_)
        | Op::Broadcast { .. }
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice { .. }
        | Op::Shard(_)
        | Op::ReducePrecision { .. }
        | Op::Name(_)
        | Op::StopGradient(_) => true,
        Op::Unary(op) => matches!(
            op,
            Unary::Abs
                | Unary::Ceil
                | Unary::Floor
                | Unary::Imag
                | Unary::IsFinite
                | Unary::Neg
                | Unary::Not
                | Unary::Real
                | Unary::Round
                | Unary::RoundEven
                | Unary::Sign
        ),
        Op::Binary(op) => !matches!(
            op,
            Binary::Atan2
                | Binary::Div
                | Binary::DivOrZero
                | Binary::NextAfter
                | Binary::Polygamma
                | Binary::Pow
                | Binary::Rem
        ),
        Op::Collective(collective) => !collective.kind.communicates(),
        Op::Pad { .. }
        | Op::Concatenate(_)
        | Op::Reverse(_)
        | Op::Reduce(..)
        | Op::DotGeneral(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdateSlice
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::Conv(_)
        | Op::ReduceWindow(..)
        | Op::Cumulative(_)
        | Op::Sort(_)
        | Op::Cholesky
        | Op::TriangularSolve(_)
        | Op::Fft(_)
        | Op::OptimizationBarrier
        | Op::Place(_)
        | Op::Scan(_)
        | Op::Cond(_)
        | Op::While(_)
        | Op::Remat(_)
        | Op::Custom(_)
        | Op::CustomLinear(_)
        | Op::Foreign(_)
        | Op::Manual(_)
        | Op::Tangent(_) => false,
    }
}
