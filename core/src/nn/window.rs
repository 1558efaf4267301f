//! Windows of one dimension, whose start is known when the program runs: what the loops over blocks
//! read and write. A window that is the whole costs nothing.

use crate::lax;
use crate::tensor::Tensor;

/// `size` elements of dimension `dim` from `start` on, which all lie inside.
#[track_caller]
pub(super) fn read(x: Tensor, dim: usize, start: Tensor, size: usize) -> Tensor {
    let mut sizes = x.ty().shape;
    if sizes[dim] == size {
        return x;
    }
    sizes[dim] = size;
    lax::dynamic_slice(x, &starts(x, dim, start), &sizes)
}

/// `x` with `part` in its place from `start` on in dimension `dim`.
#[track_caller]
pub(super) fn put(x: Tensor, part: Tensor, dim: usize, start: Tensor) -> Tensor {
    if x.ty().is_like(&part.ty()) {
        return part;
    }
    lax::dynamic_update_slice(x, part, &starts(x, dim, start))
}

/// `x` with `part` added from `start` on in dimension `dim`.
#[track_caller]
pub(super) fn add(x: Tensor, part: Tensor, dim: usize, start: Tensor) -> Tensor {
    let before = read(x, dim, start, part.ty().shape[dim]);
    put(x, before + part, dim, start)
}

fn starts(x: Tensor, dim: usize, start: Tensor) -> Vec<Tensor> {
    let zero = start.zeros_like();
    let of = |d: usize| if d == dim { start } else { zero };
    (0..x.rank()).map(of).collect()
}
