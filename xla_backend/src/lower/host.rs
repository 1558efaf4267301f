//! Types and values of the tracer in the words of the runtime, which knows nothing of the tracer.

use std::sync::Arc;

use shardax_core::{DType, Element, F8E4M3FN, F8E5M2, Literal, TensorType, ir::HostFunction};
use shardax_pjrt::{ArrayType, ElementType, HostArray};

/// The runtime's element type.
pub(crate) const fn element_type(dtype: DType) -> ElementType {
    match dtype {
        DType::Bool => ElementType::Bool,
        DType::I4 => ElementType::I4,
        DType::I8 => ElementType::I8,
        DType::I16 => ElementType::I16,
        DType::I32 => ElementType::I32,
        DType::I64 => ElementType::I64,
        DType::U4 => ElementType::U4,
        DType::U8 => ElementType::U8,
        DType::U16 => ElementType::U16,
        DType::U32 => ElementType::U32,
        DType::U64 => ElementType::U64,
        DType::F8E4M3FN => ElementType::F8E4M3FN,
        DType::F8E5M2 => ElementType::F8E5M2,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::BF16,
        DType::F32 => ElementType::F32,
        DType::F64 => ElementType::F64,
        DType::C64 => ElementType::C64,
    }
}

/// A closure over literals as the runtime calls it.
pub(super) fn over_arrays(function: &HostFunction) -> shardax_pjrt::HostFunction {
    let closure = function.closure().clone();
    Arc::new(move |operands: &[HostArray]| {
        let literals = operands.iter().enumerate();
        let literals = literals.map(|(position, array)| {
            literal(array).ok_or_else(|| {
                format!(
                    "operand {position} is {}, whose elements host functions cannot have: convert it before the call",
                    array.ty()
                )
            })
        });
        let literals = literals.collect::<Result<Vec<_>, _>>()?;
        closure(&literals)?.iter().map(array).collect()
    })
}

/// The value of an array.
fn literal(array: &HostArray) -> Option<Literal> {
    fn of<T: Element>(array: &HostArray) -> Option<Literal> {
        Literal::from_slice(&T::from_bytes(array.bytes()), &array.ty().dims)
    }
    match array.ty().element {
        ElementType::Bool => of::<bool>(array),
        ElementType::I8 => of::<i8>(array),
        ElementType::I16 => of::<i16>(array),
        ElementType::I32 => of::<i32>(array),
        ElementType::I64 => of::<i64>(array),
        ElementType::U8 => of::<u8>(array),
        ElementType::U16 => of::<u16>(array),
        ElementType::U32 => of::<u32>(array),
        ElementType::U64 => of::<u64>(array),
        ElementType::F16 => of::<half::f16>(array),
        ElementType::BF16 => of::<half::bf16>(array),
        ElementType::F32 => of::<f32>(array),
        ElementType::F64 => of::<f64>(array),
        ElementType::F8E4M3FN => of::<F8E4M3FN>(array),
        ElementType::F8E5M2 => of::<F8E5M2>(array),
        ElementType::C64 => of::<[f32; 2]>(array),
        // No Rust type stands for them.
        ElementType::I4 | ElementType::U4 => None,
    }
}

/// A literal with all of its bytes: one whose elements are equal has the bytes of one.
fn array(literal: &Literal) -> Result<HostArray, String> {
    let TensorType { dtype, shape, .. } = literal.ty();
    let ty = ArrayType::new(element_type(*dtype), &shape[..]);
    let size = ty.host_bytes().map_err(|error| error.to_string())?;
    let bytes = literal.bytes();
    let copies = size.checked_div(bytes.len()).unwrap_or(0);
    HostArray::new(ty, bytes.repeat(copies)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_element_stands_for_all() {
        let seven = Literal::scalar(7.into(), DType::F32).unwrap();
        assert_eq!(array(&seven).unwrap().bytes(), 7f32.to_le_bytes());
        let empty = Literal::from_slice::<f32>(&[], [0, 3]).unwrap();
        assert!(array(&empty).unwrap().bytes().is_empty());
    }

    #[test]
    fn values_pass_through() {
        let values = [[1f32, -2.0], [0.0, f32::INFINITY]];
        let complex = Literal::from_slice(&values, [2]).unwrap();
        assert_eq!(literal(&array(&complex).unwrap()), Some(complex));
        let bits = Literal::from_slice(&[true, false, true], [3]).unwrap();
        assert_eq!(literal(&array(&bits).unwrap()), Some(bits));
    }

    #[test]
    fn types_are_called_alike() {
        for dtype in DType::ALL {
            assert_eq!(element_type(dtype).name(), dtype.name());
            assert_eq!(element_type(dtype).host_bytes(), dtype.host_bytes());
        }
    }
}
