//! Sums of partial sums, reduced once.
//!
//! A parameter that is used twice, such as an embedding that is also the output projection, has a
//! gradient of two terms. With the batch split over devices each term is a partial sum on each of
//! them, and the partitioner reduces every term across devices before it adds them: twice the
//! communication. Here the sum is written so that it cannot: the split dimension, which the terms
//! contract, is taken apart into devices and the rest, every term keeps a leading dimension of
//! devices, the terms are added there, which is local, and that dimension is summed last.

use shardax_core::{Combine, Constraint, Dims, DotDims, Graph, Op, Role, TensorType, ValueId};
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

    /// The sum, if the value that `constraint` is on is one of several partial sums over axes that
    /// do not split the parameter itself.
    pub(super) fn find(
        &self,
        constraint: &Constraint,
        value: ValueId,
        at_use: &PartitionSpec,
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
        let several = !others.is_empty() && others.iter().all(|other| other == axes);
        (several && free && devices > 1).then(|| PartialSum {
            term,
            axes: axes.clone(),
            devices,
            at_use: at_use.clone(),
        })
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
                let split = |pair: &usize| {
                    let axes = &self.splits[operands[0].index()][dims.lhs_contract[*pair]];
                    let other = &self.splits[operands[1].index()][dims.rhs_contract[*pair]];
                    !axes.is_empty() && axes == other
                };
                let mut pairs = (0..dims.lhs_contract.len()).filter(split);
                let (Some(pair), None) = (pairs.next(), pairs.next()) else {
                    return None;
                };
                found.push(self.splits[operands[0].index()][dims.lhs_contract[pair]].clone());
                Some(Term::Dot {
                    operands: [operands[0], operands[1]],
                    dims,
                    pair,
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
        let total = self.spread(sum, total, &ty, loc);
        let scalar = tensor_type(&TensorType::scalar(ty.dtype));
        let zero = self.assign(&format!("stablehlo.constant dense<0.0> : {scalar}"), loc);
        let result = TensorType::new(ty.dtype, &ty.shape[1..]);
        let text = format!(
            "stablehlo.reduce({total} init: {zero}) applies stablehlo.add across dimensions = [0] : \
             ({}, {scalar}) -> {}",
            tensor_type(&ty),
            tensor_type(&result)
        );
        self.assign(&text, loc)
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

    /// States that the leading dimension lies across the devices.
    fn spread(&mut self, sum: &PartialSum, value: Ssa, ty: &TensorType, loc: &str) -> Ssa {
        let entries: Vec<Axes> = std::iter::once(&sum.axes)
            .chain(sum.at_use.entries())
            .cloned()
            .collect();
        let text = self
            .annotations
            .statement(&PartitionSpec::new(entries), value, ty);
        self.assign(&text, loc)
    }
}
