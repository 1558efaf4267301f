//! Attention along a sequence that is split over devices: ring attention.
//!
//! Every device keeps its queries, and keys and values go round from device to device while each
//! compares its queries with those that it has (Liu, Zaharia, Abbeel: "Ring attention with blockwise
//! transformers for near-infinite context", 2023). What goes round next is on its way while a device
//! computes, and nothing of the size of the whole sequence is ever on one device.
//!
//! Under causality the first device would see little and the last everything. So queries and keys
//! change places first: of `2 n` parts of the sequence, device `d` of `n` takes parts `d` and
//! `2 n - 1 - d`, whereby all have the same to do in every turn (Brandon et al.: "Striped attention",
//! 2023; the order by two ends is that of Megatron-LM's context parallelism).
//!
//! The model does not know of it: attention asks the layout that it is traced for.

use std::sync::Arc;

use shardax_sharding::{Axes, Dim, PartitionSpec, Role};

use super::attention::{AttentionOptions, Problem};
use super::blockwise::BlockSizes;
use super::pairs::{Operands, Pairs, Rows};
use crate::collective::{axis_index, axis_size, ppermute};
use crate::context::layout;
use crate::dtype::DType;
use crate::literal::Number;
use crate::tensor::{Operand, Tensor, concatenate};
use crate::transform::{custom_vjp, manual, scan};
use crate::tree::Tree;

/// How the layout splits the operands of an attention along their sequences.
pub(super) struct Split {
    queries: PartitionSpec,
    keys: PartitionSpec,
    /// The axes along which it goes round.
    ring: Axes,
}

impl Split {
    /// What the layout of the trace says of `q` as `(batch, seq, heads, head_dim)` and of `k` and `v` as
    /// `(batch, seq, kv_heads, head_dim)` (`heads`, where there are as many). `None` where the sequence is
    /// not split over several devices, or something is asked that a ring does not do: a bias, operands
    /// that are split unlike each other, or over a part of an axis.
    pub(super) fn of(problem: &Problem, [q, k]: [Tensor; 2]) -> Option<Self> {
        let layout = layout();
        let resolve = |heads: &'static str, x: Tensor| {
            let dims = ["batch", "seq", heads, "head_dim"].map(Dim::Logical);
            let resolved = layout.resolve(Role::Activation, &dims, &x.ty().shape);
            resolved.ok().map(|resolved| resolved.spec)
        };
        let kv_heads = if problem.group == 1 {
            "heads"
        } else {
            "kv_heads"
        };
        let (queries, keys) = (resolve("heads", q)?, resolve(kv_heads, k)?);
        let ring = queries.entries()[1].clone();
        let size = |axis: &String| layout.mesh().axis_size(axis);
        let devices: usize = ring.names().iter().filter_map(size).product();
        let mut axes = queries.entries().iter().flat_map(Axes::names);
        let whole = axes.all(|axis| size(axis).is_some());
        // Without keys, or queries, nothing goes round.
        let is_empty = q.size(1) == 0 || k.size(1) == 0;
        let alike = queries == keys && queries.entries()[3].is_empty();
        let fits = devices > 1 && whole && !is_empty && alike && problem.options.bias.is_none();
        fits.then_some(Split {
            queries,
            keys,
            ring,
        })
    }

    /// The attention, in a region over all axes of the mesh.
    #[track_caller]
    pub(super) fn attend(&self, problem: &Problem, qkv: [Tensor; 3], blocks: BlockSizes) -> Tensor {
        let [q, k, v] = qkv;
        let options = problem.options;
        let mask = options.mask.map(Problem::full_rank);
        let offset = match options.query_offset {
            Operand::Tensor(offset) => Some(offset),
            Operand::Number(_) => None,
        };
        let [batch, heads] = [0, 2].map(|d| self.queries.entries()[d].clone());
        let of_batch = || PartitionSpec::new([batch.clone()]);
        // A mask's positions are those of whole sequences: it is not split along them.
        let serves_all = |d: usize| mask.is_none_or(|mask| mask.size(d as isize) == 1);
        let whole_if = |serves: bool, axes: &Axes| match serves {
            true => Axes::default(),
            false => axes.clone(),
        };
        let of_mask = PartitionSpec::new([
            whole_if(serves_all(0), &batch),
            whole_if(serves_all(1), &heads),
        ]);
        let of_offset = match offset {
            Some(offset) if offset.rank() == 1 => of_batch(),
            _ => PartitionSpec::whole(),
        };
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        let inputs = (
            (queries.clone(), keys.clone(), keys),
            of_mask,
            of_batch(),
            of_offset,
        );
        let region = |(qkv, mask, segments, offset): Inner| {
            let (q, k, v) = qkv;
            let options = AttentionOptions {
                mask,
                segments,
                query_offset: offset.map_or(options.query_offset, Operand::Tensor),
                ..options
            };
            let problem = Problem {
                batch: q.size(0),
                kv_heads: k.size(2),
                options,
                ..*problem
            };
            Ring::new(&problem, self.ring.clone(), [q, k], blocks).attend([q, k, v])
        };
        let attend = manual((), inputs, queries, region);
        attend(((q, k, v), mask, options.segments, offset))
    }
}

