//! Determinants, whose derivatives exist for every matrix: a determinant is a polynomial of the elements.
//!
//! The matrix is factored as `q d v^-1` times a sign: an orthogonal matrix, a diagonal, and a unit triangle with
//! its columns in another order. Columns are taken by their size, so that the inverse of the triangle is of
//! moderate size whatever the rank is, and all that is small or 0 is in the diagonal. (Golub, Van Loan: "Matrix
//! computations", 5.4.2.) The determinant is the product of the diagonal; its derivative, the matrix of cofactors,
//! takes the products of all but one element of it, and the second derivative those of all but two. Nothing is divided by
//! what may be 0, as the inverse is that the textbook's `det(a) a^-T` is made of.

use std::panic::Location;

use super::linalg::{
    FROM_THE_RIGHT, above, adjoint, diagonal, identity, matrix, orthogonal, positions, real,
    reflected,
};
use super::{Tensor, scaled};
use crate::dtype::DType;
use crate::lax;
use crate::op::{Binary, Comparison, Reducer, TriangularSolve};
use crate::trace::method;
use crate::transform::{custom_jvp, scan};
use crate::types::TensorType;

impl Tensor {
    /// The sign of the determinant of square matrices, and the logarithm of its absolute value: 0 and
    /// -inf if it is 0. The derivative is the inverse, transposed; where the determinant is 0 it is infinite, with
    /// the sign of the cofactor, and 0 where that is 0.
    #[track_caller]
    pub fn slogdet(self) -> (Tensor, Tensor) {
        let source = Location::caller();
        method("slogdet", source, || {
            let (rows, _) = matrix("slogdet", self, true, source);
            real("slogdet", self, source);
            if rows == 0 {
                let one = ones(self);
                return (one, one.zeros_like());
            }
            let value = |a: Tensor| Factors::of(a).logarithm();
            custom_jvp(value, |a: Tensor, t: Tensor| {
                let factors = Factors::of(a);
                let (sign, log) = factors.logarithm();
                let change = scaled(t, factors.inverse_transposed()).sum([-2, -1]);
                ((sign, log), (sign.zeros_like(), change))
            })(self)
        })
    }

    /// The determinant of square matrices. Its derivative is the matrix of cofactors, the transpose of the
    /// adjugate, also where the matrix is singular; so is the second derivative right of a matrix of any rank. Those of
    /// a higher order want full rank.
    #[track_caller]
    pub fn det(self) -> Tensor {
        let source = Location::caller();
        method("det", source, || {
            let (rows, _) = matrix("det", self, true, source);
            real("det", self, source);
            if rows == 0 {
                return ones(self);
            }
            let value = |a: Tensor| Factors::of(a).determinant();
            custom_jvp(value, |a: Tensor, t: Tensor| {
                let (value, cofactors) = with_cofactors(a);
                (value, scaled(t, cofactors).sum([-2, -1]))
            })(self)
        })
    }
}

/// The determinant and its derivative, with a derivative.
#[track_caller]
fn with_cofactors(a: Tensor) -> (Tensor, Tensor) {
    let both = |a: Tensor| {
        let factors = Factors::of(a);
        (factors.determinant(), factors.cofactors())
    };
    custom_jvp(both, |a: Tensor, t: Tensor| {
        let factors = Factors::of(a);
        let cofactors = factors.cofactors();
        let change = scaled(t, cofactors).sum([-2, -1]);
        let turned = factors.change_of_cofactors(t);
        ((factors.determinant(), cofactors), (change, turned))
    })(a)
}

/// A one for each matrix: the determinant of those without elements.
#[track_caller]
fn ones(a: Tensor) -> Tensor {
    let shape = a.shape();
    Tensor::ones(a.dtype(), &shape[..shape.len() - 2])
}

/// `a = q d v^-1`, where the determinants of `q` and `v` together are `sign`.
struct Factors {
    /// Orthogonal matrices.
    q: Tensor,
    /// Diagonals, the largest first, about.
    d: Tensor,
    /// Inverses of unit triangles whose columns are in another order.
    v: Tensor,
    /// 1 or -1.
    sign: Tensor,
}

impl Factors {
    #[track_caller]
    fn of(a: Tensor) -> Self {
        let ty = a.ty();
        let steps = lax::iota(TensorType::new(DType::I32, [ty.shape[ty.rank() - 1]]), 0);
        let start = (a, (identity(&ty), ones(a)));
        let step = |(r, (order, sign)): (Tensor, (Tensor, Tensor)), k: Tensor| {
            let pivot = largest_column(r, k);
            let [r, order] = [r, order].map(|x| swapped(x, k, pivot));
            let sign = pivot.ne(k).select(-sign, sign);
            let (r, v, reflects) = reflected(r, k);
            ((r, (order, reflects.select(-sign, sign))), v)
        };
        let ((r, (order, sign)), reflections) = scan(start, steps, step);
        let r = above(r);
        let d = diagonal(r);
        // A row whose diagonal is 0 is 0, for no column was larger.
        let along = d.expand_dims(-1).broadcast_to(r.shape());
        let triangle = lax::binary(Binary::DivOrZero, r, along);
        let solve = TriangularSolve {
            unit_diagonal: true,
            ..FROM_THE_RIGHT
        };
        Factors {
            q: orthogonal(&ty, reflections),
            d,
            v: lax::triangular_solve(triangle, order, solve),
            sign,
        }
    }

