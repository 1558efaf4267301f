//! Matrices: the last two dimensions, batched over the others.

use std::panic::Location;

use super::Tensor;
use super::norm::length;
use super::shape::broadcast_shapes;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Comparison, Op, TriangularSolve};
use crate::trace::{emit1, fail_at, method};
use crate::transform::{custom_jvp, scan, scan_reverse};
use crate::types::{Shape, TensorType};

/// The system `x r = b` of an upper triangle.
pub(super) const FROM_THE_RIGHT: TriangularSolve = TriangularSolve {
    left: false,
    lower: false,
    transpose: false,
    unit_diagonal: false,
};

/// Factorizations and systems of equations, in `f32` and `f64`.
impl Tensor {
    /// The lower triangle `l` with a positive diagonal for which `l l^H` is this matrix, taken as
    /// `(a + a^H) / 2`; NaN if it is not positive definite.
    #[track_caller]
    pub fn cholesky(self) -> Tensor {
        let source = Location::caller();
        method("cholesky", source, || {
            matrix("cholesky", self, true, source);
            let symmetric = (self + adjoint(self)) * 0.5;
            emit1(Op::Cholesky, &[symmetric], source)
        })
    }

    /// The solution `x` of the system `a x = b` (`x a = b` if not `left`), of which `self`, the matrix
    /// `a`, is read in one triangle.
    #[track_caller]
    pub fn triangular_solve(self, b: Tensor, solve: TriangularSolve) -> Tensor {
        method("triangular_solve", Location::caller(), || {
            lax::triangular_solve(self, b, solve)
        })
    }

    /// Factors `q r`: `q` of orthonormal columns, `r` an upper triangle; for `m` rows and `n` columns
    /// they are `[m, min(m, n)]` and `[min(m, n), n]`. The signs of the diagonal of `r` are those that
    /// Householder's reflections give. (Golub, Van Loan: "Matrix computations", 5.2.)
    ///
    /// The derivative wants `m >= n` and a matrix of full rank.
    #[track_caller]
    pub fn qr(self) -> (Tensor, Tensor) {
        let source = Location::caller();
        method("qr", source, || {
            let (rows, columns) = matrix("qr", self, false, source);
            real("qr", self, source);
            if rows < columns {
                // The columns that follow do not change the factor of the first ones.
                let (q, _) = self.slice(-1, ..rows).qr();
                let left = adjoint(q).matmul(self);
                return (q, above(left));
            }
            custom_jvp(householder, qr_tangent)(self)
        })
    }

    /// The solution `x` of `a x = b`, where `self` is the square matrix `a`, by its [`Tensor::qr`]. `b`
    /// is a matrix of as many rows, or a vector if `a` has no batch dimensions.
    ///
    /// A singular matrix has no solution, or many: what comes out is infinite, NaN, or, where rounding hides that
    /// the matrix is singular, of the size of the inverse of the rounding error, and so are the derivatives.
    #[track_caller]
    pub fn solve(self, b: Tensor) -> Tensor {
        let source = Location::caller();
        method("solve", source, || {
            let (rows, _) = matrix("solve", self, true, source);
            real("solve", self, source);
            let (ty, side) = (self.ty(), b.ty());
            if side.rank() == 1 && ty.rank() == 2 {
                return self.solve(b.expand_dims(-1)).squeeze(-1);
            }
            if side.rank() < 2 || side.shape[side.rank() - 2] != rows || side.dtype != ty.dtype {
                let problem = format!("the right side {side} does not fit the matrix {ty}");
                let help = format!("it wants {rows} rows, of the same element type");
                fail_at(
                    ErrorKind::Shape {
                        op: "solve",
                        problem,
                    },
                    Some(help),
                    source,
                )
            }
            let batch_of = |ty: &TensorType| TensorType::new(ty.dtype, &ty.shape[..ty.rank() - 2]);
            let batch = broadcast_shapes("solve", &[&batch_of(&ty), &batch_of(&side)], source);
            let fit = |x: Tensor, ty: &TensorType| {
                let last = &ty.shape[ty.rank() - 2..];
                let shape: Shape = batch.iter().chain(last).copied().collect();
                x.broadcast_to(shape)
            };
            let (a, b) = (fit(self, &ty), fit(b, &side));
            let solution = |(a, b): (Tensor, Tensor)| {
                let (q, r) = a.qr();
                upper_solve(r, adjoint(q).matmul(b))
            };
            let with_tangent = |(a, b): (Tensor, Tensor), (ta, tb): (Tensor, Tensor)| {
                let (q, r) = a.qr();
                let x = upper_solve(r, adjoint(q).matmul(b));
                let moved = tb - ta.matmul(x);
                (x, upper_solve(r, adjoint(q).matmul(moved)))
            };
            custom_jvp(solution, with_tangent)((a, b))
        })
    }

