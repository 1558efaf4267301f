//! Sums and exchanges in the node first, then across nodes.

use std::panic::Location;

use shardax_core::{
    Tensor, Tree, all_gather_invariant, all_to_all, at, axis_size, mistake, psum, reduce_scatter,
};
use shardax_sharding::Axes;

use super::{from_rows, in_rows, summed};

/// The sum of every device's value over both axes: scattered along `inner`, summed along `outer`,
/// gathered along `inner`; all devices hold it in common.
///
/// `inner` is the axis with the fast links, such as the devices of a node. Of `L` bytes a device sends
/// `2 (outer - 1) / outer` of `L / inner` across, where a sum over all devices at once sends about
/// twice `L`.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, manual, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
/// use shardax_train::collectives::hierarchical_all_reduce;
///
/// let layout = Layout::new(Mesh::new([("node", 2), ("gpu", 4)])?);
/// let (split, whole) = (PartitionSpec::new([("node", "gpu")]), PartitionSpec::whole());
/// let sum = manual((), split, whole, |x: Tensor| {
///     hierarchical_all_reduce(x, "gpu", "node")
/// });
/// let program = under(&layout, || trace(sum, TensorType::new(DType::F32, [8, 5])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[1,5]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn hierarchical_all_reduce<T: Tree<Tensor>>(
    tree: T,
    inner: impl Into<Axes>,
    outer: impl Into<Axes>,
) -> T {
    let (inner, outer) = (inner.into(), outer.into());
    let both: Axes = outer.names().iter().chain(inner.names()).cloned().collect();
    at(Location::caller(), || {
        summed(tree, &both, |x| {
            let length = x.size(0);
            let rows = in_rows(x, axis_size(inner.clone()));
            let own = reduce_scatter(rows, inner.clone(), 0);
            let sum = psum(own, outer.clone());
            from_rows(all_gather_invariant(sum, inner.clone(), 0), length)
        })
    })
}

/// [`all_to_all`] over `(outer, inner)` in two steps: devices of a node first collect what each of
/// them has for the same place in every other node, and then it crosses.
///
/// As many bytes cross nodes, in `outer - 1` messages from each device instead of
/// `(outer - 1) * inner`, at the price of an exchange in the node. The size of dimension `split` is a
/// multiple of the number of devices.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, manual, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
/// use shardax_train::collectives::hierarchical_all_to_all;
///
/// let layout = Layout::new(Mesh::new([("node", 2), ("gpu", 4)])?);
/// let [rows, columns] = [
///     PartitionSpec::new([("node", "gpu")]),
///     PartitionSpec::new(((), ("node", "gpu"))),
/// ];
/// let turned = manual((), columns, rows, |x: Tensor| {
///     hierarchical_all_to_all(x, "gpu", "node", 0, 1)
/// });
/// let program = under(&layout, || trace(turned, TensorType::new(DType::F32, [16, 24])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[16,24]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn hierarchical_all_to_all<T: Tree<Tensor>>(
    tree: T,
    inner: impl Into<Axes>,
    outer: impl Into<Axes>,
    split: isize,
    join: isize,
) -> T {
    let (inner, outer) = (inner.into(), outer.into());
    at(Location::caller(), || {
        tree.replace_leaves(&mut |_, x| exchanged(*x, &inner, &outer, split, join))
    })
}

fn exchanged(x: Tensor, inner: &Axes, outer: &Axes, split: isize, join: isize) -> Tensor {
    let (ty, rank) = (x.ty(), x.rank() as isize);
    let (nodes, places) = (axis_size(outer.clone()), axis_size(inner.clone()));
    let count = nodes * places;
    let mut problems = Vec::new();
    for (name, dim) in [("split", split), ("join", join)] {
        if !(-rank..rank).contains(&dim) {
            problems.push(format!("{ty} has no dimension {dim}, which is `{name}`"));
        }
    }
    if problems.is_empty() && !x.size(split).is_multiple_of(count) {
        problems.push(format!(
            "dimension {split} of {ty} cannot be cut into {nodes} times {places} equal parts, one for \
             each device"
        ));
    }
    if !problems.is_empty() {
        mistake("hierarchical_all_to_all", problems.join("; "), None)
    }
    let (split, join) = (split.rem_euclid(rank), join.rem_euclid(rank));
    // One piece for each device, by node and place, before the dimensions of the piece.
    let mut shape = ty.shape.clone();
    shape[split as usize] /= count;
    let mut cut = shape.clone();
    cut.insert(split as usize, nodes);
    cut.insert(split as usize + 1, places);
    let pieces = x.reshape(&cut).moveaxis(split, 0).moveaxis(split + 1, 1);
    let in_node = all_to_all(pieces, inner.clone(), 1, 1);
    let across = all_to_all(in_node, outer.clone(), 0, 0);
    // The pieces of all devices, in their order, side by side along `join`.
    shape[join as usize] *= count;
    let mut joined = across.shape();
    joined.remove(1);
    joined[0] = count;
    across.reshape(&joined).moveaxis(0, join).reshape(&shape)
}
