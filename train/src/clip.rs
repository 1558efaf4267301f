//! Keeping gradients from growing beyond a bound.

use std::panic::Location;

use shardax_core::{DType, Tensor, Tree, at, nn};

/// The square root of the sum of the squares of all elements of all leaves, in f32, without overflow.
///
/// Zero for a tree without leaves.
#[track_caller]
pub fn global_norm<T: Tree<Tensor>>(tree: &T) -> Tensor {
    at(Location::caller(), || {
        nn::joint_norm(&tree.leaves(), DType::F32)
    })
}

/// Scales all gradients by one factor so that their [`global_norm`] is at most `max_norm`; returns
/// them and the norm before.
///
/// Gradients of a smaller norm come back as they are. (Pascanu, Mikolov, Bengio: "On the difficulty
/// of training recurrent neural networks", 2013.)
#[track_caller]
pub fn clip_by_global_norm<T: Tree<Tensor>>(gradients: T, max_norm: f64) -> (T, Tensor) {
    let norm = global_norm(&gradients);
    let scale = max_norm / norm.maximum(max_norm);
    let clipped = at(Location::caller(), || {
        gradients.replace_leaves(&mut |_, g| *g * scale.cast(g.dtype()))
    });
    (clipped, norm)
}
