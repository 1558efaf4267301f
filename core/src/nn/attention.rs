//! Attention, with all scores at once.
//!
//! Options that hide keys are combined into one mask, and a hidden key has a score of -inf: a query
//! that sees no key at all gets 0 by the convention of [`Tensor::softmax`], with derivative 0.
//! [`Problem`] holds the checked arguments, and writes scores for any block of queries and keys; the
//! blockwise form is written with it too.

use std::panic::Location;

use super::blockwise::BlockSizes;
use super::ring::Split;
use super::{check_float, check_number, refuse, window};
use crate::dtype::DType;
use crate::lax;
use crate::literal::Number;
use crate::op::{Dims, DotDims};
use crate::tensor::{Operand, Tensor};
use crate::trace::method;
use crate::types::{Shape, TensorType};

/// What a query sees, and how its scores are made. The default is every key, and products divided by
/// the root of `head_dim`.
///
/// Scores are computed in this order: product, `scale`, `softcap`, `bias`, and what hides keys.
///
/// ```
/// use shardax_core::nn::AttentionOptions;
///
/// // Each position sees itself and the 255 before it.
/// let local = AttentionOptions {
///     window: (Some(255), None),
///     ..AttentionOptions::causal()
/// };
/// # let _ = local;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions {
    /// A query sees no key after its own position.
    pub causal: bool,
    /// How many keys before and after its own position a query sees; `None` is all of them.
    /// (Beltagy, Peters, Cohan: "Longformer", 2020.)
    pub window: (Option<usize>, Option<usize>),
    /// True where a query sees a key: boolean, broadcasts to `[batch, heads, queries, keys]`.
    pub mask: Option<Tensor>,
    /// Added to scores: floats, broadcasts to `[batch, heads, queries, keys]`.
    pub bias: Option<Tensor>,
    /// The factor of products; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f64>,
    /// Bounds scores smoothly: `softcap * tanh(score / softcap)`. (Gemma Team: "Gemma 2", 2024.)
    pub softcap: Option<f64>,
    /// The position of the first query, where key 0 has position 0: how many keys were decoded
    /// before. An integer, a scalar, or one of each sequence, `[batch]`.
    pub query_offset: Operand,
    /// Integers `[batch, queries]` and `[batch, keys]`: a query sees the keys of its own number, so that
    /// several documents share a sequence.
    pub segments: Option<(Tensor, Tensor)>,
}

impl Default for AttentionOptions {
    fn default() -> Self {
        AttentionOptions {
            causal: false,
            window: (None, None),
            mask: None,
            bias: None,
            scale: None,
            softcap: None,
            query_offset: Operand::Number(Number::Int(0)),
            segments: None,
        }
    }
}

impl AttentionOptions {
    /// The default, where a query sees no key after its own position.
    pub fn causal() -> Self {
        AttentionOptions {
            causal: true,
            ..Self::default()
        }
    }
}

/// `softmax(q k^T / sqrt(head_dim)) v`: each query's mean of the values, weighted by how its product
/// with the keys compares. (Vaswani et al.: "Attention is all you need", 2017.)
///
/// `q` is `[batch, queries, heads, head_dim]`, `k` is `[batch, keys, kv_heads, head_dim]` and `v`
/// `[batch, keys, kv_heads, value_dim]`; the result is `[batch, queries, heads, value_dim]` in the
/// type of `v`. `heads` is a multiple of `kv_heads`, and neighboring heads share one of keys and values,
/// which are not repeated. (Ainslie et al.: "GQA", 2023.)
///
/// Scores and their softmax are in f32 where the operands are narrower. A query that sees no key gets
/// 0, and no derivative passes through it. The scores of all pairs are kept for the derivative; see
/// [`blockwise_attention`](super::blockwise_attention) for long sequences.
///
/// ```
/// use shardax_core::nn::{self, AttentionOptions};
/// use shardax_core::{DType, Tensor, TensorType, trace};
///
/// let decode = |q: Tensor, k: Tensor, v: Tensor, position: Tensor| {
///     let options = AttentionOptions {
///         query_offset: position.into(),
///         ..AttentionOptions::causal()
///     };
///     nn::attention(q, k, v, options)
/// };
/// let cache = TensorType::new(DType::BF16, [2, 128, 2, 16]);
/// let types = (
///     TensorType::new(DType::BF16, [2, 1, 8, 16]),
///     cache.clone(),
///     cache,
///     TensorType::scalar(DType::I32),
/// );
/// assert_eq!(trace(decode, types)?.output_types()[0].to_string(), "bf16[2,1,8,16]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn attention(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor {
    method("attention", Location::caller(), || {
        let problem = Problem::new("attention", [q, k, v], options);
        if let Some(split) = Split::of(&problem, [q, k]) {
            return split.attend(&problem, [q, k, v], BlockSizes::default());
        }
        let q = problem.grouped(q);
        let whole = problem.whole();
        let (scores, _) = problem.scores(q, k, options.bias, &whole);
        let weights = scores.softmax(-1).cast(v.dtype());
        problem.ungrouped(mix(weights, v, v.dtype()))
    })
}

