//! Functions of elements that are given together with their slopes.
//!
//! The chain rule goes through a formula as it is written: through a maximum that only keeps an exponential
//! from overflowing and has a kink, through a result near 1 that has lost the digits of its distance from 1,
//! through an infinity in a part that does not count. A slope that is a formula of its own has none of
//! this, and is all that a backward pass has to keep. Function and slope are computed in `f32` of
//! narrower types, in which intermediate values overflow or would be rounded each, and rounded once.

use super::Tensor;
use crate::error::ErrorKind;
use crate::lax;
use crate::op::Binary;
use crate::trace::fail;
use crate::transform::custom_jvp;

/// The first result of `curve(x)`, of which the second is the derivative. What `curve` captures is constant.
#[track_caller]
pub(crate) fn with_slope(x: Tensor, curve: impl Fn(Tensor) -> (Tensor, Tensor)) -> Tensor {
    check_float(x);
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let value = |x: Tensor| curve(x.cast(wide)).0.cast(dtype);
    custom_jvp(value, |x: Tensor, t: Tensor| {
        let (value, slope) = curve(x.cast(wide));
        (value.cast(dtype), scaled(t, slope.cast(dtype)))
    })(x)
}

/// The first result of `surface(x, y)`, of which the others are the derivatives by each; `x` and `y` have
/// one type.
#[track_caller]
pub(crate) fn with_slopes(
    x: Tensor,
    y: Tensor,
    surface: impl Fn(Tensor, Tensor) -> (Tensor, [Tensor; 2]),
) -> Tensor {
    check_float(x);
    let (dtype, wide) = (x.dtype(), x.dtype().accumulator());
    let value = |(x, y): (Tensor, Tensor)| surface(x.cast(wide), y.cast(wide)).0.cast(dtype);
    custom_jvp(value, |(x, y): (Tensor, Tensor), t: (Tensor, Tensor)| {
        let (value, [of_x, of_y]) = surface(x.cast(wide), y.cast(wide));
        let change = scaled(t.0, of_x.cast(dtype)) + scaled(t.1, of_y.cast(dtype));
        (value.cast(dtype), change)
    })((x, y))
}

/// The product, and 0 where either factor is 0, even if the other is infinite or NaN.
#[track_caller]
pub(crate) fn scaled(x: Tensor, factor: Tensor) -> Tensor {
    lax::binary(Binary::MulOrZero, x, factor)
}

/// Ends the trace; the message gets the name of the method that the user called.
#[track_caller]
fn check_float(x: Tensor) {
    let ty = x.ty();
    if !ty.dtype.is_float() {
        let kind = ErrorKind::DType {
            op: "slope",
            problem: format!("takes a real floating-point tensor, not {ty}"),
        };
        fail(kind, Some("convert it with `.cast(...)`".to_owned()))
    }
}
