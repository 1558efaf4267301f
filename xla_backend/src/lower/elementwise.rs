//! Functions of single elements.

use shardax_core::{
    DType, Reducer, TensorType,
    ir::{Binary, Comparison, Unary},
};

use super::Lowering;
use super::writer::{Loc, Piece, Ssa, push, tensor_type};

/// Writes a function of one operand; `functional` is its type, `result` that of the result.
pub(super) fn unary(
    out: &mut String,
    unary: Unary,
    x: &dyn Piece,
    functional: &dyn Piece,
    result: &str,
) {
    match unary_name(unary) {
        Name::StableHlo(name) => match unary {
            Unary::Abs | Unary::Imag | Unary::IsFinite | Unary::Real => {
                push!(out, "stablehlo." name " " x " : " functional);
            }
            _ => push!(out, "stablehlo." name " " x " : " result),
        },
        Name::Chlo(name) => push!(out, "chlo." name " " x " : " result " -> " result),
    }
}

/// Writes a function of two operands.
pub(super) fn binary(
    out: &mut String,
    binary: Binary,
    dtype: DType,
    x: &dyn Piece,
    functional: &dyn Piece,
    result: &str,
) {
    match binary_name(binary, dtype) {
        Name::StableHlo(name) if binary == Binary::Complex => {
            push!(out, "\"stablehlo." name "\"(" x ") : " functional);
        }
        Name::StableHlo(name) => push!(out, "stablehlo." name " " x " : " result),
        Name::Chlo(name) => push!(out, "\"chlo." name "\"(" x ") : " functional),
    }
}

impl Lowering<'_> {
    /// A function that XLA has for wider types alone.
    pub(super) fn widened(&mut self, op: Unary, ty: &TensorType, x: Ssa, loc: Loc) -> Ssa {
        let (narrow, wide) = (tensor_type(ty), TensorType::new(DType::F32, &ty.shape));
        let wide = tensor_type(&wide);
        let x = self.assign(
            &format!("stablehlo.convert {x} : ({narrow}) -> {wide}"),
            loc,
        );
        let functional = format!("({wide}) -> {wide}");
        let write = |out: &mut String| unary(out, op, &x, &functional, &wide);
        let y = self.out.assign(loc, write);
        self.assign(
            &format!("stablehlo.convert {y} : ({wide}) -> {narrow}"),
            loc,
        )
    }

    /// The inverse tangent, of which XLA would make [`Lowering::atan2`] with a constant.
    pub(super) fn atan(&mut self, ty: &TensorType, x: Ssa, loc: Loc) -> Ssa {
        let text = tensor_type(ty);
        let one = self.assign(&format!("stablehlo.constant dense<1.0> : {text}"), loc);
        self.atan2(ty, [x, one], loc)
    }

    /// The angle of coordinates. XLA's CPU compiler gives wrong numbers, in arrays of 32 elements or more, where it knows the
    /// second to be 1: in f64, in narrow types, and in f32 at low levels of optimization.
    pub(super) fn atan2(&mut self, ty: &TensorType, [y, x]: [Ssa; 2], loc: Loc) -> Ssa {
        let text = tensor_type(ty);
        let x = self.assign(&format!("stablehlo.optimization_barrier {x} : {text}"), loc);
        self.assign(&format!("stablehlo.atan2 {y}, {x} : {text}"), loc)
    }

    /// The bits of a 4-bit integer that are set: XLA counts those of eight bits, the sign repeated.
    pub(super) fn population_of_4(&mut self, ty: &TensorType, x: Ssa, loc: Loc) -> Ssa {
        let narrow = tensor_type(ty);
        let wide = tensor_type(&TensorType::new(DType::I8, &ty.shape));
        let bits = self.assign(
            &format!("stablehlo.convert {x} : ({narrow}) -> {wide}"),
            loc,
        );
        let mask = self.assign(&format!("stablehlo.constant dense<15> : {wide}"), loc);
        let bits = self.assign(&format!("stablehlo.and {bits}, {mask} : {wide}"), loc);
        let count = self.assign(&format!("stablehlo.popcnt {bits} : {wide}"), loc);
        self.assign(
            &format!("stablehlo.convert {count} : ({wide}) -> {narrow}"),
            loc,
        )
    }

    /// A product or quotient that is 0 where the first operand is 0; a product, where either is.
    pub(super) fn or_zero(
        &mut self,
        binary: Binary,
        ty: &TensorType,
        [x, y]: [Ssa; 2],
        loc: Loc,
    ) -> Ssa {
        let text = self.types.spelled(ty);
        let mask = self.types.spelled(&TensorType::new(DType::Bool, &ty.shape));
        let zero = self.zeros(ty, loc);
        let mut is_zero = |value: Ssa| {
            self.out.assign(loc, |out| {
                push!(out, "stablehlo.compare EQ, " value ", " zero ", FLOAT : ");
                push!(out, "(" text ", " text ") -> " mask);
            })
        };
        let first = is_zero(x);
        let (name, none) = match binary {
            Binary::DivOrZero => ("divide", first),
            _ => {
                let second = is_zero(y);
                let either = |out: &mut String| {
                    push!(out, "stablehlo.or " first ", " second " : " mask);
                };
                ("multiply", self.out.assign(loc, either))
            }
        };
        let value = self.out.assign(loc, |out| {
            push!(out, "stablehlo." name " " x ", " y " : " text);
        });
        self.out.assign(loc, |out| {
            push!(out, "stablehlo.select " none ", " zero ", " value);
            push!(out, " : " mask ", " text);
        })
    }

    /// Zeros of a type.
    pub(super) fn zeros(&mut self, ty: &TensorType, loc: Loc) -> Ssa {
        let zero = neutral(Reducer::Sum, ty.dtype);
        let text = self.types.spelled(ty);
        let write = |out: &mut String| push!(out, "stablehlo.constant dense<" zero "> : " text);
        self.out.assign(loc, write)
    }
}

