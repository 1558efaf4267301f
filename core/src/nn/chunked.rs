//! The cross-entropy of a language model without its logits, which for a large vocabulary are larger
//! than everything else: they are computed a chunk at a time, and again for the derivative.

use std::panic::Location;

use super::loss::{CrossEntropyOptions, Summary};
use super::{check_float, refuse, wide_enough, window};
use crate::dtype::DType;
use crate::lax;
use crate::op::{Dims, DotDims};
use crate::tensor::Tensor;
use crate::trace::method;
use crate::transform::{custom_vjp, scan};
use crate::types::TensorType;

/// Of how many positions and classes [`chunked_cross_entropy`] computes logits at a time.
///
/// A size beyond what there is counts as all. Where the classes are split over devices, take all of
/// them at a time; where the positions are, all positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkSizes {
    /// Positions of a sequence, at least 1.
    pub positions: usize,
    /// Classes, at least 1.
    pub classes: usize,
}

impl Default for ChunkSizes {
    /// 512 positions, and all classes.
    fn default() -> Self {
        ChunkSizes {
            positions: 512,
            classes: usize::MAX,
        }
    }
}

/// [`cross_entropy`](super::cross_entropy) of the logits `hidden . weight`, without ever holding them.
///
/// `hidden` is `[..., seq, features]`, `weight` `[features, classes]` and `targets` `[..., seq]`. Chunks
/// are taken from `seq` and from the classes, and all other dimensions are whole. Products are summed in
/// f32 where the operands are narrower, and what is known of a position is kept in f32.
///
/// The derivative has a rule of its own: reverse mode can be nested, and forward mode is an error.
///
/// ```
/// use shardax_core::nn::{ChunkSizes, CrossEntropyOptions, chunked_cross_entropy};
/// use shardax_core::{DType, Tensor, TensorType, grad, trace};
///
/// let loss = |(hidden, table): (Tensor, Tensor)| {
///     let targets = Tensor::zeros(DType::I32, [2, 1024]);
///     let options = CrossEntropyOptions::default();
///     let weight = table.transpose([1, 0]);
///     chunked_cross_entropy(hidden, weight, targets, options, ChunkSizes::default())
/// };
/// let types = (
///     TensorType::new(DType::BF16, [2, 1024, 64]),
///     TensorType::new(DType::BF16, [50_000, 64]),
/// );
/// let program = trace(grad(loss), types)?;
/// assert!(!program.graph.to_string().contains("[2,1024,50000]"));
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    options: CrossEntropyOptions,
    chunks: ChunkSizes,
) -> Tensor {
    let op = "chunked_cross_entropy";
    method(op, Location::caller(), || {
        check(op, hidden, weight, targets, chunks);
        options.check(op, &targets.ty());
        let classes = weight.size(1);
        let targets = wide_enough(targets, classes);
        let axis = hidden.rank() - 2;
        let positions = hidden.ty().shape[axis];
        if hidden.ty().element_count() == 0 || classes == 0 {
            let logits = hidden.dot(weight);
            return super::cross_entropy(logits, targets, options);
        }
        let loops = Loops {
            axis,
            positions: even(positions, chunks.positions),
            classes: even(classes, chunks.classes),
            length: classes,
            targets,
            has_mean: options.label_smoothing != 0.0,
        };
        // Rows that fill the last chunk are of target 0 and not looked at.
        let missing = positions.next_multiple_of(loops.positions) - positions;
        let pad = |x: Tensor| padded(x, axis, missing);
        let loops = Loops {
            targets: pad(targets),
            ..loops
        };
        let summarize = custom_vjp(
            |(hidden, weight): (Tensor, Tensor)| loops.forward(hidden, weight),
            |(hidden, weight): (Tensor, Tensor)| {
                let summary = loops.forward(hidden, weight);
                let log_sum = summary.0;
                (summary, (hidden, weight, log_sum))
            },
            |(hidden, weight, log_sum): (Tensor, Tensor, Tensor), cts: Parts| {
                loops.backward(hidden, weight, log_sum, cts)
            },
        );
        let (log_sum, picked, mean) = summarize((pad(hidden), weight));
        let own = |x: Tensor| lax::slice_dim(x, axis, 0, positions);
        let summary = Summary {
            log_sum: own(log_sum),
            picked: own(picked),
            mean: mean.map(own),
        };
        summary.loss(targets, classes, &options)
    })
}

/// As the fields of [`Summary`].
type Parts = (Tensor, Tensor, Option<Tensor>);

