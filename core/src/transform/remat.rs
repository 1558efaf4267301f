//! Rematerialization: values that the backward pass computes again rather than keeps.
//! (Chen, Xu, Zhang, Guestrin: "Training deep nets with sublinear memory cost", 2016.)

use std::panic::Location;
use std::sync::Arc;

use smallvec::smallvec;

use super::linearize::{Dual, Linear, Mode, Tangents, inline, jvp_graph};
use crate::error::Source;
use crate::graph::Equation;
use crate::op::{Op, Remat};
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{emit, input, region};
use crate::transform::close::close;
use crate::tree::Tree;

/// The same function, whose inner values are not kept for its derivative but computed again.
///
/// ```
/// use shardax_core::{Tensor, remat, trace, TensorType, DType, grad};
///
/// let f = |x: Tensor| remat(|x: Tensor| x.sin().exp())(x).sum(..);
/// let program = trace(grad(f), TensorType::new(DType::F32, [8]))?;
/// assert!(program.graph.to_string().contains("recompute"));
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn remat<A: Tree<Tensor>, R: Tree<Tensor>>(f: impl Fn(A) -> R) -> impl Fn(A) -> R {
    let source = Location::caller();
    move |args| {
        let traced = close(&args, &f, "remat", source);
        let op = Op::Remat(Remat {
            body: Arc::new(traced.graph),
            recomputes: false,
        });
        let results = emit(op, &traced.operands, source);
        traced.result.with_leaves(&results)
    }
}

/// Values come from the body itself; tangents from a [`Remat`] of the body's derivative, which
/// reads the operands alone.
pub(crate) fn jvp_remat(
    equation: &Equation,
    remat: &Remat,
    operands: &[Dual],
    mode: Mode,
) -> smallvec::SmallVec<[Dual; 1]> {
    let primals: Vec<Tensor> = operands.iter().map(|d| d.primal).collect();
    let results = inline(&remat.body, &primals);
    let derivative = region(|| {
        // All values first, then all tangents: the order of the operands below.
        let primals: Vec<Tensor> = primals.iter().map(|p| input(p.ty())).collect();
        let duals: Vec<Dual> = primals
            .iter()
            .zip(operands)
            .map(|(&primal, operand)| Dual {
                primal,
                tangent: operand.tangent.map(|t| input(t.ty())),
            })
            .collect();
        jvp_graph(&remat.body, &duals, mode)
    });
    let mut graph = derivative.graph;
    let mut active = Vec::new();
    for dual in &derivative.result {
        active.push(dual.tangent.is_some());
        graph.outputs.extend(dual.tangent.map(|t| t.value));
    }
    graph.prune();
    let tangents: Vec<Tensor> = operands.iter().filter_map(|d| d.tangent).collect();
    let all: Vec<Tensor> = primals.iter().chain(&tangents).copied().collect();
    let op = Op::Remat(Remat {
        body: Arc::new(graph),
        recomputes: remat.recomputes,
    });
    let mut tangents = emit(op, &all, equation.source).into_iter();
    results
        .into_iter()
        .zip(active)
        .map(|(primal, active)| Dual {
            primal,
            tangent: if active { tangents.next() } else { None },
        })
        .collect()
}

/// The recomputation: a [`Remat`] that computes values again and transposes what is linear.
pub(crate) fn transpose_remat(
    remat: &Remat,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
    source: Source,
) -> Tangents {
    let backward = region(|| {
        let known: Vec<Option<Tensor>> = operands
            .iter()
            .map(|o| (!o.linear).then(|| input(o.tensor.ty())))
            .collect();
        let cts: Vec<Option<Tensor>> = cotangents
            .iter()
            .map(|ct| ct.map(|ct| input(ct.ty())))
            .collect();
        let types = operands.iter().map(|o| o.linear.then(|| o.tensor.ty()));
        let linear = Linear::begin(types, source);
        let inputs: Vec<Tensor> = known
            .iter()
            .zip(linear.tangents())
            .filter_map(|(known, tangent)| known.or(*tangent))
            .collect();
        let outputs = inline(&remat.body, &inputs);
        linear.transpose(outputs.into_iter().map(Some).zip(cts), source)
    });
    let mut graph = backward.graph;
    graph.outputs = backward
        .result
        .iter()
        .flatten()
        .map(|ct| ct.value)
        .collect();
    graph.prune();
    let known = operands.iter().filter(|o| !o.linear).map(|o| o.tensor);
    let all: Vec<Tensor> = known.chain(cotangents.iter().flatten().copied()).collect();
    let op = Op::Remat(Remat {
        body: Arc::new(graph),
        recomputes: true,
    });
    let mut results = emit(op, &all, source).into_iter();
    let mut cts: Tangents = smallvec![None; operands.len()];
    for (slot, ct) in cts.iter_mut().zip(&backward.result) {
        *slot = ct.and_then(|_| results.next());
    }
    cts
}
