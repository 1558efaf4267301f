//! Making operands agree on the axes that they vary over.
//!
//! An operation between a value that devices hold in common and one that is each device's own gives
//! one that is each device's own. Before such an operation the common value is marked as varying, by
//! [`CollectiveOp::Vary`]: it sends nothing, and its transpose is the sum over the devices, so that
//! the gradient of a common value is summed exactly once, wherever it is used. The marks are put here,
//! as equations are written; functions inside of operations are written again where they must be.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::context::{in_region, is_manual, manual_axes};
use crate::error::{ErrorKind, Source};
use crate::graph::Graph;
use crate::op::{
    Collective, CollectiveOp, Cond, Custom, Manual, ManualAxis, Op, Remat, Scan, While,
};
use crate::tensor::Tensor;
use crate::trace::{emit1, fail_at, input, region, type_of};
use crate::transform::{finished, inline};
use crate::types::TensorType;
use crate::varying::Varying;

type Operands = SmallVec<[Tensor; 4]>;

/// The operation, in a manual region, with its operands marked where they have to be; none if it would
/// change nothing, and the operand is the result.
pub(crate) fn agreed(op: Op, operands: &[Tensor], source: Source) -> (Option<Op>, Operands) {
    let mut operands = Operands::from_slice(operands);
    let types: SmallVec<[TensorType; 4]> = operands
        .iter()
        .map(|t| type_of(*t, op.name(), source))
        .collect();
    let vary: Vec<Varying> = types.iter().map(|ty| ty.varying).collect();
    let all = vary.iter().fold(Varying::NOTHING, |all, v| all.union(*v));
    let op = match op {
        Op::Collective(collective) => match marked(collective, &vary) {
            Some((collective, wanted)) => {
                mark(&mut operands, &vary, &[wanted], source);
                Op::Collective(collective)
            }
            None => return (None, operands),
        },
        Op::Scan(scan) => {
            let scan = settled_scan(scan, &vary);
            mark(&mut operands, &vary, &inputs(&scan.body), source);
            Op::Scan(scan)
        }
        Op::While(looped) => {
            let looped = settled_while(looped, &vary, source);
            mark(&mut operands, &vary, &inputs(&looped.body), source);
            Op::While(looped)
        }
        Op::Cond(cond) => {
            let cond = settled_cond(cond, &vary, source);
            let mut wanted = vec![vary[0]];
            wanted.extend(cond.branches.first().into_iter().flat_map(|b| inputs(b)));
            mark(&mut operands, &vary, &wanted, source);
            Op::Cond(cond)
        }
        Op::Remat(remat) => {
            let body = promoted(&remat.body, &vary, &[]);
            mark(&mut operands, &vary, &inputs(&body), source);
            Op::Remat(Remat { body, ..remat })
        }
        Op::Custom(custom) => {
            let body = promoted(&custom.body, &vary, &[]);
            mark(&mut operands, &vary, &inputs(&body), source);
            Op::Custom(Box::new(Custom { body, ..*custom }))
        }
        Op::Manual(manual) => {
            let named = manual.inputs.iter().map(Manual::named_by);
            let inner: Vec<Varying> = vary.iter().zip(named).map(|(v, n)| v.union(n)).collect();
            let own = manual.names();
            let body = in_region(&manual.axes, || promoted(&manual.body, &inner, &[]));
            let wanted: Vec<Varying> = inputs(&body).iter().map(|v| v.without(own)).collect();
            mark(&mut operands, &vary, &wanted, source);
            Op::Manual(Manual { body, ..manual })
        }
        op if is_elementary(&op) => {
            mark(&mut operands, &vary, &vec![all; vary.len()], source);
            op
        }
        op => op,
    };
    (Some(op), operands)
}

/// Whether the results vary as the operands do together.
pub(crate) fn is_elementary(op: &Op) -> bool {
    !matches!(
        op,
        Op::Constant(_)
            | Op::Iota { .. }
            | Op::Tangent(_)
            | Op::OptimizationBarrier
            | Op::Collective(_)
            | Op::Manual(_)
            | Op::Scan(_)
            | Op::While(_)
            | Op::Cond(_)
            | Op::Remat(_)
            | Op::Custom(_)
            | Op::CustomLinear(_)
    )
}

