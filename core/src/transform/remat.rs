//! Rematerialization: values that the backward pass computes again rather than keeps.
//! (Chen, Xu, Zhang, Guestrin: "Training deep nets with sublinear memory cost", 2016.)
//!
//! What a [`Policy`] keeps all the same is computed with the function's values and handed to the
//! derivative as further operands.

use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::body::{transposed, transposed_operands};
use super::close::{close, finished};
use super::linearize::{Dual, Mode, Tangents, evaluate};
use super::vmap::{Batch, batch_body};
use crate::error::Source;
use crate::graph::{Equation, Graph};
use crate::lax;
use crate::op::{Memory, Op, Policy, Remat};
use crate::rules;
use crate::rules::batch::Batched;
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{at, before_gathering, emit, input, region};
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
    move |args| remat_at(&f, args, &Policy::Nothing, source)
}

/// [`remat`] that keeps what `policy` says.
///
/// ```
/// use shardax_core::{DType, Policy, Tensor, TensorType, grad, remat_with, trace};
///
/// let f = |w: Tensor| {
///     let block = |w: Tensor| w.dot(w).named("product").sin().exp();
///     remat_with(Policy::names(["product"]), block)(w).sum(..)
/// };
/// let program = trace(grad(f), TensorType::new(DType::F32, [4, 4]))?;
/// // One product forward and two for its gradient: it is not computed again.
/// assert_eq!(program.graph.to_string().matches("dot_general").count(), 3);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn remat_with<A: Tree<Tensor>, R: Tree<Tensor>>(
    policy: Policy,
    f: impl Fn(A) -> R,
) -> impl Fn(A) -> R {
    let source = Location::caller();
    move |args| remat_at(&f, args, &policy, source)
}

fn remat_at<A: Tree<Tensor>, R: Tree<Tensor>>(
    f: &impl Fn(A) -> R,
    args: A,
    policy: &Policy,
    source: Source,
) -> R {
    let traced = close(&args, f, "remat", source);
    let unmatched = policy.unmatched(&traced.graph);
    let remat = Remat {
        body: Arc::new(traced.graph),
        unmatched: unmatched.into(),
        policy: policy.clone(),
        recomputes: false,
    };
    let results = emit_gathering(remat, &traced.operands, source);
    traced.result.with_leaves(&results)
}

/// Emits a function that is computed again, which gathers the parameters that it reads itself: gathered outside, they
/// would be kept whole from the forward to the backward pass.
fn emit_gathering(remat: Remat, operands: &[Tensor], source: Source) -> SmallVec<[Tensor; 1]> {
    let gathers: Vec<_> = operands.iter().map(|&o| before_gathering(o)).collect();
    if gathers.iter().all(Option::is_none) {
        return emit(Op::Remat(remat), operands, source);
    }
    let outside = operands.iter().zip(&gathers);
    let outside: Vec<Tensor> = outside
        .map(|(&operand, gather)| gather.as_ref().map_or(operand, |(_, at_rest)| *at_rest))
        .collect();
    let traced = region(|| {
        let inputs = outside.iter().map(|t| input(t.ty())).zip(gathers);
        let inside: Vec<Tensor> = inputs
            .map(|(x, gather)| match gather {
                Some((constraint, _)) => at(source, || lax::shard(x, constraint)),
                None => x,
            })
            .collect();
        evaluate(&remat.body, &inside, |equation, operands| {
            match &equation.op {
                Op::Remat(inner) => emit_gathering(inner.clone(), operands, equation.source),
                op => emit(op.clone(), operands, equation.source),
            }
        })
    });
    let body = finished(traced.graph, &traced.result);
    let op = Op::Remat(Remat {
        body: Arc::new(body),
        ..remat
    });
    emit(op, &outside, source)
}

impl Policy {
    /// Keeps values that were given one of these names by [`Tensor::named`].
    pub fn names<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Policy::Names(names.into_iter().map(Into::into).collect())
    }

    /// Keeps values that were given one of these names by [`Tensor::named`], in the memory of the
    /// host.
    pub fn offload<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Policy::Offload(names.into_iter().map(Into::into).collect())
    }

    /// Whether the results of `op` are kept.
    fn keeps(&self, op: &Op) -> bool {
        match self {
            Policy::Nothing => false,
            Policy::Dots => matches!(op, Op::DotGeneral(_) | Op::Conv(_)),
            Policy::DotsWithoutBatch => {
                matches!(op, Op::DotGeneral(dims) if dims.lhs_batch.is_empty())
            }
            Policy::Names(names) | Policy::Offload(names) => {
                matches!(op, Op::Name(of) if names.iter().any(|n| **n == *of.name))
            }
        }
    }

    /// The names that none of the operations of `graph` has.
    fn unmatched(&self, graph: &Graph) -> Vec<String> {
        let names = match self {
            Policy::Names(names) | Policy::Offload(names) => names,
            Policy::Nothing | Policy::Dots | Policy::DotsWithoutBatch => return Vec::new(),
        };
        let has = |name: &String| {
            let is_named = |e: &Equation| matches!(&e.op, Op::Name(of) if *of.name == **name);
            graph.equations().iter().any(is_named)
        };
        names.iter().filter(|name| !has(name)).cloned().collect()
    }

    fn offloads(&self) -> bool {
        matches!(self, Policy::Offload(_))
    }
}

