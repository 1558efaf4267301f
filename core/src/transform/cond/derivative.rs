//! The derivative of a choice.
//!
//! When it will be transposed it is two choices by the same index: the first computes the values and
//! what the linear part of the chosen branch will read (its *residuals*), the second is linear.
//! Branches share the residuals' places, so that a choice keeps no more than its largest branch needs.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::error::{ErrorKind, Source};
use crate::graph::{Effects, Equation, Graph, ValueId};
use crate::lax;
use crate::op::{Cond, Op};
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{emit, fail_at, input, region};
use crate::transform::body::{Linearized, transposed, transposed_operands};
use crate::transform::close::finished;
use crate::transform::linearize::{Dual, Mode, Tangents, inline};
use crate::transform::residuals;
use crate::types::TensorType;

/// The derivative of a choice.
pub(crate) fn jvp_cond(
    equation: &Equation,
    cond: &Cond,
    operands: &[Dual],
    mode: Mode,
) -> SmallVec<[Dual; 1]> {
    let source = equation.source;
    let (index, rest) = (operands[0].primal, &operands[1..]);
    let active: Vec<bool> = rest.iter().map(|d| d.tangent.is_some()).collect();
    let trace = |branch: &Arc<Graph>, wanted: &[bool]| {
        Linearized::new(branch, &active, wanted, mode, source)
    };
    let mut wanted = vec![false; equation.results.len()];
    for branch in &cond.branches {
        let traced = trace(branch, &wanted);
        for (wanted, tangent) in wanted.iter_mut().zip(&traced.tangents_out) {
            *wanted |= tangent.is_some();
        }
    }
    let branches: Vec<Rc<Linearized>> = cond.branches.iter().map(|b| trace(b, &wanted)).collect();
    let primals: Vec<Tensor> = rest.iter().map(|d| d.primal).collect();
    let tangents: Vec<Tensor> = rest.iter().filter_map(|d| d.tangent).collect();
    let (results, tangents) = match mode {
        Mode::Forward => fused(&branches, index, &primals, &tangents, source),
        Mode::Linearize => split(&branches, index, &primals, &tangents, source),
    };
    let mut tangents = tangents.into_iter();
    results
        .into_iter()
        .zip(wanted)
        .map(|(primal, wanted)| Dual {
            primal,
            tangent: if wanted { tangents.next() } else { None },
        })
        .collect()
}

type Split = (Vec<Tensor>, Vec<Tensor>);

/// One choice of values and tangents.
fn fused(
    branches: &[Rc<Linearized>],
    index: Tensor,
    primals: &[Tensor],
    tangents: &[Tensor],
    source: Source,
) -> Split {
    let graphs = branches
        .iter()
        .map(|branch| {
            let inputs = [&branch.inputs[..], &present(&branch.tangents_in)].concat();
            let outputs = [&branch.outputs[..], &present(&branch.tangents_out)].concat();
            cut((&branch.graph, Effects::Keep), &inputs, &outputs, source)
        })
        .collect();
    let operands = [&[index], primals, tangents].concat();
    let results = emit(Op::Cond(Cond { branches: graphs }), &operands, source);
    let (values, tangents) = results.split_at(branches[0].outputs.len());
    (values.to_vec(), tangents.to_vec())
}

