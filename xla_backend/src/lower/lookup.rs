//! Lookups in a table whose rows are split over devices.
//!
//! Each device looks up those rows that it has, and the results are summed: what vocab parallelism is.
//! The partitioner does so as long as nothing else of the lookup is split over the same axes. Where the
//! indices are, as under sequence parallelism, it brings the whole table to every device, and the whole
//! gradient of it in the backward pass. Here the indices, and what is looked up for them, are stated not
//! to be split over the axes of the table; the sum is cut again where the program wants it split.

use rustc_hash::FxHashMap;
use shardax_core::ir::split::{Entries, Resolve, Splits};
use shardax_core::{
    Combine, Role,
    ir::{Equation, GatherDims, Graph, Op, ValueId, scatter_of_two},
};
use shardax_sharding::{Axes, AxisPart, PartitionSpec};

use super::partial::overlap;
use super::writer::{Loc, Results};
use super::{Block, Lowering};

/// By the first result of a gather or scatter of rows, the axes that split the table's rows.
pub(super) type Tables = FxHashMap<ValueId, Axes>;

/// The gathers and scatters of a graph whose tables are split along their rows.
///
/// A gather's table is known by its own split, that which a scatter adds to by the annotation of the
/// gradient that it becomes.
pub(super) fn tables<'a>(
    graph: &'a Graph,
    definitions: &[Option<&'a Equation>],
    splits: &Splits,
    resolve: Resolve,
) -> Tables {
    let mut found = Tables::default();
    for equation in graph.equations() {
        match &equation.op {
            Op::Gather { dims, .. } => {
                let axes = dims
                    .rows_axis()
                    .map(|axis| splits[equation.operands[0].index()][axis].clone());
                found.extend(axes.map(|axes| (equation.results[0], axes)));
            }
            Op::Shard(constraint) if constraint.role == Role::ParameterAtUse => {
                let operand = equation.operands[0];
                if let Some(split) = resolve(constraint, graph.ty(operand)) {
                    scatters(definitions, operand, split.to_vec(), &mut found);
                }
            }
            _ => {}
        }
    }
    found.retain(|_, axes| !axes.is_empty());
    found
}

/// The scatters that a gradient is a sum of.
fn scatters(
    definitions: &[Option<&Equation>],
    value: ValueId,
    entries: Vec<Axes>,
    found: &mut Tables,
) {
    let Some(equation) = definitions[value.index()] else {
        return;
    };
    match &equation.op {
        Op::Binary(shardax_core::ir::Binary::Add) => {
            for &operand in &equation.operands {
                scatters(definitions, operand, entries.clone(), found);
            }
        }
        Op::Convert(_) => scatters(definitions, equation.operands[0], entries, found),
        Op::Transpose(permutation) => {
            let mut before = entries.clone();
            for (to, &from) in permutation.iter().enumerate() {
                before[from] = entries[to].clone();
            }
            scatters(definitions, equation.operands[0], before, found);
        }
        Op::Scatter { dims, .. } => {
            let axes = dims.rows_axis().map(|axis| entries[axis].clone());
            found.extend(axes.map(|axes| (value, axes)));
        }
        _ => {}
    }
}

/// What is to be stated of a lookup.
pub(super) struct Lookup {
    table: Axes,
    indices: Entries,
    /// Of the rows that are looked up or added, the split of each dimension, as far as it is known.
    rows: Entries,
    /// The first dimension of `rows` that is one of the indices'.
    axis: usize,
}

impl Lookup {
    /// The lookup that an equation is, if its table and anything else of it are split over the same axes.
    pub(super) fn of(equation: &Equation, block: &Block) -> Option<Self> {
        let table = block.tables.get(equation.results.first()?)?.clone();
        let (dims, rows) = match &equation.op {
            Op::Gather { dims, .. } => (dims, equation.results[0]),
            Op::Scatter { dims, .. } => (dims, equation.operands[2]),
            _ => return None,
        };
        let (axis, indices) = (dims.rows_axis()?, block.split(equation.operands[1]));
        let rows = block.split(rows);
        let is_shared = |axes: &Axes| axes.names().iter().any(|axis| table.overlaps(axis));
        let apart = !indices.iter().chain(rows.iter()).any(is_shared);
        (!apart).then_some(Lookup {
            table,
            indices,
            rows,
            axis,
        })
    }

    /// The axes of a dimension without those that are taken; open if nothing was known of it.
    fn left(axes: &Axes, is_taken: impl Fn(&str) -> bool) -> Axes {
        let names = axes.names().iter();
        let left: Axes = names.filter(|axis| !is_taken(axis)).cloned().collect();
        match axes.is_empty() {
            true => left.open(),
            false => left,
        }
    }

    /// The position among the indices' dimensions of a dimension of the rows.
    fn of_indices(&self, d: usize) -> Option<usize> {
        let d = d.checked_sub(self.axis)?;
        (d < self.indices.len()).then_some(d)
    }

