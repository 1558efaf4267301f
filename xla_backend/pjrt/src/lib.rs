//! A safe PJRT runtime for Rust: plugins, devices, buffers and compiled programs.
//!
//! [PJRT](https://openxla.org/xla/pjrt) is the C interface through which XLA compiles and runs programs on a device. This
//! crate finds or fetches a plugin, talks to it through bindings of its own, and needs no C++ and no build of XLA. What it
//! exports is safe in the full sense: a plugin aborts the process or computes nonsense when it is called wrongly, so every
//! precondition is checked first and becomes an [`Error`].
//!
//! ```no_run
//! use shardax_pjrt::find::{PluginFile, Progress};
//! use shardax_pjrt::{Client, CompileOptions, ElementType, ExecuteOptions, Plugin};
//!
//! let text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
//!     %y = stablehlo.add %x, %x : tensor<2xf32>
//!     return %y : tensor<2xf32>
//! }";
//! let plugin = Plugin::load(PluginFile::find_or_fetch(Progress::Stderr)?.path())?;
//! let client = Client::cpu(&plugin, 1)?;
//! let program = client.compile(text.as_bytes(), &CompileOptions::partitioned(1))?;
//! let bytes = [1f32, 2.0].map(f32::to_le_bytes).concat();
//! let x = client.buffer_from_host(&bytes, ElementType::F32, &[2], 0)?;
//! let results = program.execute(1, |_device, _argument| &x, &ExecuteOptions::default())?;
//! assert_eq!(results.outputs[0].to_host()?, [2f32, 4.0].map(f32::to_le_bytes).concat());
//! # Ok::<(), shardax_pjrt::Error>(())
//! ```
//!
//! Read it in this order: [`find`] (where a plugin comes from), `ffi` (the C structs), `plugin`, `client`, `buffer` and
//! `event`, `executable` (compiling and looking at what was compiled), `execute` (the hot path), `window` (how many launches
//! may be in flight), `foreign` (code of the user's that programs call), `topology` and [`child`] (compiling for devices that
//! are not there, in a process that may abort).
//!
//! Handles are `Send + Sync`. A plugin is never unloaded; a client lives as long as anything made with it.

mod buffer;
pub mod child;
mod client;
mod compile_options;
mod compiled;
mod element;
mod error;
mod event;
mod executable;
mod execute;
mod ffi;
pub mod find;
mod foreign;
mod gpu;
mod interface;
mod order;
mod plugin;
#[cfg(test)]
mod tests;
mod topology;
mod window;

pub use buffer::{Buffer, HostCopy};
pub use client::{Client, ClientOption, Device, Memory};
pub use compile_options::{CompileOptions, OptionValue};
pub use compiled::{CompiledMemoryStats, OptimizedProgram};
pub use element::{ArrayType, ElementType};
pub use error::{AheadFault, ArgumentFault, Error, ErrorCode, HostFault, PjrtError, Result};
pub use event::Event;
pub use executable::LoadedExecutable;
pub use execute::{ExecuteOptions, Execution};
pub use foreign::{
    HOST_PLATFORM, HOST_TARGET, Handler, HostArray, HostCall, HostCalls, HostFunction,
};
pub use gpu::GpuTarget;
pub use interface::{AliasKind, InputAlias, donated_inputs};
pub use plugin::{Attribute, Plugin};
pub use window::Launch;
