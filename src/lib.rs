//! Shardax: write the model for one device, run it under any sharding layout.
//!
//! See the [`prelude`] for what a model needs.

#![forbid(unsafe_code)]

pub use shardax_core::*;
pub use shardax_macros::{Module, shard};
pub use shardax_sharding::{Layout, Mesh, Partitioner, Preset, picture};
pub use shardax_train as train;
pub use shardax_xla as xla;
pub use shardax_xla::{Array, Jit, Program, Runtime, Sharding, jit};

/// What most programs import.
pub mod prelude {
    pub use crate::random::Key;
    pub use crate::{
        Array, DType, Layout, Leaf, Mesh, Module, Path, Stack, Tensor, TensorType, Tree,
        concatenate, einsum, grad, jit, remat, scan, scope, shard, value_and_grad,
    };
}