/// A choice of values and residuals, then a linear one.
fn split(
    branches: &[Rc<Linearized>],
    index: Tensor,
    primals: &[Tensor],
    tangents: &[Tensor],
    source: Source,
) -> Split {
    // Places for residuals, by type; and the place of each branch's residuals.
    let mut places: Vec<TensorType> = Vec::new();
    let chosen: Vec<Vec<(ValueId, usize)>> = branches
        .iter()
        .map(|branch| {
            let tangents_out = present(&branch.tangents_out);
            let saved = residuals::choose(&branch.graph, &branch.inputs, 0, &tangents_out).stacked;
            let mut taken = vec![false; places.len()];
            saved
                .into_iter()
                .map(|value| {
                    let ty = branch.graph.ty(value);
                    let free = (0..places.len()).find(|&p| !taken[p] && places[p] == *ty);
                    let place = free.unwrap_or_else(|| {
                        places.push(ty.clone());
                        taken.push(false);
                        places.len() - 1
                    });
                    taken[place] = true;
                    (value, place)
                })
                .collect()
        })
        .collect();

    let values = branches.iter().zip(&chosen).map(|(branch, saved)| {
        let saved_values: Vec<ValueId> = saved.iter().map(|(value, _)| *value).collect();
        let outputs = [&branch.outputs[..], &saved_values].concat();
        let whole = (&branch.graph, Effects::Keep);
        let graph = cut(whole, &branch.inputs, &outputs, source);
        let count = branch.outputs.len();
        wrapped(&graph, |outputs| {
            let mut all = outputs[..count].to_vec();
            for (place, ty) in places.iter().enumerate() {
                let own = saved.iter().position(|(_, p)| *p == place);
                all.push(own.map_or_else(|| lax::zeros(ty), |own| outputs[count + own]));
            }
            all
        })
    });
    let values = Cond {
        branches: values.collect(),
    };
    let operands = [&[index], primals].concat();
    let results = emit(Op::Cond(values), &operands, source);
    let (results, residuals) = results.split_at(branches[0].outputs.len());

    let linear = branches.iter().zip(&chosen).map(|(branch, saved)| {
        let traced = region(|| {
            let inputs: Vec<Tensor> = branch
                .inputs
                .iter()
                .map(|&i| input(branch.graph.ty(i).clone()))
                .collect();
            let residuals: Vec<Tensor> = places.iter().map(|ty| input(ty.clone())).collect();
            let tangents_in = present(&branch.tangents_in);
            let tangents: Vec<Tensor> = tangents_in
                .iter()
                .map(|&t| input(branch.graph.ty(t).clone()))
                .collect();
            let saved_values: Vec<ValueId> = saved.iter().map(|(value, _)| *value).collect();
            let known = [&branch.inputs[..], &saved_values, &tangents_in].concat();
            let graph = cut(
                (&branch.graph, Effects::Drop),
                &known,
                &present(&branch.tangents_out),
                source,
            );
            let own: Vec<Tensor> = saved.iter().map(|&(_, place)| residuals[place]).collect();
            inline(&graph, &[inputs, own, tangents].concat())
        });
        Arc::new(finished(traced.graph, &traced.result))
    });
    let linear = Cond {
        branches: linear.collect(),
    };
    let operands = [&[index], primals, residuals, tangents].concat();
    let tangents = emit(Op::Cond(linear), &operands, source);
    (results.to_vec(), tangents.to_vec())
}

fn present(values: &[Option<ValueId>]) -> Vec<ValueId> {
    values.iter().flatten().copied().collect()
}

fn cut(
    (graph, effects): (&Graph, Effects),
    inputs: &[ValueId],
    outputs: &[ValueId],
    source: Source,
) -> Arc<Graph> {
    match graph.extract(inputs, outputs, effects) {
        Ok(graph) => Arc::new(graph),
        Err(missing) => {
            let problem = format!("{} values of a branch were not kept", missing.len());
            let kind = ErrorKind::Derivative {
                op: "cond",
                problem,
            };
            fail_at(kind, None, source)
        }
    }
}

/// `graph` with other outputs, made of its own.
fn wrapped(graph: &Graph, outputs: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Arc<Graph> {
    let traced = region(|| {
        let inputs: Vec<Tensor> = graph
            .inputs()
            .iter()
            .map(|&i| input(graph.ty(i).clone()))
            .collect();
        outputs(&inline(graph, &inputs))
    });
    Arc::new(finished(traced.graph, &traced.result))
}

/// The transpose of a linear choice: the choice of the transposes.
pub(crate) fn transpose_cond(
    cond: &Cond,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
    source: Source,
) -> Tangents {
    let rest = &operands[1..];
    let transposed = |branch: &Arc<Graph>| transposed(branch, rest, cotangents, true, source).0;
    let branches = cond.branches.iter().map(transposed).collect();
    let mut all = vec![operands[0].tensor];
    all.extend(transposed_operands(rest, cotangents));
    let mut results = emit(Op::Cond(Cond { branches }), &all, source).into_iter();
    let mut cts: Tangents = smallvec![None; operands.len()];
    for (slot, _) in cts.iter_mut().zip(operands).filter(|(_, o)| o.linear) {
        *slot = results.next();
    }
    cts
}
