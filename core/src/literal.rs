//! Values known while tracing: scalars and small arrays written in the program.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};

use crate::dtype::DType;
use crate::float8::{F8E4M3FN, F8E5M2};
use crate::types::TensorType;

/// A Rust type that has a [`DType`]: `f32`, `half::bf16`, `i32`, `bool`, `[f32; 2]` (a complex
/// number), ... A 4-bit integer has none of its own: convert from `i8` or `u8` in the program.
pub trait Element: Copy + fmt::Debug + Send + Sync + 'static {
    /// The element type of tensors made of it.
    const DTYPE: DType;
    /// The bytes of a slice, in host order.
    fn to_bytes(values: &[Self]) -> Vec<u8>;
    /// The values that bytes in host order stand for; a trailing partial element is left out.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

fn pod_from_bytes<T: Pod>(bytes: &[u8]) -> Vec<T> {
    bytes
        .chunks_exact(size_of::<T>())
        .map(bytemuck::pod_read_unaligned)
        .collect()
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_bytes(values: &[Self]) -> Vec<u8> {
                bytemuck::cast_slice(values).to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                pod_from_bytes(bytes)
            }
        }
    )*};
}

element!(
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
    // The real part, and the imaginary one.
    [f32; 2] => C64,
);

macro_rules! element_of_bits {
    ($($ty:ident),*) => {$(
        impl Element for $ty {
            const DTYPE: DType = DType::$ty;
            fn to_bytes(values: &[Self]) -> Vec<u8> {
                values.iter().map(|v| v.to_bits()).collect()
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytes.iter().copied().map(Self::from_bits).collect()
            }
        }
    )*};
}

element_of_bits!(F8E4M3FN, F8E5M2);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn to_bytes(values: &[Self]) -> Vec<u8> {
        values.iter().map(|&v| u8::from(v)).collect()
    }
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&b| b != 0).collect()
    }
}

/// A number written in the program, before it takes the element type of the tensor it meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
}

macro_rules! number {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for Number {
            fn from(value: $ty) -> Self { Number::$variant(value.into()) }
        }
    )*};
}

/// A size, such as [`Tensor::size`](crate::Tensor::size) gives.
impl From<usize> for Number {
    fn from(value: usize) -> Self {
        // No array has more elements.
        Number::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<f16> for Number {
    fn from(value: f16) -> Self {
        Number::Float(value.into())
    }
}

impl From<bf16> for Number {
    fn from(value: bf16) -> Self {
        Number::Float(value.into())
    }
}

number!(bool => Bool, i8 => Int, i16 => Int, i32 => Int, i64 => Int, u8 => Int, u16 => Int,
    u32 => Int, f32 => Float, f64 => Float);

impl Number {
    /// The value as a float; `true` is 1.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Bool(v) => f64::from(u8::from(v)),
            Number::Int(v) => v as f64,
            Number::Float(v) => v,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Bool(v) => write!(f, "{v}"),
            Number::Int(v) => write!(f, "{v}"),
            Number::Float(v) => write!(f, "{v:?}"),
        }
    }
}

/// A constant: one element repeated, or every element.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Literal {
    ty: TensorType,
    elements: Elements,
}

/// The bytes of one element, of which none has more than eight.
type ElementBytes = SmallVec<[u8; 8]>;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Elements {
    /// One that is repeated. A program has many of them.
    Same(ElementBytes),
    /// The bytes of all in row-major order.
    Each(Arc<[u8]>),
}

impl Literal {
    /// An array of these values.
    ///
    /// Returns `None` when `values` has not as many elements as `shape`.
    pub fn from_slice<T: Element>(values: &[T], shape: impl AsRef<[usize]>) -> Option<Self> {
        let ty = TensorType::new(T::DTYPE, shape);
        (ty.element_count() == values.len()).then(|| Literal {
            elements: Elements::Each(T::to_bytes(values).into()),
            ty,
        })
    }

    /// An array of this type with these bytes: those of all elements in row-major order, in host order, a
    /// 4-bit integer in a byte of its own.
    ///
    /// Returns `None` when they are not as many as the type has.
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Option<Self> {
        (ty.host_bytes() == bytes.len()).then(|| Literal {
            elements: Elements::Each(bytes.into()),
            ty,
        })
    }

