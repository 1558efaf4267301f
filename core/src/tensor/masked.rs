//! Reductions over the elements that a mask shows.
//!
//! What is hidden has no influence, whatever it is: a NaN in padding reaches neither the value nor a derivative. Where nothing
//! is shown, a reduction is what it is of nothing: 0 as a sum, 1 as a product, the lowest value as a maximum, and 0 as a mean
//! or a variance, so that an empty row adds nothing to a loss.

use std::panic::Location;

use super::Tensor;
use super::reduce::Axes;
use crate::dtype::DType;
use crate::trace::method;

impl Tensor {
    /// [`Tensor::sum`] of the elements where `mask`, which is boolean and broadcasts to this tensor, is true.
    ///
    /// ```
    /// use shardax_core::{DType, Tensor, TensorType, trace};
    ///
    /// let of_words = |x: Tensor, is_word: Tensor| x.sum_where(is_word, -1);
    /// let types = (TensorType::new(DType::F32, [8, 16]), TensorType::new(DType::Bool, [8, 16]));
    /// assert_eq!(trace(of_words, types)?.output_types()[0].to_string(), "f32[8]");
    /// # Ok::<(), shardax_core::Error>(())
    /// ```
    #[track_caller]
    pub fn sum_where(self, mask: Tensor, axes: impl Axes) -> Tensor {
        method("sum_where", Location::caller(), || {
            mask.select(self, 0).sum(axes)
        })
    }

    /// [`Tensor::prod`] of the elements where `mask` is true; 1 if there are none.
    #[track_caller]
    pub fn prod_where(self, mask: Tensor, axes: impl Axes) -> Tensor {
        method("prod_where", Location::caller(), || {
            mask.select(self, 1).prod(axes)
        })
    }

    /// [`Tensor::max`] of the elements where `mask` is true; the lowest value of the type, -inf if it has infinities, if there
    /// are none. Derivatives are shared by equal elements that are shown.
    #[track_caller]
    pub fn max_where(self, mask: Tensor, axes: impl Axes) -> Tensor {
        method("max_where", Location::caller(), || {
            self.extremum_where(mask, axes, true)
        })
    }

    /// [`Tensor::min`] of the elements where `mask` is true; the highest value of the type if there are none.
    #[track_caller]
    pub fn min_where(self, mask: Tensor, axes: impl Axes) -> Tensor {
        method("min_where", Location::caller(), || {
            self.extremum_where(mask, axes, false)
        })
    }

    #[track_caller]
    fn extremum_where(self, mask: Tensor, axes: impl Axes, largest: bool) -> Tensor {
        // What nothing gives.
        let nothing = Tensor::zeros(self.dtype(), [0]);
        match largest {
            true => mask.select(self, nothing.max(0)).max(axes),
            false => mask.select(self, nothing.min(0)).min(axes),
        }
    }

    /// [`Tensor::mean`] of the elements where `mask` is true; 0 if there are none.
    #[track_caller]
    pub fn mean_where(self, mask: Tensor, axes: impl Axes) -> Tensor {
        method("mean_where", Location::caller(), || {
            let (dtype, list) = (self.dtype(), axes.list(self.rank()));
            let wide = self.cast(dtype.accumulator());
            let shown = counted(mask, self, &list).cast(wide.dtype());
            (wide.sum_where(mask, &list[..]) / shown).cast(dtype)
        })
    }

    /// [`Tensor::var`] of the elements where `mask` is true: the mean of their squared differences from their mean; 0 if there
    /// are none.
    #[track_caller]
    pub fn var_where(self, mask: Tensor, axes: impl Axes) -> Tensor {
        method("var_where", Location::caller(), || {
            let (dtype, list) = (self.dtype(), axes.list(self.rank()));
            let wide = self.cast(dtype.accumulator());
            let mean = wide.mean_where(mask, &list[..]).keep_dims(self, &list[..]);
            // Hidden elements first: the square of an infinite one would have a derivative of NaN.
            let difference = mask.select(wide - mean, 0);
            difference.square().mean_where(mask, &list[..]).cast(dtype)
        })
    }
}

/// How many elements are shown, at least 1.
#[track_caller]
fn counted(mask: Tensor, x: Tensor, axes: &[isize]) -> Tensor {
    let shown = mask.broadcast_to(x.shape());
    shown.cast(DType::I32).sum(axes).maximum(1)
}
