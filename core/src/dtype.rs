//! Element types.

use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// Boolean.
    Bool,
    /// 4-bit signed integer.
    I4,
    /// 8-bit signed integer.
    I8,
    /// 16-bit signed integer.
    I16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// 4-bit unsigned integer.
    U4,
    /// 8-bit unsigned integer.
    U8,
    /// 16-bit unsigned integer.
    U16,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit unsigned integer.
    U64,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities: beyond 448 is NaN.
    F8E4M3FN,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
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

impl DType {
    /// All of them.
    pub const ALL: [DType; 18] = [
        DType::Bool,
        DType::I4,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U4,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F8E4M3FN,
        DType::F8E5M2,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::C64,
    ];

    /// The name as it is printed and as StableHLO spells it in a dense type, `bf16` or `f8e4m3fn`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I4 => "i4",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U4 => "u4",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::F8E4M3FN => "f8e4m3fn",
            DType::F8E5M2 => "f8e5m2",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::C64 => "c64",
        }
    }

    /// Bytes of one element in host memory (a 4-bit integer takes a whole byte there).
    pub const fn host_bytes(self) -> usize {
        match self {
            DType::Bool | DType::I4 | DType::U4 | DType::I8 | DType::U8 => 1,
            DType::F8E4M3FN | DType::F8E5M2 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 | DType::C64 => 8,
        }
    }

    /// Bytes in host memory of one number: an element, or one part of a complex one.
    pub(crate) const fn part_bytes(self) -> usize {
        match self {
            DType::C64 => self.host_bytes() / 2,
            _ => self.host_bytes(),
        }
    }

    /// Bits that one element's value has: 4 for a 4-bit integer, 1 for a boolean.
    pub const fn bits(self) -> usize {
        match self {
            DType::Bool => 1,
            DType::I4 | DType::U4 => 4,
            _ => 8 * self.host_bytes(),
        }
    }

    /// Whether this is a real floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::F8E4M3FN | DType::F8E5M2 | DType::F16 | DType::BF16 | DType::F32 | DType::F64
        )
    }

    /// The element type in which values of this type are summed, f32 for narrow floats: a long sum in eight
    /// bits of mantissa stops growing once it is 256 times its next element.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 | DType::F8E4M3FN | DType::F8E5M2 => DType::F32,
            _ => self,
        }
    }

    /// Whether this is a floating-point type that is summed in a wider one.
    pub const fn is_narrow_float(self) -> bool {
        self.is_float() && self.bits() < 32
    }

    /// Bits of the mantissa after the leading one, and the smallest number that has them all;
    /// `None` of what is not a real floating-point type.
    pub const fn precision(self) -> Option<(u32, f64)> {
        // f64 holds the limits of every type exactly.
        match self {
            DType::F8E4M3FN => Some((3, 0.015625)),
            DType::F8E5M2 => Some((2, 0.00006103515625)),
            DType::F16 => Some((10, 0.00006103515625)),
            DType::BF16 => Some((7, f32::MIN_POSITIVE as f64)),
            DType::F32 => Some((23, f32::MIN_POSITIVE as f64)),
            DType::F64 => Some((52, f64::MIN_POSITIVE)),
            _ => None,
        }
    }

    /// The largest finite number; `None` of what is not a real floating-point type.
    pub const fn largest_finite(self) -> Option<f64> {
        match self {
            DType::F8E4M3FN => Some(448.0),
            DType::F8E5M2 => Some(57344.0),
            DType::F16 => Some(65504.0),
            DType::BF16 => Some(3.389_531_389_251_535_5e38),
            DType::F32 => Some(f32::MAX as f64),
            DType::F64 => Some(f64::MAX),
            _ => None,
        }
    }

    /// Whether values may be infinite: of floats but `f8e4m3fn`, in which what is too large is NaN.
    pub const fn has_infinities(self) -> bool {
        self.is_differentiable() && !matches!(self, DType::F8E4M3FN)
    }

    /// Whether this is a complex type.
    pub const fn is_complex(self) -> bool {
        matches!(self, DType::C64)
    }

    /// Whether a derivative can be taken with respect to values of this type.
    pub const fn is_differentiable(self) -> bool {
        self.is_float() || self.is_complex()
    }

    /// Whether this is a signed integer type.
    pub const fn is_signed_integer(self) -> bool {
        matches!(
            self,
            DType::I4 | DType::I8 | DType::I16 | DType::I32 | DType::I64
        )
    }

    /// Whether this is an unsigned integer type.
    pub const fn is_unsigned_integer(self) -> bool {
        matches!(
            self,
            DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64
        )
    }

    /// Whether this is an integer type; `bool` is not.
    pub const fn is_integer(self) -> bool {
        self.is_signed_integer() || self.is_unsigned_integer()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
