//! Attention block by block, so that memory grows with the sequence and not with its square.
//!
//! The softmax of a row is accumulated over blocks of keys: what was summed so far is rescaled whenever
//! a larger score is found (Milakov, Gimelshein: "Online normalizer calculation for softmax", 2018).
//! The derivative keeps the result and the logarithm of each row's sum, and computes the scores again,
//! block by block (Dao et al.: "FlashAttention", 2022).
//!
//! Both passes are one loop over a list of pairs of blocks, written when the program is traced: a pair
//! of which causality or a window hides everything is not in the list, and costs nothing.

use std::panic::Location;

use super::attention::{AttentionOptions, Block, Problem, compare, cut_one, mix};
use super::{refuse, window};
use crate::dtype::DType;
use crate::lax;
use crate::literal::Number;
use crate::op::{Dims, DotDims};
use crate::tensor::{Operand, Tensor};
use crate::trace::method;
use crate::transform::{custom_vjp, scan};
use crate::types::TensorType;

/// How many queries and keys [`blockwise_attention`] compares at a time.
///
/// Scores of `queries x keys` are what a step of the loop holds for each head. A size beyond the
/// sequence's counts as the sequence's; one that does not divide it leaves a last block that is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSizes {
    /// Queries, at least 1.
    pub queries: usize,
    /// Keys, at least 1.
    pub keys: usize,
}

impl Default for BlockSizes {
    /// 512 by 512.
    fn default() -> Self {
        BlockSizes {
            queries: 512,
            keys: 512,
        }
    }
}

/// [`attention`](super::attention) in memory that grows linearly with queries and keys, forward and
/// backward; the arguments and the result are the same.
///
/// Blocks of which `causal` or `window` hide every pair are left out, if `query_offset` is a number and
/// not a tensor. A bias has its derivative, and is as large as it is given.
///
/// The derivative has a rule of its own: reverse mode can be nested, at the memory of the plain form,
/// and forward mode is an error.
///
/// ```
/// use shardax_core::nn::{AttentionOptions, BlockSizes, blockwise_attention};
/// use shardax_core::{DType, Tensor, TensorType, trace};
///
/// let mixed = |q: Tensor, k: Tensor, v: Tensor| {
///     blockwise_attention(q, k, v, AttentionOptions::causal(), BlockSizes::default())
/// };
/// let ty = TensorType::new(DType::BF16, [1, 32768, 8, 64]);
/// let program = trace(mixed, (ty.clone(), ty.clone(), ty))?;
/// assert_eq!(program.output_types()[0].to_string(), "bf16[1,32768,8,64]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn blockwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: AttentionOptions,
    blocks: BlockSizes,
) -> Tensor {
    let op = "blockwise_attention";
    method(op, Location::caller(), || {
        if blocks.queries == 0 || blocks.keys == 0 {
            let problem = format!("the blocks are {} by {}", blocks.queries, blocks.keys);
            refuse(op, problem, "give sizes of at least 1")
        }
        let mut problem = Problem::new(op, [q, k, v], options);
        let plan = Plan::new(&problem, blocks);
        if plan.pairs.is_empty() {
            let heads = problem.kv_heads * problem.group;
            return Tensor::zeros(
                v.dtype(),
                [problem.batch, problem.queries, heads, v.size(3)],
            );
        }
        problem.options = plan.padded_options(options);
        let loops = Loops { problem, plan };
        let operands = (
            loops.plan.padded(q, 1, 0),
            loops.plan.padded(k, 1, 1),
            loops.plan.padded(v, 1, 1),
            loops.problem.options.bias,
        );
        let attended = custom_vjp(
            |operands: Operands| loops.forward(&operands).0,
            |operands: Operands| {
                let (result, sums) = loops.forward(&operands);
                (result, (operands, result, sums))
            },
            |(operands, result, sums): (Operands, Tensor, Tensor), ct: Tensor| {
                loops.backward(&operands, [result, sums, ct])
            },
        );
        let result = attended(operands);
        lax::slice_dim(result, 1, 0, q.ty().shape[1])
    })
}

/// Queries, keys and values, padded to whole blocks, and the bias.
type Operands = (Tensor, Tensor, Tensor, Option<Tensor>);

/// Which blocks there are.
struct Plan {
    sizes: [usize; 2],
    /// Queries and keys of the problem.
    lengths: [usize; 2],
    /// The pairs that are computed, by number of block.
    pairs: Vec<[usize; 2]>,
}

impl Plan {
    fn new(problem: &Problem, blocks: BlockSizes) -> Self {
        let lengths = [problem.queries, problem.keys];
        let sizes = [
            blocks.queries.min(lengths[0].max(1)),
            blocks.keys.min(lengths[1].max(1)),
        ];
        let mut plan = Plan {
            sizes,
            lengths,
            pairs: Vec::new(),
        };
        let [rows, columns] = [0, 1].map(|which| lengths[which].div_ceil(sizes[which]));
        for row in 0..rows {
            let columns = 0..columns;
            let seen = columns.filter(|&column| plan.sees([row, column], &problem.options));
            plan.pairs
                .extend(seen.map(|column| [row, column]).collect::<Vec<_>>());
        }
        plan
    }

