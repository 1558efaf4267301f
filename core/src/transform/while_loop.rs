//! Loops with a condition: `while_loop` and `fori_loop`.
//!
//! How often such a loop runs is known only when it does, so nothing can be kept of its iterations
//! for a backward pass: it has a forward derivative, and reverse mode through it is an error. A
//! `fori_loop` between bounds that are known while tracing is a scan, which has both.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::close::{Shared, close, finished};
use super::linearize::{Dual, Mode, inline, jvp_graph};
use super::once::{Form, Function, Question, once};
use super::scan::{check_carry, scan_in};
use super::vmap::{Batch, batch_body, batch_body_with, batch_graph};
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::graph::{Equation, Graph};
use crate::lax;
use crate::literal::Literal;
use crate::op::{Op, Reducer, While};
use crate::rules::batch::Batched;
use crate::tensor::{IntoOperand, Operand, Tensor};
use crate::trace::{at, emit, fail_at, input, region};
use crate::tree::Tree;
use crate::types::TensorType;

/// Runs `body(carry) -> carry` as long as `condition(carry)`, a boolean scalar, is true.
///
/// Reverse mode through it is an error, for nothing bounds what would have to be kept; forward mode
/// ([`jvp`](crate::jvp)) works. Under [`vmap`](crate::vmap) it runs until every element is done, and
/// an element that is done stays as it is.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace, while_loop};
///
/// let root = |a: Tensor| {
///     let far = move |x: Tensor| (x * x - a).abs().gt(1e-6 * a);
///     while_loop(a, far, |x: Tensor| (x + a / x) * 0.5)
/// };
/// let program = trace(root, TensorType::scalar(DType::F32))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn while_loop<C: Tree<Tensor>>(
    carry: C,
    condition: impl FnOnce(C) -> Tensor,
    body: impl FnOnce(C) -> C,
) -> C {
    while_at("while_loop", carry, condition, body, Location::caller())
}

fn while_at<C: Tree<Tensor>>(
    op: &'static str,
    carry: C,
    condition: impl FnOnce(C) -> Tensor,
    body: impl FnOnce(C) -> C,
    source: Source,
) -> C {
    let condition = close(&carry, condition, op, source);
    let body = close(&carry, body, op, source);
    let decided = condition.graph.ty(condition.result.value);
    if !decided.is_like(&TensorType::scalar(DType::Bool)) {
        let problem = format!("the condition returns {decided}, not a boolean scalar");
        let help = "reduce it with `.any(..)` or `.all(..)`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
    }
    let carries = carry.leaves();
    check_carry(op, &body.graph, &body.result, &carries, source);
    let count = carries.len();
    let mut shared = Shared::new(carries);
    shared.capture(&condition.operands[count..]);
    shared.capture(&body.operands[count..]);
    let looped = Op::While(While {
        cond: shared.function(&condition),
        body: shared.function(&body),
        carries: count,
    });
    let results = emit(looped, &shared.operands, source);
    body.result.with_leaves(&results)
}

/// Runs `body(i, carry) -> carry` for `i` from `low` up to but not including `high`; `i` is an `i32`
/// scalar.
///
/// With numbers as bounds it is a [`scan`](crate::scan), with a derivative; with a tensor as one of
/// them, a [`while_loop`].
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, fori_loop, trace};
///
/// let power = |x: Tensor| fori_loop(0, 5, x, |_, y: Tensor| y * x);
/// let program = trace(power, TensorType::scalar(DType::F32))?;
/// assert!(program.graph.to_string().contains("scan"));
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn fori_loop<C: Tree<Tensor>>(
    low: impl IntoOperand,
    high: impl IntoOperand,
    carry: C,
    body: impl FnOnce(Tensor, C) -> C,
) -> C {
    let source = Location::caller();
    let (low, high) = (low.into(), high.into());
    at(source, || {
        if let (Some(low), Some(high)) = (known_bound(low, source), known_bound(high, source)) {
            let length = usize::try_from(i64::from(high) - i64::from(low)).unwrap_or(0);
            let indices = lax::iota(TensorType::new(DType::I32, [length]), 0) + low;
            let step = |carry: C, i: Tensor| (body(i, carry), ());
            return scan_in("fori_loop", carry, indices, step, (false, 1), source).0;
        }
        let (low, high) = (bound(low, source), bound(high, source));
        let start = (low, carry);
        let more = move |(i, _): (Tensor, C)| i.lt(high);
        let step = |(i, carry): (Tensor, C)| (i + 1, body(i, carry));
        while_at("fori_loop", start, more, step, source).1
    })
}

