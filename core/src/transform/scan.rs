//! Loops with a fixed number of iterations, and their derivatives.
//!
//! The derivative of a loop, when it will be transposed, is two loops: the first computes the
//! values and stacks what the linear part will read (the *residuals*), the second is linear and is
//! later run backwards. Which residuals are stacked is chosen here, see [`residuals`].

use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::linearize::{Dual, Linear, Mode, Tangents, inline, jvp_graph};
use super::residuals;
use crate::error::{ErrorKind, Source};
use crate::graph::{Equation, Graph, ValueId};
use crate::lax;
use crate::op::{Op, Scan, Unary};
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{Region, emit, fail_at, input, localize, region, type_of};
use crate::tree::{Path, Tree};
use crate::types::TensorType;

/// Runs `f(carry, x) -> (carry, y)` over the leading dimension of the leaves of `xs`, and stacks
/// the `y`s.
///
/// All leaves of `xs` have the same leading size. The carry keeps its types. The compiled program
/// contains the body once, whatever the number of iterations.
///
/// ```
/// use shardax_core::{Tensor, TensorType, DType, scan, trace};
///
/// let running_sum = |x: Tensor| {
///     let zero = Tensor::scalar(0.0, DType::F32);
///     let (_, sums) = scan(zero, x, |sum: Tensor, x: Tensor| (sum + x, sum + x));
///     sums
/// };
/// let program = trace(running_sum, TensorType::new(DType::F32, [5]))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[5]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn scan<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    carry: C,
    xs: X,
    f: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    scan_in(carry, xs, f, false, Location::caller())
}

/// [`scan`] from the last element to the first; `ys` keep the order of `xs`.
#[track_caller]
pub fn scan_reverse<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    carry: C,
    xs: X,
    f: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    scan_in(carry, xs, f, true, Location::caller())
}

fn scan_in<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    carry: C,
    xs: X,
    f: impl FnOnce(C, X) -> (C, Y),
    reverse: bool,
    source: Source,
) -> (C, Y) {
    let carry_leaves = carry.leaves();
    let xs_leaves = xs.leaves();
    let length = leading_size(&xs, source);
    let traced = region(|| {
        let carry = carry.replace_leaves(&mut |_, t: &Tensor| input(type_of(*t, "scan", source)));
        let x = xs.replace_leaves(&mut |_, t: &Tensor| {
            let ty = type_of(*t, "scan", source);
            input(TensorType::new(ty.dtype, &ty.shape[1..]))
        });
        let (carry, y) = f(carry, x);
        let here = |_: &mut Path, t: &Tensor| localize(*t, source);
        (
            carry.replace_leaves(&mut { here }),
            y.replace_leaves(&mut { here }),
        )
    });
    let Region {
        result: (carry, y),
        mut graph,
        captures,
    } = traced;
    let (carry_out, y_out) = (carry.leaves(), y.leaves());
    graph.outputs = carry_out.iter().chain(&y_out).map(|t| t.value).collect();
    check_carry(&graph, &carry, &carry_leaves, source);
    graph.prune();
    let operands: Vec<Tensor> = carry_leaves
        .iter()
        .chain(&xs_leaves)
        .chain(&captures)
        .copied()
        .collect();
    let op = Op::Scan(Scan {
        body: Arc::new(graph),
        length,
        reverse,
        carries: carry_leaves.len(),
        xs: xs_leaves.len(),
    });
    let results = emit(op, &operands, source);
    let (carries, ys) = results.split_at(carry_leaves.len());
    (carry.with_leaves(carries), y.with_leaves(ys))
}

fn leading_size<X: Tree<Tensor>>(xs: &X, source: Source) -> usize {
    let mut sizes: Vec<(String, TensorType)> = Vec::new();
    xs.visit_leaves(&mut Path::root(), &mut |path, t| {
        sizes.push((path.leaf_of("xs"), type_of(*t, "scan", source)));
    });
    let first = sizes.iter().find_map(|(_, ty)| ty.shape.first().copied());
    let differs = sizes
        .iter()
        .any(|(_, ty)| ty.shape.first().copied() != first);
    match first {
        Some(length) if !differs => length,
        _ => {
            let listed: Vec<String> = sizes
                .iter()
                .map(|(leaf, ty)| format!("{leaf} is {ty}"))
                .collect();
            let (problem, help) = if sizes.is_empty() {
                let problem = "there is nothing to scan over: xs has no leaves".to_owned();
                (
                    problem,
                    "to count iterations, scan over `Tensor::arange(DType::I32, count)`",
                )
            } else {
                let listed = listed.join(", ");
                let problem = format!("the leaves of xs have no common leading size: {listed}");
                (
                    problem,
                    "every leaf of xs needs the same size in dimension 0",
                )
            };
            fail_at(
                ErrorKind::Shape {
                    op: "scan",
                    problem,
                },
                Some(help.into()),
                source,
            )
        }
    }
}

fn check_carry<C: Tree<Tensor>>(graph: &Graph, carry: &C, initial: &[Tensor], source: Source) {
    let mut problems = Vec::new();
    let mut position = 0;
    carry.visit_leaves(&mut Path::root(), &mut |path, t| {
        let (before, after) = (initial.get(position).map(|t| t.ty()), graph.ty(t.value));
        if let Some(before) = before.filter(|before| before != after) {
            let leaf = path.leaf_of("carry");
            problems.push(format!(
                "{leaf} goes in as {before} and comes out as {after}"
            ));
        }
        position += 1;
    });
    if position != initial.len() {
        let count = initial.len();
        problems.push(format!(
            "it goes in with {count} leaves and comes out with {position}"
        ));
    }
    if !problems.is_empty() {
        let problem = format!("the carry changes its type: {}", problems.join("; "));
        let help = "make the body return the carry as it came, for example with `.cast(...)`";
        fail_at(
            ErrorKind::Shape {
                op: "scan",
                problem,
            },
            Some(help.into()),
            source,
        )
    }
}

