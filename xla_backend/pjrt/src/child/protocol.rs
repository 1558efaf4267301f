//! What the two processes tell each other: a request and an answer, each a file in a folder that the parent makes.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use prost::{Message, Oneof};

use super::{AheadJob, Compiled};
use crate::compiled::CompiledMemoryStats;

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

/// An [`AheadJob`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(string, tag = "1")]
    pub(super) plugin: String,
    #[prost(string, tag = "2")]
    pub(super) target: String,
    #[prost(string, tag = "3")]
    pub(super) topology: String,
    #[prost(string, tag = "4")]
    pub(super) module: String,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub(super) options: Vec<Vec<u8>>,
}

impl From<&AheadJob> for Request {
    fn from(job: &AheadJob) -> Self {
        Request {
            plugin: job.plugin.clone(),
            target: job.target.clone(),
            topology: job.topology.clone(),
            module: job.module.clone(),
            options: job.options.clone(),
        }
    }
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
    Compiled(CompiledMessage),
    /// Why it was refused.
    #[prost(string, tag = "2")]
    Refused(String),
}

/// A [`Compiled`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct CompiledMessage {
    #[prost(bytes = "vec", tag = "1")]
    hlo: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    memory: Option<Memory>,
    #[prost(double, tag = "3")]
    seconds: f64,
}

impl From<Compiled> for CompiledMessage {
    fn from(compiled: Compiled) -> Self {
        CompiledMessage {
            hlo: compiled.hlo,
            memory: Some(compiled.memory.into()),
            seconds: compiled.seconds,
        }
    }
}

impl From<CompiledMessage> for Compiled {
    fn from(message: CompiledMessage) -> Self {
        Compiled {
            hlo: message.hlo,
            memory: message.memory.map(Into::into).unwrap_or_default(),
            seconds: message.seconds,
        }
    }
}

/// [`CompiledMemoryStats`].
#[derive(Clone, Copy, PartialEq, Message)]
struct Memory {
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

impl From<CompiledMemoryStats> for Memory {
    fn from(stats: CompiledMemoryStats) -> Self {
        Memory {
            argument: stats.argument,
            output: stats.output,
            alias: stats.alias,
            temp: stats.temp,
            generated_code: stats.generated_code,
            peak: stats.peak,
            host_argument: stats.host_argument,
            host_output: stats.host_output,
            host_alias: stats.host_alias,
            host_temp: stats.host_temp,
        }
    }
}

impl From<Memory> for CompiledMemoryStats {
    fn from(memory: Memory) -> Self {
        CompiledMemoryStats {
            argument: memory.argument,
            output: memory.output,
            alias: memory.alias,
            temp: memory.temp,
            generated_code: memory.generated_code,
            peak: memory.peak,
            host_argument: memory.host_argument,
            host_output: memory.host_output,
            host_alias: memory.host_alias,
            host_temp: memory.host_temp,
        }
    }
}
