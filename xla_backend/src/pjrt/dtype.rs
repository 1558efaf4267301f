//! The numbers that PJRT and HLO give to element types.
//!
//! They differ from each other: one is the C API's `PJRT_Buffer_Type`, the other the protocol buffers' `PrimitiveType`.

use shardax_core::DType;

use crate::error::{Error, Result};

/// The number of an element type in the C API.
pub(super) const fn buffer_type(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => 1,
        DType::I8 => 2,
        DType::I16 => 3,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
        DType::U16 => 7,
        DType::U32 => 8,
        DType::U64 => 9,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::BF16 => 13,
        DType::C64 => 14,
        DType::F8E5M2 => 16,
        DType::F8E4M3FN => 17,
        DType::I4 => 21,
        DType::U4 => 22,
    }
}

/// The element type with this number in the C API.
pub(super) fn from_buffer_type(number: u32) -> Result<DType> {
    let dtype = match number {
        1 => DType::Bool,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::U8,
        7 => DType::U16,
        8 => DType::U32,
        9 => DType::U64,
        10 => DType::F16,
        11 => DType::F32,
        12 => DType::F64,
        13 => DType::BF16,
        14 => DType::C64,
        16 => DType::F8E5M2,
        17 => DType::F8E4M3FN,
        21 => DType::I4,
        22 => DType::U4,
        _ => {
            return Err(Error::ElementType {
                element_type: format!("number {number} of the PJRT C API"),
                advice: "convert it in the program to a type that the tracer has",
            });
        }
    };
    Ok(dtype)
}

/// The element type with this number in HLO protocol buffers.
pub(super) fn from_primitive_type(number: i32) -> Result<DType> {
    let dtype = match number {
        1 => DType::Bool,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::U8,
        7 => DType::U16,
        8 => DType::U32,
        9 => DType::U64,
        10 => DType::F16,
        11 => DType::F32,
        12 => DType::F64,
        16 => DType::BF16,
        15 => DType::C64,
        19 => DType::F8E5M2,
        20 => DType::F8E4M3FN,
        21 => DType::I4,
        22 => DType::U4,
        _ => {
            return Err(Error::ElementType {
                element_type: format!("number {number} of HLO"),
                advice: "convert it in the program to a type that the tracer has",
            });
        }
    };
    Ok(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_the_type() {
        let known = (0..40).filter_map(|number| from_buffer_type(number).ok());
        let known: Vec<DType> = known.collect();
        assert_eq!(known.len(), 18);
        for dtype in known {
            assert_eq!(from_buffer_type(buffer_type(dtype)).unwrap(), dtype);
        }
        let in_hlo = (0..40).filter_map(|number| from_primitive_type(number).ok());
        assert_eq!(in_hlo.count(), 18);
        assert_eq!(from_primitive_type(16).unwrap(), DType::BF16);
        assert!(from_buffer_type(0).is_err());
    }
}
