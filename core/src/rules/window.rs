//! Derivatives and batching of reductions of windows.

use super::batch::{Batched, inserted};
use super::product;
use crate::lax;
use crate::op::{Binary, Comparison, Dims, Reducer, Window};
use crate::tensor::{Tensor, scaled};
use crate::types::{Shape, TensorType};

/// The derivative, from the elements of every window side by side.
pub(super) fn jvp_reduce_window(
    reducer: Reducer,
    window: &Window,
    x: Tensor,
    t: Tensor,
    y: Tensor,
) -> Tensor {
    let ty = y.ty();
    let neutral = match reducer {
        Reducer::Prod => 1.0,
        Reducer::Min => f64::INFINITY,
        _ => f64::NEG_INFINITY,
    };
    let wide = ty.dtype.accumulator();
    let tangents = patches(window, lax::convert(t, wide), 0.0);
    let found = if reducer == Reducer::Prod {
        let elements = patches(window, lax::convert(x, wide), neutral);
        product::jvp_product(elements, tangents, &Dims::from_elem(ty.rank(), 1))
    } else {
        // Numbers are equal as they are in their own type, if that has the infinity that is around them.
        let compared = match ty.dtype.has_infinities() {
            true => ty.dtype,
            false => wide,
        };
        let elements = patches(window, lax::convert(x, compared), neutral);
        let shape = elements.shape();
        let dims: Dims = (0..ty.rank()).collect();
        let extremum = lax::broadcast(lax::convert(y, compared), &shape, &dims);
        let attained = lax::convert(lax::compare(Comparison::Eq, elements, extremum), wide);
        let last = [ty.rank()];
        let count = lax::reduce(Reducer::Sum, attained, &last);
        let total = lax::reduce(Reducer::Sum, scaled(tangents, attained), &last);
        lax::binary(Binary::Div, total, count)
    };
    lax::convert(found, ty.dtype)
}

/// The elements of the windows: the result's dimensions, and one over a window's elements.
///
/// One strided slice for each position in a window: a gather would be one equation, but its
/// transpose, a scatter, takes its updates one after another on some devices.
fn patches(window: &Window, x: Tensor, around: f64) -> Tensor {
    let ty = x.ty();
    let rank = ty.rank();
    let value = lax::full(around.into(), &TensorType::scalar(ty.dtype));
    let dims = |of: &dyn Fn(usize) -> usize| -> Dims { (0..rank).map(of).collect() };
    let padded = lax::pad(
        x,
        value,
        dims(&|d| window.padding[d].0),
        dims(&|d| window.padding[d].1),
        dims(&|d| window.base_dilation[d] - 1),
    );
    let size = padded.shape();
    let count = |d: usize| {
        let reach = (window.sizes[d] - 1) * window.window_dilation[d] + 1;
        match size[d] >= reach {
            true => (size[d] - reach) / window.strides[d] + 1,
            false => 0,
        }
    };
    let result: Shape = (0..rank).map(count).collect();
    let total: usize = window.sizes.iter().product();
    let mut column = result.clone();
    column.push(1);
    let parts: Vec<Tensor> = (0..total)
        .map(|position| {
            let mut rest = position;
            let mut starts: Dims = (0..rank).collect();
            for d in (0..rank).rev() {
                starts[d] = rest % window.sizes[d] * window.window_dilation[d];
                rest /= window.sizes[d];
            }
            let limits = dims(&|d| match result[d] {
                0 => starts[d],
                windows => starts[d] + (windows - 1) * window.strides[d] + 1,
            });
            let part = lax::slice(padded, starts, limits, window.strides.clone());
            lax::reshape(part, &column)
        })
        .collect();
    match parts.as_slice() {
        [] => {
            column[rank] = 0;
            lax::zeros(&TensorType::new(ty.dtype, &column))
        }
        parts => lax::concatenate(parts, rank),
    }
}

/// Every element gets the cotangents of the windows that it is in: a sum over the windows, their
/// strides apart.
pub(super) fn transpose_window_sum(window: &Window, operand: &TensorType, ct: Tensor) -> Tensor {
    let ty = ct.ty();
    let rank = ty.rank();
    if ty.element_count() == 0 || operand.element_count() == 0 {
        return lax::zeros(operand);
    }
    let spanned = |size: usize, gap: usize| ((size - 1) * gap + 1) as i64;
    let ends: Vec<(i64, i64)> = (0..rank)
        .map(|d| {
            let window_size = spanned(window.sizes[d], window.window_dilation[d]);
            let low = window_size - 1 - window.padding[d].0 as i64;
            let whole = spanned(operand.shape[d], window.base_dilation[d]) + window_size - 1;
            (low, whole - spanned(ty.shape[d], window.strides[d]) - low)
        })
        .collect();
    let added = |n: i64| n.max(0) as usize;
    let zero = lax::zeros(&TensorType::scalar(ty.dtype));
    let apart = lax::pad(
        ct,
        zero,
        ends.iter().map(|&(low, _)| added(low)).collect(),
        ends.iter().map(|&(_, high)| added(high)).collect(),
        window.strides.iter().map(|&s| s - 1).collect(),
    );
    // Windows that lie in the padding alone hold no element.
    let size = apart.shape();
    let inner = lax::slice(
        apart,
        ends.iter().map(|&(low, _)| added(-low)).collect(),
        (0..rank).map(|d| size[d] - added(-ends[d].1)).collect(),
        Dims::from_elem(1, rank),
    );
    let ones = Dims::from_elem(1, rank);
    let sums = Window {
        sizes: window.sizes.clone(),
        strides: window.base_dilation.clone(),
        padding: vec![(0, 0); rank].into(),
        base_dilation: ones,
        window_dilation: window.window_dilation.clone(),
    };
    let wide = lax::convert(inner, ty.dtype.accumulator());
    lax::convert(lax::reduce_window(Reducer::Sum, wide, sums), ty.dtype)
}

/// A window of one element along the batch.
pub(super) fn batch_reduce_window(reducer: Reducer, window: &Window, x: Batched) -> Batched {
    let d = x.dim.unwrap_or(0);
    let one = |of: &Dims| inserted(of, d, 1);
    let mut padding = window.padding.clone();
    padding.insert(d, (0, 0));
    let window = Window {
        sizes: one(&window.sizes),
        strides: one(&window.strides),
        padding,
        base_dilation: one(&window.base_dilation),
        window_dilation: one(&window.window_dilation),
    };
    Batched::new(lax::reduce_window(reducer, x.tensor, window), d)
}
