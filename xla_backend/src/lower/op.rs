//! One StableHLO operation for each primitive.

use std::fmt::{self, Write};

use shardax_core::{
    Binary, Comparison, DType, DotDims, Equation, Graph, Op, Reducer, TensorType, Unary,
};
use shardax_sharding::Axes;
use smallvec::smallvec;

use super::constant::dense;
use super::writer::{Array, List, Results, Ssa, Writer, tensor_type};
use super::{Block, Lowering, Values, read};

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
        let x: Results = equation.operands.iter().map(|&o| read(values, o)).collect();
        let results: Results = match &equation.op {
            Op::Scan(scan) => self.scan((graph, equation, scan), values, block, &loc),
            Op::Remat(remat) => {
                let operands = if remat.recomputes {
                    self.barrier(graph, equation, &x, &loc)
                } else {
                    x
                };
                let splits = equation.operands.iter().map(|&o| block.split(o)).collect();
                self.region(&remat.body, &operands, splits)
            }
            Op::OptimizationBarrier => self.barrier(graph, equation, &x, &loc),
            Op::Reduce(reducer, dims) => {
                smallvec![self.reduce(graph, equation, (*reducer, dims), x[0], &loc)]
            }
            // The value itself: a derivative is all that it stops.
            Op::StopGradient => x,
            Op::Shard(constraint) => {
                let ty = graph.ty(equation.operands[0]);
                let operand = match block.sums.get(&equation.results[0]) {
                    Some(sum) => self.partial_sum(graph, sum, values, &loc),
                    None => x[0],
                };
                match self.annotations.constraint(constraint, operand, ty) {
                    Ok(None) => x,
                    Ok(Some(text)) => smallvec![self.assign(&text, &loc)],
                    Err(faults) => {
                        let names: Vec<String> =
                            constraint.dims.iter().map(|d| d.to_string()).collect();
                        let what = format!("a value {ty} annotated ({})", names.join(", "));
                        self.fault(what, equation.source, faults);
                        x
                    }
                }
            }
            op => {
                let ssa = self.out.fresh();
                self.out
                    .assign(ssa, &loc, |out| simple(out, op, graph, equation, &x, block));
                smallvec![ssa]
            }
        };
        if let Op::Convert(_) | Op::Shard(_) = equation.op {
            let position = self.argument_position(read(values, equation.operands[0]));
            self.versions.extend(position.map(|i| (results[0], i)));
        }
        for (result, ssa) in equation.results.iter().zip(results) {
            values[result.index()] = Some(ssa);
        }
    }

    pub(super) fn assign(&mut self, text: &str, loc: &str) -> Ssa {
        let ssa = self.out.fresh();
        self.out.assign(ssa, loc, |out| {
            out.push_str(text);
            Ok(())
        });
        ssa
    }

    fn reduce(
        &mut self,
        graph: &Graph,
        equation: &Equation,
        (reducer, dims): (Reducer, &[usize]),
        x: Ssa,
        loc: &str,
    ) -> Ssa {
        let ty = graph.ty(equation.operands[0]);
        let scalar = tensor_type(&TensorType::scalar(ty.dtype));
        let value = neutral(reducer, ty.dtype);
        let initial = self.assign(
            &format!("stablehlo.constant dense<{value}> : {scalar}"),
            loc,
        );
        let text = format!(
            "stablehlo.reduce({} init: {initial}) applies stablehlo.{} across dimensions = {} : \
             ({}, {scalar}) -> {}",
            x,
            reducer_name(reducer),
            List(dims),
            tensor_type(ty),
            tensor_type(graph.ty(equation.results[0]))
        );
        self.assign(&text, loc)
    }

    /// The equations of a region, in place.
    fn region(&mut self, body: &Graph, operands: &[Ssa], splits: Vec<Vec<Axes>>) -> Results {
        let mut values: Values = vec![None; body.value_count()];
        for (&input, &operand) in body.inputs().iter().zip(operands) {
            values[input.index()] = Some(operand);
        }
        self.equations(body, &mut values, splits);
        body.outputs().iter().map(|&o| read(&values, o)).collect()
    }

    fn barrier(&mut self, graph: &Graph, equation: &Equation, x: &[Ssa], loc: &str) -> Results {
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
fn simple(
    out: &mut String,
    op: &Op,
    graph: &Graph,
    equation: &Equation,
    x: &[Ssa],
    block: &Block,
) -> fmt::Result {
    let operand = |i: usize| graph.ty(equation.operands[i]);
    let result = block.ty(graph, equation.results[0]);
    let all = Joined(x);
    let functional = Functional(graph, equation, block);
    match op {
        Op::Constant(literal) => write!(out, "stablehlo.constant {} : {result}", dense(literal)),
        Op::Iota { dimension, .. } => write!(out, "stablehlo.iota dim = {dimension} : {result}"),
        Op::Unary(Unary::Erf) => write!(out, "chlo.erf {all} : {result} -> {result}"),
        Op::Unary(unary) => write!(out, "stablehlo.{} {all} : {result}", unary_name(*unary)),
        Op::Binary(binary) => {
            write!(
                out,
                "stablehlo.{} {all} : {result}",
                binary_name(*binary, operand(0).dtype)
            )
        }
        Op::Compare(comparison) => write!(
            out,
            "stablehlo.compare {}, {all}, {} : {functional}",
            direction(*comparison),
            compare_type(operand(0).dtype)
        ),
        Op::Select => {
            let predicate = block.ty(graph, equation.operands[0]);
            write!(out, "stablehlo.select {all} : {predicate}, {result}")
        }
        Op::Convert(_) => write!(out, "stablehlo.convert {all} : {functional}"),
        Op::BitcastConvert(_) => write!(out, "stablehlo.bitcast_convert {all} : {functional}"),
        Op::Broadcast { dims, .. } => {
            write!(
                out,
                "stablehlo.broadcast_in_dim {all}, dims = {} : {functional}",
                List(dims)
            )
        }
        Op::Reshape(_) => write!(out, "stablehlo.reshape {all} : {functional}"),
        Op::Transpose(permutation) => {
            write!(
                out,
                "stablehlo.transpose {all}, dims = {} : {functional}",
                List(permutation)
            )
        }
        Op::Slice {
            starts,
            limits,
            strides,
        } => write!(
            out,
            "\"stablehlo.slice\"({all}) <{{start_indices = {}, limit_indices = {}, strides = {}}}> : {functional}",
            Array(starts),
            Array(limits),
            Array(strides)
        ),
        Op::Pad {
            low,
            high,
            interior,
        } => write!(
            out,
            "\"stablehlo.pad\"({all}) <{{edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}}}> : {functional}",
            Array(low),
            Array(high),
            Array(interior)
        ),
        Op::Concatenate(dimension) => {
            write!(
                out,
                "stablehlo.concatenate {all}, dim = {dimension} : {functional}"
            )
        }
        Op::Reverse(dims) => write!(
            out,
            "stablehlo.reverse {all}, dims = {} : {result}",
            List(dims)
        ),
        Op::DotGeneral(dims) => write!(
            out,
            "stablehlo.dot_general {all}, {} : {functional}",
            dot(dims)
        ),
        Op::DynamicSlice(sizes) => {
            write!(
                out,
                "stablehlo.dynamic_slice {all}, sizes = {} : {functional}",
                List(sizes)
            )
        }
        Op::DynamicUpdateSlice => {
            write!(out, "stablehlo.dynamic_update_slice {all} : {functional}")
        }
        Op::Take { axis } => {
            let sizes: Vec<usize> = one_along(&operand(0).shape, *axis);
            write!(
                out,
                "\"stablehlo.gather\"({all}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {}, \
                 collapsed_slice_dims = [{axis}], start_index_map = [{axis}], index_vector_dim = {}>, \
                 slice_sizes = {}, indices_are_sorted = false}}> : {functional}",
                List(&window_dims(operand(0).rank(), operand(1).rank(), *axis)),
                operand(1).rank(),
                Array(&sizes)
            )
        }
        Op::ScatterAdd { axis } => scatter(
            out,
            &format!(
                "update_window_dims = {}, inserted_window_dims = [{axis}], \
                 scatter_dims_to_operand_dims = [{axis}], index_vector_dim = {}",
                List(&window_dims(operand(0).rank(), operand(1).rank(), *axis)),
                operand(1).rank()
            ),
            &all,
            operand(0).dtype,
            &functional,
        ),
        Op::TakeAlong { axis } => {
            let batch = others(operand(0).rank(), *axis);
            write!(
                out,
                "\"stablehlo.gather\"({all}) <{{dimension_numbers = #stablehlo.gather<\
                 collapsed_slice_dims = [{axis}], operand_batching_dims = {batch}, \
                 start_indices_batching_dims = {batch}, start_index_map = [{axis}], \
                 index_vector_dim = {}>, slice_sizes = {}, indices_are_sorted = false}}> : {functional}",
                operand(1).rank(),
                Array(&vec![1; operand(0).rank()]),
                batch = List(&batch)
            )
        }
        Op::ScatterAddAlong { axis } => {
            let batch = others(operand(0).rank(), *axis);
            scatter(
                out,
                &format!(
                    "inserted_window_dims = [{axis}], input_batching_dims = {batch}, \
                     scatter_indices_batching_dims = {batch}, scatter_dims_to_operand_dims = [{axis}], \
                     index_vector_dim = {}",
                    operand(1).rank(),
                    batch = List(&batch)
                ),
                &all,
                operand(0).dtype,
                &functional,
            )
        }
        // Lowered above, or gone before: a tangent that is left over is refused by XLA by its name.
        Op::Reduce(..)
        | Op::Shard(_)
        | Op::OptimizationBarrier
        | Op::StopGradient
        | Op::Scan(_)
        | Op::Remat(_)
        | Op::Tangent(_) => write!(out, "shardax.{} {all} : {functional}", op.name()),
    }
}

fn unary_name(unary: Unary) -> &'static str {
    match unary {
        Unary::Abs => "abs",
        Unary::Cos => "cosine",
        Unary::Erf => "erf",
        Unary::Exp => "exponential",
        Unary::Expm1 => "exponential_minus_one",
        Unary::Floor => "floor",
        Unary::Log => "log",
        Unary::Log1p => "log_plus_one",
        Unary::Logistic => "logistic",
        Unary::Neg => "negate",
        Unary::Not => "not",
        Unary::Rsqrt => "rsqrt",
        Unary::Sign => "sign",
        Unary::Sin => "sine",
        Unary::Sqrt => "sqrt",
        Unary::Tanh => "tanh",
    }
}