/// Operands, mask, segments and offset of queries, as a region takes them.
type Inner = (
    (Tensor, Tensor, Tensor),
    Option<Tensor>,
    Option<(Tensor, Tensor)>,
    Option<Tensor>,
);

/// Parts of a sequence that a device has: one, or two.
type Parts = Vec<Tensor>;

/// What goes round inside of the region.
struct Ring<'a> {
    problem: &'a Problem,
    axes: Axes,
    devices: usize,
    /// Whether every device has a part from either end.
    balanced: bool,
    /// Of a part.
    lengths: [usize; 2],
    /// Of a block inside of a part.
    sizes: [usize; 2],
    /// The first query and key of each pair of blocks, of all pairs, and of those that causality shows
    /// between two parts at the same position.
    starts: [Arc<[[usize; 2]]>; 2],
}

/// Queries and keys that a device compares in a turn.
struct Meeting {
    query: Which,
    key: Which,
    /// Whether both are at the same position, so that half of it is hidden.
    diagonal: bool,
}

/// A part, by number; or the first if the predicate holds, and otherwise the second.
#[derive(Clone, Copy)]
enum Which {
    Part(usize),
    Either(Tensor),
}

impl Which {
    fn pick<T: Tree<Tensor> + Clone>(self, parts: &[T]) -> T {
        match self {
            Which::Part(i) => parts[i].clone(),
            Which::Either(first) => {
                let mut others = parts[1].leaves().into_iter();
                parts[0].clone().replace_leaves(&mut |_, own| {
                    let other = others.next().unwrap_or(*own);
                    first.select(*own, other)
                })
            }
        }
    }

    fn put<T: Tree<Tensor> + Clone>(self, parts: &mut [T], new: T) {
        match self {
            Which::Part(i) => parts[i] = new,
            Which::Either(first) => {
                let kept = |part: &T, is_new: Tensor| {
                    let mut new = new.leaves().into_iter();
                    part.clone().replace_leaves(&mut |_, old| {
                        let new = new.next().unwrap_or(*old);
                        is_new.select(new, *old)
                    })
                };
                let [a, b] = [kept(&parts[0], first), kept(&parts[1], !first)];
                parts[0] = a;
                parts[1] = b;
            }
        }
    }
}

impl<'a> Ring<'a> {
    fn new(problem: &'a Problem, axes: Axes, qk: [Tensor; 2], blocks: BlockSizes) -> Self {
        let options = &problem.options;
        let own = qk.map(|x| x.size(1));
        let at_zero = matches!(options.query_offset, Operand::Number(Number::Int(0)));
        let balanced = options.causal && at_zero && own[0] == own[1] && own[0].is_multiple_of(2);
        let lengths = if balanced { own.map(|n| n / 2) } else { own };
        let sizes = [
            block_size(lengths[0], blocks.queries),
            block_size(lengths[1], blocks.keys),
        ];
        let starts = |is_seen: &dyn Fn([usize; 2]) -> bool| -> Arc<[[usize; 2]]> {
            let rows = (0..lengths[0]).step_by(sizes[0]);
            let pairs = rows.flat_map(|row| {
                let columns = (0..lengths[1]).step_by(sizes[1]);
                columns.map(move |column| [row, column])
            });
            pairs.filter(|pair| is_seen(*pair)).collect()
        };
        let below = |[row, column]: [usize; 2]| column < row + sizes[0];
        Ring {
            problem,
            devices: axis_size(axes.clone()),
            axes,
            balanced,
            lengths,
            sizes,
            starts: [starts(&|_| true), starts(&below)],
        }
    }

    fn attend(&self, qkv: [Tensor; 3]) -> Tensor {
        let attended = custom_vjp(
            |(q, k, v): (Parts, Parts, Parts)| self.forward(&q, k, v).0,
            |(q, k, v): (Parts, Parts, Parts)| {
                let (results, logs) = self.forward(&q, k.clone(), v.clone());
                (results.clone(), ((q, k, v), results, logs))
            },
            |(qkv, results, logs): ((Parts, Parts, Parts), Parts, Parts), cts: Parts| {
                self.backward(qkv, [results, logs, cts])
            },
        );
        let [q, k, v] = qkv.map(|x| self.parts(x));
        self.joined(attended((q, k, v)))
    }