#[track_caller]
fn check(op: &'static str, hidden: Tensor, weight: Tensor, targets: Tensor, chunks: ChunkSizes) {
    check_float(op, "hidden", hidden);
    check_float(op, "weight", weight);
    let (h, w, l) = (hidden.ty(), weight.ty(), targets.ty());
    let fits = h.rank() >= 2
        && w.rank() == 2
        && h.shape[h.rank() - 1] == w.shape[0]
        && h.shape[..h.rank() - 1] == l.shape[..]
        && l.dtype.is_integer();
    if !fits {
        let problem = format!("`hidden` is {h}, `weight` {w} and `targets` {l}");
        let help = "give hidden [..., seq, features], weight [features, classes] and one integer, the \
                    class, for each position [..., seq]; a table [classes, features] is transposed first";
        refuse(op, problem, help)
    }
    if chunks.positions == 0 || chunks.classes == 0 {
        let problem = format!(
            "the chunks are {} positions by {} classes",
            chunks.positions, chunks.classes
        );
        refuse(op, problem, "give sizes of at least 1")
    }
}

/// The size of as few chunks as `size` allows, about equally large.
fn even(length: usize, size: usize) -> usize {
    length.div_ceil(length.div_ceil(size))
}

#[track_caller]
fn padded(x: Tensor, axis: usize, missing: usize) -> Tensor {
    let mut high: Dims = smallvec::smallvec![0; x.rank()];
    let none = high.clone();
    high[axis] = missing;
    let zero = lax::zeros(&TensorType::scalar(x.dtype()));
    lax::pad(x, zero, none.clone(), high, none)
}

/// The two passes over chunks.
#[derive(Clone, Copy)]
struct Loops {
    /// The dimension of the positions.
    axis: usize,
    /// The sizes of a chunk; the positions are padded to whole chunks.
    positions: usize,
    classes: usize,
    /// How many classes there are.
    length: usize,
    targets: Tensor,
    has_mean: bool,
}

/// One chunk's logits, and what belongs to them.
struct Chunk {
    hidden: Tensor,
    weight: Tensor,
    /// -inf at classes that belong to the chunk before.
    logits: Tensor,
    /// Where the class is the target's.
    is_target: Tensor,
    /// Where the class belongs to this chunk; `None` is everywhere.
    is_own: Option<Tensor>,
}

impl Loops {
    /// Where each chunk starts: positions, and classes. The last chunk of classes ends with them, and
    /// so begins with some of the chunk before; the third number is its first own class.
    #[track_caller]
    fn starts(&self) -> [Tensor; 3] {
        let rows = self.targets.ty().shape[self.axis] / self.positions;
        let columns = self.length.div_ceil(self.classes);
        let mut starts = [(); 3].map(|()| Vec::new());
        for row in 0..rows {
            for own in (0..columns).map(|column| column * self.classes) {
                starts[0].push((row * self.positions) as i64);
                starts[1].push(own.min(self.length - self.classes) as i64);
                starts[2].push(own as i64);
            }
        }
        // Positions and classes that do not fit need more memory than there is.
        starts.map(|starts| Tensor::constant(&starts, [starts.len()]).cast(DType::I32))
    }

    /// The positions of a chunk.
    #[track_caller]
    fn cut(&self, x: Tensor, start: Tensor) -> Tensor {
        window::read(x, self.axis, start, self.positions)
    }

    #[track_caller]
    fn chunk(&self, hidden: Tensor, weight: Tensor, [row, column, own]: [Tensor; 3]) -> Chunk {
        let hidden = self.cut(hidden, row);
        let weight = window::read(weight, 1, column, self.classes);
        let logits = hidden.dot_as(weight, wide_of(hidden, weight));
        let targets = self.cut(self.targets, row);
        let shape = logits.shape();
        let last = TensorType::new(DType::I32, [self.classes]);
        let number = lax::iota(last, 0) + column;
        let numbers = lax::broadcast(number.cast(targets.dtype()), &shape, &[shape.len() - 1]);
        let mut is_target = numbers.eq(targets.expand_dims(-1));
        let overlaps = !self.length.is_multiple_of(self.classes);
        let is_own = overlaps.then(|| number.ge(own));
        let mut chunk_logits = logits;
        if let Some(is_own) = is_own {
            chunk_logits = is_own.select(logits, f64::NEG_INFINITY);
            is_target &= is_own;
        }
        Chunk {
            hidden,
            weight,
            logits: chunk_logits,
            is_target,
            is_own,
        }
    }