/// A bound that is a number.
fn known_bound(bound: Operand, source: Source) -> Option<i32> {
    let Operand::Number(number) = bound else {
        return None;
    };
    let whole = Literal::scalar(number, DType::I32).and(Some(number.as_f64() as i32));
    whole.or_else(|| bad_bound(format!("the bound {number} is not an i32"), source))
}

/// A bound as a tensor.
fn bound(bound: Operand, source: Source) -> Tensor {
    match bound {
        Operand::Number(number) => lax::full(number, &TensorType::scalar(DType::I32)),
        Operand::Tensor(tensor) => {
            let ty = tensor.ty();
            if ty.rank() > 0 || !ty.dtype.is_integer() {
                bad_bound(format!("the bound is {ty}, not an integer scalar"), source)
            }
            lax::convert(tensor, DType::I32)
        }
    }
}

fn bad_bound(problem: String, source: Source) -> ! {
    let op = "fori_loop";
    let help = "give whole numbers, or integer scalars: `.cast(DType::I32)` converts";
    fail_at(
        ErrorKind::Argument { op, problem },
        Some(help.into()),
        source,
    )
}

/// The forward derivative: one loop of values and tangents. For a transposition the values are a
/// loop of their own, so that the tangents are wanted only where they are read; to transpose them is
/// an error.
pub(crate) fn jvp_while(
    equation: &Equation,
    looped: &While,
    operands: &[Dual],
    mode: Mode,
) -> SmallVec<[Dual; 1]> {
    let source = equation.source;
    let mut active: Vec<bool> = operands.iter().map(|d| d.tangent.is_some()).collect();
    let body = loop {
        let question = Question::DualBody {
            active: active.clone(),
        };
        let dual = once(&looped.body, question, || dual_body(looped, &active));
        let (body, tangents) = &*dual;
        let before = active.clone();
        for (active, tangent) in active.iter_mut().zip(tangents) {
            *active |= tangent;
        }
        if active == before {
            break Arc::clone(body);
        }
    };
    let carries = looped.carries;
    let written = |(d, &active): (&Dual, &bool)| {
        active.then(|| d.tangent.unwrap_or_else(|| lax::zeros(&d.primal.ty())))
    };
    let tangents: Vec<Option<Tensor>> = operands.iter().zip(&active).map(written).collect();
    let primals: Vec<Tensor> = operands.iter().map(|d| d.primal).collect();
    let present = |tangents: &[Option<Tensor>]| -> Vec<Tensor> {
        tangents.iter().flatten().copied().collect()
    };
    let carried = present(&tangents[..carries]);
    let all = [
        &primals[..carries],
        &carried,
        &primals[carries..],
        &present(&tangents[carries..]),
    ]
    .concat();
    let cond = dual_cond(looped, &active);
    let fused = Op::While(While {
        cond: Arc::new(cond),
        body,
        carries: carries + carried.len(),
    });
    let results = emit(fused, &all, source);
    let values = match mode {
        Mode::Forward => SmallVec::from_slice(&results[..carries]),
        Mode::Linearize => emit(equation.op.clone(), &primals, source),
    };
    let mut tangents = results[carries..].iter().copied();
    values
        .into_iter()
        .zip(&active)
        .map(|(primal, &active)| Dual {
            primal,
            tangent: if active { tangents.next() } else { None },
        })
        .collect()
}

/// Inputs of the loop of values and tangents: carries, their tangents, constants, their tangents.
fn dual_inputs(looped: &While, active: &[bool]) -> Vec<Dual> {
    let ty = |i: usize| looped.body.ty(looped.body.inputs()[i]).clone();
    let mut duals = Vec::new();
    for range in [0..looped.carries, looped.carries..active.len()] {
        let primals: Vec<Tensor> = range.clone().map(|i| input(ty(i))).collect();
        let tangents = range.map(|i| active[i].then(|| input(ty(i))));
        let pairs = primals.into_iter().zip(tangents);
        duals.extend(pairs.map(|(primal, tangent)| Dual { primal, tangent }));
    }
    duals
}

