//! Maxima and minima across devices.
//!
//! A maximum with NaN among its numbers is NaN. XLA keeps to that within a device; between devices its CPU runtime and NCCL
//! take C's `fmax`, in which a number wins over NaN, so that a guard such as `max|g| < 1e4` would let a step pass on eight
//! devices that it stops on one. Integers have no such case. So where devices are compared, floats are compared by the
//! integers that are ordered as they are: bits with the sign as it is and, of negative numbers, the others turned round.
//! NaN becomes the integer that wins, and -0 is less than 0, as IEEE 754's `maximum` has it and as one device has it too.
//!
//! On the CPU every maximum of a program for several devices is taken so, for the partitioner may split what nothing is said
//! of. On GPUs it is those of dimensions that are known to be split: the compiler knows a softmax by its maximum.

use shardax_core::{
    Combine, DType, Reducer, TensorType,
    ir::{CollectiveOp, Equation, GatherDims, Graph, Op, ValueId},
};

use super::gather::{scatter, scatter_numbers};
use super::writer::{Joined, List, Loc, Piece, Ssa, tensor_type};
use super::{Block, Lowering};

/// What a maximum or minimum is taken of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extremum {
    Max,
    Min,
}

impl Extremum {
    /// What an equation takes, if that is an extremum.
    fn of(op: &Op) -> Option<Self> {
        match op {
            Op::Reduce(Reducer::Max, _) => Some(Extremum::Max),
            Op::Reduce(Reducer::Min, _) => Some(Extremum::Min),
            Op::Scatter { combine, .. } => match combine {
                Combine::Max => Some(Extremum::Max),
                Combine::Min => Some(Extremum::Min),
                Combine::Add | Combine::Mul | Combine::Set => None,
            },
            Op::Collective(of) => match of.kind {
                CollectiveOp::Pmax => Some(Extremum::Max),
                CollectiveOp::Pmin => Some(Extremum::Min),
                _ => None,
            },
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Extremum::Max => "maximum",
            Extremum::Min => "minimum",
        }
    }
}

/// The integers that stand for floats of a type: the float of as many bits, their type, the bits but the sign.
fn ordered_type(dtype: DType) -> Option<(DType, DType, i64)> {
    match dtype {
        DType::F64 => Some((DType::F64, DType::I64, i64::MAX)),
        dtype if dtype.is_float() => Some((DType::F32, DType::I32, i64::from(i32::MAX))),
        _ => None,
    }
}

/// The type of the integers that stand for values of this type; `None` of what is no float.
fn ordered(ty: &TensorType) -> Option<TensorType> {
    let (_, integer, _) = ordered_type(ty.dtype)?;
    Some(TensorType::new(integer, &ty.shape))
}

/// The integer that no other loses to: what an extremum of nothing is.
fn ordered_neutral(extremum: Extremum, dtype: DType) -> i64 {
    // There are types without infinities.
    let end = match dtype {
        DType::F8E4M3FN => 448.0,
        _ => f64::INFINITY,
    };
    let bits = match dtype {
        DType::F64 => end.to_bits() as i64,
        _ => i64::from((end as f32).to_bits() as i32),
    };
    match extremum {
        Extremum::Max => !bits,
        Extremum::Min => bits,
    }
}