    /// The parts that the device works on.
    fn parts(&self, x: Tensor) -> Parts {
        if !self.balanced {
            return vec![x];
        }
        let half = x.size(1) / 2;
        let halves = [x.slice(1, ..half), x.slice(1, half..)];
        let sent = [0, 1].map(|which| {
            let pairs = (0..self.devices).map(|d| (d, self.place(2 * d + which)));
            ppermute(halves[which], self.axes.clone(), pairs)
        });
        // The even ones of all parts came as first halves.
        let even = self.is_even();
        vec![even.select(sent[0], sent[1]), even.select(sent[1], sent[0])]
    }

    /// The results of the device's own positions, from those of its parts.
    fn joined(&self, parts: Parts) -> Tensor {
        if !self.balanced {
            return parts[0];
        }
        let even = self.is_even();
        let sent = [
            even.select(parts[0], parts[1]),
            even.select(parts[1], parts[0]),
        ];
        let halves = [0, 1].map(|which| {
            let pairs = (0..self.devices).map(|d| (self.place(2 * d + which), d));
            ppermute(sent[which], self.axes.clone(), pairs)
        });
        concatenate(halves, 1)
    }

    /// The device that works on a part of `2 n`.
    fn place(&self, part: usize) -> usize {
        part.min(2 * self.devices - 1 - part)
    }

    fn is_even(&self) -> Tensor {
        (axis_index(self.axes.clone()) % 2).eq(0)
    }

    /// The device after the next, with what the device before has.
    fn next<T: Tree<Tensor>>(&self, tree: T) -> T {
        let n = self.devices;
        ppermute(tree, self.axes.clone(), (0..n).map(|i| (i, (i + 1) % n)))
    }

    /// The device whose keys are here in turn `turn`.
    fn origin(&self, turn: Tensor) -> Tensor {
        let n = self.devices as i64;
        (axis_index(self.axes.clone()) - turn + n) % n
    }

    /// What is compared with the keys of `origin`.
    fn meetings(&self, is_first: bool, origin: Tensor) -> Vec<Meeting> {
        let meeting = |query, key, diagonal| Meeting {
            query,
            key,
            diagonal,
        };
        let part = Which::Part;
        if !self.balanced {
            return vec![meeting(part(0), part(0), false)];
        }
        if is_first {
            return vec![
                meeting(part(0), part(0), true),
                meeting(part(1), part(1), true),
                meeting(part(1), part(0), false),
            ];
        }
        // Of keys from before, both own parts see the first; of others, the second own part sees both.
        let before = Which::Either(origin.lt(axis_index(self.axes.clone())));
        vec![
            meeting(part(1), part(0), false),
            meeting(before, before, false),
        ]
    }

