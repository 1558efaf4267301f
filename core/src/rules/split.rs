//! What is known of how values are split, without asking the partitioner.
//!
//! Follows the specs of arguments and annotations forward through operations that keep a dimension.
//! It knows less than the partitioner will find out: an entry says that a dimension is split over
//! these axes, and an empty one says nothing.

use std::rc::Rc;

use shardax_sharding::{Axes, PartitionSpec};
use smallvec::{SmallVec, smallvec};

use crate::graph::{Equation, Graph, ValueId};
use crate::op::{Constraint, DotDims, Op};
use crate::types::TensorType;

/// What splits each dimension of a value. Values share what is the same.
pub type Entries = Rc<[Axes]>;

/// By value of the graph.
pub type Splits = Vec<Entries>;

/// Where an annotation puts a value, if it can be followed.
pub type Resolve<'a> = &'a dyn Fn(&Constraint, &TensorType) -> Option<Entries>;

/// The splits of all values of a graph whose inputs are split as told.
pub fn splits(graph: &Graph, inputs: Vec<Entries>, resolve: Resolve) -> Splits {
    let mut known: Splits = vec![unknown(0); graph.value_count()];
    for (&input, split) in graph.inputs().iter().zip(inputs) {
        known[input.index()] = split;
    }
    for equation in graph.equations() {
        learn(graph, equation, &mut known, resolve);
    }
    known
}

/// How one value is split, of whose graph no more is looked at than it is computed from.
pub(crate) fn split_of(
    graph: &Graph,
    value: ValueId,
    input: &dyn Fn(ValueId) -> Entries,
    resolve: Resolve,
) -> Entries {
    let mut is_read = vec![false; graph.value_count()];
    is_read[value.index()] = true;
    let mut path = Vec::new();
    for equation in graph.equations.iter().rev() {
        if !equation
            .results
            .iter()
            .any(|result| is_read[result.index()])
        {
            continue;
        }
        path.push(equation);
        // What an annotation says does not depend on where the operand lies.
        if !matches!(equation.op, Op::Shard(_)) {
            let operands = equation.operands.iter();
            operands.for_each(|operand| is_read[operand.index()] = true);
        }
    }
    let mut known: Splits = vec![unknown(0); graph.value_count()];
    for &of in graph.inputs.iter().filter(|of| is_read[of.index()]) {
        known[of.index()] = input(of);
    }
    for equation in path.into_iter().rev() {
        learn(graph, equation, &mut known, resolve);
    }
    Rc::clone(&known[value.index()])
}

fn learn(graph: &Graph, equation: &Equation, known: &mut Splits, resolve: Resolve) {
    let results = results(graph, equation, known, resolve);
    for (&result, split) in equation.results.iter().zip(results) {
        known[result.index()] = split;
    }
}

/// Nothing is known of any dimension.
pub fn unknown(rank: usize) -> Entries {
    std::iter::repeat_n(Axes::default(), rank).collect()
}

