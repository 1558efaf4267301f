//! Tracing, the graph, its operations and transforms.
//!
//! A program is written as Rust functions over [`Tensor`]s. [`trace`] runs such a function on
//! handles and returns the [`Graph`](ir::Graph) that it wrote; transforms like [`grad`] and [`scan`] work on
//! graphs. Reading order: `tree.rs` (what arguments are), `op.rs` and `graph/` (what a program is),
//! `trace.rs` (how one is written), `tensor/` (what users write it with), `rules/` (one file a
//! rule), `transform/` (one file a construct).

#![forbid(unsafe_code)]

mod blocks;
mod catalogue;
mod collective;
mod context;
#[doc(hidden)]
pub mod derived;
mod dtype;
mod error;
mod expand;
mod float8;
mod function;
mod graph;
pub mod ir;
mod lax;
mod literal;
pub mod nn;
mod op;
pub mod random;
mod rules;
mod simplify;
mod stack;
mod tensor;
mod trace;
mod transform;
mod tree;
mod tree_map;
mod types;
mod vary;
mod varying;

pub use collective::{
    all_gather, all_gather_invariant, all_to_all, assume_invariant, axis_index, axis_size,
    broadcast_from, pmax, pmean, pmin, ppermute, psum, pvary, reduce_scatter,
};
pub use context::{layout, under};
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result, Source};
pub use float8::{F8E4M3FN, F8E5M2};
pub use function::{Callable, Function, On, Traced, trace, trace_like, trace_under};
pub use literal::{Element, Literal, Number};
pub use op::{Combine, Memory, Policy, Reducer, Target, TriangularSolve};
pub use shardax_sharding::{Dim, PartitionSpec, Role};
pub use stack::{LAYERS, Stack};
pub use tensor::{
    At, Axes, ConvOptions, INFER, Index, IntoOperand, IntoShape, Operand, Padding, Pool, Tensor,
    Unique, associative_scan, concatenate, einsum, einsum_as, sort_by_key, stack,
};
pub use trace::{at, mistake, scope};
pub use transform::{
    CheckOrigin, CheckPoint, Checked, Leaves, NonFinite, Objective, Specs, check_finite, cond,
    custom_call, custom_jvp, custom_vjp, fori_loop, grad, hessian, host_call, host_effect, jacfwd,
    jacrev, jvp, linearize, manual, remat, remat_with, scan, scan_reverse, scan_unrolled, switch,
    value_and_grad, vjp, vmap, vmap_axes, vmap_named, while_loop,
};
pub use tree::{Declaration, Leaf, Path, Tree};
pub use tree_map::{tree_combine, tree_map, tree_paths, tree_zip};
pub use types::{Shape, TensorType};
pub use varying::Varying;
