//! Normalization: values of mean 0 and variance 1 over some of their dimensions.
//!
//! Statistics are computed in f32 where the values are narrower, and so is what follows; the result
//! has the type of `x`. Variances are divided by the number of elements, and `eps` is added to them
//! before the root, so that values that are all equal give 0 and finite derivatives.
//!
//! Squares are summed as they are: compilers know that form, make one pass of it, and one sum across devices where the
//! values are split. So values whose squares overflow, from about 1e19 on in f32 and bf16, give 0. That holds for every
//! `eps` that keeps small values in place, of 1e-12 and more. A smaller one, 0 say, promises that small
//! values are brought to variance 1 too. Then the length is that of [`Tensor::norm`], which neither overflows nor
//! vanishes, and takes more sums.

use std::panic::Location;

use super::{check_float, dimension, refuse};
use crate::lax;
use crate::op::Dims;
use crate::tensor::{Axes, Tensor};
use crate::trace::method;

/// The `eps` below which values may count whose squares vanish.
const VANISHING: f64 = 1e-12;

/// What is done to normalized values, and which dimensions of them it is indexed by.
struct Affine<'a> {
    op: &'static str,
    dims: &'a [usize],
    scale: Option<Tensor>,
    offset: Option<Tensor>,
}

impl Affine<'_> {
    /// `x * scale + offset`. All that does not fit is reported at once.
    #[track_caller]
    fn apply(&self, x: Tensor) -> Tensor {
        let (op, ty) = (self.op, x.ty());
        let sizes: Vec<usize> = self.dims.iter().map(|&d| ty.shape[d]).collect();
        let parameters = [("scale", self.scale), ("offset", self.offset)];
        let unfit: Vec<String> = parameters
            .iter()
            .filter_map(|(name, parameter)| Some((name, (*parameter)?.ty())))
            .filter(|(_, ty)| ty.shape[..] != sizes[..] || !ty.dtype.is_float())
            .map(|(name, ty)| format!("`{name}` is {ty}"))
            .collect();
        if !unfit.is_empty() {
            let problem = format!(
                "{}, for `x` of shape {:?}",
                unfit.join(" and "),
                &ty.shape[..]
            );
            let help = format!(
                "give a float tensor of shape {sizes:?}, the sizes of dimensions {:?} of `x`",
                self.dims
            );
            refuse(op, problem, &help)
        }
        let along =
            |parameter: Tensor| lax::broadcast(parameter, &ty.shape, &Dims::from_slice(self.dims));
        let scaled = self.scale.map_or(x, |scale| x * along(scale));
        self.offset.map_or(scaled, |offset| scaled + along(offset))
    }
}

/// The dimensions of `x` that axes mean, in their order.
#[track_caller]
fn listed(op: &'static str, x: Tensor, axes: impl Axes) -> Vec<usize> {
    let axes = axes.list(x.rank());
    let mut dims = Vec::new();
    for &axis in &axes {
        let dim = dimension(x, axis);
        if dims.contains(&dim) {
            let problem = format!("axis {axis} of {} is named twice", x.ty());
            refuse(op, problem, "name each dimension once")
        }
        dims.push(dim);
    }
    dims.sort_unstable();
    dims
}

fn axes_of(dims: &[usize]) -> Vec<isize> {
    dims.iter().map(|&d| d as isize).collect()
}

/// `eps` may be 0, for values of which it is known that they are not all equal.
#[track_caller]
fn check_eps(op: &'static str, eps: f64) {
    if !(eps >= 0.0 && eps.is_finite()) {
        let problem = format!("`eps` is {eps}");
        refuse(op, problem, "give a small positive number such as 1e-5")
    }
}

/// Differences from the mean over `axes`, and the mean, with these at size 1.
#[track_caller]
fn centred(wide: Tensor, axes: &[isize]) -> (Tensor, Tensor) {
    let mean = wide.mean(axes).keep_dims(wide, axes);
    (wide - mean, mean)
}

/// The mean of squares over `axes`, with these at size 1.
#[track_caller]
fn mean_square(x: Tensor, axes: &[isize]) -> Tensor {
    x.square().mean(axes).keep_dims(x, axes)
}

/// `x / sqrt(mean(x^2) + eps)`, with the mean over `axes`.
#[track_caller]
fn standardized(x: Tensor, axes: &[isize], eps: f64) -> Tensor {
    if eps >= VANISHING {
        return x * (mean_square(x, axes) + eps).rsqrt();
    }
    let count: usize = axes.iter().map(|&axis| x.size(axis)).product();
    let size = x.norm(axes).keep_dims(x, axes) / (count as f64).sqrt();
    x / if eps > 0.0 {
        size.hypot(eps.sqrt())
    } else {
        size
    }
}