/// `[b,t,n,g,h] . [b,s,n,h] -> [b,n,t,g,s]`, in `result`.
#[track_caller]
pub(super) fn compare(q: Tensor, k: Tensor, result: DType) -> Tensor {
    let dims = DotDims {
        lhs_batch: Dims::from_slice(&[0, 2]),
        rhs_batch: Dims::from_slice(&[0, 2]),
        lhs_contract: Dims::from_slice(&[4]),
        rhs_contract: Dims::from_slice(&[3]),
        result,
    };
    lax::dot(q, k, dims)
}

/// `[b,n,t,g,s] . [b,s,n,h] -> [b,n,t,g,h]`, in `result`.
#[track_caller]
pub(super) fn mix(weights: Tensor, v: Tensor, result: DType) -> Tensor {
    let dims = DotDims {
        lhs_batch: Dims::from_slice(&[0, 1]),
        rhs_batch: Dims::from_slice(&[0, 2]),
        lhs_contract: Dims::from_slice(&[4]),
        rhs_contract: Dims::from_slice(&[1]),
        result,
    };
    lax::dot(weights, v, dims)
}

/// A block of queries and keys: where it starts and how large it is.
pub(super) struct Block {
    /// The first query and the first key; `None` is 0, of a block that is the whole.
    pub(super) starts: Option<[Tensor; 2]>,
    pub(super) sizes: [usize; 2],
}

/// Attention's checked arguments. In the dimensions of its tensors `b` is the batch, `t` queries, `s`
/// keys, `n` heads of keys, `g` the queries that share one, `h` features.
pub(super) struct Problem {
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) kv_heads: usize,
    pub(super) group: usize,
    pub(super) scale: f64,
    /// In which scores are computed.
    pub(super) wide: DType,
    pub(super) options: AttentionOptions,
}

impl Problem {
    /// Ends the trace, with all that is wrong, if the arguments do not fit.
    #[track_caller]
    pub(super) fn new(op: &'static str, [q, k, v]: [Tensor; 3], options: AttentionOptions) -> Self {
        for (name, x) in [("q", q), ("k", k), ("v", v)] {
            check_float(op, name, x);
        }
        let (q_ty, k_ty, v_ty) = (q.ty(), k.ty(), v.ty());
        let (
            Ok([batch, queries, heads, features]),
            Ok([kb, keys, kv_heads, kh]),
            Ok([vb, vs, vn, _]),
        ) = (
            <[usize; 4]>::try_from(&q_ty.shape[..]),
            <[usize; 4]>::try_from(&k_ty.shape[..]),
            <[usize; 4]>::try_from(&v_ty.shape[..]),
        )
        else {
            let problem = format!("`q` is {q_ty}, `k` {k_ty} and `v` {v_ty}");
            let help = "give `q` as [batch, queries, heads, head_dim], `k` and `v` as [batch, keys, \
                        kv_heads, head_dim]; `.expand_dims(0)` adds a batch";
            refuse(op, problem, help)
        };
        let mut faults = Vec::new();
        if q_ty.dtype != k_ty.dtype || q_ty.dtype != v_ty.dtype {
            faults.push("the element types differ".to_owned());
        }
        if [kb, vb] != [batch; 2] {
            faults.push(format!("the batches are {batch}, {kb} and {vb}"));
        }
        if keys != vs || kv_heads != vn {
            faults.push(format!(
                "there are {keys} keys of {kv_heads} heads and {vs} values of {vn}"
            ));
        }
        if features != kh {
            faults.push(format!("queries have {features} features and keys {kh}"));
        }
        if queries.max(keys) > MAX_LENGTH {
            faults.push(format!("a sequence is longer than {MAX_LENGTH}"));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            faults.push(format!(
                "{heads} heads of queries are no multiple of {kv_heads} of keys"
            ));
        }
        if !faults.is_empty() {
            let problem = format!(
                "`q` is {q_ty}, `k` {k_ty} and `v` {v_ty}: {}",
                faults.join("; ")
            );
            let help = "`q` is [batch, queries, heads, head_dim], `k` and `v` are [batch, keys, \
                        kv_heads, head_dim] of one element type, and heads share keys evenly";
            refuse(op, problem, help)
        }
        let scale = options
            .scale
            .unwrap_or(1.0 / (features.max(1) as f64).sqrt());
        let problem = Problem {
            batch,
            queries,
            keys,
            kv_heads,
            group: heads / kv_heads,
            scale,
            wide: q_ty.dtype.accumulator(),
            options,
        };
        problem.check_options(op);
        problem
    }