    /// The axes of a dimension of the indices. What is looked up has another dimension more, whose axes
    /// the indices, by themselves, may be split over as well.
    fn index(&self, axes: &Axes) -> Axes {
        let rows = self.rows.iter().enumerate();
        let others = rows.filter(|(d, _)| self.of_indices(*d).is_none());
        let others: Vec<&Axes> = others.map(|(_, axes)| axes).collect();
        Self::left(axes, |axis| {
            self.table.overlaps(axis) || others.iter().any(|other| other.overlaps(axis))
        })
    }

    /// Where the indices are to lie.
    fn indices(&self) -> PartitionSpec {
        self.indices.iter().map(|axes| self.index(axes)).collect()
    }

    /// Where the rows are to lie, along the dimensions of the indices as these.
    fn rows(&self) -> PartitionSpec {
        let rows = self.rows.iter().enumerate();
        let split = |(d, axes): (usize, &Axes)| {
            let known = self.of_indices(d).map(|d| &self.indices[d]);
            match known.filter(|axes| !axes.is_empty()) {
                Some(axes) => self.index(axes),
                None => Self::left(axes, |axis| self.table.overlaps(axis)),
            }
        };
        rows.map(split).collect()
    }
}

impl Lowering<'_> {
    /// Batches of indices, and of what is written, that lie as the batches of the table do, where an axis splits these and what
    /// the indices point at: XLA's partitioner loses what is written to rows of another batch.
    pub(super) fn batches_together(
        &mut self,
        (graph, equation, dims): (&Graph, &Equation, &GatherDims),
        block: &Block,
        x: &mut Results,
        loc: Loc,
    ) {
        if self.annotations.is_single() || dims.indices_batch.is_empty() {
            return;
        }
        let splits = [0, 1].map(|i| block.split(equation.operands[i]));
        let parts = |split: &Entries, of: &[usize]| -> Vec<AxisPart> {
            let axes = of.iter().filter_map(|&d| split.get(d));
            axes.flat_map(|axes| self.annotations.parts(axes)).collect()
        };
        let pointed = parts(&splits[0], &dims.start_map);
        let batches = parts(&splits[1], &dims.indices_batch);
        if !batches
            .iter()
            .any(|part| pointed.iter().any(|other| overlap(part, other)))
        {
            return;
        }
        for operand in 1..equation.operands.len() {
            let ty = graph.ty(equation.operands[operand]);
            // Of what is written, the dimensions that are not those of a window are those of the indices.
            let outer: Vec<usize> = match operand {
                1 => (0..ty.rank()).collect(),
                _ => (0..ty.rank())
                    .filter(|d| !dims.offset.contains(d))
                    .collect(),
            };
            let entry = |d: usize| {
                let at = dims
                    .indices_batch
                    .iter()
                    .position(|&batch| outer.get(batch) == Some(&d));
                let table = at.and_then(|at| splits[0].get(*dims.operand_batch.get(at)?));
                match (at, table) {
                    (None, _) => Axes::default().open(),
                    (Some(_), table) => table.cloned().unwrap_or_default(),
                }
            };
            let spec = (0..ty.rank()).map(entry).collect();
            x[operand] = self.stated(&spec, x[operand], ty, loc);
        }
    }

    /// A scatter of one update into a table that devices may split, as one of two. XLA writes one update as a slice that it
    /// reads and writes again, and a slice of a table that was just split reads past the device's part: all devices
    /// but that of the update lose an element.
    pub(super) fn pair_of_updates(
        &self,
        (graph, equation): (&Graph, &Equation),
        scatter: (&GatherDims, Combine),
    ) -> Option<Graph> {
        let types = [0, 1, 2].map(|i| graph.ty(equation.operands[i]));
        match self.annotations.is_single() {
            true => None,
            false => scatter_of_two(equation, scatter, types),
        }
    }

    /// States where the operands of a lookup lie.
    pub(super) fn before_lookup(
        &mut self,
        lookup: &Lookup,
        (graph, equation): (&Graph, &Equation),
        operands: &mut Results,
        loc: Loc,
    ) {
        let ty = |i: usize| graph.ty(equation.operands[i]);
        operands[1] = self.stated(&lookup.indices(), operands[1], ty(1), loc);
        if let Op::Scatter { .. } = equation.op {
            operands[2] = self.stated(&lookup.rows(), operands[2], ty(2), loc);
        }
    }

    /// States where the result of a gather lies.
    pub(super) fn after_lookup(
        &mut self,
        lookup: &Lookup,
        (graph, equation): (&Graph, &Equation),
        results: &mut Results,
        loc: Loc,
    ) {
        if let Op::Gather { .. } = equation.op {
            let ty = graph.ty(equation.results[0]);
            results[0] = self.stated(&lookup.rows(), results[0], ty, loc);
        }
    }
}
