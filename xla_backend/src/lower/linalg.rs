//! Matrix decompositions and Fourier transforms.

use shardax_core::{DType, Fft, FftKind, TensorType, TriangularSolve};

use super::Lowering;
use super::writer::{List, Loc, Piece, Ssa, push, tensor_type};

impl Lowering<'_> {
    /// The lower triangle; what XLA leaves in the other one is not specified.
    pub(super) fn cholesky(&mut self, ty: &TensorType, x: Ssa, loc: Loc) -> Ssa {
        let text = tensor_type(ty);
        let factor = self.assign(
            &format!("\"stablehlo.cholesky\"({x}) <{{lower = true}}> : ({text}) -> {text}"),
            loc,
        );
        let rank = ty.rank();
        let counts = tensor_type(&TensorType::new(DType::I32, &ty.shape));
        let mut along =
            |dim: usize| self.assign(&format!("stablehlo.iota dim = {dim} : {counts}"), loc);
        let (row, column) = (along(rank - 2), along(rank - 1));
        let mask = tensor_type(&TensorType::new(DType::Bool, &ty.shape));
        let lower = format!(
            "stablehlo.compare GE, {row}, {column}, SIGNED : ({counts}, {counts}) -> {mask}"
        );
        let lower = self.assign(&lower, loc);
        let zero = self.zeros(ty, loc);
        let select = format!("stablehlo.select {lower}, {factor}, {zero} : {mask}, {text}");
        self.assign(&select, loc)
    }
}

pub(super) fn triangular_solve(
    out: &mut String,
    solve: TriangularSolve,
    operands: &dyn Piece,
    functional: &dyn Piece,
) {
    let TriangularSolve {
        left,
        lower,
        transpose,
        unit_diagonal,
    } = solve;
    let transpose = match transpose {
        true => "TRANSPOSE",
        false => "NO_TRANSPOSE",
    };
    let numbers = format!(
        "left_side = {left}, lower = {lower}, transpose_a = #stablehlo<transpose {transpose}>, \
         unit_diagonal = {unit_diagonal}"
    );
    push!(out, "\"stablehlo.triangular_solve\"(" operands ") <{" numbers "}> : " functional);
}

pub(super) fn fft(out: &mut String, fft: &Fft, operand: &dyn Piece, functional: &dyn Piece) {
    let kind = match fft.kind {
        FftKind::Fft => "FFT",
        FftKind::Ifft => "IFFT",
        FftKind::Rfft => "RFFT",
        FftKind::Irfft => "IRFFT",
    };
    push!(out, "stablehlo.fft " operand ", type = " kind);
    push!(out, ", length = " (List(&fft.lengths)) " : " functional);
}
