//! Cutting a program out of a larger one.
//!
//! Transforms emit freely and then keep what the results need: a backward pass leaves the forward
//! tangents dead, a linearized loop body is cut in two at its residuals.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Equation, Graph, ValueId, Values};
use crate::op::{Cond, Manual, Op, Remat, Scan, While};

/// What becomes of effects when a program is cut out of a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effects {
    /// They are a part of it.
    Keep,
    /// They happen in another part.
    Drop,
}

impl Graph {
    /// The program that computes `outputs` from `inputs`, both values of this graph. Values on the
    /// way that are listed as inputs are not computed. Inputs that are not needed stay inputs.
    ///
    /// Returns the values that are needed but neither computed nor listed as the error.
    pub(crate) fn extract(
        &self,
        inputs: &[ValueId],
        outputs: &[ValueId],
        effects: Effects,
    ) -> Result<Graph, Vec<ValueId>> {
        let needed = self.needed(inputs, outputs, effects);
        let mut cut = Graph::default();
        let mut renamed: Vec<Option<ValueId>> = vec![None; self.types.len()];
        for &input in inputs {
            let id = cut.new_input(self.ty(input).clone());
            renamed[input.index()].get_or_insert(id);
        }
        let mut missing = Vec::new();
        for (equation, _) in self.equations.iter().zip(&needed).filter(|(_, n)| **n) {
            let operands = equation
                .operands
                .iter()
                .map(|o| {
                    renamed[o.index()].unwrap_or_else(|| {
                        missing.push(*o);
                        *o
                    })
                })
                .collect();
            let results = equation
                .results
                .iter()
                .map(|r| {
                    let id = cut.new_value(self.ty(*r).clone());
                    renamed[r.index()].get_or_insert(id);
                    id
                })
                .collect();
            cut.equations.push(Equation {
                operands,
                results,
                ..equation.clone()
            });
        }
        for &output in outputs {
            match renamed[output.index()] {
                Some(id) => cut.outputs.push(id),
                None => missing.push(output),
            }
        }
        if missing.is_empty() {
            Ok(cut)
        } else {
            Err(missing)
        }
    }

    /// Which equations it takes.
    fn needed(&self, inputs: &[ValueId], outputs: &[ValueId], effects: Effects) -> Vec<bool> {
        let mut values = vec![false; self.types.len()];
        let mut given = vec![false; self.types.len()];
        for input in inputs {
            given[input.index()] = true;
        }
        for output in outputs {
            values[output.index()] = true;
        }
        let mut equations = vec![false; self.equations.len()];
        for (i, equation) in self.equations.iter().enumerate().rev() {
            let wanted = |v: &ValueId| values[v.index()] && !given[v.index()];
            let acts = effects == Effects::Keep && equation.op.has_effect();
            if acts || equation.results.iter().any(wanted) {
                equations[i] = true;
                for operand in &equation.operands {
                    values[operand.index()] = true;
                }
            }
        }
        equations
    }

    /// Removes equations that no result needs, inside of regions too: a loop loses the outputs
    /// and carries that nobody reads.
    pub(crate) fn prune(&mut self) {
        let mut values = vec![false; self.types.len()];
        for output in &self.outputs {
            values[output.index()] = true;
        }
        let mut needed = vec![false; self.equations.len()];
        for (equation, needed) in self.equations.iter_mut().zip(&mut needed).rev() {
            let is_used = |r: &ValueId| values[r.index()];
            *needed = equation.results.iter().any(is_used) || equation.op.has_effect();
            if !*needed {
                continue;
            }
            prune_region(equation, &values);
            for operand in &equation.operands {
                values[operand.index()] = true;
            }
        }
        retain(&mut self.equations, &needed);
    }

    /// Removes calls that are made for their effect alone, inside of regions too.
    pub(crate) fn drop_effects(&mut self) {
        let acts = |e: &Equation| matches!(e.op, Op::Foreign(_)) && e.results.is_empty();
        self.equations.retain(|e| !acts(e));
        for equation in self.equations.iter_mut().filter(|e| e.op.has_effect()) {
            let without = |graph: &mut Arc<Graph>| Arc::make_mut(graph).drop_effects();
            match &mut equation.op {
                Op::Scan(scan) => without(&mut scan.body),
                Op::Remat(remat) => without(&mut remat.body),
                Op::Manual(manual) => without(&mut manual.body),
                Op::Custom(custom) => without(&mut custom.body),
                Op::Cond(cond) => cond.branches.iter_mut().for_each(without),
                Op::While(looped) => {
                    without(&mut looped.cond);
                    without(&mut looped.body);
                }
                // No other operation contains a function.
                _ => {}
            }
        }
    }

