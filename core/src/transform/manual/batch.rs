//! A manual region for a batch.

use smallvec::SmallVec;

use shardax_sharding::{Axes, PartitionSpec};

use super::with_body;
use crate::context::in_region;
use crate::graph::Equation;
use crate::op::Manual;
use crate::rules::batch::Batched;
use crate::tensor::Tensor;
use crate::trace::emit;
use crate::transform::vmap::{Batch, batch_body};

/// The region computes the whole batch; along its axes the batch is not split.
pub(crate) fn batch_manual(
    equation: &Equation,
    manual: &Manual,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let dims: Vec<Option<usize>> = operands.iter().map(|o| o.dim).collect();
    let body = in_region(&manual.axes, || batch_body(&manual.body, &dims, &[], batch));
    let widened = |specs: &[PartitionSpec], dims: &[Option<usize>]| -> Vec<PartitionSpec> {
        let pairs = specs.iter().zip(dims);
        pairs.map(|(spec, dim)| with_whole(spec, *dim)).collect()
    };
    let specs = [
        widened(&manual.inputs, &dims),
        widened(&manual.outputs, &body.outputs),
    ];
    let op = with_body(manual, (*body.graph).clone(), specs);
    let tensors: Vec<Tensor> = operands.iter().map(|o| o.tensor).collect();
    let results = emit(op, &tensors, equation.source).into_iter();
    let placed = results.zip(body.outputs);
    placed
        .map(|(tensor, dim)| Batched { tensor, dim })
        .collect()
}

/// A spec with a dimension more, which is whole.
fn with_whole(spec: &PartitionSpec, dim: Option<usize>) -> PartitionSpec {
    let mut entries = spec.entries().to_vec();
    if let Some(dim) = dim {
        entries.insert(dim, Axes::default());
    }
    entries.into_iter().collect()
}
