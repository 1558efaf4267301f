//! Lengths of vectors, and the squares of lengths and of other roots.
//!
//! A length is a number where the squares that it is made of may overflow or vanish, and its derivative, the
//! unit vector, is one between -1 and 1; both are computed so.
//!
//! **Squares of roots.** The square of a length is smooth at 0, where the length itself is not: its second
//! derivative is 2. Rules for the root and the square, each by itself, cannot have that. At 0 the root
//! has no derivative, so that the cotangent of the square, 2 times 0, meets an infinite slope; what
//! the product tends to depends on how the cotangent vanishes, and a rule is given its value only. So
//! the square of a root is written as what is under the root, which is also shorter and exact. This
//! is known of `sqrt`, `abs`, `hypot`, `norm` and `std`, also through reshapes, transpositions, broadcasts and
//! signs, for `square()`, `x * x` and `pow(2)`. Of other smooth functions of a length, its cosine say, the
//! second derivative at 0 is 0 by the conventions for kinks.

use std::panic::Location;

use super::reduce::{dims_at, floating, with_dims};
use super::{Axes, Tensor, scaled};
use crate::dtype::DType;
use crate::lax;
use crate::op::{Op, Reducer, Unary};
use crate::trace::{emit1, made_by, method, note_square, noted_square};
use crate::transform::custom_jvp;

impl Tensor {
    /// The Euclidean norm over dimensions, which disappear: the root of the sum of squares, without
    /// overflow. Its gradient at 0 is 0; its square is smooth there, with second derivative 2.
    #[track_caller]
    pub fn norm(self, axes: impl Axes) -> Tensor {
        let source = Location::caller();
        method("norm", source, || {
            let ty = self.ty();
            let dims = dims_at("norm", &axes, &ty, source);
            floating("norm", &ty, source);
            let parts = if ty.dtype.is_complex() {
                self.abs()
            } else {
                self
            };
            let dtype = parts.dtype();
            let norm = lax::convert(length(parts, &dims), dtype);
            note_square(norm, move || {
                let wide = lax::convert(parts, dtype.accumulator());
                let sum = lax::reduce(Reducer::Sum, wide.square(), &dims);
                lax::convert(sum, dtype)
            });
            norm
        })
    }

    /// The square; of a root, what is under it.
    #[track_caller]
    pub fn square(self) -> Tensor {
        let source = Location::caller();
        method("square", source, || {
            square_of(self).unwrap_or_else(|| lax::mul(self, self))
        })
    }
}

/// The square of a value that is known to be a root, or the size of something.
#[track_caller]
pub(super) fn square_of(x: Tensor) -> Option<Tensor> {
    if let Some(square) = noted_square(x) {
        return Some(square());
    }
    let (op, inner) = made_by(x, |op| {
        matches!(
            op,
            Op::Unary(Unary::Sqrt | Unary::Abs | Unary::Neg)
                | Op::Reshape(_)
                | Op::Transpose(_)
                | Op::Broadcast { .. }
        )
    })?;
    match op {
        Op::Unary(Unary::Sqrt) if inner.dtype().is_complex() => Some(inner),
        // Of a negative number the root itself, which is NaN.
        Op::Unary(Unary::Sqrt) => Some(inner.lt(0.0).select(x, inner)),
        Op::Unary(Unary::Abs) if inner.dtype().is_complex() => {
            Some(inner.real().square() + inner.imag().square())
        }
        Op::Unary(Unary::Abs) => Some(inner.square()),
        Op::Unary(Unary::Neg) => square_of(inner),
        moved => Some(emit1(moved, &[square_of(inner)?], Location::caller())),
    }
}

/// The length of real vectors along `dims`, in the type in which they are summed; with derivative 0 at 0.
#[track_caller]
pub(super) fn length(x: Tensor, dims: &[usize]) -> Tensor {
    root_mean_square(x, dims, 1.0)
}

/// The root of the sum of squares along `dims` over `count`, as [`length`].
#[track_caller]
pub(super) fn root_mean_square(x: Tensor, dims: &[usize], count: f64) -> Tensor {
    let dtype = x.dtype();
    let wide = lax::convert(x, dtype.accumulator());
    let value = |x: Tensor| {
        scaled_root(dtype, count, |scale| {
            let x = scale(x);
            lax::reduce(Reducer::Sum, lax::mul(x, x), dims)
        })
    };
    custom_jvp(value, |x: Tensor, t: Tensor| {
        let root = value(x);
        let long = with_dims(root, &x.ty(), dims).broadcast_to(x.shape());
        let along = scaled(t, unit(x, long));
        (root, lax::reduce(Reducer::Sum, along, dims) / count)
    })(wide)
}

