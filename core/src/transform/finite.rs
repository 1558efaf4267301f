//! Finding the operation whose result is the first that is not finite.
//!
//! The program is written again with a number that is carried through it, loops and branches
//! included: that of the first operation, in the order in which they are computed, that gave a NaN
//! or an infinity. The program returns it beside its results.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use shardax_sharding::PartitionSpec;

use super::close::finished;
use super::linearize::{evaluate, inline};
use crate::context::in_region;
use crate::dtype::DType;
use crate::error::Source;
use crate::graph::{Equation, Graph, Scope, ValueId};
use crate::lax;
use crate::op::{
    Binary, Collective, CollectiveOp, Comparison, Cond, Manual, Op, Reducer, Scan, Unary, While,
};
use crate::tensor::Tensor;
use crate::trace::{emit, input, program, region, with_origin};
use crate::types::TensorType;

/// What counts as a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFinite {
    /// NaN.
    Nan,
    /// NaN and the infinities.
    NanOrInfinity,
}

/// Where a program was looked at.
#[derive(Clone, Debug)]
pub struct CheckPoint {
    /// Where the value comes from.
    pub origin: CheckOrigin,
    /// Its type.
    pub ty: TensorType,
}

/// Where a value that is looked at comes from.
#[derive(Clone, Debug)]
pub enum CheckOrigin {
    /// The argument leaf at this position.
    Argument(usize),
    /// An operation.
    Operation {
        /// Its name.
        name: &'static str,
        /// The user's line.
        source: Source,
        /// The scopes around that line.
        scope: Scope,
    },
}

/// A program that tells where it first gave a number that is not finite.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The program, with one more result: an `i32` scalar, the position in `points`, or
    /// [`Checked::NOTHING`].
    pub graph: Graph,
    /// Where it is looked at.
    pub points: Vec<CheckPoint>,
}

impl Checked {
    /// The last result where every number was finite.
    pub const NOTHING: i32 = i32::MAX;
}

/// `graph` with a check of every floating-point value.
pub fn check_finite(graph: &Graph, what: NonFinite) -> Checked {
    let mut checker = Checker {
        what,
        points: Vec::new(),
    };
    let traced = program(|| {
        let types = graph.inputs().iter().map(|&i| graph.ty(i).clone());
        let inputs: Vec<Tensor> = types.map(input).collect();
        let mut first = number(Checked::NOTHING);
        for (i, &argument) in inputs.iter().enumerate() {
            first = checker.look(argument, first, CheckOrigin::Argument(i));
        }
        let (mut outputs, first) = checker.graph(graph, &inputs, first);
        outputs.push(first);
        outputs
    });
    Checked {
        graph: finished(traced.graph, &traced.result),
        points: checker.points,
    }
}

fn number(value: i32) -> Tensor {
    lax::full(value.into(), &TensorType::scalar(DType::I32))
}

/// Whether an equation only spells a number that is written in the program, such as the NaN that a lookup gives where
/// an index is outside. It is no fault until something is computed from it.
fn is_written(equation: &Equation, written: &FxHashSet<ValueId>) -> bool {
    match equation.op {
        Op::Constant(_) | Op::Iota { .. } => true,
        Op::Broadcast { .. } | Op::Convert(_) | Op::Reshape(_) | Op::Transpose(_) => {
            equation.operands.iter().all(|o| written.contains(o))
        }
        _ => false,
    }
}

struct Checker {
    what: NonFinite,
    points: Vec<CheckPoint>,
}

impl Checker {
    /// The number of the first fault, after a value.
    fn look(&mut self, value: Tensor, first: Tensor, origin: CheckOrigin) -> Tensor {
        let ty = value.ty();
        if !ty.dtype.is_float() {
            return first;
        }
        let own = number(self.points.len() as i32);
        self.points.push(CheckPoint {
            origin,
            ty: ty.clone(),
        });
        let faults = match self.what {
            NonFinite::Nan => lax::compare(Comparison::Ne, value, value),
            NonFinite::NanOrInfinity => lax::unary(Unary::Not, lax::unary(Unary::IsFinite, value)),
        };
        let dims: Vec<usize> = (0..ty.rank()).collect();
        let any = lax::reduce(Reducer::Or, faults, &dims);
        let none = lax::compare(Comparison::Eq, first, number(Checked::NOTHING));
        let is_first = lax::binary(Binary::And, none, any);
        lax::select(is_first, own, first)
    }

    /// The equations of a graph, with the number of the first fault before and after them.
    fn graph(&mut self, graph: &Graph, inputs: &[Tensor], first: Tensor) -> (Vec<Tensor>, Tensor) {
        let mut first = first;
        let mut written = FxHashSet::default();
        let outputs = evaluate(graph, inputs, |equation, operands| {
            if is_written(equation, &written) {
                written.extend(equation.results.iter().copied());
                return emit(equation.op.clone(), operands, equation.source);
            }
            let (results, after) = self.equation(equation, operands, first);
            first = after;
            results.into()
        });
        (outputs, first)
    }

