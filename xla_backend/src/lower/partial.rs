//! Sums of partial sums, reduced once.
//!
//! A parameter that is used twice, such as an embedding that is also the output projection, has a
//! gradient of two terms. With the batch split over devices each term is a partial sum on each of
//! them, and the partitioner reduces every term across devices before it adds them: twice the
//! communication. Here the sum is written so that it cannot: the split dimension, which the terms
//! contract, is taken apart into devices and the rest, every term keeps a leading dimension of
//! devices, the terms are added there, which is local, and that dimension is summed last.
//!
//! The same is done where gradients lie in shards over some of the axes of the batch and are repeated
//! over others (hybrid sharding): the partitioner would reduce whole gradients over all of them and cut
//! afterwards. Written in two sums, a gradient is reduced into shards within each group first, and only
//! shards are summed over the groups, which is where the network is slow.

use shardax_core::{
    Combine, Constraint, Dims, DotDims, Graph, Op, Reducer, Role, TensorType, ValueId,
};
use shardax_sharding::{Axes, PartitionSpec};

use super::split::Splits;
use super::writer::{List, Ssa, tensor_type};
use super::{Lowering, Values, read};

/// A term of a gradient, down to what contracts the split dimension.
enum Term<'a> {
    Add(Box<Term<'a>>, Box<Term<'a>>),
    Convert(Box<Term<'a>>, TensorType),
    Transpose(Box<Term<'a>>, &'a Dims),
    Dot {
        operands: [ValueId; 2],
        dims: &'a DotDims,
        /// Which pair of contracted dimensions is split.
        pair: usize,
    },
    /// A sum over dimensions, of which `axis` is split.
    Sum {
        operand: ValueId,
        dims: &'a Dims,
        axis: usize,
    },
    /// Rows added to zeros; dimension 0 of the indices is split.
    Scatter {
        operands: [ValueId; 3],
        axis: usize,
    },
}

/// The sum that an annotated gradient is.
pub(super) struct PartialSum<'a> {
    term: Term<'a>,
    axes: Axes,
    devices: usize,
    at_use: PartitionSpec,
    groups: Option<Groups>,
}

/// Devices that have shards of a gradient, and groups of them that have the same shards.
struct Groups {
    /// The axes along which groups lie, the first of those of the sum.
    axes: Axes,
    count: usize,
    at_rest: PartitionSpec,
}

impl PartialSum<'_> {
    /// Whether the sum is written into shards, as gradients rest.
    pub(super) fn is_at_rest(&self) -> bool {
        self.groups.is_some()
    }
}

/// Finds terms in a graph.
pub(super) struct Finder<'a> {
    graph: &'a Graph,
    pub(super) definitions: Vec<Option<&'a shardax_core::Equation>>,
    uses: Vec<usize>,
    pub(super) splits: Splits,
}

impl<'a> Finder<'a> {
    pub(super) fn new(graph: &'a Graph, splits: Splits) -> Self {
        let mut definitions = vec![None; graph.value_count()];
        let mut uses = vec![0; graph.value_count()];
        for equation in graph.equations() {
            for result in &equation.results {
                definitions[result.index()] = Some(equation);
            }
            for operand in &equation.operands {
                uses[operand.index()] += 1;
            }
        }
        for output in graph.outputs() {
            uses[output.index()] += 1;
        }
        Finder {
            graph,
            definitions,
            uses,
            splits,
        }
    }

