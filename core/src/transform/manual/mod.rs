//! Manual regions: a function that every device computes for itself, on its own block.
//!
//! Elsewhere a program is written as for one device and the compiler splits it. In a manual region the
//! program says itself what devices tell each other, by the functions of `collective.rs`. (JAX's
//! `shard_map`.)

mod batch;
mod derivative;

use std::panic::Location;
use std::sync::Arc;

use shardax_sharding::{Axes, Layout, PartitionSpec, did_you_mean};

use super::close::close_on;
use crate::context::{in_region, layout, manual_axes};
use crate::error::{ErrorKind, Source};
use crate::graph::Graph;
use crate::op::{Manual, ManualAxis, Op};
use crate::tensor::Tensor;
use crate::trace::{emit, fail_at, type_of};
use crate::tree::{Leaf, Path, Tree};
use crate::types::TensorType;

pub(crate) use batch::batch_manual;
pub(crate) use derivative::{jvp_manual, transpose_manual};

/// The specs of a tree's leaves: how each is cut into blocks.
///
/// A [`PartitionSpec`] stands for every leaf of a tree; it may have fewer entries than a leaf has
/// dimensions, the others being whole. A tuple has specs for each part of a tuple. [`Leaves`] has a
/// spec for each leaf.
pub trait Specs<T> {
    /// The specs in the order of the leaves of `tree`.
    fn of(&self, tree: &T) -> Vec<PartitionSpec>;
}

/// No leaves have no specs: `()` is a region's argument or result that is nothing.
impl Specs<()> for () {
    fn of(&self, (): &()) -> Vec<PartitionSpec> {
        Vec::new()
    }
}

/// A spec for each leaf of a tree: a tree of specs, of the same structure.
///
/// ```
/// use shardax_core::{DType, Leaves, Tensor, TensorType, manual, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
///
/// let layout = Layout::new(Mesh::new([("data", 4)])?);
/// let [rows, columns] = [PartitionSpec::new(("data",)), PartitionSpec::new(((), "data"))];
/// let f = manual("data", Leaves(vec![rows.clone(), columns]), rows, |x: Vec<Tensor>| {
///     x[0].dot(x[1].swap_axes(0, 1))
/// });
/// let types = vec![TensorType::new(DType::F32, [8, 4]), TensorType::new(DType::F32, [3, 16])];
/// let program = under(&layout, || trace(f, types))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[8,3]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Leaves<S>(pub S);

impl<T: Tree<Tensor>> Specs<T> for PartitionSpec {
    fn of(&self, tree: &T) -> Vec<PartitionSpec> {
        tree.leaves().iter().map(|_| self.clone()).collect()
    }
}

impl<T: Tree<Tensor>> Specs<T> for Leaves<T::With<PartitionSpec>>
where
    PartitionSpec: Leaf,
{
    fn of(&self, _: &T) -> Vec<PartitionSpec> {
        let mut specs = Vec::new();
        let add = &mut |_: &mut Path, spec: &PartitionSpec| specs.push(spec.clone());
        self.0.visit_leaves(&mut Path::root(), &mut |path, spec| {
            add(&mut path.clone(), spec)
        });
        specs
    }
}

macro_rules! specs_of_tuple {
    ($($T:ident $S:ident $i:tt),+) => {
        impl<$($T, $S: Specs<$T>),+> Specs<($($T,)+)> for ($($S,)+) {
            fn of(&self, tree: &($($T,)+)) -> Vec<PartitionSpec> {
                let mut specs = Vec::new();
                $(specs.extend(self.$i.of(&tree.$i));)+
                specs
            }
        }
    };
}

specs_of_tuple!(A P 0);
specs_of_tuple!(A P 0, B Q 1);
specs_of_tuple!(A P 0, B Q 1, C R 2);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6, H W 7);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6, H W 7, I X 8);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6, H W 7, I X 8, J Y 9);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6, H W 7, I X 8, J Y 9, K Z 10);
specs_of_tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6, H W 7, I X 8, J Y 9, K Z 10, L O 11);

