//! The derivative of each primitive.
//!
//! A rule is given an equation's operands and those tangents that are not zero by construction
//! (`None` is a zero that is never written down), emits the equation again, and emits its tangents
//! as a *linear* function of the tangents given. Reverse mode is not written anywhere: it is the
//! transpose of what these rules emit (`rules/transpose.rs`).
//!
//! Conventions where a function has a kink: `abs` has derivative 0 at 0; `max` and `min` of equal
//! operands, and reductions over equal extrema, share the derivative equally.

use std::f64::consts::FRAC_2_SQRT_PI;

use smallvec::{SmallVec, smallvec};

use crate::error::ErrorKind;
use crate::graph::Equation;
use crate::lax;
use crate::op::{Binary, Comparison, Dims, Op, Reducer, Unary};
use crate::tensor::Tensor;
use crate::trace::{emit, fail_at};
use crate::transform::{Dual, Mode, Tangents, jvp_remat, jvp_scan};

/// Emits `equation` on duals.
pub(crate) fn jvp(equation: &Equation, operands: &[Dual], mode: Mode) -> SmallVec<[Dual; 1]> {
    let x: SmallVec<[Tensor; 4]> = operands.iter().map(|d| d.primal).collect();
    let t: SmallVec<[Option<Tensor>; 4]> = operands.iter().map(|d| d.tangent).collect();
    match &equation.op {
        Op::Scan(scan) => return jvp_scan(equation, scan, operands, mode),
        Op::Remat(remat) => return jvp_remat(equation, remat, operands, mode),
        _ => {}
    }
    let results = emit(equation.op.clone(), &x, equation.source);
    let tangents = tangents(equation, &x, &t, &results);
    results
        .into_iter()
        .zip(tangents)
        .map(|(primal, tangent)| Dual { primal, tangent })
        .collect()
}

fn tangents(equation: &Equation, x: &[Tensor], t: &[Option<Tensor>], y: &[Tensor]) -> Tangents {
    let same_op = |operands: &[Tensor]| emit(equation.op.clone(), operands, equation.source)[0];
    let none: Tangents = smallvec![None; y.len()];
    if let Op::BitcastConvert(_) = equation.op {
        no_derivative(equation, "the bits of a number have no derivative");
    }
    if !y.iter().any(|y| y.dtype().is_differentiable()) {
        return none;
    }
    match &equation.op {
        // Linear in their first operand, with the others fixed.
        Op::Convert(_)
        | Op::Broadcast { .. }
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice { .. }
        | Op::Reverse(_)
        | Op::DynamicSlice(_)
        | Op::Take { .. }
        | Op::TakeAlong { .. }
        | Op::Shard(_)
        | Op::Reduce(Reducer::Sum, _) => {
            let tangent = t[0].map(|t0| {
                let mut operands: SmallVec<[Tensor; 4]> = x.iter().copied().collect();
                operands[0] = t0;
                same_op(&operands)
            });
            smallvec![tangent]
        }
        // Linear in several operands at once.
        Op::Select => {
            let all = [Some(x[0]), t[1], t[2]];
            smallvec![jointly(&all[1..], &x[1..]).map(|v| same_op(&[x[0], v[0], v[1]]))]
        }
        Op::Pad { .. } | Op::Concatenate(_) => smallvec![jointly(t, x).map(|v| same_op(&v))],
        Op::OptimizationBarrier => match jointly(t, x) {
            Some(v) => lax::barrier(&v).into_iter().map(Some).collect(),
            None => none,
        },
        Op::DynamicUpdateSlice => {
            let tangent = jointly(&t[..2], &x[..2]).map(|v| {
                let operands: SmallVec<[Tensor; 6]> = v.iter().chain(&x[2..]).copied().collect();
                same_op(&operands)
            });
            smallvec![tangent]
        }
        Op::ScatterAdd { .. } | Op::ScatterAddAlong { .. } => {
            let tangent =
                jointly(&[t[0], t[2]], &[x[0], x[2]]).map(|v| same_op(&[v[0], x[1], v[1]]));
            smallvec![tangent]
        }
        Op::DotGeneral(_) => {
            let left = t[0].map(|t0| same_op(&[t0, x[1]]));
            let right = t[1].map(|t1| same_op(&[x[0], t1]));
            smallvec![sum(left, right)]
        }
        Op::Unary(op) => smallvec![t[0].and_then(|t0| unary(*op, x[0], t0, y[0]))],
        Op::Binary(op) => smallvec![binary(*op, [x[0], x[1]], [t[0], t[1]], y[0])],
        Op::Reduce(Reducer::Max | Reducer::Min, dims) => {
            smallvec![t[0].map(|t0| extremum(x[0], t0, y[0], dims))]
        }
        Op::Reduce(Reducer::And | Reducer::Or, _)
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::Compare(_)
        | Op::BitcastConvert(_)
        | Op::StopGradient => none,
        Op::Scan(_) | Op::Remat(_) => none,
        Op::Tangent(_) => no_derivative(equation, "a tangent outlived its linearization"),
    }
}

