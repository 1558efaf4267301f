//! Derivatives of graphs: forward, and its transpose.
//!
//! Reverse mode is two steps. First the graph is emitted again on [`Dual`]s, which writes its
//! values and, as a linear function of placeholder tangents, its derivative. Then the linear
//! equations, and they alone, are walked backwards and transposed. The forward tangents are left
//! without readers and are pruned. (Frostig, Johnson, Maclaurin, Paszke, Radul: "Decomposing
//! reverse-mode automatic differentiation", 2021.)

use std::collections::{BTreeSet, HashMap, HashSet};

use smallvec::SmallVec;

use super::cotangents::Cotangents;
use super::once::remembering;
use crate::error::Source;
use crate::graph::{Equation, Graph, ValueId};
use crate::op::Op;
use crate::rules;
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{
    Position, at, backward, emit, emit1, handle, make_room, position, since, with_origin,
};
use crate::types::TensorType;

/// Tangents or cotangents; `None` is a zero that is never written down.
pub(crate) type Tangents = SmallVec<[Option<Tensor>; 4]>;

/// A value and its tangent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dual {
    pub primal: Tensor,
    pub tangent: Option<Tensor>,
}

/// What the derivative is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    /// Values and tangents are wanted together: a loop carries both.
    Forward,
    /// The tangents will be transposed: a loop is split into one that keeps what the linear part
    /// needs, and a linear one.
    Linearize,
}

/// Emits the equations of `graph` into the innermost frame.
pub(crate) fn inline(graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    evaluate(graph, inputs, |equation, operands| {
        emit(equation.op.clone(), operands, equation.source)
    })
}

/// Emits the equations of `graph` on duals.
pub(crate) fn jvp_graph(graph: &Graph, inputs: &[Dual], mode: Mode) -> Vec<Dual> {
    // A value, its slope, its tangent and its cotangent, and as much again for what is done with them.
    make_room(8 * graph.equations().len());
    let on_duals = |equation: &Equation, operands: &[Dual]| {
        if operands.iter().any(|d| d.tangent.is_some()) {
            return rules::jvp::jvp(equation, operands, mode);
        }
        let primals: SmallVec<[Tensor; 4]> = operands.iter().map(|d| d.primal).collect();
        let results = emit(equation.op.clone(), &primals, equation.source);
        let constant = |primal| Dual {
            primal,
            tangent: None,
        };
        results.into_iter().map(constant).collect()
    };
    remembering(|| evaluate(graph, inputs, on_duals))
}

/// Runs `apply` on the equations of `graph`, with whatever stands for its values.
pub(crate) fn evaluate<T: Copy>(
    graph: &Graph,
    inputs: &[T],
    mut apply: impl FnMut(&Equation, &[T]) -> SmallVec<[T; 1]>,
) -> Vec<T> {
    let mut values: Vec<Option<T>> = vec![None; graph.value_count()];
    for (&id, &value) in graph.inputs().iter().zip(inputs) {
        values[id.index()] = Some(value);
    }
    // A graph defines every value before it is read, so nothing is left out here.
    let read = |values: &[Option<T>], ids: &[ValueId]| -> SmallVec<[T; 4]> {
        ids.iter().filter_map(|id| values[id.index()]).collect()
    };
    for equation in graph.equations() {
        let operands = read(&values, &equation.operands);
        let results = with_origin(equation, || apply(equation, &operands));
        for (id, value) in equation.results.iter().zip(results) {
            values[id.index()] = Some(value);
        }
    }
    read(&values, graph.outputs()).into_vec()
}

/// A linear program in the innermost frame: everything emitted since a position that depends on
/// its placeholders.
pub(crate) struct Linear {
    start: Position,
    placeholders: Vec<Option<Tensor>>,
}

impl Linear {
    /// Makes a placeholder tangent for each type that is wanted, and begins to record.
    pub(crate) fn begin(
        types: impl IntoIterator<Item = Option<TensorType>>,
        source: Source,
    ) -> Self {
        let start = position();
        let placeholder = |ty: TensorType| emit1(Op::Tangent(ty), &[], source);
        Linear {
            start,
            placeholders: types.into_iter().map(|ty| ty.map(placeholder)).collect(),
        }
    }

