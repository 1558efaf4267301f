//! What training a model needs beside the framework: layers, losses, optimizers, precision, collectives of one's own.
//!
//! Everything is plain functions over [`Tensor`](shardax_core::Tensor)s and trees of them, so all of it
//! differentiates, shards and compiles with the rest of a program. What is done on the host, around the steps, is in
//! `shardax-run`.

#![forbid(unsafe_code)]

mod accumulate;
mod clip;
pub mod collectives;
mod layers;
mod local_sgd;
mod loss;
mod optimizer;
mod precision;
mod schedule;
mod trees;

pub use accumulate::{accumulate, accumulate_weighted};
pub use clip::{clip_by_global_norm, global_norm};
pub use layers::{Embedding, LayerNorm, Linear, Mlp, causal_attention};
pub use local_sgd::{DiLoCo, Outer, REPLICA, Replicas, on_each_replica};
pub use loss::cross_entropy;
pub use optimizer::{AdamW, Moments};
pub use precision::Precision;
pub use schedule::{Decay, Schedule};