    /// A scalar of type `dtype`, rounded to the nearest float; `None` when the type does not hold the number: a
    /// fraction, for an integer type, or what is out of range. An infinity is held by types that have one. All
    /// numbers that are written in a program come through here.
    pub fn scalar(number: Number, dtype: DType) -> Option<Self> {
        let bytes = scalar_bytes(number, dtype)?;
        Some(Literal {
            ty: TensorType::scalar(dtype),
            elements: Elements::Same(bytes),
        })
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The bytes of one element if all are the same by construction, else of all elements.
    pub fn bytes(&self) -> &[u8] {
        match &self.elements {
            Elements::Same(bytes) => bytes,
            Elements::Each(bytes) => bytes,
        }
    }

    /// Whether [`Literal::bytes`] is one element that is repeated.
    pub fn is_splat(&self) -> bool {
        matches!(self.elements, Elements::Same(_))
    }

    /// The number that every element of a splat is; `None` of other constants.
    pub fn number(&self) -> Option<Number> {
        match &self.elements {
            Elements::Same(_) => self.each_number().next(),
            Elements::Each(_) => None,
        }
    }

    /// All elements in row-major order, if `T` is their type.
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        let values = (T::DTYPE == self.ty.dtype).then(|| T::from_bytes(self.bytes()))?;
        match (self.is_splat(), values.first()) {
            (true, Some(&value)) => Some(vec![value; self.ty.element_count()]),
            _ => Some(values),
        }
    }

    /// The elements (one of them, for a splat) as numbers; of a complex one, both parts.
    pub fn numbers(&self) -> Vec<Number> {
        self.each_number().collect()
    }

    fn each_number(&self) -> impl Iterator<Item = Number> {
        let dtype = self.ty.dtype;
        let bytes = self.bytes().chunks_exact(dtype.part_bytes());
        bytes.map(move |bytes| number(dtype, bytes))
    }
}

fn scalar_bytes(number: Number, dtype: DType) -> Option<ElementBytes> {
    let float = number.as_f64();
    let int = match number {
        Number::Bool(v) => i64::from(v),
        Number::Int(v) => v,
        Number::Float(v) if v.fract() == 0.0 && v.abs() < 9.0e15 => v as i64,
        Number::Float(_) => {
            return dtype
                .is_differentiable()
                .then(|| float_bytes(float, dtype))?;
        }
    };
    match dtype {
        DType::Bool => matches!(int, 0 | 1).then(|| smallvec![int as u8]),
        DType::I4 => (-8..8).contains(&int).then(|| smallvec![int as i8 as u8]),
        DType::U4 => (0..16).contains(&int).then(|| smallvec![int as u8]),
        DType::I8 => i8::try_from(int).ok().map(element_bytes),
        DType::I16 => i16::try_from(int).ok().map(element_bytes),
        DType::I32 => i32::try_from(int).ok().map(element_bytes),
        DType::I64 => Some(element_bytes(int)),
        DType::U8 => u8::try_from(int).ok().map(element_bytes),
        DType::U16 => u16::try_from(int).ok().map(element_bytes),
        DType::U32 => u32::try_from(int).ok().map(element_bytes),
        DType::U64 => u64::try_from(int).ok().map(element_bytes),
        _ => float_bytes(float, dtype),
    }
}

fn float_bytes(v: f64, dtype: DType) -> Option<ElementBytes> {
    let bytes = match dtype {
        DType::F16 => element_bytes(f16::from_f64(v)),
        DType::BF16 => element_bytes(bf16::from_f64(v)),
        DType::F32 => element_bytes(v as f32),
        DType::F64 => element_bytes(v),
        DType::C64 => element_bytes([v as f32, 0.0]),
        DType::F8E4M3FN => smallvec![F8E4M3FN::from_f64(v).to_bits()],
        DType::F8E5M2 => smallvec![F8E5M2::from_f64(v).to_bits()],
        _ => return None,
    };
    let rounded = number(dtype, &bytes[..dtype.part_bytes()]).as_f64();
    let is_held = rounded.is_nan() == v.is_nan() && rounded.is_infinite() == v.is_infinite();
    is_held.then_some(bytes)
}

fn element_bytes<T: Pod>(value: T) -> ElementBytes {
    SmallVec::from_slice(bytemuck::bytes_of(&value))
}

/// The number that an element's bytes stand for; of a complex one, those of either part.
fn number(dtype: DType, bytes: &[u8]) -> Number {
    fn of<T: Pod>(bytes: &[u8]) -> T {
        bytemuck::pod_read_unaligned(bytes)
    }
    match dtype {
        DType::Bool => Number::Bool(bytes != [0]),
        DType::I4 | DType::I8 => of::<i8>(bytes).into(),
        DType::I16 => of::<i16>(bytes).into(),
        DType::I32 => of::<i32>(bytes).into(),
        DType::I64 => of::<i64>(bytes).into(),
        DType::U4 | DType::U8 => of::<u8>(bytes).into(),
        DType::U16 => of::<u16>(bytes).into(),
        DType::U32 => of::<u32>(bytes).into(),
        DType::U64 => Number::Int(of::<u64>(bytes) as i64),
        DType::F16 => of::<f16>(bytes).into(),
        DType::BF16 => of::<bf16>(bytes).into(),
        DType::F32 | DType::C64 => of::<f32>(bytes).into(),
        DType::F64 => of::<f64>(bytes).into(),
        DType::F8E4M3FN => F8E4M3FN::from_bits(of(bytes)).to_f64().into(),
        DType::F8E5M2 => F8E5M2::from_bits(of(bytes)).to_f64().into(),
    }
}

