//! Loops as `stablehlo.while`.

use shardax_core::{
    DType, TensorType,
    ir::{Equation, Graph, Scan},
};

use super::foreign::order_type;
use super::writer::{Loc, Results, Ssa, Writer, tensor_type};
use super::{Block, Lowering, Values, read};

impl Lowering<'_> {
    /// The loop's state is a counter, the carries, the stacked outputs, which start as zeros, and the
    /// order of effects if there are any.
    /// Scanned arrays and constants are read from outside.
    pub(super) fn scan(
        &mut self,
        (graph, equation, scan): (&Graph, &Equation, &Scan),
        values: &Values,
        block: &Block,
        loc: Loc,
    ) -> Results {
        let body = &scan.body;
        let operands: Vec<Ssa> = equation.operands.iter().map(|&o| read(values, o)).collect();
        if scan.length == 0 {
            // No iteration, and no element that the body could be written for.
            let stacked = &equation.results[scan.carries..];
            let empty = stacked.iter().map(|&r| self.zeros(graph.ty(r), loc));
            let carries = operands[..scan.carries].iter().copied();
            return carries.chain(empty).collect();
        }

        let mut types = vec![TensorType::scalar(DType::I32)];
        types.extend(equation.results.iter().map(|&r| graph.ty(r).clone()));
        let mut initial = vec![self.integer(0)];
        initial.extend(&operands[..scan.carries]);
        for ty in &types[1 + scan.carries..] {
            initial.push(self.zeros(ty, loc));
        }
        let ordered = body.has_effect();
        types.extend(ordered.then(order_type));
        initial.extend(self.order.filter(|_| ordered));

        // Iterations are written out `unroll` at a time; what is left over stands after the loop.
        let unroll = scan.unroll.clamp(1, scan.length);
        let looped = scan.length - scan.length % unroll;
        let whole = (graph, equation, scan);
        let mut state = initial;
        if looped > unroll {
            let result = self.out.fresh();
            let inner: Vec<Ssa> = types.iter().map(|_| self.out.fresh()).collect();
            let spelled: Vec<String> = types.iter().map(tensor_type).collect();
            let bindings: Vec<String> = inner
                .iter()
                .zip(&state)
                .map(|(s, i)| format!("{s} = {i}"))
                .collect();
            self.out.line(format_args!(
                "{result}:{} = stablehlo.while({}) : {}",
                types.len(),
                bindings.join(", "),
                spelled.join(", ")
            ));
            self.loop_condition(inner[0], looped);
            self.out.line(format_args!("do {{"));
            let mut next = inner;
            for _ in 0..unroll {
                next = self.iteration(whole, &operands, &types, next, block, loc);
            }
            let names: Vec<String> = next.iter().map(Ssa::to_string).collect();
            self.out.line(format_args!(
                "stablehlo.return {} : {}",
                names.join(", "),
                spelled.join(", ")
            ));
            self.out.line(format_args!("}} {loc}"));
            state = Writer::results(result, types.len()).into_vec();
        } else {
            for _ in 0..looped {
                state = self.iteration(whole, &operands, &types, state, block, loc);
            }
        }
        for _ in looped..scan.length {
            state = self.iteration(whole, &operands, &types, state, block, loc);
        }
        if ordered {
            self.order = state.pop();
        }
        state.into_iter().skip(1).collect()
    }

    /// One iteration, from the state before it to the state after it.
    fn iteration(
        &mut self,
        (graph, equation, scan): (&Graph, &Equation, &Scan),
        operands: &[Ssa],
        types: &[TensorType],
        state: Vec<Ssa>,
        block: &Block,
        loc: Loc,
    ) -> Vec<Ssa> {
        let body = &scan.body;
        let index = if scan.reverse {
            let last = self.integer(scan.length.saturating_sub(1));
            self.arithmetic("subtract", last, state[0])
        } else {
            state[0]
        };
        let mut inner = self.body_inputs((graph, equation, scan), operands, &state, index, loc);
        let splits = equation.operands.iter().enumerate().map(|(i, &operand)| {
            let scanned = (scan.carries..scan.carries + scan.xs).contains(&i);
            let entries = block.split(operand);
            match scanned {
                // An element of a scanned array has lost the leading dimension.
                true => entries.iter().skip(1).cloned().collect(),
                false => entries,
            }
        });
        let ordered = body.has_effect();
        if ordered {
            self.order = state.last().copied();
        }
        self.equations(body, &mut inner, splits.collect());

        let one = self.integer(1);
        let mut next = vec![self.arithmetic("add", state[0], one)];
        for (i, &output) in body.outputs().iter().enumerate() {
            let value = read(&inner, output);
            next.push(if i < scan.carries {
                value
            } else {
                self.store(state[1 + i], &types[1 + i], index, value, loc)
            });
        }
        next.extend(self.order.filter(|_| ordered));
        next
    }

    /// `cond { counter < length }`
    fn loop_condition(&mut self, counter: Ssa, length: usize) {
        self.out.line(format_args!("cond {{"));
        let length = self.integer(length);
        let more = self.out.fresh();
        self.out.line(format_args!(
            "{more} = stablehlo.compare LT, {counter}, {length}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>"
        ));
        self.out
            .line(format_args!("stablehlo.return {more} : tensor<i1>"));
        self.out.line(format_args!("}}"));
    }

    /// The values of the body with its inputs defined: carries from the loop's state, elements of
    /// the scanned arrays, and constants.
    fn body_inputs(
        &mut self,
        (graph, equation, scan): (&Graph, &Equation, &Scan),
        operands: &[Ssa],
        state: &[Ssa],
        index: Ssa,
        loc: Loc,
    ) -> Values {
        let body = &scan.body;
        let mut values: Values = vec![None; body.value_count()];
        for (i, (&input, &operand)) in body.inputs().iter().zip(operands).enumerate() {
            let value = if i < scan.carries {
                state[1 + i]
            } else if i < scan.carries + scan.xs {
                // An element of a stacked parameter is called after it.
                let label = match self.argument_name(operand).map(str::to_owned) {
                    Some(name) => self.locations.labeled(equation.source, &name),
                    None => loc,
                };
                let array_type = graph.ty(equation.operands[i]);
                self.element(operand, array_type, index, body.ty(input), label)
            } else {
                operand
            };
            values[input.index()] = Some(value);
        }
        values
    }

    pub(super) fn integer(&mut self, value: usize) -> Ssa {
        let ssa = self.out.fresh();
        self.out.line(format_args!(
            "{ssa} = stablehlo.constant dense<{value}> : tensor<i32>"
        ));
        ssa
    }

    pub(super) fn arithmetic(&mut self, op: &str, lhs: Ssa, rhs: Ssa) -> Ssa {
        let ssa = self.out.fresh();
        self.out.line(format_args!(
            "{ssa} = stablehlo.{op} {lhs}, {rhs} : tensor<i32>"
        ));
        ssa
    }

    /// `array[index]`
    fn element(
        &mut self,
        array: Ssa,
        from: &TensorType,
        index: Ssa,
        to: &TensorType,
        loc: Loc,
    ) -> Ssa {
        let starts = self.starts(index, to.rank());
        let mut sizes = vec![1];
        sizes.extend(&to.shape);
        let window = TensorType::new(from.dtype, &sizes);
        let sliced = self.out.fresh();
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let (from, window) = (tensor_type(from), tensor_type(&window));
        let integers = vec!["tensor<i32>"; to.rank() + 1].join(", ");
        self.out.line(format_args!(
            "{sliced} = stablehlo.dynamic_slice {array}, {starts}, sizes = [{}] : ({from}, {integers}) -> {window} {loc}",
            sizes.join(", ")
        ));
        let ssa = self.out.fresh();
        let to = tensor_type(to);
        self.out.line(format_args!(
            "{ssa} = stablehlo.reshape {sliced} : ({window}) -> {to} {loc}"
        ));
        ssa
    }

    /// `array` with `array[index] = value`
    fn store(&mut self, array: Ssa, into: &TensorType, index: Ssa, value: Ssa, loc: Loc) -> Ssa {
        let ty = TensorType::new(into.dtype, &into.shape[1..]);
        let starts = self.starts(index, ty.rank());
        let mut sizes = vec![1];
        sizes.extend(&ty.shape);
        let window = tensor_type(&TensorType::new(ty.dtype, &sizes));
        let update = self.out.fresh();
        self.out.line(format_args!(
            "{update} = stablehlo.reshape {value} : ({}) -> {window} {loc}",
            tensor_type(&ty)
        ));
        let ssa = self.out.fresh();
        let into = tensor_type(into);
        let integers = vec!["tensor<i32>"; ty.rank() + 1].join(", ");
        self.out.line(format_args!(
            "{ssa} = stablehlo.dynamic_update_slice {array}, {update}, {starts} : ({into}, {window}, {integers}) -> {into} {loc}"
        ));
        ssa
    }

    /// `index, 0, 0`: the starts of an element of an array that has `rank` more dimensions.
    fn starts(&mut self, index: Ssa, rank: usize) -> String {
        let mut starts = index.to_string();
        if rank > 0 {
            starts.push_str(&format!(", {}", self.integer(0)).repeat(rank));
        }
        starts
    }
}