    /// The sum, if the value that `constraint` is on is one of partial sums over axes that do not split
    /// the parameter itself, and there are several or it is to be summed in groups.
    pub(super) fn find(
        &self,
        constraint: &Constraint,
        value: ValueId,
        at_use: &PartitionSpec,
        at_rest: Option<&PartitionSpec>,
        size: impl Fn(&Axes) -> usize,
    ) -> Option<PartialSum<'a>> {
        if constraint.role != Role::ParameterAtUse {
            return None;
        }
        let mut found: Vec<Axes> = Vec::new();
        let term = self.term(value, at_use, &mut found)?;
        let (axes, others) = found.split_first()?;
        let taken = at_use.entries().iter().flat_map(|entry| entry.names());
        let free = !taken.into_iter().any(|name| axes.overlaps(name));
        let devices = size(axes);
        let alike = others.iter().all(|other| other == axes);
        let groups = at_rest.and_then(|at_rest| groups(axes, at_rest, &size));
        let worth_it = !others.is_empty() || groups.is_some();
        (alike && worth_it && free && devices > 1).then(|| PartialSum {
            term,
            axes: axes.clone(),
            devices,
            at_use: at_use.clone(),
            groups,
        })
    }

    /// The value whose gradient the annotation says how to rest, if the one before it, at use, is read
    /// by nothing else.
    pub(super) fn resting(&self, constraint: &Constraint, value: ValueId) -> Option<ValueId> {
        let before = self.definitions[value.index()]?;
        let at_use = matches!(&before.op, Op::Shard(before) if before.role == Role::ParameterAtUse);
        let rests = constraint.role == Role::Gradient;
        (rests && at_use && self.uses[value.index()] == 1).then_some(value)
    }

    /// The tree of a value; the axes that its leaves are partial over are added to `found`.
    fn term(
        &self,
        value: ValueId,
        at_use: &PartitionSpec,
        found: &mut Vec<Axes>,
    ) -> Option<Term<'a>> {
        if self.uses[value.index()] != 1 {
            return None;
        }
        let equation = self.definitions[value.index()]?;
        let operands = &equation.operands;
        match &equation.op {
            Op::Binary(shardax_core::Binary::Add) => {
                let left = self.term(operands[0], at_use, found)?;
                let right = self.term(operands[1], at_use, found)?;
                Some(Term::Add(Box::new(left), Box::new(right)))
            }
            Op::Convert(_) => {
                let inner = self.term(operands[0], at_use, found)?;
                Some(Term::Convert(Box::new(inner), self.graph.ty(value).clone()))
            }
            Op::Transpose(permutation) => {
                let inner = self.term(operands[0], at_use, found)?;
                Some(Term::Transpose(Box::new(inner), permutation))
            }
            Op::DotGeneral(dims) if dims.lhs_batch.is_empty() => {
                let contracted = dims.lhs_contract.iter().zip(&dims.rhs_contract);
                let splits = contracted.map(|(&l, &r)| {
                    let [left, right] = [(0, l), (1, r)].map(|(operand, d): (usize, usize)| {
                        &self.splits[operands[operand].index()][d]
                    });
                    // Of one that nothing is known of, the partitioner takes the part that the other has.
                    match (left.is_empty(), right.is_empty()) {
                        (false, true) => Some(left),
                        (true, _) => Some(right),
                        (false, false) => (left == right).then_some(left),
                    }
                });
                let splits = splits.collect::<Option<Vec<&Axes>>>()?;
                let (pair, axes) = the_one(&splits)?;
                found.push(axes.clone());
                Some(Term::Dot {
                    operands: [operands[0], operands[1]],
                    dims,
                    pair,
                })
            }
            Op::Reduce(Reducer::Sum, dims) => {
                let own = &self.splits[operands[0].index()];
                let summed: Vec<&Axes> = dims.iter().map(|&d| &own[d]).collect();
                let (position, axes) = the_one(&summed)?;
                found.push(axes.clone());
                Some(Term::Sum {
                    operand: operands[0],
                    dims,
                    axis: dims[position],
                })
            }
            Op::Scatter {
                dims,
                combine: Combine::Add,
            } => {
                let axis = &dims.rows_axis()?;
                let axes = self.splits[operands[1].index()].first()?;
                let rows = &self.splits[operands[2].index()][*axis];
                // Where the table itself is split along its rows, the partitioner scatters a mask.
                let whole = at_use.entries()[*axis].is_empty();
                (self.is_zero(operands[0]) && whole && axes == rows && !axes.is_empty()).then(
                    || {
                        found.push(axes.clone());
                        Term::Scatter {
                            operands: [operands[0], operands[1], operands[2]],
                            axis: *axis,
                        }
                    },
                )
            }
            _ => None,
        }
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

/// The only one that is split, and its position.
fn the_one<'s>(splits: &[&'s Axes]) -> Option<(usize, &'s Axes)> {
    let mut split = splits
        .iter()
        .enumerate()
        .filter(|(_, axes)| !axes.is_empty());
    match (split.next(), split.next()) {
        (Some((position, axes)), None) => Some((position, axes)),
        _ => None,
    }
}

/// The groups, if the last of the axes split the gradient at rest and the first do not.
fn groups(axes: &Axes, at_rest: &PartitionSpec, size: impl Fn(&Axes) -> usize) -> Option<Groups> {
    let rests = |name: &String| at_rest.entries().iter().any(|entry| entry.contains(name));
    let overlaps = |name: &String| at_rest.entries().iter().any(|entry| entry.overlaps(name));
    let names = axes.names();
    let first = names.iter().position(rests)?;
    let (outer, inner) = names.split_at(first);
    let outer_axes: Axes = outer.iter().map(String::as_str).collect();
    let count = size(&outer_axes);
    let apart = inner.iter().all(rests) && !outer.iter().any(overlaps);
    (apart && count > 1).then(|| Groups {
        axes: outer_axes,
        count,
        at_rest: at_rest.clone(),
    })
}