/// The body on duals, and which carries have a tangent after it.
fn dual_body(looped: &While, active: &[bool]) -> (Arc<Graph>, Vec<bool>) {
    let traced = region(|| {
        let inputs = dual_inputs(looped, active);
        let outputs = jvp_graph(&looped.body, &inputs, Mode::Forward);
        let has: Vec<bool> = outputs.iter().map(|d| d.tangent.is_some()).collect();
        let tangents = outputs
            .iter()
            .zip(active)
            .filter(|(_, active)| **active)
            .map(|(d, _)| d.tangent.unwrap_or_else(|| lax::zeros(&d.primal.ty())));
        let tangents: Vec<Tensor> = tangents.collect();
        let primals: Vec<Tensor> = outputs.iter().map(|d| d.primal).collect();
        ([primals, tangents].concat(), has)
    });
    let (outputs, has) = traced.result;
    (Arc::new(finished(traced.graph, &outputs)), has)
}

/// The condition, which reads values alone, with the inputs of the body on duals.
fn dual_cond(looped: &While, active: &[bool]) -> Graph {
    let traced = region(|| {
        let primals: Vec<Tensor> = dual_inputs(looped, active)
            .iter()
            .map(|d| d.primal)
            .collect();
        inline(&looped.cond, &primals)
    });
    finished(traced.graph, &traced.result)
}

/// One loop for the batch. Where the condition differs from element to element, it runs as long as
/// any is true, and elements whose own is not keep their carries.
pub(crate) fn batch_while(
    equation: &Equation,
    looped: &While,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let (carries, size) = (looped.carries, batch.size);
    let mut dims: Vec<Option<usize>> = operands.iter().map(|o| o.dim).collect();
    for dim in dims[..carries].iter_mut().flatten() {
        *dim = 0;
    }
    let differs = loop {
        let before = dims.clone();
        let decided = batch_body(&looped.cond, &dims, &[], batch).outputs[0];
        let outputs = batch_body(&looped.body, &dims, &[], batch).outputs;
        for (dim, output) in dims.iter_mut().zip(&outputs) {
            if output.is_some() || decided.is_some() {
                *dim = Some(0);
            }
        }
        if dims == before {
            break decided.is_some();
        }
    };
    let batched: Vec<bool> = dims[..carries].iter().map(Option::is_some).collect();
    let any = |outputs: Vec<Batched>| -> Vec<Batched> {
        let all = outputs.into_iter();
        all.map(|o| match o.dim {
            Some(dim) => Batched::constant(lax::reduce(Reducer::Or, o.tensor, &[dim])),
            None => o,
        })
        .collect()
    };
    let reduced = |outputs, _: &[Batched]| any(outputs);
    let cond = batch_body_with(&looped.cond, &dims, batch, Form::Any, reduced).graph;
    let form = Form::Carries {
        batched: batched.clone(),
        while_true: differs.then(|| Function::of(&looped.cond)),
    };
    let body = batch_body_with(&looped.body, &dims, batch, form, |outputs, inputs| {
        let going = differs.then(|| {
            let decided = batch_graph(&looped.cond, inputs, batch);
            decided[0].at(0, size)
        });
        let next = outputs.into_iter().zip(inputs).zip(&batched);
        next.map(|((output, input), &batched)| match (batched, going) {
            (true, Some(going)) => {
                let next = output.at(0, size);
                let mask = lax::broadcast(going, &next.ty().shape, &[0]);
                Batched::new(lax::select(mask, next, input.tensor), 0)
            }
            (true, None) => Batched::new(output.at(0, size), 0),
            (false, _) => output,
        })
        .collect()
    })
    .graph;
    let tensors: Vec<Tensor> = operands
        .iter()
        .zip(&dims)
        .enumerate()
        .map(|(i, (o, dim))| match dim {
            Some(_) if i < carries => o.at(0, size),
            _ => o.tensor,
        })
        .collect();
    let op = Op::While(While {
        cond,
        body,
        carries,
    });
    let results = emit(op, &tensors, equation.source);
    results
        .into_iter()
        .zip(batched)
        .map(|(tensor, batched)| Batched {
            tensor,
            dim: batched.then_some(0),
        })
        .collect()
}
