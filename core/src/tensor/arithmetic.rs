//! Element-wise arithmetic: operators, functions that are primitives, numpy broadcasting and type
//! promotion.
//!
//! Promotion of two tensors: `bool` gives way to any other type, integers to floats, a narrower
//! type to a wider one of its kind; `f16` with `bf16` gives `f32`, and a signed with an unsigned
//! integer the next wider signed one. A number written in the program takes the tensor's element
//! type and never widens it.

use std::ops::{
    Add, AddAssign, BitAnd, BitAndAssign, BitOr, BitOrAssign, BitXor, BitXorAssign, Div, DivAssign,
    Mul, MulAssign, Neg, Not, Rem, RemAssign, Shl, ShlAssign, Shr, ShrAssign, Sub, SubAssign,
};
use std::panic::Location;

use super::Tensor;
use super::norm::square_of;
use super::shape::broadcast_shapes;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::literal::{Literal, Number};
use crate::op::{Binary, Comparison, Dims, Op, Unary};
use crate::trace::{emit1, fail_at, known_number, method};
use crate::types::TensorType;

/// A tensor or a number, as the second operand of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// A tensor.
    Tensor(Tensor),
    /// A number, which takes the element type of the tensor that it meets.
    Number(Number),
}

impl From<Tensor> for Operand {
    fn from(tensor: Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl<N: Into<Number>> From<N> for Operand {
    fn from(number: N) -> Self {
        Operand::Number(number.into())
    }
}

/// What converts into an [`Operand`]: tensors and numbers.
///
/// Values outside of the program are none, [`Into`] says so in terms that lead nowhere, and this trait in terms of the
/// program.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a `Tensor` nor a number",
    label = "not an operand in a traced program",
    note = "a traced function cannot capture values such as an `Array`, which its program is given when it is called: pass it as an argument, as `w` in `jit(|x: Tensor, w: Tensor| x * w).call((x, w))`"
)]
pub trait IntoOperand: Into<Operand> {}

#[diagnostic::do_not_recommend]
impl<T: Into<Operand>> IntoOperand for T {}