/// The function `f` as computed by every device along `axes` for itself, on blocks of the argument
/// that `inputs` describes, into blocks of the result that `outputs` describes.
///
/// Inside, tensors have the shapes of blocks, and devices tell each other what the function says:
/// [`psum`](crate::psum), [`all_gather`](crate::all_gather), [`ppermute`](crate::ppermute) and the
/// others. A dimension that a spec does not split is whole on every device. `()` for `axes` means all
/// of the layout's mesh; along axes that are not named the compiler goes on splitting, as elsewhere.
/// Regions nest, each with axes of its own.
///
/// Where a spec of a result does not name an axis, devices along it must hold the same value, and it
/// is a mistake if that is not known: sum it, gather it, or name the axis. The type of a value says
/// over which axes it may differ, `f32[8]{data}`.
///
/// Specs say how values lie in the region. Around it their annotations decide: an argument of a jitted
/// function that has none lies whole on every device, and each takes its block of it, so annotate the
/// arguments of the step.
///
/// What the function captures is whole on every device. Where the layout has one device, every axis
/// is of size 1, and the function is computed as it stands.
///
/// **Derivatives.** The gradient of a value that all devices hold in common is the sum of what all
/// of them contribute, once; that of a value of each device's own is its own. So
/// `psum(loss)` outside of `grad`, inside of it, or a psum of parts of the loss have the same
/// gradient, that of the one number. A gradient by a common value is common too, and must not be
/// summed again; to make the sum yourself, mark the value by [`pvary`](crate::pvary) first.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, manual, psum, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
///
/// let layout = Layout::new(Mesh::new([("data", 8)])?);
/// let rows = PartitionSpec::new(("data", ()));
/// let whole = PartitionSpec::whole();
/// let sum_of_rows = |x: Tensor| {
///     manual("data", rows.clone(), whole.clone(), |x: Tensor| psum(x.sum(0), "data"))(x)
/// };
/// let x = TensorType::new(DType::F32, [16, 3]);
/// let program = under(&layout, || trace(sum_of_rows, x))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[3]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Found while tracing, all faults of one call together: an axis that the mesh does not have or that
/// is manual already, a spec that names other axes, one axis twice, or more dimensions than there are,
/// a dimension that is not divisible, a result that differs between devices where its spec says that
/// it does not.
#[track_caller]
pub fn manual<A: Tree<Tensor>, R: Tree<Tensor>>(
    axes: impl Into<Axes>,
    inputs: impl Specs<A>,
    outputs: impl Specs<R>,
    f: impl Fn(A) -> R,
) -> impl Fn(A) -> R {
    let source = Location::caller();
    let axes = axes.into();
    move |args| manual_at(&axes, &args, &inputs, &outputs, &f, source)
}

fn manual_at<A: Tree<Tensor>, R: Tree<Tensor>>(
    axes: &Axes,
    args: &A,
    inputs: &impl Specs<A>,
    outputs: &impl Specs<R>,
    f: &impl Fn(A) -> R,
    source: Source,
) -> R {
    let mut faults = Vec::new();
    let axes = own_axes(axes, &layout(), &mut faults);
    let mut region = Manual {
        body: Arc::default(),
        axes,
        inputs: Vec::new(),
        outputs: Vec::new(),
    };
    let own = labeled(args, "argument", |t| type_of(*t, "manual", source));
    region.inputs = checked(&region, inputs.of(args), &own, true, &mut faults);
    refuse(faults, source);

    let mut position = 0;
    let block = |_: &Tensor| {
        let (_, ty) = &own[position];
        let block = region.block(ty, &region.inputs[position]);
        position += 1;
        block
    };
    let closed = in_region(&region.axes, || close_on(args, block, f, "manual", source));
    // What is captured is whole on every device.
    let captured = closed.operands[own.len()..].iter();
    let whole = captured.map(|t| PartitionSpec::replicated(t.rank()));
    region.inputs.extend(whole.collect::<Vec<_>>());

    let mut faults = Vec::new();
    let found = labeled(&closed.result, "result", |t| {
        closed.graph.ty(t.value).clone()
    });
    let specs = outputs.of(&closed.result);
    region.outputs = checked(&region, specs, &found, false, &mut faults);
    differing(&region, &found, &mut faults);
    if closed.graph.has_effect() {
        faults.push(
            "something inside prints or calls the host for an effect, which has no order among devices \
             that compute for themselves: return the value, and print it outside"
                .to_owned(),
        );
    }
    refuse(faults, source);
    region.body = Arc::new(closed.graph);
    let results = emit(Op::Manual(region), &closed.operands, source);
    closed.result.with_leaves(&results)
}

/// The leaves of a tree, each with what a message calls it and its type.
fn labeled<T: Tree<Tensor>>(
    tree: &T,
    what: &str,
    ty: impl Fn(&Tensor) -> TensorType,
) -> Vec<(String, TensorType)> {
    let mut all = Vec::new();
    tree.visit_leaves(&mut Path::root(), &mut |path, t| {
        all.push((path.leaf_of(what), ty(t)));
    });
    all
}

