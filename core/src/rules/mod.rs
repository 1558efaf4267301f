//! The rules of primitives.
//!
//! `shape`, `jvp`, `transpose` and `batch` each have one match over all of them; what takes more
//! than a few lines there stands in a file of its family.

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
pub(crate) mod transpose;
mod window;
