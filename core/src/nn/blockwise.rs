//! Attention block by block, so that memory grows with the sequence and not with its square.
//!
//! The derivative keeps the result and the logarithm of each row's sum, and computes the scores again,
//! block by block (`pairs.rs`).
//!
//! Both passes are one loop over a list of pairs of blocks, written when the program is traced: a pair
//! of which causality or a window hides everything is not in the list, and costs nothing.

use std::panic::Location;

use super::attention::{AttentionOptions, Problem};
use super::pairs::{Operands, Pairs};
use super::refuse;
use super::ring::Split;
use crate::lax;
use crate::literal::Number;
use crate::op::Dims;
use crate::tensor::{Operand, Tensor};
use crate::trace::method;
use crate::transform::custom_vjp;
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
        if let Some(split) = Split::of(&problem, [q, k]) {
            return split.attend(&problem, [q, k, v], blocks);
        }
        let plan = Plan::new(&problem, blocks);
        if plan.pairs.is_empty() {
            let heads = problem.kv_heads * problem.group;
            return Tensor::zeros(
                v.dtype(),
                [problem.batch, problem.queries, heads, v.size(3)],
            );
        }
        problem.options = plan.padded_options(options);
        let operands = (
            plan.padded(q, 1, 0),
            plan.padded(k, 1, 1),
            plan.padded(v, 1, 1),
            problem.options.bias,
        );
        let pairs = Pairs {
            problem: &problem,
            sizes: plan.sizes,
            starts: &plan.pairs,
            offsets: None,
        };
        let forward = |operands: &Operands| {
            let (q, v) = (operands.0, operands.2);
            let rows = pairs.no_rows([q.size(1), v.size(3)]);
            pairs.finished(pairs.seen_by(rows, operands), v.dtype())
        };
        let attended = custom_vjp(
            |operands: Operands| forward(&operands).0,
            |operands: Operands| {
                let (result, logs) = forward(&operands);
                (result, (operands, result, logs))
            },
            |(operands, result, logs): (Operands, Tensor, Tensor), ct: Tensor| {
                let product = pairs.product(result, ct);
                pairs.all_cotangents(&operands, [logs, product, ct])
            },
        );
        let result = attended(operands);
        lax::slice_dim(result, 1, 0, q.ty().shape[1])
    })
}

/// Which blocks there are.
struct Plan {
    sizes: [usize; 2],
    /// Queries and keys of the problem.
    lengths: [usize; 2],
    /// The first query and key of each pair that is computed.
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
            let starts = (0..columns).map(|column| [row * sizes[0], column * sizes[1]]);
            let seen = starts.filter(|&starts| plan.sees(starts, &problem.options));
            let seen: Vec<[usize; 2]> = seen.collect();
            plan.pairs.extend(seen);
        }
        plan
    }

    /// Whether some query of a block may see some key of another.
    fn sees(&self, starts: [usize; 2], options: &AttentionOptions) -> bool {
        let Operand::Number(Number::Int(offset)) = options.query_offset else {
            return true;
        };
        let range = |which: usize| {
            let start = starts[which];
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
}