/// The axes that the region takes, with their sizes.
fn own_axes(axes: &Axes, layout: &Layout, faults: &mut Vec<String>) -> Vec<ManualAxis> {
    let mesh = layout.mesh();
    let outer = manual_axes();
    let is_outer = |name: &str| outer.iter().any(|axis| axis.name() == name);
    let mut own: Vec<ManualAxis> = Vec::new();
    for name in axes.names() {
        let size = match mesh.axis_size(name) {
            // On one device every axis has one.
            None if mesh.axes().is_empty() => 1,
            None => {
                let names: Vec<&str> = mesh.axes().iter().map(|axis| axis.name()).collect();
                let near = did_you_mean(name, names.iter().copied());
                let near = near
                    .map(|n| format!("did you mean `{n}`? "))
                    .unwrap_or_default();
                let all = names.join(", ");
                faults.push(format!(
                    "the mesh has no axis `{name}`: {near}there are {all}"
                ));
                // Specs that name it have no fault of their own.
                1
            }
            Some(size) => size,
        };
        if own.iter().any(|axis| axis.name() == name) {
            faults.push(format!("axis `{name}` is named twice"));
            continue;
        }
        if is_outer(name) {
            faults.push(format!(
                "axis `{name}` is manual already, in a region around this one: leave it out here"
            ));
        }
        own.push(ManualAxis::new(name, size));
    }
    if axes.is_empty() {
        let rest = mesh.axes().iter().filter(|axis| !is_outer(axis.name()));
        own.extend(rest.map(|axis| ManualAxis::new(axis.name(), axis.size())));
    }
    own
}

/// The specs with an entry for each dimension of the leaves. `cut` leaves are cut into blocks, and
/// others put together from them.
fn checked(
    region: &Manual,
    specs: Vec<PartitionSpec>,
    leaves: &[(String, TensorType)],
    cut: bool,
    faults: &mut Vec<String>,
) -> Vec<PartitionSpec> {
    if specs.len() != leaves.len() {
        let what = if cut { "the argument" } else { "the result" };
        faults.push(format!(
            "{} specs are given for {what}, which has {} leaves",
            specs.len(),
            leaves.len()
        ));
        return specs;
    }
    let mut full = Vec::with_capacity(specs.len());
    for (spec, (leaf, ty)) in specs.into_iter().zip(leaves) {
        let mut fault =
            |problem: String| faults.push(format!("{leaf} {ty}: spec {spec} {problem}"));
        let mut entries = spec.entries().to_vec();
        if entries.len() > ty.rank() {
            let (entries, rank) = (entries.len(), ty.rank());
            fault(format!("has {entries} entries for {rank} dimensions"));
        }
        entries.resize(ty.rank(), Axes::default());
        let mut seen: Vec<&str> = Vec::new();
        for name in spec.entries().iter().flat_map(Axes::names) {
            if !region.axes.iter().any(|axis| axis.name() == name) {
                let all: Vec<&str> = region.axes.iter().map(|axis| axis.name()).collect();
                let all = all.join(", ");
                fault(format!(
                    "names `{name}`, which is not an axis of the region: those are {all}"
                ));
            } else if seen.contains(&name.as_str()) {
                fault(format!(
                    "names `{name}` twice: an axis splits one dimension, once"
                ));
            }
            seen.push(name);
        }
        let own: PartitionSpec = entries.into_iter().collect();
        let counts = region.blocks(&own);
        for (dim, (size, count)) in ty.shape.iter().zip(&counts).enumerate() {
            if cut && !size.is_multiple_of(*count) {
                fault(format!(
                    "cuts dimension {dim} of size {size} into {count} blocks: make it a multiple of \
                     {count}"
                ));
            }
        }
        full.push(own);
    }
    full
}

/// Finds results that differ between devices where their specs say that they do not.
fn differing(region: &Manual, leaves: &[(String, TensorType)], faults: &mut Vec<String>) {
    for ((leaf, ty), spec) in leaves.iter().zip(&region.outputs) {
        let named = Manual::named_by(spec);
        let own = region.axes.iter().map(|axis| axis.name());
        let unnamed: Vec<&str> = own
            .filter(|name| ty.varying.contains(name) && !named.contains(name))
            .collect();
        if !unnamed.is_empty() {
            let axes = unnamed.join("`, `");
            faults.push(format!(
                "{leaf} {ty} differs between devices along `{axes}`, and its spec {spec} says that it \
                 does not: sum it (`psum`), average it (`pmean`), gather it \
                 (`all_gather_invariant`), or name the axis in the spec"
            ));
        }
    }
}

fn refuse(faults: Vec<String>, source: Source) {
    if faults.is_empty() {
        return;
    }
    let problem = match faults.as_slice() {
        [one] => one.clone(),
        all => format!("{} faults:\n  - {}", all.len(), all.join("\n  - ")),
    };
    let op = "manual";
    fail_at(ErrorKind::Argument { op, problem }, None, source)
}

/// The same region with another body.
fn with_body(manual: &Manual, body: Graph, specs: [Vec<PartitionSpec>; 2]) -> Op {
    let [inputs, outputs] = specs;
    Op::Manual(Manual {
        body: Arc::new(body),
        axes: manual.axes.clone(),
        inputs,
        outputs,
    })
}