    /// The pairs of blocks of a meeting.
    fn pairs(&self, meeting: &Meeting, origin: Tensor) -> Pairs<'_> {
        let own = axis_index(self.axes.clone());
        let offset = |device: Tensor, which: usize, part: Which| {
            let length = self.lengths[which] as i64;
            let last = 2 * self.devices as i64 - 1;
            let number = match part {
                Which::Part(0) => device,
                Which::Part(_) => last - device,
                Which::Either(first) => first.select(device, last - device),
            };
            number * length
        };
        Pairs {
            problem: self.problem,
            sizes: self.sizes,
            starts: &self.starts[usize::from(meeting.diagonal)],
            offsets: Some([
                offset(own, 0, meeting.query),
                offset(origin, 1, meeting.key),
            ]),
        }
    }

    /// One turn forward.
    fn turn(&self, rows: &mut [Rows], q: &Parts, kv: &(Parts, Parts), turn: Tensor, first: bool) {
        let origin = self.origin(turn);
        for meeting in self.meetings(first, origin) {
            let key = |parts: &Parts| meeting.key.pick(parts);
            let operands = (meeting.query.pick(q), key(&kv.0), key(&kv.1), None);
            let own = meeting.query.pick(rows);
            let pairs = self.pairs(&meeting, origin);
            meeting.query.put(rows, pairs.seen_by(own, &operands));
        }
    }

    /// Results and logarithms of sums, by part.
    fn forward(&self, q: &Parts, k: Parts, v: Parts) -> (Parts, Parts) {
        let (features, dtype) = (v[0].size(3), v[0].dtype());
        let zero = Tensor::scalar(0, DType::I32);
        let whole = Meeting {
            query: Which::Part(0),
            key: Which::Part(0),
            diagonal: false,
        };
        let pairs = self.pairs(&whole, zero);
        let mut rows: Vec<Rows> = q
            .iter()
            .map(|q| pairs.no_rows([q.size(1), features]))
            .collect();
        let kv = (k, v);
        let sent = self.next(kv.clone());
        self.turn(&mut rows, q, &kv, zero, true);
        let step = |(mut rows, kv): (Vec<Rows>, (Parts, Parts)), turn: Tensor| {
            let sent = self.next(kv.clone());
            self.turn(&mut rows, q, &kv, turn, false);
            ((rows, sent), ())
        };
        let (mut rows, kv) = self.turns((rows, sent), step);
        self.turn(&mut rows, q, &kv, self.last(), false);
        let finished = rows.into_iter().map(|rows| pairs.finished(rows, dtype));
        finished.unzip()
    }

    /// The turns between the first and the last.
    fn turns<C: Tree<Tensor>>(&self, carry: C, step: impl FnOnce(C, Tensor) -> (C, ())) -> C {
        let turns: Vec<i32> = (1..self.devices as i32 - 1).collect();
        if turns.is_empty() {
            return carry;
        }
        scan(carry, Tensor::constant(&turns, [turns.len()]), step).0
    }

    fn last(&self) -> Tensor {
        Tensor::scalar(self.devices as i64 - 1, DType::I32)
    }

    /// Cotangents of queries, keys and values. Those of keys and values go round with them, and home
    /// after the last turn.
    fn backward(
        &self,
        (q, k, v): (Parts, Parts, Parts),
        [results, logs, cts]: [Parts; 3],
    ) -> (Parts, Parts, Parts) {
        let zero = Tensor::scalar(0, DType::I32);
        let whole = Meeting {
            query: Which::Part(0),
            key: Which::Part(0),
            diagonal: false,
        };
        let pairs = self.pairs(&whole, zero);
        let products = results
            .iter()
            .zip(&cts)
            .map(|(r, ct)| pairs.product(*r, *ct));
        let products: Parts = products.collect();
        let zeros = |parts: &Parts| -> Parts {
            let wide = self.problem.wide;
            parts
                .iter()
                .map(|x| Tensor::zeros(wide, x.shape()))
                .collect()
        };
        let turn = |sums: &mut Sums, kv: &(Parts, Parts), turn: Tensor, first: bool| {
            let origin = self.origin(turn);
            for meeting in self.meetings(first, origin) {
                let (query, key) = (meeting.query, meeting.key);
                let operands: Operands = (query.pick(&q), key.pick(&kv.0), key.pick(&kv.1), None);
                let own = (
                    query.pick(&sums.0),
                    key.pick(&sums.1.0),
                    key.pick(&sums.1.1),
                    None,
                );
                let rows = [&logs, &products, &cts].map(|x| query.pick(x));
                let pairs = self.pairs(&meeting, origin);
                let (dq, dk, dv, _) = pairs.cotangents(own, &operands, rows);
                query.put(&mut sums.0, dq);
                key.put(&mut sums.1.0, dk);
                key.put(&mut sums.1.1, dv);
            }
        };
        let kv = (k.clone(), v.clone());
        let mut sums: Sums = (zeros(&q), (zeros(&k), zeros(&v)));
        let sent = self.next(kv.clone());
        turn(&mut sums, &kv, zero, true);
        let step = |(mut sums, kv): (Sums, (Parts, Parts)), number: Tensor| {
            let sent = self.next(kv.clone());
            sums.1 = self.next(sums.1);
            turn(&mut sums, &kv, number, false);
            ((sums, sent), ())
        };
        let (mut sums, kv) = self.turns((sums, sent), step);
        sums.1 = self.next(sums.1);
        turn(&mut sums, &kv, self.last(), false);
        let (dq, dkv) = sums;
        let (dk, dv) = self.next(dkv);
        let typed = |cts: Parts, of: &Parts| -> Parts {
            let pairs = cts.iter().zip(of);
            pairs.map(|(ct, of)| ct.cast(of.dtype())).collect()
        };
        (typed(dq, &q), typed(dk, &k), typed(dv, &v))
    }
}

/// Sums of cotangents: of queries, and of keys and values.
type Sums = (Parts, (Parts, Parts));

/// The largest divisor of a length that is at most `wanted`, unless that is much less: then the whole.
fn block_size(length: usize, wanted: usize) -> usize {
    let divisor = (1..=wanted.min(length))
        .rev()
        .find(|size| length.is_multiple_of(*size));
    match divisor {
        Some(size) if size * 8 >= wanted || size == length => size,
        _ => length.max(1),
    }
}