    /// Whether some query of a block may see some key of another.
    fn sees(&self, pair: [usize; 2], options: &AttentionOptions) -> bool {
        let Operand::Number(Number::Int(offset)) = options.query_offset else {
            return true;
        };
        let range = |which: usize| {
            let start = pair[which] * self.sizes[which];
            let end = (start + self.sizes[which]).min(self.lengths[which]);
            (start as i128, end as i128 - 1)
        };
        let (first_query, last_query) = range(0);
        let (first_key, last_key) = range(1);
        let offset = i128::from(offset);
        let (left, right) = options.window;
        let right = if options.causal { Some(0) } else { right };
        let before = right.is_none_or(|right| first_key <= last_query + offset + right as i128);
        let after = left.is_none_or(|left| last_key >= first_query + offset - left as i128);
        before && after
    }

    /// `x` with dimension `dim`, of queries (`which` 0) or keys (1), padded to whole blocks; one of size
    /// 1 that serves all stays.
    #[track_caller]
    fn padded(&self, x: Tensor, dim: usize, which: usize) -> Tensor {
        let (ty, length) = (x.ty(), self.lengths[which]);
        let missing = length.next_multiple_of(self.sizes[which]) - length;
        if missing == 0 || ty.shape[dim] != length {
            return x;
        }
        let at = |count: usize| {
            let mut dims: Dims = smallvec::smallvec![0; ty.rank()];
            dims[dim] = count;
            dims
        };
        let zero = lax::zeros(&TensorType::scalar(ty.dtype));
        lax::pad(x, zero, at(0), at(missing), at(0))
    }

    #[track_caller]
    fn padded_options(&self, options: AttentionOptions) -> AttentionOptions {
        let both = |x: Tensor| {
            let x = Problem::full_rank(x);
            self.padded(self.padded(x, 2, 0), 3, 1)
        };
        let segments = |(a, b): (Tensor, Tensor)| (self.padded(a, 1, 0), self.padded(b, 1, 1));
        AttentionOptions {
            mask: options.mask.map(both),
            bias: options.bias.map(both),
            segments: options.segments.map(segments),
            ..options
        }
    }

    /// The first query and key of each pair, `i32[pairs]` both.
    #[track_caller]
    fn starts(&self) -> [Tensor; 2] {
        [0, 1].map(|which| {
            let pairs = self.pairs.iter();
            let starts: Vec<i32> = pairs
                .map(|pair| (pair[which] * self.sizes[which]) as i32)
                .collect();
            Tensor::constant(&starts, [starts.len()])
        })
    }
}

/// The two passes.
struct Loops {
    problem: Problem,
    plan: Plan,
}

impl Loops {
    fn block(&self, starts: [Tensor; 2]) -> Block {
        Block {
            starts: Some(starts),
            sizes: self.plan.sizes,
        }
    }

    /// The result `[b,t,n*g,h]`, and the logarithm of the sum of each row of scores' exponentials,
    /// `[b,n,t,g]`; of a row in which nothing is seen that is infinite, and its exponentials are then 0.
    #[track_caller]
    fn forward(&self, &(q, k, v, bias): &Operands) -> (Tensor, Tensor) {
        let problem = &self.problem;
        let q = problem.grouped(q);
        let shape = q.ty().shape;
        let rows = [shape[0], shape[2], shape[1], shape[3]];
        let features = v.size(3);
        let wide = problem.wide;
        let none = Tensor::full(f64::NEG_INFINITY, wide, rows);
        let zero = Tensor::zeros(wide, rows);
        let mixed = Tensor::zeros(wide, [rows[0], rows[1], rows[2], rows[3], features]);
        let step = |(largest, sums, mixed): Rows, starts: [Tensor; 2]| {
            let block = self.block(starts);
            let own = |x: Tensor| cut_one(x, 2, &block, 0);
            let key = |x: Tensor| cut_one(x, 1, &block, 1);
            let (scores, _) = problem.scores(cut_one(q, 1, &block, 0), key(k), bias, &block);
            let before = own(largest);
            // The result does not depend on what is subtracted, so no derivative passes through it.
            let after = before.maximum(scores.stop_gradient().max(4));
            let finite = after.eq(f64::NEG_INFINITY).select(0, after);
            let weights = (scores - finite.expand_dims(4)).exp();
            let shrunk = (before - finite).exp();
            let sum = own(sums) * shrunk + weights.sum(4);
            let values = mix(weights.cast(v.dtype()), key(v), wide);
            let values = own(mixed) * shrunk.expand_dims(4) + values;
            let put = |x: Tensor, part: Tensor| window::put(x, part, 2, starts[0]);
            let rows = (put(largest, after), put(sums, sum), put(mixed, values));
            (rows, ())
        };
        let ((largest, sums, mixed), ()) = scan((none, zero, mixed), self.plan.starts(), step);
        let is_empty = sums.eq(0);
        let sums = is_empty.select(1, sums);
        let result = mixed / sums.expand_dims(4);
        let logs = is_empty.select(f64::INFINITY, sums.log() + is_empty.select(0, largest));
        (problem.ungrouped(result.cast(v.dtype())), logs)
    }

