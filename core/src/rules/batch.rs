//! The batching rule of each primitive: what `vmap` makes of it.
//!
//! A rule is given an equation and its operands, of which at least one has a batch dimension, at
//! any position. It emits one equation that does the work of all elements of the batch, and tells
//! where the results have the dimension. Operands without one are left as they are wherever the
//! operation allows.

use shardax_sharding::Dim;
use smallvec::{SmallVec, smallvec};

use super::{collective, conv, gather, window};
use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::graph::Equation;
use crate::lax;
use crate::op::{Combine, Constraint, Cumulative, Dims, DotDims, GatherDims, Op, Sort};
use crate::tensor::Tensor;
use crate::trace::{emit1, fail_at};
use crate::transform::{
    Batch, batch_cond, batch_custom, batch_foreign, batch_manual, batch_remat, batch_scan,
    batch_while,
};
use crate::types::TensorType;

/// A value, and the dimension along which it has an element for each of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batched {
    pub tensor: Tensor,
    /// `None` where one value serves all elements.
    pub dim: Option<usize>,
}

impl Batched {
    pub(crate) fn new(tensor: Tensor, dim: usize) -> Self {
        Batched {
            tensor,
            dim: Some(dim),
        }
    }

    pub(crate) fn constant(tensor: Tensor) -> Self {
        Batched { tensor, dim: None }
    }

    /// The value with its batch dimension at `to`, repeated if it has none.
    pub(crate) fn at(self, to: usize, size: usize) -> Tensor {
        let ty = self.tensor.ty();
        match self.dim {
            Some(from) => {
                let mut order: Dims = (0..ty.rank()).filter(|&d| d != from).collect();
                order.insert(to, from);
                lax::transpose(self.tensor, &order)
            }
            None => {
                let mut shape = ty.shape;
                let dims: Dims = (0..=shape.len()).filter(|&d| d != to).collect();
                shape.insert(to, size);
                lax::broadcast(self.tensor, &shape, &dims)
            }
        }
    }
}

/// Where a dimension of a value is once a batch dimension stands at `batch`.
pub(super) fn shifted(dim: usize, batch: usize) -> usize {
    dim + usize::from(dim >= batch)
}

pub(super) fn all_shifted(dims: &[usize], batch: usize) -> Dims {
    dims.iter().map(|&d| shifted(d, batch)).collect()
}

/// `values` with `value` at `batch`.
pub(super) fn inserted(values: &[usize], batch: usize, value: usize) -> Dims {
    let mut values = Dims::from_slice(values);
    values.insert(batch, value);
    values
}

/// Emits `equation` for a whole batch.
pub(crate) fn batch(
    equation: &Equation,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    match &equation.op {
        Op::Scan(scan) => return batch_scan(equation, scan, operands, batch),
        Op::Cond(cond) => return batch_cond(equation, cond, operands, batch),
        Op::While(looped) => return batch_while(equation, looped, operands, batch),
        Op::Remat(remat) => return batch_remat(equation, remat, operands, batch),
        Op::Custom(custom) => return batch_custom(equation, custom, operands, batch),
        Op::Manual(manual) => return batch_manual(equation, manual, operands, batch),
        Op::Foreign(foreign) => return batch_foreign(equation, foreign, operands, batch),
        Op::OptimizationBarrier => {
            let tensors: Vec<Tensor> = operands.iter().map(|o| o.tensor).collect();
            let results = lax::barrier(&tensors).into_iter();
            return results
                .zip(operands)
                .map(|(tensor, operand)| Batched { tensor, ..*operand })
                .collect();
        }
        Op::Sort(sort) => return batch_sort(*sort, operands, batch.size),
        _ => {}
    }
    smallvec![one(equation, operands, batch)]
}

