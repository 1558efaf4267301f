//! Discrete Fourier transforms, of the last dimensions.
//!
//! Element `k` of a transform of `n` elements is the sum of `x[j] e^(-2 pi i j k / n)`; the inverse has
//! the other sign and divides by `n`. They are computed in `f32` and `c64`.

use std::panic::Location;

use super::Tensor;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Dims, FftKind};
use crate::trace::{fail_at, method};

impl Tensor {
    /// The transform of the last dimension, complex.
    #[track_caller]
    pub fn fft(self) -> Tensor {
        self.transform("fft", FftKind::Fft, 1, None, Location::caller())
    }

    /// The inverse of [`Tensor::fft`].
    #[track_caller]
    pub fn ifft(self) -> Tensor {
        self.transform("ifft", FftKind::Ifft, 1, None, Location::caller())
    }

    /// The first `n / 2 + 1` elements of the transform of `n` real ones; the others are their
    /// conjugates.
    #[track_caller]
    pub fn rfft(self) -> Tensor {
        self.transform("rfft", FftKind::Rfft, 1, None, Location::caller())
    }

    /// The `length` real elements whose [`Tensor::rfft`] this is. The imaginary part of the first
    /// element is not read, nor that of the last where `length` is even.
    #[track_caller]
    pub fn irfft(self, length: usize) -> Tensor {
        self.transform("irfft", FftKind::Irfft, 1, Some(length), Location::caller())
    }

    /// [`Tensor::fft`] of the last two dimensions.
    #[track_caller]
    pub fn fft2(self) -> Tensor {
        self.transform("fft2", FftKind::Fft, 2, None, Location::caller())
    }

    /// The inverse of [`Tensor::fft2`].
    #[track_caller]
    pub fn ifft2(self) -> Tensor {
        self.transform("ifft2", FftKind::Ifft, 2, None, Location::caller())
    }

    /// [`Tensor::rfft`] of the last dimension, and [`Tensor::fft`] of the one before.
    #[track_caller]
    pub fn rfft2(self) -> Tensor {
        self.transform("rfft2", FftKind::Rfft, 2, None, Location::caller())
    }

    /// The inverse of [`Tensor::rfft2`]; `length` is the size of the last dimension.
    #[track_caller]
    pub fn irfft2(self, length: usize) -> Tensor {
        self.transform(
            "irfft2",
            FftKind::Irfft,
            2,
            Some(length),
            Location::caller(),
        )
    }

    /// [`Tensor::fft`] of the last three dimensions.
    #[track_caller]
    pub fn fft3(self) -> Tensor {
        self.transform("fft3", FftKind::Fft, 3, None, Location::caller())
    }

    /// The inverse of [`Tensor::fft3`].
    #[track_caller]
    pub fn ifft3(self) -> Tensor {
        self.transform("ifft3", FftKind::Ifft, 3, None, Location::caller())
    }

    /// [`Tensor::rfft`] of the last dimension, and [`Tensor::fft`] of the two before.
    #[track_caller]
    pub fn rfft3(self) -> Tensor {
        self.transform("rfft3", FftKind::Rfft, 3, None, Location::caller())
    }

    /// The inverse of [`Tensor::rfft3`]; `length` is the size of the last dimension.
    #[track_caller]
    pub fn irfft3(self, length: usize) -> Tensor {
        self.transform(
            "irfft3",
            FftKind::Irfft,
            3,
            Some(length),
            Location::caller(),
        )
    }

    fn transform(
        self,
        op: &'static str,
        kind: FftKind,
        count: usize,
        length: Option<usize>,
        source: Source,
    ) -> Tensor {
        method(op, source, || {
            let ty = self.ty();
            if ty.rank() < count {
                let problem = format!("{ty} has fewer than {count} dimensions");
                fail_at(ErrorKind::Shape { op, problem }, None, source)
            }
            if ty.dtype == DType::F64 {
                let problem = format!("transforms f32 and c64, not {ty}");
                let help = "convert it with `.cast(DType::F32)`".to_owned();
                fail_at(ErrorKind::DType { op, problem }, Some(help), source)
            }
            let wanted = match kind {
                FftKind::Rfft => DType::F32,
                FftKind::Fft | FftKind::Ifft | FftKind::Irfft => DType::C64,
            };
            let x = match kind == FftKind::Rfft && ty.dtype.is_complex() {
                // Refused by its shape rule, for what would be lost.
                true => self,
                false => lax::convert(self, wanted),
            };
            let mut lengths: Dims = ty.shape[ty.rank() - count..].iter().copied().collect();
            if kind == FftKind::Rfft && lengths[count - 1] == 0 {
                let problem = format!(
                    "the last dimension of {ty} is empty, and the transform of no elements has no frequencies"
                );
                let help = "give it one element or more: `.pad(..)` adds zeros".to_owned();
                fail_at(ErrorKind::Shape { op, problem }, Some(help), source)
            }
            if let Some(length) = length {
                let (seen, half) = (lengths[count - 1], length / 2 + 1);
                if length == 0 || seen != half {
                    let problem = format!(
                        "a result of {length} elements has {half} in the transform, the last \
                         dimension of {ty} has {seen}"
                    );
                    let help = "cut or pad it first".to_owned();
                    fail_at(ErrorKind::Shape { op, problem }, Some(help), source)
                }
                lengths[count - 1] = length;
            }
            lax::fft(x, kind, &lengths)
        })
    }
}