/// The type in which two tensors meet.
pub(crate) fn promote(a: DType, b: DType) -> Option<DType> {
    let rank = |d: DType| match d {
        DType::Bool => 0,
        d if d.is_integer() => 1,
        d if d.is_float() => 2,
        _ => 3,
    };
    let (low, high) = if rank(a) <= rank(b) { (a, b) } else { (b, a) };
    if low == high || rank(low) < rank(high) {
        return Some(high);
    }
    if rank(high) == 2 {
        return match (low, high) {
            (DType::F8E4M3FN, DType::F8E5M2) | (DType::F8E5M2, DType::F8E4M3FN) => None,
            (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => Some(DType::F32),
            _ => Some(low.max(high)),
        };
    }
    if low.is_signed_integer() == high.is_signed_integer() {
        return Some(if low.bits() < high.bits() { high } else { low });
    }
    let (signed, unsigned) = if low.is_signed_integer() {
        (low, high)
    } else {
        (high, low)
    };
    let wider = [DType::I4, DType::I8, DType::I16, DType::I32, DType::I64];
    wider
        .into_iter()
        .find(|&d| d.bits() > unsigned.bits() && d.bits() >= signed.bits())
}

/// Both operands with one element type and shape.
pub(super) fn together(
    op: &'static str,
    lhs: Operand,
    rhs: Operand,
    source: Source,
) -> (Tensor, Tensor) {
    let (lhs, rhs) = match (lhs, rhs) {
        (Operand::Tensor(lhs), Operand::Tensor(rhs)) => (lhs, rhs),
        (Operand::Tensor(lhs), Operand::Number(rhs)) => (lhs, number_like(rhs, lhs, op, source)),
        (Operand::Number(lhs), Operand::Tensor(rhs)) => (number_like(lhs, rhs, op, source), rhs),
        (Operand::Number(_), Operand::Number(_)) => {
            let problem = "at least one operand must be a tensor".to_owned();
            fail_at(ErrorKind::Argument { op, problem }, None, source)
        }
    };
    let (lhs_ty, rhs_ty) = (lhs.ty(), rhs.ty());
    if lhs_ty.is_like(&rhs_ty) {
        return (lhs, rhs);
    }
    let Some(dtype) = promote(lhs_ty.dtype, rhs_ty.dtype) else {
        let problem = format!("no element type holds both {lhs_ty} and {rhs_ty}");
        let help = "convert one of them with `.cast(...)`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
    };
    let shape = broadcast_shapes(op, &[&lhs_ty, &rhs_ty], source);
    let fit = |x: Tensor, ty: &TensorType| {
        let x = emit1(Op::Convert(dtype), &[x], source);
        let dims: Dims = (shape.len() - ty.rank()..shape.len()).collect();
        emit1(
            Op::Broadcast {
                shape: shape.clone(),
                dims,
            },
            &[x],
            source,
        )
    };
    (fit(lhs, &lhs_ty), fit(rhs, &rhs_ty))
}

fn number_like(number: Number, like: Tensor, op: &'static str, source: Source) -> Tensor {
    let ty = like.ty();
    match Literal::scalar(number, ty.dtype) {
        Some(literal) => {
            let scalar = emit1(Op::Constant(literal), &[], source);
            emit1(
                Op::Broadcast {
                    shape: ty.shape,
                    dims: Dims::new(),
                },
                &[scalar],
                source,
            )
        }
        None => {
            let problem = format!("the number {number} is not a value of {}", ty.dtype);
            let help = format!("the tensor is {ty}: convert it with `.cast(...)` first");
            fail_at(ErrorKind::DType { op, problem }, Some(help), source)
        }
    }
}

pub(super) fn binary(
    name: &'static str,
    op: Binary,
    lhs: impl IntoOperand,
    rhs: impl IntoOperand,
    source: Source,
) -> Tensor {
    method(name, source, || {
        let (lhs, rhs) = together(name, lhs.into(), rhs.into(), source);
        let is_square = match op {
            Binary::Mul => lhs == rhs,
            Binary::Pow => known_number(rhs).is_some_and(|power| power.as_f64() == 2.0),
            _ => false,
        };
        let square = if is_square { square_of(lhs) } else { None };
        square.unwrap_or_else(|| emit1(Op::Binary(op), &[lhs, rhs], source))
    })
}

macro_rules! operator {
    ($($trait:ident $method:ident $op:ident),* $(,)?) => {$(
        impl<R: IntoOperand> $trait<R> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor {
                binary(Binary::$op.name(), Binary::$op, self, rhs, Location::caller())
            }
        }
        operator!(@number $trait $method $op: f32 f64 i32 i64 u32 usize);
    )*};
    (@number $trait:ident $method:ident $op:ident: $($number:ty)*) => {$(
        impl $trait<Tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Tensor {
                binary(Binary::$op.name(), Binary::$op, self, rhs, Location::caller())
            }
        }
    )*};
}

operator!(
    Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Rem,
    BitAnd bitand And, BitOr bitor Or, BitXor bitxor Xor,
    Shl shl ShiftLeft, Shr shr ShiftRight,
);

macro_rules! assign {
    ($($trait:ident $method:ident $op:tt),* $(,)?) => {$(
        /// Names the result anew: the value that the handle named before is unchanged.
        impl<R: IntoOperand> $trait<R> for Tensor {
            #[track_caller]
            fn $method(&mut self, rhs: R) {
                *self = *self $op rhs;
            }
        }
    )*};
}

assign!(
    AddAssign add_assign +, SubAssign sub_assign -, MulAssign mul_assign *,
    DivAssign div_assign /, RemAssign rem_assign %, BitAndAssign bitand_assign &,
    BitOrAssign bitor_assign |, BitXorAssign bitxor_assign ^, ShlAssign shl_assign <<,
    ShrAssign shr_assign >>,
);

impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        lax::unary(Unary::Neg, self)
    }
}

impl Not for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn not(self) -> Tensor {
        lax::unary(Unary::Not, self)
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $method:ident $op:ident),* $(,)?) => {
        /// Element-wise functions.
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self) -> Tensor {
                method(stringify!($method), Location::caller(), || lax::unary(Unary::$op, self))
            }
        )*}
    };
}