/// An operation of one of two dialects.
enum Name {
    StableHlo(&'static str),
    /// Higher-level functions, which XLA expands.
    Chlo(&'static str),
}

fn unary_name(unary: Unary) -> Name {
    Name::StableHlo(match unary {
        Unary::Acos => return Name::Chlo("acos"),
        Unary::Acosh => return Name::Chlo("acosh"),
        Unary::Asin => return Name::Chlo("asin"),
        Unary::Asinh => return Name::Chlo("asinh"),
        Unary::Atan => return Name::Chlo("atan"),
        Unary::Atanh => return Name::Chlo("atanh"),
        Unary::Cosh => return Name::Chlo("cosh"),
        Unary::Digamma => return Name::Chlo("digamma"),
        Unary::Erf => return Name::Chlo("erf"),
        Unary::Erfc => return Name::Chlo("erfc"),
        Unary::Lgamma => return Name::Chlo("lgamma"),
        Unary::Sinh => return Name::Chlo("sinh"),
        Unary::Abs => "abs",
        Unary::Cbrt => "cbrt",
        Unary::Ceil => "ceil",
        Unary::CountLeadingZeros => "count_leading_zeros",
        Unary::Cos => "cosine",
        Unary::Exp => "exponential",
        Unary::Expm1 => "exponential_minus_one",
        Unary::Floor => "floor",
        Unary::Imag => "imag",
        Unary::IsFinite => "is_finite",
        Unary::Log => "log",
        Unary::Log1p => "log_plus_one",
        Unary::Logistic => "logistic",
        Unary::Neg => "negate",
        Unary::Not => "not",
        Unary::PopulationCount => "popcnt",
        Unary::Real => "real",
        Unary::Round => "round_nearest_afz",
        Unary::RoundEven => "round_nearest_even",
        Unary::Rsqrt => "rsqrt",
        Unary::Sign => "sign",
        Unary::Sin => "sine",
        Unary::Sqrt => "sqrt",
        Unary::Tan => "tan",
        Unary::Tanh => "tanh",
    })
}

/// A shift to the right fills with the sign bit where there is one.
fn binary_name(binary: Binary, dtype: DType) -> Name {
    Name::StableHlo(match binary {
        Binary::NextAfter => return Name::Chlo("next_after"),
        Binary::Polygamma => return Name::Chlo("polygamma"),
        Binary::Add => "add",
        Binary::And => "and",
        Binary::Atan2 => "atan2",
        Binary::Complex => "complex",
        Binary::Div | Binary::DivOrZero => "divide",
        Binary::Max => "maximum",
        Binary::Min => "minimum",
        Binary::Mul | Binary::MulOrZero => "multiply",
        Binary::Or => "or",
        Binary::Pow => "power",
        Binary::Rem => "remainder",
        Binary::ShiftLeft => "shift_left",
        Binary::ShiftRight if dtype.is_signed_integer() => "shift_right_arithmetic",
        Binary::ShiftRight | Binary::ShiftRightLogical => "shift_right_logical",
        Binary::Sub => "subtract",
        Binary::Xor => "xor",
    })
}

pub(super) fn direction(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq => "EQ",
        Comparison::Ne => "NE",
        Comparison::Lt => "LT",
        Comparison::Le => "LE",
        Comparison::Gt => "GT",
        Comparison::Ge => "GE",
    }
}

pub(super) fn compare_type(dtype: DType) -> &'static str {
    match dtype {
        _ if dtype.is_differentiable() => "FLOAT",
        _ if dtype.is_signed_integer() => "SIGNED",
        _ => "UNSIGNED",
    }
}

