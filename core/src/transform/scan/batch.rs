//! A loop over a batch: one loop, whose carries have the batch in front.

use smallvec::SmallVec;

use crate::graph::Equation;
use crate::op::{Op, Scan};
use crate::rules::batch::Batched;
use crate::tensor::Tensor;
use crate::trace::emit;
use crate::transform::vmap::{Batch, batch_body};

/// A carry is batched if it starts so, or if any iteration makes it so.
pub(crate) fn batch_scan(
    equation: &Equation,
    scan: &Scan,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let (carries, size) = (scan.carries, batch.size);
    let scanned = carries..carries + scan.xs;
    let mut tensors: Vec<Tensor> = operands.iter().map(|o| o.tensor).collect();
    // Where the body sees the batch: an element of a scanned array has lost the first dimension.
    let mut dims: Vec<Option<usize>> = operands.iter().map(|o| o.dim).collect();
    for i in scanned {
        dims[i] = match dims[i] {
            Some(0) => {
                tensors[i] = operands[i].at(1, size);
                Some(0)
            }
            Some(dim) => Some(dim - 1),
            None => None,
        };
    }
    for dim in dims[..carries].iter_mut().flatten() {
        *dim = 0;
    }
    let outputs = loop {
        let outputs = batch_body(&scan.body, &dims, &[], batch).outputs;
        let fresh: Vec<usize> = (0..carries)
            .filter(|&i| dims[i].is_none() && outputs[i].is_some())
            .collect();
        if fresh.is_empty() {
            break outputs;
        }
        for i in fresh {
            dims[i] = Some(0);
        }
    };
    for i in (0..carries).filter(|&i| dims[i].is_some()) {
        tensors[i] = operands[i].at(0, size);
    }
    let batched: Vec<bool> = dims[..carries]
        .iter()
        .chain(&outputs[carries..])
        .map(Option::is_some)
        .collect();
    let body = batch_body(&scan.body, &dims, &batched, batch).graph;
    let op = Op::Scan(Scan {
        body,
        ..scan.clone()
    });
    let results = emit(op, &tensors, equation.source);
    let placed = |(i, tensor): (usize, Tensor)| Batched {
        tensor,
        // Stacked outputs have the iterations in front.
        dim: batched[i].then_some(usize::from(i >= carries)),
    };
    results.into_iter().enumerate().map(placed).collect()
}
