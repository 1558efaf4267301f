//! Meshes, partition specs and layouts: plain data and arithmetic.
//!
//! Nothing here traces a program or talks to XLA. A [`Mesh`] names the axes of a grid of devices, a
//! [`PartitionSpec`] says which axes split each dimension of one array, and a [`Layout`] turns the
//! *logical* dimension names that a model is annotated with into such specs.
//!
//! ```
//! use shardax_sharding::{Dim, Layout, Mesh, Role};
//!
//! let mesh: Mesh = "data=2,model=4".parse()?;
//! let layout = Layout::new(mesh).shard("batch", "data").shard("mlp", "model");
//!
//! let up = [Dim::Logical("embed"), Dim::Logical("mlp")];
//! let resolved = layout.resolve(Role::Parameter, &up, &[64, 256]).unwrap();
//! assert_eq!(resolved.spec.to_string(), r#"P(_, "model")"#);
//! assert_eq!(resolved.spec.shard_shape(layout.mesh(), &[64, 256]), Ok(vec![64, 64]));
//! # Ok::<(), shardax_sharding::Error>(())
//! ```

#![forbid(unsafe_code)]

mod axes;
mod blocks;
mod cluster;
mod diff;
mod dim;
mod error;
mod exchange;
mod fault;
mod file;
mod groups;
mod layout;
mod mesh;
mod message;
mod overrides;
mod part;
mod picture;
mod preset;
mod print;
mod reduction;
mod resolve;
mod rule;
mod spec;
mod strategy;

pub use axes::Axes;
pub use blocks::Blocks;
pub use cluster::{Chip, Cluster, Link};
pub use diff::{ArrayDiff, LayoutDiff, RuleDiff, StoredArray};
pub use dim::{Dim, interned};
pub use error::{ArrayFault, ClusterFault, Error, FileFault, MeshFault, RuleConflict, RuleFault};
pub use exchange::{Exchange, Piece};
pub use fault::{Dimension, Note, SpecFault, did_you_mean};
pub use layout::{Layout, Partitioner};
pub use mesh::{Mesh, MeshAxis};
pub use part::AxisPart;
pub use picture::picture;
pub use preset::Preset;
pub use reduction::ReductionType;
pub use resolve::{Resolved, Role};
pub use spec::PartitionSpec;
pub use strategy::Strategy;