/// A shift to the right fills with the sign bit where there is one.
fn binary_name(binary: Binary, dtype: DType) -> &'static str {
    match binary {
        Binary::Add => "add",
        Binary::And => "and",
        Binary::Div => "divide",
        Binary::Max => "maximum",
        Binary::Min => "minimum",
        Binary::Mul => "multiply",
        Binary::Or => "or",
        Binary::Pow => "power",
        Binary::Rem => "remainder",
        Binary::ShiftLeft => "shift_left",
        Binary::ShiftRight if dtype.is_signed_integer() => "shift_right_arithmetic",
        Binary::ShiftRight => "shift_right_logical",
        Binary::Sub => "subtract",
        Binary::Xor => "xor",
    }
}

fn direction(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq => "EQ",
        Comparison::Ne => "NE",
        Comparison::Lt => "LT",
        Comparison::Le => "LE",
        Comparison::Gt => "GT",
        Comparison::Ge => "GE",
    }
}

fn compare_type(dtype: DType) -> &'static str {
    match dtype {
        _ if dtype.is_differentiable() => "FLOAT",
        _ if dtype.is_signed_integer() => "SIGNED",
        _ => "UNSIGNED",
    }
}

fn dot(dims: &DotDims) -> String {
    let contracting = format!(
        "contracting_dims = {} x {}, precision = [DEFAULT, DEFAULT]",
        List(&dims.lhs_contract),
        List(&dims.rhs_contract)
    );
    if dims.lhs_batch.is_empty() {
        return contracting;
    }
    format!(
        "batching_dims = {} x {}, {contracting}",
        List(&dims.lhs_batch),
        List(&dims.rhs_batch)
    )
}