/// The value that changes nothing.
pub(super) fn neutral(reducer: Reducer, dtype: DType) -> String {
    let extremum = |lowest: bool| match dtype {
        DType::Bool => (!lowest).to_string(),
        DType::F16 => if lowest { "0xFC00" } else { "0x7C00" }.to_owned(),
        DType::BF16 => if lowest { "0xFF80" } else { "0x7F80" }.to_owned(),
        DType::F32 => if lowest { "0xFF800000" } else { "0x7F800000" }.to_owned(),
        DType::F64 => if lowest {
            "0xFFF0000000000000"
        } else {
            "0x7FF0000000000000"
        }
        .to_owned(),
        DType::F8E5M2 => if lowest { "0xFC" } else { "0x7C" }.to_owned(),
        // No infinities: the largest finite numbers.
        DType::F8E4M3FN => if lowest { "0xFE" } else { "0x7E" }.to_owned(),
        dtype if dtype.is_unsigned_integer() => {
            if lowest {
                "0".to_owned()
            } else {
                (u64::MAX >> (64 - dtype.bits())).to_string()
            }
        }
        dtype => {
            let lowest_value = i64::MIN >> (64 - dtype.bits());
            if lowest { lowest_value } else { !lowest_value }.to_string()
        }
    };
    match (reducer, dtype) {
        (Reducer::Max, _) => extremum(true),
        (Reducer::Min, _) => extremum(false),
        (Reducer::And, DType::Bool) => "true".to_owned(),
        (Reducer::Prod, DType::Bool) => "true".to_owned(),
        (Reducer::Prod, DType::C64) => "(1.0, 0.0)".to_owned(),
        (Reducer::Prod, dtype) if dtype.is_float() => "1.0".to_owned(),
        (Reducer::Prod, _) => "1".to_owned(),
        (Reducer::Sum | Reducer::Or, DType::Bool) => "false".to_owned(),
        (Reducer::And, dtype) if dtype.is_unsigned_integer() => {
            (u64::MAX >> (64 - dtype.bits())).to_string()
        }
        (Reducer::And, _) => "-1".to_owned(),
        (Reducer::Sum | Reducer::Or, DType::C64) => "(0.0, 0.0)".to_owned(),
        (Reducer::Sum | Reducer::Or, dtype) if dtype.is_float() => "0.0".to_owned(),
        (Reducer::Sum | Reducer::Or, _) => "0".to_owned(),
    }
}

/// The operation of two elements that a reduction is made of.
pub(super) fn reducer_name(reducer: Reducer) -> &'static str {
    match reducer {
        Reducer::Sum => "add",
        Reducer::Prod => "multiply",
        Reducer::Max => "maximum",
        Reducer::Min => "minimum",
        Reducer::And => "and",
        Reducer::Or => "or",
    }
}