fn no_derivative(equation: &Equation, problem: &str) -> ! {
    let kind = ErrorKind::Derivative {
        op: match equation.op {
            Op::BitcastConvert(_) => "bitcast",
            _ => equation.op.name(),
        },
        problem: problem.to_owned(),
    };
    let help = "put `.stop_gradient()` on the operand if it is meant to be a constant";
    fail_at(kind, Some(help.to_owned()), equation.source)
}

/// All tangents, zeros written down, if there is one at all.
fn jointly(t: &[Option<Tensor>], x: &[Tensor]) -> Option<SmallVec<[Tensor; 4]>> {
    t.iter().any(Option::is_some).then(|| {
        t.iter()
            .zip(x)
            .map(|(t, x)| t.unwrap_or_else(|| lax::zeros(&x.ty())))
            .collect()
    })
}

fn sum(left: Option<Tensor>, right: Option<Tensor>) -> Option<Tensor> {
    match (left, right) {
        (Some(left), Some(right)) => Some(lax::add(left, right)),
        (one, other) => one.or(other),
    }
}

fn number(value: f64, like: Tensor) -> Tensor {
    lax::full(value.into(), &like.ty())
}

fn unary(op: Unary, x: Tensor, t: Tensor, y: Tensor) -> Option<Tensor> {
    let factor = match op {
        Unary::Abs => lax::unary(Unary::Sign, x),
        Unary::Cos => lax::neg(lax::unary(Unary::Sin, x)),
        Unary::Erf => {
            let bell = lax::unary(Unary::Exp, lax::neg(lax::mul(x, x)));
            lax::mul(number(FRAC_2_SQRT_PI, x), bell)
        }
        Unary::Exp => y,
        Unary::Expm1 => lax::add(y, number(1.0, y)),
        Unary::Log => return Some(lax::binary(Binary::Div, t, x)),
        Unary::Log1p => {
            return Some(lax::binary(Binary::Div, t, lax::add(x, number(1.0, x))));
        }
        Unary::Logistic => lax::mul(y, lax::binary(Binary::Sub, number(1.0, y), y)),
        Unary::Neg => return Some(lax::neg(t)),
        Unary::Rsqrt => {
            let slope = lax::binary(Binary::Div, y, x);
            lax::mul(number(-0.5, x), slope)
        }
        Unary::Sin => lax::unary(Unary::Cos, x),
        Unary::Sqrt => lax::binary(Binary::Div, number(0.5, y), y),
        Unary::Tanh => lax::binary(Binary::Sub, number(1.0, y), lax::mul(y, y)),
        Unary::Floor | Unary::Not | Unary::Sign => return None,
    };
    Some(lax::mul(t, factor))
}

