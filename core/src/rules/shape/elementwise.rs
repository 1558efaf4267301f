//! Element-wise operations.

use super::{Fault, Rule};
use crate::dtype::DType;
use crate::op::{Binary, Unary};
use crate::types::TensorType;

impl Rule<'_> {
    pub(super) fn unary(&self, unary: Unary) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        let dtype = ty.dtype;
        let (fits, wanted) = match unary {
            Unary::Neg => (dtype != DType::Bool, "a numeric"),
            Unary::Abs | Unary::Sign => (
                dtype != DType::Bool && !dtype.is_unsigned_integer(),
                "a signed numeric",
            ),
            Unary::Not => (
                dtype == DType::Bool || dtype.is_integer(),
                "a boolean or integer",
            ),
            Unary::CountLeadingZeros | Unary::PopulationCount => (dtype.is_integer(), "an integer"),
            Unary::Real | Unary::Imag => (dtype.is_complex(), "a complex"),
            Unary::Cbrt
            | Unary::Ceil
            | Unary::Digamma
            | Unary::Erf
            | Unary::Erfc
            | Unary::Floor
            | Unary::IsFinite
            | Unary::Lgamma
            | Unary::Round
            | Unary::RoundEven => (dtype.is_float(), "a real floating-point"),
            Unary::Acos
            | Unary::Acosh
            | Unary::Asin
            | Unary::Asinh
            | Unary::Atan
            | Unary::Atanh
            | Unary::Cos
            | Unary::Cosh
            | Unary::Exp
            | Unary::Expm1
            | Unary::Log
            | Unary::Log1p
            | Unary::Logistic
            | Unary::Rsqrt
            | Unary::Sin
            | Unary::Sinh
            | Unary::Sqrt
            | Unary::Tan
            | Unary::Tanh => (dtype.is_differentiable(), "a floating-point"),
        };
        if !fits {
            return self.dtype_error(
                format!("takes {wanted} tensor, not {ty}"),
                Some("convert it with `.cast(...)`".into()),
            );
        }
        Ok(match unary {
            Unary::IsFinite => TensorType::new(DType::Bool, &ty.shape),
            Unary::Real | Unary::Imag => TensorType::new(DType::F32, &ty.shape),
            Unary::Abs if dtype.is_complex() => TensorType::new(DType::F32, &ty.shape),
            _ => ty.clone(),
        })
    }

    pub(super) fn binary(&self, binary: Binary) -> Result<TensorType, Fault> {
        let [lhs, _] = self.same_types()?;
        let dtype = lhs.dtype;
        let (fits, wanted) = match binary {
            Binary::And | Binary::Or | Binary::Xor => (
                dtype == DType::Bool || dtype.is_integer(),
                "boolean or integer",
            ),
            Binary::ShiftLeft | Binary::ShiftRight | Binary::ShiftRightLogical => {
                (dtype.is_integer(), "integer")
            }
            Binary::Sub | Binary::Div | Binary::Pow => (dtype != DType::Bool, "numeric"),
            Binary::MulOrZero | Binary::DivOrZero => (dtype.is_differentiable(), "floating-point"),
            Binary::Rem => (dtype != DType::Bool && !dtype.is_complex(), "real numeric"),
            Binary::Add | Binary::Mul => (true, "numeric"),
            Binary::Max | Binary::Min => (!dtype.is_complex(), "real"),
            Binary::Atan2 => (dtype.is_differentiable(), "floating-point"),
            Binary::NextAfter | Binary::Polygamma => (dtype.is_float(), "real floating-point"),
            Binary::Complex => (dtype == DType::F32, "f32"),
        };
        if !fits {
            return self.dtype_error(
                format!("takes {wanted} tensors, not {lhs}"),
                Some("convert them with `.cast(...)`".into()),
            );
        }
        Ok(match binary {
            Binary::Complex => TensorType::new(DType::C64, &lhs.shape),
            _ => lhs.clone(),
        })
    }

    pub(super) fn reduce_precision(
        &self,
        exponent: u32,
        mantissa: u32,
    ) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        if !ty.dtype.is_float() {
            return self.dtype_error(
                format!("takes a real floating-point tensor, not {ty}"),
                None,
            );
        }
        if exponent == 0 || exponent > 11 || mantissa > 52 {
            return self.argument_error(format!(
                "{exponent} exponent and {mantissa} mantissa bits: there are 1 to 11 and 0 to 52"
            ));
        }
        Ok(ty.clone())
    }

    pub(super) fn select(&self) -> Result<TensorType, Fault> {
        let (predicate, on_true, on_false) = (self.operand(0)?, self.operand(1)?, self.operand(2)?);
        if predicate.dtype != DType::Bool {
            return self.dtype_error(
                format!("the predicate is {predicate}, not boolean"),
                Some("compare it, for example `.ne(0)`".into()),
            );
        }
        if on_true != on_false {
            return self.dtype_error(
                format!("the two cases {on_true} and {on_false} differ"),
                None,
            );
        }
        if predicate.shape != on_true.shape {
            return self.shape_error(format!(
                "the predicate {predicate} and the cases {on_true} differ in shape"
            ));
        }
        Ok(on_true.clone())
    }

    pub(super) fn bitcast(&self, dtype: DType) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        if ty.dtype.bits() != dtype.bits() {
            return self.dtype_error(
                format!(
                    "{ty} has {}-bit elements, and {dtype} {}-bit ones",
                    ty.dtype.bits(),
                    dtype.bits()
                ),
                None,
            );
        }
        if ty.dtype.is_complex() != dtype.is_complex() {
            return self.dtype_error(
                format!("elements of {ty} are not read as {dtype}: one is complex, one is not"),
                None,
            );
        }
        Ok(TensorType::new(dtype, &ty.shape))
    }
}