fn one(equation: &Equation, operands: &[Batched], batch: &Batch) -> Batched {
    let size = batch.size;
    let source = equation.source;
    // The position of the first operand, for operations on it alone.
    let first = operands[0];
    let d = first.dim.unwrap_or(0);
    let same = |op: Op, dim: usize| Batched::new(emit1(op, &[first.tensor], source), dim);
    match &equation.op {
        Op::Unary(_)
        | Op::Convert(_)
        | Op::BitcastConvert(_)
        | Op::ReducePrecision { .. }
        | Op::StopGradient(_)
        | Op::Place(_) => same(equation.op.clone(), d),
        Op::Name(of) => {
            let mut of = of.clone();
            of.mapped.push((d, batch.name));
            same(Op::Name(of), d)
        }
        Op::Binary(_) | Op::Compare(_) | Op::Select => elementwise(equation, operands, size),
        Op::Broadcast { shape, dims } => {
            // Operand dimensions keep their order, so the batch stands after the one before it.
            let to = d.checked_sub(1).map_or(0, |before| dims[before] + 1);
            let op = Op::Broadcast {
                shape: inserted(shape, to, size),
                dims: inserted(&all_shifted(dims, to), d, to),
            };
            same(op, to)
        }
        Op::Reshape(shape) => {
            let x = first.at(0, size);
            Batched::new(lax::reshape(x, &inserted(shape, 0, size)), 0)
        }
        Op::Transpose(permutation) => {
            let op = Op::Transpose(inserted(&all_shifted(permutation, d), 0, d));
            same(op, 0)
        }
        Op::Slice {
            starts,
            limits,
            strides,
        } => {
            let op = Op::Slice {
                starts: inserted(starts, d, 0),
                limits: inserted(limits, d, size),
                strides: inserted(strides, d, 1),
            };
            same(op, d)
        }
        Op::Pad {
            low,
            high,
            interior,
        } => pad(operands, [low, high, interior], size),
        Op::Concatenate(dimension) => {
            let d = first_dim(operands);
            let parts: Vec<Tensor> = operands.iter().map(|o| o.at(d, size)).collect();
            Batched::new(lax::concatenate(&parts, shifted(*dimension, d)), d)
        }
        Op::Reverse(dims) => same(Op::Reverse(all_shifted(dims, d)), d),
        Op::Reduce(reducer, dims) => {
            let dims = all_shifted(dims, d);
            let before = dims.iter().filter(|&&r| r < d).count();
            same(Op::Reduce(*reducer, dims), d - before)
        }
        Op::DotGeneral(dims) => dot(dims, operands),
        Op::DynamicSlice(sizes) => dynamic_slice(operands, sizes, size),
        Op::DynamicUpdateSlice => dynamic_update_slice(operands, size),
        Op::Gather { dims, sizes } => gather::batch_gather(dims, sizes, operands, size),
        Op::Scatter { dims, combine } => gather::batch_scatter(dims, *combine, operands, size),
        Op::Conv(of) => conv::batch_conv(of, first, operands[1], size),
        Op::ReduceWindow(reducer, of) => window::batch_reduce_window(*reducer, of, first),
        Op::Cumulative(cumulative) => {
            let op = Op::Cumulative(Cumulative {
                dim: shifted(cumulative.dim, d),
                ..*cumulative
            });
            same(op, d)
        }
        Op::Cholesky | Op::TriangularSolve(_) | Op::Fft(_) => {
            let x: SmallVec<[Tensor; 2]> = operands.iter().map(|o| o.at(0, size)).collect();
            Batched::new(emit1(equation.op.clone(), &x, source), 0)
        }
        Op::Collective(of) => collective::batch_collective(of, first.tensor, d),
        Op::Shard(constraint) => {
            let mut dims = constraint.dims.clone();
            // The name is the batch dimension's now: what is called so inside is a part of one element.
            for dim in dims.iter_mut() {
                if matches!(dim, Dim::Logical(_)) && *dim == batch.name {
                    *dim = Dim::Unsharded;
                }
            }
            dims.insert(
                d,
                match constraint.leaves_batch_open {
                    true => Dim::Open,
                    false => batch.name,
                },
            );
            let constraint = Constraint {
                dims,
                // It is another array now, of several parameters.
                leaf: None,
                ..constraint.as_ref().clone()
            };
            same(Op::Shard(Box::new(constraint)), d)
        }
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Sort(_)
        | Op::OptimizationBarrier
        | Op::Scan(_)
        | Op::Cond(_)
        | Op::While(_)
        | Op::Remat(_)
        | Op::Custom(_)
        | Op::CustomLinear(_)
        | Op::Foreign(_)
        | Op::Manual(_)
        | Op::Tangent(_) => {
            let kind = ErrorKind::Derivative {
                op: equation.op.name(),
                problem: "is batched while it is being differentiated".into(),
            };
            fail_at(kind, None, source)
        }
    }
}

/// Where the first operand with a batch dimension has it.
fn first_dim(operands: &[Batched]) -> usize {
    operands.iter().find_map(|o| o.dim).unwrap_or(0)
}

fn elementwise(equation: &Equation, operands: &[Batched], size: usize) -> Batched {
    let d = first_dim(operands);
    let x: SmallVec<[Tensor; 3]> = operands.iter().map(|o| o.at(d, size)).collect();
    Batched::new(emit1(equation.op.clone(), &x, equation.source), d)
}

/// Padding that differs from element to element is put in where a mask was padded.
fn pad(operands: &[Batched], [low, high, interior]: [&Dims; 3], size: usize) -> Batched {
    let [x, value] = [operands[0], operands[1]];
    let d = x.dim.unwrap_or(0);
    let batched = |dims: &Dims| inserted(dims, d, 0);
    let pad = |x: Tensor, value: Tensor| {
        lax::pad(x, value, batched(low), batched(high), batched(interior))
    };
    let x = x.at(d, size);
    let Some(0) = value.dim else {
        return Batched::new(pad(x, value.tensor), d);
    };
    let ty = x.ty();
    let truth = |value: bool| Tensor::scalar(value, DType::Bool);
    let inside = pad(lax::broadcast(truth(true), &ty.shape, &[]), truth(false));
    let zero = lax::zeros(&TensorType::scalar(ty.dtype));
    let padded = pad(x, zero);
    let around = lax::broadcast(value.tensor, &padded.ty().shape, &[d]);
    Batched::new(lax::select(inside, padded, around), d)
}

