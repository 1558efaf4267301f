//! An optimized HLO module, checked and in a form that is easy to walk.
//!
//! The bytes come from a plugin or a cache, so nothing in them is taken on trust. After
//! [`HloModule::decode`] operands stand before their users and callees before their callers, as XLA
//! itself demands of its files: whoever follows them comes to an end.

use std::collections::HashMap;
use std::fmt;

use prost::Message;
use serde::Serialize;

use super::groups::ReplicaGroups;
use super::proto::{self, PayloadSource, StackFrameIndex};
use super::shape::Shape;
use crate::error::{Error, Result};

/// More devices than any cluster has; products of counts up to here do not overflow.
const MAX_DEVICES: i64 = 1 << 24;

/// A compiled program, as XLA hands it out after all its passes.
#[derive(Clone, Debug)]
pub struct HloModule {
    name: String,
    computations: Vec<Computation>,
    entry: usize,
    pub(super) replicas: usize,
    pub(super) partitions: usize,
}

/// A function of an [`HloModule`]: the entry, a loop's body or condition, a branch, a fusion, a reducer.
#[derive(Clone, Debug)]
pub struct Computation {
    name: String,
    instructions: Vec<Instruction>,
    root: usize,
}

/// One instruction of a [`Computation`].
#[derive(Clone, Debug)]
pub struct Instruction {
    name: String,
    opcode: String,
    shape: Shape,
    operands: Vec<usize>,
    called: Vec<usize>,
    op_name: String,
    source: Option<SourceLine>,
    pub(super) constant: Option<i64>,
    pub(super) parameter: i64,
    pub(super) tuple_index: i64,
    pub(super) comparison: String,
    pub(super) dimensions: Vec<i64>,
    pub(super) groups: ReplicaGroups,
    pub(super) pairs: Vec<(i64, i64)>,
    pub(super) has_channel: bool,
    pub(super) global_device_ids: bool,
    pub(super) backend_config: Vec<u8>,
}

/// A line of the user's program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SourceLine {
    /// The file as the tracer recorded it.
    pub file: String,
    /// Counted from 1.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl HloModule {
    /// Reads an `HloModuleProtoWithConfig`, the format `hlo_with_config` of PJRT's OptimizedProgram.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] for bytes that are no such message, [`Error::Malformed`] for a module
    /// that contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let proto =
            proto::ModuleWithConfig::decode(bytes).map_err(|source| Error::Decode { source })?;
        Self::from_proto(proto)
    }

    pub(super) fn from_proto(proto: proto::ModuleWithConfig) -> Result<Self> {
        let module = proto.module.unwrap_or_default();
        let config = proto.config.unwrap_or_default();
        let name = module.name.clone();
        Self::build(module, config).map_err(|problem| Error::Malformed {
            module: name,
            problem,
        })
    }

    fn build(module: proto::Module, config: proto::ModuleConfig) -> Result<Self, String> {
        let (replicas, partitions) = (config.replica_count.max(1), config.num_partitions.max(1));
        if replicas.saturating_mul(partitions) > MAX_DEVICES {
            return Err(format!(
                "it is for {replicas} replicas of {partitions} partitions"
            ));
        }
        let frames = module.stack_frame_index.unwrap_or_default();
        let mut numbers = HashMap::new();
        let mut computations = Vec::with_capacity(module.computations.len());
        let schedule = module.schedule.unwrap_or_default();
        for mut computation in module.computations {
            let id = computation.id;
            let name = computation.name.clone();
            let scheduled = match schedule.sequences.get(&id) {
                Some(sequence) => launch_order(&mut computation.instructions, sequence),
                None => Ok(()),
            };
            let built = scheduled
                .and_then(|()| Computation::build(computation, &numbers, &frames, &module.payloads))
                .map_err(|problem| format!("computation `{name}`: {problem}"))?;
            if numbers.insert(id, computations.len()).is_some() {
                return Err(format!(
                    "computation `{name}` has the number {id} of another one"
                ));
            }
            computations.push(built);
        }
        let entry = numbers.get(&module.entry_computation_id);
        let entry = *entry.ok_or("it has no entry computation")?;
        Ok(HloModule {
            name: module.name,
            computations,
            entry,
            replicas: replicas as usize,
            partitions: partitions as usize,
        })
    }

    /// The name, `jit_` and the function's name under JAX.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All computations, callees before their callers.
    pub fn computations(&self) -> &[Computation] {
        &self.computations
    }

    /// The position in [`computations`](Self::computations) of the one that a launch runs.
    pub fn entry(&self) -> usize {
        self.entry
    }

    /// The number of devices that one launch runs on: replicas times partitions.
    pub fn device_count(&self) -> usize {
        self.replicas * self.partitions
    }
}

