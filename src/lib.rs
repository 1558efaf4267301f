//! Shardax: write the model for one device, run it under any sharding layout.
//!
//! A model is a struct that derives [`Module`], with [`shard`] annotations that name the dimensions of its
//! arrays. A [`Layout`] says which axes of a [`Mesh`] of devices split which names, and [`jit`] compiles a
//! function for it. The [`prelude`] has what most programs need, [`nn`] the parts of networks, [`train`] what
//! training adds, [`run`] the host's side of a training run, [`xla`] the runtime and the reports on compiled
//! programs, and [`ir`] what a program is, for those who read or write one.
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
pub use shardax_nn as nn;
pub use shardax_run as run;
pub use shardax_sharding::{
    Chip, Cluster, Layout, LayoutDiff, Link, Mesh, Partitioner, Preset, ReductionType, StoredArray,
    Strategy, picture,
};
pub use shardax_train as train;
pub use shardax_xla as xla;
pub use shardax_xla::{
    Advice, AheadOptions, AheadProgram, Array, ArrayTree, CheckOptions, Jit, LayoutCheck,
    LayoutRow, LayoutTable, Program, Reshard, Runtime, Shard, Sharding, Tolerance, TypeTree,
    Verdict, check_function, check_layouts, jit, set_advice_hook, silence_advice,
};

/// What most programs import.
pub mod prelude {
    pub use crate::random::Key;
    pub use crate::{
        Array, ArrayTree, DType, Dim, Layout, Leaf, Mesh, Module, PartitionSpec, Partitioner, Path,
        Preset, Stack, Strategy, Tensor, TensorType, Tree, TypeTree, all_gather,
        all_gather_invariant, all_to_all, axis_index, axis_size, broadcast_from, concatenate, cond,
        einsum, fori_loop, grad, jit, jvp, manual, nn, pmax, pmean, ppermute, psum, pvary,
        reduce_scatter, remat, s, scan, scope, shard, stack, switch, tree_combine, tree_map,
        tree_zip, value_and_grad, vjp, vmap, while_loop,
    };
}

/// The programs in the README and in the guide compile, and what they assert holds.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/clusters.md")]
    struct Clusters;
    #[doc = include_str!("../docs/guide/tensors.md")]
    struct Tensors;
    #[doc = include_str!("../docs/guide/models.md")]
    struct Models;
    #[doc = include_str!("../docs/guide/from_jax_or_pytorch.md")]
    struct FromJaxOrPyTorch;
    #[doc = include_str!("../docs/guide/transforms.md")]
    struct Transforms;
    #[doc = include_str!("../docs/guide/control_flow.md")]
    struct ControlFlow;
    #[doc = include_str!("../docs/guide/randomness.md")]
    struct Randomness;
    #[doc = include_str!("../docs/guide/arrays.md")]
    struct Arrays;
    #[doc = include_str!("../docs/guide/layouts.md")]
    struct Layouts;
    #[doc = include_str!("../docs/guide/manual.md")]
    struct Manual;
    #[doc = include_str!("../docs/guide/debugging.md")]
    struct Debugging;
    #[doc = include_str!("../docs/guide/collectives.md")]
    struct OwnCollectives;
    #[doc = include_str!("../docs/collectives.md")]
    struct Collectives;
}
