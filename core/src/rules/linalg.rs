//! Derivatives of matrix decompositions and Fourier transforms.

use smallvec::smallvec;

use super::elementwise::number;
use crate::dtype::DType;
use crate::lax;
use crate::op::{Binary, Comparison, Dims, DotDims, Fft, FftKind, TriangularSolve, Unary};
use crate::tensor::{Tensor, scaled};
use crate::types::TensorType;

/// `l phi(l^-1 t l^-H)`, where `phi` takes the lower triangle and half of the diagonal. The tangent is
/// symmetric, as the operand is. (Murray: "Differentiation of the Cholesky decomposition", 2016.)
pub(super) fn jvp_cholesky(t: Tensor, l: Tensor) -> Tensor {
    let solve = TriangularSolve {
        left: true,
        lower: true,
        transpose: false,
        unit_diagonal: false,
    };
    let half = lax::triangular_solve(l, t, solve);
    let right = TriangularSolve {
        left: false,
        transpose: true,
        ..solve
    };
    let both = lax::triangular_solve(conjugate(l), half, right);
    let ty = both.ty();
    let (below, on) = (number(1.0, l), number(0.5, l));
    let zero = lax::zeros(&ty);
    let weights = lax::select(
        positions(&ty, Comparison::Gt),
        below,
        lax::select(positions(&ty, Comparison::Eq), on, zero),
    );
    matmul(l, scaled(both, weights))
}

/// `a^-1 (t_b - t_a x)`, or `(t_b - x t_a) a^-1`; of `t_a`, only what is read of `a`.
pub(super) fn jvp_triangular_solve(
    solve: TriangularSolve,
    a: Tensor,
    [ta, tb]: [Option<Tensor>; 2],
    x: Tensor,
) -> Option<Tensor> {
    let moved = ta.map(|ta| {
        let ty = ta.ty();
        let read = match (solve.lower, solve.unit_diagonal) {
            (true, false) => Comparison::Ge,
            (true, true) => Comparison::Gt,
            (false, false) => Comparison::Le,
            (false, true) => Comparison::Lt,
        };
        let ta = lax::select(positions(&ty, read), ta, lax::zeros(&ty));
        let ta = if solve.transpose { transposed(ta) } else { ta };
        if solve.left {
            matmul(ta, x)
        } else {
            matmul(x, ta)
        }
    });
    let right = match (tb, moved) {
        (Some(tb), Some(moved)) => lax::binary(Binary::Sub, tb, moved),
        (tb, moved) => tb.or(moved.map(lax::neg))?,
    };
    Some(lax::triangular_solve(a, right, solve))
}

/// Where the row of a matrix compares with its column like that.
fn positions(ty: &TensorType, row: Comparison) -> Tensor {
    let counts = TensorType::new(DType::I32, &ty.shape);
    let rank = ty.rank();
    let along = |dim: usize| lax::iota(counts.clone(), dim);
    lax::compare(row, along(rank - 2), along(rank - 1))
}

fn transposed(x: Tensor) -> Tensor {
    let rank = x.ty().rank();
    let mut order: Dims = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    lax::transpose(x, &order)
}

fn conjugate(x: Tensor) -> Tensor {
    if !x.dtype().is_complex() {
        return x;
    }
    let (real, imaginary) = (lax::unary(Unary::Real, x), lax::unary(Unary::Imag, x));
    lax::binary(Binary::Complex, real, lax::neg(imaginary))
}

/// The product of matrices of one batch.
fn matmul(lhs: Tensor, rhs: Tensor) -> Tensor {
    let ty = lhs.ty();
    let batch: Dims = (0..ty.rank() - 2).collect();
    let dims = DotDims {
        lhs_contract: smallvec![ty.rank() - 1],
        rhs_contract: smallvec![ty.rank() - 2],
        lhs_batch: batch.clone(),
        rhs_batch: batch,
        result: ty.dtype,
    };
    lax::dot(lhs, rhs, dims)
}

/// A transform is a symmetric matrix, up to the halves that a real one leaves out.
///
/// The transpose is the one without conjugation, as everywhere: the cotangent of `z` is that by which
/// a real function of `z` changes with its real part, minus `i` times that with its imaginary part.
pub(super) fn transpose_fft(fft: &Fft, operand: &TensorType, ct: Tensor) -> Tensor {
    match fft.kind {
        FftKind::Fft | FftKind::Ifft => lax::fft(ct, fft.kind, &fft.lengths),
        FftKind::Rfft => {
            let last = operand.rank() - 1;
            let missing = operand.shape[last] - ct.shape()[last];
            let zero = lax::zeros(&TensorType::scalar(DType::C64));
            let none: Dims = smallvec![0; operand.rank()];
            let mut high = none.clone();
            high[last] = missing;
            let whole = lax::pad(ct, zero, none.clone(), high, none);
            lax::unary(Unary::Real, lax::fft(whole, FftKind::Fft, &fft.lengths))
        }
        FftKind::Irfft => {
            let half = conjugate(lax::fft(ct, FftKind::Rfft, &fft.lengths));
            let last = operand.rank() - 1;
            let length = fft.lengths[fft.lengths.len() - 1];
            let count: usize = fft.lengths.iter().product();
            let ty = TensorType::new(DType::F32, &operand.shape);
            let positions = lax::iota(TensorType::new(DType::I32, &operand.shape), last);
            let at = |position: usize| {
                let position = lax::full((position as i64).into(), &positions.ty());
                lax::compare(Comparison::Eq, positions, position)
            };
            // What has no partner among the frequencies left out counts once, the others twice.
            let alone = match length % 2 {
                0 => lax::binary(Binary::Or, at(0), at(length / 2)),
                _ => at(0),
            };
            let weight = |times: f64| lax::full((times / count as f64).into(), &ty);
            let weights = lax::select(alone, weight(1.0), weight(2.0));
            let widened = lax::binary(Binary::Complex, weights, lax::zeros(&ty));
            lax::mul(half, widened)
        }
    }
}
