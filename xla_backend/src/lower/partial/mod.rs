//! Gradients that are sums of partial sums, and in what steps they are reduced across devices.
//!
//! The gradient of a parameter contracts the batch. Where the batch is split, each device has a partial
//! sum, and the partitioner reduces them by rules of its own, which cost more than is needed in three
//! cases:
//!
//! - *Several terms.* An embedding that is also the output projection has a gradient of two terms, and
//!   each is reduced across devices before they are added.
//! - *Several dimensions.* If batch and sequence are split over two axes, sums are reduced over one
//!   axis and then over the other, whole each time.
//! - *Shards that have copies.* If the gradient rests split over some of the axes (in the node) and has
//!   copies along others (across nodes), all of it is reduced over all of them, and cut afterwards.
//!
//! And in one case they are rounded more than is needed:
//!
//! - *Narrow products.* XLA adds partial sums in the element type of the product. Gradients of bf16 are
//!   to be added in f32, unless the layout says otherwise, and rounded once.
//!
//! Here such a gradient is written so that there is one order only: the split dimensions are taken apart
//! into devices and the rest, every term keeps leading dimensions of devices, the terms are added there,
//! which is local, and the leading dimensions are summed last. In the third case that of the devices
//! which the gradient is split over is summed first, into shards, and then that of their copies. In the
//! last case all of it is computed in f32, and leading dimensions are there only if another case wants them.

mod write;

use rustc_hash::FxHashMap;
use shardax_core::ir::split::Splits;
use shardax_core::{
    Combine, DType, Reducer, Role, TensorType,
    ir::{Constraint, Conv, Dims, DotDims, Equation, Graph, Op, ValueId},
};
use shardax_sharding::{Axes, AxisPart, PartitionSpec, ReductionType};

use super::sharding::Annotations;
pub(super) use write::Place;

/// A term of a gradient, down to what contracts split dimensions.
enum Term<'a> {
    Add(Box<Term<'a>>, Box<Term<'a>>),
    Convert(Box<Term<'a>>, TensorType),
    Transpose(Box<Term<'a>>, &'a Dims),
    Dot {
        operands: [ValueId; 2],
        dims: &'a DotDims,
        /// By pair of contracted dimensions.
        split: Vec<Split>,
    },
    /// A convolution, which is never taken apart.
    Conv {
        equation: &'a Equation,
        conv: &'a Conv,
    },
    /// Rows added to zeros.
    Scatter {
        equation: &'a Equation,
        /// The dimension of the rows, in the table and first of those that they take from the indices.
        axis: usize,
        /// By dimension of the indices.
        split: Vec<Split>,
    },
    Reduce {
        operand: ValueId,
        dims: &'a Dims,
        /// By dimension of the operand.
        split: Vec<Split>,
    },
}

/// A contracted dimension, and what splits it.
#[derive(Debug, PartialEq)]
struct Split {
    dimension: usize,
    parts: Vec<AxisPart>,
}

impl Term<'_> {
    fn visit(&self, see: &mut dyn FnMut(&[Split])) {
        match self {
            Term::Add(left, right) => {
                left.visit(see);
                right.visit(see);
            }
            Term::Convert(inner, _) | Term::Transpose(inner, _) => inner.visit(see),
            Term::Dot { split, .. } | Term::Scatter { split, .. } | Term::Reduce { split, .. } => {
                see(split);
            }
            Term::Conv { .. } => see(&[]),
        }
    }

    /// The types that are met on the way from what contracts to the sum.
    fn types(&self, graph: &Graph, see: &mut dyn FnMut(DType)) {
        match self {
            Term::Add(left, right) => {
                left.types(graph, see);
                right.types(graph, see);
            }
            Term::Convert(inner, to) => {
                see(to.dtype);
                inner.types(graph, see);
            }
            Term::Transpose(inner, _) => inner.types(graph, see),
            Term::Dot { dims, .. } => see(dims.result),
            Term::Conv { conv, .. } => see(conv.result),
            Term::Scatter { equation, .. } => see(graph.ty(equation.results[0]).dtype),
            Term::Reduce { operand, .. } => see(graph.ty(*operand).dtype),
        }
    }
}

