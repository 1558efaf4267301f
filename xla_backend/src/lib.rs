//! From a traced program to its results: lowering to StableHLO, arrays, `jit`, compilation ahead of time, and reports.
//!
//! The rooms use each other in one direction: `lower` < `report` < `error` < [`cache`] < `runtime` < `array` < `compiled` <
//! `ahead` < `jit` < `check`. Below them are `shardax-pjrt` (devices and compiled programs) and `shardax-hlo` (reading what
//! was compiled).

#![forbid(unsafe_code)]

mod ahead;
mod array;
pub mod cache;
mod check;
mod compiled;
mod error;
mod jit;
pub mod lower;
pub mod report;
mod runtime;

pub use ahead::{AheadOptions, AheadProgram};
pub use array::{Array, ArrayTree, Reshard, Shard, Sharding, TypeTree};
pub use check::{
    AxisTraffic, CheckOptions, DeviceBytes, Difference, LayoutCheck, LayoutRow, LayoutTable,
    Measured, Quantity, Tolerance, Verdict, check_function, check_layouts,
};
pub use compiled::{Advice, Input, Output, set_advice_hook, silence_advice};
pub use error::{Error, Result};
pub use jit::{Jit, NamedSharding, Program, jit};
pub use lower::LayoutFault;
pub use runtime::Runtime;
/// Reading compiled programs.
pub use shardax_hlo as hlo;
/// Devices, buffers and compiled programs.
pub use shardax_pjrt as pjrt;
/// Where plugins are found, and fetched from.
pub use shardax_pjrt::find as plugin;
pub use shardax_pjrt::{AheadFault, ArgumentFault, ErrorCode, HostFault, PjrtError};
