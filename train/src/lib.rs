//! What training a model needs beside the framework: layers, losses, optimizers, precision, data,
//! and how a run is shown and recorded.
//!
//! Everything that computes is plain functions over [`Tensor`](shardax_core::Tensor)s and trees of
//! them, so all of it differentiates, shards and compiles with the rest of a program.

#![forbid(unsafe_code)]

mod accumulate;
mod clip;
pub mod collectives;
mod data;
mod error;
mod hash;
mod layers;
mod local_sgd;
mod log;
mod loss;
mod meter;
mod optimizer;
mod precision;
mod progress;
mod run_ahead;
mod trees;

pub use accumulate::{accumulate, accumulate_weighted};
pub use clip::{clip_by_global_norm, global_norm};
pub use data::Text;
pub use error::{Error, Result};
pub use layers::{Embedding, LayerNorm, Linear, Mlp, causal_attention};
pub use local_sgd::{DiLoCo, Outer, REPLICA, Replicas, on_each_replica};
pub use log::Log;
pub use loss::cross_entropy;
pub use meter::{Meter, StepRecord};
pub use optimizer::{AdamW, Moments};
pub use precision::Precision;
pub use progress::Progress;
pub use run_ahead::run_ahead;
