//! The crate against a reference interpreter and finite differences.

mod batching;
mod blocks;
mod control;
mod custom;
mod derivatives;
mod elementwise;
mod errors;
mod indexing;
mod linalg;
mod loops;
mod networks;
mod ordering;
mod properties;
mod random;
mod recursion;
mod scale;
mod snapshots;
mod sources;
mod support;
mod values;
mod windows;

use shardax_interpreter as interpreter;
