//! What arrays are made of: element types, with the numbers that PJRT and HLO give them, and types of whole arrays.
//!
//! The numbers differ from each other: one is the C API's `PJRT_Buffer_Type`, the other the protocol buffers'
//! `PrimitiveType`.

use std::fmt;

use crate::error::{Error, Result};

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Boolean.
    Bool,
    /// 4-bit signed integer; a byte in host memory.
    I4,
    /// 8-bit signed integer.
    I8,
    /// 16-bit signed integer.
    I16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// 4-bit unsigned integer; a byte in host memory.
    U4,
    /// 8-bit unsigned integer.
    U8,
    /// 16-bit unsigned integer.
    U16,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit unsigned integer.
    U64,
    /// 8-bit float with 4 exponent bits, and no infinities.
    F8E4M3FN,
    /// 8-bit float with 5 exponent bits.
    F8E5M2,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// A complex number of two f32.
    C64,
}

/// What there is to know of an element type.
struct Facts {
    name: &'static str,
    host_bytes: usize,
    /// `PJRT_Buffer_Type`.
    buffer: u32,
    /// `PrimitiveType`.
    primitive: u32,
}

impl ElementType {
    /// All of them.
    pub const ALL: [ElementType; 18] = [
        ElementType::Bool,
        ElementType::I4,
        ElementType::I8,
        ElementType::I16,
        ElementType::I32,
        ElementType::I64,
        ElementType::U4,
        ElementType::U8,
        ElementType::U16,
        ElementType::U32,
        ElementType::U64,
        ElementType::F8E4M3FN,
        ElementType::F8E5M2,
        ElementType::F16,
        ElementType::BF16,
        ElementType::F32,
        ElementType::F64,
        ElementType::C64,
    ];

    const fn facts(self) -> Facts {
        let (name, host_bytes, buffer, primitive) = match self {
            ElementType::Bool => ("bool", 1, 1, 1),
            ElementType::I4 => ("i4", 1, 21, 21),
            ElementType::I8 => ("i8", 1, 2, 2),
            ElementType::I16 => ("i16", 2, 3, 3),
            ElementType::I32 => ("i32", 4, 4, 4),
            ElementType::I64 => ("i64", 8, 5, 5),
            ElementType::U4 => ("u4", 1, 22, 22),
            ElementType::U8 => ("u8", 1, 6, 6),
            ElementType::U16 => ("u16", 2, 7, 7),
            ElementType::U32 => ("u32", 4, 8, 8),
            ElementType::U64 => ("u64", 8, 9, 9),
            ElementType::F8E4M3FN => ("f8e4m3fn", 1, 17, 20),
            ElementType::F8E5M2 => ("f8e5m2", 1, 16, 19),
            ElementType::F16 => ("f16", 2, 10, 10),
            ElementType::BF16 => ("bf16", 2, 13, 16),
            ElementType::F32 => ("f32", 4, 11, 11),
            ElementType::F64 => ("f64", 8, 12, 12),
            ElementType::C64 => ("c64", 8, 14, 15),
        };
        Facts {
            name,
            host_bytes,
            buffer,
            primitive,
        }
    }

    /// Its name, as `bf16`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// Bytes of one element in host memory.
    pub const fn host_bytes(self) -> usize {
        self.facts().host_bytes
    }

    /// Its number in the C API.
    pub(crate) const fn buffer_type(self) -> u32 {
        self.facts().buffer
    }

    /// The element type with this number in the C API.
    pub(crate) fn from_buffer_type(number: u32) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|t| t.facts().buffer == number);
        known.ok_or_else(|| unknown(number, "the PJRT C API"))
    }

    /// The element type with this number in HLO protocol buffers.
    pub(crate) fn from_primitive_type(number: u32) -> Result<Self> {
        let known = Self::ALL
            .into_iter()
            .find(|t| t.facts().primitive == number);
        known.ok_or_else(|| unknown(number, "HLO"))
    }
}

fn unknown(number: u32, whose: &str) -> Error {
    Error::ElementType {
        element_type: format!("number {number} of {whose}"),
        advice: "convert it in the program to a type that this crate has",
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element type and dimensions of an array. Printed, it is `f32[8,64]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayType {
    /// The type of its elements.
    pub element: ElementType,
    /// Dimension sizes, major to minor; empty for a scalar.
    pub dims: Box<[usize]>,
}

impl ArrayType {
    /// The type of an array with these dimensions.
    pub fn new(element: ElementType, dims: impl Into<Box<[usize]>>) -> Self {
        ArrayType {
            element,
            dims: dims.into(),
        }
    }

    /// The bytes that such an array takes on the host.
    ///
    /// # Errors
    /// [`Error::Dimensions`] for more bytes than any memory has.
    pub fn host_bytes(&self) -> Result<usize> {
        let mut bytes = Some(self.element.host_bytes());
        // A dimension of size 0 makes the array empty, but must not hide that the others overflow.
        for &size in &self.dims {
            bytes = bytes.and_then(|bytes| bytes.checked_mul(size.max(1)));
        }
        match bytes.filter(|&bytes| i64::try_from(bytes).is_ok()) {
            Some(_) if self.dims.contains(&0) => Ok(0),
            Some(bytes) => Ok(bytes),
            None => Err(Error::Dimensions {
                dims: self.dims.to_vec(),
                element_type: self.element.to_string(),
                reason: "the array is larger than any memory",
            }),
        }
    }
}

impl fmt::Display for ArrayType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element)?;
        for (i, size) in self.dims.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{size}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_the_type() {
        for element in ElementType::ALL {
            let facts = element.facts();
            let by_number = ElementType::from_buffer_type(facts.buffer);
            assert_eq!(by_number.unwrap(), element);
            let in_hlo = ElementType::from_primitive_type(facts.primitive);
            assert_eq!(in_hlo.unwrap(), element);
        }
        assert_eq!(
            ElementType::from_primitive_type(16).unwrap(),
            ElementType::BF16
        );
        assert!(ElementType::from_buffer_type(0).is_err());
    }

    #[test]
    fn types_are_printed_as_in_messages() {
        let matrix = ArrayType::new(ElementType::F32, [8, 64]);
        assert_eq!(matrix.to_string(), "f32[8,64]");
        assert_eq!(ArrayType::new(ElementType::I4, []).to_string(), "i4[]");
    }

    #[test]
    fn bytes_that_overflow_are_an_error_even_of_empty_arrays() {
        let bytes = |dims: &[usize]| ArrayType::new(ElementType::F64, dims).host_bytes();
        assert_eq!(bytes(&[3, 0]).unwrap(), 0);
        assert_eq!(bytes(&[3, 5]).unwrap(), 120);
        assert!(bytes(&[usize::MAX, 2, 0]).is_err());
    }
}
