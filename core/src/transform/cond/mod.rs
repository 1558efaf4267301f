//! Choices: `cond` and `switch`.

mod batch;
mod derivative;

use std::panic::Location;

use super::close::{Closed, Shared, close};
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::literal::Literal;
use crate::op::{Cond, Op};
use crate::tensor::Tensor;
use crate::trace::{at, emit, fail_at, type_of};
use crate::tree::{Path, Tree};
use crate::types::TensorType;

pub(crate) use batch::batch_cond;
pub(crate) use derivative::{jvp_cond, transpose_cond};

/// `on_true(operand)` if `predicate`, a boolean scalar, is true, and `on_false(operand)` otherwise.
///
/// Only the chosen branch is computed (under [`vmap`](crate::vmap) with a predicate that differs from
/// element to element both are, and one is selected). The branches return the same structure and
/// types.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, cond, trace};
///
/// let clipped = |x: Tensor| {
///     let norm = x.square().sum(..).sqrt();
///     cond(norm.gt(1.0), x, |x: Tensor| x / norm, |x: Tensor| x)
/// };
/// let program = trace(clipped, TensorType::new(DType::F32, [3]))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[3]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn cond<A: Tree<Tensor>, R: Tree<Tensor>>(
    predicate: Tensor,
    operand: A,
    on_true: impl FnOnce(A) -> R,
    on_false: impl FnOnce(A) -> R,
) -> R {
    let source = Location::caller();
    let ty = type_of(predicate, "cond", source);
    if !ty.is_like(&TensorType::scalar(DType::Bool)) {
        let problem = format!("the predicate is {ty}, not a boolean scalar");
        let help = "compare it, and reduce it with `.any(..)` or `.all(..)`; to choose element by \
                    element, use `select`";
        fail_at(
            ErrorKind::DType {
                op: "cond",
                problem,
            },
            Some(help.into()),
            source,
        )
    }
    let traced = [
        close(&operand, on_false, "cond", source),
        close(&operand, on_true, "cond", source),
    ];
    at(source, || {
        let index = lax::convert(predicate, DType::I32);
        choose("cond", index, operand, traced.into(), source)
    })
}

/// `branches[index](operand)`; an index out of range means the nearest branch.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, switch, trace};
///
/// let activation = |kind: Tensor, x: Tensor| {
///     let branches: [fn(Tensor) -> Tensor; 3] = [|x| x.relu(), |x| x.silu(), |x| x.tanh()];
///     switch(kind, x, branches)
/// };
/// let types = (TensorType::scalar(DType::I32), TensorType::new(DType::F32, [4]));
/// let program = trace(activation, types)?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[4]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn switch<A: Tree<Tensor>, R: Tree<Tensor>, F: FnOnce(A) -> R>(
    index: Tensor,
    operand: A,
    branches: impl IntoIterator<Item = F>,
) -> R {
    let source = Location::caller();
    let ty = type_of(index, "switch", source);
    let traced: Vec<Closed<R>> = branches
        .into_iter()
        .map(|branch| close(&operand, branch, "switch", source))
        .collect();
    let problem = if ty.rank() > 0 || !ty.dtype.is_integer() {
        Some(format!("the index is {ty}, not an integer scalar"))
    } else if traced.is_empty() {
        Some("there is no branch to choose".to_owned())
    } else {
        None
    };
    if let Some(problem) = problem {
        let kind = ErrorKind::Argument {
            op: "switch",
            problem,
        };
        let help = "give an integer scalar, such as `i.cast(DType::I32)`, and one function or more";
        fail_at(kind, Some(help.into()), source)
    }
    at(source, || {
        // Moved into range before it is narrowed, so that a wide one does not wrap around.
        let last = traced.len() as i64 - 1;
        let within = match Literal::scalar(last.into(), ty.dtype) {
            Some(_) => index.minimum(last),
            None => index,
        };
        let within = match ty.dtype.is_signed_integer() {
            true => within.maximum(0),
            false => within,
        };
        let index = lax::convert(within, DType::I32);
        choose("switch", index, operand, traced, source)
    })
}

/// Emits the choice between traced branches.
fn choose<A: Tree<Tensor>, R: Tree<Tensor>>(
    op: &'static str,
    index: Tensor,
    operand: A,
    traced: Vec<Closed<R>>,
    source: Source,
) -> R {
    check_results(op, &traced, source);
    let arguments = operand.leaves();
    let count = arguments.len();
    let mut shared = Shared::new(arguments);
    for closed in &traced {
        shared.capture(&closed.operands[count..]);
    }
    let branches = traced
        .iter()
        .map(|closed| shared.function(closed))
        .collect();
    let all = [&[index], shared.operands.as_slice()].concat();
    let results = emit(Op::Cond(Cond { branches }), &all, source);
    traced[0].result.with_leaves(&results)
}

fn check_results<R: Tree<Tensor>>(op: &'static str, traced: &[Closed<R>], source: Source) {
    let described = |closed: &Closed<R>| {
        let mut leaves = Vec::new();
        closed
            .result
            .visit_leaves(&mut Path::root(), &mut |path, t| {
                leaves.push((path.leaf_of("result"), closed.graph.ty(t.value).clone()));
            });
        leaves
    };
    let first = described(&traced[0]);
    let mut problems = Vec::new();
    let mut is_of_dtypes = true;
    for (i, closed) in traced.iter().enumerate().skip(1) {
        let leaves = described(closed);
        if leaves.len() != first.len() {
            is_of_dtypes = false;
            problems.push(format!(
                "branch {i} returns {} leaves, branch 0 {}",
                leaves.len(),
                first.len()
            ));
            continue;
        }
        for ((leaf, found), (_, wanted)) in leaves.iter().zip(&first) {
            if !found.is_like(wanted) {
                is_of_dtypes &= found.shape == wanted.shape;
                problems.push(format!(
                    "{leaf} is {found} in branch {i} and {wanted} in branch 0"
                ));
            }
        }
    }
    if !problems.is_empty() {
        let problem = format!(
            "the branches return different types: {}",
            problems.join("; ")
        );
        let which = match op {
            "cond" => "branch 0 is `on_false`, branch 1 `on_true`; ",
            _ => "",
        };
        let remedy = match is_of_dtypes {
            true => "convert the results with `.cast(...)`",
            false => "make all return as many values, of the same shapes",
        };
        let help = format!("{which}{remedy}");
        fail_at(ErrorKind::Shape { op, problem }, Some(help), source)
    }
}
