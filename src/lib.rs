//! Placeholder.

pub use shardax_xla as xla;
