//! Closing over a function: its graph, with what it captured as the last operands.

use std::sync::Arc;

use super::linearize::inline;
use crate::error::Source;
use crate::graph::Graph;
use crate::tensor::Tensor;
use crate::trace::{check_depth, input, input_for, localize, region, type_of};
use crate::tree::Tree;
use crate::types::TensorType;

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
    let new_input = |t: &Tensor| input_for(*t, type_of(*t, op, source));
    closed(args, new_input, f, op, source)
}

/// [`close`] on inputs of the types that `ty` gives for the leaves of `args`, in order.
pub(crate) fn close_on<A: Tree<Tensor>, R: Tree<Tensor>>(
    args: &A,
    mut ty: impl FnMut(&Tensor) -> TensorType,
    f: impl FnOnce(A) -> R,
    op: &'static str,
    source: Source,
) -> Closed<R> {
    closed(args, |t| input(ty(t)), f, op, source)
}

fn closed<A: Tree<Tensor>, R: Tree<Tensor>>(
    args: &A,
    mut new_input: impl FnMut(&Tensor) -> Tensor,
    f: impl FnOnce(A) -> R,
    op: &'static str,
    source: Source,
) -> Closed<R> {
    check_depth(op, source);
    let mut operands = args.leaves();
    let traced = region(|| {
        let args = args.replace_leaves(&mut |_, t: &Tensor| new_input(t));
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

/// The same function of other inputs, of these types: its input `i` is the new input `from[i]`.
pub(crate) fn rewired(
    graph: &Graph,
    types: impl IntoIterator<Item = TensorType>,
    from: &[usize],
) -> Arc<Graph> {
    let traced = region(|| {
        let inputs: Vec<Tensor> = types.into_iter().map(input).collect();
        let own: Vec<Tensor> = from.iter().map(|&i| inputs[i]).collect();
        inline(graph, &own)
    });
    Arc::new(finished(traced.graph, &traced.result))
}

/// A graph with these outputs, and without what they do not need.
pub(crate) fn finished(mut graph: Graph, outputs: &[Tensor]) -> Graph {
    graph.outputs = outputs.iter().map(|t| t.value).collect();
    graph.prune();
    graph
}

/// Operands of several functions of the same arguments: those, then what any of them captured.
pub(crate) struct Shared {
    arguments: usize,
    /// Arguments, then captures, each once.
    pub operands: Vec<Tensor>,
}

impl Shared {
    pub(crate) fn new(arguments: Vec<Tensor>) -> Self {
        Shared {
            arguments: arguments.len(),
            operands: arguments,
        }
    }

    /// Adds what a function captured.
    pub(crate) fn capture(&mut self, captures: &[Tensor]) {
        for &capture in captures {
            if !self.captures().contains(&capture) {
                self.operands.push(capture);
            }
        }
    }

    pub(crate) fn captures(&self) -> &[Tensor] {
        &self.operands[self.arguments..]
    }

    /// Where captures that were added stand among all captures.
    pub(crate) fn positions<'a>(
        &'a self,
        captures: &'a [Tensor],
    ) -> impl Iterator<Item = usize> + 'a {
        let all = self.captures();
        captures
            .iter()
            .filter_map(|capture| all.iter().position(|other| other == capture))
    }

    pub(crate) fn types(&self) -> Vec<TensorType> {
        self.operands.iter().map(|t| t.ty()).collect()
    }

    /// A function of the arguments and its own captures, as one of all operands.
    pub(crate) fn function<R>(&self, closed: &Closed<R>) -> Arc<Graph> {
        let n = self.arguments;
        let captured = self.positions(&closed.operands[n..]).map(|p| n + p);
        let from: Vec<usize> = (0..n).chain(captured).collect();
        rewired(&closed.graph, self.types(), &from)
    }
}
