//! The operations that programs call: each is written once, as Rust that is compiled and that is
//! printed.

mod collectives;
mod elements;
mod indexing;
mod networks;
mod order;
mod products;
mod reductions;
mod shapes;

use shardax::{DType, Tensor};

use crate::dice::Dice;
use crate::program::{Parameters, Type};

/// An operation of the table.
pub struct Operation {
    /// What it is called in programs and counts.
    pub name: &'static str,
    /// What it takes.
    pub wants: &'static [Want],
    /// Its Rust, in which `x` are the operands and `p` the parameters.
    pub source: &'static str,
    /// The same.
    pub apply: fn(&[Tensor], &Parameters) -> Tensor,
}

/// The types that an operand may have.
#[derive(Clone, Copy)]
pub enum Want {
    /// One of a class, of this rank at least.
    Any(Class, usize),
    /// The type of an earlier operand.
    Same(usize),
    /// The shape of an earlier operand.
    Shape(usize, Class),
    /// The element type of an earlier operand, and a shape that broadcasts with its own.
    Fits(usize),
    /// What follows from the earlier operands, if anything does.
    Made(fn(&mut Dice, &[Type]) -> Option<Type>),
}

/// Element types.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// All but complex numbers.
    Any,
    /// Real floating-point numbers.
    Float,
    /// f32 and f64.
    Wide,
    /// Floating-point numbers and integers.
    Number,
    /// Integers.
    Integer,
    /// Booleans.
    Bool,
    /// Complex numbers.
    Complex,
}

impl Class {
    /// Whether a type is of the class.
    pub fn has(self, dtype: DType) -> bool {
        match self {
            Class::Any => !dtype.is_complex(),
            Class::Float => dtype.is_float(),
            Class::Wide => matches!(dtype, DType::F32 | DType::F64),
            Class::Number => dtype.is_float() || dtype.is_integer(),
            Class::Integer => dtype.is_integer(),
            Class::Bool => dtype == DType::Bool,
            Class::Complex => dtype.is_complex(),
        }
    }

    /// A type of the class, one that is used much rather than another.
    pub fn pick(self, dice: &mut Dice) -> DType {
        use DType::*;
        let all: &[DType] = match self {
            Class::Any | Class::Number | Class::Float => match dice.roll(8) {
                0..3 => &[F32],
                3 | 4 => &[F64],
                5 if self != Class::Float => &[I32],
                6 if self == Class::Any => &[Bool],
                7 if self != Class::Float => &[I8, I16, I64, U8, U16, U32, U64],
                _ => &[BF16, BF16, F16],
            },
            Class::Wide => &[F32, F64],
            Class::Integer => &[I32, I32, I32, I8, I16, I64, U8, U16, U32, U64],
            Class::Bool => &[Bool],
            Class::Complex => &[C64],
        };
        *dice.one_of(all)
    }
}

/// Declares operations; `with` names the operands and the parameters in their Rust.
macro_rules! operations {
    (with $x:ident, $p:ident; $($name:literal [$($want:expr),*] $body:expr;)*) => {
        /// Operations of this family.
        pub(super) const ALL: &[Operation] = &[$(Operation {
            name: $name,
            wants: &[$($want),*],
            source: stringify!($body),
            apply: |$x: &[Tensor], $p: &Parameters| {
                let _ = ($x, $p);
                $body
            },
        }),*];
    };
}
use operations;
pub(crate) use products::HELPERS;

/// All operations.
pub fn all() -> impl Iterator<Item = &'static Operation> {
    let families = [
        elements::ALL,
        elements::MORE,
        shapes::ALL,
        reductions::ALL,
        products::ALL,
        indexing::ALL,
        order::ALL,
        networks::ALL,
    ];
    families.into_iter().flatten()
}

/// Those that devices of a manual region tell each other something with.
pub fn collectives() -> impl Iterator<Item = &'static Operation> {
    collectives::ALL.iter()
}

/// The operation of a name.
pub fn named(name: &str) -> Option<&'static Operation> {
    all()
        .chain(collectives())
        .find(|operation| operation.name == name)
}

/// A size of a dimension: often one that the program has already, or that its mesh divides.
pub fn size(dice: &mut Dice) -> usize {
    match dice.roll(16) {
        0 => 0,
        1 => 1,
        2 => 2 + dice.roll(7),
        _ => {
            let favored = dice.favored.clone();
            *dice.one_of(&favored)
        }
    }
}
