//! Layers: small modules whose forward pass reads like its formula.
//!
//! Their fields are annotated with the logical names `embed`, `mlp` and `vocab`; values between them
//! follow from these. Weights are initialized from a normal distribution of standard deviation 0.02, as
//! GPT-2's are, and biases by 0.

mod attention;
mod embedding;
mod init;
mod linear;
mod mlp;
mod norm;

pub use attention::causal_attention;
pub use embedding::Embedding;
pub use linear::Linear;
pub use mlp::Mlp;
pub use norm::LayerNorm;
