//! The derivative of a manual region.
//!
//! When it will be transposed it is two regions: the first computes the values and hands out what the
//! linear part will read, the second is linear and is later transposed. What differs between devices
//! is handed out as blocks along a new leading dimension, so that no device tells another anything.

use std::sync::Arc;

use shardax_sharding::{Axes, PartitionSpec};
use smallvec::{SmallVec, smallvec};

use super::with_body;
use crate::context::in_region;
use crate::error::{ErrorKind, Source};
use crate::graph::{Effects, Equation, Graph, ValueId};
use crate::lax;
use crate::op::Manual;
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{emit, fail_at, input, region};
use crate::transform::body::{Linearized, transposed, transposed_operands};
use crate::transform::close::finished;
use crate::transform::linearize::{Dual, Mode, Tangents, inline};
use crate::transform::residuals;
use crate::types::TensorType;

/// The derivative of a region.
pub(crate) fn jvp_manual(
    equation: &Equation,
    manual: &Manual,
    operands: &[Dual],
    mode: Mode,
) -> SmallVec<[Dual; 1]> {
    let source = equation.source;
    let active: Vec<bool> = operands.iter().map(|d| d.tangent.is_some()).collect();
    let body = in_region(&manual.axes, || {
        Linearized::new(&manual.body, &active, &[], mode, source)
    });
    match mode {
        Mode::Forward => fused(&body, equation, manual, operands),
        Mode::Linearize => split(&body, equation, manual, operands),
    }
}

/// One region of values and tangents.
fn fused(
    body: &Linearized,
    equation: &Equation,
    manual: &Manual,
    operands: &[Dual],
) -> SmallVec<[Dual; 1]> {
    let mut read = Read::default();
    for (i, operand) in operands.iter().enumerate() {
        read.add(body.inputs[i], operand.primal, &manual.inputs[i]);
        read.tangent(body, i, operand, manual);
    }
    let mut outputs = Vec::new();
    let mut specs = Vec::new();
    for (i, &output) in body.outputs.iter().enumerate() {
        for value in [Some(output), body.tangents_out[i]].into_iter().flatten() {
            outputs.push(value);
            specs.push(manual.outputs[i].clone());
        }
    }
    let cut = read.cut(&body.graph, &outputs, Effects::Keep, equation.source);
    let op = with_body(manual, cut, [read.specs, specs]);
    let mut results = emit(op, &read.operands, equation.source).into_iter();
    let mut duals = SmallVec::new();
    for tangent in &body.tangents_out {
        let Some(primal) = results.next() else { break };
        let tangent = tangent.and_then(|_| results.next());
        duals.push(Dual { primal, tangent });
    }
    duals
}

/// A region of values that hands out what the linear part reads, then a linear region.
fn split(
    body: &Linearized,
    equation: &Equation,
    manual: &Manual,
    operands: &[Dual],
) -> SmallVec<[Dual; 1]> {
    let source = equation.source;
    let tangents_out: Vec<ValueId> = body.tangents_out.iter().flatten().copied().collect();
    let residuals = residuals::choose(&body.graph, &body.inputs, 0, &tangents_out);
    let kept_specs: Vec<PartitionSpec> = residuals
        .stacked
        .iter()
        .map(|&v| handed_out_spec(manual, body.graph.ty(v)))
        .collect();

    let mut values = Read::default();
    for (i, operand) in operands.iter().enumerate() {
        values.add(body.inputs[i], operand.primal, &manual.inputs[i]);
    }
    let count = body.outputs.len();
    let wanted = [body.outputs.as_slice(), &residuals.stacked].concat();
    let cut = values.cut(&body.graph, &wanted, Effects::Keep, source);
    let handing = rewritten(manual, input_types(&cut), |inputs| {
        let mut results = inline(&cut, inputs);
        for residual in &mut results[count..] {
            let mut shape = residual.ty().shape;
            shape.insert(0, 1);
            *residual = lax::reshape(*residual, &shape);
        }
        results
    });
    let specs = [manual.outputs.as_slice(), &kept_specs].concat();
    let op = with_body(manual, handing, [values.specs, specs]);
    let results = emit(op, &values.operands, source);
    let (results, kept) = results.split_at(count);

    let mut linear = Read::default();
    for ((&residual, kept), spec) in residuals.stacked.iter().zip(kept).zip(&kept_specs) {
        linear.add(residual, *kept, spec);
    }
    for (i, operand) in operands.iter().enumerate() {
        linear.tangent(body, i, operand, manual);
        if residuals.inputs.binary_search(&body.inputs[i]).is_ok() {
            linear.add(body.inputs[i], operand.primal, &manual.inputs[i]);
        }
    }
    let cut = linear.cut(&body.graph, &tangents_out, Effects::Drop, source);
    let own = input_types(&cut);
    let mut types = own.clone();
    for ty in &mut types[..kept.len()] {
        ty.shape.insert(0, 1);
    }
    let taking = rewritten(manual, types, |inputs| {
        let mut inner = inputs.to_vec();
        for (residual, own) in inner.iter_mut().zip(&own).take(kept.len()) {
            *residual = lax::reshape(*residual, &own.shape);
        }
        inline(&cut, &inner)
    });
    let of_tangents = body.tangents_out.iter().zip(&manual.outputs);
    let specs = of_tangents.filter_map(|(t, spec)| t.map(|_| spec.clone()));
    let op = with_body(manual, taking, [linear.specs, specs.collect()]);
    let mut tangents = emit(op, &linear.operands, source).into_iter();
    results
        .iter()
        .zip(&body.tangents_out)
        .map(|(&primal, tangent)| Dual {
            primal,
            tangent: tangent.and_then(|_| tangents.next()),
        })
        .collect()
}