    #[track_caller]
    fn determinant(&self) -> Tensor {
        self.sign * Product::each(self.d).all().value()
    }

    /// The sign of the determinant, and the logarithm of its size.
    #[track_caller]
    fn logarithm(&self) -> (Tensor, Tensor) {
        let all = Product::each(self.d).all();
        let is_zero = all.zeros.ne(0);
        let log = is_zero.select(f64::NEG_INFINITY, all.log);
        (is_zero.select(0, self.sign * all.sign), log)
    }

    /// `q w v^T` for diagonals `w`.
    #[track_caller]
    fn joined(&self, weights: Tensor) -> Tensor {
        (self.q * weights.expand_dims(-2)).matmul(adjoint(self.v))
    }

    /// The derivative of the determinant by each element.
    #[track_caller]
    fn cofactors(&self) -> Tensor {
        let others = Product::each(self.d).others();
        self.joined(self.sign.expand_dims(-1) * others.value())
    }

    /// The derivative of the determinant's logarithm by each element.
    #[track_caller]
    fn inverse_transposed(&self) -> Tensor {
        let is_zero = self.d.eq(0);
        let regular = self.joined(1 / is_zero.select(1, self.d));
        let cofactors = self.cofactors();
        let infinite = lax::binary(Binary::DivOrZero, cofactors, cofactors.zeros_like());
        let is_singular = is_zero.any(-1).expand_dims(-1).expand_dims(-1);
        is_singular.select(infinite, regular)
    }

    /// How the cofactors change where the matrix does by `t`. With `m = q^T t v`, to the second order the determinant of
    /// `d + m` has, for two elements of the diagonal, the product of all others times `m_ii m_jj - m_ij m_ji`.
    #[track_caller]
    fn change_of_cofactors(&self, t: Tensor) -> Tensor {
        let m = adjoint(self.q).matmul(t).matmul(self.v);
        let each = Product::each(self.d);
        let pairs = each.others().across(-1).over(each.across(-2)).value();
        let on = positions(&t.ty(), Comparison::Eq);
        let pairs = on.select(0, pairs);
        let along = (pairs * diagonal(m).expand_dims(-2)).sum(-1);
        let change = on.select(along.expand_dims(-1), -(pairs * adjoint(m)));
        let sign = self.sign.expand_dims(-1).expand_dims(-1);
        sign * self.q.matmul(change).matmul(adjoint(self.v))
    }
}

/// Of the columns from `k` on, the one with the largest element from row `k` on.
#[track_caller]
fn largest_column(r: Tensor, k: Tensor) -> Tensor {
    let (shape, rank) = (r.shape(), r.rank());
    let is_open = |dim: usize| lax::iota(TensorType::new(DType::I32, &shape), dim).ge(k);
    let open = is_open(rank - 2) & is_open(rank - 1);
    let sizes = open.select(r.stop_gradient().abs(), -1).max(-2);
    sizes.argmax(-1)
}

/// Matrices with column `k` in the place of column `other`, and the other way round.
#[track_caller]
fn swapped(x: Tensor, k: Tensor, other: Tensor) -> Tensor {
    let columns = lax::iota(TensorType::new(DType::I32, x.shape()), x.rank() - 1);
    let at = columns.eq(k);
    let at_other = columns.eq(other.expand_dims(-1).expand_dims(-1));
    let column = |at: Tensor| at.select(x, 0).sum(-1).expand_dims(-1);
    at.select(column(at_other), at_other.select(column(at), x))
}

/// Products that can be divided again, and do not overflow on the way.
#[derive(Clone, Copy)]
struct Product {
    /// The logarithm of the size of the factors that are not 0.
    log: Tensor,
    /// Their sign.
    sign: Tensor,
    /// How many others there are.
    zeros: Tensor,
}

impl Product {
    /// Of each number by itself.
    #[track_caller]
    fn each(d: Tensor) -> Self {
        let is_zero = d.eq(0);
        let nonzero = is_zero.select(1, d);
        Product {
            log: nonzero.abs().log(),
            sign: nonzero.sign(),
            zeros: is_zero.cast(d.dtype()),
        }
    }

    /// Of all along the last dimension.
    #[track_caller]
    fn all(self) -> Self {
        let last = [self.log.rank() - 1];
        Product {
            log: self.log.sum(-1),
            sign: lax::reduce(Reducer::Prod, self.sign, &last),
            zeros: self.zeros.sum(-1),
        }
    }

    /// For each number, of all others.
    #[track_caller]
    fn others(self) -> Self {
        self.all().across(-1).over(self)
    }

    /// Along a new dimension.
    #[track_caller]
    fn across(self, axis: isize) -> Self {
        Product {
            log: self.log.expand_dims(axis),
            sign: self.sign.expand_dims(axis),
            zeros: self.zeros.expand_dims(axis),
        }
    }

    /// Without the factors of another one.
    #[track_caller]
    fn over(self, other: Self) -> Self {
        Product {
            log: self.log - other.log,
            sign: self.sign * other.sign,
            zeros: self.zeros - other.zeros,
        }
    }

    #[track_caller]
    fn value(self) -> Tensor {
        self.zeros.eq(0).select(self.sign * self.log.exp(), 0)
    }
}