/// The value that changes nothing.
pub(super) fn neutral(reducer: Reducer, dtype: DType) -> String {
    let extremum = |lowest: bool| match dtype {
        DType::Bool => (!lowest).to_string(),
        DType::F16 => if lowest { "0xFC00" } else { "0x7C00" }.to_owned(),
        DType::BF16 => if lowest { "0xFF80" } else { "0x7F80" }.to_owned(),
        DType::F32 => if lowest { "0xFF800000" } else { "0x7F800000" }.to_owned(),
        DType::F64 => if lowest {
            "0xFFF0000000000000"
        } else {
            "0x7FF0000000000000"
        }
        .to_owned(),
        DType::F8E5M2 => if lowest { "0xFC" } else { "0x7C" }.to_owned(),
        // No infinities: the largest finite numbers.
        DType::F8E4M3FN => if lowest { "0xFE" } else { "0x7E" }.to_owned(),
        dtype if dtype.is_unsigned_integer() => {
            if lowest {
                "0".to_owned()
            } else {
                (u64::MAX >> (64 - dtype.bits())).to_string()
            }
        }
        dtype => {
            let lowest_value = i64::MIN >> (64 - dtype.bits());
            if lowest { lowest_value } else { !lowest_value }.to_string()
        }
    };
    match (reducer, dtype) {
        (Reducer::Max, _) => extremum(true),
        (Reducer::Min, _) => extremum(false),
        (Reducer::And, DType::Bool) => "true".to_owned(),
        (Reducer::Sum | Reducer::Or, DType::Bool) => "false".to_owned(),
        (Reducer::And, dtype) if dtype.is_unsigned_integer() => {
            (u64::MAX >> (64 - dtype.bits())).to_string()
        }
        (Reducer::And, _) => "-1".to_owned(),
        (Reducer::Sum | Reducer::Or, DType::C64) => "(0.0, 0.0)".to_owned(),
        (Reducer::Sum | Reducer::Or, dtype) if dtype.is_float() => "0.0".to_owned(),
        (Reducer::Sum | Reducer::Or, _) => "0".to_owned(),
    }
}

