//! Repeated layers.

use std::panic::Location;

use shardax_sharding::{Dim, Role};

use crate::dtype::DType;
use crate::lax;
use crate::tensor::{Tensor, leaf};
use crate::transform::scan;
use crate::tree::{Leaf, Path, Tree};
use crate::types::TensorType;

/// The logical name of a stack's leading dimension.
pub const LAYERS: Dim = Dim::Logical("layers");

/// `B` many times over: every leaf has a leading dimension, named `layers`.
///
/// A loop over a stack compiles its body once, whatever the number of layers. The leaves' own
/// annotations stay what they are for one layer.
///
/// ```
/// use shardax_core::{DType, Stack, Tensor, TensorType, trace};
///
/// let program = trace(
///     |layers: Stack<Tensor>, x: Tensor| layers.scan(x, |x: Tensor, w: Tensor| x.dot(w).tanh()),
///     (Stack(TensorType::new(DType::F32, [12, 4, 4])), TensorType::new(DType::F32, [2, 4])),
/// )?;
/// assert_eq!(program.graph.equations().len(), 1);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stack<B>(pub B);

impl<L: Leaf, B: Tree<L>> Tree<L> for Stack<B> {
    type With<M: Leaf> = Stack<B::With<M>>;

    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Self::With<M> {
        Stack(path.leading(LAYERS, |path| self.0.map_leaves(path, f)))
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        path.leading(LAYERS, |path| self.0.visit_leaves(path, f));
    }

    fn same_structure<M: Leaf>(&self, other: &Self::With<M>) -> bool {
        self.0.same_structure(&other.0)
    }
}

impl<B: Tree<Tensor>> Stack<B> {
    /// Runs `f(h, layer) -> h` through the layers.
    ///
    /// Each layer's parameters are gathered for use inside the loop, and their gradients reduced
    /// there: no more than one layer is ever whole on a device.
    #[track_caller]
    pub fn scan<H: Tree<Tensor>>(self, h: H, f: impl FnOnce(H, B) -> H) -> H {
        let source = Location::caller();
        let (h, ()) = scan(h, self.0, |h, layer: B| {
            let in_use = |path: &mut Path, t: &Tensor| leaf(*t, path, Role::ParameterAtUse, source);
            let layer = layer.replace_leaves(&mut { in_use });
            (f(h, layer), ())
        });
        h
    }

    /// A stack whose layer `i` is what `f(i)` makes, `i` being an `i32` scalar of the program.
    #[track_caller]
    pub fn init(layers: usize, f: impl FnOnce(Tensor) -> B) -> Self {
        let indices = lax::iota(TensorType::new(DType::I32, [layers]), 0);
        let ((), layers) = scan((), indices, |(), i: Tensor| ((), f(i)));
        Stack(layers)
    }
}
