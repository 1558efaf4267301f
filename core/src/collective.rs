//! What devices tell each other in a manual region, named as in JAX.
//!
//! Each takes a tree of tensors and the axes along which devices take part, one name or several,
//! major first. Outside of a [`manual`](crate::manual) region over these axes it is a mistake.

use std::panic::Location;

use shardax_sharding::{Axes, did_you_mean};

use crate::context::manual_axes;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Collective, CollectiveOp, ManualAxis};
use crate::tensor::Tensor;
use crate::trace::{at, fail_at};
use crate::tree::Tree;

/// The sum of every device's value; all devices hold it in common.
///
/// Of a value that they hold in common already, it is as many times that value as there are devices.
/// Its derivative hands the cotangent of the sum to every device.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, manual, psum, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
///
/// let layout = Layout::new(Mesh::new([("data", 4)])?);
/// let [split, whole] = [PartitionSpec::new(("data",)), PartitionSpec::whole()];
/// let sum = manual("data", split, whole, |x: Tensor| psum(x, "data"));
/// let program = under(&layout, || trace(sum, TensorType::new(DType::F32, [8])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[2]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn psum<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>) -> T {
    each("psum", tree, axes.into(), CollectiveOp::Psum)
}

/// [`psum`] divided by the number of devices. Floating-point and complex.
#[track_caller]
pub fn pmean<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>) -> T {
    let source = Location::caller();
    let axes = own("pmean", &axes.into(), source);
    let collective = Collective {
        kind: CollectiveOp::Psum,
        axes,
    };
    at(source, || {
        tree.replace_leaves(&mut |_, t| {
            if !t.dtype().is_differentiable() {
                let problem = format!("{} is not a floating-point tensor", t.ty());
                let help = "cast it first: the mean of integers is not an integer".to_owned();
                let op = "pmean";
                fail_at(ErrorKind::DType { op, problem }, Some(help), source)
            }
            lax::collective(*t, collective.clone()) / collective.size() as f64
        })
    })
}

/// The largest of every device's value, element by element; all devices hold it in common. Devices
/// that hold the largest share its derivative equally.
///
/// A NaN is larger than every number, and -0 less than 0.
#[track_caller]
pub fn pmax<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>) -> T {
    each("pmax", tree, axes.into(), CollectiveOp::Pmax)
}

/// The smallest of every device's value, as [`pmax`].
#[track_caller]
pub fn pmin<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>) -> T {
    each("pmin", tree, axes.into(), CollectiveOp::Pmin)
}

/// Every device's value, joined along dimension `dim` in the order of the devices.
///
/// The type says that each device has its own copy, which is what parameters that are gathered for a
/// use want: the derivative is [`reduce_scatter`]. [`all_gather_invariant`] says that it is one value.
#[track_caller]
pub fn all_gather<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>, dim: isize) -> T {
    let kind = |dim| CollectiveOp::AllGather {
        dim,
        invariant: false,
    };
    along("all_gather", tree, axes.into(), dim, kind)
}

/// [`all_gather`] into a value that all devices hold in common, such as a result of the region that
/// is whole. The derivative takes each device's own block of the one cotangent.
#[track_caller]
pub fn all_gather_invariant<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>, dim: isize) -> T {
    let kind = |dim| CollectiveOp::AllGather {
        dim,
        invariant: true,
    };
    along("all_gather_invariant", tree, axes.into(), dim, kind)
}

/// The sum of every device's value, of which each device gets its own block along dimension `dim`.
/// The derivative is [`all_gather`]. (JAX's `psum_scatter`, tiled.)
///
/// The dimension's size is a multiple of the number of devices.
#[track_caller]
pub fn reduce_scatter<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>, dim: isize) -> T {
    along(
        "reduce_scatter",
        tree,
        axes.into(),
        dim,
        CollectiveOp::ReduceScatter,
    )
}

/// Cuts dimension `split` into a piece for each device, gives them away, and joins what the device is
/// given along dimension `join` in the order of the devices. The derivative is the way back.
///
/// The size of `split` is a multiple of the number of devices.
#[track_caller]
pub fn all_to_all<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>, split: isize, join: isize) -> T {
    let source = Location::caller();
    let op = "all_to_all";
    let axes = own(op, &axes.into(), source);
    at(source, || {
        tree.replace_leaves(&mut |_, t| {
            let kind = CollectiveOp::AllToAll {
                split: position(op, *t, split, source),
                join: position(op, *t, join, source),
            };
            let axes = axes.clone();
            lax::collective(*t, Collective { kind, axes })
        })
    })
}

