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

use crate::op::{DotDims, Op};

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
        if let Some(region) = equation.op.region() {
            f.write_str(" ")?;
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
        Op::Take { axis }
        | Op::ScatterAdd { axis }
        | Op::TakeAlong { axis }
        | Op::ScatterAddAlong { axis } => write!(f, " axis={axis}"),
        Op::Shard(constraint) => {
            f.write_str(" (")?;
            write_list(f, constraint.dims.iter(), ", ")?;
            f.write_str(match constraint.role {
                Role::Activation => ")",
                Role::Parameter => ") at rest",
                Role::ParameterAtUse => ") at use",
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
            Ok(())
        }
        Op::Remat(remat) if remat.recomputes => f.write_str(" recompute"),
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Convert(_)
        | Op::BitcastConvert(_)
        | Op::Reshape(_)
        | Op::DynamicUpdateSlice
        | Op::OptimizationBarrier
        | Op::StopGradient
        | Op::Remat(_)
        | Op::Tangent(_) => Ok(()),
    }
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
