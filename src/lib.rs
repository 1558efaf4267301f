//! Shardax: write the model for one device, run it under any sharding layout.
//!
//! A model is a struct that derives [`Module`], with [`shard`] annotations that name the dimensions of its
//! arrays. A [`Layout`] says which axes of a [`Mesh`] of devices split which names, and [`jit`] compiles a
//! function for it. The [`prelude`] has what most programs need, [`train`] what training adds, [`xla`] the
//! runtime and the reports on compiled programs.
//!
//! ```no_run
//! use shardax::prelude::*;
//!
//! #[shard]
//! fn energy(#[shard(batch, _)] x: Tensor) -> Tensor {
//!     x.square().mean(..)
//! }
//!
//! let layout = Layout::ddp(Mesh::new([("data", 8)])?)?;
//! let energy = jit(energy).layout(&layout);
//! let x = Array::from_slice(&[2f32; 16 * 4], [16, 4])?;
//! assert_eq!(energy.call(x)?.item::<f32>()?, 4.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub use shardax_core::*;
pub use shardax_macros::{Module, shard};
pub use shardax_sharding::{Layout, Mesh, Partitioner, Preset, picture};
pub use shardax_train as train;
pub use shardax_xla as xla;
pub use shardax_xla::{Array, ArrayTree, Jit, Program, Runtime, Sharding, jit};

/// What most programs import.
pub mod prelude {
    pub use crate::random::Key;
    pub use crate::{
        Array, ArrayTree, DType, Dim, Layout, Leaf, Mesh, Module, Partitioner, Path, Preset, Stack,
        Tensor, TensorType, Tree, concatenate, einsum, grad, jit, jvp, remat, scan, scope, shard,
        value_and_grad, vjp,
    };
}

/// The programs in the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