/// A batch dimension on both sides is a batch dimension of the dot; on one side, a free one.
fn dot(dims: &DotDims, operands: &[Batched]) -> Batched {
    let [lhs, rhs] = [operands[0], operands[1]];
    let moved = |dims: &Dims, by: Option<usize>| match by {
        Some(d) => all_shifted(dims, d),
        None => dims.clone(),
    };
    let mut batched = DotDims {
        lhs_batch: moved(&dims.lhs_batch, lhs.dim),
        lhs_contract: moved(&dims.lhs_contract, lhs.dim),
        rhs_batch: moved(&dims.rhs_batch, rhs.dim),
        rhs_contract: moved(&dims.rhs_contract, rhs.dim),
        result: dims.result,
    };
    if let (Some(l), Some(r)) = (lhs.dim, rhs.dim) {
        batched.lhs_batch.insert(0, l);
        batched.rhs_batch.insert(0, r);
    }
    let lhs_free = batched.lhs_free(lhs.tensor.ty().rank());
    let rhs_free = batched.rhs_free(rhs.tensor.ty().rank());
    let place = |free: &Dims, d: usize| free.iter().position(|&f| f == d).unwrap_or(0);
    let shared = batched.lhs_batch.len();
    let at = match (lhs.dim, rhs.dim) {
        (Some(l), None) => shared + place(&lhs_free, l),
        (None, Some(r)) => shared + lhs_free.len() + place(&rhs_free, r),
        _ => 0,
    };
    Batched::new(lax::dot(lhs.tensor, rhs.tensor, batched), at)
}

/// Index vectors of starts, `[batch, component]`.
fn start_vectors(starts: &[Batched], size: usize) -> Tensor {
    let columns: Vec<Tensor> = starts
        .iter()
        .map(|s| lax::reshape(s.at(0, size), &[size, 1]))
        .collect();
    lax::concatenate(&columns, 1)
}

/// The windows of a gather or scatter that stand for slices of whole rank `rank`, one for each
/// element of the batch.
fn slice_windows(rank: usize, batched: bool) -> GatherDims {
    let at = usize::from(batched);
    GatherDims {
        offset: (1..=rank).collect(),
        collapsed: Dims::new(),
        operand_batch: (0..at).collect(),
        indices_batch: (0..at).collect(),
        start_map: (at..at + rank).collect(),
        vectors: true,
    }
}

fn dynamic_slice(operands: &[Batched], sizes: &Dims, size: usize) -> Batched {
    let (x, starts) = (operands[0], &operands[1..]);
    let rank = sizes.len();
    if rank == 0 {
        return x;
    }
    if starts.iter().all(|s| s.dim.is_none()) {
        let d = x.dim.unwrap_or(0);
        let mut at: Vec<Tensor> = starts.iter().map(|s| s.tensor).collect();
        at.insert(d, lax::zeros(&starts[0].tensor.ty()));
        let slice = lax::dynamic_slice(x.tensor, &at, &inserted(sizes, d, size));
        return Batched::new(slice, d);
    }
    let vectors = start_vectors(starts, size);
    let dims = slice_windows(rank, x.dim.is_some());
    let result = match x.dim {
        Some(_) => lax::gather(x.at(0, size), vectors, dims, &inserted(sizes, 0, 1)),
        None => lax::gather(x.tensor, vectors, dims, sizes),
    };
    Batched::new(result, 0)
}

fn dynamic_update_slice(operands: &[Batched], size: usize) -> Batched {
    let (x, update, starts) = (operands[0], operands[1], &operands[2..]);
    if starts.is_empty() {
        return update;
    }
    if starts.iter().all(|s| s.dim.is_none()) {
        let d = first_dim(&operands[..2]);
        let mut at: Vec<Tensor> = starts.iter().map(|s| s.tensor).collect();
        at.insert(d, lax::zeros(&starts[0].tensor.ty()));
        let updated = lax::dynamic_update_slice(x.at(d, size), update.at(d, size), &at);
        return Batched::new(updated, d);
    }
    let dims = slice_windows(starts.len(), true);
    let vectors = start_vectors(starts, size);
    let updated = lax::scatter(
        x.at(0, size),
        vectors,
        update.at(0, size),
        dims,
        Combine::Set,
    );
    Batched::new(updated, 0)
}

fn batch_sort(sort: Sort, operands: &[Batched], size: usize) -> SmallVec<[Batched; 1]> {
    let d = first_dim(operands);
    let x: Vec<Tensor> = operands.iter().map(|o| o.at(d, size)).collect();
    let sort = Sort {
        dim: shifted(sort.dim, d),
        ..sort
    };
    let results = lax::sort(&x, sort).into_iter();
    results.map(|tensor| Batched::new(tensor, d)).collect()
}
