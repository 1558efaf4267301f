//! Attention between blocks of queries and keys, a pair after the other.
//!
//! The softmax of a row is accumulated over blocks of keys: what was summed so far is rescaled whenever
//! a larger score is found (Milakov, Gimelshein: "Online normalizer calculation for softmax", 2018).
//! The derivative computes the scores again, from the logarithm of each row's sum (Dao et al.:
//! "FlashAttention", 2022). Blockwise attention goes through the pairs of a whole sequence, and ring
//! attention through those of the parts that devices have.

use super::attention::{Block, Problem, compare, cut_one, mix};
use super::window;
use crate::dtype::DType;
use crate::lax;
use crate::op::{Dims, DotDims};
use crate::tensor::Tensor;
use crate::transform::scan;

/// Queries, keys and values, in whole blocks, and the bias.
pub(super) type Operands = (Tensor, Tensor, Tensor, Option<Tensor>);

/// The largest score of each row, `[b,n,t,g]`, the sum of exponentials, and of values weighted by
/// them, `[b,n,t,g,h]`.
pub(super) type Rows = (Tensor, Tensor, Tensor);

/// Pairs of blocks of queries and keys, gone through in order.
pub(super) struct Pairs<'a> {
    pub(super) problem: &'a Problem,
    /// Of a block.
    pub(super) sizes: [usize; 2],
    /// The first query and key of each pair.
    pub(super) starts: &'a [[usize; 2]],
    /// The positions of the first query and key in their sequences; `None` is 0.
    pub(super) offsets: Option<[Tensor; 2]>,
}

