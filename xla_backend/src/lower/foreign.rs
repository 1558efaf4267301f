//! Calls out of the program.
//!
//! Calls with an effect stay in the order of the program by data: each takes a scalar, the *order*, and
//! returns it, so that the next call cannot come before it. Loops carry the order, branches return it,
//! and the program has it as a last result, without which the compiler would leave the calls out. (XLA
//! has marks for effects of its own, and its partitioner refuses them.)
//!
//! On several devices the operands of a call are whole on each of them, and each makes the call. The
//! runtime runs a host function once for all of them ([`HostCall::devices`]); a handler of the user's
//! runs on every device, and must compute the same on each.

use shardax_core::{
    DType, Target, TensorType,
    ir::{Equation, Foreign, Graph},
};
use shardax_pjrt::{HOST_TARGET, HostCall};

use super::host::over_arrays;
use super::writer::{Joined, Loc, Results, Ssa, Writer, tensor_type};
use super::{Lowering, names};

impl Lowering<'_> {
    /// `custom_call @target(operands, order)`
    pub(super) fn foreign(
        &mut self,
        (graph, equation, foreign): (&Graph, &Equation, &Foreign),
        x: &[Ssa],
        loc: Loc,
    ) -> Results {
        let mut operands = Results::from(x);
        operands.extend(self.order.filter(|_| foreign.effect));
        let mut results = foreign.results.clone();
        results.extend(foreign.effect.then(order_type));
        if results.is_empty() {
            // Nothing that could be read, and no effect.
            return Results::new();
        }
        let (name, config) = self.target(equation, foreign);
        let sharding = match self.annotations.whole(&results) {
            Some(attribute) => format!(", {attribute}"),
            None => String::new(),
        };
        let mut types: Vec<String> = equation
            .operands
            .iter()
            .map(|&o| tensor_type(graph.ty(o)))
            .collect();
        types.extend(foreign.effect.then(|| tensor_type(&order_type())));
        let result_types: Vec<String> = results.iter().map(tensor_type).collect();
        let ssa = self.out.fresh();
        let count = match results.len() {
            1 => String::new(),
            count => format!(":{count}"),
        };
        self.out.line(format_args!(
            "{ssa}{count} = stablehlo.custom_call @{name}({}) {{api_version = 4 : i32, \
             backend_config = {{{config}}}{sharding}}} : ({}) -> ({}) {loc}",
            Joined(&operands),
            types.join(", "),
            result_types.join(", ")
        ));
        let mut results = Writer::results(ssa, results.len());
        if foreign.effect {
            self.order = results.pop();
        }
        results
    }

    /// What is called: its name, and the attributes for it.
    fn target(&mut self, equation: &Equation, foreign: &Foreign) -> (String, String) {
        match &foreign.target {
            Target::Host(function) => {
                let at = equation.source;
                let id = self.calls.add(HostCall {
                    function: over_arrays(function),
                    name: function.name().to_owned(),
                    line: format!("{}:{}:{}", at.file(), at.line(), at.column()),
                    devices: self.annotations.device_count(),
                    ordered: foreign.effect,
                });
                (HOST_TARGET.to_owned(), format!("id = {id} : i64"))
            }
            Target::Custom { name, attributes } => {
                (names::quoted_symbol(name), attributes.to_string())
            }
        }
    }

    /// Starts the order, before anything that has an effect.
    pub(super) fn start_order(&mut self) {
        let ssa = self.out.fresh();
        let ty = tensor_type(&order_type());
        self.out
            .line(format_args!("{ssa} = stablehlo.constant dense<0> : {ty}"));
        self.order = Some(ssa);
    }
}

/// The type of the value that orders effects.
pub(super) fn order_type() -> TensorType {
    TensorType::scalar(DType::U8)
}