    #[track_caller]
    fn check_options(&self, op: &'static str) {
        let options = &self.options;
        if !self.scale.is_finite() {
            let problem = format!("`scale` is {}", self.scale);
            refuse(
                op,
                problem,
                "give a finite number, or `None` for 1 / sqrt(head_dim)",
            )
        }
        if let Some(cap) = options.softcap {
            check_number(op, "softcap", cap, (0.0, f64::INFINITY));
        }
        let mut faults = Vec::new();
        let heads = self.kv_heads * self.group;
        let wanted = [self.batch, heads, self.queries, self.keys];
        let kinds = [
            ("mask", options.mask, "booleans"),
            ("bias", options.bias, "floats"),
        ];
        for (name, option, kind) in kinds {
            let Some(ty) = option.map(Tensor::ty) else {
                continue;
            };
            let is_kind = match name {
                "mask" => ty.dtype == DType::Bool,
                _ => ty.dtype.is_float(),
            };
            let aligned = ty.shape.iter().rev().zip(wanted.iter().rev());
            let fits = ty.rank() <= 4 && aligned.clone().all(|(&a, &b)| a == b || a == 1);
            if !is_kind || !fits {
                faults.push(format!(
                    "`{name}` is {ty}, not {kind} that broadcast to [batch, heads, queries, keys] = {wanted:?}"
                ));
            }
        }
        if let Some((of_queries, of_keys)) = options.segments {
            let (a, b) = (of_queries.ty(), of_keys.ty());
            let fits = a.shape[..] == [self.batch, self.queries]
                && b.shape[..] == [self.batch, self.keys]
                && a.dtype == b.dtype
                && a.dtype.is_integer();
            if !fits {
                faults.push(format!(
                    "`segments` are {a} and {b}, not integers of one type, [batch, queries] = \
                     [{}, {}] and [batch, keys] = [{}, {}]",
                    self.batch, self.queries, self.batch, self.keys
                ));
            }
        }
        match options.query_offset {
            Operand::Number(Number::Int(n)) if n.unsigned_abs() <= MAX_LENGTH as u64 => {}
            Operand::Number(number) => faults.push(format!(
                "`query_offset` is {number}, not an integer of at most {MAX_LENGTH}"
            )),
            Operand::Tensor(offset) => {
                let ty = offset.ty();
                let fits = ty.rank() == 0 || ty.shape[..] == [self.batch];
                if !ty.dtype.is_integer() || !fits {
                    faults.push(format!(
                        "`query_offset` is {ty}, not an integer scalar or integers [batch] = [{}]",
                        self.batch
                    ));
                }
            }
        }
        if !faults.is_empty() {
            refuse(
                op,
                faults.join("; "),
                "see `AttentionOptions` for what each option takes",
            )
        }
    }

    /// All queries and keys.
    pub(super) fn whole(&self) -> Block {
        Block {
            starts: None,
            sizes: [self.queries, self.keys],
        }
    }

    /// `[b,t,n*g,h]` as `[b,t,n,g,h]`.
    #[track_caller]
    pub(super) fn grouped(&self, q: Tensor) -> Tensor {
        let ty = q.ty();
        q.reshape([
            ty.shape[0],
            ty.shape[1],
            self.kv_heads,
            self.group,
            ty.shape[3],
        ])
    }

    /// `[b,n,t,g,h]` as `[b,t,n*g,h]`.
    #[track_caller]
    pub(super) fn ungrouped(&self, x: Tensor) -> Tensor {
        let ty = x.ty();
        let features = ty.shape[4];
        let heads = self.kv_heads * self.group;
        x.transpose([0, 2, 1, 3, 4])
            .reshape([ty.shape[0], ty.shape[2], heads, features])
    }

    /// The scores `[b,n,t,g,s]` of a block, with -inf where a key is hidden; and, where there is a
    /// softcap, the derivative of what it bounds. `bias` stands for that of the options.
    #[track_caller]
    pub(super) fn scores(
        &self,
        q: Tensor,
        k: Tensor,
        bias: Option<Tensor>,
        block: &Block,
    ) -> (Tensor, Option<Tensor>) {
        let mut scores = compare(q, k, self.wide) * self.scale;
        let mut slope = None;
        if let Some(cap) = self.options.softcap {
            let bounded = (scores / cap).tanh();
            slope = Some(1.0 - bounded.square());
            scores = bounded * cap;
        }
        if let Some(bias) = bias {
            let bias = self.part(bias, block).cast(self.wide);
            scores += bias;
        }
        if let Some(seen) = self.seen(block) {
            scores = seen.select(scores, f64::NEG_INFINITY);
        }
        (scores, slope)
    }