    #[track_caller]
    fn forward(&self, hidden: Tensor, weight: Tensor) -> Parts {
        let wide = wide_of(hidden, weight);
        let rows = self.targets.shape();
        let zero = Tensor::zeros(wide, &rows);
        let none = Tensor::full(f64::NEG_INFINITY, wide, &rows);
        let mean = self.has_mean.then_some(zero);
        let step = |(largest, sums, picked, mean): Sums, starts: [Tensor; 3]| {
            let chunk = self.chunk(hidden, weight, starts);
            let logits = chunk.logits;
            let own = |x: Tensor| self.cut(x, starts[0]);
            let before = own(largest);
            // The result does not depend on what is subtracted, so no derivative passes through it.
            let after = before.maximum(logits.stop_gradient().max(-1));
            let finite = after.abs().lt(f64::INFINITY).select(after, 0);
            let sum = (logits - finite.expand_dims(-1)).exp().sum(-1);
            let sum = own(sums) * (before - finite).exp() + sum;
            let pick = own(picked) + chunk.is_target.select(logits, 0).sum(-1);
            let mean = mean.map(|mean| {
                let counted = chunk
                    .is_own
                    .map_or(logits, |is_own| is_own.select(logits, 0));
                let part = counted.sum(-1) / self.length as f64;
                (mean, own(mean) + part)
            });
            let put = |x: Tensor, part: Tensor| window::put(x, part, self.axis, starts[0]);
            let mean = mean.map(|(mean, part)| put(mean, part));
            let sums = (put(largest, after), put(sums, sum), put(picked, pick), mean);
            (sums, ())
        };
        let (sums, ()) = scan((none, zero, zero, mean), self.starts(), step);
        let (largest, sums, picked, mean) = sums;
        let finite = largest.abs().lt(f64::INFINITY).select(largest, 0);
        let is_empty = sums.eq(0);
        let log_sum = is_empty.select(1, sums).log() + finite;
        (is_empty.select(f64::NEG_INFINITY, log_sum), picked, mean)
    }

    /// The cotangents of hidden and weight.
    #[track_caller]
    fn backward(
        &self,
        hidden: Tensor,
        weight: Tensor,
        log_sum: Tensor,
        cts: Parts,
    ) -> (Tensor, Tensor) {
        let wide = wide_of(hidden, weight);
        let (ct_sum, ct_picked, ct_mean) = cts;
        // Where all logits are -inf their exponentials are 0.
        let nothing = log_sum.eq(f64::NEG_INFINITY);
        let log_sum = nothing.select(f64::INFINITY, log_sum);
        let zeros = |x: Tensor| Tensor::zeros(wide, x.shape());
        let step = |(dh, dw): (Tensor, Tensor), starts: [Tensor; 3]| {
            let chunk = self.chunk(hidden, weight, starts);
            let own = |x: Tensor| self.cut(x, starts[0]).expand_dims(-1);
            let weights = (chunk.logits - own(log_sum)).exp();
            let mut ct = weights * own(ct_sum) + chunk.is_target.select(own(ct_picked), 0);
            if let Some(ct_mean) = ct_mean {
                let part = own(ct_mean) / self.length as f64;
                let part = chunk.is_own.map_or(part, |is_own| is_own.select(part, 0));
                ct += part;
            }
            let ct = ct.cast(hidden.dtype());
            let sums = (
                window::add(
                    dh,
                    ct.dot_as(chunk.weight.transpose([1, 0]), wide),
                    self.axis,
                    starts[0],
                ),
                window::add(dw, outer(chunk.hidden, ct, wide), 1, starts[1]),
            );
            (sums, ())
        };
        let ((dh, dw), ()) = scan((zeros(hidden), zeros(weight)), self.starts(), step);
        (dh.cast(hidden.dtype()), dw.cast(weight.dtype()))
    }
}

/// The largest logit of each position, the sum of exponentials, the target's logit, and the mean.
type Sums = (Tensor, Tensor, Tensor, Option<Tensor>);

/// In which logits of these are computed.
#[track_caller]
fn wide_of(hidden: Tensor, weight: Tensor) -> DType {
    match DType::F64 {
        f64 if hidden.dtype() == f64 || weight.dtype() == f64 => f64,
        _ => DType::F32,
    }
}

/// `[..., features] . [..., classes] -> [features, classes]`, in `result`.
#[track_caller]
fn outer(x: Tensor, y: Tensor, result: DType) -> Tensor {
    let leading: Dims = (0..x.rank() - 1).collect();
    let dims = DotDims {
        lhs_batch: Dims::new(),
        rhs_batch: Dims::new(),
        lhs_contract: leading.clone(),
        rhs_contract: leading,
        result,
    };
    lax::dot(x, y, dims)
}
