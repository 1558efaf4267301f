//! Reading and writing by index.
//!
//! Indices that are known while tracing are checked there. Of those that are computed, a window's
//! start past the ends is moved so that the window fits ([`Tensor::dynamic_slice`]); an index outside
//! reads NaN ([`Tensor::take`]) and writes nothing ([`Tensor::scatter`]): never another element. All
//! of it is written into the program, for the partitioner gets indices outside wrong.

mod at;
mod diagonal;
mod gather;
mod scatter;
mod slice;

pub use at::{At, Index};

use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::literal::{Literal, Number};
use crate::op::Combine;
use crate::trace::fail_at;
use crate::types::TensorType;

use super::Tensor;
use super::arithmetic::Operand;

fn argument(op: &'static str, problem: String) -> ErrorKind {
    ErrorKind::Argument { op, problem }
}

/// Indices into one dimension.
struct Checked {
    /// As they are, in a type that holds the size of the dimension.
    raw: Tensor,
    /// Moved inside.
    inside: Tensor,
    /// Where they are inside.
    valid: Tensor,
}

/// Indices into dimension `dim` of a tensor of type `ty`.
fn checked(
    op: &'static str,
    indices: Tensor,
    ty: &TensorType,
    dim: usize,
    source: Source,
) -> Checked {
    let index_ty = indices.ty();
    if !index_ty.dtype.is_integer() {
        let problem = format!("the indices are {index_ty}, not integers");
        let help = "convert them with `.cast(DType::I32)`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
    }
    let last = ty.shape[dim].saturating_sub(1);
    if ty.shape[dim] == 0 && index_ty.element_count() > 0 {
        let problem = format!("dimension {dim} of {ty} has no element that an index could mean");
        let help = "it needs at least one";
        fail_at(ErrorKind::Shape { op, problem }, Some(help.into()), source)
    }
    // Where the dimension is split, the partitioner computes with the first index of each shard in
    // the type of the indices, and a narrow one cannot hold it.
    if Literal::scalar(Number::Int(ty.shape[dim] as i64), index_ty.dtype).is_none() {
        let wide = if last > i32::MAX as usize {
            DType::I64
        } else {
            DType::I32
        };
        return checked(op, lax::convert(indices, wide), ty, dim, source);
    }
    let inside = inside(indices, index_ty.dtype, last);
    Checked {
        raw: indices,
        inside,
        valid: inside.eq(indices),
    }
}

/// Integers moved into `0..=last`.
fn inside(indices: Tensor, dtype: DType, last: usize) -> Tensor {
    let last = Number::Int(i64::try_from(last).unwrap_or(i64::MAX));
    // A type too narrow to reach past the end needs no upper bound.
    let below = match Literal::scalar(last, dtype) {
        Some(_) => indices.minimum(Operand::Number(last)),
        None => indices,
    };
    if dtype.is_signed_integer() {
        below.maximum(0)
    } else {
        below
    }
}

/// `values` where valid, elsewhere NaN or the smallest integer.
fn fill(values: Tensor, valid: Tensor, dims: &[usize]) -> Tensor {
    let ty = values.ty();
    let invalid = match ty.dtype {
        DType::Bool => Number::Bool(false),
        dtype if dtype.is_differentiable() => Number::Float(f64::NAN),
        DType::I4 => Number::Int(-8),
        DType::I8 => Number::Int(i8::MIN.into()),
        DType::I16 => Number::Int(i16::MIN.into()),
        DType::I32 => Number::Int(i32::MIN.into()),
        DType::I64 => Number::Int(i64::MIN),
        _ => Number::Int(0),
    };
    lax::select(
        lax::broadcast(valid, &ty.shape, dims),
        values,
        lax::full(invalid, &ty),
    )
}
