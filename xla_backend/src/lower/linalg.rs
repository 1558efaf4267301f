//! Matrix decompositions and Fourier transforms.

use shardax_core::{
    DType, TensorType, TriangularSolve,
    ir::{Fft, FftKind},
};

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

impl Lowering<'_> {
    /// A Fourier transform. The CPU's wants dimensions in their order in memory, which gathers before it may change.
    pub(super) fn fft(&mut self, fft: &Fft, types: [&TensorType; 2], x: Ssa, loc: Loc) -> Ssa {
        let is_constrained = self.on_host && !self.annotations.is_single();
        let x = match is_constrained {
            true => self.in_order(x, types[0], loc),
            false => x,
        };
        let [from, to] = types.map(tensor_type);
        let text = format!(
            "stablehlo.fft {x}, type = {}, length = {} : ({from}) -> {to}",
            kind_name(fft.kind),
            List(&fft.lengths)
        );
        let found = self.assign(&text, loc);
        match is_constrained {
            true => self.in_order(found, types[1], loc),
            false => found,
        }
    }

    /// A value of which the last dimension varies fastest in memory.
    fn in_order(&mut self, x: Ssa, ty: &TensorType, loc: Loc) -> Ssa {
        let rank = ty.rank();
        let order: Vec<String> = (0..rank).rev().map(|d| d.to_string()).collect();
        let order = format!("[dense<[{}]> : tensor<{rank}xindex>]", order.join(", "));
        let ty = tensor_type(ty);
        let text = format!(
            "stablehlo.custom_call @LayoutConstraint({x}) {{operand_layouts = {order}, \
             result_layouts = {order}}} : ({ty}) -> {ty}"
        );
        self.assign(&text, loc)
    }
}

fn kind_name(kind: FftKind) -> &'static str {
    match kind {
        FftKind::Fft => "FFT",
        FftKind::Ifft => "IFFT",
        FftKind::Rfft => "RFFT",
        FftKind::Irfft => "IRFFT",
    }
}