/// The collective, and what its operand has to vary over; `None` if it is a mark that is there.
fn marked(collective: Collective, vary: &[Varying]) -> Option<(Collective, Varying)> {
    let own = vary.first().copied().unwrap_or_default();
    match collective.kind {
        CollectiveOp::AxisIndex => Some((collective, own)),
        CollectiveOp::Vary => {
            let missing = |axis: &ManualAxis| !own.contains(axis.name());
            let axes: Vec<ManualAxis> = collective.axes.into_iter().filter(missing).collect();
            let kind = CollectiveOp::Vary;
            (!axes.is_empty()).then_some((Collective { kind, axes }, own))
        }
        CollectiveOp::AssumeInvariant => {
            let differing = |axis: &ManualAxis| own.contains(axis.name());
            let axes: Vec<ManualAxis> = collective.axes.into_iter().filter(differing).collect();
            let kind = CollectiveOp::AssumeInvariant;
            (!axes.is_empty()).then_some((Collective { kind, axes }, own))
        }
        _ => {
            let wanted = own.union(collective.names());
            Some((collective, wanted))
        }
    }
}

/// Marks operands as varying over what is wanted of them.
fn mark(operands: &mut Operands, vary: &[Varying], wanted: &[Varying], source: Source) {
    for ((operand, own), wanted) in operands.iter_mut().zip(vary).zip(wanted) {
        *operand = varying_over(*operand, *own, *wanted, source);
    }
}

/// Tensors whose elements `combine` combines with each other, varying as what it makes of them does.
pub(crate) fn settled_elements(
    mut xs: Vec<Tensor>,
    combine: impl Fn(&[Tensor]) -> Vec<Tensor>,
    source: Source,
) -> Vec<Tensor> {
    if !is_manual() {
        return xs;
    }
    loop {
        let found = region(|| {
            let own: Vec<Tensor> = xs.iter().map(|x| input(x.ty())).collect();
            let combined = combine(&own);
            combined.iter().map(|t| t.ty().varying).collect::<Vec<_>>()
        });
        let mut is_settled = true;
        for (x, found) in xs.iter_mut().zip(found.result) {
            let own = x.ty().varying;
            is_settled &= found.is_within(own);
            *x = varying_over(*x, own, found, source);
        }
        if is_settled {
            return xs;
        }
    }
}

/// `x`, marked as varying over these axes too.
pub(crate) fn varying_over(x: Tensor, own: Varying, wanted: Varying, source: Source) -> Tensor {
    let missing = wanted.without(own);
    if missing.is_empty() {
        return x;
    }
    let mut axes = manual_axes();
    axes.retain(|axis| missing.contains(axis.name()));
    let collective = Collective {
        kind: CollectiveOp::Vary,
        axes,
    };
    emit1(Op::Collective(collective), &[x], source)
}

fn inputs(body: &Graph) -> Vec<Varying> {
    body.inputs().iter().map(|&i| body.ty(i).varying).collect()
}

fn outputs(body: &Graph) -> Vec<Varying> {
    body.outputs().iter().map(|&o| body.ty(o).varying).collect()
}

/// The same function of inputs, and with outputs, that vary at least over these axes.
pub(crate) fn promoted(body: &Arc<Graph>, least: &[Varying], results: &[Varying]) -> Arc<Graph> {
    let fits = |own: Vec<Varying>, least: &[Varying]| {
        own.iter()
            .zip(least)
            .all(|(own, least)| least.is_within(*own))
    };
    if fits(inputs(body), least) && fits(outputs(body), results) {
        return Arc::clone(body);
    }
    let traced = region(|| {
        let least = least
            .iter()
            .copied()
            .chain(std::iter::repeat(Varying::NOTHING));
        let own: Vec<Tensor> = body
            .inputs()
            .iter()
            .zip(least)
            .map(|(&i, least)| {
                let ty = body.ty(i);
                input(ty.with_varying(ty.varying.union(least)))
            })
            .collect();
        let wanted = results
            .iter()
            .copied()
            .chain(std::iter::repeat(Varying::NOTHING));
        let results = inline(body, &own).into_iter().zip(wanted);
        results
            .map(|(t, wanted)| {
                let source = std::panic::Location::caller();
                varying_over(t, t.ty().varying, wanted, source)
            })
            .collect::<Vec<Tensor>>()
    });
    Arc::new(finished(traced.graph, &traced.result))
}

