//! [`Tensor`]: the handle that model code computes with.
//!
//! A tensor is a number that names a value of the graph being traced; it is `Copy` and has no
//! data. Its methods are the numpy level: they broadcast, promote and check, then emit primitives.

mod arithmetic;
mod complex;
mod conv;
mod create;
mod cumulative;
mod determinant;
mod einsum;
mod fft;
mod index;
mod linalg;
mod look;
mod masked;
mod norm;
mod order;
mod pool;
mod reduce;
mod shape;
mod slope;
mod special;

use std::panic::Location;

use shardax_sharding::{Dim, Role};

use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::graph::ValueId;
use crate::lax;
use crate::op::{Constraint, Op};
use crate::rules::shape::annotation_help;
use crate::trace::{FrameId, emit1, fail_at, look_at_type, type_of};
use crate::tree::{Declaration, Leaf, Path};
use crate::types::{Shape, TensorType};

pub use arithmetic::{IntoOperand, Operand};
pub use conv::{ConvOptions, Padding};
pub use cumulative::associative_scan;
pub use einsum::{einsum, einsum_as};
pub use index::{At, Index};
pub use norm::joint_norm;
pub use order::{Unique, sort_by_key};
pub use pool::Pool;
pub use reduce::Axes;
pub use shape::{INFER, IntoShape, concatenate, stack};
pub(crate) use slope::{scaled, with_slope, with_slopes};

/// A value of the program being traced.
///
/// Operators and methods append to the program. A mistake (shapes that do not fit) ends the trace
/// and is returned by the `jit` or [`trace`](crate::trace) that runs it, with the line it is on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tensor {
    pub(crate) frame: FrameId,
    pub(crate) value: ValueId,
}

impl Leaf for Tensor {}

impl Tensor {
    pub(crate) fn new(frame: FrameId, value: ValueId) -> Self {
        Tensor { frame, value }
    }

    /// Element type and shape.
    #[track_caller]
    pub fn ty(self) -> TensorType {
        type_of(self, "ty", Location::caller())
    }

    /// Dimension sizes.
    #[track_caller]
    pub fn shape(self) -> Shape {
        look_at_type(self, "ty", Location::caller(), |ty| ty.shape.clone())
    }

    /// The element type.
    #[track_caller]
    pub fn dtype(self) -> DType {
        look_at_type(self, "ty", Location::caller(), |ty| ty.dtype)
    }

    /// The number of dimensions.
    #[track_caller]
    pub fn rank(self) -> usize {
        look_at_type(self, "ty", Location::caller(), TensorType::rank)
    }

    /// The size of one dimension; a negative axis counts from the last.
    #[track_caller]
    pub fn size(self, axis: isize) -> usize {
        let ty = self.ty();
        ty.shape[shape::axis("size", axis, &ty)]
    }

    /// States how the value lies on the mesh, one name for each dimension; `#[shard]` writes this.
    #[track_caller]
    pub fn shard(self, dims: &[Dim]) -> Tensor {
        let constraint = Constraint {
            dims: dims.iter().copied().collect(),
            role: Role::Activation,
            leaf: None,
            leaves_batch_open: false,
        };
        lax::shard(self, constraint)
    }

    /// States how the leaf of a tree at `path` lies on the mesh as a parameter, a gradient or optimizer
    /// state: what a layout's rules for `role` say of the dimensions that the leaf is annotated with. The
    /// same value, unchanged, where it has no annotation.
    ///
    /// Optimizers state so where an update is computed. A layout that splits only state makes of it that
    /// each device updates a shard, and of the results that parameters are gathered.
    ///
    /// ```
    /// use shardax_core::{DType, Path, Role, Tensor, TensorType, Tree, trace};
    ///
    /// fn in_shards<P: Tree<Tensor>>(parameters: P) -> P {
    ///     parameters.replace_leaves(&mut |path, leaf| leaf.shard_leaf(path, Role::State))
    /// }
    /// let program = trace(in_shards::<Tensor>, TensorType::new(DType::F32, [3]))?;
    /// assert_eq!(program.graph.equations().len(), 0);
    /// # Ok::<(), shardax_core::Error>(())
    /// ```
    #[track_caller]
    pub fn shard_leaf(self, path: &Path, role: Role) -> Tensor {
        leaf(self, path, role, Location::caller())
    }

    /// The same value, which a [`Policy`](crate::Policy) of rematerialization knows by this name.
    #[track_caller]
    pub fn named(self, name: &str) -> Tensor {
        emit1(Op::Name(name.into()), &[self], Location::caller())
    }

    /// The same value, through which no derivative passes.
    #[track_caller]
    pub fn stop_gradient(self) -> Tensor {
        emit1(Op::StopGradient(None), &[self], Location::caller())
    }
}

/// States where the leaf of a tree lies, if it is annotated.
pub(crate) fn leaf(x: Tensor, path: &Path, role: Role, source: Source) -> Tensor {
    let Some(dims) = path.dims() else { return x };
    check_names(x, path, &dims, source);
    let constraint = Constraint {
        dims: dims.into_iter().collect(),
        role,
        leaf: Some(path.to_string().into()),
        leaves_batch_open: false,
    };
    emit1(Op::Shard(Box::new(constraint)), &[x], source)
}

/// Refuses an annotation of a field that has a wrong number of names, and says where it is written.
fn check_names(x: Tensor, path: &Path, dims: &[Dim], source: Source) {
    let Some(declaration) = path.declaration() else {
        return;
    };
    let ty = type_of(x, "shard", source);
    if dims.len() == ty.rank() {
        return;
    }
    let Declaration {
        module,
        field,
        source: at,
    } = declaration;
    let names: Vec<String> = dims.iter().map(Dim::to_string).collect();
    let problem = format!(
        "the annotation ({}) of field `{field}` of `{module}` at {}:{}:{} has {} {}, the leaf `{path}` {ty} has {} \
         dimensions",
        names.join(", "),
        at.file(),
        at.line(),
        at.column(),
        names.len(),
        if names.len() == 1 { "name" } else { "names" },
        ty.rank()
    );
    let help = annotation_help(dims.len(), ty.rank());
    fail_at(
        ErrorKind::Shape {
            op: "shard",
            problem,
        },
        Some(help),
        source,
    )
}

/// `Tensor(#3 of FrameId(0))`: a handle can outlive its trace, and then has no type to show.
impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor(#{} of {:?})", self.value.0, self.frame)
    }
}
