//! The printed form of a graph.
//!
//! ```text
//! (a: f32[8,64], b: f32[64,10]) {
//!   c = dot_general a b contract=1,0 : f32[8,10]
//!   d = reduce_sum c dims=[0,1] : f32[]
//!   return d
//! }
//! ```

use std::fmt;

use super::{Graph, ValueId};
use shardax_sharding::Role;

use crate::op::{CollectiveOp, Conv, DotDims, GatherDims, ManualAxis, Op, Target};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_graph(f, self, 0)?;
        f.write_str("\n")
    }
}

fn write_graph(f: &mut fmt::Formatter<'_>, graph: &Graph, depth: usize) -> fmt::Result {
    let names = Names::of(graph);
    f.write_str("(")?;
    for (i, &input) in graph.inputs.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}{}: {}", names.get(input), graph.ty(input))?;
    }
    f.write_str(") {\n")?;
    let indent = "  ".repeat(depth + 1);
    for equation in &graph.equations {
        f.write_str(&indent)?;
        write_list(f, equation.results.iter().map(|&r| names.get(r)), ", ")?;
        write!(f, " = {}", equation.op.name())?;
        for &operand in &equation.operands {
            write!(f, " {}", names.get(operand))?;
        }
        write_attributes(f, &equation.op)?;
        f.write_str(" : ")?;
        write_list(f, equation.results.iter().map(|&r| graph.ty(r)), ", ")?;
        let regions = equation.op.regions();
        for (name, region) in &regions {
            match regions.len() {
                1 => f.write_str(" ")?,
                _ => write!(f, " {name} ")?,
            }
            write_graph(f, region, depth + 1)?;
        }
        f.write_str("\n")?;
    }
    write!(f, "{indent}return ")?;
    write_list(f, graph.outputs.iter().map(|&o| names.get(o)), ", ")?;
    write!(f, "\n{}}}", "  ".repeat(depth))
}

fn write_attributes(f: &mut fmt::Formatter<'_>, op: &Op) -> fmt::Result {
    match op {
        Op::Constant(literal) => write!(f, " {literal:?}"),
        Op::Iota { dimension, .. } => write!(f, " dimension={dimension}"),
        Op::Broadcast { dims, .. } => write!(f, " dims={dims:?}"),
        Op::Transpose(permutation) => write!(f, " permutation={permutation:?}"),
        Op::Slice {
            starts,
            limits,
            strides,
        } => {
            write!(f, " starts={starts:?} limits={limits:?}")?;
            if strides.iter().any(|&s| s != 1) {
                write!(f, " strides={strides:?}")?;
            }
            Ok(())
        }
        Op::Pad {
            low,
            high,
            interior,
        } => write!(f, " low={low:?} high={high:?} interior={interior:?}"),
        Op::Concatenate(dimension) => write!(f, " dimension={dimension}"),
        Op::Reverse(dims) | Op::Reduce(_, dims) => write!(f, " dims={dims:?}"),
        Op::DotGeneral(dims) => write_dot(f, dims),
        Op::DynamicSlice(sizes) => write!(f, " sizes={sizes:?}"),
        Op::Gather { dims, sizes } => {
            let windows = write_gather(f, dims, sizes.len())?;
            if windows {
                write!(f, " sizes={sizes:?}")?;
            }
            Ok(())
        }
        Op::Scatter { dims, .. } => {
            let rank = dims.offset.len() + dims.collapsed.len() + dims.operand_batch.len();
            write_gather(f, dims, rank).map(|_| ())
        }
        Op::Conv(conv) => write_conv(f, conv),
        Op::ReduceWindow(_, window) => {
            write!(f, " sizes={:?} strides={:?}", window.sizes, window.strides)?;
            if window.padding.iter().any(|&p| p != (0, 0)) {
                write!(f, " padding={:?}", window.padding)?;
            }
            if window.base_dilation.iter().any(|&d| d != 1) {
                write!(f, " base_dilation={:?}", window.base_dilation)?;
            }
            if window.window_dilation.iter().any(|&d| d != 1) {
                write!(f, " window_dilation={:?}", window.window_dilation)?;
            }
            Ok(())
        }
        Op::Cumulative(cumulative) => {
            let reverse = if cumulative.reverse { " reverse" } else { "" };
            write!(f, " dim={}{reverse}", cumulative.dim)
        }
        Op::Sort(sort) => {
            let descending = if sort.descending { " descending" } else { "" };
            write!(f, " dim={} keys={}{descending}", sort.dim, sort.keys)
        }
        Op::TriangularSolve(solve) => {
            let flags = [
                (solve.left, "left"),
                (solve.lower, "lower"),
                (solve.transpose, "transpose"),
                (solve.unit_diagonal, "unit_diagonal"),
            ];
            flags
                .iter()
                .filter(|(set, _)| *set)
                .try_for_each(|(_, name)| write!(f, " {name}"))
        }
        Op::Fft(fft) => write!(f, " {:?} lengths={:?}", fft.kind, fft.lengths),
        Op::ReducePrecision { exponent, mantissa } => {
            write!(f, " exponent={exponent} mantissa={mantissa}")
        }
        Op::Name(of) => write!(f, " {:?}", of.name),
        Op::Place(memory) => write!(f, " {}", memory.name()),
        Op::Shard(constraint) => {
            f.write_str(" (")?;
            write_list(f, constraint.dims.iter(), ", ")?;
            f.write_str(match constraint.role {
                Role::Activation => ")",
                Role::Parameter => ") at rest",
                Role::ParameterAtUse => ") at use",
                Role::Gradient => ") as gradient",
                Role::State => ") as state",
            })
        }
        Op::Scan(scan) => {
            write!(
                f,
                " length={} carries={} xs={}",
                scan.length, scan.carries, scan.xs
            )?;
            if scan.reverse {
                f.write_str(" reverse")?;
            }
            if scan.unroll > 1 {
                write!(f, " unroll={}", scan.unroll)?;
            }
            Ok(())
        }
        Op::While(looped) => write!(f, " carries={}", looped.carries),
        Op::Remat(remat) if remat.recomputes => f.write_str(" recompute"),
        Op::Foreign(foreign) => match &foreign.target {
            Target::Host(function) => write!(f, " {}", function.name()),
            Target::Custom { name, .. } => write!(f, " {name}"),
        },
        Op::Manual(manual) => {
            write_axes(f, &manual.axes)?;
            f.write_str(" in=[")?;
            write_list(f, manual.inputs.iter(), ", ")?;
            f.write_str("] out=[")?;
            write_list(f, manual.outputs.iter(), ", ")?;
            f.write_str("]")
        }
        Op::Collective(collective) => {
            write_axes(f, &collective.axes)?;
            match &collective.kind {
                CollectiveOp::AllGather { dim, .. } | CollectiveOp::ReduceScatter(dim) => {
                    write!(f, " dim={dim}")
                }
                CollectiveOp::AllToAll { split, join } => write!(f, " split={split} join={join}"),
                CollectiveOp::Ppermute(pairs) => write!(f, " pairs={pairs:?}"),
                CollectiveOp::Psum
                | CollectiveOp::Pmax
                | CollectiveOp::Pmin
                | CollectiveOp::AxisIndex
                | CollectiveOp::Vary
                | CollectiveOp::AssumeInvariant => Ok(()),
            }
        }
        Op::StopGradient(Some(draw)) => write!(f, " of={draw}"),
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Convert(_)
        | Op::BitcastConvert(_)
        | Op::Reshape(_)
        | Op::DynamicUpdateSlice
        | Op::OptimizationBarrier
        | Op::StopGradient(None)
        | Op::Cholesky
        | Op::Cond(_)
        | Op::Custom(_)
        | Op::CustomLinear(_)
        | Op::Remat(_)
        | Op::Tangent(_) => Ok(()),
    }
}

