//! Writes sums of partial sums with their leading dimensions of devices.

use shardax_core::{
    DType, Reducer, TensorType,
    ir::{Dims, DotDims, Equation, Graph, ValueId},
};
use shardax_sharding::{Axes, AxisPart, PartitionSpec, Partitioner};

use super::{PartialSum, Split, Term, overlap, parts_of};
use crate::lower::elementwise::neutral;
use crate::lower::lookup::Lookup;
use crate::lower::writer::{List, Loc, Results, Ssa, tensor_type};
use crate::lower::{Block, Lowering, Values, gather, read};

/// What terms are written from.
#[derive(Clone, Copy)]
pub(in crate::lower) struct Place<'p> {
    pub(in crate::lower) graph: &'p Graph,
    pub(in crate::lower) values: &'p Values,
    pub(in crate::lower) block: &'p Block<'p>,
}

/// A value whose split dimensions are taken apart into devices and the rest.
struct Apart {
    value: Ssa,
    ty: TensorType,
    /// Where each of the devices that are kept went.
    devices: Vec<usize>,
    /// Where the rest of each dimension went.
    rest: Vec<Vec<usize>>,
}

impl Apart {
    /// Where the rest of these dimensions went.
    fn rest_of(&self, dims: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let rest = dims.into_iter().flat_map(|d| &self.rest[d]);
        rest.copied().collect()
    }
}