    /// The placeholders, in the order of the types given.
    pub(crate) fn tangents(&self) -> &[Option<Tensor>] {
        &self.placeholders
    }

    /// Ends the recording and emits the transpose: from cotangents of tangents that were emitted
    /// to cotangents of the placeholders.
    pub(crate) fn transpose(
        self,
        outputs: impl IntoIterator<Item = (Option<Tensor>, Option<Tensor>)>,
        source: Source,
    ) -> Vec<Option<Tensor>> {
        let written = since(self.start, |equations| {
            (equations.len(), linear_values(equations, self.start.values))
        });
        // The frame is the one in which the recording began: nothing is called in between.
        let Some((count, linear)) = written else {
            return vec![None; self.placeholders.len()];
        };
        backward(|| at(source, || self.transposed(count, &linear, outputs)))
    }

    /// The transpose of those of the first `count` equations that are linear.
    fn transposed(
        &self,
        count: usize,
        linear: &ValueSet,
        outputs: impl IntoIterator<Item = (Option<Tensor>, Option<Tensor>)>,
    ) -> Vec<Option<Tensor>> {
        let mut cotangents = Cotangents::new(self.start.values);
        for (tangent, cotangent) in outputs {
            if let (Some(tangent), Some(cotangent)) = (tangent, cotangent) {
                cotangents.add(tangent.value, cotangent);
            }
        }
        let is_transposed = |equation: &Equation| {
            let is_linear = equation.results.first().is_some_and(|r| linear.has(*r));
            is_linear && !matches!(equation.op, Op::Tangent(_))
        };
        for position in (0..count).rev() {
            // A copy, for what its rule emits is written after it.
            let equation = since(self.start, |equations| {
                let equation = &equations[position];
                is_transposed(equation).then(|| equation.clone())
            });
            let Some(equation) = equation.flatten() else {
                continue;
            };
            let cts: Tangents = equation
                .results
                .iter()
                .map(|r| cotangents.take(*r))
                .collect();
            if cts.iter().all(Option::is_none) {
                continue;
            }
            let operands: SmallVec<[Operand; 4]> = equation
                .operands
                .iter()
                .map(|&o| Operand {
                    tensor: handle(o),
                    linear: linear.has(o),
                })
                .collect();
            with_origin(&equation, || {
                let cts = rules::transpose::transpose(&equation, &operands, &cts);
                for (operand, ct) in equation.operands.iter().zip(cts) {
                    if let (true, Some(ct)) = (linear.has(*operand), ct) {
                        cotangents.add(*operand, ct);
                    }
                }
            });
        }
        let mut of = |t: Option<Tensor>| t.and_then(|t| cotangents.take(t.value));
        self.placeholders.iter().map(|&p| of(p)).collect()
    }
}

/// A linear function as a graph of its own, which can be applied and transposed wherever what it
/// reads is known.
pub(crate) struct LinearMap {
    /// From known values and tangents to the tangents that are not zero.
    graph: Graph,
    known: Vec<Tensor>,
    inputs: Vec<TensorType>,
    /// Which results have a tangent.
    outputs: Vec<bool>,
}

