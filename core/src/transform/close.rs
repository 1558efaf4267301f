//! Closing over a function: its graph, with what it captured as the last operands.

use crate::error::Source;
use crate::graph::Graph;
use crate::tensor::Tensor;
use crate::trace::{input, localize, region, type_of};
use crate::tree::Tree;

/// A traced function and the operands that make it compute what the closure would have.
pub(crate) struct Closed<R> {
    /// The graph; its outputs are the leaves of `result`.
    pub graph: Graph,
    /// Leaves of the arguments, then captures.
    pub operands: Vec<Tensor>,
    /// What the function returned, its leaves being values of `graph`.
    pub result: R,
}

/// Traces `f` on inputs like `args`, for the transform `op`.
pub(crate) fn close<A: Tree<Tensor>, R: Tree<Tensor>>(
    args: &A,
    f: impl FnOnce(A) -> R,
    op: &'static str,
    source: Source,
) -> Closed<R> {
    let mut operands = args.leaves();
    let traced = region(|| {
        let args = args.replace_leaves(&mut |_, t: &Tensor| input(type_of(*t, op, source)));
        f(args).replace_leaves(&mut |_, t: &Tensor| localize(*t, source))
    });
    let mut graph = traced.graph;
    graph.outputs = traced.result.leaves().iter().map(|t| t.value).collect();
    graph.prune();
    operands.extend(traced.captures);
    Closed {
        graph,
        operands,
        result: traced.result,
    }
}
