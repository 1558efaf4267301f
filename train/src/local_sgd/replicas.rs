//! What every replica has of its own.

use std::panic::Location;

use shardax_core::{
    Dim, Leaf, PartitionSpec, Path, Role, Tensor, Tree, at, layout, manual, mistake, vmap,
};
use shardax_sharding::Axes;

/// The logical name of the leading dimension of [`Replicas`].
pub const REPLICA: Dim = Dim::Logical("replica");

/// `T` many times over, one for each replica: every leaf has a leading dimension, named `replica`.
///
/// A layout that splits `replica` over an axis of the mesh lets every device along it have its own. The
/// leaves' own annotations stay what they are for one replica.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_train::Replicas;
///
/// let four = |weights: Tensor| Replicas::of(&weights, 4);
/// let program = trace(four, TensorType::new(DType::F32, [10, 3]))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[4,10,3]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Replicas<T>(pub T);

impl<L: Leaf, T: Tree<L>> Tree<L> for Replicas<T> {
    type With<M: Leaf> = Replicas<T::With<M>>;

    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Self::With<M> {
        Replicas(path.leading(REPLICA, |path| self.0.map_leaves(path, f)))
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        path.leading(REPLICA, |path| self.0.visit_leaves(path, f));
    }

    fn same_structure<M: Leaf>(&self, other: &Self::With<M>) -> bool {
        self.0.same_structure(&other.0)
    }
}

impl<T: Tree<Tensor>> Replicas<T> {
    /// The same for each of `count` replicas.
    #[track_caller]
    pub fn of(tree: &T, count: usize) -> Self {
        at(Location::caller(), || {
            let all = tree.replace_leaves(&mut |_, t| {
                let mut shape = t.shape();
                shape.insert(0, count);
                t.expand_dims(0).broadcast_to(&shape)
            });
            Replicas(all).placed()
        })
    }

    /// A part of the first dimension for each of `count` replicas, such as a batch of rows; the size is
    /// a multiple of `count`.
    #[track_caller]
    pub fn split(tree: &T, count: usize) -> Self {
        at(Location::caller(), || {
            let mut problems = Vec::new();
            tree.visit_leaves(&mut Path::root(), &mut |path, t| {
                let rows = t.shape().first().copied();
                if count == 0 || !rows.is_some_and(|rows| rows.is_multiple_of(count)) {
                    problems.push(format!("{}{}", prefix(path), t.ty()));
                }
            });
            if !problems.is_empty() {
                let problem = format!(
                    "the first dimension has no equal part for each of {count} replicas: {}",
                    problems.join(", ")
                );
                mistake("Replicas::split", problem, None)
            }
            Replicas(tree.replace_leaves(&mut |_, t| {
                let mut shape = t.shape();
                shape[0] /= count;
                shape.insert(0, count);
                t.reshape(&shape)
            }))
        })
    }

    /// How many there are, which all leaves have to agree on.
    pub(super) fn count(&self, op: &'static str) -> usize {
        let mut found: Vec<(Option<usize>, String)> = Vec::new();
        self.visit_leaves(&mut Path::root(), &mut |path, t| {
            let count = t.shape().first().copied();
            let is_new = |(other, _): &(Option<usize>, String)| *other != count;
            if found.iter().all(is_new) {
                found.push((count, format!("{}{}", prefix(path), t.ty())));
            }
        });
        match found.as_slice() {
            [(Some(count), _)] => *count,
            _ => {
                let leaves: Vec<String> = found.into_iter().map(|(_, leaf)| leaf).collect();
                let problem = format!(
                    "the leaves have not one number of replicas in their first dimension: {}",
                    leaves.join(", ")
                );
                mistake(op, problem, None)
            }
        }
    }

    /// The same values, which lie as the layout says of `replica` where leaves have no annotation: the
    /// names of a container are those of annotated leaves alone. What the functions here return is
    /// placed; use it for what a program returns as it was given, or from a region of its own.
    #[must_use]
    #[track_caller]
    pub fn placed(self) -> Self {
        self.replace_leaves(&mut |path, t| match path.dims() {
            Some(_) => *t,
            None => {
                let mut dims = vec![Dim::Open; t.rank()];
                dims[0] = REPLICA;
                t.shard(&dims)
            }
        })
    }
}

fn prefix(path: &Path) -> String {
    match path.to_string() {
        path if path.is_empty() => path,
        path => format!("`{path}` "),
    }
}

/// The axes over which the layout splits this many replicas.
pub(super) fn replica_axes(op: &'static str, count: usize) -> Axes {
    let resolved = layout().resolve(Role::Activation, &[REPLICA], &[count]);
    match resolved {
        Ok(resolved) => resolved.spec.entries().first().cloned().unwrap_or_default(),
        Err(faults) => {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            mistake(op, faults.join("; "), None)
        }
    }
}

/// `f` as every replica computes it for itself, of what is its own.
///
/// Where the layout splits `replica`, this is a manual region over its axes: devices of different replicas
/// tell each other nothing, whatever `f` is. Along the other axes of the mesh the compiler splits `f`
/// as ever, by the annotations in it. Without such a layout, as on one device, `f` is mapped over the
/// replicas; so the result does not depend on the layout.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace, under};
/// use shardax_sharding::{Layout, Mesh};
/// use shardax_train::{Replicas, on_each_replica};
///
/// let layout = Layout::new(Mesh::new([("pod", 2)])?).shard("replica", "pod");
/// let step = on_each_replica(|(w, x): (Tensor, Tensor)| w + x.mean(0));
/// let types = Replicas((
///     TensorType::new(DType::F32, [2, 8]),
///     TensorType::new(DType::F32, [2, 16, 8]),
/// ));
/// let program = under(&layout, || trace(step, types))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[2,8]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Under GSPMD the mesh can have no other axes of more than one device: XLA does not compile a region
/// over some of them there, which the error says.
///
/// # Errors
///
/// Leaves without a first dimension of one size for all, or of which the axes have no equal parts.
#[track_caller]
pub fn on_each_replica<A: Tree<Tensor>, R: Tree<Tensor>>(
    f: impl Fn(A) -> R,
) -> impl Fn(Replicas<A>) -> Replicas<R> {
    let source = Location::caller();
    move |args| {
        at(source, || {
            let op = "on_each_replica";
            let count = args.count(op);
            let axes = replica_axes(op, count);
            if axes.is_empty() {
                return Replicas(vmap(&f)(args.0));
            }
            let own = PartitionSpec::new([axes.clone()]);
            let block = |args: A| match args.leaves().first().map(|t| t.size(0)) {
                Some(1) => {
                    let one = f(args.replace_leaves(&mut |_, t| t.index(0, 0)));
                    one.replace_leaves(&mut |_, t| t.expand_dims(0))
                }
                _ => vmap(&f)(args),
            };
            let region = manual(axes, own.clone(), own, block);
            Replicas(region(args.placed().0)).placed()
        })
    }
}