/// A loop whose carries come out varying as they go in.
fn settled_scan(mut scan: Scan, vary: &[Varying]) -> Scan {
    let mut least: Vec<Varying> = vary.to_vec();
    loop {
        let carries: Vec<Varying> = inputs(&scan.body)
            .into_iter()
            .zip(&least)
            .map(|(own, least)| own.union(*least))
            .take(scan.carries)
            .collect();
        scan.body = promoted(&scan.body, &least, &carries);
        let found = outputs(&scan.body);
        if found[..scan.carries] == carries[..] {
            return scan;
        }
        least[..scan.carries].copy_from_slice(&found[..scan.carries]);
    }
}

/// [`settled_scan`]; devices that end their loops apart cannot tell each other anything in them.
fn settled_while(mut looped: While, vary: &[Varying], source: Source) -> While {
    let mut least: Vec<Varying> = vary.to_vec();
    loop {
        looped.cond = promoted(&looped.cond, &least, &[]);
        let decided = outputs(&looped.cond).first().copied().unwrap_or_default();
        for graph in [&looped.cond, &looped.body] {
            refuse_divided("while_loop", "its condition", graph, decided, source);
        }
        let carries: Vec<Varying> = inputs(&looped.body)
            .into_iter()
            .zip(&least)
            .map(|(own, least)| own.union(*least).union(decided))
            .take(looped.carries)
            .collect();
        least[..looped.carries].copy_from_slice(&carries);
        looped.body = promoted(&looped.body, &least, &carries);
        looped.cond = promoted(&looped.cond, &least, &[]);
        let found = outputs(&looped.body);
        let decided_now = outputs(&looped.cond).first().copied().unwrap_or_default();
        if found[..looped.carries] == carries[..] && decided_now == decided {
            return looped;
        }
        least[..looped.carries].copy_from_slice(&found[..looped.carries]);
    }
}

/// A choice whose branches return what varies alike. Where devices choose differently, what they choose
/// with is marked before the choice: the derivative of a mark is a sum over devices, and inside of a
/// branch some would wait for it for ever.
fn settled_cond(mut cond: Cond, vary: &[Varying], source: Source) -> Cond {
    let chosen = vary[0];
    for branch in &cond.branches {
        refuse_divided("cond", "which branch is taken", branch, chosen, source);
    }
    let mut wanted: Vec<Varying> = Vec::new();
    let mut least: Vec<Varying> = vary[1..].iter().map(|own| own.union(chosen)).collect();
    for branch in &cond.branches {
        for (least, own) in least.iter_mut().zip(inputs(branch)) {
            *least = least.union(own);
        }
    }
    let mut branches: Vec<Arc<Graph>> = cond
        .branches
        .iter()
        .map(|branch| promoted(branch, &least, &[]))
        .collect();
    for branch in &branches {
        let found = outputs(branch);
        wanted.resize(found.len(), chosen);
        for (wanted, own) in wanted.iter_mut().zip(found) {
            *wanted = wanted.union(own);
        }
    }
    for branch in &mut branches {
        *branch = promoted(branch, &least, &wanted);
    }
    cond.branches = branches;
    cond
}

/// Ends the trace if devices that decide differently would wait for each other in `graph`.
fn refuse_divided(op: &'static str, what: &str, graph: &Graph, decided: Varying, source: Source) {
    let Some((name, axis)) = waits(graph, decided) else {
        return;
    };
    let problem = format!(
        "{what} differs between devices along `{axis}`, and `{name}` inside waits for all of them: \
         it would wait for ever"
    );
    let help = format!(
        "decide alike on all devices, for example by `pmax(predicate, \"{axis}\")`, or compute both \
         branches and choose with `select`"
    );
    fail_at(ErrorKind::Argument { op, problem }, Some(help), source)
}

/// A collective in `graph`, or inside of its regions, over one of these axes.
fn waits(graph: &Graph, over: Varying) -> Option<(&'static str, &'static str)> {
    if over.is_empty() {
        return None;
    }
    graph.equations().iter().find_map(|equation| {
        if let Op::Collective(collective) = &equation.op
            && collective.kind.communicates()
            && let Some(axis) = collective
                .axes
                .iter()
                .find(|axis| over.contains(axis.name()))
        {
            return Some((collective.kind.name(), axis.name()));
        }
        let regions = equation.op.regions();
        regions.iter().find_map(|(_, graph)| waits(graph, over))
    })
}
