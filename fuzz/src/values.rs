//! The values of a program's inputs.

use shardax::DType;
use shardax_interpreter::Array;

use crate::dice::Dice;
use crate::program::Type;

/// What kind of numbers a program computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Numbers between -2 and 2.
    Plain,
    /// Whole numbers, many of them equal.
    Whole,
    /// NaN, infinities, zeros of either sign, huge and tiny numbers among others.
    Special,
}

impl Mood {
    /// One of them; special ones less often.
    pub fn pick(dice: &mut Dice) -> Self {
        match dice.roll(8) {
            0 => Mood::Special,
            1 | 2 => Mood::Whole,
            _ => Mood::Plain,
        }
    }
}

const SPECIAL: [f64; 14] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.0,
    -0.0,
    1e30,
    -1e30,
    1e300,
    1e-30,
    1e-300,
    65504.0,
    1.0,
    -1.0,
    3.0e38,
];

/// Elements of a type, each a value of it.
pub fn values(dice: &mut Dice, ty: &Type, mood: Mood) -> Vec<f64> {
    let mut number = || match (ty.dtype, mood) {
        (DType::Bool, _) => dice.roll(2) as f64,
        (dtype, Mood::Special) if dtype.is_float() && dice.once_in(3) => *dice.one_of(&SPECIAL),
        (dtype, Mood::Special) if dtype.is_integer() && dice.once_in(6) => {
            let unsigned = dtype.is_unsigned_integer();
            *dice.one_of(&[127.0, if unsigned { 255.0 } else { -128.0 }])
        }
        (dtype, Mood::Whole) if dtype.is_float() => dice.within(-2, 2) as f64,
        (dtype, _) if dtype.is_float() => dice.unit() * 4.0 - 2.0,
        (dtype, _) if dtype.is_unsigned_integer() => dice.roll(6) as f64,
        _ => dice.within(-3, 6) as f64,
    };
    let numbers: Vec<f64> = (0..ty.count()).map(|_| number()).collect();
    array(ty, &numbers).floats()
}

/// The values as the interpreter has them.
pub fn array(ty: &Type, values: &[f64]) -> Array {
    Array::new(ty.dtype, &ty.shape, values.iter().copied())
}
