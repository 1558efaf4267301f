//! In which element type a model is kept and in which it computes.

use std::panic::Location;

use shardax_core::{DType, Tensor, Tree, at};

/// Mixed precision: parameters are kept in f32, where small updates add up, and cast to another
/// type where they are used.
///
/// Losses, the statistics of [norms](shardax_core::nn::layer_norm), softmax and the optimizer work in f32
/// whatever this says. In which type gradients are summed across devices is said by the layout, and is f32 unless
/// it is changed there. (Micikevicius et al.: "Mixed precision training", 2018.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// The element type of weights and activations in the model.
    pub compute: DType,
}

impl Precision {
    /// Everything in f32.
    pub const F32: Self = Precision {
        compute: DType::F32,
    };

    /// Parameters in f32, computation in bf16.
    pub const BF16: Self = Precision {
        compute: DType::BF16,
    };

    /// The parameters as the model computes with them. Leaves that are not floating point stay.
    ///
    /// The cast is differentiated with the model: gradients have the parameters' own types.
    #[track_caller]
    pub fn cast<T: Tree<Tensor>>(self, parameters: T) -> T {
        at(Location::caller(), || {
            parameters.replace_leaves(&mut |_, leaf| match leaf.dtype().is_float() {
                true => leaf.cast(self.compute),
                false => *leaf,
            })
        })
    }
}
