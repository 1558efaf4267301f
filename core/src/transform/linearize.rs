//! Derivatives of graphs: forward, and its transpose.
//!
//! Reverse mode is two steps. First the graph is emitted again on [`Dual`]s, which writes its
//! values and, as a linear function of placeholder tangents, its derivative. Then the linear
//! equations, and they alone, are walked backwards and transposed. The forward tangents are left
//! without readers and are pruned. (Frostig, Johnson, Maclaurin, Paszke, Radul: "Decomposing
//! reverse-mode automatic differentiation", 2021.)

use smallvec::SmallVec;

use crate::error::Source;
use crate::graph::{Graph, ValueId};
use crate::lax;
use crate::op::Op;
use crate::rules;
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{emit, emit1, equation, handle, position, with_origin};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    evaluate(graph, inputs, |equation, operands| {
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
    })
}

fn evaluate<T: Copy>(
    graph: &Graph,
    inputs: &[T],
    mut apply: impl FnMut(&crate::graph::Equation, &[T]) -> SmallVec<[T; 1]>,
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
    start: usize,
    placeholders: Vec<Option<Tensor>>,
}

impl Linear {
    /// Makes a placeholder tangent for each type that is wanted, and begins to record.
    pub(crate) fn begin(types: impl IntoIterator<Item = Option<TensorType>>, at: Source) -> Self {
        let start = position();
        let placeholder = |ty: TensorType| emit1(Op::Tangent(ty), &[], at);
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
    ) -> Vec<Option<Tensor>> {
        let end = position();
        let equations: Vec<_> = (self.start..end).map(equation).collect();
        let linear = linear_values(&equations);
        let mut cotangents = Cotangents::default();
        for (tangent, cotangent) in outputs {
            if let (Some(tangent), Some(cotangent)) = (tangent, cotangent) {
                cotangents.add(tangent.value, cotangent);
            }
        }
        for equation in equations.iter().rev() {
            let is_linear = equation.results.first().is_some_and(|r| linear.has(*r));
            if !is_linear || matches!(equation.op, Op::Tangent(_)) {
                continue;
            }
            let cts: Tangents = equation.results.iter().map(|r| cotangents.take(*r)).collect();
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
            with_origin(equation, || {
                let cts = rules::transpose::transpose(equation, &operands, &cts);
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

/// Which values depend on a placeholder.
pub(crate) fn linear_values(equations: &[crate::graph::Equation]) -> ValueSet {
    let mut linear = ValueSet::default();
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
pub(crate) struct ValueSet(Vec<bool>);

impl ValueSet {
    pub(crate) fn insert(&mut self, value: ValueId) {
        if self.0.len() <= value.index() {
            self.0.resize(value.index() + 1, false);
        }
        self.0[value.index()] = true;
    }

    pub(crate) fn has(&self, value: ValueId) -> bool {
        self.0.get(value.index()).copied().unwrap_or(false)
    }
}

/// Cotangents gathered so far.
#[derive(Default)]
struct Cotangents(Vec<Option<Tensor>>);

impl Cotangents {
    fn add(&mut self, value: ValueId, ct: Tensor) {
        if self.0.len() <= value.index() {
            self.0.resize(value.index() + 1, None);
        }
        let slot = &mut self.0[value.index()];
        *slot = Some(match *slot {
            Some(sum) => lax::add(sum, ct),
            None => ct,
        });
    }

    fn take(&mut self, value: ValueId) -> Option<Tensor> {
        self.0.get_mut(value.index()).and_then(Option::take)
    }
}
