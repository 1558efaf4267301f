//! What the runtime must know of a compiled program and the C API does not tell: the types of one device's arguments, and
//! which arguments give their memory away.
//!
//! Both stand in the optimized HLO. Only these fields of it are decoded; the program itself is skipped.

use std::collections::BTreeSet;

use prost::Message;

use super::client::broken;
use super::element::{ArrayType, ElementType};
use crate::error::{Error, Result};

/// An argument whose memory a result reuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputAlias {
    /// Position of the argument.
    pub input: usize,
    /// Position of the result.
    pub output: usize,
    /// How binding it is.
    pub kind: AliasKind,
}

/// Whether an alias always takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AliasKind {
    /// The memory is reused where the runtime can, else copied.
    May,
    /// The memory must be reused.
    Must,
}

/// The arguments that a launch of a program consumes, by their positions, from its serialized `HloModuleProtoWithConfig`
/// ([`OptimizedProgram::code`](crate::OptimizedProgram::code)).
///
/// # Errors
/// [`Error::PluginContract`] for bytes that are no such message, or that donate what is not there.
pub fn donated_inputs(program: &[u8]) -> Result<Vec<usize>> {
    Ok(Interface::decode(program)?.donated)
}

/// The outside of a compiled program, as one device sees it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Interface {
    pub(super) inputs: Vec<ArrayType>,
    pub(super) aliases: Vec<InputAlias>,
    /// Arguments that are consumed, in order: those of `aliases` and those that only give memory.
    pub(super) donated: Vec<usize>,
}

impl Interface {
    /// Reads it from a serialized `HloModuleProtoWithConfig`.
    pub(super) fn decode(program: &[u8]) -> Result<Self> {
        let fault = |e: prost::DecodeError| Error::PluginContract {
            what: format!("its optimized program cannot be decoded: {e}"),
        };
        let module = ModuleWithConfig::decode(program)
            .map_err(fault)?
            .module
            .unwrap_or_default();
        let parameters = module.program_shape.unwrap_or_default().parameters;
        let inputs = parameters
            .iter()
            .map(array_type)
            .collect::<Result<Vec<_>>>()?;
        let index = |number: i64| {
            let index = usize::try_from(number)
                .ok()
                .filter(|&index| index < inputs.len());
            index.ok_or_else(|| {
                broken("its optimized program donates an argument that it does not have")
            })
        };
        let mut aliases = vec![];
        let mut donated = BTreeSet::new();
        for entry in module.input_output_alias.unwrap_or_default().entries {
            let input = index(entry.parameter)?;
            let output = entry.output_index.first().copied().unwrap_or(0);
            let kind = match entry.kind {
                2 => AliasKind::Must,
                _ => AliasKind::May,
            };
            donated.insert(input);
            aliases.push(InputAlias {
                input,
                output: usize::try_from(output).unwrap_or(0),
                kind,
            });
        }
        for entry in module.buffer_donor.unwrap_or_default().entries {
            donated.insert(index(entry.parameter)?);
        }
        aliases.sort_by_key(|alias| (alias.input, alias.output));
        let donated = donated.into_iter().collect();
        Ok(Interface {
            inputs,
            aliases,
            donated,
        })
    }
}

fn array_type(shape: &ShapeProto) -> Result<ArrayType> {
    let size = |&size: &i64| {
        usize::try_from(size)
            .map_err(|_| broken("its optimized program has an argument of negative size"))
    };
    let dims = shape
        .dimensions
        .iter()
        .map(size)
        .collect::<Result<Vec<_>>>()?;
    Ok(ArrayType::new(
        ElementType::from_primitive_type(shape.element_type.try_into().unwrap_or(0))?,
        dims,
    ))
}

#[derive(Clone, PartialEq, Message)]
struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<ModuleProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ModuleProto {
    #[prost(message, optional, tag = "4")]
    program_shape: Option<ProgramShapeProto>,
    #[prost(message, optional, tag = "8")]
    input_output_alias: Option<InputOutputAliasProto>,
    #[prost(message, optional, tag = "18")]
    buffer_donor: Option<BufferDonorProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ProgramShapeProto {
    #[prost(message, repeated, tag = "1")]
    parameters: Vec<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ShapeProto {
    #[prost(int32, tag = "2")]
    element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    dimensions: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct InputOutputAliasProto {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<AliasEntryProto>,
}

#[derive(Clone, PartialEq, Message)]
struct AliasEntryProto {
    #[prost(int64, repeated, tag = "1")]
    output_index: Vec<i64>,
    #[prost(int64, tag = "2")]
    parameter: i64,
    #[prost(int32, tag = "4")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct BufferDonorProto {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<BufferDonorEntryProto>,
}

#[derive(Clone, PartialEq, Message)]
struct BufferDonorEntryProto {
    #[prost(int64, tag = "1")]
    parameter: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_donation_of_a_missing_argument_is_an_error() {
        let mut module = ModuleProto {
            buffer_donor: Some(BufferDonorProto {
                entries: vec![BufferDonorEntryProto { parameter: 1 }],
            }),
            ..Default::default()
        };
        let encode = |module: &ModuleProto| {
            ModuleWithConfig {
                module: Some(module.clone()),
            }
            .encode_to_vec()
        };
        assert!(Interface::decode(&encode(&module)).is_err());
        let scalar = ShapeProto {
            element_type: 11,
            dimensions: vec![],
        };
        module.program_shape = Some(ProgramShapeProto {
            parameters: vec![scalar; 2],
        });
        assert_eq!(Interface::decode(&encode(&module)).unwrap().donated, [1]);
        assert!(Interface::decode(b"\xff\xff").is_err());
    }
}