fn reducer_name(reducer: Reducer) -> &'static str {
    match reducer {
        Reducer::Sum => "add",
        Reducer::Max => "maximum",
        Reducer::Min => "minimum",
        Reducer::And => "and",
        Reducer::Or => "or",
    }
}

/// Writes a scatter that adds; `dimensions` are the attributes of its dimension numbers.
pub(super) fn scatter(
    out: &mut String,
    dimensions: &str,
    operands: &dyn fmt::Display,
    dtype: DType,
    functional: &dyn fmt::Display,
) -> fmt::Result {
    let element = tensor_type(&TensorType::scalar(dtype));
    write!(
        out,
        "\"stablehlo.scatter\"({operands}) <{{scatter_dimension_numbers = #stablehlo.scatter<{dimensions}>, \
         indices_are_sorted = false, unique_indices = false}}> ({{\n\
         ^bb0(%old: {element}, %new: {element}):\n\
         %sum = stablehlo.add %old, %new : {element}\n\
         stablehlo.return %sum : {element}\n\
         }}) : {functional}"
    )
}

/// `%1, %2`
struct Joined<'a>(&'a [Ssa]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ssa) in self.0.iter().enumerate() {
            write!(f, "{}{ssa}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// `(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
struct Functional<'a>(&'a Graph, &'a Equation, &'a Block<'a>);

impl fmt::Display for Functional<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Functional(graph, equation, block) = self;
        f.write_str("(")?;
        for (i, operand) in equation.operands.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            f.write_str(block.ty(graph, *operand))?;
        }
        f.write_str(") -> ")?;
        f.write_str(block.ty(graph, equation.results[0]))
    }
}

/// Result dimensions of a `take` that come from the operand.
fn window_dims(rank: usize, index_rank: usize, axis: usize) -> Vec<usize> {
    (0..axis)
        .chain(axis + index_rank..rank - 1 + index_rank)
        .collect()
}

fn one_along(shape: &[usize], axis: usize) -> Vec<usize> {
    shape
        .iter()
        .enumerate()
        .map(|(d, &size)| if d == axis { 1 } else { size })
        .collect()
}

fn others(rank: usize, axis: usize) -> Vec<usize> {
    (0..rank).filter(|&d| d != axis).collect()
}