impl LinearMap {
    /// The part of the innermost frame that computes `outputs` from the placeholders of `linear`.
    pub(crate) fn new(linear: Linear, outputs: &[Option<Tensor>]) -> Self {
        let written = since(linear.start, |equations| {
            let members = linear_values(equations, linear.start.values);
            let is_linear = |e: &&Equation| e.results.first().is_some_and(|r| members.has(*r));
            let equations: Vec<Equation> = equations.iter().filter(is_linear).cloned().collect();
            (equations, members)
        });
        // The frame is the one in which the recording began: nothing is called in between.
        let (equations, members) = written.unwrap_or_else(|| (Vec::new(), ValueSet::default()));
        let mut needed: HashSet<ValueId> = outputs.iter().flatten().map(|t| t.value).collect();
        let mut read: BTreeSet<ValueId> = BTreeSet::new();
        read.extend(needed.iter().filter(|v| !members.has(**v)));
        let mut kept: Vec<&Equation> = Vec::new();
        for equation in equations.iter().rev() {
            let is_placeholder = matches!(equation.op, Op::Tangent(_));
            if is_placeholder || !equation.results.iter().any(|r| needed.contains(r)) {
                continue;
            }
            kept.push(equation);
            for &operand in &equation.operands {
                needed.insert(operand);
                if !members.has(operand) {
                    read.insert(operand);
                }
            }
        }
        let known: Vec<Tensor> = read.iter().map(|&v| handle(v)).collect();
        let placeholders: Vec<Tensor> = linear.placeholders.iter().flatten().copied().collect();
        let mut graph = Graph::default();
        let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
        for tensor in known.iter().chain(&placeholders) {
            renamed.insert(tensor.value, graph.new_input(tensor.ty()));
        }
        let mut rename = |graph: &mut Graph, value: ValueId| {
            let new = || graph.new_value(handle(value).ty());
            *renamed.entry(value).or_insert_with(new)
        };
        for equation in kept.into_iter().rev() {
            let operands = equation.operands.iter();
            let operands = operands.map(|&o| rename(&mut graph, o)).collect();
            let results = equation.results.iter();
            let results = results.map(|&r| rename(&mut graph, r)).collect();
            graph.equations.push(Equation {
                operands,
                results,
                ..equation.clone()
            });
        }
        let present = outputs.iter().flatten();
        graph.outputs = present.map(|t| rename(&mut graph, t.value)).collect();
        LinearMap {
            graph,
            known,
            inputs: placeholders.iter().map(|t| t.ty()).collect(),
            outputs: outputs.iter().map(Option::is_some).collect(),
        }
    }

    /// The results' tangents, for those of the inputs.
    pub(crate) fn apply(&self, tangents: &[Tensor]) -> Vec<Option<Tensor>> {
        let inputs = [self.known.as_slice(), tangents].concat();
        let mut results = inline(&self.graph, &inputs).into_iter();
        let outputs = self.outputs.iter();
        outputs
            .map(|&present| if present { results.next() } else { None })
            .collect()
    }

    /// The inputs' cotangents, for those of the results.
    pub(crate) fn transpose(
        &self,
        cotangents: &[Option<Tensor>],
        source: Source,
    ) -> Vec<Option<Tensor>> {
        let linear = Linear::begin(self.inputs.iter().cloned().map(Some), source);
        let tangents: Vec<Tensor> = linear.tangents().iter().flatten().copied().collect();
        let results = at(source, || self.apply(&tangents));
        linear.transpose(results.into_iter().zip(cotangents.iter().copied()), source)
    }
}

/// Which values depend on a placeholder; no value before `first` does.
pub(crate) fn linear_values(equations: &[Equation], first: usize) -> ValueSet {
    let mut linear = ValueSet {
        first,
        members: Vec::new(),
    };
    for equation in equations {
        let seed = matches!(equation.op, Op::Tangent(_));
        if seed || equation.operands.iter().any(|o| linear.has(*o)) {
            for result in &equation.results {
                linear.insert(*result);
            }
        }
    }
    linear
}

/// A set of values of one graph.
#[derive(Default)]
pub(crate) struct ValueSet {
    /// No value before it is a member: a small derivative in a large program stays small.
    first: usize,
    members: Vec<bool>,
}

impl ValueSet {
    fn insert(&mut self, value: ValueId) {
        let Some(position) = value.index().checked_sub(self.first) else {
            return;
        };
        if self.members.len() <= position {
            self.members.resize(position + 1, false);
        }
        self.members[position] = true;
    }

    pub(crate) fn has(&self, value: ValueId) -> bool {
        let position = value.index().checked_sub(self.first);
        position
            .and_then(|p| self.members.get(p))
            .copied()
            .unwrap_or(false)
    }
}