    /// A mask or bias that broadcasts to `[batch, heads, queries, keys]`, with all its dimensions.
    #[track_caller]
    pub(super) fn full_rank(x: Tensor) -> Tensor {
        let ty = x.ty();
        let mut shape: Shape = smallvec::smallvec![1; 4 - ty.rank()];
        shape.extend_from_slice(&ty.shape);
        x.reshape(shape)
    }

    /// The part of a mask or bias that belongs to a block, to broadcast to `[b,n,t,g,s]`.
    #[track_caller]
    fn part(&self, x: Tensor, block: &Block) -> Tensor {
        let x = cut(Self::full_rank(x), [2, 3], block);
        let ty = x.ty();
        let (n, g) = match ty.shape[1] {
            1 => (1, 1),
            _ => (self.kv_heads, self.group),
        };
        let [b, t, s] = [0, 2, 3].map(|d| ty.shape[d]);
        x.reshape([b, n, g, t, s]).transpose([0, 1, 3, 2, 4])
    }

    /// Where a query of a block sees a key, to broadcast to `[b,n,t,g,s]`; `None` is everywhere.
    #[track_caller]
    fn seen(&self, block: &Block) -> Option<Tensor> {
        let options = &self.options;
        let mut masks = Vec::new();
        let (left, right) = options.window;
        // A key after the query's position is hidden from a window without keys to the right.
        let right = if options.causal { Some(0) } else { right };
        let [rows, columns] = block.sizes;
        let key = || {
            let ty = TensorType::new(DType::I32, [1, 1, 1, 1, columns]);
            offset_by(lax::iota(ty, 4), block.starts.map(|[_, key]| key))
        };
        if left.is_some() || right.is_some() {
            let ty = TensorType::new(DType::I32, [1, 1, rows, 1, 1]);
            let query = offset_by(lax::iota(ty, 2), block.starts.map(|[query, _]| query));
            let query = match options.query_offset {
                Operand::Number(Number::Int(0)) => query,
                Operand::Tensor(offset) if offset.rank() == 1 => {
                    query + offset.cast(DType::I32).reshape([self.batch, 1, 1, 1, 1])
                }
                Operand::Tensor(offset) => query + offset.cast(DType::I32),
                Operand::Number(number) => query + number.as_f64(),
            };
            let ahead = key() - query;
            if let Some(right) = right {
                masks.push(ahead.le(count_i32(right)));
            }
            if let Some(left) = left {
                masks.push(ahead.ge(-count_i32(left)));
            }
        }
        if let Some(mask) = options.mask {
            masks.push(self.part(mask, block));
        }
        if let Some((of_queries, of_keys)) = options.segments {
            let [a, b] = [
                cut_one(of_queries, 1, block, 0),
                cut_one(of_keys, 1, block, 1),
            ];
            let a = a.reshape([self.batch, 1, rows, 1, 1]);
            let b = b.reshape([self.batch, 1, 1, 1, columns]);
            masks.push(a.eq(b));
        }
        // The last block may reach beyond the keys.
        if block.starts.is_some() && !self.keys.is_multiple_of(columns) {
            masks.push(key().lt(count_i32(self.keys)));
        }
        masks.into_iter().reduce(|a, b| a & b)
    }
}

/// The longest sequence, so that differences of positions are numbers of `i32`.
const MAX_LENGTH: usize = 1 << 29;

/// A window beyond every position does as well at the end of the type's range.
fn count_i32(count: usize) -> i64 {
    count.min(2 * MAX_LENGTH) as i64
}

#[track_caller]
fn offset_by(positions: Tensor, start: Option<Tensor>) -> Tensor {
    start.map_or(positions, |start| positions + start)
}

/// The rows and columns of a block, in the dimensions `dims` of `x`; one of size 1 serves all.
#[track_caller]
pub(super) fn cut(x: Tensor, [rows, columns]: [usize; 2], block: &Block) -> Tensor {
    cut_one(cut_one(x, rows, block, 0), columns, block, 1)
}

/// The rows (`which` 0) or columns (1) of a block in dimension `dim` of `x`.
#[track_caller]
pub(super) fn cut_one(x: Tensor, dim: usize, block: &Block, which: usize) -> Tensor {
    match block.starts {
        Some(starts) if x.ty().shape[dim] != 1 => {
            window::read(x, dim, starts[which], block.sizes[which])
        }
        _ => x,
    }
}
