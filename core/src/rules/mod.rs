//! The rules of primitives.
//!
//! `shape`, `jvp`, `transpose`, `batch` and `split` each have one match over all of them; what takes
//! more than a few lines there stands in a file of its family.

pub(crate) mod batch;
mod collective;
mod conv;
mod elementwise;
mod gather;
pub(crate) mod jvp;
mod linalg;
mod order;
mod product;
pub(crate) mod shape;
pub mod split;
pub(crate) mod transpose;
mod window;
