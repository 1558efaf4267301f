//! Derivatives of functions inside operations: what loops, choices and recomputation share.

use std::rc::Rc;
use std::sync::Arc;

use super::close::finished;
use super::linearize::{Dual, Linear, Mode, Tangents, inline, jvp_graph};
use super::once::{Question, once};
use crate::error::Source;
use crate::graph::{Graph, ValueId};
use crate::lax;
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{input, region};

/// A function with its derivative, traced into a graph of its own.
pub(super) struct Linearized {
    pub graph: Graph,
    pub inputs: Vec<ValueId>,
    /// By input.
    pub tangents_in: Vec<Option<ValueId>>,
    pub outputs: Vec<ValueId>,
    /// By output.
    pub tangents_out: Vec<Option<ValueId>>,
}

impl Linearized {
    /// Traces `body` on duals; `active` inputs have a tangent, and `wanted` outputs get one even if
    /// it is zero.
    pub(super) fn new(
        body: &Arc<Graph>,
        active: &[bool],
        wanted: &[bool],
        mode: Mode,
        source: Source,
    ) -> Rc<Self> {
        let question = Question::Derivative {
            active: active.to_vec(),
            wanted: wanted.to_vec(),
            mode,
        };
        once(body, question, || {
            Self::traced(body, active, wanted, mode, source)
        })
    }

    fn traced(body: &Graph, active: &[bool], wanted: &[bool], mode: Mode, source: Source) -> Self {
        let types = || body.inputs().iter().map(|&i| body.ty(i).clone());
        let traced = region(|| {
            let inputs: Vec<Tensor> = types().map(input).collect();
            let tangent_types = types().zip(active);
            let tangent_types = tangent_types.map(|(ty, &active)| active.then_some(ty));
            let tangents = Linear::begin(tangent_types, source).tangents().to_vec();
            let duals: Vec<Dual> = inputs
                .iter()
                .zip(&tangents)
                .map(|(&primal, &tangent)| Dual { primal, tangent })
                .collect();
            let mut outputs = jvp_graph(body, &duals, mode);
            for (dual, _) in outputs
                .iter_mut()
                .zip(wanted)
                .filter(|(_, wanted)| **wanted)
            {
                let primal = dual.primal;
                dual.tangent.get_or_insert_with(|| lax::zeros(&primal.ty()));
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
}

/// The transpose of `body`, a linear function of its linear operands: from the others and the
/// cotangents that are not zero to the cotangents of those, with which of them there are. With
/// `all`, there are all, zeros written down.
pub(super) fn transposed(
    body: &Graph,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
    all: bool,
    source: Source,
) -> (Arc<Graph>, Vec<bool>) {
    let ty = |value: ValueId| body.ty(value).clone();
    let own = || body.inputs().iter().zip(operands);
    let traced = region(|| {
        let known: Vec<Option<Tensor>> = own()
            .map(|(&i, o)| (!o.linear).then(|| input(ty(i))))
            .collect();
        let results = body.outputs().iter().zip(cotangents);
        let cts: Vec<Option<Tensor>> = results.map(|(&o, ct)| ct.map(|_| input(ty(o)))).collect();
        let types = own().map(|(&i, o)| o.linear.then(|| ty(i)));
        let linear = Linear::begin(types, source);
        let inputs: Vec<Tensor> = known
            .iter()
            .zip(linear.tangents())
            .filter_map(|(known, tangent)| known.or(*tangent))
            .collect();
        let outputs = inline(body, &inputs);
        let mut results = linear.transpose(outputs.into_iter().map(Some).zip(cts), source);
        for ((&input, operand), ct) in own().zip(&mut results) {
            if all && operand.linear {
                ct.get_or_insert_with(|| lax::zeros(body.ty(input)));
            }
        }
        results
    });
    let outputs: Vec<Tensor> = traced.result.iter().flatten().copied().collect();
    let present = traced.result.iter().map(Option::is_some).collect();
    (Arc::new(finished(traced.graph, &outputs)), present)
}

/// Emits the transpose of `body`, a linear function of its linear operands.
pub(crate) fn transpose_body(
    body: &Graph,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
    source: Source,
) -> Tangents {
    let (graph, present) = transposed(body, operands, cotangents, false, source);
    let mut results = inline(&graph, &transposed_operands(operands, cotangents)).into_iter();
    let given = present.into_iter();
    given
        .map(|present| if present { results.next() } else { None })
        .collect()
}

/// The operands of [`transposed`]: what is known, then the cotangents.
pub(super) fn transposed_operands(
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
) -> Vec<Tensor> {
    let known = operands.iter().filter(|o| !o.linear).map(|o| o.tensor);
    known.chain(cotangents.iter().flatten().copied()).collect()
}
