//! Choices as `stablehlo.case`, loops with a condition as `stablehlo.while`.

use shardax_core::ir::split::Entries;
use shardax_core::{
    DType, TensorType,
    ir::{Cond, Equation, Graph, While},
};
use smallvec::smallvec;

use super::foreign::order_type;
use super::writer::{Joined, Loc, Results, Ssa, Writer, tensor_type};
use super::{Block, Lowering, Values, read};

impl Lowering<'_> {
    /// Branches read their operands from outside.
    pub(super) fn cond(
        &mut self,
        (graph, equation, cond): (&Graph, &Equation, &Cond),
        x: &[Ssa],
        block: &Block,
        loc: Loc,
    ) -> Results {
        let splits = || {
            equation.operands[1..]
                .iter()
                .map(|&o| block.split(o))
                .collect()
        };
        let ordered = equation.op.has_effect();
        let count = equation.results.len() + usize::from(ordered);
        if count == 0 {
            return Results::new();
        }
        let order = self.order;
        let result = self.out.fresh();
        let results = if count > 1 {
            format!(":{count}")
        } else {
            String::new()
        };
        self.out.line(format_args!(
            "{result}{results} = \"stablehlo.case\"({}) ({{",
            x[0]
        ));
        for (i, branch) in cond.branches.iter().enumerate() {
            if i > 0 {
                self.out.line(format_args!("}}, {{"));
            }
            self.order = order;
            self.branch(branch, &x[1..], splits(), ordered);
        }
        let types = result_types(graph, equation, ordered);
        self.out.line(format_args!(
            "}}) : (tensor<i32>) -> ({}) {loc}",
            types.join(", ")
        ));
        let mut results = Writer::results(result, count);
        if ordered {
            self.order = results.pop();
        }
        results
    }

    /// The equations of a branch, and what it returns.
    fn branch(&mut self, branch: &Graph, operands: &[Ssa], splits: Vec<Entries>, ordered: bool) {
        let mut values: Values = vec![None; branch.value_count()];
        for (&input, &operand) in branch.inputs().iter().zip(operands) {
            values[input.index()] = Some(operand);
        }
        self.equations(branch, &mut values, splits);
        if let [only] = *branch.outputs()
            && !ordered
            && !self.annotations.is_single()
        {
            // What a branch ends with is its root, and XLA wants the roots of all branches to lie alike; a barrier
            // lies as the partitioner says, an annotation as its branch does.
            let (ssa, value) = (self.out.fresh(), read(&values, only));
            let ty = tensor_type(branch.ty(only));
            self.out.line(format_args!(
                "{ssa} = stablehlo.optimization_barrier {value} : {ty}"
            ));
            values[only.index()] = Some(ssa);
        }
        self.finish("stablehlo.return", branch, &values, ordered);
    }

    /// The loop's state is the carries, and the order of effects if there are any; constants are read
    /// from outside.
    ///
    /// A condition with effects is computed before the loop and at the end of each iteration, for
    /// nothing can come out of the condition of XLA's loop: its outcome is a part of the state.
    pub(super) fn while_loop(
        &mut self,
        (graph, equation, looped): (&Graph, &Equation, &While),
        x: &[Ssa],
        block: &Block,
        loc: Loc,
    ) -> Results {
        let (carries, constants) = x.split_at(looped.carries);
        let ordered = equation.op.has_effect();
        let carried_test = looped.cond.has_effect();
        if carries.is_empty() && !ordered {
            return Results::new();
        }
        let splits = || equation.operands.iter().map(|&o| block.split(o)).collect();
        let mut initial = carries.to_vec();
        let mut types = result_types(graph, equation, ordered);
        let test = carried_test.then(|| self.region(&looped.cond, x, splits()));
        initial.extend(self.order.filter(|_| ordered));
        if let Some(test) = test {
            initial.extend(test);
            types.push(tensor_type(&TensorType::scalar(DType::Bool)));
        }

        let result = self.out.fresh();
        let state: Vec<Ssa> = initial.iter().map(|_| self.out.fresh()).collect();
        let bindings: Vec<String> = state
            .iter()
            .zip(&initial)
            .map(|(s, i)| format!("{s} = {i}"))
            .collect();
        let results = match types.len() {
            1 => String::new(),
            count => format!(":{count}"),
        };
        let types = types.join(", ");
        self.out.line(format_args!(
            "{result}{results} = stablehlo.while({}) : {types}",
            bindings.join(", "),
        ));
        let inputs = [&state[..looped.carries], constants].concat();
        self.out.line(format_args!("cond {{"));
        let test = match state.last() {
            Some(&test) if carried_test => smallvec![test],
            _ => self.region(&looped.cond, &inputs, splits()),
        };
        self.out.line(format_args!(
            "stablehlo.return {} : tensor<i1>",
            Joined(&test)
        ));
        self.out.line(format_args!("}} do {{"));
        if ordered {
            self.order = Some(state[looped.carries]);
        }
        let mut next = self.region(&looped.body, &inputs, splits());
        let test = carried_test.then(|| {
            let inputs = [&next[..], constants].concat();
            self.region(&looped.cond, &inputs, splits())
        });
        next.extend(self.order.filter(|_| ordered));
        next.extend(test.into_iter().flatten());
        self.out
            .line(format_args!("stablehlo.return {} : {types}", Joined(&next)));
        self.out.line(format_args!("}} {loc}"));
        let mut results = Writer::results(result, state.len());
        results.truncate(looped.carries + usize::from(ordered));
        if ordered {
            self.order = results.pop();
        }
        results
    }
}

/// The types of an operation's results, as they are spelled, and that of the order of effects.
fn result_types(graph: &Graph, equation: &Equation, ordered: bool) -> Vec<String> {
    let results = equation.results.iter().map(|&r| tensor_type(graph.ty(r)));
    let order = ordered.then(|| tensor_type(&order_type()));
    results.chain(order).collect()
}
