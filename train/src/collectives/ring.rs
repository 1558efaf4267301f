//! A sum in a ring.

use std::panic::Location;

use shardax_core::{
    DType, Tensor, Tree, assume_invariant, at, axis_index, axis_size, concatenate, fori_loop,
    ppermute, psum, scan,
};
use shardax_sharding::Axes;

use super::{from_rows, in_rows, summed};

/// The sum of every device's value, passed around a ring; all devices hold it in common.
///
/// The value is cut into as many chunks as there are devices. In a first round of `n - 1` messages each
/// chunk travels once around and gathers what every device has of it; in a second one, the sums travel
/// around. A device sends `2 (n - 1) / n` of the value's bytes, which no algorithm betters, in
/// `2 (n - 1)` messages: it is for large values. Several axes are one ring, over all their devices.
///
/// Each sum is added up in the value's own element type in the order of the ring. What does not divide
/// into chunks is padded with zeros on the way.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, manual, trace, under};
/// use shardax_sharding::{Layout, Mesh, PartitionSpec};
/// use shardax_train::collectives::ring_all_reduce;
///
/// let layout = Layout::new(Mesh::new([("data", 4)])?);
/// let (split, whole) = (PartitionSpec::new(("data",)), PartitionSpec::whole());
/// let sum = manual("data", split, whole, |x: Tensor| ring_all_reduce(x, "data"));
/// let program = under(&layout, || trace(sum, TensorType::new(DType::F32, [4, 7])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[1,7]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn ring_all_reduce<T: Tree<Tensor>>(tree: T, axes: impl Into<Axes>) -> T {
    let axes = axes.into();
    at(Location::caller(), || {
        summed(tree, &axes, |x| ring(x, &axes))
    })
}

fn ring(x: Tensor, axes: &Axes) -> Tensor {
    let count = axis_size(axes.clone());
    if count == 1 {
        return psum(x, axes.clone());
    }
    let length = x.size(0);
    let own = axis_index(axes.clone());
    let chunks = in_rows(x, count);
    // The position may be counted down from beyond the last.
    let wrapped = |position: Tensor| position.rem_euclid(count as i64);
    let chunk = |position| chunks.dynamic_slice(0, wrapped(position), 1);
    let pass = |x: Tensor| ppermute(x, axes.clone(), (0..count).map(|i| (i, (i + 1) % count)));

    // Device `i` begins the sum of chunk `i` and ends that of the one after it.
    let turns = count as i64 - 1;
    let finished = fori_loop(0, turns, chunk(own), |turn, partial| {
        pass(partial) + chunk(own + turns - turn)
    });
    let (_, received) = scan(
        finished,
        Tensor::arange(DType::I32, count - 1),
        |last, _: Tensor| {
            let next = pass(last);
            (next, next.index(0, 0))
        },
    );
    // Those of the devices before, nearest first: chunks in descending order.
    let found = concatenate([finished, received], 0);
    let order = wrapped(own + 1 - Tensor::arange(DType::I32, count));
    let sums = found.take(order, 0);
    from_rows(assume_invariant(sums, axes.clone()), length)
}
