//! Lowering to StableHLO, the PJRT runtime, `jit` and reports on compiled programs.

#![deny(unsafe_code)]

mod ahead;
mod array;
pub mod cache;
mod check;
mod error;
mod intern;
mod jit;
pub mod lower;
#[allow(unsafe_code)]
pub mod pjrt;
pub mod plugin;
pub mod report;
mod runtime;

pub use ahead::{AheadOptions, AheadProgram};
pub use array::{Array, ArrayTree, Reshard, Shard, Sharding, TypeTree};
pub use check::{
    AxisTraffic, CheckOptions, DeviceBytes, Difference, LayoutCheck, LayoutRow, LayoutTable,
    Measured, Quantity, Tolerance, Verdict, check_function, check_layouts,
};
pub use error::{
    AheadFault, ArgumentFault, Error, ErrorCode, HostFault, LayoutFault, PjrtError, Result,
};
pub use jit::{Jit, NamedSharding, Program, jit};
pub use runtime::Runtime;