/// Sends values from device to device: `pairs` has `(from, to)` for positions along the axes, each
/// device at most once in either place. Who is sent nothing has zeros. The derivative sends back.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, axis_size, manual, ppermute, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
///
/// let layout = Layout::new(Mesh::new([("ring", 4)])?);
/// let split = PartitionSpec::new(("ring",));
/// let next = |x: Tensor| {
///     let count = axis_size("ring");
///     ppermute(x, "ring", (0..count).map(|i| (i, (i + 1) % count)))
/// };
/// let rolled = manual("ring", split.clone(), split, next);
/// let program = under(&layout, || trace(rolled, TensorType::new(DType::F32, [8])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[8]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn ppermute<T: Tree<Tensor>>(
    tree: T,
    axes: impl Into<Axes>,
    pairs: impl IntoIterator<Item = (usize, usize)>,
) -> T {
    let source = Location::caller();
    let op = "ppermute";
    let axes = own(op, &axes.into(), source);
    let count: usize = axes.iter().map(|axis| axis.size()).product();
    let pairs: Vec<(usize, usize)> = pairs.into_iter().collect();
    let mut problems = Vec::new();
    for (i, &(from, to)) in pairs.iter().enumerate() {
        if from >= count || to >= count {
            problems.push(format!(
                "({from}, {to}) names a device beyond the last, {} of {count}",
                count.saturating_sub(1)
            ));
        }
        if pairs[..i].iter().any(|(other, _)| *other == from) {
            problems.push(format!("device {from} sends twice"));
        }
        if pairs[..i].iter().any(|(_, other)| *other == to) {
            problems.push(format!("device {to} is sent to twice"));
        }
    }
    if !problems.is_empty() {
        let problem = problems.join("; ");
        let help = "each device sends to at most one and is sent to by at most one";
        fail_at(
            ErrorKind::Argument { op, problem },
            Some(help.into()),
            source,
        )
    }
    at(source, || {
        tree.replace_leaves(&mut |_, t| {
            let (kind, axes) = (CollectiveOp::Ppermute(pairs.clone()), axes.clone());
            lax::collective(*t, Collective { kind, axes })
        })
    })
}

/// The value of the device at position `root`, on every device. Of any element type.
#[track_caller]
pub fn broadcast_from<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>, root: usize) -> T {
    let source = Location::caller();
    let op = "broadcast_from";
    let axes = own(op, &axes.into(), source);
    let count: usize = axes.iter().map(|axis| axis.size()).product();
    if root >= count {
        let problem = format!("there is no device {root} of {count}");
        fail_at(ErrorKind::Argument { op, problem }, None, source)
    }
    at(source, || {
        let is_root = lax::axis_index(axes.clone()).eq(root as i64);
        tree.replace_leaves(&mut |_, t| {
            let zero = lax::zeros(&t.ty());
            let is_root = lax::broadcast(is_root, &t.ty().shape, &[]);
            let own = lax::select(is_root, *t, zero);
            let (kind, axes) = match t.dtype() {
                // The others are false.
                DType::Bool => (CollectiveOp::Pmax, axes.clone()),
                _ => (CollectiveOp::Psum, axes.clone()),
            };
            lax::collective(own, Collective { kind, axes })
        })
    })
}

/// The position of the device along the axes, an `i32` scalar: of several axes, the first counts
/// most.
#[track_caller]
pub fn axis_index(axes: impl Into<Axes>) -> Tensor {
    let source = Location::caller();
    let axes = own("axis_index", &axes.into(), source);
    at(source, || lax::axis_index(axes))
}

/// The number of devices along the axes.
#[track_caller]
pub fn axis_size(axes: impl Into<Axes>) -> usize {
    let axes = own("axis_size", &axes.into(), Location::caller());
    axes.iter().map(|axis| axis.size()).product()
}