    /// The inverse of square matrices: [`Tensor::solve`] of the identity, of singular matrices too.
    #[track_caller]
    pub fn inv(self) -> Tensor {
        let source = Location::caller();
        method("inv", source, || {
            matrix("inv", self, true, source);
            self.solve(identity(&self.ty()))
        })
    }

    /// About the nearest matrix of orthonormal rows or columns, in `steps` Newton-Schulz iterations:
    /// singular values between about 0.7 and 1.2 after five of them. What Muon does to its update;
    /// cheap also in `bf16`. (Jordan and others: "Muon: an optimizer for hidden layers in neural
    /// networks", 2024.)
    #[track_caller]
    pub fn orthogonalize(self, steps: usize) -> Tensor {
        let source = Location::caller();
        method("orthogonalize", source, || {
            let (rows, columns) = matrix("orthogonalize", self, false, source);
            real("orthogonalize", self, source);
            let wide = rows <= columns;
            let x = if wide { self } else { adjoint(self) };
            let rank = x.rank();
            let size = length(x, &[rank - 2, rank - 1]);
            let size = size.expand_dims(-1).expand_dims(-1);
            let mut x = x / lax::convert(size + 1e-7, x.dtype());
            // Slopes that bring small singular values up fastest.
            let (a, b, c) = (3.4445, -4.7750, 2.0315);
            for _ in 0..steps {
                let gram = x.matmul(adjoint(x));
                let change = gram * b + gram.matmul(gram) * c;
                x = x * a + change.matmul(x);
            }
            if wide { x } else { adjoint(x) }
        })
    }
}

/// Products and sums that are no factorizations.
impl Tensor {
    /// The sum of the diagonal of the last two dimensions.
    #[track_caller]
    pub fn trace(self) -> Tensor {
        let source = Location::caller();
        method("trace", source, || {
            matrix("trace", self, false, source);
            let ty = self.ty();
            let on = positions(&ty, Comparison::Eq);
            lax::select(on, self, lax::zeros(&ty)).sum([-2, -1])
        })
    }

    /// Every element times every element of `rhs`: the dimensions of both.
    #[track_caller]
    pub fn outer(self, rhs: Tensor) -> Tensor {
        method("outer", Location::caller(), || {
            let (left, right) = (self.shape(), rhs.rank());
            let column: Shape = left
                .iter()
                .copied()
                .chain(std::iter::repeat_n(1, right))
                .collect();
            self.reshape(column) * rhs
        })
    }

    /// Kronecker's product: for every element a copy of `rhs` times it, in tensors of one rank.
    #[track_caller]
    pub fn kron(self, rhs: Tensor) -> Tensor {
        let source = Location::caller();
        method("kron", source, || {
            let (left, right) = (self.ty(), rhs.ty());
            if left.rank() != right.rank() {
                let problem = format!("{left} and {right} have not as many dimensions");
                let help = "add dimensions of size 1 with `expand_dims`".to_owned();
                fail_at(
                    ErrorKind::Shape {
                        op: "kron",
                        problem,
                    },
                    Some(help),
                    source,
                )
            }
            let apart = |sizes: &[usize], first: bool| -> Shape {
                let pair = |&n: &usize| if first { [n, 1] } else { [1, n] };
                sizes.iter().flat_map(pair).collect()
            };
            let (a, b) = (apart(&left.shape, true), apart(&right.shape, false));
            let joined: Shape = left
                .shape
                .iter()
                .zip(&right.shape)
                .map(|(a, b)| a * b)
                .collect();
            (self.reshape(a) * rhs.reshape(b)).reshape(joined)
        })
    }
}

/// Rows and columns of matrices.
pub(super) fn matrix(op: &'static str, x: Tensor, square: bool, source: Source) -> (usize, usize) {
    let ty = x.ty();
    match ty.shape.as_slice() {
        [.., rows, columns] if !square || rows == columns => (*rows, *columns),
        [.., _, _] => {
            let problem = format!("the matrices of {ty} are not square");
            fail_at(ErrorKind::Shape { op, problem }, None, source)
        }
        _ => {
            let problem = format!("{ty} has no two dimensions");
            fail_at(ErrorKind::Shape { op, problem }, None, source)
        }
    }
}

pub(super) fn real(op: &'static str, x: Tensor, source: Source) {
    if !x.dtype().is_float() {
        let problem = format!("takes real floating-point matrices, not {}", x.ty());
        let help = "convert them with `.cast(...)`".to_owned();
        fail_at(ErrorKind::DType { op, problem }, Some(help), source)
    }
}

/// The conjugate transpose.
#[track_caller]
pub(super) fn adjoint(x: Tensor) -> Tensor {
    x.swap_axes(-1, -2).conj()
}

