//! Complex numbers: putting them together and taking them apart.
//!
//! Derivatives of complex functions: the gradient of a real result by a complex argument `x + iy` is
//! its derivative by `x` minus `i` times that by `y`. Descent goes along its conjugate.

use std::f64::consts::PI;
use std::panic::Location;

use super::Tensor;
use super::arithmetic::{IntoOperand, binary};
use crate::lax;
use crate::op::{Binary, Unary};
use crate::trace::method;

impl Tensor {
    /// The complex number with real part `self` and this imaginary part, both `f32`.
    #[track_caller]
    pub fn complex(self, imaginary: impl IntoOperand) -> Tensor {
        binary(
            "complex",
            Binary::Complex,
            self,
            imaginary,
            Location::caller(),
        )
    }

    /// The real part; a real number itself.
    #[track_caller]
    pub fn real(self) -> Tensor {
        method("real", Location::caller(), || {
            if self.dtype().is_complex() {
                lax::unary(Unary::Real, self)
            } else {
                self
            }
        })
    }

    /// The imaginary part; of a real number, 0.
    #[track_caller]
    pub fn imag(self) -> Tensor {
        method("imag", Location::caller(), || {
            if self.dtype().is_complex() {
                lax::unary(Unary::Imag, self)
            } else {
                self.zeros_like()
            }
        })
    }

    /// The complex conjugate; a real number itself.
    #[track_caller]
    pub fn conj(self) -> Tensor {
        method("conj", Location::caller(), || {
            if self.dtype().is_complex() {
                self.real().complex(-self.imag())
            } else {
                self
            }
        })
    }

    /// The angle of a complex number from the real axis, in radians from -pi to pi; of a real number 0
    /// or pi.
    #[track_caller]
    pub fn angle(self) -> Tensor {
        method("angle", Location::caller(), || {
            if self.dtype().is_complex() {
                self.imag().atan2(self.real())
            } else {
                self.lt(0).select(PI, self.zeros_like())
            }
        })
    }
}
