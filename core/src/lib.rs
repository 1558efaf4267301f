//! Tracing, the graph, its operations and transforms.
//!
//! A program is written as Rust functions over [`Tensor`]s. [`trace`] runs such a function on
//! handles and returns the [`Graph`] that it wrote; transforms like [`grad`] and [`scan`] work on
//! graphs. Reading order: `tree.rs` (what arguments are), `op.rs` and `graph/` (what a program is),
//! `trace.rs` (how one is written), `tensor/` (what users write it with), `rules/` (one file a
//! rule), `transform/` (one file a construct).

#![forbid(unsafe_code)]

mod dtype;
mod error;
mod function;
mod graph;
mod lax;
mod literal;
mod op;
pub mod random;
mod rules;
mod simplify;
mod stack;
mod tensor;
mod trace;
mod transform;
mod tree;
mod types;

pub use dtype::DType;
pub use error::{Error, ErrorKind, Result, Source};
pub use function::{Function, On, Traced, trace, trace_like};
pub use graph::{Equation, Graph, Scope, ValueId, Values};
pub use literal::{Element, Literal, Number};
pub use op::{Binary, Comparison, Constraint, Dims, DotDims, Op, Reducer, Remat, Scan, Unary};
pub use shardax_sharding::{Dim, PartitionSpec, Role};
pub use stack::{LAYERS, Stack};
pub use tensor::{Axes, Operand, Tensor, concatenate, einsum};
pub use trace::{BACKWARD, at, mistake, scope};
pub use transform::{Objective, grad, jvp, remat, scan, scan_reverse, value_and_grad, vjp};
pub use tree::{Leaf, Path, Tree};
pub use types::{Shape, TensorType};