/// Brings the instructions of a computation in the order of its schedule.
fn launch_order(
    instructions: &mut [proto::Instruction],
    sequence: &proto::Sequence,
) -> Result<(), String> {
    let ids = sequence.instruction_ids.iter();
    let ranks: HashMap<i64, usize> = ids.copied().zip(0..).collect();
    match instructions.iter().find(|i| !ranks.contains_key(&i.id)) {
        Some(left_out) => Err(format!("its schedule leaves out `{}`", left_out.name)),
        None => {
            instructions.sort_by_key(|instruction| ranks.get(&instruction.id).copied());
            Ok(())
        }
    }
}

impl Computation {
    fn build(
        proto: proto::Computation,
        computations: &HashMap<i64, usize>,
        frames: &StackFrameIndex,
        payloads: &[Vec<u8>],
    ) -> Result<Self, String> {
        let mut numbers = HashMap::new();
        let mut instructions = Vec::with_capacity(proto.instructions.len());
        for instruction in proto.instructions {
            let id = instruction.id;
            let name = instruction.name.clone();
            let built = Instruction::build(instruction, &numbers, computations, frames, payloads)
                .map_err(|problem| format!("instruction `{name}`: {problem}"))?;
            if numbers.insert(id, instructions.len()).is_some() {
                return Err(format!(
                    "instruction `{name}` has the number {id} of another one"
                ));
            }
            instructions.push(built);
        }
        let root = *numbers.get(&proto.root_id).ok_or("it has no root")?;
        Ok(Computation {
            name: proto.name,
            instructions,
            root,
        })
    }

    /// The name, unique in the module.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The instructions, operands before their users: in the order in which they are launched, where the compiler has
    /// decided on one (inside of a fusion it has not).
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// The position of the instruction whose value is the computation's result.
    pub fn root(&self) -> usize {
        self.root
    }

    pub(super) fn root_instruction(&self) -> &Instruction {
        &self.instructions[self.root]
    }

    /// The operand at a position, if the instruction has so many.
    pub(super) fn operand(
        &self,
        instruction: &Instruction,
        position: usize,
    ) -> Option<&Instruction> {
        instruction
            .operands
            .get(position)
            .map(|&operand| &self.instructions[operand])
    }
}

impl Instruction {
    fn build(
        mut proto: proto::Instruction,
        instructions: &HashMap<i64, usize>,
        computations: &HashMap<i64, usize>,
        frames: &StackFrameIndex,
        payloads: &[Vec<u8>],
    ) -> Result<Self, String> {
        let operands = proto.operand_ids.iter().map(|id| {
            instructions
                .get(id)
                .copied()
                .ok_or_else(|| format!("operand {id} is not before it"))
        });
        let operands = operands.collect::<Result<_, _>>()?;
        let called = proto.called_computation_ids.iter().map(|id| {
            let message = || format!("the computation {id} that it calls is not before its own");
            computations.get(id).copied().ok_or_else(message)
        });
        let called = called.collect::<Result<_, _>>()?;
        let shape = Shape::build(&proto.shape.take().unwrap_or_default())?;
        let metadata = proto.metadata.take().unwrap_or_default();
        let source = source_line(&metadata, frames);
        let constant = (proto.opcode == "constant").then(|| integer(&proto.literal.take()?));
        let groups = ReplicaGroups::from_proto(&mut proto);
        let backend_config = match proto
            .backend_config_payload
            .and_then(|payload| payload.source)
        {
            Some(PayloadSource::Value(config)) => config,
            Some(PayloadSource::Index(index)) => usize::try_from(index)
                .ok()
                .and_then(|index| payloads.get(index).cloned())
                .ok_or_else(|| format!("its payload {index} is not in the module"))?,
            None => proto.backend_config,
        };
        Ok(Instruction {
            name: proto.name,
            opcode: proto.opcode,
            shape,
            operands,
            called,
            op_name: metadata.op_name,
            source,
            constant: constant.flatten(),
            parameter: proto.parameter_number,
            tuple_index: proto.tuple_index,
            comparison: proto.comparison_direction,
            dimensions: proto.dimensions,
            groups,
            pairs: proto
                .source_target_pairs
                .iter()
                .map(|pair| (pair.source, pair.target))
                .collect(),
            has_channel: proto.channel_id > 0,
            global_device_ids: proto.use_global_device_ids,
            backend_config,
        })
    }

