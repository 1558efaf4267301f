//! Arguments: which program they fit, and where their shards are.

use std::sync::Arc;

use shardax_core::{Leaf, On, Tensor, TensorType, Tree};
use shardax_pjrt::Buffer;

use super::program::Specialized;
use crate::array::{Array, Sharding};
use crate::compiled::Input;

/// What a program is compiled for, of one argument.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    pub ty: Arc<TensorType>,
    /// Where a device array lies; `None` for one on the host.
    pub sharding: Option<Arc<Sharding>>,
}

impl<A: Tree<Tensor>, R: Tree<Tensor>> Specialized<A, R> {
    /// Whether arrays have the types and structure that the program was compiled for. An argument
    /// without annotation also lies where that of the first call did.
    pub(super) fn accepts(&self, args: &On<A, Array>, leaves: &[&Array]) -> bool {
        let inputs = &self.program.inner.inputs;
        // Types and shardings are interned: equal ones have one address.
        let fits = |leaf: &Array, input: &Input| {
            Arc::ptr_eq(leaf.shared_type(), &input.ty)
                && match leaf.shared_sharding() {
                    Some(sharding) if input.dims.is_none() => {
                        Arc::ptr_eq(sharding, &input.sharding)
                    }
                    _ => true,
                }
        };
        leaves.len() == inputs.len()
            && leaves
                .iter()
                .zip(inputs)
                .all(|(leaf, input)| fits(leaf, input))
            && args.same_structure::<Tensor>(&self.arguments)
    }

    /// Whether types are those that the program was compiled for.
    pub(super) fn accepts_types<M: Leaf>(&self, args: &On<A, M>, types: &[&TensorType]) -> bool {
        let inputs = &self.program.inner.inputs;
        types.len() == inputs.len()
            && types
                .iter()
                .zip(inputs)
                .all(|(ty, input)| **ty == *input.ty)
            && args.same_structure::<Tensor>(&self.arguments)
    }
}

/// Arguments that were put on devices for one call.
#[derive(Default)]
pub(super) struct Placed {
    arrays: Vec<(usize, Array)>,
}

impl Placed {
    pub(super) fn put(&mut self, input: usize, array: Array) {
        self.arrays.push((input, array));
    }

    /// The shard of an argument on a device.
    pub(super) fn shard<'a>(
        &'a self,
        leaves: &[&'a Array],
        input: usize,
        device: usize,
    ) -> &'a Buffer {
        if self.arrays.is_empty() {
            return &leaves[input].buffers()[device];
        }
        match self.arrays.binary_search_by_key(&input, |(i, _)| *i) {
            Ok(found) => &self.arrays[found].1.buffers()[device],
            Err(_) => &leaves[input].buffers()[device],
        }
    }
}
