//! What the two processes tell each other: a request and an answer, each a file in a folder that the parent makes.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use prost::{Message, Oneof};

use crate::report::{HostMemory, MemoryReport};

/// The file with the [`Request`].
pub(super) const REQUEST: &str = "request";
/// The file with the [`Answer`].
pub(super) const ANSWER: &str = "answer";

/// What a worker's variable says: whose worker it is, and where the request is.
pub(super) fn told(parent: u32, folder: &Path) -> OsString {
    let mut value = OsString::from(format!("{parent}:"));
    value.push::<&OsStr>(folder.as_ref());
    value
}

/// What is to be compiled, and by what.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    /// Path of the plugin.
    #[prost(string, tag = "1")]
    pub(super) plugin: String,
    /// Kind of the devices, a GpuTargetConfigProto in text form.
    #[prost(string, tag = "2")]
    pub(super) target: String,
    /// `PxHxG`: NVLink domains, hosts in a domain, GPUs of a host.
    #[prost(string, tag = "3")]
    pub(super) topology: String,
    /// StableHLO text.
    #[prost(string, tag = "4")]
    pub(super) module: String,
    /// Serialized CompileOptionsProtos: each is tried if the program is refused with those before it.
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub(super) options: Vec<Vec<u8>>,
}

/// What came of it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Answer {
    #[prost(oneof = "Outcome", tags = "1, 2")]
    pub(super) outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Outcome {
    #[prost(message, tag = "1")]
    Compiled(Compiled),
    /// Why it was refused.
    #[prost(string, tag = "2")]
    Refused(String),
}

/// A compiled program; also what is kept in the cache.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compiled {
    /// The optimized, scheduled program: a serialized HloModuleProtoWithConfig.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) hlo: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    pub(super) memory: Option<Memory>,
    /// How long XLA took.
    #[prost(double, tag = "3")]
    pub(super) seconds: f64,
}

/// A [`MemoryReport`].
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Memory {
    #[prost(uint64, tag = "1")]
    argument: u64,
    #[prost(uint64, tag = "2")]
    output: u64,
    #[prost(uint64, tag = "3")]
    alias: u64,
    #[prost(uint64, tag = "4")]
    temp: u64,
    #[prost(uint64, tag = "5")]
    generated_code: u64,
    #[prost(uint64, tag = "6")]
    peak: u64,
    #[prost(uint64, tag = "7")]
    host_argument: u64,
    #[prost(uint64, tag = "8")]
    host_output: u64,
    #[prost(uint64, tag = "9")]
    host_alias: u64,
    #[prost(uint64, tag = "10")]
    host_temp: u64,
}

impl From<MemoryReport> for Memory {
    fn from(report: MemoryReport) -> Self {
        let MemoryReport {
            argument,
            output,
            alias,
            temp,
            generated_code,
            peak,
            host,
        } = report;
        Memory {
            argument,
            output,
            alias,
            temp,
            generated_code,
            peak,
            host_argument: host.argument,
            host_output: host.output,
            host_alias: host.alias,
            host_temp: host.temp,
        }
    }
}

impl From<Memory> for MemoryReport {
    fn from(memory: Memory) -> Self {
        MemoryReport {
            argument: memory.argument,
            output: memory.output,
            alias: memory.alias,
            temp: memory.temp,
            generated_code: memory.generated_code,
            peak: memory.peak,
            host: HostMemory {
                argument: memory.host_argument,
                output: memory.host_output,
                alias: memory.host_alias,
                temp: memory.host_temp,
            },
        }
    }
}
