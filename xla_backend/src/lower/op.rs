//! One StableHLO operation for each primitive.

use shardax_core::ir::split::Entries;
use shardax_core::{
    DType, Reducer, Role, Source, TensorType,
    ir::{Binary, Equation, Graph, Op, Unary, shift_by_padding},
};
use shardax_sharding::PartitionSpec;
use smallvec::smallvec;

use super::constant::dense;
use super::elementwise::{neutral, reducer_name};
use super::lookup::Lookup;
use super::partial::{Place, Wanted};
use super::writer::{
    Array, Joined, List, Loc, Piece, Results, Ssa, Types, Writer, push, tensor_type,
};
use super::{Block, Lowering, Made, Named, Values, elementwise, gather, linalg, read, shift};

impl Lowering<'_> {
    pub(super) fn equation(
        &mut self,
        graph: &Graph,
        equation: &Equation,
        values: &mut Values,
        block: &Block,
    ) {
        let loc = self
            .locations
            .reference(equation.source, &equation.scope, equation.op.name());
        let mut x: Results = equation.operands.iter().map(|&o| read(values, o)).collect();
        if let Op::Gather { dims, .. } | Op::Scatter { dims, .. } = &equation.op {
            self.batches_together((graph, equation, dims), block, &mut x, loc);
        }
        if let Op::Slice { strides, .. } = &equation.op {
            let ty = graph.ty(equation.operands[0]);
            let split = block.split(equation.operands[0]);
            x[0] = self.before_steps(strides, (x[0], &split), ty, loc);
        }
        if let Op::DotGeneral(dims) = &equation.op {
            self.contracted_whole((graph, equation, dims), block, &mut x, loc);
        }
        let lookup = Lookup::of(equation, block);
        if let Some(lookup) = &lookup {
            self.before_lookup(lookup, (graph, equation), &mut x, loc);
        }
        let mut results: Results = match &equation.op {
            Op::Scan(scan) => self.scan((graph, equation, scan), values, block, loc),
            Op::Remat(remat) => {
                let operands = if remat.recomputes {
                    self.barrier(graph, equation, &x, loc)
                } else {
                    x
                };
                let splits = equation.operands.iter().map(|&o| block.split(o)).collect();
                let results = equation.results.iter();
                let gradients: Vec<_> =
                    results.map(|r| block.sums.inside.get(r).cloned()).collect();
                self.region_of(&remat.body, &operands, splits, &gradients)
            }
            Op::OptimizationBarrier => self.barrier(graph, equation, &x, loc),
            Op::Reduce(reducer, dims) => {
                smallvec![match self.extremum_across(graph, equation, block) {
                    Some(extremum) =>
                        self.reduce_ordered((graph, equation), (extremum, dims), x[0], loc),
                    None => self.reduce(graph, equation, (*reducer, dims), x[0], loc),
                }]
            }
            Op::Cond(cond) => self.cond((graph, equation, cond), &x, block, loc),
            Op::While(looped) => self.while_loop((graph, equation, looped), &x, block, loc),
            Op::Custom(custom) => {
                let splits = equation.operands.iter().map(|&o| block.split(o)).collect();
                self.region(&custom.body, &x, splits)
            }
            Op::Foreign(foreign) => self.foreign((graph, equation, foreign), &x, loc),
            Op::Manual(manual) => self.manual((graph, equation, manual), (&x, block), loc),
            Op::Collective(of) => self.collective((graph, equation, of), &x, loc),
            Op::Sort(sort) => self.sort((graph, equation, *sort), &x, loc),
            Op::Cumulative(cumulative) => {
                smallvec![self.cumulative((graph, equation, *cumulative), (x[0], block), loc)]
            }
            Op::Concatenate(dim) if block.shifts.contains(&equation.results[0]) => {
                let types = [0, 1].map(|i| graph.ty(equation.operands[i]));
                let splits = equation.operands.iter().map(|&o| block.split(o)).collect();
                self.region(&shift_by_padding(equation, *dim, types), &x, splits)
            }
            Op::ReduceWindow(reducer, window) => {
                let types = [equation.operands[0], equation.results[0]].map(|v| graph.ty(v));
                smallvec![self.reduce_window((*reducer, window), types, x[0], loc)]
            }
            Op::Scatter { dims, combine }
                if let Some(pair) = self.pair_of_updates((graph, equation), (dims, *combine)) =>
            {
                let splits = equation.operands.iter().map(|&o| block.split(o)).collect();
                self.region(&pair, &x, splits)
            }
            Op::Scatter { dims, combine }
                if self.extremum_across(graph, equation, block).is_some() =>
            {
                smallvec![self.scatter_ordered((graph, equation), (dims, *combine), &x, loc)]
            }
            Op::Cholesky => {
                smallvec![self.cholesky(graph.ty(equation.results[0]), x[0], loc)]
            }
            Op::Unary(Unary::Erfc) if graph.ty(equation.results[0]).dtype.bits() == 8 => {
                let ty = graph.ty(equation.results[0]);
                smallvec![self.widened(Unary::Erfc, ty, x[0], loc)]
            }
            Op::Unary(Unary::Atan) if graph.ty(equation.results[0]).dtype.is_float() => {
                smallvec![self.atan(graph.ty(equation.results[0]), x[0], loc)]
            }
            Op::Binary(Binary::Atan2) if graph.ty(equation.results[0]).dtype.is_float() => {
                smallvec![self.atan2(graph.ty(equation.results[0]), [x[0], x[1]], loc)]
            }
            Op::Unary(Unary::PopulationCount)
                if graph.ty(equation.results[0]).dtype == DType::I4 =>
            {
                let ty = graph.ty(equation.results[0]);
                smallvec![self.population_of_4(ty, x[0], loc)]
            }
            Op::Binary(binary @ (Binary::MulOrZero | Binary::DivOrZero)) => {
                let ty = graph.ty(equation.results[0]);
                smallvec![self.or_zero(*binary, ty, [x[0], x[1]], loc)]
            }
            Op::Fft(fft) => {
                let types = [equation.operands[0], equation.results[0]].map(|v| graph.ty(v));
                smallvec![self.fft(fft, types, x[0], loc)]
            }
            Op::DotGeneral(dims) => {
                let is_wide = block.wide.contains(&equation.results[0]);
                smallvec![self.product(graph, equation, is_wide, loc, |of, types| {
                    of.dot(dims, [x[0], x[1]], types, loc)
                })]
            }
            Op::Binary(Binary::Polygamma) => {
                let ty = graph.ty(equation.results[0]);
                smallvec![self.polygamma(ty, [x[0], x[1]], loc)]
            }
            Op::Conv(conv) => {
                let is_wide = block.wide.contains(&equation.results[0]);
                let summed = self.summed_by_all(conv, equation.operands[0], block);
                smallvec![self.product(graph, equation, is_wide, loc, |of, types| {
                    of.conv((conv, summed), [x[0], x[1]], types, loc)
                })]
            }
            // XLA's CPU compiler loses numbers on this way in one step.
            Op::Convert(to)
                if to.bits() == 8
                    && to.is_float()
                    && graph.ty(equation.operands[0]).dtype == DType::F64 =>
            {
                let shape = &graph.ty(equation.operands[0]).shape;
                let [from, middle, to] = [DType::F64, DType::F32, *to]
                    .map(|dtype| tensor_type(&TensorType::new(dtype, shape)));
                let text = format!("stablehlo.convert {} : ({from}) -> {middle}", x[0]);
                let single = self.assign(&text, loc);
                let text = format!("stablehlo.convert {single} : ({middle}) -> {to}");
                smallvec![self.assign(&text, loc)]
            }
            Op::Place(memory) => {
                let ty = tensor_type(graph.ty(equation.results[0]));
                let text = format!(
                    "stablehlo.custom_call @annotate_device_placement({}) {{has_side_effect = true, \
                     mhlo.frontend_attributes = {{_xla_buffer_placement = \"{}\"}}}} : ({ty}) -> {ty}",
                    x[0],
                    memory.name()
                );
                smallvec![self.assign(&text, loc)]
            }
            Op::Name(of) => {
                let ty = graph.ty(equation.operands[0]);
                self.name(&of.name, ty, equation.source, x[0]);
                match self.annotations.named(of, x[0], ty) {
                    Ok(None) => x,
                    Ok(Some(text)) => smallvec![self.assign(&text, loc)],
                    Err(faults) => {
                        self.fault(
                            format!("a value {ty} named `{}`", of.name),
                            equation.source,
                            faults,
                        );
                        x
                    }
                }
            }
            // The value itself: a derivative is all that it stops.
            Op::StopGradient(_) => x,
            Op::Shard(constraint) => {
                let ty = graph.ty(equation.operands[0]);
                let sum = block.sums.annotated.get(&equation.results[0]);
                let place = Place {
                    graph,
                    values,
                    block,
                };
                let is_used = constraint.role == Role::ParameterAtUse;
                let split = block.split(equation.operands[0]);
                let way = self
                    .way_to(constraint, &split, ty)
                    .or_else(|| self.product_before(constraint, equation, block, ty));
                let operand = match (sum, way) {
                    (Some(sum), _) => self.partial_sum(sum, place),
                    (None, Some(spec)) => self.stated(&spec, x[0], ty, loc),
                    (None, None) => x[0],
                };
                match self.annotations.constraint(constraint, operand, ty) {
                    Ok(None) => x,
                    // To lie as at use would undo the sum's last steps.
                    Ok(Some(_)) if is_used && self.summed.contains(&operand) => smallvec![operand],
                    Ok(Some(text)) => smallvec![self.assign(&text, loc)],
                    Err(faults) => {
                        let names: Vec<String> =
                            constraint.dims.iter().map(|d| d.to_string()).collect();
                        let what = format!("a value {ty} annotated ({})", names.join(", "));
                        self.fault(what, equation.source, faults);
                        x
                    }
                }
            }
            _ => {
                let types = &self.types;
                let write = |out: &mut String| simple(out, graph, equation, &x, types);
                smallvec![self.out.assign(loc, write)]
            }
        };
        let stated = match &equation.op {
            Op::Concatenate(_) | Op::Pad { .. } => {
                shift::in_place(graph, equation, block, &self.annotations)
            }
            Op::DotGeneral(_) | Op::Reshape(_) | Op::Transpose(_) => {
                block.sunk.get(&equation.results[0]).cloned()
            }
            _ => None,
        };
        if let Some(spec) = stated {
            let ty = graph.ty(equation.results[0]);
            results = smallvec![self.stated(&spec, results[0], ty, loc)];
        }
        if let Some(lookup) = &lookup {
            self.after_lookup(lookup, (graph, equation), &mut results, loc);
        }
        if let Some(made) = &mut self.made {
            for &result in &results {
                made.entry(result).or_insert(loc.0);
            }
        }
        if let Op::Convert(_) | Op::Shard(_) = equation.op {
            let position = self.argument_position(read(values, equation.operands[0]));
            self.versions.extend(position.map(|i| (results[0], i)));
        }
        for (result, ssa) in equation.results.iter().zip(results) {
            values[result.index()] = Some(ssa);
        }
    }

    /// Keeps what a name was given to.
    fn name(&mut self, name: &str, ty: &TensorType, source: Source, value: Ssa) {
        let made = self.made.as_ref().and_then(|made| made.get(&value));
        let made = match (value.argument_position(), made) {
            (Some(position), _) => Made::Argument(position),
            (None, Some(&number)) => Made::Location(number),
            (None, None) => Made::Unknown,
        };
        self.named.push(Named {
            name: name.to_owned(),
            ty: ty.clone(),
            source,
            made,
        });
    }

    /// A value that is stated to lie so.
    pub(super) fn stated(
        &mut self,
        spec: &PartitionSpec,
        value: Ssa,
        ty: &TensorType,
        loc: Loc,
    ) -> Ssa {
        let text = self.annotations.statement(spec, value, ty);
        self.assign(&text, loc)
    }

    pub(super) fn assign(&mut self, text: &str, loc: Loc) -> Ssa {
        self.out.assign(loc, |out| out.push_str(text))
    }

    fn reduce(
        &mut self,
        graph: &Graph,
        equation: &Equation,
        (reducer, dims): (Reducer, &[usize]),
        x: Ssa,
        loc: Loc,
    ) -> Ssa {
        let ty = graph.ty(equation.operands[0]);
        let scalar = self.types.spelled(&TensorType::scalar(ty.dtype));
        let operand = self.types.spelled(ty);
        let result = self.types.spelled(graph.ty(equation.results[0]));
        let initial = self.out.assign(loc, |out| {
            let value = neutral(reducer, ty.dtype);
            push!(out, "stablehlo.constant dense<" value "> : " scalar);
        });
        self.out.assign(loc, |out| {
            let name = reducer_name(reducer);
            push!(out, "stablehlo.reduce(" x " init: " initial);
            push!(out, ") applies stablehlo." name " across dimensions = " (List(dims)));
            push!(out, " : (" operand ", " scalar ") -> " result);
        })
    }

    /// The equations of a region, in place.
    pub(super) fn region(
        &mut self,
        body: &Graph,
        operands: &[Ssa],
        splits: Vec<Entries>,
    ) -> Results {
        self.region_of(body, operands, splits, &[])
    }

    /// The equations of a region, in place, of which some results are gradients that lie as told.
    fn region_of(
        &mut self,
        body: &Graph,
        operands: &[Ssa],
        splits: Vec<Entries>,
        gradients: &[Option<Wanted>],
    ) -> Results {
        let mut values: Values = vec![None; body.value_count()];
        for (&input, &operand) in body.inputs().iter().zip(operands) {
            values[input.index()] = Some(operand);
        }
        let block = self.equations_of(body, &mut values, splits, gradients);
        let place = Place {
            graph: body,
            values: &values,
            block: &block,
        };
        let outputs = body.outputs().iter().enumerate();
        let results = outputs.map(|(i, &output)| match block.sums.returned.get(&i) {
            Some(sum) => self.partial_sum(sum, place),
            None => read(&values, output),
        });
        results.collect()
    }

    fn barrier(&mut self, graph: &Graph, equation: &Equation, x: &[Ssa], loc: Loc) -> Results {
        if x.is_empty() {
            return Results::new();
        }
        let ssa = self.out.fresh();
        let names: Vec<String> = x.iter().map(Ssa::to_string).collect();
        let types: Vec<String> = equation
            .operands
            .iter()
            .map(|&o| tensor_type(graph.ty(o)))
            .collect();
        let count = if x.len() == 1 {
            String::new()
        } else {
            format!(":{}", x.len())
        };
        self.out.line(format_args!(
            "{ssa}{count} = stablehlo.optimization_barrier {} : {} {loc}",
            names.join(", "),
            types.join(", ")
        ));
        Writer::results(ssa, x.len())
    }
}

