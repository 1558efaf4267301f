//! What every replica has of its own.

use shardax_core::{Dim, Leaf, Path, Tree};

/// The logical name of the leading dimension of [`Replicas`].
pub const REPLICA: Dim = Dim::Logical("replica");

/// `T` many times over, one for each replica: every leaf has a leading dimension, named `replica`.
///
/// A layout that splits `replica` over an axis of the mesh lets every device along it have its own. The
/// leaves' own annotations stay what they are for one replica.
///
/// ```
/// use shardax_core::{DType, Path, Tensor, TensorType, Tree};
/// use shardax_train::Replicas;
///
/// let weights = Replicas(vec![TensorType::new(DType::F32, [4, 10, 3])]);
/// assert_eq!(weights.leaves().len(), 1);
/// # let _: Replicas<Vec<TensorType>> = weights.map_leaves(&mut Path::root(), &mut |_, ty| ty.clone());
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