/// Values come from the body itself; tangents from a [`Remat`] of the body's derivative, which reads
/// the operands and what the policy keeps.
pub(crate) fn jvp_remat(
    equation: &Equation,
    remat: &Remat,
    operands: &[Dual],
    mode: Mode,
) -> SmallVec<[Dual; 1]> {
    let primals: Vec<Tensor> = operands.iter().map(|d| d.primal).collect();
    let (results, kept) = values_and_kept(remat, &primals);
    let derivative = region(|| {
        // All values first, then what is kept, then all tangents: the order of the operands below.
        let primals: Vec<Tensor> = primals.iter().map(|p| input(p.ty())).collect();
        let kept: Vec<Tensor> = kept.iter().map(|k| input(k.ty())).collect();
        let duals: Vec<Dual> = primals
            .iter()
            .zip(operands)
            .map(|(&primal, operand)| Dual {
                primal,
                tangent: operand.tangent.map(|t| input(t.ty())),
            })
            .collect();
        jvp_reading(remat, &duals, &kept, mode)
    });
    let active: Vec<bool> = derivative
        .result
        .iter()
        .map(|d| d.tangent.is_some())
        .collect();
    let outputs: Vec<Tensor> = derivative.result.iter().filter_map(|d| d.tangent).collect();
    let mut graph = derivative.graph;
    // They happen with the values, and not once more for each time that those are recomputed.
    graph.drop_effects();
    let graph = finished(graph, &outputs);
    let tangents: Vec<Tensor> = operands.iter().filter_map(|d| d.tangent).collect();
    let all = [primals, kept, tangents].concat();
    let op = Op::Remat(Remat {
        body: Arc::new(graph),
        ..remat.clone()
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

/// Emits the body, and returns its results and the values that the policy keeps.
fn values_and_kept(remat: &Remat, operands: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
    let mut kept = Vec::new();
    let results = evaluate(&remat.body, operands, |equation, operands| {
        let results = emit(equation.op.clone(), operands, equation.source);
        if remat.policy.keeps(&equation.op) {
            let stored = |&t: &Tensor| match remat.policy.offloads() {
                true => lax::place(t, Memory::Host),
                false => t,
            };
            kept.extend(results.iter().map(stored));
        }
        results
    });
    (results, kept)
}

/// The body on duals, with kept values in place of those that it would compute.
fn jvp_reading(remat: &Remat, inputs: &[Dual], kept: &[Tensor], mode: Mode) -> Vec<Dual> {
    let mut kept = kept.iter();
    evaluate(&remat.body, inputs, |equation, operands| {
        let mut results = if operands.iter().any(|d| d.tangent.is_some()) {
            rules::jvp::jvp(equation, operands, mode)
        } else {
            let primals: SmallVec<[Tensor; 4]> = operands.iter().map(|d| d.primal).collect();
            let constant = |primal| Dual {
                primal,
                tangent: None,
            };
            let results = emit(equation.op.clone(), &primals, equation.source);
            results.into_iter().map(constant).collect()
        };
        if remat.policy.keeps(&equation.op) {
            for (result, &value) in results.iter_mut().zip(kept.by_ref()) {
                result.primal = match remat.policy.offloads() {
                    true => lax::place(value, Memory::Device),
                    false => value,
                };
            }
        }
        results
    })
}

/// A rematerialized function for a batch is one of the batch.
pub(crate) fn batch_remat(
    equation: &Equation,
    remat: &Remat,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let dims: Vec<Option<usize>> = operands.iter().map(|o| o.dim).collect();
    let body = batch_body(&remat.body, &dims, &[], batch);
    let op = Op::Remat(Remat {
        body: body.graph,
        ..remat.clone()
    });
    let tensors: Vec<Tensor> = operands.iter().map(|o| o.tensor).collect();
    let results = emit(op, &tensors, equation.source).into_iter();
    let placed = results.zip(body.outputs);
    placed
        .map(|(tensor, dim)| Batched { tensor, dim })
        .collect()
}

/// The recomputation: a [`Remat`] that computes values again and transposes what is linear.
pub(crate) fn transpose_remat(
    remat: &Remat,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
    source: Source,
) -> Tangents {
    let (body, present) = transposed(&remat.body, operands, cotangents, false, source);
    let op = Op::Remat(Remat {
        body,
        policy: Policy::Nothing,
        recomputes: true,
        unmatched: Arc::clone(&remat.unmatched),
    });
    let all = transposed_operands(operands, cotangents);
    let mut results = emit(op, &all, source).into_iter();
    let mut cts: Tangents = smallvec![None; operands.len()];
    for (slot, _) in cts.iter_mut().zip(present).filter(|(_, present)| *present) {
        *slot = results.next();
    }
    cts
}