/// Writes an operation that has one result and no region.
fn simple(out: &mut String, graph: &Graph, equation: &Equation, x: &[Ssa], types: &Types) {
    let operand = |i: usize| graph.ty(equation.operands[i]);
    let result = types.spelled(graph.ty(equation.results[0]));
    let all = Joined(x);
    let functional = Functional(graph, equation, types);
    match &equation.op {
        Op::Constant(literal) => push!(out, "stablehlo.constant " (dense(literal)) " : " result),
        Op::Iota { dimension, .. } => push!(out, "stablehlo.iota dim = " dimension " : " result),
        Op::Unary(unary) => elementwise::unary(out, *unary, &all, &functional, &result),
        Op::Binary(binary) => {
            let dtype = operand(0).dtype;
            elementwise::binary(out, *binary, dtype, &all, &functional, &result);
        }
        Op::Compare(comparison) => {
            let direction = elementwise::direction(*comparison);
            let kind = elementwise::compare_type(operand(0).dtype);
            push!(out, "stablehlo.compare " direction ", " all ", " kind " : " functional);
        }
        Op::Select => {
            let predicate = types.spelled(operand(0));
            push!(out, "stablehlo.select " all " : " predicate ", " result);
        }
        Op::Convert(_) => push!(out, "stablehlo.convert " all " : " functional),
        Op::BitcastConvert(_) => push!(out, "stablehlo.bitcast_convert " all " : " functional),
        Op::Broadcast { dims, .. } => {
            let dims = List(dims);
            push!(out, "stablehlo.broadcast_in_dim " all ", dims = " dims " : " functional);
        }
        Op::Reshape(_) => push!(out, "stablehlo.reshape " all " : " functional),
        Op::Transpose(permutation) => {
            let dims = List(permutation);
            push!(out, "stablehlo.transpose " all ", dims = " dims " : " functional);
        }
        Op::Slice {
            starts,
            limits,
            strides,
        } => {
            push!(out, "\"stablehlo.slice\"(" all ") <{start_indices = " (Array(starts)));
            push!(out, ", limit_indices = " (Array(limits)) ", strides = " (Array(strides)));
            push!(out, "}> : " functional);
        }
        Op::Pad {
            low,
            high,
            interior,
        } => {
            push!(out, "\"stablehlo.pad\"(" all ") <{edge_padding_low = " (Array(low)));
            push!(out, ", edge_padding_high = " (Array(high)) ", interior_padding = ");
            push!(out, (Array(interior)) "}> : " functional);
        }
        Op::Concatenate(dimension) => {
            push!(out, "stablehlo.concatenate " all ", dim = " dimension " : " functional);
        }
        Op::Reverse(dims) => {
            push!(out, "stablehlo.reverse " all ", dims = " (List(dims)) " : " result);
        }
        Op::DynamicSlice(sizes) => {
            let sizes = List(sizes);
            push!(out, "stablehlo.dynamic_slice " all ", sizes = " sizes " : " functional);
        }
        Op::DynamicUpdateSlice => {
            push!(out, "stablehlo.dynamic_update_slice " all " : " functional);
        }
        Op::Gather { dims, sizes } => {
            let numbers = gather::gather_numbers(dims, operand(1).rank());
            push!(out, "\"stablehlo.gather\"(" all ") <{dimension_numbers = ");
            push!(out, "#stablehlo.gather<" numbers ">, slice_sizes = " (Array(sizes)));
            push!(out, ", indices_are_sorted = false}> : " functional);
        }
        Op::Scatter { dims, combine } => gather::scatter(
            out,
            &gather::scatter_numbers(dims, operand(1).rank()),
            (&all, *combine, operand(0).dtype),
            &functional,
        ),
        Op::TriangularSolve(solve) => linalg::triangular_solve(out, *solve, &all, &functional),
        Op::ReducePrecision { exponent, mantissa } => {
            push!(out, "stablehlo.reduce_precision " all);
            push!(out, ", format = e" exponent "m" mantissa " : " result);
        }
        // Lowered above, or gone before: a tangent that is left over is refused by XLA by its name.
        Op::Reduce(..)
        | Op::ReduceWindow(..)
        | Op::Cholesky
        | Op::Shard(_)
        | Op::OptimizationBarrier
        | Op::StopGradient(_)
        | Op::Name(_)
        | Op::Place(_)
        | Op::DotGeneral(_)
        | Op::Fft(_)
        | Op::Conv(_)
        | Op::Cumulative(_)
        | Op::Sort(_)
        | Op::Scan(_)
        | Op::Cond(_)
        | Op::While(_)
        | Op::Remat(_)
        | Op::Custom(_)
        | Op::CustomLinear(_)
        | Op::Foreign(_)
        | Op::Manual(_)
        | Op::Collective(_)
        | Op::Tangent(_) => push!(out, "shardax." (equation.op.name()) " " all " : " functional),
    }
}

/// `(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
struct Functional<'a>(&'a Graph, &'a Equation, &'a Types);

impl Piece for Functional<'_> {
    fn push_to(&self, text: &mut String) {
        let Functional(graph, equation, types) = self;
        text.push('(');
        for (i, operand) in equation.operands.iter().enumerate() {
            text.push_str(if i == 0 { "" } else { ", " });
            text.push_str(&types.spelled(graph.ty(*operand)));
        }
        let result = types.spelled(graph.ty(equation.results[0]));
        push!(text, ") -> " result);
    }
}
