//! The PJRT runtime: plugins, clients, buffers and compiled programs.
//!
//! [PJRT](https://openxla.org/xla/pjrt) is the C interface through which XLA compiles and runs programs on a device. This
//! module is the only one with `unsafe` code. What it exports is safe in the full sense: a plugin aborts the process or
//! computes nonsense when it is called wrongly, so every precondition is checked first and becomes an [`Error`](crate::Error).
//!
//! Read it in this order: `ffi` (the C structs), `plugin`, `client`, `buffer` and `event`, `executable`
//! (compiling and looking at what was compiled), `execute` (the hot path), `window` (how many launches may be in flight) and
//! `foreign` (code of the user's that programs call).
//!
//! Handles are `Send + Sync`. A plugin is never unloaded; a client lives as long as anything made with it.

mod buffer;
mod client;
mod compile_options;
mod compiled;
mod dtype;
mod event;
mod executable;
mod execute;
mod ffi;
mod foreign;
mod hlo;
mod plugin;
#[cfg(test)]
mod tests;
mod topology;
mod window;
mod worker;

pub use buffer::{Buffer, HostCopy};
pub use client::{Client, ClientOption, Device, Memory};
pub use compile_options::{CompileOptions, OptionValue};
pub use compiled::{CompiledMemoryStats, OptimizedProgram};
pub use event::Event;
pub use executable::LoadedExecutable;
pub use execute::{ExecuteOptions, Execution};
pub(crate) use foreign::HOST_PLATFORM;
pub use foreign::{HOST_TARGET, Handler, HostCall, HostCalls, HostFunction};
pub(crate) use hlo::donated_inputs;
pub use hlo::{AliasKind, InputAlias};
pub use plugin::{Attribute, Plugin};
pub(crate) use topology::Topology;
pub use window::Launch;
pub(crate) use worker::{WORKER_VARIABLE, exit_now, is_registered};