fn binary(op: Binary, [x, y]: [Tensor; 2], t: [Option<Tensor>; 2], z: Tensor) -> Option<Tensor> {
    let [tx, ty] = t;
    match op {
        Binary::Add => sum(tx, ty),
        Binary::Sub => match (tx, ty) {
            (Some(tx), Some(ty)) => Some(lax::binary(Binary::Sub, tx, ty)),
            (tx, ty) => tx.or(ty.map(lax::neg)),
        },
        Binary::Mul if x == y && tx == ty => tx.map(|t| lax::mul(t, lax::add(x, x))),
        Binary::Mul => sum(tx.map(|t| lax::mul(t, y)), ty.map(|t| lax::mul(x, t))),
        Binary::Div => {
            let left = tx.map(|t| lax::binary(Binary::Div, t, y));
            let right = ty.map(|t| lax::neg(lax::mul(lax::binary(Binary::Div, z, y), t)));
            sum(left, right)
        }
        Binary::Max => shared(Comparison::Gt, x, y, tx, ty),
        Binary::Min => shared(Comparison::Lt, x, y, tx, ty),
        Binary::Pow => {
            let left = tx.map(|t| lax::mul(t, power_slope(x, y)));
            let right = ty.map(|t| lax::mul(t, lax::mul(z, log_or_zero(x))));
            sum(left, right)
        }
        Binary::Rem => {
            let right = ty.map(|t| {
                let quotient = lax::binary(Binary::Div, x, y);
                let size = lax::unary(Unary::Floor, lax::unary(Unary::Abs, quotient));
                let whole = lax::mul(lax::unary(Unary::Sign, quotient), size);
                lax::neg(lax::mul(whole, t))
            });
            sum(tx, right)
        }
        Binary::And | Binary::Or | Binary::ShiftLeft | Binary::ShiftRight | Binary::Xor => None,
    }
}

/// The tangent of the operand that wins the comparison; half of each where neither does.
fn shared(
    wins: Comparison,
    x: Tensor,
    y: Tensor,
    tx: Option<Tensor>,
    ty: Option<Tensor>,
) -> Option<Tensor> {
    let weight = |one: Tensor, other: Tensor| {
        let (full, half, none) = (number(1.0, x), number(0.5, x), number(0.0, x));
        let tied = lax::select(lax::compare(Comparison::Eq, one, other), half, none);
        lax::select(lax::compare(wins, one, other), full, tied)
    };
    let left = tx.map(|t| lax::mul(t, weight(x, y)));
    let right = ty.map(|t| lax::mul(t, weight(y, x)));
    sum(left, right)
}

/// `y * x^(y-1)`, and 0 where `y` is 0, for then the power is the constant 1 even at `x = 0`.
fn power_slope(x: Tensor, y: Tensor) -> Tensor {
    let zero = number(0.0, y);
    let is_constant = lax::compare(Comparison::Eq, y, zero);
    let one = number(1.0, y);
    // Where the slope is not used, neither are its own derivatives, which must be finite then.
    let exponent = lax::select(is_constant, one, lax::binary(Binary::Sub, y, one));
    let slope = lax::mul(y, lax::binary(Binary::Pow, x, exponent));
    lax::select(is_constant, zero, slope)
}

/// `log x`, and 0 at 0: the power is 0 there whatever a positive exponent is.
fn log_or_zero(x: Tensor) -> Tensor {
    let is_zero = lax::compare(Comparison::Eq, x, number(0.0, x));
    lax::unary(Unary::Log, lax::select(is_zero, number(1.0, x), x))
}

/// The mean of the tangents of those elements that equal the extremum.
fn extremum(x: Tensor, t: Tensor, y: Tensor, dims: &Dims) -> Tensor {
    let ty = x.ty();
    let kept: Dims = (0..ty.rank()).filter(|d| !dims.contains(d)).collect();
    let attained = lax::compare(Comparison::Eq, x, lax::broadcast(y, &ty.shape, &kept));
    // In a type that can count as many.
    let wide = lax::accumulator(ty.dtype);
    let mask = lax::convert(attained, wide);
    let count = lax::reduce(Reducer::Sum, mask, dims);
    let total = lax::reduce(Reducer::Sum, lax::mul(lax::convert(t, wide), mask), dims);
    lax::convert(lax::binary(Binary::Div, total, count), ty.dtype)
}
