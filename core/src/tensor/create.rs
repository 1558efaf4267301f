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
    /// One number, which the type has to hold.
    #[track_caller]
    pub fn scalar(number: impl Into<Number>, dtype: DType) -> Tensor {
        method("scalar", Location::caller(), || {
            lax::full(number.into(), &TensorType::scalar(dtype))
        })
    }

    /// One number, which the type has to hold, repeated.
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

    /// Counts 0, 1, 2, ... along one dimension. The type has to reach as far.
    #[track_caller]
    pub fn iota(dtype: DType, shape: impl AsRef<[usize]>, axis: isize) -> Tensor {
        let ty = TensorType::new(dtype, shape);
        let dimension = axis_at("iota", axis, &ty, Location::caller());
        lax::iota(ty, dimension)
    }

    /// 0, 1, ..., count - 1. The type has to reach as far; floats are rounded.
    #[track_caller]
    pub fn arange(dtype: DType, count: usize) -> Tensor {
        let ty = TensorType::new(dtype, [count]);
        method("arange", Location::caller(), || lax::iota(ty, 0))
    }

    /// `count` numbers from `start` to `stop`, both included, at equal distances.
    #[track_caller]
    pub fn linspace(dtype: DType, start: f64, stop: f64, count: usize) -> Tensor {
        let source = Location::caller();
        method("linspace", source, || {
            if !dtype.is_float() {
                let problem = format!("fractions are not values of {dtype}");
                let op = "linspace";
                fail(ErrorKind::DType { op, problem }, None)
            }
            // Computed in a wider type, which may hold what this one does not.
            for end in [start, stop] {
                lax::literal(end.into(), dtype);
            }
            let wide = dtype.accumulator();
            // Both ends are exact, for `part` is there.
            let part = lax::iota(TensorType::new(wide, [count]), 0) / (count.max(2) - 1) as f64;
            lax::convert((1.0 - part) * start + part * stop, dtype)
        })
    }
}