/// `(x - mean) / sqrt(var + eps) * scale + offset`, with mean and variance over `axes` (`-1`, or
/// several dimensions). (Ba, Kiros, Hinton: "Layer normalization", 2016.)
///
/// `scale` and `offset` have the sizes of these dimensions, in the order of `x`. Values from about 1e19 on and an `eps` of less
/// than 1e-12 are treated as in [`rms_norm`].
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, nn, trace};
///
/// let norm = |x: Tensor, scale: Tensor| nn::layer_norm(x, Some(scale), None, -1, 1e-5);
/// let types = (TensorType::new(DType::BF16, [2, 8]), TensorType::new(DType::F32, [8]));
/// assert_eq!(trace(norm, types)?.output_types()[0].to_string(), "bf16[2,8]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn layer_norm(
    x: Tensor,
    scale: Option<Tensor>,
    offset: Option<Tensor>,
    axes: impl Axes,
    eps: f64,
) -> Tensor {
    let op = "layer_norm";
    method(op, Location::caller(), || {
        check_float(op, "x", x);
        check_eps(op, eps);
        let dims = &listed(op, x, axes);
        let wide = x.cast(x.dtype().accumulator());
        let axes = axes_of(dims);
        let normal = standardized(centred(wide, &axes).0, &axes, eps);
        let affine = Affine {
            op,
            dims,
            scale,
            offset,
        };
        affine.apply(normal).cast(x.dtype())
    })
}

/// `x / sqrt(mean(x^2) + eps) * scale`, with the mean over `axes`, whose sizes `scale` has.
/// (Zhang, Sennrich: "Root mean square layer normalization", 2019.)
///
/// Where squares overflow, of values from about 1e19 on in f32 and bf16, the result is 0. With an `eps` of less than 1e-12
/// squares may overflow and vanish, at the price of more sums.
#[track_caller]
pub fn rms_norm(x: Tensor, scale: Option<Tensor>, axes: impl Axes, eps: f64) -> Tensor {
    let op = "rms_norm";
    method(op, Location::caller(), || {
        check_float(op, "x", x);
        check_eps(op, eps);
        let dims = &listed(op, x, axes);
        let axes = &axes_of(dims)[..];
        let wide = x.cast(x.dtype().accumulator());
        let normal = standardized(wide, axes, eps);
        let affine = Affine {
            op,
            dims,
            scale,
            offset: None,
        };
        affine.apply(normal).cast(x.dtype())
    })
}

/// The dimensions of `x` other than that of the channels.
#[track_caller]
fn beside(x: Tensor, channels: usize) -> Vec<isize> {
    let others = (0..x.rank()).filter(|&d| d != channels);
    others.map(|d| d as isize).collect()
}

/// Normalizes each channel of `x` by its mean and variance over all other dimensions, the batch
/// among them; returns the result and these statistics, of shape `[channels]` in the type that they
/// were computed in. (Ioffe, Szegedy: "Batch normalization", 2015.)
///
/// `channel_axis` is the dimension of the channels, `scale` and `offset` are `[channels]`. The
/// derivative passes through the statistics. For inference, average them with
/// [`running_statistics`] and give them to [`batch_norm_inference`].
///
/// ```
/// use shardax_core::{Tensor, nn};
///
/// fn train(x: Tensor, running: (Tensor, Tensor)) -> (Tensor, (Tensor, Tensor)) {
///     let (y, batch) = nn::batch_norm(x, None, None, -1, 1e-5);
///     (y, nn::running_statistics(running, batch, 0.9))
/// }
/// ```
#[track_caller]
pub fn batch_norm(
    x: Tensor,
    scale: Option<Tensor>,
    offset: Option<Tensor>,
    channel_axis: isize,
    eps: f64,
) -> (Tensor, (Tensor, Tensor)) {
    let op = "batch_norm";
    method(op, Location::caller(), || {
        check_float(op, "x", x);
        check_eps(op, eps);
        let channels = dimension(x, channel_axis);
        let axes = &beside(x, channels);
        let wide = x.cast(x.dtype().accumulator());
        let (centred, mean) = centred(wide, axes);
        let var = mean_square(centred, axes);
        let normal = standardized(centred, axes, eps);
        let affine = Affine {
            op,
            dims: &[channels],
            scale,
            offset,
        };
        let result = affine.apply(normal).cast(x.dtype());
        let flat = [x.ty().shape[channels]];
        (result, (mean.reshape(flat), var.reshape(flat)))
    })
}

