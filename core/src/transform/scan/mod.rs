//! Loops with a fixed number of iterations.

mod batch;
mod derivative;

use std::panic::Location;
use std::sync::Arc;

use crate::error::{ErrorKind, Source};
use crate::graph::Graph;
use crate::op::{Op, Scan};
use crate::tensor::Tensor;
use crate::trace::{
    Region, check_depth, emit, fail_at, input, input_for, localize, region, type_of,
};
use crate::tree::{Path, Tree};
use crate::types::TensorType;

pub(crate) use batch::batch_scan;
pub(crate) use derivative::{jvp_scan, transpose_scan};

/// Runs `f(carry, x) -> (carry, y)` over the leading dimension of the leaves of `xs`, and stacks
/// the `y`s.
///
/// All leaves of `xs` have the same leading size. The carry keeps its types. The compiled program
/// contains the body once, whatever the number of iterations.
///
/// ```
/// use shardax_core::{Tensor, TensorType, DType, scan, trace};
///
/// let running_sum = |x: Tensor| {
///     let zero = Tensor::scalar(0.0, DType::F32);
///     let (_, sums) = scan(zero, x, |sum: Tensor, x: Tensor| (sum + x, sum + x));
///     sums
/// };
/// let program = trace(running_sum, TensorType::new(DType::F32, [5]))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[5]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn scan<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    carry: C,
    xs: X,
    f: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    scan_in("scan", carry, xs, f, (false, 1), Location::caller())
}

/// [`scan`] with `unroll` iterations written out in one turn of the compiled loop: fewer turns, and
/// more for the compiler to overlap, in a larger program. 0 counts as 1.
#[track_caller]
pub fn scan_unrolled<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    carry: C,
    xs: X,
    unroll: usize,
    f: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    scan_in(
        "scan",
        carry,
        xs,
        f,
        (false, unroll.max(1)),
        Location::caller(),
    )
}

/// [`scan`] from the last element to the first; `ys` keep the order of `xs`.
#[track_caller]
pub fn scan_reverse<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    carry: C,
    xs: X,
    f: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    scan_in("scan", carry, xs, f, (true, 1), Location::caller())
}

/// [`scan`] for the construct `op`.
pub(super) fn scan_in<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    op: &'static str,
    carry: C,
    xs: X,
    f: impl FnOnce(C, X) -> (C, Y),
    (reverse, unroll): (bool, usize),
    source: Source,
) -> (C, Y) {
    check_depth(op, source);
    let carry_leaves = carry.leaves();
    let xs_leaves = xs.leaves();
    let length = leading_size(&xs, source);
    let traced = region(|| {
        let carry =
            carry.replace_leaves(&mut |_, t: &Tensor| input_for(*t, type_of(*t, "scan", source)));
        let x = xs.replace_leaves(&mut |_, t: &Tensor| {
            let ty = type_of(*t, "scan", source);
            input(ty.with_shape(&ty.shape[1..]))
        });
        let (carry, y) = f(carry, x);
        let here = |_: &mut Path, t: &Tensor| localize(*t, source);
        (
            carry.replace_leaves(&mut { here }),
            y.replace_leaves(&mut { here }),
        )
    });
    let Region {
        result: (carry, y),
        mut graph,
        captures,
    } = traced;
    let (carry_out, y_out) = (carry.leaves(), y.leaves());
    graph.outputs = carry_out.iter().chain(&y_out).map(|t| t.value).collect();
    check_carry(op, &graph, &carry, &carry_leaves, source);
    graph.prune();
    let operands: Vec<Tensor> = carry_leaves
        .iter()
        .chain(&xs_leaves)
        .chain(&captures)
        .copied()
        .collect();
    let op = Op::Scan(Scan {
        body: Arc::new(graph),
        length,
        reverse,
        unroll,
        carries: carry_leaves.len(),
        xs: xs_leaves.len(),
    });
    let results = emit(op, &operands, source);
    let (carries, ys) = results.split_at(carry_leaves.len());
    (carry.with_leaves(carries), y.with_leaves(ys))
}

fn leading_size<X: Tree<Tensor>>(xs: &X, source: Source) -> usize {
    let mut sizes: Vec<(String, TensorType)> = Vec::new();
    xs.visit_leaves(&mut Path::root(), &mut |path, t| {
        sizes.push((path.leaf_of("xs"), type_of(*t, "scan", source)));
    });
    let first = sizes.iter().find_map(|(_, ty)| ty.shape.first().copied());
    let differs = sizes
        .iter()
        .any(|(_, ty)| ty.shape.first().copied() != first);
    match first {
        Some(length) if !differs => length,
        _ => {
            let listed: Vec<String> = sizes
                .iter()
                .map(|(leaf, ty)| format!("{leaf} is {ty}"))
                .collect();
            let (problem, help) = if sizes.is_empty() {
                let problem = "there is nothing to scan over: xs has no leaves".to_owned();
                (
                    problem,
                    "to count iterations, scan over `Tensor::arange(DType::I32, count)`",
                )
            } else {
                let listed = listed.join(", ");
                let problem = format!("the leaves of xs have no common leading size: {listed}");
                (
                    problem,
                    "every leaf of xs needs the same size in dimension 0",
                )
            };
            fail_at(
                ErrorKind::Shape {
                    op: "scan",
                    problem,
                },
                Some(help.into()),
                source,
            )
        }
    }
}

/// Refuses a body that does not return the carry, values of `graph`, as it came.
pub(super) fn check_carry<C: Tree<Tensor>>(
    op: &'static str,
    graph: &Graph,
    carry: &C,
    initial: &[Tensor],
    source: Source,
) {
    let mut problems = Vec::new();
    let mut position = 0;
    let mut is_of_dtypes = true;
    carry.visit_leaves(&mut Path::root(), &mut |path, t| {
        let (before, after) = (initial.get(position).map(|t| t.ty()), graph.ty(t.value));
        if let Some(before) = before.filter(|before| !before.is_like(after)) {
            let leaf = path.leaf_of("carry");
            is_of_dtypes &= before.shape == after.shape;
            problems.push(format!(
                "{leaf} goes in as {before} and comes out as {after}"
            ));
        }
        position += 1;
    });
    if position != initial.len() {
        let count = initial.len();
        is_of_dtypes = false;
        problems.push(format!(
            "it goes in with {count} leaves and comes out with {position}"
        ));
    }
    if !problems.is_empty() {
        let problem = format!("the carry changes its type: {}", problems.join("; "));
        let help = match is_of_dtypes {
            true => "make the body return the carry as it came, for example with `.cast(...)`",
            false => {
                "start with a carry of the shape and type that the body returns; what each turn adds to the results is the \
                      body's second value"
            }
        };
        fail_at(ErrorKind::Shape { op, problem }, Some(help.into()), source)
    }
}
