//! Annotations of what is cut from a product and put together again, stated of the product too.
//!
//! `rope.apply(x.dot(wq), positions)` is annotated behind the rotation, which takes the halves of each head apart. A
//! partitioner follows an annotation backwards through element-wise operations, but the halves have two users, and
//! the product lies as its operand does: under sequence parallelism split along the sequence, with the weights
//! gathered, and both halves exchanged afterwards. The annotation says how the product was meant to lie.

use rustc_hash::{FxHashMap, FxHashSet};
use shardax_core::{
    Role,
    ir::{Graph, Op, ValueId},
};
use shardax_sharding::{Axes, PartitionSpec};

use super::partial::Finder;
use super::sharding::Annotations;

/// How many operations are followed back from one annotation.
const FURTHEST: usize = 64;

/// By product, where an annotation behind it says that it lies.
pub(super) type Sunk = FxHashMap<ValueId, PartitionSpec>;

/// The annotations of a graph that are stated of products as well.
pub(super) fn sunk(graph: &Graph, finder: &Finder, annotations: &Annotations) -> Sunk {
    let mut sunk = Sunk::default();
    for equation in graph.equations() {
        let Op::Shard(constraint) = &equation.op else {
            continue;
        };
        let value = equation.operands[0];
        if constraint.role != Role::Activation {
            continue;
        }
        let Ok(stated) = annotations.lies(constraint.role, constraint, graph.ty(value)) else {
            continue;
        };
        let spec = stated.spec.clone().closed();
        if spec.entries().iter().all(Axes::is_empty) {
            continue;
        }
        for product in products(graph, finder, value, &spec) {
            sunk.entry(product).or_insert_with(|| spec.clone());
        }
    }
    sunk
}

/// The products that a value is cut from, of which the dimensions that are split are the same.
fn products(graph: &Graph, finder: &Finder, value: ValueId, spec: &PartitionSpec) -> Vec<ValueId> {
    let shape = &graph.ty(value).shape;
    let is_split = |dim: usize| spec.entries().get(dim).is_some_and(|axes| !axes.is_empty());
    // Dimensions up to the last one that is split have to stay; others may be cut, joined and taken apart.
    let kept = (0..shape.len())
        .rfind(|&dim| is_split(dim))
        .map_or(0, |dim| dim + 1);
    let is_kept = |value: ValueId| graph.ty(value).shape.get(..kept) == shape.get(..kept);
    let mut found = Vec::new();
    let mut seen = FxHashSet::default();
    let mut left = vec![(value, false)];
    while let Some((value, is_cut)) = left.pop() {
        if seen.len() == FURTHEST || !is_kept(value) || !seen.insert(value) {
            continue;
        }
        let is_whole = |value: ValueId| is_cut && graph.ty(value).rank() == shape.len();
        let Some(equation) = finder.definitions[value.index()] else {
            continue;
        };
        let cuts = match &equation.op {
            Op::Slice { .. } | Op::Concatenate(_) | Op::Pad { .. } => true,
            Op::Unary(_) | Op::Binary(_) | Op::Convert(_) | Op::Select | Op::Reshape(_) => false,
            Op::DotGeneral(_) | Op::Transpose(_) => {
                found.extend(is_whole(value).then_some(value));
                continue;
            }
            _ => continue,
        };
        if matches!(equation.op, Op::Reshape(_)) && !is_kept(equation.operands[0]) {
            found.extend(is_whole(value).then_some(value));
            continue;
        }
        left.extend(
            equation
                .operands
                .iter()
                .map(|&operand| (operand, is_cut || cuts)),
        );
    }
    found
}
