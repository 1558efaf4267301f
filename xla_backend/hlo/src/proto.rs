//! The protocol buffers of an HLO module, as far as the reports read them.
//!
//! Field numbers are those of XLA's `hlo.proto`, `xla_data.proto` and `xla.proto`. Fields that are not
//! declared here are skipped while decoding. Replica groups are declared in every place in which an
//! XLA of the last years has written them.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) module: Option<Module>,
    #[prost(message, optional, tag = "2")]
    pub(super) config: Option<ModuleConfig>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ModuleConfig {
    #[prost(int64, tag = "4")]
    pub(super) replica_count: i64,
    #[prost(int64, tag = "5")]
    pub(super) num_partitions: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Module {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) computations: Vec<Computation>,
    #[prost(int64, tag = "6")]
    pub(super) entry_computation_id: i64,
    #[prost(message, optional, tag = "7")]
    pub(super) schedule: Option<Schedule>,
    #[prost(message, optional, tag = "17")]
    pub(super) stack_frame_index: Option<StackFrameIndex>,
    #[prost(bytes = "vec", repeated, tag = "22")]
    pub(super) payloads: Vec<Vec<u8>>,
}

/// The order in which instructions are launched, by the number of the computation.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Schedule {
    #[prost(btree_map = "int64, message", tag = "1")]
    pub(super) sequences: BTreeMap<i64, Sequence>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sequence {
    #[prost(int64, repeated, tag = "1")]
    pub(super) instruction_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Computation {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) instructions: Vec<Instruction>,
    #[prost(int64, tag = "5")]
    pub(super) id: i64,
    #[prost(int64, tag = "6")]
    pub(super) root_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Instruction {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) opcode: String,
    #[prost(message, optional, tag = "3")]
    pub(super) shape: Option<Shape>,
    #[prost(message, optional, tag = "7")]
    pub(super) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "8")]
    pub(super) literal: Option<Literal>,
    #[prost(int64, tag = "9")]
    pub(super) parameter_number: i64,
    #[prost(int64, tag = "13")]
    pub(super) tuple_index: i64,
    /// The dimension that is gathered, scattered or exchanged.
    #[prost(int64, repeated, tag = "14")]
    pub(super) dimensions: Vec<i64>,
    #[prost(int64, tag = "26")]
    pub(super) channel_id: i64,
    #[prost(int64, tag = "35")]
    pub(super) id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub(super) operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub(super) called_computation_ids: Vec<i64>,
    #[prost(bytes = "vec", tag = "43")]
    pub(super) backend_config: Vec<u8>,
    /// Replica groups of the oldest form.
    #[prost(message, repeated, tag = "49")]
    pub(super) replica_groups: Vec<ReplicaGroup>,
    #[prost(message, repeated, tag = "52")]
    pub(super) source_target_pairs: Vec<SourceTarget>,
    #[prost(string, tag = "63")]
    pub(super) comparison_direction: String,
    #[prost(bool, tag = "71")]
    pub(super) use_global_device_ids: bool,
    #[prost(message, optional, tag = "99")]
    pub(super) backend_config_payload: Option<Payload>,
    #[prost(message, optional, tag = "87")]
    pub(super) device_list: Option<DeviceList>,
    #[prost(message, optional, tag = "92")]
    pub(super) iota_device_list: Option<IotaGroups>,
    #[prost(message, optional, tag = "93")]
    pub(super) mesh_axes: Option<MeshAxesGroups>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {
    #[prost(int32, tag = "2")]
    pub(super) element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub(super) dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(super) tuple_shapes: Vec<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(string, tag = "2")]
    pub(super) op_name: String,
    #[prost(string, tag = "3")]
    pub(super) source_file: String,
    #[prost(int32, tag = "4")]
    pub(super) source_line: i32,
    /// Counted from 1; 0 if not set.
    #[prost(int32, tag = "15")]
    pub(super) stack_frame_id: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StackFrameIndex {
    #[prost(string, repeated, tag = "1")]
    pub(super) file_names: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub(super) file_locations: Vec<FileLocation>,
    #[prost(message, repeated, tag = "4")]
    pub(super) stack_frames: Vec<StackFrame>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct FileLocation {
    #[prost(int32, tag = "1")]
    pub(super) file_name_id: i32,
    #[prost(int32, tag = "3")]
    pub(super) line: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct StackFrame {
    #[prost(int32, tag = "1")]
    pub(super) file_location_id: i32,
}

/// The integers of a constant. Narrow types are packed bytes and never bound a loop in practice, so
/// they are left out.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Literal {
    #[prost(int32, repeated, tag = "4")]
    pub(super) s32s: Vec<i32>,
    #[prost(int64, repeated, tag = "5")]
    pub(super) s64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) u32s: Vec<u32>,
    #[prost(uint64, repeated, tag = "7")]
    pub(super) u64s: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Payload {
    #[prost(oneof = "PayloadSource", tags = "1, 2")]
    pub(super) source: Option<PayloadSource>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum PayloadSource {
    #[prost(bytes = "vec", tag = "1")]
    Value(Vec<u8>),
    /// An index into [`Module::payloads`], from 0.
    #[prost(int64, tag = "2")]
    Index(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReplicaGroup {
    #[prost(int64, repeated, tag = "1")]
    pub(super) ids: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct SourceTarget {
    #[prost(int64, tag = "1")]
    pub(super) source: i64,
    #[prost(int64, tag = "2")]
    pub(super) target: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeviceList {
    #[prost(message, repeated, tag = "1")]
    pub(super) groups: Vec<ReplicaGroup>,
    /// Where an XLA before the fields 92 and 93 of the instruction has put it.
    #[prost(message, optional, tag = "2")]
    pub(super) iota: Option<IotaGroups>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct IotaGroups {
    #[prost(int64, tag = "1")]
    pub(super) group_count: i64,
    #[prost(int64, tag = "2")]
    pub(super) group_size: i64,
    #[prost(int64, repeated, tag = "3")]
    pub(super) reshape: Vec<i64>,
    #[prost(int32, repeated, tag = "4")]
    pub(super) transpose: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MeshAxesGroups {
    #[prost(message, optional, tag = "1")]
    pub(super) mesh: Option<DeviceMesh>,
    #[prost(message, repeated, tag = "2")]
    pub(super) axes: Vec<AxisRef>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeviceMesh {
    #[prost(message, repeated, tag = "1")]
    pub(super) axes: Vec<DeviceMeshAxis>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) device_ids: Vec<i64>,
    #[prost(message, optional, tag = "3")]
    pub(super) iota: Option<IotaTransform>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct DeviceMeshAxis {
    #[prost(int64, tag = "2")]
    pub(super) size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct IotaTransform {
    #[prost(int64, repeated, tag = "1")]
    pub(super) reshape: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) transpose: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct AxisRef {
    #[prost(int64, tag = "1")]
    pub(super) axis: i64,
    #[prost(message, optional, tag = "2")]
    pub(super) sub_axis: Option<SubAxis>,
}

/// The part of an axis of size `pre_size * size * rest` that lies between `pre_size` and `rest`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct SubAxis {
    #[prost(int64, tag = "1")]
    pub(super) pre_size: i64,
    #[prost(int64, tag = "2")]
    pub(super) size: i64,
}