/// The derivative of a loop.
pub(crate) fn jvp_scan(
    equation: &Equation,
    scan: &Scan,
    operands: &[Dual],
    mode: Mode,
) -> SmallVec<[Dual; 1]> {
    let active = active_operands(scan, operands);
    let body = Linearized::of(equation, scan, &active, mode);
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
            Op::StopGradient | Op::Compare(_) | Op::Unary(Unary::Floor | Unary::Sign)
        );
        if !cut && equation.operands.iter().any(|o| active[o.index()]) {
            for result in &equation.results {
                active[result.index()] = graph.ty(*result).dtype.is_differentiable();
            }
        }
    }
    graph.outputs().iter().map(|o| active[o.index()]).collect()
}

/// A body with its derivative, traced into a graph of its own.
struct Linearized {
    graph: Graph,
    inputs: Vec<ValueId>,
    /// By input.
    tangents_in: Vec<Option<ValueId>>,
    outputs: Vec<ValueId>,
    /// By output; every active carry has one.
    tangents_out: Vec<Option<ValueId>>,
}

impl Linearized {
    fn of(equation: &Equation, scan: &Scan, active: &[bool], mode: Mode) -> Self {
        let types: Vec<TensorType> = scan
            .body
            .inputs()
            .iter()
            .map(|&i| scan.body.ty(i).clone())
            .collect();
        let traced = region(|| {
            let inputs: Vec<Tensor> = types.iter().map(|ty| input(ty.clone())).collect();
            let wanted = types
                .iter()
                .zip(active)
                .map(|(ty, &active)| active.then(|| ty.clone()));
            let tangents = Linear::begin(wanted, equation.source).tangents().to_vec();
            let duals: Vec<Dual> = inputs
                .iter()
                .zip(&tangents)
                .map(|(&primal, &tangent)| Dual { primal, tangent })
                .collect();
            let mut outputs = jvp_graph(&scan.body, &duals, mode);
            for (dual, &active) in outputs[..scan.carries].iter_mut().zip(active) {
                let zero = || lax::zeros(&dual.primal.ty());
                dual.tangent = active.then(|| dual.tangent.unwrap_or_else(zero));
            }
            (inputs, tangents, outputs)
        });
        let (inputs, tangents, outputs) = traced.result;
        Linearized {
            graph: traced.graph,
            inputs: inputs.iter().map(|t| t.value).collect(),
            tangents_in: tangents.iter().map(|t| t.map(|t| t.value)).collect(),
            outputs: outputs.iter().map(|d| d.primal.value).collect(),
            tangents_out: outputs.iter().map(|d| d.tangent.map(|t| t.value)).collect(),
        }
    }

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
        let results = fused.emit(&self.graph, &outputs, scan, scan.reverse, equation.source);
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
        let results = values.emit(&self.graph, &outputs, scan, scan.reverse, equation.source);
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
            &self.graph,
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
        graph: &Graph,
        outputs: &[ValueId],
        like: &Scan,
        reverse: bool,
        source: Source,
    ) -> SmallVec<[Tensor; 1]> {
        let all = || self.carries.iter().chain(&self.xs).chain(&self.constants);
        let inputs: Vec<ValueId> = all().map(|(value, _)| *value).collect();
        let operands: Vec<Tensor> = all().map(|(_, tensor)| *tensor).collect();
        let body = graph.extract(&inputs, outputs).unwrap_or_else(|missing| {
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
            carries: self.carries.len(),
            xs: self.xs.len(),
        });
        emit(op, &operands, source)
    }
}

/// The transpose of a linear loop: the other way round, from the cotangents of its results to
/// those of its linear operands. Cotangents of constants are summed in carries.
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

    let mut backward = Loop::default();
    let traced = region(|| {
        let carry_cts: Vec<Tensor> = (0..c).map(|i| input(ty(i))).collect();
        let sums: Vec<Option<Tensor>> = (x..operands.len())
            .map(|i| linear[i].then(|| input(ty(i))))
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
        let cts = carry_cts
            .iter()
            .copied()
            .map(Some)
            .chain(y_cts.iter().copied());
        let mut cts = program.transpose(outputs.into_iter().map(Some).zip(cts), source);
        for (i, ct) in cts.iter_mut().enumerate().filter(|(i, _)| linear[*i]) {
            let value = ct.unwrap_or_else(|| lax::zeros(&ty(i)));
            let sum = i.checked_sub(x).and_then(|i| sums[i]);
            *ct = Some(sum.map_or(value, |sum| lax::add(sum, value)));
        }
        (carry_cts, sums, y_cts, known, cts)
    });
    let (carry_cts, sums, y_cts, known, cts) = traced.result;

    let zeros = |i: usize| lax::zeros(&operands[i].tensor.ty());
    for (i, ct) in carry_cts.iter().enumerate() {
        backward
            .carries
            .push((ct.value, cotangents[i].unwrap_or_else(|| zeros(i))));
    }
    for (i, sum) in sums.iter().enumerate() {
        backward
            .carries
            .extend(sum.map(|sum| (sum.value, zeros(x + i))));
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
    let results = backward.emit(&traced.graph, &outputs, scan, !scan.reverse, source);
    let mut by_operand: Tangents = smallvec![None; operands.len()];
    for (&i, result) in results_of.iter().zip(results) {
        by_operand[i] = operands[i].linear.then_some(result);
    }
    by_operand
}
