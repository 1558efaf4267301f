//! The derivative of a loop.
//!
//! When it will be transposed it is two loops: the first computes the values and stacks what the
//! linear part will read (the *residuals*), the second is linear and is later run backwards. Which
//! residuals are stacked is chosen in [`residuals`].

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::error::{ErrorKind, Source};
use crate::graph::{Effects, Equation, Graph, ValueId};
use crate::lax;
use crate::op::{Op, Scan, Unary};
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{emit, fail_at, input, region};
use crate::transform::body::Linearized;
use crate::transform::linearize::{Dual, Linear, Mode, Tangents, inline};
use crate::transform::residuals;
use crate::types::TensorType;

/// The derivative of a loop.
pub(crate) fn jvp_scan(
    equation: &Equation,
    scan: &Scan,
    operands: &[Dual],
    mode: Mode,
) -> SmallVec<[Dual; 1]> {
    let active = active_operands(scan, operands);
    let body = Linearized::new(
        &scan.body,
        &active,
        &active[..scan.carries],
        mode,
        equation.source,
    );
    let tangents: Vec<Option<Tensor>> = operands
        .iter()
        .zip(&active)
        .map(|(d, &active)| active.then(|| d.tangent.unwrap_or_else(|| lax::zeros(&d.primal.ty()))))
        .collect();
    let primals: Vec<Tensor> = operands.iter().map(|d| d.primal).collect();
    match mode {
        Mode::Forward => body.emit_fused(equation, scan, &primals, &tangents),
        Mode::Linearize => body.emit_split(equation, scan, &primals, &tangents),
    }
}

/// Which operands have a tangent in some iteration: a carry that starts without one may get one.
fn active_operands(scan: &Scan, operands: &[Dual]) -> Vec<bool> {
    let mut active: Vec<bool> = operands.iter().map(|d| d.tangent.is_some()).collect();
    loop {
        let outputs = dependent_outputs(&scan.body, &active);
        let before = active.clone();
        for carry in 0..scan.carries {
            active[carry] |= outputs[carry];
        }
        if active == before {
            return active;
        }
    }
}

/// Which outputs may have a tangent when these inputs have one.
fn dependent_outputs(graph: &Graph, inputs: &[bool]) -> Vec<bool> {
    let mut active = vec![false; graph.value_count()];
    for (input, &is_active) in graph.inputs().iter().zip(inputs) {
        active[input.index()] = is_active;
    }
    for equation in graph.equations() {
        let cut = matches!(
            equation.op,
            Op::StopGradient(None) | Op::Compare(_) | Op::Unary(Unary::Floor | Unary::Sign)
        );
        if !cut && equation.operands.iter().any(|o| active[o.index()]) {
            for result in &equation.results {
                active[result.index()] = graph.ty(*result).dtype.is_differentiable();
            }
        }
    }
    graph.outputs().iter().map(|o| active[o.index()]).collect()
}

impl Linearized {
    /// One loop that carries values and tangents.
    fn emit_fused(
        &self,
        equation: &Equation,
        scan: &Scan,
        primals: &[Tensor],
        tangents: &[Option<Tensor>],
    ) -> SmallVec<[Dual; 1]> {
        let mut fused = Loop::default();
        for (i, (&primal, &tangent)) in primals.iter().zip(tangents).enumerate() {
            let group = fused.group(scan, i);
            group.push((self.inputs[i], primal));
            group.extend(self.tangents_in[i].zip(tangent));
        }
        let interleaved = self.outputs.iter().zip(&self.tangents_out);
        let outputs: Vec<ValueId> = interleaved
            .flat_map(|(&o, &t)| [Some(o), t])
            .flatten()
            .collect();
        let cut = (&self.graph, Effects::Keep);
        let results = fused.emit(cut, &outputs, scan, scan.reverse, equation.source);
        let mut results = results.into_iter();
        let mut duals = SmallVec::new();
        for tangent in &self.tangents_out {
            let Some(primal) = results.next() else { break };
            let tangent = tangent.and_then(|_| results.next());
            duals.push(Dual { primal, tangent });
        }
        duals
    }