unary!(
    /// Absolute value, a real number for a complex one; its derivative at 0 is 0.
    abs Abs,
    /// Inverse cosine.
    acos Acos,
    /// Inverse hyperbolic cosine; NaN below 1.
    acosh Acosh,
    /// Inverse sine.
    asin Asin,
    /// Inverse hyperbolic sine.
    asinh Asinh,
    /// Inverse tangent.
    atan Atan,
    /// Inverse hyperbolic tangent.
    atanh Atanh,
    /// Cube root, also of negative numbers.
    cbrt Cbrt,
    /// The smallest integer not below; its derivative is 0.
    ceil Ceil,
    /// Cosine.
    cos Cos,
    /// Hyperbolic cosine.
    cosh Cosh,
    /// The derivative of [`Tensor::lgamma`].
    digamma Digamma,
    /// The error function.
    erf Erf,
    /// 1 - erf(x), accurate where that is small.
    erfc Erfc,
    /// e^x.
    exp Exp,
    /// e^x - 1, accurate near 0.
    expm1 Expm1,
    /// The largest integer not above; its derivative is 0.
    floor Floor,
    /// Whether a float is neither infinite nor NaN.
    is_finite IsFinite,
    /// The number of zero bits before the first one that is set, of integers.
    leading_zeros CountLeadingZeros,
    /// The logarithm of the absolute value of the gamma function.
    lgamma Lgamma,
    /// The natural logarithm.
    log Log,
    /// log(1 + x), accurate near 0.
    log1p Log1p,
    /// The number of bits that are set, of integers.
    popcount PopulationCount,
    /// The nearest integer, halves away from 0; its derivative is 0.
    round Round,
    /// The nearest integer, halves to the even one, as numpy's `round`; its derivative is 0.
    round_even RoundEven,
    /// The logistic function 1 / (1 + e^-x).
    sigmoid Logistic,
    /// 1 / sqrt(x).
    rsqrt Rsqrt,
    /// -1, 0 or 1; of a complex number x / |x|. The derivative at 0 is 0.
    sign Sign,
    /// Sine.
    sin Sin,
    /// Hyperbolic sine.
    sinh Sinh,
    /// Square root; its derivative at 0 is infinite.
    sqrt Sqrt,
    /// Tangent.
    tan Tan,
    /// Hyperbolic tangent.
    tanh Tanh,
);

macro_rules! compare {
    ($($(#[$doc:meta])* $method:ident $op:ident),* $(,)?) => {
        /// Element-wise comparisons; the result is boolean.
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, rhs: impl IntoOperand) -> Tensor {
                let (op, source) = (Comparison::$op, Location::caller());
                method(op.name(), source, || {
                    let (lhs, rhs) = together(op.name(), self.into(), rhs.into(), source);
                    emit1(Op::Compare(op), &[lhs, rhs], source)
                })
            }
        )*}
    };
}

compare!(
    /// `self == rhs`
    eq Eq,
    /// `self != rhs`
    ne Ne,
    /// `self < rhs`
    lt Lt,
    /// `self <= rhs`
    le Le,
    /// `self > rhs`
    gt Gt,
    /// `self >= rhs`
    ge Ge,
);

impl Tensor {
    /// The larger of two, element by element; equal ones share the derivative.
    #[track_caller]
    pub fn maximum(self, rhs: impl IntoOperand) -> Tensor {
        binary("maximum", Binary::Max, self, rhs, Location::caller())
    }

    /// The smaller of two, element by element; equal ones share the derivative.
    #[track_caller]
    pub fn minimum(self, rhs: impl IntoOperand) -> Tensor {
        binary("minimum", Binary::Min, self, rhs, Location::caller())
    }

    /// The nearest number in `low..=high`, element by element.
    #[track_caller]
    pub fn clamp(self, low: impl IntoOperand, high: impl IntoOperand) -> Tensor {
        self.maximum(low).minimum(high)
    }

    /// The angle of the point `(x, self)`: the inverse tangent of `self / x`, in the quadrant of the
    /// point. Its derivative at the origin is 0.
    #[track_caller]
    pub fn atan2(self, x: impl IntoOperand) -> Tensor {
        binary("atan2", Binary::Atan2, self, x, Location::caller())
    }