/// The value, marked as one of each device's own although it is the same on all. Nothing is sent.
/// (JAX's `pvary`.)
///
/// The gradient of a value that all devices hold in common is summed over them; that of a marked one is
/// each device's own, and the sum is taken where the mark is, if `grad` goes so far. So mark
/// parameters before `grad` where the sum is to be made by hand, by a ring or in eight bits: without the
/// mark the gradient is summed already, and a second sum is as many times too large as there are devices.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, grad, manual, psum, pvary, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
///
/// let layout = Layout::new(Mesh::new([("data", 8)])?);
/// let specs = (PartitionSpec::whole(), PartitionSpec::new(("data",)));
/// let gradient = manual("data", specs, PartitionSpec::whole(), |(w, x): (Tensor, Tensor)| {
///     let own = grad(|w: Tensor| x.dot(w).square().sum(..))(pvary(w, "data"));
///     assert_eq!(own.ty().to_string(), "f32[2]{data}");
///     psum(own, "data")
/// });
/// let types = (TensorType::new(DType::F32, [2]), TensorType::new(DType::F32, [16, 2]));
/// let program = under(&layout, || trace(|w: Tensor, x: Tensor| gradient((w, x)), types))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[2]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn pvary<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>) -> T {
    each("pvary", tree, axes.into(), CollectiveOp::Vary)
}

/// The value, marked as one that all devices hold in common: what the types cannot see, such as a sum
/// that has been passed around a ring.
///
/// **It is not checked.** Where devices hold different values after all, what the program computes
/// from them is unspecified: each device may go on with its own. Nothing is sent. The derivative is
/// that of the first device's value, which is everybody's.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, assume_invariant, manual, ppermute, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
///
/// let layout = Layout::new(Mesh::new([("pair", 2)])?);
/// let [split, whole] = [PartitionSpec::new(("pair",)), PartitionSpec::whole()];
/// let sum = manual("pair", split, whole, |x: Tensor| {
///     let both = x + ppermute(x, "pair", [(0, 1), (1, 0)]);
///     assume_invariant(both, "pair")
/// });
/// let program = under(&layout, || trace(sum, TensorType::new(DType::F32, [8])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[4]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn assume_invariant<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>) -> T {
    each(
        "assume_invariant",
        tree,
        axes.into(),
        CollectiveOp::AssumeInvariant,
    )
}

#[track_caller]
fn each<T: Tree<Tensor>>(op: &'static str, tree: T, axes: Axes, kind: CollectiveOp) -> T {
    let source = Location::caller();
    let axes = own(op, &axes, source);
    let collective = Collective { kind, axes };
    at(source, || {
        tree.replace_leaves(&mut |_, t| lax::collective(*t, collective.clone()))
    })
}

#[track_caller]
fn along<T: Tree<Tensor>>(
    op: &'static str,
    tree: T,
    axes: Axes,
    dim: isize,
    kind: impl Fn(usize) -> CollectiveOp,
) -> T {
    let source = Location::caller();
    let axes = own(op, &axes, source);
    at(source, || {
        tree.replace_leaves(&mut |_, t| {
            let (kind, axes) = (kind(position(op, *t, dim, source)), axes.clone());
            lax::collective(*t, Collective { kind, axes })
        })
    })
}

/// The dimension that `dim` counts from the front or, negative, from the back.
fn position(op: &'static str, t: Tensor, dim: isize, source: Source) -> usize {
    let ty = t.ty();
    let rank = ty.rank() as isize;
    if (-rank..rank).contains(&dim) {
        return dim.rem_euclid(rank) as usize;
    }
    let problem = format!("{ty} has no dimension {dim}");
    fail_at(ErrorKind::Argument { op, problem }, None, source)
}

/// The axes of regions around this call that have these names.
fn own(op: &'static str, axes: &Axes, source: Source) -> Vec<ManualAxis> {
    let known = manual_axes();
    let mut own: Vec<ManualAxis> = Vec::new();
    let mut problems = Vec::new();
    for name in axes.names() {
        match known.iter().find(|axis| axis.name() == name) {
            Some(axis) if own.contains(axis) => {
                problems.push(format!("axis `{name}` is named twice"));
            }
            Some(axis) => own.push(*axis),
            None => {
                let near = did_you_mean(name, known.iter().map(|axis| axis.name()));
                let near = near
                    .map(|n| format!(": did you mean `{n}`?"))
                    .unwrap_or_default();
                problems.push(format!("axis `{name}` is not manual here{near}"));
            }
        }
    }
    if axes.is_empty() {
        problems.push("it names no axis".to_owned());
    }
    if problems.is_empty() {
        return own;
    }
    let help = match known.is_empty() {
        true => "call it inside of a function that is given to `manual` with this axis".to_owned(),
        false => {
            let names: Vec<&str> = known.iter().map(|axis| axis.name()).collect();
            format!("the regions around this call have {}", names.join(", "))
        }
    };
    let problem = problems.join("; ");
    fail_at(ErrorKind::Argument { op, problem }, Some(help), source)
}