    /// An operation and what is inside of it, with the number of the first fault before and after it.
    fn equation(
        &mut self,
        equation: &Equation,
        operands: &[Tensor],
        first: Tensor,
    ) -> (Vec<Tensor>, Tensor) {
        match &equation.op {
            Op::Scan(scan) => self.scan(equation, scan, operands, first),
            Op::Cond(cond) => self.cond(equation, cond, operands, first),
            Op::While(looped) => self.while_loop(equation, looped, operands, first),
            Op::Manual(manual) => self.manual(equation, manual, operands, first),
            Op::Remat(remat) => self.graph(&remat.body, operands, first),
            Op::Custom(custom) => self.graph(&custom.body, operands, first),
            op => {
                let results = emit(op.clone(), operands, equation.source);
                let mut first = first;
                for &result in &results {
                    let origin = CheckOrigin::Operation {
                        name: op.name(),
                        source: equation.source,
                        scope: equation.scope.clone(),
                    };
                    first = with_origin(equation, || self.look(result, first, origin));
                }
                (results.to_vec(), first)
            }
        }
    }

    /// The body of a function inside an operation: its inputs are those of `body` with the number
    /// at `at`, and so are its outputs.
    fn body(&mut self, body: &Graph, at: usize, out: usize) -> Arc<Graph> {
        let traced = region(|| {
            let mut types: Vec<TensorType> =
                body.inputs().iter().map(|&i| body.ty(i).clone()).collect();
            types.insert(at, TensorType::scalar(DType::I32));
            let mut inputs: Vec<Tensor> = types.into_iter().map(input).collect();
            let first = inputs.remove(at);
            let (mut outputs, first) = self.graph(body, &inputs, first);
            outputs.insert(out, first);
            outputs
        });
        Arc::new(finished(traced.graph, &traced.result))
    }

    fn scan(
        &mut self,
        equation: &Equation,
        scan: &Scan,
        operands: &[Tensor],
        first: Tensor,
    ) -> (Vec<Tensor>, Tensor) {
        let at = scan.carries;
        let op = Op::Scan(Scan {
            body: self.body(&scan.body, at, at),
            carries: at + 1,
            ..scan.clone()
        });
        emit_with(op, operands, first, at, at, equation.source)
    }

    fn cond(
        &mut self,
        equation: &Equation,
        cond: &Cond,
        operands: &[Tensor],
        first: Tensor,
    ) -> (Vec<Tensor>, Tensor) {
        let out = equation.results.len();
        let branches = cond.branches.iter();
        let op = Op::Cond(Cond {
            branches: branches.map(|b| self.body(b, 0, out)).collect(),
        });
        emit_with(op, operands, first, 1, out, equation.source)
    }

    /// Devices agree on the first fault that any of them has found.
    fn manual(
        &mut self,
        equation: &Equation,
        manual: &Manual,
        operands: &[Tensor],
        first: Tensor,
    ) -> (Vec<Tensor>, Tensor) {
        let (at, out) = (operands.len(), equation.results.len());
        let agreed = Collective {
            kind: CollectiveOp::Pmin,
            axes: manual.axes.clone(),
        };
        let body = in_region(&manual.axes, || {
            let body = self.body(&manual.body, at, out);
            let traced = region(|| {
                let types = body.inputs().iter().map(|&i| body.ty(i).clone());
                let inputs: Vec<Tensor> = types.map(input).collect();
                let mut outputs = inline(&body, &inputs);
                outputs[out] = lax::collective(outputs[out], agreed);
                outputs
            });
            finished(traced.graph, &traced.result)
        });
        let scalar = [PartitionSpec::replicated(0)];
        let op = Op::Manual(Manual {
            body: Arc::new(body),
            axes: manual.axes.clone(),
            inputs: [manual.inputs.as_slice(), &scalar].concat(),
            outputs: [manual.outputs.as_slice(), &scalar].concat(),
        });
        emit_with(op, operands, first, at, out, equation.source)
    }

    fn while_loop(
        &mut self,
        equation: &Equation,
        looped: &While,
        operands: &[Tensor],
        first: Tensor,
    ) -> (Vec<Tensor>, Tensor) {
        let at = looped.carries;
        let cond = region(|| {
            let types = looped.cond.inputs().iter();
            let mut types: Vec<TensorType> = types.map(|&i| looped.cond.ty(i).clone()).collect();
            types.insert(at, TensorType::scalar(DType::I32));
            let mut inputs: Vec<Tensor> = types.into_iter().map(input).collect();
            inputs.remove(at);
            inline(&looped.cond, &inputs)
        });
        let op = Op::While(While {
            cond: Arc::new(finished(cond.graph, &cond.result)),
            body: self.body(&looped.body, at, at),
            carries: at + 1,
        });
        emit_with(op, operands, first, at, at, equation.source)
    }
}

/// Emits an operation that takes the number as operand `at` and returns it as result `out`.
fn emit_with(
    op: Op,
    operands: &[Tensor],
    first: Tensor,
    at: usize,
    out: usize,
    source: Source,
) -> (Vec<Tensor>, Tensor) {
    let mut all = operands.to_vec();
    all.insert(at, first);
    let mut results = emit(op, &all, source).to_vec();
    let first = results.remove(out);
    (results, first)
}
