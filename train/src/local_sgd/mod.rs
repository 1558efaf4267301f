//! Training in which replicas of a model go their own way for many steps before they agree again.
//!
//! Data parallelism sums gradients in every step, which needs a fast network. Here each replica takes `H`
//! steps of its own optimizer without a word to the others ([`on_each_replica`]), and only then is the
//! mean of what they have learned taken, as a gradient, by an outer optimizer ([`DiLoCo`]): `H` times
//! less communication. The model and its step are those of a single replica, annotated as ever, and
//! may be split inside of a replica in any way; a layout says by `shard("replica", axis)` over which
//! axis the replicas lie.
//!
//! McMahan et al.: "Communication-efficient learning of deep networks from decentralized data", 2017;
//! Stich: "Local SGD converges fast and communicates little", 2019; Douillard et al.: "DiLoCo:
//! distributed low-communication training of language models", 2023; for outer updates that come late,
//! Douillard et al.: "Streaming DiLoCo with overlapping communication", 2025.

mod outer;
mod replicas;

pub use outer::{DiLoCo, Outer};
pub use replicas::{REPLICA, Replicas, on_each_replica};
