//! Collectives that are written in the program itself, of messages between devices.
//!
//! [`psum`] leaves it to the runtime how a sum is made. The functions here say how:
//! in a ring, along a tree, in the node before across nodes, in eight bits. Each is called inside of a
//! [`manual`](shardax_core::manual) region over its axes, in the place of a `psum` or an `all_to_all`,
//! and is a pattern for those that a user invents. A compiled program's report says what they send.
//!
//! # What is sent
//!
//! Of `L` bytes on each of `n` devices, a device sends, counted as the report counts:
//!
//! | | bytes | messages one after another |
//! |---|---|---|
//! | [`ring_all_reduce`] | `2 (n-1)/n L`, the least there is | `2 (n-1)` |
//! | [`tree_all_reduce`] | at most `2 ceil(log2 n) L`; in the mean as little as a ring | `2 ceil(log2 n)` |
//! | [`hierarchical_all_reduce`], `n = outer * inner` | in the node `2 (inner-1)/inner L`, across `2 (outer-1)/outer L/inner` | |
//! | [`quantized_all_reduce`] of f32 | `2 (n-1)/n L (1/4 + 1/block)` | 2 |
//! | [`ErrorFeedback`] with [`Compression::Largest`] | `8 k (n-1)` for `k` elements | 1 |
//! | [`LowRank`], for each matrix `m x n` | `8 r (m + n) (n-1)/n` of f32 | 2 sums |
//!
//! # What they mean
//!
//! The sums are [`psum`]'s, rounded otherwise: all devices hold the result in common,
//! with equal bits, and the derivative hands its cotangent to every device, so that a gradient sends
//! nothing again. A quantized sum has the derivative of the exact one (the straight-through estimator).
//!
//! Leaves of one element type travel together as one vector (tensor fusion, as in Horovod): a tree of
//! many small parameters costs as many messages as one large one. In a region that leaves axes to the
//! compiler, such as one over `data` beside tensor parallelism, a leaf that is split along those is
//! gathered for this: use [`psum`] there, which sums each leaf as it lies, or a region over all axes.
//!
//! Of a value that all devices hold in common they make, as `psum` does, `n` times that value. The
//! gradient of parameters that are common to all devices is summed already: mark them with
//! [`pvary`](shardax_core::pvary) before `grad`, so that each device has its own to be summed here.
//!
//! # References
//!
//! Patarasuk, Yuan: "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009 (the
//! ring); Sergeev, Del Balso: "Horovod: fast and easy distributed deep learning in TensorFlow", 2018
//! (rings and fusion for gradients); Sanders, Speck, Träff: "Two-tree algorithms for full bandwidth
//! broadcast, reduction and scan", 2009; Wang et al.: "ZeRO++: extremely efficient collective
//! communication for giant model training", 2023 (quantized and hierarchical exchanges); Seide et al.:
//! "1-bit stochastic gradient descent and its application to data-parallel distributed training of
//! speech DNNs", 2014, and Karimireddy et al.: "Error feedback fixes SignSGD and other gradient
//! compression schemes", 2019; Vogels, Karimireddy, Jaggi: "PowerSGD: practical low-rank gradient
//! compression for distributed optimization", 2019.

mod feedback;
mod hierarchical;
mod low_rank;
mod quantize;
mod quantized;
mod ring;
mod tree;

use shardax_core::{DType, Tensor, TensorType, Tree, axis_size, concatenate, custom_jvp, psum};
use shardax_sharding::Axes;

pub use feedback::{Compression, ErrorFeedback};
pub use hierarchical::{hierarchical_all_reduce, hierarchical_all_to_all};
pub use low_rank::{LowRank, LowRankState};
pub use quantize::{Code, Quantization};
pub use quantized::quantized_all_reduce;
pub use ring::ring_all_reduce;
pub use tree::tree_all_reduce;

/// A tree's sum over devices by `sum`, a function of vectors, with the derivative of a psum.
fn summed<T: Tree<Tensor>>(tree: T, axes: &Axes, sum: impl Fn(Tensor) -> Tensor) -> T {
    // The derivative sums over all axes at once, and is traced only where one is taken. What is wrong with the axes
    // together is told here.
    axis_size(axes.clone());
    // An element type that has no sum is the same mistake as of a psum, and nothing needs no ring.
    let by_message = |x: Tensor| match x.dtype() != DType::Bool && x.size(0) > 0 {
        true => sum(x),
        false => psum(x, axes.clone()),
    };
    let differentiable = custom_jvp(
        |x: Tensor| by_message(x),
        |x: Tensor, t: Tensor| (by_message(x), psum(t, axes.clone())),
    );
    fused(&tree, differentiable)
}

/// `f` of the leaves of one element type that vary over the same axes, joined to a vector, cut into
/// leaves again.
fn fused<T: Tree<Tensor>>(tree: &T, f: impl Fn(Tensor) -> Tensor) -> T {
    let [result] = fused_into(tree, |x| [f(x)]);
    result
}

/// [`fused`] of a function with several results.
fn fused_into<T: Tree<Tensor>, const N: usize>(
    tree: &T,
    f: impl Fn(Tensor) -> [Tensor; N],
) -> [T; N] {
    let leaves = tree.leaves();
    let types: Vec<TensorType> = leaves.iter().map(|leaf| leaf.ty()).collect();
    let mut results: [Vec<Tensor>; N] = std::array::from_fn(|_| leaves.clone());
    let key = |ty: &TensorType| (ty.dtype, ty.varying);
    for (first, ty) in types.iter().enumerate() {
        if types[..first].iter().any(|other| key(other) == key(ty)) {
            continue;
        }
        let alike: Vec<usize> = (first..leaves.len())
            .filter(|&i| key(&types[i]) == key(ty))
            .collect();
        let parts: Vec<Tensor> = alike.iter().map(|&i| leaves[i].flatten()).collect();
        for (whole, results) in f(concatenate(parts, 0)).into_iter().zip(&mut results) {
            let mut start = 0;
            for &i in &alike {
                let end = start + types[i].element_count();
                results[i] = whole.slice(0, start..end).reshape(&types[i].shape);
                start = end;
            }
        }
    }
    results.map(|leaves| tree.with_leaves(&leaves))
}

/// A vector as `count` rows of equal length, with zeros at the end where it does not divide.
fn in_rows(x: Tensor, count: usize) -> Tensor {
    let length = x.size(0);
    let row = length.div_ceil(count);
    let missing = row * count - length;
    x.pad(0, 0, missing as isize, 0).reshape([count, row])
}

/// The vector of this length that was cut by [`in_rows`].
fn from_rows(rows: Tensor, length: usize) -> Tensor {
    rows.flatten().slice(0, ..length)
}