    /// The number of the element type that is next to `self` in the direction of `rhs`.
    #[track_caller]
    pub fn nextafter(self, rhs: impl IntoOperand) -> Tensor {
        binary(
            "nextafter",
            Binary::NextAfter,
            self,
            rhs,
            Location::caller(),
        )
    }

    /// The polygamma function of order `self` at `x`: the derivative of that order of
    /// [`Tensor::digamma`]. There is no derivative by the order.
    #[track_caller]
    pub fn polygamma(self, x: impl IntoOperand) -> Tensor {
        binary("polygamma", Binary::Polygamma, self, x, Location::caller())
    }

    /// The bits of an integer moved down by `rhs`, zeros coming in from above also for a signed type.
    #[track_caller]
    pub fn shift_right_logical(self, rhs: impl IntoOperand) -> Tensor {
        let op = Binary::ShiftRightLogical;
        binary("shift_right_logical", op, self, rhs, Location::caller())
    }

    /// `self` to the power `rhs`, element by element. `x^0` is 1, also at 0.
    #[track_caller]
    pub fn pow(self, rhs: impl IntoOperand) -> Tensor {
        binary("pow", Binary::Pow, self, rhs, Location::caller())
    }

    /// The same type with fewer bits in effect: rounded (halves to even) as if the exponent had
    /// `exponent` bits and the mantissa `mantissa`. Derivatives are rounded too.
    #[track_caller]
    pub fn reduce_precision(self, exponent: u32, mantissa: u32) -> Tensor {
        lax::reduce_precision(self, exponent, mantissa)
    }

    /// Where `self` (boolean) is true `on_true`, elsewhere `on_false`; the three broadcast.
    #[track_caller]
    pub fn select(self, on_true: impl IntoOperand, on_false: impl IntoOperand) -> Tensor {
        let source = Location::caller();
        method("select", source, || {
            let (on_true, on_false) = together("select", on_true.into(), on_false.into(), source);
            let (mask, cases) = (self.ty(), on_true.ty());
            let shape = broadcast_shapes("select", &[&mask, &cases], source);
            let fit = |x: Tensor, rank: usize| {
                let dims: Dims = (shape.len() - rank..shape.len()).collect();
                lax::broadcast(x, &shape, &dims)
            };
            let on_true = fit(on_true, cases.rank());
            let on_false = fit(on_false, cases.rank());
            lax::select(fit(self, mask.rank()), on_true, on_false)
        })
    }

    /// The same values in another element type, as Rust's `as` has them: floats become integers towards 0, those out of
    /// range the nearest bound, and NaN 0; integers become narrower ones modulo a power of 2, their lower bits.
    /// What a narrower float type does not reach is infinite, and NaN in `f8e4m3fn`.
    #[track_caller]
    pub fn cast(self, dtype: DType) -> Tensor {
        lax::convert(self, dtype)
    }

    /// The same bits, read as another element type of as many bits.
    #[track_caller]
    pub fn bitcast(self, dtype: DType) -> Tensor {
        let source = Location::caller();
        method("bitcast", source, || {
            emit1(Op::BitcastConvert(dtype), &[self], source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType::*;

    #[test]
    fn promotion_is_the_documented_table() {
        let table = [
            (Bool, Bool, Some(Bool)),
            (Bool, U8, Some(U8)),
            (I64, F16, Some(F16)),
            (F16, BF16, Some(F32)),
            (BF16, F32, Some(F32)),
            (F8E4M3FN, BF16, Some(BF16)),
            (F8E4M3FN, F8E5M2, None),
            (F64, F32, Some(F64)),
            (F64, C64, Some(C64)),
            (I8, I32, Some(I32)),
            (U8, U32, Some(U32)),
            (I4, U4, Some(I8)),
            (I8, U8, Some(I16)),
            (I64, U32, Some(I64)),
            (I32, U32, Some(I64)),
            (I8, U64, None),
        ];
        for (a, b, meet) in table {
            assert_eq!(promote(a, b), meet, "{a} with {b}");
            assert_eq!(promote(b, a), meet, "{b} with {a}");
        }
    }
}