/// `2.5`, `[1, 2, 3]`, `f32[1024]{...}`.
impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.numbers();
        let text = |number: &Number| match (number, self.ty.dtype) {
            (number, DType::F64) => number.to_string(),
            // As many digits as the narrower type has.
            (Number::Float(v), _) => format!("{:?}", *v as f32),
            (number, _) => number.to_string(),
        };
        match numbers.as_slice() {
            [number] if self.is_splat() => f.write_str(&text(number)),
            few if few.len() <= 8 && !few.is_empty() => {
                f.write_str("[")?;
                for (i, number) in few.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", text(number))?;
                }
                f.write_str("]")
            }
            _ => write!(f, "{}{{...}}", self.ty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_takes_the_element_type_it_meets() {
        let two = Literal::scalar(2.0.into(), DType::I32).map(|l| l.numbers());
        assert_eq!(two, Some(vec![Number::Int(2)]));
        assert_eq!(Literal::scalar(2.5.into(), DType::I32), None);
        assert_eq!(Literal::scalar(300.into(), DType::U8), None);
        assert_eq!(Literal::scalar(2.5.into(), DType::Bool), None);
        let half = Literal::scalar(0.5.into(), DType::BF16).map(|l| l.numbers());
        assert_eq!(half, Some(vec![Number::Float(0.5)]));
    }

    #[test]
    fn numbers_that_are_not_finite_are_floats() {
        let infinity = Literal::scalar(f64::INFINITY.into(), DType::F32);
        assert_eq!(
            infinity.and_then(|l| l.number()),
            Some(Number::Float(f64::INFINITY))
        );
        let none = Literal::scalar(f64::NEG_INFINITY.into(), DType::F8E4M3FN);
        assert_eq!(none, None);
        assert_eq!(Literal::scalar(f64::NAN.into(), DType::I32), None);
        assert_eq!(Literal::scalar(1e20.into(), DType::I64), None);
    }

    #[test]
    fn a_number_is_held_up_to_the_largest_one() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            let largest = dtype.largest_finite().unwrap_or(f64::NAN);
            let held = |v: f64| Literal::scalar(v.into(), dtype).and_then(|l| l.number());
            assert_eq!(held(largest), Some(Number::Float(largest)), "{dtype}");
            assert_eq!(held(-largest), Some(Number::Float(-largest)), "{dtype}");
            if dtype != DType::F64 {
                assert_eq!(
                    held(largest * 1.004).is_some(),
                    dtype.bits() < 16,
                    "{dtype}"
                );
                assert_eq!(held(largest * 1.2), None, "{dtype}");
                assert_eq!(held(-1e300), None, "{dtype}");
            }
            assert!(held(1e-320).is_some(), "{dtype}");
            let nan = held(f64::NAN).map(|v| v.as_f64().is_nan());
            assert_eq!(nan, Some(true), "{dtype}");
        }
        assert_eq!(Literal::scalar(1e39.into(), DType::C64), None);
        assert_eq!(Literal::scalar(70_000.into(), DType::F16), None);
    }

    #[test]
    fn constants_print_in_the_digits_of_their_type() {
        let printed = |dtype| Literal::scalar(0.1.into(), dtype).map(|l| format!("{l:?}"));
        assert_eq!(printed(DType::F32).as_deref(), Some("0.1"));
        assert_eq!(printed(DType::F64).as_deref(), Some("0.1"));
        assert_eq!(printed(DType::BF16).as_deref(), Some("0.100097656"));
        let several = Literal::from_slice(&[1i32, 2], [2]).map(|l| format!("{l:?}"));
        assert_eq!(several.as_deref(), Some("[1, 2]"));
    }

    #[test]
    fn narrow_floats_and_complex_numbers_are_literals() {
        for dtype in [DType::F8E4M3FN, DType::F8E5M2] {
            let rounded = Literal::scalar(0.3.into(), dtype).and_then(|l| l.number());
            assert_eq!(rounded, Some(Number::Float(0.3125)), "{dtype}");
        }
        let complex = Literal::from_slice(&[[1f32, 2.0], [3.0, 4.0]], [2]);
        let complex = complex.map(|l| (l.ty().to_string(), l.numbers().len()));
        assert_eq!(complex, Some(("c64[2]".to_owned(), 4)));
    }

    #[test]
    fn a_slice_must_fill_its_shape() {
        assert!(Literal::from_slice(&[1f32, 2.0], [2, 1]).is_some());
        assert!(Literal::from_slice(&[1f32, 2.0], [3]).is_none());
    }
}