    /// The name, unique in the module.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The opcode as HLO text has it, `all-reduce` or `get-tuple-element`.
    pub fn opcode(&self) -> &str {
        &self.opcode
    }

    /// The shape of the result on one device.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Positions of the operands in the computation.
    pub fn operands(&self) -> &[usize] {
        &self.operands
    }

    /// Positions in the module of the computations that it calls: a loop's body and then its condition,
    /// a conditional's branches, a fusion's or reducer's computation.
    pub fn called(&self) -> &[usize] {
        &self.called
    }

    /// The tracer's name for what this computes, scopes separated by `/`. Empty if XLA kept none.
    pub fn op_name(&self) -> &str {
        &self.op_name
    }

    /// The user's line that this comes from, if XLA kept it.
    pub fn source(&self) -> Option<&SourceLine> {
        self.source.as_ref()
    }
}

/// The line in the metadata itself, or the innermost frame that it refers to.
fn source_line(metadata: &proto::Metadata, frames: &StackFrameIndex) -> Option<SourceLine> {
    let line = |file: &str, line: i32| {
        let line = u32::try_from(line).ok().filter(|&line| line > 0)?;
        Some(SourceLine {
            file: file.to_owned(),
            line,
        })
    };
    if !metadata.source_file.is_empty() {
        return line(&metadata.source_file, metadata.source_line);
    }
    let frame = counted_from_one(&frames.stack_frames, metadata.stack_frame_id)?;
    let location = counted_from_one(&frames.file_locations, frame.file_location_id)?;
    line(
        counted_from_one(&frames.file_names, location.file_name_id)?,
        location.line,
    )
}

fn counted_from_one<T>(list: &[T], number: i32) -> Option<&T> {
    list.get(usize::try_from(number).ok()?.checked_sub(1)?)
}

