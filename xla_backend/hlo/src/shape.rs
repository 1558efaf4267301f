//! What an instruction's value is on one device: element types, dimensions, bytes.

use std::fmt;

use serde::{Serialize, Serializer};

use super::proto;

/// The shape of a value on one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// A dense array.
    Array(ArrayShape),
    /// Several values.
    Tuple(Vec<Shape>),
    /// No data: a token, or a handle of the compiler's own.
    Opaque,
}

/// Element type and dimensions of an array, printed `f32[8,64]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayShape {
    /// The type of an element.
    pub element: Element,
    /// Sizes, major first; for a dimension of dynamic size its upper bound.
    pub dims: Vec<u64>,
}

/// An element type of HLO, printed as in HLO text: `f32`, `bf16`, `s32`, `pred`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Element(i32);

/// Number in `xla_data.proto`, name, bits in memory.
const ELEMENTS: [(i32, &str, u64); 30] = [
    (1, "pred", 8),
    (2, "s8", 8),
    (3, "s16", 16),
    (4, "s32", 32),
    (5, "s64", 64),
    (6, "u8", 8),
    (7, "u16", 16),
    (8, "u32", 32),
    (9, "u64", 64),
    (10, "f16", 16),
    (11, "f32", 32),
    (12, "f64", 64),
    (15, "c64", 64),
    (16, "bf16", 16),
    (18, "c128", 128),
    (19, "f8e5m2", 8),
    (20, "f8e4m3fn", 8),
    (21, "s4", 4),
    (22, "u4", 4),
    (23, "f8e4m3b11fnuz", 8),
    (24, "f8e5m2fnuz", 8),
    (25, "f8e4m3fnuz", 8),
    (26, "s2", 2),
    (27, "u2", 2),
    (28, "f8e4m3", 8),
    (29, "f8e3m4", 8),
    (30, "s1", 1),
    (31, "u1", 1),
    (32, "f4e2m1fn", 4),
    (33, "f8e8m0fnu", 8),
];

const TUPLE: i32 = 13;
const OPAQUE: i32 = 14;
const TOKEN: i32 = 17;
/// A buffer that is updated in place; the array is its one component.
const BUFFER: i32 = 34;

impl Shape {
    pub(super) fn build(proto: &proto::Shape) -> Result<Self, String> {
        match proto.element_type {
            TUPLE => {
                let parts = proto.tuple_shapes.iter().map(Shape::build);
                Ok(Shape::Tuple(parts.collect::<Result<_, _>>()?))
            }
            BUFFER => proto
                .tuple_shapes
                .first()
                .map_or(Ok(Shape::Opaque), Shape::build),
            0 | OPAQUE | TOKEN => Ok(Shape::Opaque),
            element => {
                let dims = proto.dimensions.iter().map(|&size| u64::try_from(size));
                let dims = dims.collect::<Result<_, _>>();
                let dims = dims.map_err(|_| format!("dimensions {:?}", proto.dimensions))?;
                Ok(Shape::Array(ArrayShape {
                    element: Element(element),
                    dims,
                }))
            }
        }
    }

    /// The arrays in it, in order, those in tuples included.
    pub fn arrays(&self) -> Vec<&ArrayShape> {
        match self {
            Shape::Array(array) => vec![array],
            Shape::Tuple(parts) => parts.iter().flat_map(Shape::arrays).collect(),
            Shape::Opaque => vec![],
        }
    }
}

impl ArrayShape {
    /// Bytes on one device, elements of less than a byte packed. `None` if the element type is not known
    /// or the number is beyond a `u64`.
    pub fn bytes(&self) -> Option<u64> {
        let elements = self
            .dims
            .iter()
            .try_fold(1u64, |product, &size| product.checked_mul(size))?;
        Some(elements.checked_mul(self.element.bits()?)?.div_ceil(8))
    }
}

impl Element {
    /// `f32`.
    pub const F32: Element = Element(11);

    /// The name in HLO text, or `None` for a type newer than this crate.
    pub fn name(self) -> Option<&'static str> {
        ELEMENTS
            .iter()
            .find(|(number, ..)| *number == self.0)
            .map(|(_, name, _)| *name)
    }

    /// Bits that an element takes on the device, or `None` for a type newer than this crate.
    pub fn bits(self) -> Option<u64> {
        ELEMENTS
            .iter()
            .find(|(number, ..)| *number == self.0)
            .map(|(.., bits)| *bits)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "type{}", self.0),
        }
    }
}

impl fmt::Display for ArrayShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(u64::to_string).collect();
        write!(f, "{}[{}]", self.element, dims.join(","))
    }
}

/// As text, `"f32[8,64]"`.
impl Serialize for ArrayShape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(element: i32, dims: &[i64]) -> proto::Shape {
        proto::Shape {
            element_type: element,
            dimensions: dims.to_vec(),
            tuple_shapes: vec![],
        }
    }

    #[test]
    fn shapes_print_and_count_bytes() {
        let shape = |proto| Shape::build(&proto).unwrap();
        let bytes = |proto| shape(proto).arrays()[0].bytes();
        assert_eq!(bytes(array(11, &[8, 64])), Some(2048));
        assert_eq!(bytes(array(16, &[])), Some(2));
        assert_eq!(bytes(array(21, &[3])), Some(2));
        assert_eq!(bytes(array(18, &[0, 5])), Some(0));
        assert_eq!(bytes(array(11, &[i64::MAX, 3])), None);
        assert_eq!(bytes(array(99, &[4])), None);
        assert_eq!(
            shape(array(11, &[8, 64])).arrays()[0].to_string(),
            "f32[8,64]"
        );
        assert_eq!(shape(array(99, &[4])).arrays()[0].to_string(), "type99[4]");
        let tuple = proto::Shape {
            element_type: TUPLE,
            dimensions: vec![],
            tuple_shapes: vec![array(4, &[]), array(TOKEN, &[]), array(1, &[2])],
        };
        let names: Vec<String> = shape(tuple)
            .arrays()
            .iter()
            .map(|a| a.to_string())
            .collect();
        assert_eq!(names, ["s32[]", "pred[2]"]);
    }
}