    /// A loop of the values that stacks the residuals, then a linear loop.
    fn emit_split(
        &self,
        equation: &Equation,
        scan: &Scan,
        primals: &[Tensor],
        tangents: &[Option<Tensor>],
    ) -> SmallVec<[Dual; 1]> {
        let tangents_out: Vec<ValueId> = self.tangents_out.iter().flatten().copied().collect();
        let residuals = residuals::choose(&self.graph, &self.inputs, scan.carries, &tangents_out);

        let mut values = Loop::default();
        for (i, &primal) in primals.iter().enumerate() {
            values.group(scan, i).push((self.inputs[i], primal));
        }
        let outputs: Vec<ValueId> = self
            .outputs
            .iter()
            .chain(&residuals.stacked)
            .copied()
            .collect();
        let cut = (&self.graph, Effects::Keep);
        let results = values.emit(cut, &outputs, scan, scan.reverse, equation.source);
        let (results, stacked) = results.split_at(self.outputs.len());

        let mut linear = Loop::default();
        for (i, (&primal, &tangent)) in primals.iter().zip(tangents).enumerate() {
            let group = linear.group(scan, i);
            group.extend(self.tangents_in[i].zip(tangent));
            if residuals.inputs.binary_search(&self.inputs[i]).is_ok() {
                group.push((self.inputs[i], primal));
            }
        }
        linear.xs.extend(
            residuals
                .stacked
                .iter()
                .copied()
                .zip(stacked.iter().copied()),
        );
        let derivative = linear.emit(
            (&self.graph, Effects::Drop),
            &tangents_out,
            scan,
            scan.reverse,
            equation.source,
        );
        let mut derivative = derivative.into_iter();
        results
            .iter()
            .zip(&self.tangents_out)
            .map(|(&primal, tangent)| Dual {
                primal,
                tangent: tangent.and_then(|_| derivative.next()),
            })
            .collect()
    }
}

/// A loop under construction: what its body reads, and what that is outside.
#[derive(Default)]
struct Loop {
    carries: Vec<(ValueId, Tensor)>,
    xs: Vec<(ValueId, Tensor)>,
    constants: Vec<(ValueId, Tensor)>,
}

impl Loop {
    /// Where what belongs to operand `i` of `scan` goes.
    fn group(&mut self, scan: &Scan, i: usize) -> &mut Vec<(ValueId, Tensor)> {
        if i < scan.carries {
            &mut self.carries
        } else if i < scan.carries + scan.xs {
            &mut self.xs
        } else {
            &mut self.constants
        }
    }

    /// Cuts the body out of `graph` and emits the loop.
    fn emit(
        self,
        (graph, effects): (&Graph, Effects),
        outputs: &[ValueId],
        like: &Scan,
        reverse: bool,
        source: Source,
    ) -> SmallVec<[Tensor; 1]> {
        let all = || self.carries.iter().chain(&self.xs).chain(&self.constants);
        let inputs: Vec<ValueId> = all().map(|(value, _)| *value).collect();
        let operands: Vec<Tensor> = all().map(|(_, tensor)| *tensor).collect();
        let body = graph
            .extract(&inputs, outputs, effects)
            .unwrap_or_else(|missing| {
                let problem = format!("{} values of the loop body were not kept", missing.len());
                fail_at(
                    ErrorKind::Derivative {
                        op: "scan",
                        problem,
                    },
                    None,
                    source,
                )
            });
        let op = Op::Scan(Scan {
            body: Arc::new(body),
            length: like.length,
            reverse,
            unroll: like.unroll,
            carries: self.carries.len(),
            xs: self.xs.len(),
        });
        emit(op, &operands, source)
    }
}