/// The value of a constant that is one integer.
fn integer(literal: &proto::Literal) -> Option<i64> {
    let narrow = literal.s32s.iter().copied().map(i64::from);
    let unsigned = literal.u32s.iter().copied().map(i64::from);
    let wide = literal
        .u64s
        .iter()
        .filter_map(|&value| i64::try_from(value).ok());
    let values: Vec<i64> = narrow
        .chain(literal.s64s.iter().copied())
        .chain(unsigned)
        .chain(wide)
        .collect();
    match values[..] {
        [value] => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{KINDS, decode_proto};

    #[test]
    fn the_innermost_frame_is_the_line() {
        let module = HloModule::decode(KINDS).unwrap();
        assert_eq!(module.name(), "jit_kinds");
        assert_eq!(module.device_count(), 8);
        let entry = &module.computations()[module.entry()];
        let gather = entry
            .instructions()
            .iter()
            .find(|i| i.opcode() == "all-gather")
            .unwrap();
        assert_eq!(gather.op_name(), "jit(kinds)/shard_map/all_gather");
        assert_eq!(gather.source().unwrap().file, "generate.py");
        assert_eq!(gather.shape().arrays()[0].to_string(), "f32[32,16]");
        assert_eq!(gather.operands().len(), 1);
    }

    #[test]
    fn a_line_in_the_metadata_goes_before_frames() {
        let metadata = proto::Metadata {
            source_file: "model.rs".into(),
            source_line: 12,
            stack_frame_id: 1,
            ..Default::default()
        };
        let line = source_line(&metadata, &StackFrameIndex::default()).unwrap();
        assert_eq!(line.to_string(), "model.rs:12");
        let beyond = proto::Metadata {
            stack_frame_id: 7,
            ..Default::default()
        };
        assert_eq!(source_line(&beyond, &StackFrameIndex::default()), None);
    }

    #[test]
    fn instructions_stand_as_they_are_launched() {
        let with_schedule = |change: fn(&mut Vec<i64>)| {
            let mut proto = decode_proto(KINDS);
            let module = proto.module.as_mut().unwrap();
            let entry = module.entry_computation_id;
            let computation = module.computations.iter().find(|c| c.id == entry);
            let instructions = &computation.unwrap().instructions;
            // Parameters depend on nothing, so that they can stand anywhere before their users.
            let is_parameter = |i: &&proto::Instruction| i.opcode == "parameter";
            let (first, rest): (Vec<_>, Vec<_>) = instructions.iter().partition(is_parameter);
            let mut instruction_ids = first.into_iter().chain(rest).map(|i| i.id).collect();
            change(&mut instruction_ids);
            let sequence = proto::Sequence { instruction_ids };
            module.schedule = Some(proto::Schedule {
                sequences: [(entry, sequence)].into(),
            });
            let module = HloModule::from_proto(proto)?;
            let instructions = module.computations[module.entry].instructions.iter();
            Ok::<_, Error>(instructions.map(|i| i.parameter).collect::<Vec<_>>())
        };
        let parameters = with_schedule(|_| {}).unwrap();
        assert_eq!(parameters[..2], [0, 1]);
        let swapped = with_schedule(|ids| ids.swap(0, 1)).unwrap();
        assert_eq!(swapped[..2], [1, 0]);
        let error = with_schedule(|ids| ids.truncate(1))
            .unwrap_err()
            .to_string();
        assert!(error.contains("its schedule leaves out `"), "{error}");
        let error = with_schedule(|ids| ids.reverse()).unwrap_err().to_string();
        assert!(error.contains("is not before it"), "{error}");
    }

    #[test]
    fn damaged_bytes_are_errors() {
        assert!(matches!(
            HloModule::decode(&[0xff; 40]),
            Err(Error::Decode { .. })
        ));
        let empty = HloModule::decode(&[]).unwrap_err().to_string();
        assert!(empty.contains("it has no entry computation"), "{empty}");
        // Cut anywhere, it is an error or a module with fewer parts, and never a panic.
        for length in (0..KINDS.len()).step_by(97) {
            let _ = HloModule::decode(&KINDS[..length]);
        }
    }

    #[test]
    fn what_refers_forward_is_refused() {
        let problem = |edit: &dyn Fn(&mut proto::Module)| {
            let mut proto = decode_proto(KINDS);
            edit(proto.module.as_mut().unwrap());
            HloModule::from_proto(proto).unwrap_err().to_string()
        };
        let cycle = problem(&|module| {
            let instruction = &mut module.computations[0].instructions[0];
            instruction.operand_ids = vec![instruction.id];
        });
        assert!(cycle.contains("is not before it"), "{cycle}");
        let recursion = problem(&|module| {
            let id = module.computations[0].id;
            module.computations[0].instructions[0].called_computation_ids = vec![id];
        });
        assert!(
            recursion.contains("that it calls is not before its own"),
            "{recursion}"
        );
        let twice = problem(&|module| module.computations[1].id = module.computations[0].id);
        assert!(twice.contains("of another one"), "{twice}");
        let negative = problem(&|module| {
            let instruction = &mut module.computations[0].instructions[0];
            instruction.shape = Some(proto::Shape {
                element_type: 11,
                dimensions: vec![-4],
                tuple_shapes: vec![],
            });
        });
        assert!(negative.contains("dimensions [-4]"), "{negative}");
    }

    #[test]
    fn backend_config_may_be_a_payload() {
        let mut proto = decode_proto(KINDS);
        let module = proto.module.as_mut().unwrap();
        module.payloads = vec![b"zero".to_vec(), b"one".to_vec()];
        let source = Some(PayloadSource::Index(1));
        module.computations[0].instructions[0].backend_config_payload =
            Some(proto::Payload { source });
        let module = HloModule::from_proto(proto.clone()).unwrap();
        assert_eq!(
            module.computations()[0].instructions()[0].backend_config,
            b"one"
        );

        let module = proto.module.as_mut().unwrap();
        module.payloads.clear();
        let message = HloModule::from_proto(proto).unwrap_err().to_string();
        assert!(
            message.contains("payload 1 is not in the module"),
            "{message}"
        );
    }
}
