//! The derivative of each primitive.
//!
//! A rule is given an equation's operands and those tangents that are not zero by construction
//! (`None` is a zero that is never written down), emits the equation again, and emits its tangents
//! as a *linear* function of the tangents given. Reverse mode is not written anywhere: it is the
//! transpose of what these rules emit (`rules/transpose.rs`).
//!
//! Convention: reductions over equal extrema share the derivative equally.

use smallvec::{SmallVec, smallvec};

use super::{collective, elementwise, gather, linalg, order, product, window};
use crate::error::ErrorKind;
use crate::graph::Equation;
use crate::lax;
use crate::op::{Binary, Combine, Comparison, Dims, Foreign, Op, Reducer, Target};
use crate::tensor::{Tensor, scaled};
use crate::trace::{emit, fail_at};
use crate::transform::{
    Dual, Mode, Tangents, jvp_cond, jvp_custom, jvp_manual, jvp_remat, jvp_scan, jvp_while,
};

/// Emits `equation` on duals.
pub(crate) fn jvp(equation: &Equation, operands: &[Dual], mode: Mode) -> SmallVec<[Dual; 1]> {
    let x: SmallVec<[Tensor; 4]> = operands.iter().map(|d| d.primal).collect();
    let t: SmallVec<[Option<Tensor>; 4]> = operands.iter().map(|d| d.tangent).collect();
    match &equation.op {
        Op::Scan(scan) => return jvp_scan(equation, scan, operands, mode),
        Op::Remat(remat) => return jvp_remat(equation, remat, operands, mode),
        Op::Cond(cond) => return jvp_cond(equation, cond, operands, mode),
        Op::While(looped) => return jvp_while(equation, looped, operands, mode),
        Op::Custom(custom) => return jvp_custom(equation, custom, operands, mode),
        Op::Manual(manual) => return jvp_manual(equation, manual, operands, mode),
        Op::Sort(sort) => return order::jvp_sort(*sort, operands),
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
        | Op::Gather { .. }
        | Op::Fft(_)
        | Op::ReducePrecision { .. }
        | Op::Shard(_)
        | Op::Name(_)
        | Op::Place(_)
        | Op::ReduceWindow(Reducer::Sum, _)
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
        Op::Scatter {
            combine: Combine::Add,
            ..
        } => {
            let tangent =
                jointly(&[t[0], t[2]], &[x[0], x[2]]).map(|v| same_op(&[v[0], x[1], v[1]]));
            smallvec![tangent]
        }
        Op::Scatter { dims, combine } => {
            smallvec![gather::jvp_scatter(dims, *combine, x, t, y[0])]
        }
        Op::DotGeneral(_) | Op::Conv(_) => {
            let left = t[0].map(|t0| same_op(&[t0, x[1]]));
            let right = t[1].map(|t1| same_op(&[x[0], t1]));
            smallvec![sum(left, right)]
        }
        Op::Unary(op) => {
            smallvec![t[0].and_then(|t0| elementwise::unary(*op, x[0], t0, y[0]))]
        }
        Op::Binary(op) => {
            smallvec![elementwise::binary(
                equation,
                *op,
                [x[0], x[1]],
                [t[0], t[1]],
                y[0]
            )]
        }
        Op::Reduce(Reducer::Max | Reducer::Min, dims) => {
            smallvec![t[0].map(|t0| extremum(x[0], t0, y[0], dims))]
        }
        Op::Reduce(Reducer::Prod, dims) => {
            smallvec![t[0].map(|t0| product::jvp_product(x[0], t0, dims))]
        }
        Op::ReduceWindow(reducer, window) => {
            smallvec![t[0].map(|t0| window::jvp_reduce_window(*reducer, window, x[0], t0, y[0]))]
        }
        Op::Cumulative(cumulative) => {
            smallvec![t[0].map(|t0| order::jvp_cumulative(*cumulative, x[0], t0, y[0]))]
        }
        Op::Cholesky => smallvec![t[0].map(|t0| linalg::jvp_cholesky(t0, y[0]))],
        Op::TriangularSolve(solve) => {
            smallvec![linalg::jvp_triangular_solve(
                *solve,
                x[0],
                [t[0], t[1]],
                y[0]
            )]
        }
        Op::Reduce(Reducer::And | Reducer::Or, _)
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::Compare(_)
        | Op::BitcastConvert(_)
        | Op::StopGradient(None) => none,
        Op::StopGradient(Some(draw)) => {
            if t[0].is_some() {
                no_derivative_of_draw(equation, draw);
            }
            none
        }
        Op::Scan(_)
        | Op::Cond(_)
        | Op::While(_)
        | Op::Remat(_)
        | Op::Custom(_)
        | Op::Manual(_)
        | Op::Sort(_) => none,
        Op::Collective(of) => {
            smallvec![t[0].map(|t0| collective::jvp_collective(of, x[0], t0, y[0]))]
        }
        Op::Foreign(foreign) => foreign_derivative(equation, foreign),
        Op::CustomLinear(_) | Op::Tangent(_) => {
            no_derivative(equation, "a tangent outlived its linearization")
        }
    }
}