/// ` axes=[data, model]`
fn write_axes(f: &mut fmt::Formatter<'_>, axes: &[ManualAxis]) -> fmt::Result {
    f.write_str(" axes=[")?;
    write_list(f, axes.iter().map(|axis| axis.name()), ", ")?;
    f.write_str("]")
}

fn write_dot(f: &mut fmt::Formatter<'_>, dims: &DotDims) -> fmt::Result {
    if !dims.lhs_batch.is_empty() {
        write!(f, " batch={:?},{:?}", dims.lhs_batch, dims.rhs_batch)?;
    }
    write!(
        f,
        " contract={:?},{:?}",
        dims.lhs_contract, dims.rhs_contract
    )
}

/// ` axis=0` where whole rows are named along one dimension, ` along=0` where single elements are;
/// otherwise all there is, and true.
fn write_gather(
    f: &mut fmt::Formatter<'_>,
    dims: &GatherDims,
    rank: usize,
) -> Result<bool, fmt::Error> {
    if let Some(axis) = dims.rows_axis() {
        write!(f, " axis={axis}")?;
        return Ok(false);
    }
    if let Some(axis) = dims.along_axis(rank) {
        write!(f, " along={axis}")?;
        return Ok(false);
    }
    write!(
        f,
        " offset={:?} collapsed={:?}",
        dims.offset, dims.collapsed
    )?;
    if !dims.operand_batch.is_empty() {
        write!(
            f,
            " batch={:?},{:?}",
            dims.operand_batch, dims.indices_batch
        )?;
    }
    write!(f, " start_map={:?}", dims.start_map)?;
    Ok(true)
}

fn write_conv(f: &mut fmt::Formatter<'_>, conv: &Conv) -> fmt::Result {
    for (name, layout) in [("lhs", &conv.lhs), ("rhs", &conv.rhs), ("out", &conv.out)] {
        write!(
            f,
            " {name}={},{},{:?}",
            layout.batch, layout.feature, layout.spatial
        )?;
    }
    write!(f, " strides={:?} padding={:?}", conv.strides, conv.padding)?;
    for (name, dilation) in [("lhs", &conv.lhs_dilation), ("rhs", &conv.rhs_dilation)] {
        if dilation.iter().any(|&d| d != 1) {
            write!(f, " {name}_dilation={dilation:?}")?;
        }
    }
    for (name, groups) in [
        ("feature", conv.feature_groups),
        ("batch", conv.batch_groups),
    ] {
        if groups != 1 {
            write!(f, " {name}_groups={groups}")?;
        }
    }
    Ok(())
}

fn write_list<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item = T>,
    separator: &str,
) -> fmt::Result {
    for (i, item) in items.enumerate() {
        let separator = if i == 0 { "" } else { separator };
        write!(f, "{separator}{item}")?;
    }
    Ok(())
}

/// Short names in the order of definition: a, b, ..., z, aa, ab, ...
struct Names(Vec<u32>);

impl Names {
    fn of(graph: &Graph) -> Self {
        let mut order = vec![0; graph.types.len()];
        let results = graph.equations.iter().flat_map(|e| e.results.iter());
        for (position, value) in graph.inputs.iter().chain(results).enumerate() {
            order[value.index()] = position as u32;
        }
        Names(order)
    }

    fn get(&self, value: ValueId) -> String {
        let mut position = self.0[value.index()] as usize;
        let mut letters = Vec::new();
        loop {
            letters.push(b'a' + (position % 26) as u8);
            if position < 26 {
                break;
            }
            position = position / 26 - 1;
        }
        letters.iter().rev().map(|&b| char::from(b)).collect()
    }
}
