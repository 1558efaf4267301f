//! The feed-forward part of a transformer block.

use shardax_core::random::Key;
use shardax_core::{Dim, Tensor};
use shardax_macros::Module;

use super::linear::Linear;

const EMBED: Dim = Dim::Logical("embed");
const MLP: Dim = Dim::Logical("mlp");

/// Two linear maps with the tanh form of GELU between them.
///
/// ```
/// use shardax_core::random::Key;
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_nn::Mlp;
///
/// let x = TensorType::new(DType::F32, [4, 32, 64]);
/// let mlp = |x: Tensor| Mlp::init(Key::from_seed(0), 64, 256).forward(x);
/// assert_eq!(trace(mlp, x.clone())?.output_types()[0], x);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct Mlp<L = Tensor> {
    /// From `embed` to `mlp`: under tensor parallelism each device has some of the hidden features.
    pub up: Linear<L>,
    /// From `mlp` to `embed`: the devices' parts are summed.
    pub down: Linear<L>,
}

impl Mlp {
    /// Maps with biases, from `embed` to `hidden` features and back.
    #[track_caller]
    pub fn init(key: Key, embed: usize, hidden: usize) -> Self {
        Mlp {
            up: Linear::init(key.fold_in(0), [embed, hidden], &[EMBED, MLP]).with_bias(),
            down: Linear::init(key.fold_in(1), [hidden, embed], &[MLP, EMBED]).with_bias(),
        }
    }

    /// `gelu(x U + a) D + b` over the last dimension.
    #[track_caller]
    pub fn forward(&self, x: Tensor) -> Tensor {
        self.down.forward(self.up.forward(x).gelu())
    }
}