impl Lowering<'_> {
    /// Writes a sum and returns it without its dimensions of devices.
    pub(in crate::lower) fn partial_sum(&mut self, sum: &PartialSum, place: Place) -> Ssa {
        let root = sum.root;
        let loc = self
            .locations
            .reference(root.source, &root.scope, root.op.name());
        let (mut total, mut ty) = self.term(sum, &sum.term, place, loc);
        let shape: Vec<usize> = ty.shape[sum.kept.len()..].to_vec();
        let mut groups: Vec<Axes> = sum
            .kept
            .iter()
            .map(|part| self.annotations.axes([part]))
            .collect();
        total = self.lies(&groups, &sum.at_use, (total, &ty), loc);
        if sum.steps.len() < sum.kept.len() {
            // What is summed in one step is one dimension, for the partitioner reduces over each by itself.
            let mut left = &sum.kept[..];
            let mut parts: Vec<&[AxisPart]> = Vec::new();
            for &count in &sum.steps {
                let (step, others) = left.split_at(count);
                parts.push(step);
                left = others;
            }
            let sizes = parts
                .iter()
                .map(|parts| parts.iter().map(|p| p.size).product());
            let joined = TensorType::new(
                ty.dtype,
                sizes.chain(shape.iter().copied()).collect::<Vec<_>>(),
            );
            total = self.reshaped(total, &ty, &joined, loc);
            ty = joined;
            let joined = parts.into_iter().map(|parts| self.annotations.axes(parts));
            groups = joined.collect();
            total = self.lies(&groups, &sum.at_use, (total, &ty), loc);
        }
        while let Some(last) = groups.len().checked_sub(1) {
            (total, ty) = self.summed((total, &ty), &[last], loc);
            groups.pop();
            if sum.steps.len() > 1 {
                if last > 0 {
                    total = self.lies(&groups, &sum.at_use, (total, &ty), loc);
                }
                total = self.lies(&groups, &sum.gradient, (total, &ty), loc);
            }
        }
        if let Some([_, own]) = sum.wide {
            // Behind the annotations, so that what is reduced is not narrow yet.
            if sum.steps.len() < 2 {
                total = self.lies(&[], &sum.gradient, (total, &ty), loc);
            }
            (total, _) = self.converted((total, ty), own, loc);
        }
        if sum.wide.is_some() || sum.steps.len() > 1 {
            self.summed.insert(total);
        }
        total
    }

    /// A value in another element type.
    pub(in crate::lower) fn converted(
        &mut self,
        (value, from): (Ssa, TensorType),
        to: DType,
        loc: Loc,
    ) -> (Ssa, TensorType) {
        if from.dtype == to {
            return (value, from);
        }
        let ty = TensorType::new(to, &from.shape);
        let (from, spelled) = (tensor_type(&from), tensor_type(&ty));
        let text = format!("stablehlo.convert {value} : ({from}) -> {spelled}");
        (self.assign(&text, loc), ty)
    }

    /// A value in the type that terms are computed in, which is its own unless the sum has one.
    fn in_type_of(
        &mut self,
        sum: &PartialSum,
        of: (Ssa, TensorType),
        loc: Loc,
    ) -> (Ssa, TensorType) {
        let wide = sum.wide.map_or(of.1.dtype, |[wide, _]| wide);
        self.converted(of, wide, loc)
    }

    /// A term with its leading dimensions of devices, and its type.
    fn term(&mut self, sum: &PartialSum, term: &Term, place: Place, loc: Loc) -> (Ssa, TensorType) {
        match term {
            Term::Add(left, right) => {
                let (left, ty) = self.term(sum, left, place, loc);
                let (right, _) = self.term(sum, right, place, loc);
                let text = format!("stablehlo.add {left}, {right} : {}", tensor_type(&ty));
                (self.assign(&text, loc), ty)
            }
            Term::Convert(inner, to) => {
                let inner = self.term(sum, inner, place, loc);
                let to = sum.wide.map_or(to.dtype, |[wide, _]| wide);
                self.converted(inner, to, loc)
            }
            Term::Transpose(inner, permutation) => {
                let inner = self.term(sum, inner, place, loc);
                let leading = 0..sum.kept.len();
                let permutation = permutation.iter().map(|p| p + sum.kept.len());
                self.transposed(inner, &leading.chain(permutation).collect::<Vec<_>>(), loc)
            }
            Term::Dot {
                operands,
                dims,
                split,
            } => self.partial_dot(sum, (*operands, dims, sum.kept_of(split)), place, loc),
            Term::Conv { equation, conv } => {
                let values = [0, 1].map(|i| read(place.values, equation.operands[i]));
                let [lhs, rhs] = [0, 1].map(|i| place.graph.ty(equation.operands[i]));
                let ty = place.graph.ty(equation.results[0]);
                let ty = TensorType::new(sum.wide.map_or(ty.dtype, |[wide, _]| wide), &ty.shape);
                let summed = self.summed_by_all(conv, equation.operands[0], place.block);
                (self.conv((conv, summed), values, [lhs, rhs, &ty], loc), ty)
            }
            Term::Scatter {
                equation,
                axis,
                split,
            } => self.partial_scatter(sum, (equation, *axis, sum.kept_of(split)), place, loc),
            Term::Reduce {
                operand,
                dims,
                split,
            } => self.partial_reduce(sum, (*operand, dims, sum.kept_of(split)), place, loc),
        }
    }

    fn partial_dot(
        &mut self,
        sum: &PartialSum,
        (operands, dims, split): ([ValueId; 2], &DotDims, &[Split]),
        place: Place,
        loc: Loc,
    ) -> (Ssa, TensorType) {
        let Place {
            graph,
            values,
            block,
        } = place;
        let contracted = [&dims.lhs_contract, &dims.rhs_contract];
        let [left, right] = [0, 1].map(|side| {
            let split = split
                .iter()
                .map(|s| (contracted[side][s.dimension], &s.parts[..]));
            let split: Vec<_> = split.collect();
            let operand = operands[side];
            let (mut value, ty) = (read(values, operand), graph.ty(operand));
            if let Some(spec) = self.together(sum, &block.split(operand), contracted[side], &split)
            {
                value = self.stated(&spec, value, ty, loc);
            }
            self.apart((value, ty), &split, &sum.kept, loc)
        });
        let (lhs, rhs) = (graph.ty(operands[0]), graph.ty(operands[1]));
        let free = dims.lhs_free(lhs.rank()).into_iter().map(|d| lhs.shape[d]);
        let free = free.chain(dims.rhs_free(rhs.rank()).into_iter().map(|d| rhs.shape[d]));
        let shape: Vec<usize> = sum.kept.iter().map(|part| part.size).chain(free).collect();
        let result = sum.wide.map_or(dims.result, |[wide, _]| wide);
        let ty = TensorType::new(result, &shape);
        let dims = DotDims {
            lhs_batch: Dims::from_slice(&left.devices),
            rhs_batch: Dims::from_slice(&right.devices),
            lhs_contract: Dims::from_vec(left.rest_of(dims.lhs_contract.iter().copied())),
            rhs_contract: Dims::from_vec(right.rest_of(dims.rhs_contract.iter().copied())),
            result,
        };
        let types = [&left.ty, &right.ty, &ty];
        (self.dot(&dims, [left.value, right.value], types, loc), ty)
    }

    /// How an operand of a product lies that has to be brought together along axes which split what is made
    /// of it: it is stated as other products need it, so that it is not gathered once more in the shape
    /// that it is taken apart into.
    fn together(
        &self,
        sum: &PartialSum,
        known: &[Axes],
        contracted: &[usize],
        split: &[(usize, &[AxisPart])],
    ) -> Option<PartitionSpec> {
        if split.is_empty() {
            return None;
        }
        let kept = |d: usize| split.iter().find(|(dimension, _)| *dimension == d);
        let kept = |d: usize| kept(d).map_or(&[][..], |(_, parts)| parts);
        let made = parts_of(&self.annotations, &sum.at_use);
        let is_needed = contracted.iter().any(|&d| {
            let parts = self.annotations.parts(&known[d]);
            let is_kept = |part: &AxisPart| kept(d).iter().any(|kept| overlap(part, kept));
            let mut others = parts.iter().filter(|part| !is_kept(part));
            others.any(|part| made.iter().any(|made| overlap(part, made)))
        });
        let entries = known
            .iter()
            .enumerate()
            .map(|(d, axes)| match contracted.contains(&d) {
                true => self.annotations.axes(kept(d)),
                false => axes.clone().open(),
            });
        let spec: PartitionSpec = entries.collect();
        let all = parts_of(&self.annotations, &spec);
        let mut pairs = all.iter().enumerate();
        let is_once = pairs.all(|(i, part)| !all[..i].iter().any(|other| overlap(part, other)));
        (is_needed && is_once).then_some(spec)
    }

    fn partial_scatter(
        &mut self,
        sum: &PartialSum,
        (equation, axis, split): (&Equation, usize, &[Split]),
        place: Place,
        loc: Loc,
    ) -> (Ssa, TensorType) {
        let Place {
            graph,
            values,
            block,
        } = place;
        let mut operands: Results = equation.operands.iter().map(|&o| read(values, o)).collect();
        if let Some(lookup) = Lookup::of(equation, block) {
            self.before_lookup(&lookup, (graph, equation), &mut operands, loc);
        }
        let [table, indices, rows] = [0, 1, 2].map(|i| graph.ty(equation.operands[i]));
        let along = |from: usize| -> Vec<(usize, &[AxisPart])> {
            let split = split.iter().map(|s| (from + s.dimension, &s.parts[..]));
            split.collect()
        };
        let (value, rows) = self.in_type_of(sum, (operands[2], rows.clone()), loc);
        let of_rows = self.apart((value, &rows), &along(axis), &sum.kept, loc);
        let of_indices = self.apart((operands[1], indices), &along(0), &sum.kept, loc);
        let leading = sum.kept.iter().map(|part| part.size);
        let shape: Vec<usize> = leading.chain(table.shape.iter().copied()).collect();
        let ty = TensorType::new(rows.dtype, &shape);
        let zeros = match self.annotations.partitioner() {
            Partitioner::Shardy => self.zeros(&ty, loc),
            Partitioner::Gspmd => self.own_zeros(&ty, loc),
        };
        let is_window = |d: &usize| !(axis..axis + indices.rank()).contains(d);
        let at = axis + sum.kept.len();
        let mut text = String::new();
        gather::scatter(
            &mut text,
            &format!(
                "update_window_dims = {}, inserted_window_dims = [{at}], input_batching_dims = {}, \
                 scatter_indices_batching_dims = {}, scatter_dims_to_operand_dims = [{at}], \
                 index_vector_dim = {}",
                List(&of_rows.rest_of((0..rows.rank()).filter(is_window))),
                List(&(0..sum.kept.len()).collect::<Vec<_>>()),
                List(&of_indices.devices),
                of_indices.ty.rank(),
            ),
            (
                &format!("{zeros}, {}, {}", of_indices.value, of_rows.value),
                shardax_core::Combine::Add,
                ty.dtype,
            ),
            &format!(
                "({}, {}, {}) -> {}",
                tensor_type(&ty),
                tensor_type(&of_indices.ty),
                tensor_type(&of_rows.ty),
                tensor_type(&ty)
            ),
        );
        (self.assign(&text, loc), ty)
    }

    fn partial_reduce(
        &mut self,
        sum: &PartialSum,
        (operand, dims, split): (ValueId, &Dims, &[Split]),
        Place { graph, values, .. }: Place,
        loc: Loc,
    ) -> (Ssa, TensorType) {
        let split = split.iter().map(|s| (s.dimension, &s.parts[..]));
        let operand = (read(values, operand), graph.ty(operand).clone());
        let (operand, of) = self.in_type_of(sum, operand, loc);
        let apart = self.apart((operand, &of), &split.collect::<Vec<_>>(), &sum.kept, loc);
        let summed = apart.rest_of(dims.iter().copied());
        let total = self.summed((apart.value, &apart.ty), &summed, loc);
        // Devices come first.
        let left = |d: &usize| !summed.contains(d);
        let is_other = |d: &usize| left(d) && !apart.devices.contains(d);
        let others = (0..apart.ty.rank()).filter(is_other);
        let before = |d: usize| (0..d).filter(left).count();
        let order = apart.devices.iter().copied().chain(others).map(before);
        self.transposed(total, &order.collect::<Vec<_>>(), loc)
    }

    /// Zeros that are not one value with other zeros of the shape: along that, GSPMD would carry how these
    /// are split to whatever else begins with zeros, such as the gradients of a loop over layers.
    fn own_zeros(&mut self, ty: &TensorType, loc: Loc) -> Ssa {
        let scalar = TensorType::scalar(ty.dtype);
        let zero = self.zeros(&scalar, loc);
        let (scalar, ty) = (tensor_type(&scalar), tensor_type(ty));
        let own = self.assign(
            &format!("stablehlo.optimization_barrier {zero} : {scalar}"),
            loc,
        );
        let text = format!("stablehlo.broadcast_in_dim {own}, dims = [] : ({scalar}) -> {ty}");
        self.assign(&text, loc)
    }

    /// Takes the split dimensions of a value apart into devices that are kept and the rest.
    fn apart(
        &mut self,
        (value, from): (Ssa, &TensorType),
        split: &[(usize, &[AxisPart])],
        kept: &[AxisPart],
        loc: Loc,
    ) -> Apart {
        let mut shape = Vec::new();
        let mut devices = vec![0; kept.len()];
        let mut rest = Vec::with_capacity(from.rank());
        for (d, &size) in from.shape.iter().enumerate() {
            let (mut left, mut own) = (size, Vec::new());
            let parts = split.iter().find(|(dimension, _)| *dimension == d);
            for part in parts.iter().flat_map(|(_, parts)| *parts) {
                match kept.iter().position(|one| one == part) {
                    Some(position) => devices[position] = shape.len(),
                    None => own.push(shape.len()),
                }
                shape.push(part.size);
                left /= part.size;
            }
            own.push(shape.len());
            shape.push(left);
            rest.push(own);
        }
        let ty = TensorType::new(from.dtype, &shape);
        let value = self.reshaped(value, from, &ty, loc);
        Apart {
            value,
            ty,
            devices,
            rest,
        }
    }

    fn reshaped(&mut self, value: Ssa, from: &TensorType, to: &TensorType, loc: Loc) -> Ssa {
        let (from, to) = (tensor_type(from), tensor_type(to));
        self.assign(
            &format!("stablehlo.reshape {value} : ({from}) -> {to}"),
            loc,
        )
    }

    fn transposed(
        &mut self,
        (value, from): (Ssa, TensorType),
        permutation: &[usize],
        loc: Loc,
    ) -> (Ssa, TensorType) {
        if permutation.is_sorted() {
            return (value, from);
        }
        let shape: Vec<usize> = permutation.iter().map(|&p| from.shape[p]).collect();
        let ty = TensorType::new(from.dtype, &shape);
        let text = format!(
            "stablehlo.transpose {value}, dims = {} : ({}) -> {}",
            List(permutation),
            tensor_type(&from),
            tensor_type(&ty)
        );
        (self.assign(&text, loc), ty)
    }

    /// A value summed over dimensions.
    fn summed(
        &mut self,
        (value, from): (Ssa, &TensorType),
        dims: &[usize],
        loc: Loc,
    ) -> (Ssa, TensorType) {
        let left = (0..from.rank()).filter(|d| !dims.contains(d));
        let ty = TensorType::new(from.dtype, left.map(|d| from.shape[d]).collect::<Vec<_>>());
        let scalar = tensor_type(&TensorType::scalar(ty.dtype));
        let zero = neutral(Reducer::Sum, ty.dtype);
        let zero = self.assign(&format!("stablehlo.constant dense<{zero}> : {scalar}"), loc);
        let text = format!(
            "stablehlo.reduce({value} init: {zero}) applies stablehlo.add across dimensions = {} : \
             ({}, {scalar}) -> {}",
            List(dims),
            tensor_type(from),
            tensor_type(&ty)
        );
        (self.assign(&text, loc), ty)
    }

    /// States that leading dimensions lie across devices, and the others as told.
    fn lies(
        &mut self,
        leading: &[Axes],
        spec: &PartitionSpec,
        (value, ty): (Ssa, &TensorType),
        loc: Loc,
    ) -> Ssa {
        let entries = leading.iter().chain(spec.entries()).cloned();
        self.stated(&entries.collect(), value, ty, loc)
    }
}
