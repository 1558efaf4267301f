//! A choice for a batch.

use smallvec::SmallVec;

use crate::graph::{Equation, Graph};
use crate::lax;
use crate::op::{Comparison, Cond, Op};
use crate::rules::batch::Batched;
use crate::tensor::Tensor;
use crate::trace::emit;
use crate::transform::vmap::{Batch, batch_body, batch_graph};

/// A choice that is the same for all elements is one choice; otherwise all branches are computed,
/// and each element selects its own.
pub(crate) fn batch_cond(
    equation: &Equation,
    cond: &Cond,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let (index, rest) = (operands[0], &operands[1..]);
    if index.dim.is_some() {
        return select_branch(cond, index, rest, batch);
    }
    let dims: Vec<Option<usize>> = rest.iter().map(|o| o.dim).collect();
    let mut batched = vec![false; equation.results.len()];
    for branch in &cond.branches {
        let outputs = batch_body(branch, &dims, &[], batch).outputs;
        for (batched, output) in batched.iter_mut().zip(outputs) {
            *batched |= output.is_some();
        }
    }
    let branches = cond
        .branches
        .iter()
        .map(|branch| batch_body(branch, &dims, &batched, batch).graph)
        .collect();
    let operands: Vec<Tensor> = operands.iter().map(|o| o.tensor).collect();
    let results = emit(Op::Cond(Cond { branches }), &operands, equation.source);
    results
        .into_iter()
        .zip(batched)
        .map(|(tensor, batched)| Batched {
            tensor,
            dim: batched.then_some(0),
        })
        .collect()
}

fn select_branch(
    cond: &Cond,
    index: Batched,
    rest: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let mut branches = cond.branches.iter().enumerate();
    let Some((_, first)) = branches.next() else {
        return SmallVec::new();
    };
    let of = |branch: &Graph| -> Vec<Tensor> {
        let results = batch_graph(branch, rest, batch).into_iter();
        results.map(|result| result.at(0, batch.size)).collect()
    };
    let mut results = of(first);
    let index = index.at(0, batch.size);
    for (i, branch) in branches {
        let number = lax::full((i as i64).into(), &index.ty());
        // A later branch also for indices beyond the last: they mean the nearest branch.
        let chosen = lax::compare(Comparison::Ge, index, number);
        for (result, value) in results.iter_mut().zip(of(branch)) {
            let mask = lax::broadcast(chosen, &value.ty().shape, &[0]);
            *result = lax::select(mask, value, *result);
        }
    }
    let results = results.into_iter();
    results.map(|tensor| Batched::new(tensor, 0)).collect()
}
