//! Neural networks: modules, and the functions they are made of.
//!
//! A module holds parameters and their names, so that it is worth a struct; everything else is a function. Functions
//! are those of [`shardax_core::nn`], and all take what they compute on first, then parameters, then options. A
//! module's `forward` takes what it computes on and options.
//!
//! Modules are structs over their leaf ([`Module`](shardax_macros::Module)). Their fields are annotated with the
//! logical names `embed`, `mlp`, `heads`, `kv_heads`, `head_dim`, `vocab` and `channels`; [`Linear`] and [`Conv`] are
//! told their names where they are made. Parameters are in f32. Weights begin as normal numbers of mean 0 and a
//! standard deviation of one over the root of how many inputs an output sums, so that variance passes through
//! (LeCun, Bottou, Orr, Müller: "Efficient backprop", 1998); embeddings with 0.02, as GPT-2's; gains as 1, and biases
//! and offsets as 0.

#![forbid(unsafe_code)]

mod attention;
mod batch_norm;
mod conv;
mod embedding;
mod init;
mod linear;
mod mlp;
mod norm;

pub use attention::Attention;
pub use batch_norm::{BatchNorm, RunningStatistics};
pub use conv::Conv;
pub use embedding::Embedding;
pub use linear::Linear;
pub use mlp::Mlp;
pub use norm::{LayerNorm, RmsNorm};
pub use shardax_core::nn::*;