/// The length of one vector of all elements of several real tensors, a scalar of type `dtype`, to which they are
/// converted, without overflow; with gradient 0 at 0. Of no tensors it is 0.
///
/// The squares of all are added before any root is taken: across devices that is one sum.
#[track_caller]
pub fn joint_norm(tensors: &[Tensor], dtype: DType) -> Tensor {
    method("joint_norm", Location::caller(), || {
        let wide = dtype.accumulator();
        let parts: Vec<Tensor> = tensors.iter().map(|x| x.cast(wide)).collect();
        let value = |parts: Vec<Tensor>| {
            scaled_root(wide, 1.0, |scale| {
                let sums = parts.iter().map(|&x| all_squares(scale(x)));
                sums.reduce(lax::add)
                    .unwrap_or_else(|| Tensor::zeros(wide, []))
            })
        };
        custom_jvp(value, |parts: Vec<Tensor>, tangents: Vec<Tensor>| {
            let norm = value(parts.clone());
            let change = parts.iter().zip(tangents).map(|(&x, t)| {
                let along = scaled(t, unit(x, norm.broadcast_to(x.shape())));
                along.sum(..)
            });
            let change = change.reduce(lax::add);
            (norm, change.unwrap_or_else(|| norm.zeros_like()))
        })(parts)
        .cast(dtype)
    })
}

#[track_caller]
fn all_squares(x: Tensor) -> Tensor {
    lax::mul(x, x).sum(..)
}

/// `x` over the length of its vector, and 0 where that is 0.
#[track_caller]
fn unit(x: Tensor, length: Tensor) -> Tensor {
    let is_zero = length.eq(0.0);
    is_zero.select(0.0, x / is_zero.select(1.0, length))
}

/// The root of a sum of squares over `count`. `sum` gives that sum of all numbers after they were given to its argument:
/// of numbers that use all exponents of the type that is summed in (those of `from` may not) at three
/// scales side by side, of which the one that neither overflows nor vanishes is taken. (Blue: "A portable
/// Fortran program to find the Euclidean norm of a vector", 1978.)
#[track_caller]
fn scaled_root(
    from: DType,
    count: f64,
    sum: impl Fn(&dyn Fn(Tensor) -> Tensor) -> Tensor,
) -> Tensor {
    let root = |sum: Tensor| (sum / count).sqrt();
    let plain = sum(&|x| x);
    let Some(scales) = Scales::of(from) else {
        return root(plain);
    };
    let large = root(sum(&|x| scales.reduced(x))) * scales.factor;
    let small = root(sum(&|x| scales.enlarged(x))) * scales.factor.recip();
    let fits = plain.lt(scales.least).select(small, root(plain));
    plain.eq(f64::INFINITY).select(large, fits)
}

/// How numbers are scaled before they are squared: by a power of two, so that nothing is rounded.
///
/// What would add nothing is replaced by 0. That also keeps compilers from squaring the factor and the number
/// by themselves.
struct Scales {
    /// What large numbers are divided by, and small ones multiplied.
    factor: f64,
    /// The sum of squares below which squares may have vanished.
    least: f64,
    /// Numbers of which the squares add something to a sum that overflows are above.
    large: f64,
    /// All numbers are below where the sum of their squares is below `least`.
    small: f64,
}

impl Scales {
    /// `None` of types whose squares are far inside of the range in which they are summed.
    fn of(dtype: DType) -> Option<Self> {
        let powers = |[factor, least, large, small]: [i32; 4]| Scales {
            factor: 2f64.powi(factor),
            least: 2f64.powi(least),
            large: 2f64.powi(large),
            small: 2f64.powi(small),
        };
        match dtype {
            DType::F64 => Some(powers([600, -500, 200, -249])),
            DType::F32 | DType::BF16 => Some(powers([76, -60, 30, -29])),
            _ => None,
        }
    }

    /// Numbers to be squared where their own squares overflow.
    #[track_caller]
    fn reduced(&self, x: Tensor) -> Tensor {
        let counts = x.abs().gt(self.large);
        counts.select(x * self.factor.recip(), 0)
    }

    /// Numbers to be squared where their own squares vanish.
    #[track_caller]
    fn enlarged(&self, x: Tensor) -> Tensor {
        x.abs().lt(self.small).select(x * self.factor, 0)
    }
}
