//! A sum whose messages are quantized.

use std::panic::Location;

use shardax_core::{
    DType, Tensor, Tree, all_gather_invariant, all_to_all, at, axis_index, axis_size, psum,
};
use shardax_sharding::Axes;

use super::quantize::{Quantization, check_float};
use super::{from_rows, summed};

/// The sum of every device's value, sent in eight bits a number; all devices hold it in common.
///
/// Each device is sent its part of every other device's value, sums in f32, and sends the sum around.
/// Numbers are rounded twice, once on each way, and never while they are added up: the error of a sum
/// is at most that of each device's number, and of the sum itself ([`Code::error_bound`], of the
/// largest number of the block).
///
/// [`Code::error_bound`]: super::Code::error_bound
///
/// Of f32 a bit more than a quarter of the bytes is sent, of bf16 half. What is not finite arrives as
/// NaN. The derivative is that of the exact sum. (As in ZeRO++ and EQuARX.)
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, manual, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
/// use shardax_train::collectives::{Code, Quantization, quantized_all_reduce};
///
/// let layout = Layout::new(Mesh::new([("data", 4)])?);
/// let (split, whole) = (PartitionSpec::new(("data",)), PartitionSpec::whole());
/// let sum = manual("data", split, whole, |gradient: Tensor| {
///     quantized_all_reduce(gradient, "data", Quantization::new(Code::Int8))
/// });
/// let program = under(&layout, || trace(sum, TensorType::new(DType::BF16, [4, 1000])))?;
/// assert_eq!(program.output_types()[0].to_string(), "bf16[1,1000]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn quantized_all_reduce<T: Tree<Tensor>>(
    tree: T,
    axes: impl Into<Axes>,
    quantization: Quantization,
) -> T {
    let axes = axes.into();
    at(Location::caller(), || {
        for leaf in tree.leaves() {
            check_float("quantized_all_reduce", leaf);
        }
        summed(tree, &axes, |x| {
            let sum = exchanged(x.cast(DType::F32), &axes, quantization).sum;
            sum.cast(x.dtype())
        })
    })
}

/// What comes of an exchange in eight bits.
pub(super) struct Exchanged {
    /// The sum as it arrived, which all devices hold in common.
    pub sum: Tensor,
    /// What this device took away from the exact sum by rounding: all devices' together are the
    /// difference. Where the value is not finite it is 0.
    pub error: Tensor,
}

/// Sums an f32 vector.
pub(super) fn exchanged(x: Tensor, axes: &Axes, quantization: Quantization) -> Exchanged {
    let (count, length) = (axis_size(axes.clone()), x.size(0));
    if count == 1 {
        return Exchanged {
            sum: psum(x, axes.clone()),
            error: x.zeros_like(),
        };
    }
    let part = length.div_ceil(count);
    let code = quantization.fitted(part);
    let row = part.next_multiple_of(code.block);
    let rows = x
        .pad(0, 0, (row * count - length) as isize, 0)
        .reshape([count, row]);

    let sent = code.encode(rows);
    let received = all_to_all(sent, axes.clone(), 0, 0);
    let sum = code.decode(received).sum(0).expand_dims(0);
    let finished = code.encode(sum);
    let all = code.decode(all_gather_invariant(finished, axes.clone(), 0));

    let difference = |exact: Tensor, rounded: Tensor| {
        let lost = exact - rounded;
        lost.is_finite().select(lost, 0)
    };
    let of_own = difference(rows, code.decode(sent));
    let of_sum = difference(sum, code.decode(finished));
    let is_own = Tensor::arange(DType::I32, count).eq(axis_index(axes.clone()));
    let error = of_own + is_own.expand_dims(1).select(of_sum, 0);
    Exchanged {
        sum: from_rows(all, length),
        error: from_rows(error, length),
    }
}