/// What the body of a region under construction reads, and what that is outside.
#[derive(Default)]
struct Read {
    values: Vec<ValueId>,
    operands: Vec<Tensor>,
    specs: Vec<PartitionSpec>,
}

impl Read {
    fn add(&mut self, value: ValueId, operand: Tensor, spec: &PartitionSpec) {
        self.values.push(value);
        self.operands.push(operand);
        self.specs.push(spec.clone());
    }

    /// Adds the tangent of operand `i`, if it has one.
    fn tangent(&mut self, body: &Linearized, i: usize, operand: &Dual, manual: &Manual) {
        if let (Some(value), Some(tangent)) = (body.tangents_in[i], operand.tangent) {
            self.add(value, tangent, &manual.inputs[i]);
        }
    }

    /// The part of `graph` that computes `outputs` from what is read.
    fn cut(&self, graph: &Graph, outputs: &[ValueId], effects: Effects, source: Source) -> Graph {
        let cut = graph.extract(&self.values, outputs, effects);
        cut.unwrap_or_else(|missing| {
            let problem = format!("{} values of the region were not kept", missing.len());
            let op = "manual";
            fail_at(ErrorKind::Derivative { op, problem }, None, source)
        })
    }
}

fn input_types(graph: &Graph) -> Vec<TensorType> {
    let inputs = graph.inputs().iter();
    inputs.map(|&i| graph.ty(i).clone()).collect()
}

/// The function that `write` writes inside of the region, of inputs of these types.
fn rewritten(
    manual: &Manual,
    types: Vec<TensorType>,
    write: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Graph {
    let traced = in_region(&manual.axes, || {
        region(|| {
            let inputs: Vec<Tensor> = types.into_iter().map(input).collect();
            write(&inputs)
        })
    });
    finished(traced.graph, &traced.result)
}

/// How a residual is handed out: what differs between devices has a block for each of them, along a
/// new leading dimension.
fn handed_out_spec(manual: &Manual, ty: &TensorType) -> PartitionSpec {
    let own = manual.axes.iter().map(|axis| axis.name());
    let differing: Axes = own.filter(|name| ty.varying.contains(name)).collect();
    let mut entries = vec![Axes::default(); ty.rank() + 1];
    entries[0] = differing;
    entries.into_iter().collect()
}

/// The transpose of a linear region: from blocks of the cotangents of its results to blocks of those
/// of its linear operands. No sum over devices is added here: inside, every value that becomes each
/// device's own is marked, and the transpose of the mark is the sum.
pub(crate) fn transpose_manual(
    manual: &Manual,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
    source: Source,
) -> Tangents {
    let (body, present) = in_region(&manual.axes, || {
        transposed(&manual.body, operands, cotangents, false, source)
    });
    let known = operands
        .iter()
        .zip(&manual.inputs)
        .filter(|(o, _)| !o.linear);
    let given = cotangents
        .iter()
        .zip(&manual.outputs)
        .filter(|(ct, _)| ct.is_some());
    let inputs = known
        .map(|(_, s)| s.clone())
        .chain(given.map(|(_, s)| s.clone()));
    let results = manual
        .inputs
        .iter()
        .zip(&present)
        .filter(|(_, present)| **present);
    let outputs = results.map(|(spec, _)| spec.clone()).collect();
    let op = with_body(
        manual,
        Arc::unwrap_or_clone(body),
        [inputs.collect(), outputs],
    );
    let all = transposed_operands(operands, cotangents);
    let mut results = emit(op, &all, source).into_iter();
    let mut cts: Tangents = smallvec![None; operands.len()];
    for (slot, _) in cts.iter_mut().zip(present).filter(|(_, present)| *present) {
        *slot = results.next();
    }
    cts
}