    /// Drops inputs by position.
    fn retain_inputs(&mut self, keep: &[bool]) {
        retain(&mut self.inputs, keep);
    }

    /// Whether each input is read by an equation or is a result.
    fn inputs_read(&self) -> Vec<bool> {
        let mut read = vec![false; self.types.len()];
        for equation in &self.equations {
            for operand in &equation.operands {
                read[operand.index()] = true;
            }
        }
        for output in &self.outputs {
            read[output.index()] = true;
        }
        self.inputs.iter().map(|i| read[i.index()]).collect()
    }
}

/// What an equation reads and makes, of which some is no longer needed.
struct Ends<'a> {
    operands: &'a mut Values,
    results: &'a mut SmallVec<[ValueId; 1]>,
}

impl Ends<'_> {
    fn select(&mut self, read: &[bool], used: &[bool]) {
        *self.operands = select(self.operands, read).into();
        *self.results = select(self.results, used).into();
    }
}

/// Leaves a region what is needed for those of its results that are among the `needed` values.
fn prune_region(equation: &mut Equation, needed: &[bool]) {
    if equation.op.regions().is_empty() {
        return;
    }
    let used: Vec<bool> = equation.results.iter().map(|r| needed[r.index()]).collect();
    let ends = Ends {
        operands: &mut equation.operands,
        results: &mut equation.results,
    };
    match &mut equation.op {
        Op::Remat(remat) => prune_remat(remat, ends, &used),
        Op::Scan(scan) => prune_scan(scan, ends, &used),
        Op::Cond(cond) => prune_cond(cond, ends, &used),
        Op::While(looped) => prune_while(looped, ends, &used),
        Op::Manual(manual) => prune_manual(manual, ends, &used),
        // A function with a rule keeps its signature, which the rule has too.
        _ => {}
    }
}

fn prune_cond(cond: &mut Cond, mut ends: Ends, used: &[bool]) {
    let mut read = vec![false; ends.operands.len()];
    read[0] = true;
    for branch in &mut cond.branches {
        let branch = Arc::make_mut(branch);
        branch.outputs = select(&branch.outputs, used);
        branch.prune();
        for (read, own) in read[1..].iter_mut().zip(branch.inputs_read()) {
            *read |= own;
        }
    }
    for branch in &mut cond.branches {
        Arc::make_mut(branch).retain_inputs(&read[1..]);
    }
    ends.select(&read, used);
}

/// A carry is needed when its final value is read, when the condition reads it, or when another one
/// that is needed depends on it.
fn prune_while(looped: &mut While, mut ends: Ends, used: &[bool]) {
    let cond = Arc::make_mut(&mut looped.cond);
    let body = Arc::make_mut(&mut looped.body);
    let decides = cond.inputs_read();
    let wanted: Vec<bool> = used.iter().zip(&decides).map(|(u, d)| u | d).collect();
    let live = live_outputs(body, looped.carries, &wanted);
    body.outputs = select(&body.outputs, &live);
    body.prune();
    let mut read: Vec<bool> = body
        .inputs_read()
        .into_iter()
        .zip(decides)
        .map(|(b, d)| b | d)
        .collect();
    read[..looped.carries].copy_from_slice(&live);
    body.retain_inputs(&read);
    cond.retain_inputs(&read);
    looped.carries = live.iter().filter(|l| **l).count();
    ends.select(&read, &live);
}

fn prune_remat(remat: &mut Remat, mut ends: Ends, used: &[bool]) {
    let body = Arc::make_mut(&mut remat.body);
    let read = prune_body(body, used);
    ends.select(&read, used);
}

fn prune_manual(manual: &mut Manual, mut ends: Ends, used: &[bool]) {
    let body = Arc::make_mut(&mut manual.body);
    let read = prune_body(body, used);
    retain(&mut manual.inputs, &read);
    retain(&mut manual.outputs, used);
    ends.select(&read, used);
}

/// Leaves a function these outputs, and the inputs that it reads for them, which are returned.
fn prune_body(body: &mut Graph, used: &[bool]) -> Vec<bool> {
    body.outputs = select(&body.outputs, used);
    body.prune();
    let read = body.inputs_read();
    body.retain_inputs(&read);
    read
}