fn results(
    graph: &Graph,
    equation: &Equation,
    known: &Splits,
    resolve: Resolve,
) -> SmallVec<[Entries; 1]> {
    let of = |i: usize| &known[equation.operands[i].index()];
    let ty = |i: usize| graph.ty(equation.operands[i]);
    let Some(&first) = equation.results.first() else {
        return SmallVec::new();
    };
    let result = graph.ty(first);
    let nothing = || unknown(result.rank());
    let inside = |body: &Graph| {
        let inputs = equation.operands.iter().map(|o| known[o.index()].clone());
        let within = splits(body, inputs.collect(), resolve);
        let outputs = body.outputs().iter();
        outputs.map(|o| within[o.index()].clone()).collect()
    };
    let one = match &equation.op {
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Convert(_)
        | Op::BitcastConvert(_)
        | Op::ReducePrecision { .. }
        | Op::StopGradient(_)
        | Op::Name(_)
        | Op::Place(_)
        | Op::Reverse(_)
        | Op::Cumulative(_) => merged(equation, known, result.rank()),
        Op::Shard(constraint) => resolve(constraint, ty(0)).unwrap_or_else(nothing),
        Op::Broadcast { dims, .. } => {
            let of = |to: usize| {
                let from = dims.iter().position(|&d| d == to)?;
                (ty(0).shape[from] == result.shape[to]).then(|| of(0)[from].clone())
            };
            (0..result.rank())
                .map(|to| of(to).unwrap_or_default())
                .collect()
        }
        Op::Reshape(_) => reshaped(ty(0), of(0), result),
        Op::Transpose(permutation) => permutation.iter().map(|&p| of(0)[p].clone()).collect(),
        Op::Slice { .. } | Op::Pad { .. } | Op::DynamicSlice(_) | Op::DynamicUpdateSlice => {
            whole_dimensions(ty(0), of(0), result)
        }
        Op::Reduce(_, dims) => (0..ty(0).rank())
            .filter(|d| !dims.contains(d))
            .map(|d| of(0)[d].clone())
            .collect(),
        Op::DotGeneral(dims) => dot(dims, (ty(0), of(0)), (ty(1), of(1))),
        Op::Gather { dims, .. } => match (dims.rows_axis(), dims.along_axis(ty(0).rank())) {
            (Some(axis), _) => [&of(0)[..axis], &of(1)[..], &of(0)[axis + 1..]]
                .concat()
                .into(),
            (None, Some(_)) => of(1).clone(),
            (None, None) => nothing(),
        },
        Op::Scan(scan) => {
            let carries = equation.operands[..scan.carries].iter();
            let carries = carries.map(|c| known[c.index()].clone());
            let stacked = equation.results[scan.carries..].iter();
            let stacked = stacked.map(|&r| unknown(graph.ty(r).rank()));
            return carries.chain(stacked).collect();
        }
        Op::Remat(remat) => return inside(&remat.body),
        Op::Custom(custom) => return inside(&custom.body),
        Op::Manual(manual) => {
            let entries = |spec: &PartitionSpec| spec.entries().iter().cloned().collect();
            return manual.outputs.iter().map(entries).collect();
        }
        Op::OptimizationBarrier => {
            return equation
                .operands
                .iter()
                .map(|o| known[o.index()].clone())
                .collect();
        }
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Concatenate(_)
        | Op::Scatter { .. }
        | Op::Conv(_)
        | Op::ReduceWindow(..)
        | Op::Cholesky
        | Op::TriangularSolve(_)
        | Op::Fft(_)
        | Op::Tangent(_) => nothing(),
        Op::Sort(_)
        | Op::Cond(_)
        | Op::While(_)
        | Op::Collective(_)
        | Op::CustomLinear(_)
        | Op::Foreign(_) => {
            let results = equation.results.iter();
            return results.map(|&r| unknown(graph.ty(r).rank())).collect();
        }
    };
    smallvec![one]
}

/// By dimension what any operand says.
fn merged(equation: &Equation, known: &Splits, rank: usize) -> Entries {
    let mut operands = equation.operands.iter().map(|o| &known[o.index()]);
    let Some(first) = operands.next().filter(|first| first.len() == rank) else {
        return unknown(rank);
    };
    let mut split = Rc::clone(first);
    for other in operands.filter(|other| !Rc::ptr_eq(first, other)) {
        for (d, axes) in other.iter().enumerate().take(rank) {
            if split[d].is_empty() && !axes.is_empty() {
                Rc::make_mut(&mut split)[d] = axes.clone();
            }
        }
    }
    split
}

/// A dimension stays the same one where the products of the sizes before it and its size agree.
fn reshaped(from: &TensorType, split: &[Axes], to: &TensorType) -> Entries {
    let before = |ty: &TensorType, d: usize| ty.shape[..d].iter().product::<usize>();
    let same = |d: usize| {
        (0..from.rank()).find(|&o| {
            from.shape[o] == to.shape[d] && before(from, o) == before(to, d) && to.shape[d] > 1
        })
    };
    (0..to.rank())
        .map(|d| same(d).map(|o| split[o].clone()).unwrap_or_default())
        .collect()
}

fn whole_dimensions(from: &TensorType, split: &[Axes], to: &TensorType) -> Entries {
    let kept = |d: usize| from.shape[d] == to.shape[d];
    (0..to.rank())
        .map(|d| {
            if kept(d) {
                split[d].clone()
            } else {
                Axes::default()
            }
        })
        .collect()
}

fn dot(
    dims: &DotDims,
    (lhs, lhs_split): (&TensorType, &[Axes]),
    (rhs, rhs_split): (&TensorType, &[Axes]),
) -> Entries {
    let batch = dims.lhs_batch.iter().map(|&d| lhs_split[d].clone());
    let left = dims
        .lhs_free(lhs.rank())
        .into_iter()
        .map(|d| lhs_split[d].clone());
    let right = dims
        .rhs_free(rhs.rank())
        .into_iter()
        .map(|d| rhs_split[d].clone());
    batch.chain(left).chain(right).collect()
}
