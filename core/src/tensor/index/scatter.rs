//! Writing by computed indices.

use std::panic::Location;

use super::gather::{Rows, along, components};
use super::{Checked, argument};
use crate::error::Source;
use crate::lax;
use crate::op::{Combine, Dims, GatherDims};
use crate::tensor::Tensor;
use crate::tensor::arithmetic::{IntoOperand, Operand};
use crate::tensor::shape::axis_at;
use crate::trace::{fail_at, method};
use crate::types::TensorType;

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident $combine:ident),* $(,)?) => {
        /// Rows along one dimension, by index.
        ///
        /// `updates` broadcasts to the shape of [`Tensor::take`] with these indices. An index outside
        /// of the dimension, a negative one too, writes nothing.
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(self, indices: Tensor, updates: impl IntoOperand, axis: isize) -> Tensor {
                let name = stringify!($name);
                let source = Location::caller();
                method(name, source, || {
                    let ty = self.ty();
                    let dim = axis_at(name, axis, &ty, source);
                    let rows = Rows::new(name, &ty, &[dim], &[indices], dim, source);
                    let updates = fitted(name, updates.into(), &rows.ty, source);
                    rows.write(self, updates, Combine::$combine)
                })
            }
        )*}
    };
}

rows! {
    /// This tensor with the rows along `axis` that `indices` name replaced by `updates`. Of two
    /// updates of the same row one wins, and has the gradient.
    scatter Set,
    /// This tensor with `updates` added to the rows along `axis` that `indices` name. Rows that are
    /// named twice get both.
    scatter_add Add,
    /// This tensor with the rows along `axis` that `indices` name multiplied by `updates`. Rows that
    /// are named twice are multiplied twice, and the derivative is that of the product, zeros
    /// included.
    scatter_mul Mul,
    /// The larger of this tensor and `updates`, in the rows along `axis` that `indices` name. Equal
    /// ones share the derivative.
    scatter_max Max,
    /// The smaller of this tensor and `updates`, in the rows along `axis` that `indices` name. Equal
    /// ones share the derivative.
    scatter_min Min,
}

impl Tensor {
    /// This tensor with one element along `axis` replaced for each index: what
    /// [`Tensor::take_along`] reads. An index outside writes nothing.
    #[track_caller]
    pub fn put_along(self, indices: Tensor, values: impl IntoOperand, axis: isize) -> Tensor {
        let source = Location::caller();
        method("put_along", source, || {
            let ty = self.ty();
            let dim = axis_at("put_along", axis, &ty, source);
            let index = along("put_along", indices, &ty, dim, source);
            let wanted = TensorType::new(ty.dtype, indices.shape());
            let values = fitted("put_along", values.into(), &wanted, source);
            let places: Dims = (0..ty.rank()).collect();
            let dims = GatherDims::along(dim, ty.rank());
            write(self, &index, values, &dims, &places, Combine::Set)
        })
    }

    /// This tensor combined with `updates` where index vectors say, those of
    /// [`Tensor::gather_nd`]; `updates` broadcasts to its shape. Vectors that point outside write
    /// nothing.
    #[track_caller]
    pub fn scatter_nd(
        self,
        indices: Tensor,
        updates: impl IntoOperand,
        combine: Combine,
    ) -> Tensor {
        let source = Location::caller();
        method("scatter_nd", source, || {
            let ty = self.ty();
            let (dims, indices) = components("scatter_nd", indices, &ty, source);
            let rows = Rows::new("scatter_nd", &ty, &dims, &indices, 0, source);
            let updates = fitted("scatter_nd", updates.into(), &rows.ty, source);
            rows.write(self, updates, combine)
        })
    }
}

/// Updates, broadcast to a type.
pub(super) fn fitted(
    op: &'static str,
    updates: Operand,
    wanted: &TensorType,
    source: Source,
) -> Tensor {
    let updates = match updates {
        Operand::Number(number) => return lax::full(number, wanted),
        Operand::Tensor(updates) => updates,
    };
    let ty = updates.ty();
    let aligned = ty.shape.iter().rev().zip(wanted.shape.iter().rev());
    let mut aligned = aligned.map(|(&from, &to)| from == to || from == 1);
    if ty.rank() > wanted.rank() || !aligned.all(|fits| fits) || ty.dtype != wanted.dtype {
        let problem = format!("the updates are {ty}, and go where {wanted} is");
        let help = "they may have fewer dimensions, or some of size 1; `.cast(...)` converts them";
        fail_at(argument(op, problem), Some(help.into()), source)
    }
    updates.broadcast_to(&wanted.shape)
}

/// `x` combined with updates; `places` are the dimensions of the updates that are the indices'.
pub(super) fn write(
    x: Tensor,
    index: &Checked,
    updates: Tensor,
    dims: &GatherDims,
    places: &[usize],
    combine: Combine,
) -> Tensor {
    let ty = updates.ty();
    if ty.element_count() == 0 {
        return x;
    }
    let valid = lax::broadcast(index.valid, &ty.shape, places);
    let instead = |number: i64| lax::select(valid, updates, lax::full(number.into(), &ty));
    // What is outside changes nothing where it is moved to, or is not written; either way it has no
    // gradient.
    let (index, updates) = match combine {
        Combine::Add => (index.inside, instead(0)),
        Combine::Mul => (index.inside, instead(1)),
        Combine::Set | Combine::Max | Combine::Min => (index.raw, instead(0)),
    };
    // Sums and products of many narrow floats are accumulated in a wider type.
    let wide = match combine {
        Combine::Add | Combine::Mul => ty.dtype.accumulator(),
        Combine::Set | Combine::Max | Combine::Min => ty.dtype,
    };
    let [x, updates] = [x, updates].map(|x| lax::convert(x, wide));
    lax::convert(
        lax::scatter(x, index, updates, dims.clone(), combine),
        ty.dtype,
    )
}