impl Lowering<'_> {
    /// Writes a sum and returns it without its dimension of devices.
    pub(super) fn partial_sum(
        &mut self,
        graph: &Graph,
        sum: &PartialSum,
        values: &Values,
        loc: &str,
    ) -> Ssa {
        let (total, ty) = self.term(graph, sum, &sum.term, values, loc);
        let total = self.spread(&sum.axes, &sum.at_use, total, &ty, loc);
        let Some(groups) = &sum.groups else {
            return self.summed(total, &ty, &[0], loc).0;
        };
        let mut shape = ty.shape.to_vec();
        shape.splice(..1, [groups.count, sum.devices / groups.count]);
        let apart = TensorType::new(ty.dtype, &shape);
        let text = format!(
            "stablehlo.reshape {total} : ({}) -> {}",
            tensor_type(&ty),
            tensor_type(&apart)
        );
        let total = self.assign(&text, loc);
        let (within, ty) = self.summed(total, &apart, &[1], loc);
        // A sum that is cut: together a reduce-scatter.
        let within = self.spread(&groups.axes, &sum.at_use, within, &ty, loc);
        let within = self.spread(&groups.axes, &groups.at_rest, within, &ty, loc);
        let (total, ty) = self.summed(within, &ty, &[0], loc);
        let text = self.annotations.statement(&groups.at_rest, total, &ty);
        self.assign(&text, loc)
    }

    /// A value with one of its dimensions before the others, and its type.
    fn first(&mut self, x: Ssa, ty: TensorType, dim: usize, loc: &str) -> (Ssa, TensorType) {
        if dim == 0 {
            return (x, ty);
        }
        let others = (0..ty.rank()).filter(|&d| d != dim);
        let permutation: Vec<usize> = std::iter::once(dim).chain(others).collect();
        let shape: Vec<usize> = permutation.iter().map(|&d| ty.shape[d]).collect();
        let turned = TensorType::new(ty.dtype, &shape);
        let text = format!(
            "stablehlo.transpose {x}, dims = {} : ({}) -> {}",
            List(&permutation),
            tensor_type(&ty),
            tensor_type(&turned)
        );
        (self.assign(&text, loc), turned)
    }

    /// The sum over dimensions, and its type.
    fn summed(&mut self, x: Ssa, ty: &TensorType, dims: &[usize], loc: &str) -> (Ssa, TensorType) {
        let scalar = tensor_type(&TensorType::scalar(ty.dtype));
        let zero = self.assign(&format!("stablehlo.constant dense<0.0> : {scalar}"), loc);
        let kept = (0..ty.rank()).filter(|d| !dims.contains(d));
        let shape: Vec<usize> = kept.map(|d| ty.shape[d]).collect();
        let result = TensorType::new(ty.dtype, &shape);
        let text = format!(
            "stablehlo.reduce({x} init: {zero}) applies stablehlo.add across dimensions = {} : \
             ({}, {scalar}) -> {}",
            List(dims),
            tensor_type(ty),
            tensor_type(&result)
        );
        (self.assign(&text, loc), result)
    }

    /// A term with its leading dimension of devices, and its type.
    fn term(
        &mut self,
        graph: &Graph,
        sum: &PartialSum,
        term: &Term,
        values: &Values,
        loc: &str,
    ) -> (Ssa, TensorType) {
        match term {
            Term::Add(left, right) => {
                let (left, ty) = self.term(graph, sum, left, values, loc);
                let (right, _) = self.term(graph, sum, right, values, loc);
                let text = format!("stablehlo.add {left}, {right} : {}", tensor_type(&ty));
                (self.assign(&text, loc), ty)
            }
            Term::Convert(inner, to) => {
                let (inner, from) = self.term(graph, sum, inner, values, loc);
                let ty = TensorType::new(to.dtype, &from.shape);
                let text = format!(
                    "stablehlo.convert {inner} : ({}) -> {}",
                    tensor_type(&from),
                    tensor_type(&ty)
                );
                (self.assign(&text, loc), ty)
            }
            Term::Transpose(inner, permutation) => {
                let (inner, from) = self.term(graph, sum, inner, values, loc);
                let permutation: Vec<usize> = std::iter::once(0)
                    .chain(permutation.iter().map(|p| p + 1))
                    .collect();
                let shape: Vec<usize> = permutation.iter().map(|&p| from.shape[p]).collect();
                let ty = TensorType::new(from.dtype, &shape);
                let text = format!(
                    "stablehlo.transpose {inner}, dims = {} : ({}) -> {}",
                    List(&permutation),
                    tensor_type(&from),
                    tensor_type(&ty)
                );
                (self.assign(&text, loc), ty)
            }
            Term::Dot {
                operands: [lhs, rhs],
                dims,
                pair,
            } => {
                let (l, r) = (dims.lhs_contract[*pair], dims.rhs_contract[*pair]);
                let (left, left_ty) = self.apart(graph, sum, *lhs, l, values, loc);
                let (right, right_ty) = self.apart(graph, sum, *rhs, r, values, loc);
                let after = |dims: &Dims, at: usize| -> Vec<usize> {
                    dims.iter()
                        .map(|&d| if d >= at { d + 1 } else { d })
                        .collect()
                };
                let (lhs_ty, rhs_ty) = (graph.ty(*lhs), graph.ty(*rhs));
                let free = dims
                    .lhs_free(lhs_ty.rank())
                    .into_iter()
                    .map(|d| lhs_ty.shape[d]);
                let free = free.chain(
                    dims.rhs_free(rhs_ty.rank())
                        .into_iter()
                        .map(|d| rhs_ty.shape[d]),
                );
                let shape: Vec<usize> = std::iter::once(sum.devices).chain(free).collect();
                let ty = TensorType::new(dims.result, &shape);
                let text = format!(
                    "stablehlo.dot_general {left}, {right}, batching_dims = [{l}] x [{r}], \
                     contracting_dims = {} x {}, precision = [DEFAULT, DEFAULT] : ({}, {}) -> {}",
                    List(&after(&dims.lhs_contract, l)),
                    List(&after(&dims.rhs_contract, r)),
                    tensor_type(&left_ty),
                    tensor_type(&right_ty),
                    tensor_type(&ty)
                );
                let product = self.assign(&text, loc);
                (product, ty)
            }
            Term::Sum {
                operand,
                dims,
                axis,
            } => {
                let (apart, ty) = self.apart(graph, sum, *operand, *axis, values, loc);
                // The devices come before what is left of the dimension.
                let summed: Vec<usize> = dims
                    .iter()
                    .map(|&d| if d >= *axis { d + 1 } else { d })
                    .collect();
                let (sums, ty) = self.summed(apart, &ty, &summed, loc);
                let kept = (0..*axis).filter(|d| !dims.contains(d)).count();
                self.first(sums, ty, kept, loc)
            }
            Term::Scatter {
                operands: [table, indices, updates],
                axis,
            } => {
                let (rows, rows_ty) = self.apart(graph, sum, *updates, *axis, values, loc);
                let (index, index_ty) = self.apart(graph, sum, *indices, 0, values, loc);
                let table = graph.ty(*table);
                let shape: Vec<usize> = std::iter::once(sum.devices)
                    .chain(table.shape.iter().copied())
                    .collect();
                let ty = TensorType::new(table.dtype, &shape);
                let zeros = self.zeros(&ty, loc);
                let windows: Vec<usize> = (0..*axis)
                    .chain(axis + index_ty.rank()..rows_ty.rank())
                    .collect();
                let mut text = String::new();
                // Writing to a string does not fail.
                let _ = super::gather::scatter(
                    &mut text,
                    &format!(
                        "update_window_dims = {}, inserted_window_dims = [{at}], \
                         input_batching_dims = [0], scatter_indices_batching_dims = [0], \
                         scatter_dims_to_operand_dims = [{at}], index_vector_dim = {}",
                        List(&windows),
                        index_ty.rank(),
                        at = axis + 1
                    ),
                    (
                        &format!("{zeros}, {index}, {rows}"),
                        Combine::Add,
                        table.dtype,
                    ),
                    &format!(
                        "({}, {}, {}) -> {}",
                        tensor_type(&ty),
                        tensor_type(&index_ty),
                        tensor_type(&rows_ty),
                        tensor_type(&ty)
                    ),
                );
                let scattered = self.assign(&text, loc);
                (scattered, ty)
            }
        }
    }

    /// A value with its split dimension taken apart into devices and the rest.
    fn apart(
        &mut self,
        graph: &Graph,
        sum: &PartialSum,
        value: ValueId,
        dimension: usize,
        values: &Values,
        loc: &str,
    ) -> (Ssa, TensorType) {
        let from = graph.ty(value);
        let mut shape = from.shape.to_vec();
        shape[dimension] /= sum.devices;
        shape.insert(dimension, sum.devices);
        let ty = TensorType::new(from.dtype, &shape);
        let text = format!(
            "stablehlo.reshape {} : ({}) -> {}",
            read(values, value),
            tensor_type(from),
            tensor_type(&ty)
        );
        (self.assign(&text, loc), ty)
    }

    /// States that the leading dimension lies across these axes, and the others as a spec says.
    fn spread(
        &mut self,
        axes: &Axes,
        spec: &PartitionSpec,
        value: Ssa,
        ty: &TensorType,
        loc: &str,
    ) -> Ssa {
        let entries: Vec<Axes> = std::iter::once(axes)
            .chain(spec.entries())
            .cloned()
            .collect();
        let text = self
            .annotations
            .statement(&PartitionSpec::new(entries), value, ty);
        self.assign(&text, loc)
    }
}
