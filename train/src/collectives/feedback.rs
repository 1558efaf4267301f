//! Gradients that are sent in part, the rest of which is sent later.

use std::panic::Location;

use shardax_core::{DType, Tensor, Tree, all_gather_invariant, at, mistake, psum, scan, stack};
use shardax_sharding::Axes;

use super::fused_into;
use super::quantize::{Quantization, check_float};
use super::quantized::exchanged;
use crate::local_sgd::Replicas;
use crate::trees::differences;

/// What is sent of a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    /// The largest elements of all leaves together, and their places: this part of all, from 0 to 1,
    /// and at least one. An element takes 8 bytes.
    Largest(f64),
    /// All elements, in eight bits or one: by [`Code::Sign`](super::Code::Sign) it is 1-bit SGD.
    Quantized(Quantization),
}

/// A sum over devices of compressed gradients, in which nothing is lost: what a device did not send, it
/// keeps, and adds to what it sends next.
///
/// After any number of steps, the sums that came out and what all devices have kept are together the
/// sums that went in. (Seide et al., 2014; Karimireddy et al., 2019. Errors of the second rounding of a
/// quantized sum are kept too, by the device that makes it, as in Tang et al.: "DoubleSqueeze", 2019.)
///
/// ```
/// use shardax_core::{DType, PartitionSpec, Tensor, TensorType, manual, trace, under};
/// use shardax_sharding::{Layout, Mesh};
/// use shardax_train::Replicas;
/// use shardax_train::collectives::{Compression, ErrorFeedback};
///
/// let layout = Layout::new(Mesh::new([("data", 4)])?).shard("replica", "data");
/// let feedback = ErrorFeedback(Compression::Largest(0.01));
/// let step = |gradients: Tensor, kept: Replicas<Tensor>| {
///     let own = PartitionSpec::new(("data",));
///     let specs = (own.clone(), own.clone());
///     let sum = |(g, kept)| feedback.all_reduce(g, kept, "data");
///     manual("data", specs, (PartitionSpec::whole(), own), sum)((gradients, kept))
/// };
/// let ty = TensorType::new(DType::F32, [4, 1000]);
/// let program = under(&layout, || {
///     let own = TensorType::new(DType::F32, [4, 1, 1000]);
///     trace(step, (ty, Replicas(own)))
/// })?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[1,1000]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorFeedback(pub Compression);

impl ErrorFeedback {
    /// What is kept before the first step: zeros of the gradients' shapes, in f32, for each of `count`
    /// devices. Called outside of the region.
    #[track_caller]
    pub fn init<P: Tree<Tensor>>(&self, gradients: &P, count: usize) -> Replicas<P> {
        at(Location::caller(), || zeros_for(gradients, count))
    }

    /// The sum of every device's gradients over `axes`, as far as it is sent, and what is kept now.
    ///
    /// Called inside of a region over `axes`. All devices hold the sum in common; `kept` is split along
    /// its first dimension, of which a device has one.
    #[track_caller]
    pub fn all_reduce<P: Tree<Tensor>>(
        &self,
        gradients: P,
        kept: Replicas<P>,
        axes: impl Into<Axes>,
    ) -> (P, Replicas<P>) {
        let axes = axes.into();
        at(Location::caller(), || {
            let kept = own_of("ErrorFeedback::all_reduce", &gradients, kept);
            let mut residuals = kept.leaves().into_iter();
            let total = gradients.replace_leaves(&mut |_, g| {
                let wide = g.cast(DType::F32);
                residuals.next().map_or(wide, |kept| wide + kept)
            });
            let [sums, errors] = fused_into(&total, |x| match (self.0, x.size(0)) {
                (_, 0) => [psum(x, axes.clone()), x],
                (Compression::Largest(part), _) => largest(x, part, &axes),
                (Compression::Quantized(quantization), _) => {
                    let done = exchanged(x, &axes, quantization);
                    [done.sum, done.error]
                }
            });
            let mut types = gradients.leaves().into_iter().map(|g| g.dtype());
            let sums = sums
                .replace_leaves(&mut |_, sum| types.next().map_or(*sum, |dtype| sum.cast(dtype)));
            let errors = errors.replace_leaves(&mut |_, e| e.expand_dims(0));
            (sums, Replicas(errors))
        })
    }
}

/// What is kept before anything was sent: zeros.
pub(super) fn zeros_for<P: Tree<Tensor>>(gradients: &P, count: usize) -> Replicas<P> {
    Replicas(gradients.replace_leaves(&mut |_, g| {
        let mut shape = g.shape();
        shape.insert(0, count);
        Tensor::zeros(DType::F32, shape)
    }))
    .placed()
}

/// What the device has kept, without the leading dimension.
pub(super) fn own_of<P: Tree<Tensor>>(op: &'static str, gradients: &P, kept: Replicas<P>) -> P {
    for gradient in gradients.leaves() {
        check_float(op, gradient);
    }
    let rows = |t: &Tensor| t.shape().first().copied();
    let strange = kept.0.leaves().iter().find(|t| rows(t) != Some(1)).copied();
    if let Some(strange) = strange {
        let problem = format!(
            "what the device has kept, {}, has not one entry for it in its first dimension",
            strange.ty()
        );
        let help = "begin with `init` for as many devices as the axes have, and split the first \
                    dimension over them in the specs of the region";
        mistake(op, problem, Some(help.to_owned()))
    }
    let own = kept.0.replace_leaves(&mut |_, t| t.index(0, 0));
    let problems = differences(gradients, &own, "kept");
    if !problems.is_empty() {
        mistake(op, problems.join("; "), None)
    }
    own
}

/// The sum of the largest elements, and the others.
fn largest(x: Tensor, part: f64, axes: &Axes) -> [Tensor; 2] {
    let length = x.size(0);
    let k = ((part * length as f64).ceil() as usize).clamp(1, length);
    // NaN is sent first, so that it is seen.
    let size = x.is_nan().select(f64::INFINITY, x.abs());
    let (_, places) = size.top_k(k);
    let values = x.take(places, 0);
    let kept = x.scatter(places, values.zeros_like(), 0);
    let message = stack([values.bitcast(DType::U32), places.bitcast(DType::U32)], 0);
    let all = all_gather_invariant(message.expand_dims(0), axes.clone(), 0);
    // One device after the other: its places are different ones, and so all devices add in one order.
    let (sum, ()) = scan(
        Tensor::zeros(DType::F32, [length]),
        all,
        |sum: Tensor, sent: Tensor| {
            let values = sent.index(0, 0).bitcast(DType::F32);
            let places = sent.index(0, 1).bitcast(DType::I32);
            (sum.scatter_add(places, values, 0), ())
        },
    );
    [sum, kept]
}
