//! What is done with whole trees of arrays: a model, a training state.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::ops::Range;
use std::sync::Arc;

use shardax_core::{Path, TensorType, Tree};
use shardax_sharding::Layout;

use super::intern::{intern_sharding, intern_type};
use super::put::from_blocks;
use super::{Array, Sharding};
use crate::error::{Error, Result};
use crate::lower::LayoutFault;
use crate::runtime::Runtime;

/// A tree of arrays, such as a model while it runs.
pub trait ArrayTree: Tree<Array> {
    /// The same structure with the arrays' types, to compile a function for: `step.compile((state.types(), ...))`.
    fn types(&self) -> Self::With<TensorType> {
        self.map_leaves(&mut Path::root(), &mut |_, array| array.ty().clone())
    }

    /// Every array where a layout wants it, as its annotation, its path and its role say: a state that
    /// was trained under one layout goes on under another.
    ///
    /// Arrays on devices move as [`Array::reshard`] says, with the least communication; those on the
    /// host are put there. Where nothing has to move the result shares memory with this tree. An array
    /// without annotation stays on the host if it is there, and on the layout's mesh if it is there;
    /// else it lies whole on every device of it. What a function wants of such arguments only it knows:
    /// [`Jit::place`](crate::Jit::place) puts them there.
    ///
    /// # Errors
    ///
    /// [`Error::Layout`] with every annotation that the layout cannot follow, before anything moves;
    /// [`Error::Leaf`] when an array was donated or its program failed.
    fn place(&self, layout: &Layout) -> Result<Self> {
        move_leaves(self, layout, |array, runtime, to| {
            array.put_shared(runtime, to)
        })
    }

    /// [`ArrayTree::place`] that frees the memory of each array before the next is moved, so that a
    /// state moves in little more memory than it takes. This tree, and what shares its arrays, cannot be
    /// used again.
    ///
    /// # Errors
    ///
    /// As for [`ArrayTree::place`]. After an [`Error::Leaf`] the arrays before that leaf are gone.
    fn place_donated(self, layout: &Layout) -> Result<Self> {
        move_leaves(&self, layout, |array, runtime, to| {
            array.clone().donated_to(runtime, to)
        })
    }

    /// Every array on the host; waits for them.
    ///
    /// # Errors
    ///
    /// [`Error::Leaf`] when an array was donated or its program failed.
    fn to_host(&self) -> Result<Self> {
        try_replace(self, |_, array| array.to_host())
    }

    /// Waits until every value is there.
    ///
    /// # Errors
    ///
    /// [`Error::Leaf`] with the error of the program that was to compute a value.
    fn wait(&self) -> Result<()> {
        let mut result = Ok(());
        self.visit_leaves(&mut Path::root(), &mut |path, array| {
            if result.is_ok() {
                result = array.wait().map_err(|error| of_leaf(path, array, error));
            }
        });
        result
    }
}

impl<T: Tree<Array>> ArrayTree for T {}

/// A tree of types, such as the description of a model that is not there yet.
pub trait TypeTree: Tree<TensorType> {
    /// The arrays of these types, lying as a layout wants them by their annotations and roles (whole on
    /// every device without one), of blocks that a callback gives: the bytes of the elements within the
    /// bounds of the array at a path, in row-major order.
    ///
    /// The callback is called once for each distinct block of each array, one after the other, and a
    /// block is on its devices before the next is asked for: the host never holds more than one. So a
    /// checkpoint is read into a layout that it was not written under.
    ///
    /// # Errors
    ///
    /// [`Error::Layout`] with every annotation that the layout cannot follow, before the callback is
    /// called; [`Error::BlockCallback`] with the path, the block and the callback's own error.
    fn arrays_from<E>(
        &self,
        layout: &Layout,
        mut block: impl FnMut(&Path, &TensorType, &[Range<usize>]) -> Result<Vec<u8>, E>,
    ) -> Result<Self::With<Array>>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let runtime = Runtime::shared(layout.mesh().device_count())?;
        let mut faults = Vec::new();
        let mut places = Vec::new();
        self.visit_leaves(
            &mut Path::root(),
            &mut |path, ty| match place_of_leaf(layout, path, ty) {
                Ok(place) => places.push(place.unwrap_or_else(|| whole(layout, ty))),
                Err(found) => faults.extend(found),
            },
        );
        no_layout_faults(faults)?;
        let mut places = places.into_iter();
        let mut error = None;
        let arrays = self.map_leaves(&mut Path::root(), &mut |path, ty| {
            let place = places.next().filter(|_| error.is_none());
            let Some(place) = place else {
                // Nobody gets to see what follows an error.
                return Array::scalar(0u8);
            };
            let (what, shared) = (described(path, ty), intern_type(ty.clone()));
            let block = |bounds: &[Range<usize>]| block(path, ty, bounds);
            from_blocks(&runtime, shared, place, &what, block).unwrap_or_else(|fault| {
                error = Some(fault);
                Array::scalar(0u8)
            })
        });
        error.map_or(Ok(arrays), Err)
    }
}