/// Where the row compares with the column like that.
#[track_caller]
pub(super) fn positions(ty: &TensorType, row: Comparison) -> Tensor {
    let counts = TensorType::new(DType::I32, &ty.shape);
    let along = |dim: usize| lax::iota(counts.clone(), dim);
    lax::compare(row, along(ty.rank() - 2), along(ty.rank() - 1))
}

#[track_caller]
pub(super) fn identity(ty: &TensorType) -> Tensor {
    lax::convert(positions(ty, Comparison::Eq), ty.dtype)
}

/// The upper triangle.
#[track_caller]
pub(super) fn above(x: Tensor) -> Tensor {
    let ty = x.ty();
    lax::select(positions(&ty, Comparison::Le), x, lax::zeros(&ty))
}

/// What is strictly below the diagonal.
#[track_caller]
fn below(x: Tensor) -> Tensor {
    let ty = x.ty();
    lax::select(positions(&ty, Comparison::Gt), x, lax::zeros(&ty))
}

#[track_caller]
pub(super) fn diagonal(x: Tensor) -> Tensor {
    let ty = x.ty();
    lax::select(positions(&ty, Comparison::Eq), x, lax::zeros(&ty)).sum(-1)
}

#[track_caller]
fn upper_solve(r: Tensor, b: Tensor) -> Tensor {
    let solve = TriangularSolve {
        left: true,
        ..FROM_THE_RIGHT
    };
    lax::triangular_solve(r, b, solve)
}

/// Factors of matrices with at least as many rows as columns: one reflection a column.
fn householder(a: Tensor) -> (Tensor, Tensor) {
    let ty = a.ty();
    let columns = ty.shape[ty.rank() - 1];
    let steps = lax::iota(TensorType::new(DType::I32, [columns]), 0);
    let (r, reflections) = scan(a, steps, |r: Tensor, k: Tensor| {
        let (r, v, _) = reflected(r, k);
        (r, v)
    });
    (orthogonal(&ty, reflections), above(r.slice(-2, ..columns)))
}

/// Takes column `k`, from row `k` on, to a multiple of a unit vector by a reflection `1 - 2 v v^T`: the matrices
/// after it, `v`, which is 0 where nothing is to be done, and whether something is.
pub(super) fn reflected(r: Tensor, k: Tensor) -> (Tensor, Tensor, Tensor) {
    let ty = r.ty();
    let counts = |rank: usize| TensorType::new(DType::I32, &ty.shape[..rank]);
    let rows = lax::iota(counts(ty.rank() - 1), ty.rank() - 2);
    let chosen = lax::iota(counts(ty.rank()), ty.rank() - 1).eq(k);
    let column = rows.ge(k).select(chosen.select(r, 0).sum(-1), 0);
    let at = rows.eq(k);
    let first = at.select(column, 0).sum(-1);
    // Scaled, so that squares neither overflow nor vanish.
    let largest = column.abs().max(-1).stop_gradient();
    let scale = largest.gt(0).select(largest, 1).expand_dims(-1);
    let length = (column / scale).square().sum(-1).sqrt() * scale.squeeze(-1);
    let others = at.select(0, column).abs().max(-1);
    // The sign that adds up, without cancellation.
    let target = first.lt(0).select(length, -length);
    let v = at.select(column - target.expand_dims(-1), column) / scale;
    let size = v.square().sum(-1).sqrt();
    let reflects = others.gt(0);
    let safe = reflects.select(size, 1).expand_dims(-1);
    let v = reflects.expand_dims(-1).select(v / safe, 0);
    (r - along(v, r) * 2, v, reflects)
}

/// `v v^T x`, of columns.
fn along(v: Tensor, x: Tensor) -> Tensor {
    let column = v.expand_dims(-1);
    column * (column * x).sum(-2).expand_dims(-2)
}

/// The product of reflections, applied from the last to the first to columns of the identity.
pub(super) fn orthogonal(ty: &TensorType, reflections: Tensor) -> Tensor {
    let reflect = |q: Tensor, v: Tensor| (q - along(v, q) * 2, ());
    scan_reverse(identity(ty), reflections, reflect).0
}

/// The derivative of [`householder`] in closed form.
///
/// With `m = q^T t r^-1`, whose strict lower triangle is turned into a skew matrix `s`: the change of
/// `q` is `q (s - m) + t r^-1`, and that of `r` is `(m - s) r`.
fn qr_tangent(a: Tensor, t: Tensor) -> ((Tensor, Tensor), (Tensor, Tensor)) {
    let (q, r) = householder(a);
    let moved = lax::triangular_solve(r, t, FROM_THE_RIGHT);
    let inner = adjoint(q).matmul(moved);
    let lower = below(inner);
    let rest = inner - (lower - adjoint(lower));
    ((q, r), (moved - q.matmul(rest), rest.matmul(r)))
}