impl Lowering<'_> {
    /// The extremum of floats that an equation takes, if devices are compared for it.
    pub(super) fn extremum_across(
        &self,
        graph: &Graph,
        equation: &Equation,
        block: &Block,
    ) -> Option<Extremum> {
        let extremum = Extremum::of(&equation.op)?;
        ordered(graph.ty(equation.operands[0]))?;
        let is_split = |operand: ValueId, dims: Option<&[usize]>| {
            let split = block.split(operand);
            let mut entries = split.iter().enumerate();
            entries.any(|(d, axes)| !axes.is_empty() && dims.is_none_or(|dims| dims.contains(&d)))
        };
        let across = match &equation.op {
            // The devices of a manual region compare what they have.
            Op::Collective(_) => true,
            _ if self.annotations.is_single() => false,
            _ if self.on_host => true,
            Op::Reduce(_, dims) => is_split(equation.operands[0], Some(dims)),
            _ => equation.operands.iter().any(|&o| is_split(o, None)),
        };
        across.then_some(extremum)
    }

    /// A reduction of the integers that stand for floats.
    pub(super) fn reduce_ordered(
        &mut self,
        (graph, equation): (&Graph, &Equation),
        (extremum, dims): (Extremum, &[usize]),
        x: Ssa,
        loc: Loc,
    ) -> Ssa {
        let (ty, result) = (
            graph.ty(equation.operands[0]),
            graph.ty(equation.results[0]),
        );
        let (Some(from), Some(to)) = (ordered(ty), ordered(result)) else {
            return x;
        };
        let keys = self.order_floats((x, ty), extremum, loc);
        let scalar = tensor_type(&TensorType::scalar(from.dtype));
        let neutral = ordered_neutral(extremum, ty.dtype);
        let initial = self.assign(
            &format!("stablehlo.constant dense<{neutral}> : {scalar}"),
            loc,
        );
        let text = format!(
            "stablehlo.reduce({keys} init: {initial}) applies stablehlo.{} across dimensions = {} : ({}, {scalar}) -> {}",
            extremum.name(),
            List(dims),
            tensor_type(&from),
            tensor_type(&to)
        );
        let reduced = self.assign(&text, loc);
        self.restore_floats(reduced, result, loc)
    }

    /// A scatter of the integers that stand for floats.
    pub(super) fn scatter_ordered(
        &mut self,
        (graph, equation): (&Graph, &Equation),
        (dims, combine): (&GatherDims, Combine),
        x: &[Ssa],
        loc: Loc,
    ) -> Ssa {
        let [table, indices, updates] = [0, 1, 2].map(|i| graph.ty(equation.operands[i]));
        let (Some(extremum), Some(tables), Some(rows)) =
            (Extremum::of(&equation.op), ordered(table), ordered(updates))
        else {
            return x[0];
        };
        let operands = [
            self.order_floats((x[0], table), extremum, loc),
            x[1],
            self.order_floats((x[2], updates), extremum, loc),
        ];
        let types = [&tables, indices, &rows].map(tensor_type).join(", ");
        let functional = format!("({types}) -> {}", tensor_type(&tables));
        let numbers = scatter_numbers(dims, indices.rank());
        let ssa = self.out.assign(loc, |out| {
            let what = (&Joined(&operands) as &dyn Piece, combine, tables.dtype);
            scatter(out, &numbers, what, &functional);
        });
        self.restore_floats(ssa, table, loc)
    }

    /// An extremum over the devices of groups, of what each of them has.
    pub(super) fn all_reduce_ordered(
        &mut self,
        (x, ty): (Ssa, &TensorType),
        extremum: Extremum,
        attributes: &str,
        loc: Loc,
    ) -> Ssa {
        let Some(keys) = ordered(ty) else {
            return x;
        };
        let x = self.order_floats((x, ty), extremum, loc);
        let spelled = tensor_type(&keys);
        let functional = format!("({spelled}) -> {spelled}");
        let what = (x, keys.dtype, extremum.name());
        let reduced = self.reducing("all_reduce", what, attributes, &functional, loc);
        self.restore_floats(reduced, ty, loc)
    }

    /// Floats as the integers that are ordered as they are.
    fn order_floats(&mut self, (x, ty): (Ssa, &TensorType), extremum: Extremum, loc: Loc) -> Ssa {
        let Some((float, integer, magnitude)) = ordered_type(ty.dtype) else {
            return x;
        };
        let spelled = |dtype: DType| tensor_type(&TensorType::new(dtype, &ty.shape));
        let (floats, integers, bools) = (spelled(float), spelled(integer), spelled(DType::Bool));
        let wide = match ty.dtype == float {
            true => x,
            false => {
                let text = format!("stablehlo.convert {x} : ({}) -> {floats}", tensor_type(ty));
                self.assign(&text, loc)
            }
        };
        let text = format!("stablehlo.bitcast_convert {wide} : ({floats}) -> {integers}");
        let bits = self.assign(&text, loc);
        let turned = self.turned(bits, (&integers, &bools), magnitude, loc);
        let number = format!(
            "stablehlo.compare EQ, {wide}, {wide}, FLOAT : ({floats}, {floats}) -> {bools}"
        );
        let number = self.assign(&number, loc);
        let winner = match extremum {
            Extremum::Max => magnitude,
            Extremum::Min => -magnitude - 1,
        };
        let winner = self.assign(
            &format!("stablehlo.constant dense<{winner}> : {integers}"),
            loc,
        );
        let text = format!("stablehlo.select {number}, {turned}, {winner} : {bools}, {integers}");
        self.assign(&text, loc)
    }

    /// The floats that integers stand for.
    fn restore_floats(&mut self, x: Ssa, ty: &TensorType, loc: Loc) -> Ssa {
        let Some((float, integer, magnitude)) = ordered_type(ty.dtype) else {
            return x;
        };
        let spelled = |dtype: DType| tensor_type(&TensorType::new(dtype, &ty.shape));
        let (floats, integers, bools) = (spelled(float), spelled(integer), spelled(DType::Bool));
        // The winner's bits are those of a NaN.
        let bits = self.turned(x, (&integers, &bools), magnitude, loc);
        let text = format!("stablehlo.bitcast_convert {bits} : ({integers}) -> {floats}");
        let wide = self.assign(&text, loc);
        match ty.dtype == float {
            true => wide,
            false => {
                let text = format!(
                    "stablehlo.convert {wide} : ({floats}) -> {}",
                    tensor_type(ty)
                );
                self.assign(&text, loc)
            }
        }
    }

    /// Integers, of those below zero all bits but the sign turned round; its own inverse.
    fn turned(&mut self, x: Ssa, (integers, bools): (&str, &str), magnitude: i64, loc: Loc) -> Ssa {
        let zero = self.assign(&format!("stablehlo.constant dense<0> : {integers}"), loc);
        let all = self.assign(
            &format!("stablehlo.constant dense<{magnitude}> : {integers}"),
            loc,
        );
        let text = format!(
            "stablehlo.compare LT, {x}, {zero}, SIGNED : ({integers}, {integers}) -> {bools}"
        );
        let negative = self.assign(&text, loc);
        let text = format!("stablehlo.xor {x}, {all} : {integers}");
        let turned = self.assign(&text, loc);
        let text = format!("stablehlo.select {negative}, {turned}, {x} : {bools}, {integers}");
        self.assign(&text, loc)
    }
}
