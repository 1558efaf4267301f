//! Lowering to StableHLO, the PJRT runtime, `jit` and reports on compiled programs.

#![deny(unsafe_code)]

pub mod cache;
mod error;
pub mod lower;
#[allow(unsafe_code)]
pub mod pjrt;
pub mod plugin;
pub mod report;

pub use error::{ArgumentFault, Error, ErrorCode, LayoutFault, PjrtError, Result};
