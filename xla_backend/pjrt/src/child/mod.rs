//! Compiling for devices that are not there, in a process of its own.
//!
//! XLA's compiler for GPUs needs a description of them and of how they are joined, and no GPU. What comes out is the program
//! that they would run: partitioned, scheduled, with its memory assigned. XLA aborts the process over some programs, so
//! [`compile`] starts a child; an abort is an [`AheadFault`] here. `before_main` says how the child comes to be, `process` is
//! the parent's side, `work` the child's, and `protocol` what they tell each other.

mod before_main;
mod process;
mod protocol;
mod work;

pub use process::compile;
use prost::Message;
use protocol::CompiledMessage;

use crate::compiled::CompiledMemoryStats;
#[cfg(doc)]
use crate::error::AheadFault;

/// A program, and what it is to be compiled for.
#[derive(Clone, Debug)]
pub struct AheadJob {
    /// Path of the plugin.
    pub plugin: String,
    /// Kind of the devices, a `GpuTargetConfigProto` in text form ([`GpuTarget::config`](crate::GpuTarget::config)).
    pub target: String,
    /// `PxHxG`: NVLink domains, hosts in each, GPUs of each host. 64 nodes of 8 GPUs are `64x1x8`.
    pub topology: String,
    /// The StableHLO module, as text.
    pub module: String,
    /// Encoded [`CompileOptions`](crate::CompileOptions): each is tried if the program is refused with those before it.
    pub options: Vec<Vec<u8>>,
}

/// A program that was compiled for devices that are not there.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// The optimized, scheduled program: a serialized `HloModuleProtoWithConfig`.
    pub hlo: Vec<u8>,
    /// The memory that it needs on one device.
    pub memory: CompiledMemoryStats,
    /// How long the compiler took, in seconds.
    pub seconds: f64,
}

impl Compiled {
    /// All of it as bytes, to be kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        CompiledMessage::from(self.clone()).encode_to_vec()
    }

    /// What [`to_bytes`](Self::to_bytes) gave; `None` for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        CompiledMessage::decode(bytes).ok().map(Into::into)
    }
}