impl<T: Tree<TensorType>> TypeTree for T {}

/// Where a layout puts a leaf at rest; `None` if it says nothing of its dimensions or its path.
fn place_of_leaf(
    layout: &Layout,
    path: &Path,
    ty: &TensorType,
) -> Result<Option<Arc<Sharding>>, Vec<LayoutFault>> {
    let (role, name, dims) = (path.role(), path.to_string(), path.dims());
    if dims.is_none() && layout.overridden(role, &name).is_none() {
        return Ok(None);
    }
    let fault = |fault| LayoutFault::of_leaf(described(path, ty), path, fault);
    match layout.resolve_leaf(role, &name, dims.as_deref(), &ty.shape) {
        Ok(resolved) => {
            let sharding = Sharding::new(layout.mesh().clone(), resolved.spec);
            Ok(Some(intern_sharding(sharding)))
        }
        Err(faults) => Err(faults.into_iter().map(fault).collect()),
    }
}

/// Whole on every device of a layout.
fn whole(layout: &Layout, ty: &TensorType) -> Arc<Sharding> {
    intern_sharding(Sharding::replicated(layout.mesh().clone(), ty.rank()))
}

fn no_layout_faults(faults: Vec<LayoutFault>) -> Result<()> {
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Error::Layout { faults }),
    }
}

/// Every array where a layout wants it. An array that stands at several places is moved once.
fn move_leaves<T: Tree<Array>>(
    tree: &T,
    layout: &Layout,
    mut to: impl FnMut(&Array, &Runtime, &Arc<Sharding>) -> Result<Array>,
) -> Result<T> {
    let (mut places, mut faults, mut client) = (Vec::new(), Vec::new(), None);
    tree.visit_leaves(&mut Path::root(), &mut |path, array| {
        client = client.or(array.client());
        let elsewhere = |sharding: &&Sharding| sharding.mesh() != layout.mesh();
        match place_of_leaf(layout, path, array.ty()) {
            Ok(None) => places.push(
                array
                    .sharding()
                    .filter(elsewhere)
                    .map(|_| whole(layout, array.ty())),
            ),
            Ok(place) => places.push(place),
            Err(found) => faults.extend(found),
        }
    });
    no_layout_faults(faults)?;
    let devices = layout.mesh().device_count();
    let runtime = Runtime::for_array(client, devices)?;
    let mut moved: HashMap<(*const (), Arc<Sharding>), Array> = HashMap::new();
    let mut places = places.into_iter();
    try_replace(tree, |_, array| {
        let Some(place) = places.next().flatten() else {
            return Ok(array.clone());
        };
        let key = (array.identity(), place);
        if let Some(known) = moved.get(&key) {
            return Ok(known.clone());
        }
        let result = to(array, &runtime, &key.1)?;
        moved.insert(key, result.clone());
        Ok(result)
    })
}

/// Other leaves in a tree, or the first error, with its path.
pub(crate) fn try_replace<T: Tree<Array>>(
    tree: &T,
    mut f: impl FnMut(&Path, &Array) -> Result<Array>,
) -> Result<T> {
    let mut error = None;
    let replaced = tree.replace_leaves(&mut |path, array| {
        if error.is_some() {
            return array.clone();
        }
        f(path, array).unwrap_or_else(|fault| {
            error = Some(of_leaf(path, array, fault));
            array.clone()
        })
    });
    error.map_or(Ok(replaced), Err)
}

fn of_leaf(path: &Path, array: &Array, error: Error) -> Error {
    Error::Leaf {
        what: described(path, array.ty()),
        source: Box::new(error),
    }
}

/// `` `blocks.mlp.up` f32[64,256]``
fn described(path: &Path, ty: &TensorType) -> String {
    match path.to_string().as_str() {
        "" => format!("the array {ty}"),
        path => format!("`{path}` {ty}"),
    }
}
