//! The derivative of a product.
//!
//! The sum over elements of a tangent times the product of all other elements. It is computed as
//! products are multiplied, pair by pair, with `(p, t) (q, u) = (p q, t q + p u)`: without division,
//! so that zeros among the elements, and derivatives of any order, are exact. A tangent of 0 stays 0,
//! whatever it meets.

use crate::lax;
use crate::op::{Binary, Dims};
use crate::tensor::Tensor;
use crate::types::TensorType;

pub(super) fn jvp_product(x: Tensor, t: Tensor, dims: &Dims) -> Tensor {
    let mut shape = x.ty().shape;
    let (mut x, mut t) = (x, t);
    for &dim in dims {
        while shape[dim] > 1 {
            let size = shape[dim].next_multiple_of(2);
            let halves = |x: Tensor, odd: i64| {
                let even = padded(x, dim, [0, size - shape[dim]], odd);
                let half = |start| lax::slice_dim(even, dim, start, start + size / 2);
                [half(0), half(size / 2)]
            };
            let ([p, q], [tp, tq]) = (halves(x, 1), halves(t, 0));
            (x, t) = pair([p, tp], [q, tq]);
            shape[dim] = size / 2;
        }
    }
    // What is left has one element along each dimension, or none.
    lax::sum(t, dims)
}

/// The product of two elements with their tangents.
pub(super) fn pair([p, tp]: [Tensor; 2], [q, tq]: [Tensor; 2]) -> (Tensor, Tensor) {
    let scaled = |t: Tensor, x: Tensor| lax::binary(Binary::MulOrZero, t, x);
    (lax::mul(p, q), lax::add(scaled(tp, q), scaled(tq, p)))
}

/// `x` with elements of value `value` before and after along one dimension.
pub(super) fn padded(x: Tensor, dim: usize, around: [usize; 2], value: i64) -> Tensor {
    let value = lax::full(value.into(), &TensorType::scalar(x.dtype()));
    lax::pad_dim(x, dim, around, value)
}
