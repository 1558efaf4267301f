//! What is known of how values are split, without asking the partitioner.
//!
//! Follows the specs of arguments and annotations forward through operations that keep a dimension.
//! It knows less than the partitioner will find out: an entry says that a dimension is split over
//! these axes, and an empty one says nothing.

use shardax_core::{Constraint, DotDims, Equation, Graph, Op, TensorType};
use shardax_sharding::{Axes, PartitionSpec};

/// By value of the graph, by dimension.
pub(super) type Splits = Vec<Vec<Axes>>;

/// The splits of all values of a graph whose inputs are split as told.
pub(super) fn splits(
    graph: &Graph,
    inputs: Vec<Vec<Axes>>,
    resolve: &dyn Fn(&Constraint, &TensorType) -> Option<PartitionSpec>,
) -> Splits {
    let mut known: Splits = vec![Vec::new(); graph.value_count()];
    for (&input, split) in graph.inputs().iter().zip(inputs) {
        known[input.index()] = split;
    }
    for equation in graph.equations() {
        let results = results(graph, equation, &known, resolve);
        for (&result, split) in equation.results.iter().zip(results) {
            known[result.index()] = split;
        }
    }
    known
}

/// Nothing is known of any dimension.
pub(super) fn unknown(rank: usize) -> Vec<Axes> {
    vec![Axes::default(); rank]
}

fn results(
    graph: &Graph,
    equation: &Equation,
    known: &Splits,
    resolve: &dyn Fn(&Constraint, &TensorType) -> Option<PartitionSpec>,
) -> Vec<Vec<Axes>> {
    let of = |i: usize| &known[equation.operands[i].index()];
    let ty = |i: usize| graph.ty(equation.operands[i]);
    let Some(&first) = equation.results.first() else {
        return Vec::new();
    };
    let result = graph.ty(first);
    let nothing = || unknown(result.rank());
    let one = match &equation.op {
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Convert(_)
        | Op::BitcastConvert(_)
        | Op::ReducePrecision { .. }
        | Op::StopGradient
        | Op::Name(_)
        | Op::Place(_)
        | Op::Reverse(_) => merged(equation, known, result.rank()),
        Op::Shard(constraint) => {
            resolve(constraint, ty(0)).map_or_else(nothing, |spec| spec.entries().to_vec())
        }
        Op::Broadcast { dims, .. } => {
            let mut split = nothing();
            for (from, &to) in dims.iter().enumerate() {
                if ty(0).shape[from] == result.shape[to] {
                    split[to] = of(0)[from].clone();
                }
            }
            split
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
            (Some(axis), _) => [&of(0)[..axis], &of(1)[..], &of(0)[axis + 1..]].concat(),
            (None, Some(_)) => of(1).clone(),
            (None, None) => nothing(),
        },
        Op::Scan(scan) => {
            let carries = equation.operands[..scan.carries].iter();
            let mut all: Vec<Vec<Axes>> = carries.map(|c| known[c.index()].clone()).collect();
            let stacked = equation.results[scan.carries..].iter();
            all.extend(stacked.map(|&r| unknown(graph.ty(r).rank())));
            return all;
        }
        Op::Remat(remat) => {
            let inputs = equation.operands.iter().map(|o| known[o.index()].clone());
            let body = splits(&remat.body, inputs.collect(), resolve);
            return remat
                .body
                .outputs()
                .iter()
                .map(|o| body[o.index()].clone())
                .collect();
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
        | Op::Cumulative(_)
        | Op::Cholesky
        | Op::TriangularSolve(_)
        | Op::Fft(_)
        | Op::Tangent(_) => nothing(),
        Op::Sort(_)
        | Op::Cond(_)
        | Op::While(_)
        | Op::Custom(_)
        | Op::Manual(_)
        | Op::Collective(_)
        | Op::CustomLinear(_)
        | Op::Foreign(_) => {
            let results = equation.results.iter();
            return results.map(|&r| unknown(graph.ty(r).rank())).collect();
        }
    };
    vec![one]
}

/// By dimension what any operand says.
fn merged(equation: &Equation, known: &Splits, rank: usize) -> Vec<Axes> {
    let mut split = unknown(rank);
    for operand in &equation.operands {
        for (entry, axes) in split.iter_mut().zip(&known[operand.index()]) {
            if entry.is_empty() {
                *entry = axes.clone();
            }
        }
    }
    split
}

/// A dimension stays the same one where the products of the sizes before it and its size agree.
fn reshaped(from: &TensorType, split: &[Axes], to: &TensorType) -> Vec<Axes> {
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

fn whole_dimensions(from: &TensorType, split: &[Axes], to: &TensorType) -> Vec<Axes> {
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
) -> Vec<Axes> {
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
