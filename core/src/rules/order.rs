//! Derivatives of sorting and of running reductions.
//!
//! What runs along a dimension of `n` elements is computed in about `log2 n` steps on all elements
//! at once: each element is combined with the one 1 before, then 2 before, then 4 before, ...
//! (Hillis, Steele: "Data parallel algorithms", 1986.)

use smallvec::SmallVec;

use super::product::{padded, pair};
use crate::blocks::{Blocks, Combine, Scanned};
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
        Reducer::Max => along.extremum(Comparison::Gt, x, t, y),
        Reducer::Min => along.extremum(Comparison::Lt, x, t, y),
        // Of integers and booleans, which have no tangents.
        Reducer::And | Reducer::Or => lax::zeros(&t.ty()),
    }
}

/// For each element of a vector, the product of the elements before it (after it, in reverse) that
/// belong to the same segment: a run of equal `segments`.
pub(super) fn segmented_product(segments: Tensor, x: Tensor, reverse: bool) -> Tensor {
    let along = Along { dim: 0, reverse };
    let one = lax::full(1.into(), &x.ty());
    if x.ty().shape[0] == 0 {
        return x;
    }
    // Before the first element there is 1, whatever segment that is.
    let [segment, earlier] = [along.earlier(segments, 1, 0), along.earlier(x, 1, 1)];
    let is_same = lax::compare(Comparison::Eq, segment, segments);
    let first = lax::select(is_same, earlier, one);
    along.segments(segments, &[first], &[1], lax::mul)[0]
}

/// The way along a dimension.
#[derive(Clone, Copy)]
struct Along {
    dim: usize,
    reverse: bool,
}

impl Along {
    /// For each element, the one `by` earlier; `value` where there is none.
    fn earlier(self, x: Tensor, by: usize, value: i64) -> Tensor {
        let size = x.ty().shape[self.dim];
        let by = by.min(size);
        let (start, pad) = match self.reverse {
            false => (0, [by, 0]),
            true => (by, [0, by]),
        };
        let kept = lax::slice_dim(x, self.dim, start, start + size - by);
        padded(kept, self.dim, pad, value)
    }

    /// What an associative function makes of each element of several tensors and all those before it.
    /// Each tensor has a value that changes nothing on the left of the function.
    fn scan(self, xs: &[Tensor], identity: &[i64], combine: Combine) -> Vec<Tensor> {
        let steps = |xs: &[Tensor], dims: &[usize]| {
            let along = Along {
                dim: dims[0],
                ..self
            };
            let size = xs[0].ty().shape[along.dim];
            let mut found = xs.to_vec();
            let mut by = 1;
            while by < size {
                let earlier = found.iter().zip(identity);
                let earlier: Vec<Tensor> = earlier
                    .map(|(&x, &value)| along.earlier(x, by, value))
                    .collect();
                found = combine(&earlier, &found);
                by *= 2;
            }
            found
        };
        let dims = vec![self.dim; xs.len()];
        let numbers = xs.iter().zip(identity);
        let identity: Vec<Tensor> = numbers
            .map(|(x, &value)| lax::full(value.into(), &TensorType::scalar(x.dtype())))
            .collect();
        let scanned = Scanned {
            combine,
            of_blocks: &steps,
            of_whole: &steps,
            of_split: &steps,
            identity: Some(&identity),
        };
        Blocks::of(xs, &dims, self.reverse).scan(xs, &scanned)
    }

    /// [`Along::scan`] within segments, runs of equal `keys`, each by itself.
    fn segments(
        self,
        keys: Tensor,
        xs: &[Tensor],
        identity: &[i64],
        combine: impl Fn(Tensor, Tensor) -> Tensor,
    ) -> Vec<Tensor> {
        let within = |earlier: &[Tensor], later: &[Tensor]| {
            let is_same = lax::compare(Comparison::Eq, earlier[0], later[0]);
            let both = earlier[1..].iter().zip(&later[1..]).zip(identity);
            let combined = both.map(|((&earlier, &later), &identity)| {
                let nothing = lax::full(identity.into(), &earlier.ty());
                combine(lax::select(is_same, earlier, nothing), later)
            });
            [later[0]].into_iter().chain(combined).collect()
        };
        let xs = [&[keys], xs].concat();
        // Whatever key there is for nothing, nothing is combined.
        let identity = [&[0], identity].concat();
        self.scan(&xs, &identity, &within).split_off(1)
    }

    /// Products of pairs, as in `product.rs`.
    fn product(self, x: Tensor, t: Tensor) -> Tensor {
        let pairs = |earlier: &[Tensor], later: &[Tensor]| {
            let (p, t) = pair([earlier[0], earlier[1]], [later[0], later[1]]);
            vec![p, t]
        };
        self.scan(&[x, t], &[1, 0], &pairs)[1]
    }

    /// The mean of the tangents of all elements so far that equal the extremum so far, NaN from the
    /// first NaN on.
    ///
    /// The elements are compared with each other and not with `y`: a compiler may compute `x` again
    /// where it is compared, rounded in another way, and then no element is equal to the extremum.
    fn extremum(self, is_better: Comparison, x: Tensor, t: Tensor, y: Tensor) -> Tensor {
        let dtype = y.dtype();
        let wide = dtype.accumulator();
        let best = |earlier: &[Tensor], later: &[Tensor]| {
            let none = lax::zeros(&earlier[1].ty());
            let is_first = lax::compare(Comparison::Eq, earlier[1], none);
            let wins = lax::compare(is_better, later[0], earlier[0]) | is_first;
            let ties = lax::compare(Comparison::Eq, later[0], earlier[0]);
            let best = lax::select(wins, later[0], earlier[0]);
            let sums = (1..3).map(|i| {
                let both = lax::add(earlier[i], lax::select(ties, later[i], none));
                lax::select(wins, later[i], both)
            });
            [best].into_iter().chain(sums).collect()
        };
        let t = lax::convert(t, wide);
        let sums = self.scan(&[x, lax::full(1.into(), &t.ty()), t], &[0, 0, 0], &best);
        let mean = lax::convert(lax::binary(Binary::Div, sums[2], sums[1]), dtype);
        let nan = lax::full(f64::NAN.into(), &y.ty());
        lax::select(lax::compare(Comparison::Ne, y, y), nan, mean)
    }
}