/// [`batch_norm`] by given statistics `(mean, var)`, each `[channels]`.
#[track_caller]
pub fn batch_norm_inference(
    x: Tensor,
    (mean, var): (Tensor, Tensor),
    scale: Option<Tensor>,
    offset: Option<Tensor>,
    channel_axis: isize,
    eps: f64,
) -> Tensor {
    let op = "batch_norm_inference";
    method(op, Location::caller(), || {
        check_float(op, "x", x);
        check_eps(op, eps);
        let channels = dimension(x, channel_axis);
        let size = x.ty().shape[channels];
        let (mean_ty, var_ty) = (mean.ty(), var.ty());
        if mean_ty.shape[..] != [size] || var_ty.shape[..] != [size] {
            let problem = format!(
                "the mean is {mean_ty} and the variance {var_ty}, for `x` {}",
                x.ty()
            );
            let help = format!("give one number a channel, {size} of them");
            refuse(op, problem, &help)
        }
        let wide = x.cast(x.dtype().accumulator());
        let along = |t: Tensor| lax::broadcast(t, &x.ty().shape, &[channels]);
        let normal = (wide - along(mean)) * along((var + eps).rsqrt());
        let affine = Affine {
            op,
            dims: &[channels],
            scale,
            offset,
        };
        affine.apply(normal).cast(x.dtype())
    })
}

/// `momentum * running + (1 - momentum) * batch`, of mean and variance; no derivative passes.
#[track_caller]
pub fn running_statistics(
    running: (Tensor, Tensor),
    batch: (Tensor, Tensor),
    momentum: f64,
) -> (Tensor, Tensor) {
    let op = "running_statistics";
    method(op, Location::caller(), || {
        if !(0.0..=1.0).contains(&momentum) {
            let problem = format!("`momentum` is {momentum}");
            refuse(
                op,
                problem,
                "give a number from 0, the batch alone, to 1, no change",
            )
        }
        let averaged = |running: Tensor, batch: Tensor| {
            let batch = batch.stop_gradient() * (1.0 - momentum);
            (running.stop_gradient() * momentum + batch).cast(running.dtype())
        };
        (averaged(running.0, batch.0), averaged(running.1, batch.1))
    })
}

/// Normalizes each group of channels of each example: `x` is `[batch, ...]` with the channels at
/// `channel_axis`, which are divided into `groups` of neighbors; `scale` and `offset` are
/// `[channels]`. (Wu, He: "Group normalization", 2018.)
#[track_caller]
pub fn group_norm(
    x: Tensor,
    scale: Option<Tensor>,
    offset: Option<Tensor>,
    groups: usize,
    channel_axis: isize,
    eps: f64,
) -> Tensor {
    let op = "group_norm";
    method(op, Location::caller(), || {
        check_float(op, "x", x);
        check_eps(op, eps);
        let ty = x.ty();
        let channels = dimension(x, channel_axis);
        let size = ty.shape[channels];
        if channels == 0 {
            let problem = format!("`channel_axis` is dimension 0 of {ty}, the batch");
            refuse(
                op,
                problem,
                "name another dimension; `.expand_dims(0)` adds a batch of one example",
            )
        }
        if groups == 0 || !size.is_multiple_of(groups) {
            let problem = format!(
                "`groups` is {groups}, and dimension {channels} of {ty} has {size} channels"
            );
            refuse(
                op,
                problem,
                "give a number of groups that divides the channels",
            )
        }
        let mut parts = ty.shape.clone();
        parts[channels] = groups;
        parts.insert(channels + 1, size / groups);
        let wide = x.cast(ty.dtype.accumulator()).reshape(&parts);
        let axes: Vec<isize> = (1..parts.len())
            .filter(|&d| d != channels)
            .map(|d| d as isize)
            .collect();
        let normal = standardized(centred(wide, &axes).0, &axes, eps).reshape(&ty.shape);
        let affine = Affine {
            op,
            dims: &[channels],
            scale,
            offset,
        };
        affine.apply(normal).cast(ty.dtype)
    })
}

/// Normalizes each channel of each example over all other dimensions: [`group_norm`] with a group a
/// channel. (Ulyanov, Vedaldi, Lempitsky: "Instance normalization", 2016.)
#[track_caller]
pub fn instance_norm(
    x: Tensor,
    scale: Option<Tensor>,
    offset: Option<Tensor>,
    channel_axis: isize,
    eps: f64,
) -> Tensor {
    method("instance_norm", Location::caller(), || {
        group_norm(x, scale, offset, x.size(channel_axis), channel_axis, eps)
    })
}
