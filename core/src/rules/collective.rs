//! The rules of collectives.
//!
//! One meaning of the gradient runs through them: a value that devices hold in common has one
//! cotangent in common, and one that is each device's own has a cotangent on each. So the transpose of
//! a sum over devices hands its cotangent to each of them, and that of a common value becoming each
//! device's own is the sum: however a sum of losses is written, it has the same gradient.

use super::batch::{Batched, shifted};
use crate::lax;
use crate::op::{Binary, Collective, CollectiveOp, Comparison};
use crate::tensor::{Tensor, scaled};

/// The tangent of `y`, the collective of `x` whose tangent is `t`.
pub(super) fn jvp_collective(collective: &Collective, x: Tensor, t: Tensor, y: Tensor) -> Tensor {
    match &collective.kind {
        CollectiveOp::Pmax | CollectiveOp::Pmin => {
            // The mean of the tangents of those devices whose value is the extremum.
            let ty = x.ty();
            let wide = ty.dtype.accumulator();
            let total = |x: Tensor| lax::collective(x, collective.with(CollectiveOp::Psum));
            let mask = lax::convert(lax::compare(Comparison::Eq, x, y), wide);
            let sum = total(scaled(lax::convert(t, wide), mask));
            lax::convert(lax::binary(Binary::Div, sum, total(mask)), ty.dtype)
        }
        CollectiveOp::Psum
        | CollectiveOp::AllGather { .. }
        | CollectiveOp::ReduceScatter(_)
        | CollectiveOp::AllToAll { .. }
        | CollectiveOp::Ppermute(_)
        | CollectiveOp::AxisIndex
        | CollectiveOp::Vary
        | CollectiveOp::AssumeInvariant => lax::collective(t, collective.clone()),
    }
}

/// The cotangent of the operand; `None` for a collective that is not linear.
pub(super) fn transpose_collective(collective: &Collective, ct: Tensor) -> Option<Tensor> {
    let kind = match &collective.kind {
        CollectiveOp::Psum => CollectiveOp::Vary,
        CollectiveOp::Vary => CollectiveOp::Psum,
        &CollectiveOp::AllGather {
            dim,
            invariant: false,
        } => CollectiveOp::ReduceScatter(dim),
        &CollectiveOp::AllGather {
            dim,
            invariant: true,
        } => return Some(own_block(ct, dim, collective)),
        &CollectiveOp::ReduceScatter(dim) => CollectiveOp::AllGather {
            dim,
            invariant: false,
        },
        &CollectiveOp::AllToAll { split, join } => CollectiveOp::AllToAll {
            split: join,
            join: split,
        },
        CollectiveOp::AssumeInvariant => return Some(on_first(ct, collective)),
        CollectiveOp::Ppermute(pairs) => {
            CollectiveOp::Ppermute(pairs.iter().map(|&(from, to)| (to, from)).collect())
        }
        CollectiveOp::Pmax | CollectiveOp::Pmin | CollectiveOp::AxisIndex => return None,
    };
    Some(lax::collective(ct, collective.with(kind)))
}

/// The collective of a batch.
pub(super) fn batch_collective(collective: &Collective, x: Tensor, d: usize) -> Batched {
    let shift = |dim: usize| shifted(dim, d);
    let kind = match &collective.kind {
        &CollectiveOp::AllGather { dim, invariant } => CollectiveOp::AllGather {
            dim: shift(dim),
            invariant,
        },
        &CollectiveOp::ReduceScatter(dim) => CollectiveOp::ReduceScatter(shift(dim)),
        &CollectiveOp::AllToAll { split, join } => CollectiveOp::AllToAll {
            split: shift(split),
            join: shift(join),
        },
        kind @ (CollectiveOp::Psum
        | CollectiveOp::Pmax
        | CollectiveOp::Pmin
        | CollectiveOp::Ppermute(_)
        | CollectiveOp::AxisIndex
        | CollectiveOp::Vary
        | CollectiveOp::AssumeInvariant) => kind.clone(),
    };
    Batched::new(lax::collective(x, collective.with(kind)), d)
}

/// The value on the first device, zeros on the others. Of values that are equal, the common one is the
/// first: so its cotangent is the first one's, whole and once.
fn on_first(x: Tensor, collective: &Collective) -> Tensor {
    let ty = x.ty();
    let index = lax::axis_index(collective.axes.clone());
    let is_first = lax::compare(Comparison::Eq, index, lax::zeros(&index.ty()));
    let is_first = lax::broadcast(is_first, &ty.shape, &[]);
    lax::select(is_first, x, lax::zeros(&ty))
}

/// The device's own block of a value that all have, along a dimension.
pub(crate) fn own_block(x: Tensor, dim: usize, collective: &Collective) -> Tensor {
    let mut sizes = x.ty().shape;
    sizes[dim] /= collective.size();
    let index = lax::axis_index(collective.axes.clone());
    let size = lax::full((sizes[dim] as i64).into(), &index.ty());
    let zero = lax::zeros(&index.ty());
    let starts: Vec<Tensor> = (0..sizes.len())
        .map(|d| {
            if d == dim {
                lax::mul(index, size)
            } else {
                zero
            }
        })
        .collect();
    lax::dynamic_slice(x, &starts, &sizes)
}
