//! Loops as `stablehlo.while`.

use shardax_core::{DType, Equation, Graph, Scan, TensorType};

use super::writer::{Results, Ssa, Writer, tensor_type};
use super::{Block, Lowering, Values, read};

impl Lowering<'_> {
    /// The loop's state is a counter, the carries and the stacked outputs, which start as zeros.
    /// Scanned arrays and constants are read from outside.
    pub(super) fn scan(
        &mut self,
        (graph, equation, scan): (&Graph, &Equation, &Scan),
        values: &Values,
        block: &Block,
        loc: &str,
    ) -> Results {
        let body = &scan.body;
        let counter_type = TensorType::scalar(DType::I32);
        let operands: Vec<Ssa> = equation.operands.iter().map(|&o| read(values, o)).collect();
        let (carries, rest) = operands.split_at(scan.carries);
        let (scanned, constants) = rest.split_at(scan.xs);

        let mut types = vec![counter_type.clone()];
        types.extend(equation.results.iter().map(|&r| graph.ty(r).clone()));
        let mut initial = vec![self.integer(0)];
        initial.extend(carries);
        for ty in &types[1 + scan.carries..] {
            initial.push(self.zeros(ty));
        }

        let result = self.out.fresh();
        let state: Vec<Ssa> = types.iter().map(|_| self.out.fresh()).collect();
        let spelled: Vec<String> = types.iter().map(tensor_type).collect();
        let bindings: Vec<String> = state
            .iter()
            .zip(&initial)
            .map(|(s, i)| format!("{s} = {i}"))
            .collect();
        self.out.line(format_args!(
            "{result}:{} = stablehlo.while({}) : {}",
            types.len(),
            bindings.join(", "),
            spelled.join(", ")
        ));
        self.out.line(format_args!("cond {{"));
        let length = self.integer(scan.length);
        let more = self.out.fresh();
        self.out.line(format_args!(
            "{more} = stablehlo.compare LT, {}, {length}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>",
            state[0]
        ));
        self.out
            .line(format_args!("stablehlo.return {more} : tensor<i1>"));
        self.out.line(format_args!("}} do {{"));

        let index = if scan.reverse {
            let last = self.integer(scan.length.saturating_sub(1));
            self.arithmetic("subtract", last, state[0], &counter_type)
        } else {
            state[0]
        };
        let mut inner: Values = vec![None; body.value_count()];
        let inputs = body.inputs();
        for (&input, &carry) in inputs.iter().zip(&state[1..]).take(scan.carries) {
            inner[input.index()] = Some(carry);
        }
        for (i, &array) in scanned.iter().enumerate() {
            let array_type = graph.ty(equation.operands[scan.carries + i]);
            let input = inputs[scan.carries + i];
            // An element of a stacked parameter is called after it.
            let name = array
                .argument_position()
                .map(|i| self.arguments[i].name.as_str());
            let label = match name {
                Some(name) if !name.is_empty() => self.locations.labeled(equation.source, name),
                _ => loc.to_owned(),
            };
            inner[input.index()] =
                Some(self.element(array, array_type, index, body.ty(input), &label));
        }
        for (&input, &constant) in inputs[scan.carries + scan.xs..].iter().zip(constants) {
            inner[input.index()] = Some(constant);
        }
        let splits = equation.operands.iter().enumerate().map(|(i, &operand)| {
            let scanned = (scan.carries..scan.carries + scan.xs).contains(&i);
            // An element of a scanned array has lost the leading dimension.
            block
                .split(operand)
                .into_iter()
                .skip(usize::from(scanned))
                .collect()
        });
        self.equations(body, &mut inner, splits.collect());

        let one = self.integer(1);
        let mut next = vec![self.arithmetic("add", state[0], one, &counter_type)];
        for (i, &output) in body.outputs().iter().enumerate() {
            let value = read(&inner, output);
            next.push(if i < scan.carries {
                value
            } else {
                self.store(state[1 + i], &types[1 + i], index, value, loc)
            });
        }
        let names: Vec<String> = next.iter().map(Ssa::to_string).collect();
        self.out.line(format_args!(
            "stablehlo.return {} : {}",
            names.join(", "),
            spelled.join(", ")
        ));
        self.out.line(format_args!("}} {loc}"));
        Writer::results(result, types.len())
            .into_iter()
            .skip(1)
            .collect()
    }

    fn integer(&mut self, value: usize) -> Ssa {
        let ssa = self.out.fresh();
        self.out.line(format_args!(
            "{ssa} = stablehlo.constant dense<{value}> : tensor<i32>"
        ));
        ssa
    }

    fn arithmetic(&mut self, op: &str, lhs: Ssa, rhs: Ssa, ty: &TensorType) -> Ssa {
        let ssa = self.out.fresh();
        let ty = tensor_type(ty);
        self.out
            .line(format_args!("{ssa} = stablehlo.{op} {lhs}, {rhs} : {ty}"));
        ssa
    }

    pub(super) fn zeros(&mut self, ty: &TensorType) -> Ssa {
        let scalar = self.out.fresh();
        let zero = match ty.dtype {
            DType::Bool => "false",
            DType::C64 => "(0.0, 0.0)",
            dtype if dtype.is_float() => "0.0",
            _ => "0",
        };
        let element = tensor_type(&TensorType::scalar(ty.dtype));
        self.out.line(format_args!(
            "{scalar} = stablehlo.constant dense<{zero}> : {element}"
        ));
        let ssa = self.out.fresh();
        let ty = tensor_type(ty);
        self.out.line(format_args!(
            "{ssa} = stablehlo.broadcast_in_dim {scalar}, dims = [] : ({element}) -> {ty}"
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
        loc: &str,
    ) -> Ssa {
        let zero = if to.rank() > 0 {
            Some(self.integer(0))
        } else {
            None
        };
        let mut sizes = vec![1];
        sizes.extend(&to.shape);
        let window = TensorType::new(from.dtype, &sizes);
        let starts = starts(index, zero, to.rank());
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
    fn store(&mut self, array: Ssa, into: &TensorType, index: Ssa, value: Ssa, loc: &str) -> Ssa {
        let ty = TensorType::new(into.dtype, &into.shape[1..]);
        let zero = if ty.rank() > 0 {
            Some(self.integer(0))
        } else {
            None
        };
        let mut sizes = vec![1];
        sizes.extend(&ty.shape);
        let window = tensor_type(&TensorType::new(ty.dtype, &sizes));
        let update = self.out.fresh();
        self.out.line(format_args!(
            "{update} = stablehlo.reshape {value} : ({}) -> {window} {loc}",
            tensor_type(&ty)
        ));
        let starts = starts(index, zero, ty.rank());
        let ssa = self.out.fresh();
        let into = tensor_type(into);
        let integers = vec!["tensor<i32>"; ty.rank() + 1].join(", ");
        self.out.line(format_args!(
            "{ssa} = stablehlo.dynamic_update_slice {array}, {update}, {starts} : ({into}, {window}, {integers}) -> {into} {loc}"
        ));
        ssa
    }
}

fn starts(index: Ssa, zero: Option<Ssa>, rank: usize) -> String {
    let mut names = vec![index.to_string()];
    names.extend(zero.iter().flat_map(|zero| vec![zero.to_string(); rank]));
    names.join(", ")
}