/// The sum that an annotated gradient is.
pub(super) struct PartialSum<'a> {
    term: Term<'a>,
    /// What makes it in the graph, to which its operations belong.
    root: &'a Equation,
    /// The devices that have a leading dimension: those of copies first, then those of shards.
    kept: Vec<AxisPart>,
    /// In how many steps they are summed, one after the other, the last ones first.
    steps: Vec<usize>,
    at_use: PartitionSpec,
    gradient: PartitionSpec,
    /// The type that terms are computed and added in, if it is not that of each, and that of the result.
    wide: Option<[DType; 2]>,
}

impl PartialSum<'_> {
    /// What is taken apart of split dimensions: nothing where no devices are kept.
    fn kept_of<'s>(&self, split: &'s [Split]) -> &'s [Split] {
        match self.kept.is_empty() {
            true => &[],
            false => split,
        }
    }
}

/// How the gradient that a value is lies.
#[derive(Clone)]
pub(super) struct Wanted {
    at_use: PartitionSpec,
    gradient: PartitionSpec,
    /// Whether it is used as a gradient and as nothing else.
    is_gradient: bool,
}

/// The sums in a graph.
#[derive(Default)]
pub(super) struct Sums<'a> {
    /// By the result of the annotation that they are under.
    pub(super) annotated: FxHashMap<ValueId, PartialSum<'a>>,
    /// By position of the result of the graph that they are, where it is annotated outside.
    pub(super) returned: FxHashMap<usize, PartialSum<'a>>,
    /// By result of an operation with a region, which may be a sum in there.
    pub(super) inside: FxHashMap<ValueId, Wanted>,
}

/// Finds terms in a graph.
pub(super) struct Finder<'a> {
    graph: &'a Graph,
    pub(super) definitions: Vec<Option<&'a Equation>>,
    uses: Vec<usize>,
    /// One of those that use a value.
    users: Vec<Option<&'a Equation>>,
    pub(super) splits: Splits,
}

impl<'a> Finder<'a> {
    pub(super) fn new(graph: &'a Graph, splits: Splits) -> Self {
        let mut definitions = vec![None; graph.value_count()];
        let mut uses = vec![0; graph.value_count()];
        let mut users = vec![None; graph.value_count()];
        for equation in graph.equations() {
            for result in &equation.results {
                definitions[result.index()] = Some(equation);
            }
            for operand in &equation.operands {
                uses[operand.index()] += 1;
                users[operand.index()] = Some(equation);
            }
        }
        for output in graph.outputs() {
            uses[output.index()] += 1;
        }
        Finder {
            graph,
            definitions,
            uses,
            users,
            splits,
        }
    }

