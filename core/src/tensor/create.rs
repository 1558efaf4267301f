//! Making tensors of nothing.

use std::panic::Location;

use super::Tensor;
use super::shape::axis_at;
use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::lax;
use crate::literal::{Element, Literal, Number};
use crate::trace::{fail, method};
use crate::types::TensorType;

impl Tensor {
    /// One number.
    #[track_caller]
    pub fn scalar(number: impl Into<Number>, dtype: DType) -> Tensor {
        method("scalar", Location::caller(), || {
            lax::full(number.into(), &TensorType::scalar(dtype))
        })
    }

    /// One number, repeated.
    #[track_caller]
    pub fn full(number: impl Into<Number>, dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        lax::full(number.into(), &TensorType::new(dtype, shape))
    }

    /// Zeros.
    #[track_caller]
    pub fn zeros(dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        method("zeros", Location::caller(), || Self::full(0, dtype, shape))
    }

    /// Ones.
    #[track_caller]
    pub fn ones(dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        method("ones", Location::caller(), || Self::full(1, dtype, shape))
    }

    /// Zeros of this tensor's type.
    #[track_caller]
    pub fn zeros_like(self) -> Tensor {
        lax::zeros(&self.ty())
    }

    /// Values written into the program; for large ones pass an argument instead.
    #[track_caller]
    pub fn constant<T: Element>(values: &[T], shape: impl AsRef<[usize]>) -> Tensor {
        let shape = shape.as_ref();
        match Literal::from_slice(values, shape) {
            Some(literal) => lax::constant(literal),
            None => {
                let ty = TensorType::new(T::DTYPE, shape);
                let problem = format!("{} values for {ty}", values.len());
                fail(
                    ErrorKind::Shape {
                        op: "constant",
                        problem,
                    },
                    None,
                )
            }
        }
    }

    /// Counts 0, 1, 2, ... along one dimension.
    #[track_caller]
    pub fn iota(dtype: DType, shape: impl AsRef<[usize]>, axis: isize) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        let dimension = axis_at("iota", axis, &ty, Location::caller());
        lax::iota(ty, dimension)
    }

    /// 0, 1, ..., count - 1.
    #[track_caller]
    pub fn arange(dtype: DType, count: usize) -> Tensor {
        let ty = TensorType::new(dtype, [count]);
        method("arange", Location::caller(), || lax::iota(ty, 0))
    }
}

/// Joins tensors along a dimension; a negative axis counts from the last.
#[track_caller]
pub fn concatenate(parts: impl AsRef<[Tensor]>, axis: isize) -> Tensor {
    let parts = parts.as_ref();
    match parts {
        [] => {
            let problem = "there is nothing to join".to_owned();
            fail(
                ErrorKind::Argument {
                    op: "concatenate",
                    problem,
                },
                None,
            )
        }
        [first, ..] => {
            let dimension = axis_at("concatenate", axis, &first.ty(), Location::caller());
            lax::concatenate(parts, dimension)
        }
    }
}
