//! What training a model needs beside the framework: optimizers, precision, accumulation, collectives of one's own.
//!
//! Everything is plain functions over [`Tensor`](shardax_core::Tensor)s and trees of them, so all of it
//! differentiates, shards and compiles with the rest of a program. What is done on the host, around the steps, is in
//! `shardax-run`.

#![forbid(unsafe_code)]

mod accumulate;
mod clip;
pub mod collectives;
mod local_sgd;
mod optimizer;
mod precision;
mod schedule;
mod trees;

pub use accumulate::{accumulate, accumulate_weighted};
pub use clip::{clip_by_global_norm, global_norm};
pub use local_sgd::{DiLoCo, Outer, REPLICA, Replicas, on_each_replica};
pub use optimizer::{AdamW, Moments};
pub use precision::Precision;
pub use schedule::{Decay, Schedule};