    /// The sums, among them results of the graph of which it is told how they lie.
    pub(super) fn sums(&self, annotations: &Annotations, results: &[Option<Wanted>]) -> Sums<'a> {
        let annotated = self.graph.equations().iter().filter_map(|equation| {
            let Op::Shard(constraint) = &equation.op else {
                return None;
            };
            let operand = equation.operands[0];
            if constraint.role != Role::ParameterAtUse {
                return None;
            }
            let result = equation.results[0];
            let mut outputs = self.graph.outputs().iter().zip(results);
            let returned = |(&o, w): (&ValueId, &Option<Wanted>)| {
                o == result && w.as_ref().is_some_and(|w| w.is_gradient)
            };
            let is_gradient = self.is_gradient(result) || outputs.any(returned);
            let wanted = self.wanted(annotations, constraint, operand, is_gradient)?;
            Some((operand, result, wanted))
        });
        let annotated: Vec<_> = annotated.collect();
        // Along axes that split any parameter where it is used there are sums of other things too, and
        // what is reduced over the same devices is reduced together.
        let all = annotated.iter().map(|(_, _, wanted)| wanted);
        let taken = all
            .chain(results.iter().flatten())
            .flat_map(|wanted| parts_of(annotations, &wanted.at_use))
            .collect();
        let search = Search {
            finder: self,
            annotations,
            taken,
        };
        let mut sums = Sums::default();
        let outputs = self.graph.outputs().iter().zip(results).enumerate();
        for (position, (&output, wanted)) in outputs {
            let sum = wanted
                .as_ref()
                .and_then(|wanted| search.sum(output, wanted));
            sums.returned.extend(sum.map(|sum| (position, sum)));
        }
        // What gathers a parameter inside of a region has its gradient in there too.
        for equation in self.graph.equations() {
            let Op::Shard(constraint) = &equation.op else {
                continue;
            };
            let value = equation.operands[0];
            if constraint.role == Role::Gradient && self.is_of_remat(value) {
                let wanted = self.wanted(annotations, constraint, value, true);
                sums.inside.extend(wanted.map(|wanted| (value, wanted)));
            }
        }
        for (value, result, wanted) in annotated {
            if self.is_of_remat(value) {
                sums.inside.insert(value, wanted);
                continue;
            }
            let sum = search.sum(value, &wanted);
            sums.annotated.extend(sum.map(|sum| (result, sum)));
        }
        sums
    }

    /// How a value lies that has this annotation in one role or another.
    fn wanted(
        &self,
        annotations: &Annotations,
        constraint: &Constraint,
        value: ValueId,
        is_gradient: bool,
    ) -> Option<Wanted> {
        let spec = |role: Role| {
            let stated = annotations
                .lies(role, constraint, self.graph.ty(value))
                .ok()?;
            Some(stated.spec.clone())
        };
        Some(Wanted {
            at_use: spec(Role::ParameterAtUse)?,
            gradient: spec(Role::Gradient)?,
            is_gradient,
        })
    }

    /// Whether a value is the result of a region that is computed again, and used once.
    fn is_of_remat(&self, value: ValueId) -> bool {
        let definition = self.definitions[value.index()].map(|equation| &equation.op);
        self.uses[value.index()] == 1 && matches!(definition, Some(Op::Remat(_)))
    }

    /// Whether nothing but its annotation as a gradient uses a value.
    fn is_gradient(&self, value: ValueId) -> bool {
        self.only_user(value).is_some_and(
            |equation| matches!(&equation.op, Op::Shard(c) if c.role == Role::Gradient),
        )
    }

    /// What uses a value, if one operand does and it is no result of the graph.
    pub(super) fn only_user(&self, value: ValueId) -> Option<&'a Equation> {
        self.users[value.index()].filter(|_| self.uses[value.index()] == 1)
    }

    fn is_zero(&self, value: ValueId) -> bool {
        match self.definitions[value.index()] {
            Some(equation) => match &equation.op {
                Op::Broadcast { .. } => self.is_zero(equation.operands[0]),
                Op::Constant(literal) => {
                    literal.is_splat() && literal.bytes().iter().all(|&byte| byte == 0)
                }
                _ => false,
            },
            None => false,
        }
    }
}

/// The parts of axes that split any dimension.
pub(super) fn parts_of(annotations: &Annotations, spec: &PartitionSpec) -> Vec<AxisPart> {
    let entries = spec.entries().iter();
    entries.flat_map(|axes| annotations.parts(axes)).collect()
}

/// Finds the sums of one graph.
struct Search<'f, 'a, 'l> {
    finder: &'f Finder<'a>,
    annotations: &'f Annotations<'l>,
    /// What splits parameters where they are used.
    taken: Vec<AxisPart>,
}