/// Which outputs of a loop are needed when `used` ones are. A carry is when its final value is
/// read, or when a needed output depends on it in some iteration; with an effect inside, all are.
fn live_outputs(body: &Graph, carries: usize, used: &[bool]) -> Vec<bool> {
    let mut live = used.to_vec();
    if body.has_effect() {
        live[..carries].fill(true);
    }
    let mut definition: Vec<Option<&Equation>> = vec![None; body.types.len()];
    for equation in &body.equations {
        for result in &equation.results {
            definition[result.index()] = Some(equation);
        }
    }
    let mut carry_of: Vec<Option<usize>> = vec![None; body.types.len()];
    for (carry, input) in body.inputs[..carries].iter().enumerate() {
        carry_of[input.index()] = Some(carry);
    }
    let mut seen = vec![false; body.types.len()];
    let mut pending: Vec<ValueId> = select(&body.outputs, &live);
    while let Some(value) = pending.pop() {
        if std::mem::replace(&mut seen[value.index()], true) {
            continue;
        }
        if let Some(carry) = carry_of[value.index()] {
            live[carry] = true;
            pending.push(body.outputs[carry]);
        }
        pending.extend(definition[value.index()].iter().flat_map(|e| &e.operands));
    }
    live
}

fn prune_scan(scan: &mut Scan, mut ends: Ends, used: &[bool]) {
    let live = live_outputs(&scan.body, scan.carries, used);
    let body = Arc::make_mut(&mut scan.body);
    body.outputs = select(&body.outputs, &live);
    body.prune();
    let mut read = body.inputs_read();
    read[..scan.carries].copy_from_slice(&live[..scan.carries]);
    body.retain_inputs(&read);
    scan.xs = read[scan.carries..scan.carries + scan.xs]
        .iter()
        .filter(|r| **r)
        .count();
    scan.carries = live[..scan.carries].iter().filter(|l| **l).count();
    ends.select(&read, &live);
}

/// Drops items by position.
fn retain<T>(items: &mut Vec<T>, keep: &[bool]) {
    let mut keep = keep.iter();
    items.retain(|_| *keep.next().unwrap_or(&true));
}

fn select(values: &[ValueId], keep: &[bool]) -> Vec<ValueId> {
    values
        .iter()
        .zip(keep)
        .filter(|(_, k)| **k)
        .map(|(v, _)| *v)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Tensor, TensorType, scan, trace};

    fn vector() -> TensorType {
        TensorType::new(DType::F32, [3])
    }

    fn graph(f: impl Fn(Tensor) -> Tensor) -> Graph {
        match trace(f, vector()) {
            Ok(traced) => traced.graph,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_no_result_needs_is_removed() {
        let graph = graph(|x| {
            let _ = x.sin().exp();
            x.cos()
        });
        let names: Vec<&str> = graph.equations().iter().map(|e| e.op.name()).collect();
        assert_eq!(names, ["cos"]);
    }

    #[test]
    fn a_loop_keeps_the_carries_that_its_results_depend_on() {
        let graph = graph(|x| {
            let start = x.sum(..);
            // `a` reads `b` of the iteration before, `b` reads `c`, and nothing reads `d`.
            let body = |(a, b, c, d): (Tensor, Tensor, Tensor, Tensor), x: Tensor| {
                ((a + b, b * c, c + x, d.sin()), d)
            };
            scan((start, start, start, start), x, body).0.0
        });
        let Some(Op::Scan(scan)) = graph.equations().last().map(|e| &e.op) else {
            panic!("the loop is gone");
        };
        assert_eq!(
            (scan.carries, scan.xs, scan.body.outputs().len()),
            (3, 1, 3)
        );
    }

    #[test]
    fn a_cut_reads_its_inputs_and_says_what_it_lacks() {
        let graph = graph(|x| (x.sin() * x).exp());
        let result = |i: usize| graph.equations()[i].results[0];
        let (sin, product, exp) = (result(0), result(1), result(2));
        let cut = graph
            .extract(&[product], &[exp], Effects::Drop)
            .map(|g| g.equations().len());
        assert_eq!(cut, Ok(1));
        assert_eq!(
            graph.extract(&[sin], &[exp], Effects::Drop),
            Err(vec![graph.inputs()[0]])
        );
    }
}