impl Pairs<'_> {
    /// The first query and key of each pair, `i32[pairs]` both.
    #[track_caller]
    fn starts(&self) -> [Tensor; 2] {
        [0, 1].map(|which| {
            let starts = self.starts.iter().map(|pair| pair[which] as i32);
            let starts: Vec<i32> = starts.collect();
            Tensor::constant(&starts, [starts.len()])
        })
    }

    /// A block among the operands, and in their sequences.
    #[track_caller]
    fn blocks(&self, starts: [Tensor; 2]) -> [Block; 2] {
        let at = |starts| Block {
            starts: Some(starts),
            sizes: self.sizes,
        };
        let positions = match self.offsets {
            Some([query, key]) => [starts[0] + query, starts[1] + key],
            None => starts,
        };
        [at(starts), at(positions)]
    }

    /// Rows of `queries` queries in which nothing was seen yet.
    #[track_caller]
    pub(super) fn no_rows(&self, [queries, features]: [usize; 2]) -> Rows {
        let problem = self.problem;
        let rows = [problem.batch, problem.kv_heads, queries, problem.group];
        let [b, n, t, g] = rows;
        (
            Tensor::full(f64::NEG_INFINITY, problem.wide, rows),
            Tensor::zeros(problem.wide, rows),
            Tensor::zeros(problem.wide, [b, n, t, g, features]),
        )
    }

    /// The rows once their queries have seen the keys.
    #[track_caller]
    pub(super) fn seen_by(&self, rows: Rows, &(q, k, v, bias): &Operands) -> Rows {
        let problem = self.problem;
        let q = problem.grouped(q);
        let step = |(largest, sums, mixed): Rows, starts: [Tensor; 2]| {
            let [block, positions] = self.blocks(starts);
            let own = |x: Tensor| cut_one(x, 2, &block, 0);
            let key = |x: Tensor| cut_one(x, 1, &block, 1);
            let (scores, _) = problem.scores(cut_one(q, 1, &block, 0), key(k), bias, &positions);
            let before = own(largest);
            // The result does not depend on what is subtracted, so no derivative passes through it.
            let after = before.maximum(scores.stop_gradient().max(4));
            let finite = after.eq(f64::NEG_INFINITY).select(0, after);
            let weights = (scores - finite.expand_dims(4)).exp();
            let shrunk = (before - finite).exp();
            let sum = own(sums) * shrunk + weights.sum(4);
            let values = mix(weights.cast(v.dtype()), key(v), problem.wide);
            let values = own(mixed) * shrunk.expand_dims(4) + values;
            let put = |x: Tensor, part: Tensor| window::put(x, part, 2, starts[0]);
            let rows = (put(largest, after), put(sums, sum), put(mixed, values));
            (rows, ())
        };
        scan(rows, self.starts(), step).0
    }

    /// The result `[b,t,n*g,h]`, and the logarithm of the sum of each row of scores' exponentials,
    /// `[b,n,t,g]`; of a row in which nothing is seen that is infinite, and its exponentials are then 0.
    #[track_caller]
    pub(super) fn finished(&self, (largest, sums, mixed): Rows, result: DType) -> (Tensor, Tensor) {
        let is_empty = sums.eq(0);
        let sums = is_empty.select(1, sums);
        let mean = mixed / sums.expand_dims(4);
        let logs = is_empty.select(f64::INFINITY, sums.log() + is_empty.select(0, largest));
        (self.problem.ungrouped(mean.cast(result)), logs)
    }

    /// Of a row of weights w with cotangents c, the scores' are w * (c - w . c): the last product,
    /// `[b,n,t,g]`, from the result and its cotangent.
    #[track_caller]
    pub(super) fn product(&self, result: Tensor, ct: Tensor) -> Tensor {
        let problem = self.problem;
        let wide = |x: Tensor| problem.grouped(x).cast(problem.wide);
        (wide(ct) * wide(result)).sum(4).transpose([0, 2, 1, 3])
    }

    /// All cotangents of the operands, of their types, as [`Pairs::cotangents`].
    #[track_caller]
    pub(super) fn all_cotangents(&self, operands: &Operands, rows: [Tensor; 3]) -> Operands {
        let &(q, k, v, bias) = operands;
        let zeros = |x: Tensor| Tensor::zeros(self.problem.wide, x.shape());
        let zeros = (zeros(q), zeros(k), zeros(v), bias.map(zeros));
        let (dq, dk, dv, dbias) = self.cotangents(zeros, operands, rows);
        let typed = |ct: Tensor, of: Tensor| ct.cast(of.dtype());
        let dbias = dbias.zip(bias).map(|(ct, bias)| typed(ct, bias));
        (typed(dq, q), typed(dk, k), typed(dv, v), dbias)
    }

    /// The operands' cotangents once those of the pairs are added: from the rows' logarithms
    /// ([`Pairs::finished`]), products ([`Pairs::product`]) and cotangents of the result.
    #[track_caller]
    pub(super) fn cotangents(
        &self,
        sums: Operands,
        &(q, k, v, bias): &Operands,
        [logs, product, ct]: [Tensor; 3],
    ) -> Operands {
        let problem = self.problem;
        let (grouped, ct) = (problem.grouped(q), problem.grouped(ct));
        let step = |(dq, dk, dv, dbias): Operands, starts: [Tensor; 2]| {
            let [block, positions] = self.blocks(starts);
            let row = |x: Tensor, dim: usize| cut_one(x, dim, &block, 0);
            let (q, ct) = (row(grouped, 1), row(ct, 1));
            let [k, v] = [k, v].map(|x| cut_one(x, 1, &block, 1));
            let (scores, slope) = problem.scores(q, k, bias, &positions);
            let weights = (scores - row(logs, 2).expand_dims(4)).exp();
            let ct_weights = compare(ct, v, problem.wide) - row(product, 2).expand_dims(4);
            let ct_scores = ct_weights * weights;
            let narrow = |x: Tensor| x.cast(k.dtype());
            let products = slope.map_or(ct_scores, |slope| ct_scores * slope) * problem.scale;
            let own = mix(narrow(products), k, problem.wide);
            let sums = (
                window::add(dq, problem.ungrouped(own), 1, starts[0]),
                window::add(dk, gather(narrow(products), q, problem.wide), 1, starts[1]),
                window::add(dv, gather(narrow(weights), ct, problem.wide), 1, starts[1]),
                dbias.map(|dbias| self.add_bias(dbias, ct_scores, starts)),
            );
            (sums, ())
        };
        scan(sums, self.starts(), step).0
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