/// The transpose of a linear loop: the other way round, from the cotangents of its results to
/// those of its linear operands.
///
/// Cotangents of constants are summed in carries, and so are those of carries that every step hands on as they are. These
/// sums are of the accumulator type: what is added up over many steps is rounded once, behind the loop.
pub(crate) fn transpose_scan(
    scan: &Scan,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
    source: Source,
) -> Tangents {
    let (c, x) = (scan.carries, scan.carries + scan.xs);
    // Every carry is linear in the body, even one that starts as a constant zero.
    let linear: Vec<bool> = operands
        .iter()
        .enumerate()
        .map(|(i, o)| o.linear || i < c)
        .collect();
    let body = &scan.body;
    let ty = |i: usize| body.ty(body.inputs()[i]).clone();
    let is_sum = |i: usize| i >= x || (i < c && body.outputs()[i] == body.inputs()[i]);
    // The type of the cotangent of operand `i` as the loop carries it.
    let carried = |i: usize| TensorType {
        dtype: match is_sum(i) {
            true => ty(i).dtype.accumulator(),
            false => ty(i).dtype,
        },
        ..ty(i)
    };

    let mut backward = Loop::default();
    let traced = region(|| {
        let carry_cts: Vec<Tensor> = (0..c).map(|i| input(carried(i))).collect();
        let sums: Vec<Option<Tensor>> = (x..operands.len())
            .map(|i| linear[i].then(|| input(carried(i))))
            .collect();
        let y_cts: Vec<Option<Tensor>> = cotangents[c..]
            .iter()
            .zip(&body.outputs()[c..])
            .map(|(ct, &o)| ct.map(|_| input(body.ty(o).clone())))
            .collect();
        let known: Vec<Option<Tensor>> = (0..operands.len())
            .map(|i| (!linear[i]).then(|| input(ty(i))))
            .collect();
        let wanted = (0..operands.len()).map(|i| linear[i].then(|| ty(i)));
        let program = Linear::begin(wanted, source);
        let inputs: Vec<Tensor> = known
            .iter()
            .zip(program.tangents())
            .filter_map(|(known, tangent)| known.or(*tangent))
            .collect();
        let outputs = inline(body, &inputs);
        let handed_back = |i: usize| (!is_sum(i)).then_some(carry_cts[i]);
        let cts = (0..c).map(handed_back).chain(y_cts.iter().copied());
        let mut cts = program.transpose(outputs.into_iter().map(Some).zip(cts), source);
        for (i, ct) in cts.iter_mut().enumerate().filter(|(i, _)| linear[*i]) {
            let value = ct.unwrap_or_else(|| lax::zeros(&ty(i)));
            let sum = match i.checked_sub(x) {
                Some(i) => sums[i],
                None => (i < c && is_sum(i)).then(|| carry_cts[i]),
            };
            let added = |sum: Tensor| lax::add(sum, lax::convert(value, sum.dtype()));
            *ct = Some(sum.map_or(value, added));
        }
        (carry_cts, sums, y_cts, known, cts)
    });
    let (carry_cts, sums, y_cts, known, cts) = traced.result;

    for (i, ct) in carry_cts.iter().enumerate() {
        let begin = match cotangents[i] {
            Some(begin) => lax::convert(begin, carried(i).dtype),
            None => lax::zeros(&carried(i)),
        };
        backward.carries.push((ct.value, begin));
    }
    for (i, sum) in sums.iter().enumerate() {
        let begin = || lax::zeros(&carried(x + i));
        backward.carries.extend(sum.map(|sum| (sum.value, begin())));
    }
    for (inner, outer) in y_cts.iter().zip(&cotangents[c..]) {
        backward.xs.extend(inner.map(|t| t.value).zip(*outer));
    }
    for (i, known) in known.iter().enumerate() {
        let entry = known.map(|known| (known.value, operands[i].tensor));
        backward.group(scan, i).extend(entry);
    }
    let order = (0..c).chain(x..operands.len()).chain(c..x);
    let results_of: Vec<usize> = order.filter(|&i| linear[i]).collect();
    let outputs: Vec<ValueId> = results_of
        .iter()
        .filter_map(|&i| cts[i].map(|ct| ct.value))
        .collect();
    let results = backward.emit(
        (&traced.graph, Effects::Drop),
        &outputs,
        scan,
        !scan.reverse,
        source,
    );
    let mut by_operand: Tangents = smallvec![None; operands.len()];
    for (&i, result) in results_of.iter().zip(results) {
        let dtype = operands[i].tensor.dtype();
        by_operand[i] = operands[i].linear.then(|| lax::convert(result, dtype));
    }
    by_operand
}
