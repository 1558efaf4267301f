//! Changing parts of a protocol buffer whose other parts are not known.
//!
//! Decoding into a struct and encoding it again would lose every field that the struct does not have.

use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use super::refused;
use crate::error::Result;

/// The message with some fields replaced: `replace(number, value)` is asked for every field of bytes, a nested message for
/// one, in the order in which they stand. All others are copied as they are.
pub(super) fn rewrite(
    message: &[u8],
    mut replace: impl FnMut(u32, &[u8]) -> Result<Option<Vec<u8>>>,
) -> Result<Vec<u8>> {
    let mut written = Vec::with_capacity(message.len());
    let mut rest = message;
    while !rest.is_empty() {
        let field = rest;
        let (number, wire) = decode_key(&mut rest).map_err(|e| refused(e.to_string()))?;
        let length = match wire {
            WireType::Varint => {
                decode_varint(&mut rest).map_err(|e| refused(e.to_string()))?;
                0
            }
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            WireType::LengthDelimited => {
                decode_varint(&mut rest).map_err(|e| refused(e.to_string()))?
            }
            WireType::StartGroup | WireType::EndGroup => {
                return Err(refused("groups are not known"));
            }
        };
        let length = usize::try_from(length).ok().filter(|&n| n <= rest.len());
        let Some(length) = length else {
            return Err(refused("it ends in the middle of a field"));
        };
        let value = &rest[..length];
        rest.advance(length);
        let replaced = match wire {
            WireType::LengthDelimited => replace(number, value)?,
            _ => None,
        };
        if let Some(value) = replaced {
            encode_key(number, WireType::LengthDelimited, &mut written);
            encode_varint(value.len() as u64, &mut written);
            written.extend(value);
        } else {
            written.extend(&field[..field.len() - rest.len()]);
        }
    }
    Ok(written)
}