impl<'a> Search<'_, 'a, '_> {
    fn sum(&self, value: ValueId, wanted: &Wanted) -> Option<PartialSum<'a>> {
        let root = self.finder.definitions[value.index()]?;
        let shards = parts_of(self.annotations, &wanted.gradient);
        let term = self.term(value, &shards)?;
        let wide = wanted
            .is_gradient
            .then(|| self.wide(value, &term))
            .flatten();
        let (mut common, mut leaves, mut dimensions): (Option<Vec<AxisPart>>, _, _) = (None, 0, 0);
        term.visit(&mut |split| {
            let parts: Vec<AxisPart> = split.iter().flat_map(|s| s.parts.clone()).collect();
            common = Some(match common.take() {
                Some(common) => common.into_iter().filter(|p| parts.contains(p)).collect(),
                None => parts,
            });
            leaves += 1;
            dimensions = dimensions.max(split.len());
        });
        let is_split = |part: &AxisPart| shards.iter().any(|shard| overlap(part, shard));
        let (of_shards, of_copies): (Vec<AxisPart>, Vec<AxisPart>) =
            common?.into_iter().partition(is_split);
        let steps = match (of_copies.len(), of_shards.len()) {
            (0, 0) => vec![],
            (0, count) | (count, 0) => vec![count],
            (copies, shards) if wanted.is_gradient => vec![copies, shards],
            (copies, shards) => vec![copies + shards],
        };
        let is_needed = !steps.is_empty() && (leaves > 1 || dimensions > 1 || steps.len() > 1);
        let (kept, steps) = match is_needed {
            true => ([of_copies, of_shards].concat(), steps),
            false => Default::default(),
        };
        (is_needed || wide.is_some()).then(|| PartialSum {
            term,
            root,
            kept,
            steps,
            wide,
            at_use: wanted.at_use.clone(),
            gradient: wanted.gradient.clone(),
        })
    }

    /// In what type to compute a gradient that would be added in a narrower one, and the type that it has.
    fn wide(&self, value: ValueId, term: &Term) -> Option<[DType; 2]> {
        if self.annotations.gradient_reduction() == ReductionType::Own {
            return None;
        }
        let graph = self.finder.graph;
        let own = graph.ty(value).dtype;
        let mut types = vec![own];
        term.types(graph, &mut |dtype| types.push(dtype));
        let is_narrow = types.iter().any(|dtype| dtype.is_narrow_float());
        let all_float = types.iter().all(|dtype| dtype.is_float());
        let wide = match types.contains(&DType::F64) {
            true => DType::F64,
            false => DType::F32,
        };
        (is_narrow && all_float).then_some([wide, own])
    }

    /// The tree of a value, down to what contracts split dimensions.
    fn term(&self, value: ValueId, shards: &[AxisPart]) -> Option<Term<'a>> {
        let Finder { graph, splits, .. } = self.finder;
        if self.finder.uses[value.index()] != 1 {
            return None;
        }
        let equation = self.finder.definitions[value.index()]?;
        let operands = &equation.operands;
        let inner = |operand: usize| Some(Box::new(self.term(operands[operand], shards)?));
        let of = |operand: usize, dimension: usize| {
            let axes = splits[operands[operand].index()].get(dimension);
            (axes, graph.ty(operands[operand]).shape[dimension])
        };
        match &equation.op {
            Op::Binary(shardax_core::ir::Binary::Add) => Some(Term::Add(inner(0)?, inner(1)?)),
            Op::Convert(_) => Some(Term::Convert(inner(0)?, graph.ty(value).clone())),
            Op::Transpose(permutation) => Some(Term::Transpose(inner(0)?, permutation)),
            Op::DotGeneral(dims) if dims.lhs_batch.is_empty() => {
                let pairs = dims.lhs_contract.iter().zip(&dims.rhs_contract);
                let pairs = pairs.map(|(&l, &r)| [of(0, l), of(1, r)]);
                Some(Term::Dot {
                    operands: [operands[0], operands[1]],
                    dims,
                    split: self.split(pairs.enumerate(), shards)?,
                })
            }
            Op::Conv(conv) if conv.result.is_narrow_float() => {
                let pairs = [[of(0, conv.lhs.feature), of(1, conv.rhs.feature)]];
                self.split(pairs.into_iter().enumerate(), shards)?;
                Some(Term::Conv { equation, conv })
            }
            Op::Scatter {
                dims,
                combine: Combine::Add,
            } if self.finder.is_zero(operands[0]) => {
                let axis = dims.rows_axis()?;
                let rank = graph.ty(operands[1]).rank();
                let pairs = (0..rank).map(|d| [of(1, d), of(2, axis + d)]);
                Some(Term::Scatter {
                    equation,
                    axis,
                    split: self.split(pairs.enumerate(), shards)?,
                })
            }
            Op::Reduce(Reducer::Sum, dims) => {
                let summed = dims.iter().map(|&d| (d, [of(0, d), of(0, d)]));
                Some(Term::Reduce {
                    operand: operands[0],
                    dims,
                    split: self.split(summed, shards)?,
                })
            }
            _ => None,
        }
    }

    /// What splits contracted dimensions, of which two operands know something; `None` if nothing does.
    fn split<'s>(
        &self,
        dimensions: impl Iterator<Item = (usize, [(Option<&'s Axes>, usize); 2])>,
        shards: &[AxisPart],
    ) -> Option<Vec<Split>> {
        let mut seen: Vec<AxisPart> = Vec::new();
        let split = dimensions.filter_map(|(dimension, [(left, size), (right, _)])| {
            let known = |axes: Option<&'s Axes>| axes.filter(|axes| !axes.is_empty());
            let parts = |axes: &Axes| -> Option<Vec<AxisPart>> {
                let parts = self.annotations.parts(axes).into_iter();
                let parts: Option<Vec<_>> = parts.map(|part| cut(part, shards)).collect();
                Some(parts?.concat())
            };
            // Of two that differ, what both begin with: more than that is brought together for the product.
            let mut parts = match (known(left), known(right)) {
                (Some(left), Some(right)) => {
                    let both = parts(left)?.into_iter().zip(parts(right)?);
                    both.take_while(|(l, r)| l == r).map(|(l, _)| l).collect()
                }
                (left, right) => parts(left.or(right)?)?,
            };
            // What is known comes from several values and may have an axis twice.
            let taken = || self.taken.iter().chain(&seen);
            let is_taken = |part: &AxisPart| taken().any(|taken| overlap(part, taken));
            parts.truncate(parts.iter().position(is_taken).unwrap_or(parts.len()));
            let devices: usize = parts.iter().map(|part| part.size).product();
            let is_split = devices > 1 && size.is_multiple_of(devices);
            is_split.then(|| {
                seen.extend(&parts);
                Split { dimension, parts }
            })
        });
        let split: Vec<Split> = split.collect();
        (!split.is_empty()).then_some(split)
    }
}

pub(super) fn overlap(one: &AxisPart, other: &AxisPart) -> bool {
    one.index == other.index && one.before < other.end() && other.before < one.end()
}

/// A part of an axis, cut where any of `others` begins or ends; `None` if they are of different grids.
fn cut(part: AxisPart, others: &[AxisPart]) -> Option<Vec<AxisPart>> {
    let own = others.iter().filter(|other| overlap(&part, other));
    let within = own
        .flat_map(|other| [other.before, other.end()])
        .filter(|&at| part.before < at && at < part.end());
    let mut ends: Vec<usize> = within.chain([part.end()]).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut before = part.before;
    let cells = ends.into_iter().map(|end| {
        let cell = AxisPart {
            before,
            size: end / before,
            ..part
        };
        let fits = end.is_multiple_of(before);
        before = end;
        fits.then_some(cell)
    });
    cells.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(before: usize, size: usize) -> AxisPart {
        AxisPart {
            index: 0,
            whole: 16,
            before,
            size,
        }
    }

    #[test]
    fn parts_are_cut_where_others_begin_and_end() {
        let whole = part(1, 16);
        let cells = |others: &[AxisPart]| cut(whole, others);
        assert_eq!(cells(&[]), Some(vec![whole]));
        assert_eq!(cells(&[whole]), Some(vec![whole]));
        assert_eq!(
            cells(&[part(2, 4)]),
            Some(vec![part(1, 2), part(2, 4), part(8, 2)])
        );
        assert_eq!(
            cells(&[part(4, 4), part(1, 2)]),
            Some(vec![part(1, 2), part(2, 2), part(4, 4)])
        );
        let other_axis = AxisPart {
            index: 1,
            ..part(2, 4)
        };
        assert_eq!(cells(&[other_axis]), Some(vec![whole]));
        // Of a part, what is in it.
        let inner = part(4, 4);
        assert_eq!(cut(inner, &[whole, part(1, 4)]), Some(vec![inner]));
        assert_eq!(
            cut(inner, &[part(1, 8)]),
            Some(vec![part(4, 2), part(8, 2)])
        );
    }

    #[test]
    fn parts_of_different_grids_are_not_cut() {
        let axis = AxisPart {
            whole: 12,
            ..part(1, 12)
        };
        let [two, three] = [2, 3].map(|size| AxisPart { size, ..axis });
        assert_eq!(cut(axis, &[two, three]), None);
    }
}