    /// The cotangents of the operands, from the result, [`Loops::forward`]'s logarithms and the result's
    /// cotangent.
    #[track_caller]
    fn backward(&self, operands: &Operands, [result, logs, ct]: [Tensor; 3]) -> Operands {
        let &(q, k, v, bias) = operands;
        let problem = &self.problem;
        let wide = problem.wide;
        let zeros = |x: Tensor| Tensor::zeros(wide, x.shape());
        let sums = (zeros(q), zeros(k), zeros(v), bias.map(zeros));
        let (grouped, ct) = (problem.grouped(q), problem.grouped(ct));
        // Of a row of weights w with cotangents c, the scores' are w * (c - w . c).
        let product = ct.cast(wide) * problem.grouped(result).cast(wide);
        let product = product.sum(4).transpose([0, 2, 1, 3]);
        let step = |(dq, dk, dv, dbias): Operands, starts: [Tensor; 2]| {
            let block = self.block(starts);
            let row = |x: Tensor, dim: usize| cut_one(x, dim, &block, 0);
            let (q, ct) = (row(grouped, 1), row(ct, 1));
            let [k, v] = [k, v].map(|x| cut_one(x, 1, &block, 1));
            let (scores, slope) = problem.scores(q, k, bias, &block);
            let weights = (scores - row(logs, 2).expand_dims(4)).exp();
            let ct_weights = compare(ct, v, wide) - row(product, 2).expand_dims(4);
            let ct_scores = ct_weights * weights;
            let narrow = |x: Tensor| x.cast(k.dtype());
            let products = slope.map_or(ct_scores, |slope| ct_scores * slope) * problem.scale;
            let own = mix(narrow(products), k, wide);
            let sums = (
                window::add(dq, problem.ungrouped(own), 1, starts[0]),
                window::add(dk, gather(narrow(products), q, wide), 1, starts[1]),
                window::add(dv, gather(narrow(weights), ct, wide), 1, starts[1]),
                dbias.map(|dbias| self.add_bias(dbias, ct_scores, starts)),
            );
            (sums, ())
        };
        let ((dq, dk, dv, dbias), ()) = scan(sums, self.plan.starts(), step);
        let typed = |ct: Tensor, of: Tensor| ct.cast(of.dtype());
        let dbias = dbias.zip(bias).map(|(ct, bias)| typed(ct, bias));
        (typed(dq, q), typed(dk, k), typed(dv, v), dbias)
    }

    /// Adds the scores' cotangents `[b,n,t,g,s]` of a block to those of the bias, summed over what the
    /// bias serves together.
    #[track_caller]
    fn add_bias(&self, dbias: Tensor, ct: Tensor, starts: [Tensor; 2]) -> Tensor {
        let of = dbias.ty().shape;
        let ty = ct.ty();
        let [b, t, s] = [0, 2, 4].map(|d| ty.shape[d]);
        let heads = self.problem.kv_heads * self.problem.group;
        let mut part = ct.transpose([0, 1, 3, 2, 4]).reshape([b, heads, t, s]);
        let lengths = [
            self.problem.batch,
            heads,
            self.problem.queries,
            self.problem.keys,
        ];
        let serves_all = |d: usize| of[d] == 1 && lengths[d] != 1;
        for dim in (0..4).filter(|&d| serves_all(d)) {
            let axis = dim as isize;
            part = part.sum(axis).keep_dims(part, axis);
        }
        let zero = starts[0].zeros_like();
        let start = |dim: usize, start: Tensor| if serves_all(dim) { zero } else { start };
        let starts = [zero, zero, start(2, starts[0]), start(3, starts[1])];
        let sizes = part.ty().shape;
        let before = lax::dynamic_slice(dbias, &starts, &sizes);
        lax::dynamic_update_slice(dbias, before + part, &starts)
    }
}

/// The largest score of each row, the sum of exponentials, and of values weighted by them.
type Rows = (Tensor, Tensor, Tensor);

/// `[b,n,t,g,s] . [b,t,n,g,h] -> [b,s,n,h]`, in `result`.
#[track_caller]
fn gather(weights: Tensor, rows: Tensor, result: DType) -> Tensor {
    let dims = DotDims {
        lhs_batch: Dims::from_slice(&[0, 1]),
        rhs_batch: Dims::from_slice(&[0, 2]),
        lhs_contract: Dims::from_slice(&[2, 3]),
        rhs_contract: Dims::from_slice(&[1, 3]),
        result,
    };
    lax::dot(weights, rows, dims).transpose([0, 2, 1, 3])
}
