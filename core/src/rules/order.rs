//! Derivatives of sorting and of running reductions.
//!
//! What runs along a dimension of `n` elements is computed in about `log2 n` steps on all elements
//! at once: each element is combined with the one 1 before, then 2 before, then 4 before, ...
//! (Hillis, Steele: "Data parallel algorithms", 1986.)

use smallvec::SmallVec;

use super::product::padded;
use crate::dtype::DType;
use crate::lax;
use crate::op::{Binary, Comparison, Cumulative, Reducer, Sort};
use crate::tensor::Tensor;
use crate::transform::Dual;
use crate::types::TensorType;

/// Positions are sorted with the operands, and tangents move as they do.
pub(super) fn jvp_sort(sort: Sort, operands: &[Dual]) -> SmallVec<[Dual; 1]> {
    let mut x: Vec<Tensor> = operands.iter().map(|d| d.primal).collect();
    let ty = x[0].ty();
    x.push(lax::iota(TensorType::new(DType::I32, &ty.shape), sort.dim));
    let sorted = lax::sort(&x, sort);
    let order = sorted[operands.len()];
    let moved = |t: Tensor| match ty.element_count() {
        0 => t,
        _ => lax::take_along(t, order, sort.dim),
    };
    let sorted = sorted.iter().zip(operands);
    sorted
        .map(|(&primal, operand)| Dual {
            primal,
            tangent: operand.tangent.map(moved),
        })
        .collect()
}

pub(super) fn jvp_cumulative(cumulative: Cumulative, x: Tensor, t: Tensor, y: Tensor) -> Tensor {
    let along = Along {
        dim: cumulative.dim,
        reverse: cumulative.reverse,
    };
    match cumulative.reducer {
        Reducer::Sum => lax::cumulative(t, cumulative),
        Reducer::Prod => along.product(x, t),
        Reducer::Max | Reducer::Min => along.extremum(x, t, y),
        // Of integers and booleans, which have no tangents.
        Reducer::And | Reducer::Or => lax::zeros(&t.ty()),
    }
}

/// For each element of a vector, the product of the elements before it (after it, in reverse) that
/// belong to the same segment: a run of equal `segments`.
pub(super) fn segmented_product(segments: Tensor, x: Tensor, reverse: bool) -> Tensor {
    let along = Along { dim: 0, reverse };
    let one = lax::full(1.into(), &x.ty());
    let size = x.ty().shape[0];
    if size == 0 {
        return x;
    }
    let same = |by: usize| along.same(segments, by);
    let mut product = lax::select(same(1), along.earlier(x, 1, 1), one);
    for by in steps(size) {
        let earlier = lax::select(same(by), along.earlier(product, by, 1), one);
        product = lax::mul(product, earlier);
    }
    product
}

/// 1, 2, 4, ... below `size`.
fn steps(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |by| Some(2 * by)).take_while(move |&by| by < size)
}

/// The way along a dimension.
#[derive(Clone, Copy)]
struct Along {
    dim: usize,
    reverse: bool,
}

impl Along {
    fn size(self, x: Tensor) -> usize {
        x.ty().shape[self.dim]
    }

    /// For each element, the one `by` earlier; `value` where there is none.
    fn earlier(self, x: Tensor, by: usize, value: i64) -> Tensor {
        let size = self.size(x);
        let by = by.min(size);
        let (start, pad) = match self.reverse {
            false => (0, [by, 0]),
            true => (by, [0, by]),
        };
        let kept = lax::slice_dim(x, self.dim, start, start + size - by);
        padded(kept, self.dim, pad, value)
    }

    /// Where an element equals the one `by` earlier.
    fn same(self, x: Tensor, by: usize) -> Tensor {
        let size = self.size(x);
        let by = by.min(size);
        let first = lax::slice_dim(x, self.dim, 0, size - by);
        let second = lax::slice_dim(x, self.dim, by, size);
        let pad = match self.reverse {
            false => [by, 0],
            true => [0, by],
        };
        padded(
            lax::compare(Comparison::Eq, first, second),
            self.dim,
            pad,
            0,
        )
    }

    /// Products of pairs, as in `product.rs`.
    fn product(self, x: Tensor, t: Tensor) -> Tensor {
        let (mut x, mut t) = (x, t);
        for by in steps(self.size(x)) {
            let (p, tp) = (self.earlier(x, by, 1), self.earlier(t, by, 0));
            t = lax::add(lax::mul(tp, x), lax::mul(p, t));
            x = lax::mul(p, x);
        }
        t
    }

    /// The mean of the tangents of all elements so far that equal the extremum so far. The running
    /// extremum `y` is constant in segments, and elements equal to it are in the same one.
    fn extremum(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor {
        let dtype = y.dtype();
        let wide = lax::accumulator(dtype);
        let attained = lax::convert(lax::compare(Comparison::Eq, x, y), wide);
        let (mut count, mut total) = (attained, lax::mul(lax::convert(t, wide), attained));
        for by in steps(self.size(y)) {
            let same = lax::convert(self.same(y, by), wide);
            let before = |x: Tensor| lax::add(x, lax::mul(self.earlier(x, by, 0), same));
            (count, total) = (before(count), before(total));
        }
        lax::convert(lax::binary(Binary::Div, total, count), dtype)
    }
}