fn foreign_derivative(equation: &Equation, foreign: &Foreign) -> ! {
    let name = match &foreign.target {
        Target::Host(function) => function.name().to_owned(),
        Target::Custom { name, .. } => name.to_string(),
    };
    let kind = ErrorKind::Derivative {
        op: "host_call",
        problem: format!("`{name}` is outside of the program, and its derivative is not known"),
    };
    let help = "give it one with `custom_jvp` or `custom_vjp`, or put `.stop_gradient()` on its \
                operands if they are meant to be constants";
    fail_at(kind, Some(help.to_owned()), equation.source)
}

pub(super) fn no_derivative(equation: &Equation, problem: &str) -> ! {
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

fn no_derivative_of_draw(equation: &Equation, draw: &'static str) -> ! {
    let kind = ErrorKind::Derivative {
        op: draw,
        problem: "a draw has no derivative by the parameters of its distribution".to_owned(),
    };
    let help = "put `.stop_gradient()` on the parameter if it is meant to be a constant";
    fail_at(kind, Some(help.to_owned()), equation.source)
}

/// All tangents, zeros written down, if there is one at all.
pub(super) fn jointly(t: &[Option<Tensor>], x: &[Tensor]) -> Option<SmallVec<[Tensor; 4]>> {
    t.iter().any(Option::is_some).then(|| {
        t.iter()
            .zip(x)
            .map(|(t, x)| t.unwrap_or_else(|| lax::zeros(&x.ty())))
            .collect()
    })
}

pub(super) fn sum(left: Option<Tensor>, right: Option<Tensor>) -> Option<Tensor> {
    match (left, right) {
        (Some(left), Some(right)) => Some(lax::add(left, right)),
        (one, other) => one.or(other),
    }
}

/// The mean of the tangents of those elements that equal the extremum.
fn extremum(x: Tensor, t: Tensor, y: Tensor, dims: &Dims) -> Tensor {
    let ty = x.ty();
    if ty.element_count() == 0 {
        return lax::zeros(&y.ty());
    }
    let kept: Dims = (0..ty.rank()).filter(|d| !dims.contains(d)).collect();
    let attained = lax::compare(Comparison::Eq, x, lax::broadcast(y, &ty.shape, &kept));
    // In a type that can count as many.
    let wide = ty.dtype.accumulator();
    let mask = lax::convert(attained, wide);
    let count = lax::reduce(Reducer::Sum, mask, dims);
    let total = lax::reduce(Reducer::Sum, scaled(lax::convert(t, wide), mask), dims);
    lax::convert(lax::binary(Binary::Div, total, count), ty.dtype)
}
