//! A manual region for a batch.

use smallvec::SmallVec;

use shardax_sharding::{Axes, PartitionSpec, Role};

use super::with_body;
use crate::context::{in_region, layout};
use crate::graph::{Equation, Graph};
use crate::op::{Manual, ManualAxis, Op};
use crate::rules::batch::Batched;
use crate::tensor::Tensor;
use crate::trace::emit;
use crate::transform::vmap::{Batch, batch_body};
use crate::vary::promoted;
use crate::varying::Varying;

/// The region computes the whole batch. Where the layout splits the batch's name over axes that the
/// region has and does not use, every device computes its own elements; otherwise all of them.
pub(crate) fn batch_manual(
    equation: &Equation,
    manual: &Manual,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let dims: Vec<Option<usize>> = operands.iter().map(|o| o.dim).collect();
    let axes = own_axes(manual, batch);
    let own = Batch {
        size: batch.size / axes.iter().map(|axis| axis.size()).product::<usize>(),
        ..*batch
    };
    let names: Axes = axes.iter().map(|axis| axis.name()).collect();
    let varying = Varying::new(axes.iter().map(|axis| axis.name()));
    let of_element = dims.iter().map(|dim| match dim {
        Some(_) => varying,
        None => Varying::NOTHING,
    });
    let of_element: Vec<Varying> = of_element.collect();
    let body = in_region(&manual.axes, || {
        batch_body(&promoted(&manual.body, &of_element, &[]), &dims, &[], &own)
    });
    let widened = |specs: &[PartitionSpec], dims: &[Option<usize>]| -> Vec<PartitionSpec> {
        let pairs = specs.iter().zip(dims);
        pairs
            .map(|(spec, dim)| with_batch(spec, *dim, &names))
            .collect()
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

/// The axes of the region that split the batch, and that nothing else in it has.
fn own_axes(manual: &Manual, batch: &Batch) -> Vec<ManualAxis> {
    let resolved = layout().resolve(Role::Activation, &[batch.name], &[batch.size]);
    let wanted = match &resolved {
        Ok(resolved) => resolved.spec.entries()[0].names(),
        Err(_) => &[],
    };
    let find = |name: &String| manual.axes.iter().find(|axis| axis.name() == name).copied();
    let found: Vec<ManualAxis> = wanted.iter().filter_map(find).collect();
    let specs = manual.inputs.iter().chain(&manual.outputs);
    let used = specs.fold(Varying::NOTHING, |used, spec| {
        used.union(Manual::named_by(spec))
    });
    let is_free = |axis: &ManualAxis| !used.contains(axis.name()) && !tells(&manual.body, *axis);
    match found.len() == wanted.len() && found.iter().all(is_free) {
        true => found,
        false => Vec::new(),
    }
}

/// Whether devices tell each other anything along an axis, or ask for their position.
fn tells(graph: &Graph, axis: ManualAxis) -> bool {
    graph.equations().iter().any(|equation| {
        let own = match &equation.op {
            Op::Collective(collective) => collective.axes.contains(&axis),
            _ => false,
        };
        let regions = equation.op.regions();
        own || regions.iter().any(|(_, graph)| tells(graph, axis))
    })
}

/// A spec with a dimension more, which these axes split.
fn with_batch(spec: &PartitionSpec, dim: Option<usize>, axes: &Axes) -> PartitionSpec {
    let mut entries = spec.entries().to_vec();
    if let Some(dim) = dim {
        entries.insert(dim, axes.clone());
    }
    entries.into_iter().collect()
}
