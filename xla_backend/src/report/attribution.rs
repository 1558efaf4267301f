//! What the values of a traced program are to the user: gradients of which parameter, results, or
//! activations, and how the layout wants them to lie.
//!
//! An optimized instruction knows the location of the operation that it was made from. Here each location
//! is given the values that its operations make. A *parameter* is an argument whose value at use is
//! annotated, as `Stack::scan` and `value_and_grad` do. The *gradient* of a parameter is a value that
//! reaches, element by element, an operation with the parameter itself: its update. Whatever else cannot be
//! said with certainty is not said.

use std::collections::{BTreeSet, HashMap};

use shardax_core::{
    Role, Source,
    ir::{Constraint, Equation, Graph, Op, ValueId},
};
use shardax_sharding::{Layout, PartitionSpec};

/// A value that an operation makes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Made {
    pub(super) shape: Vec<usize>,
    /// It is a device's own value, inside of a manual region, and the shape is that of one device.
    pub(super) is_local: bool,
    /// How an annotation on the value says that it lies.
    pub(super) stated: Option<PartitionSpec>,
    /// The parameters whose update it reaches, by position of the argument.
    pub(super) updates: BTreeSet<usize>,
    /// The results of the program that it reaches element by element.
    pub(super) sums: BTreeSet<usize>,
    /// The results of the program that it is.
    pub(super) results: BTreeSet<usize>,
}

/// What the program does with an argument.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ArgumentUse {
    /// How it lies where it is used, of one element if it is used in a loop over it.
    pub(super) at_use: Option<PartitionSpec>,
    /// The length of the loop that uses one element of it at a time.
    pub(super) layers: Option<usize>,
    /// The line that annotates its use.
    pub(super) source: Option<Source>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Attribution {
    /// By name of the location, `scope/op`, and source.
    made: HashMap<(String, Source), Vec<Made>>,
    pub(super) arguments: Vec<ArgumentUse>,
    /// The mesh axes over which the layout splits gradients.
    pub(super) gradient_axes: BTreeSet<String>,
}

/// An argument, or one element of it.
#[derive(Clone, Copy, PartialEq)]
struct From {
    argument: usize,
    layers: Option<usize>,
}

/// What values lead to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reached {
    updates: BTreeSet<usize>,
    sums: BTreeSet<usize>,
    results: BTreeSet<usize>,
}

impl Reached {
    fn merge(&mut self, other: &Reached) {
        self.updates.extend(&other.updates);
        self.sums.extend(&other.sums);
        self.results.extend(&other.results);
    }
}

impl Attribution {
    pub(super) fn new(graph: &Graph, layout: &Layout) -> Self {
        let mut attribution = Attribution {
            made: HashMap::new(),
            arguments: vec![ArgumentUse::default(); graph.inputs().len()],
            gradient_axes: BTreeSet::new(),
        };
        let inputs: Vec<_> = (0..graph.inputs().len())
            .map(|argument| {
                Some(From {
                    argument,
                    layers: None,
                })
            })
            .collect();
        // Which arguments are parameters has to be known before what reaches their updates.
        // While they are added up, gradients are whole along what the rule for every state splits.
        let summing = layout.clone().shard_every_state(());
        attribution.find_parameters(graph, &inputs, &summing);
        let outputs: Vec<_> = (0..graph.outputs().len())
            .map(|result| Reached {
                sums: BTreeSet::from([result]),
                results: BTreeSet::from([result]),
                ..Reached::default()
            })
            .collect();
        attribution.walk(graph, &inputs, &outputs, (layout, false));
        attribution
    }

    /// The values of the operations of a location.
    pub(super) fn made(&self, name: &str, source: Source) -> &[Made] {
        let key = (name.to_owned(), source);
        self.made.get(&key).map_or(&[], Vec::as_slice)
    }

    fn find_parameters(&mut self, graph: &Graph, inputs: &[Option<From>], layout: &Layout) {
        let from = sources(graph, inputs);
        for equation in graph.equations() {
            if let Op::Shard(constraint) = &equation.op
                && constraint.role == Role::Gradient
                && let Some(spec) = resolve(constraint, graph, equation.operands[0], layout)
            {
                let names = spec.entries().iter().flat_map(|entry| entry.names());
                self.gradient_axes.extend(names.cloned());
            }
            if let Op::Shard(constraint) = &equation.op
                && constraint.role == Role::ParameterAtUse
                && let Some(From { argument, layers }) = from[equation.operands[0].index()]
            {
                let spec = resolve(constraint, graph, equation.operands[0], layout);
                let used = &mut self.arguments[argument];
                used.layers = used.layers.or(layers);
                used.source = used.source.or(Some(equation.source));
                used.at_use = used.at_use.take().or(spec);
            }
            for (region, inputs, _) in regions(equation, &from) {
                self.find_parameters(region, &inputs, layout);
            }
        }
    }

    /// Notes the values of a graph; returns what its inputs lead to.
    fn walk(
        &mut self,
        graph: &Graph,
        inputs: &[Option<From>],
        outputs: &[Reached],
        (layout, is_local): (&Layout, bool),
    ) -> Vec<Reached> {
        let from = sources(graph, inputs);
        let mut reached = vec![Reached::default(); graph.value_count()];
        let mut stated: Vec<Option<PartitionSpec>> = vec![None; graph.value_count()];
        for (&output, leads_to) in graph.outputs().iter().zip(outputs) {
            reached[output.index()].merge(leads_to);
        }
        for equation in graph.equations().iter().rev() {
            if let Op::Shard(constraint) = &equation.op {
                let spec = resolve(constraint, graph, equation.operands[0], layout);
                stated[equation.operands[0].index()] = spec.clone();
                stated[equation.results[0].index()] = spec;
            }
            for &result in &equation.results {
                let made = Made {
                    shape: graph.ty(result).shape.to_vec(),
                    is_local,
                    stated: stated[result.index()].clone(),
                    updates: reached[result.index()].updates.clone(),
                    sums: reached[result.index()].sums.clone(),
                    results: reached[result.index()].results.clone(),
                };
                self.note(equation, made);
            }
            for (region, inputs, results) in regions(equation, &from) {
                let outputs: Vec<Reached> = results
                    .iter()
                    .map(|r| r.map_or_else(Reached::default, |r| reached[r.index()].clone()))
                    .collect();
                let is_local = is_local || matches!(equation.op, Op::Manual(_));
                let leads_to = self.walk(region, &inputs, &outputs, (layout, is_local));
                let operands = region_operands(equation);
                for (&operand, leads_to) in operands.iter().zip(&leads_to) {
                    reached[operand.index()].merge(leads_to);
                }
            }
            if is_elementwise(&equation.op) {
                self.pass_on(graph, equation, &from, &mut reached);
            }
        }
        let of = |input: &ValueId| reached[input.index()].clone();
        graph.inputs().iter().map(of).collect()
    }

    /// What the result of an operation element by element leads to, its operands do; and if one operand is
    /// a parameter, the others make its update.
    fn pass_on(
        &self,
        graph: &Graph,
        equation: &Equation,
        from: &[Option<From>],
        reached: &mut [Reached],
    ) {
        let result = equation.results[0];
        let size = elements(graph, result);
        for &operand in &equation.operands {
            if elements(graph, operand) != size {
                continue;
            }
            let mut leads_to = reached[result.index()].clone();
            if !is_same_data(&equation.op) {
                leads_to.results.clear();
            }
            for &other in &equation.operands {
                if other != operand
                    && from[operand.index()].is_none()
                    && let Some(From { argument, .. }) = from[other.index()]
                    && self.arguments[argument].at_use.is_some()
                {
                    leads_to.updates.insert(argument);
                }
            }
            reached[operand.index()].merge(&leads_to);
        }
    }

    fn note(&mut self, equation: &Equation, made: Made) {
        let name = match &equation.scope {
            Some(scope) => format!("{scope}/{}", equation.op.name()),
            None => equation.op.name().to_owned(),
        };
        let known = self.made.entry((name, equation.source)).or_default();
        if !known.contains(&made) {
            known.push(made);
        }
    }
}

fn resolve(
    constraint: &Constraint,
    graph: &Graph,
    value: ValueId,
    layout: &Layout,
) -> Option<PartitionSpec> {
    let resolved = layout.resolve(constraint.role, &constraint.dims, &graph.ty(value).shape);
    resolved.ok().map(|resolved| resolved.spec)
}

fn elements(graph: &Graph, value: ValueId) -> usize {
    graph.ty(value).shape.iter().product()
}

/// Which argument each value is, be it in another element type, place or scale.
fn sources(graph: &Graph, inputs: &[Option<From>]) -> Vec<Option<From>> {
    let mut from = vec![None; graph.value_count()];
    let mut uniform = vec![false; graph.value_count()];
    for (&input, &source) in graph.inputs().iter().zip(inputs) {
        from[input.index()] = source;
    }
    for equation in graph.equations() {
        let Some(&result) = equation.results.first() else {
            continue;
        };
        match &equation.op {
            Op::Convert(_) | Op::Shard(_) | Op::Name(_) | Op::Place(_) | Op::StopGradient(_) => {
                from[result.index()] = from[equation.operands[0].index()];
            }
            Op::OptimizationBarrier => {
                for (&operand, &result) in equation.operands.iter().zip(&equation.results) {
                    from[result.index()] = from[operand.index()];
                }
            }
            // Scaled, as weight decay does.
            Op::Binary(_) => {
                let [a, b] = [equation.operands[0], equation.operands[1]];
                from[result.index()] = match (uniform[a.index()], uniform[b.index()]) {
                    (false, true) => from[a.index()],
                    (true, false) => from[b.index()],
                    _ => None,
                };
            }
            Op::Broadcast { .. } => {
                uniform[result.index()] = graph.ty(equation.operands[0]).shape.is_empty();
            }
            Op::Constant(_) => uniform[result.index()] = true,
            _ => {}
        }
    }
    from
}

/// One element of the result for one element of each operand of its size, or the same elements in another
/// order.
fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Convert(_)
            | Op::ReducePrecision { .. }
            | Op::Shard(_)
            | Op::StopGradient(_)
            | Op::Name(_)
            | Op::Place(_)
            | Op::Reshape(_)
            | Op::Transpose(_)
    )
}

/// Whether the result is the operand, in another order, type or place at most.
fn is_same_data(op: &Op) -> bool {
    is_elementwise(op) && !matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select)
}

/// The operands that are the inputs of an operation's regions.
fn region_operands(equation: &Equation) -> &[ValueId] {
    match &equation.op {
        Op::Cond(_) => &equation.operands[1..],
        _ => &equation.operands,
    }
}

/// The graphs in an operation, with what their inputs are and the results that their outputs become.
type Region<'a> = (&'a Graph, Vec<Option<From>>, Vec<Option<ValueId>>);

fn regions<'a>(equation: &'a Equation, from: &[Option<From>]) -> Vec<Region<'a>> {
    let operands = region_operands(equation);
    let mut inputs: Vec<Option<From>> = operands.iter().map(|o| from[o.index()]).collect();
    let results: Vec<Option<ValueId>> = equation.results.iter().copied().map(Some).collect();
    match &equation.op {
        Op::Scan(scan) => {
            inputs[..scan.carries].fill(None);
            let scanned = &mut inputs[scan.carries..scan.carries + scan.xs];
            for from in scanned.iter_mut().flatten() {
                from.layers = Some(scan.length);
            }
            vec![(&scan.body, inputs, results)]
        }
        Op::While(looped) => {
            inputs[..looped.carries].fill(None);
            vec![
                (&looped.cond, inputs.clone(), vec![None]),
                (&looped.body, inputs, results),
            ]
        }
        op => {
            let inner = op.regions().into_iter();
            inner
                .map(|(_, graph)| (&**graph, inputs.clone(), results.clone()))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use shardax_core::{DType, Dim, Path, Tensor, TensorType, ir::BACKWARD, scan, scope, trace};
    use shardax_sharding::Mesh;

    use super::*;

    fn at_use(t: Tensor) -> Tensor {
        const DIMS: [Dim; 2] = [Dim::Logical("embed"), Dim::Logical("mlp")];
        Path::root().annotated("w", &DIMS, |path| t.shard_leaf(path, Role::ParameterAtUse))
    }

    fn layout() -> Layout {
        Layout::new(Mesh::new([("data", 2), ("model", 4)]).unwrap()).shard("mlp", "model")
    }

    fn f32s(shape: &[usize]) -> TensorType {
        TensorType::new(DType::F32, shape)
    }

    /// The values of the operation of this name.
    fn of<'a>(attribution: &'a Attribution, name: &str) -> Vec<&'a Made> {
        let named = attribution.made.iter().filter(|((n, _), _)| n == name);
        named.flat_map(|(_, made)| made).collect()
    }

    #[test]
    fn a_gradient_is_what_reaches_the_update_of_a_parameter() {
        let step = |(w, m): (Tensor, Tensor), x: Tensor| {
            let y = x.dot(at_use(w));
            let gradient = scope(BACKWARD, || x.transpose([1, 0]).dot(y));
            let m = m * 0.9 + gradient * 0.1;
            (w * 0.99 - m / (m.square() + 1e-8).sqrt(), m)
        };
        let types = ((f32s(&[8, 16]), f32s(&[8, 16])), f32s(&[4, 8]));
        let traced = trace(step, types).unwrap();
        let attribution = Attribution::new(&traced.graph, &layout());
        let [gradient] = of(&attribution, "backward/dot_general")[..] else {
            panic!("{attribution:?}");
        };
        assert_eq!(gradient.updates, BTreeSet::from([0]));
        assert_eq!(gradient.sums, BTreeSet::from([0, 1]));
        assert_eq!(gradient.results, BTreeSet::new());
        let [product] = of(&attribution, "dot_general")[..] else {
            panic!("{attribution:?}");
        };
        assert_eq!(product.updates, BTreeSet::new());
        assert_eq!(product.shape, [4, 16]);
        let spec = attribution.arguments[0].at_use.as_ref().unwrap();
        assert_eq!(spec.to_string(), r#"P(_, "model")"#);
        assert_eq!(attribution.arguments[0].layers, None);
        assert_eq!(attribution.arguments[1].at_use, None);
    }

    #[test]
    fn elements_of_a_stack_are_used_in_its_loop() {
        let f = |ws: Tensor, x: Tensor| {
            let (h, gradients) = scan(x, ws, |h: Tensor, w: Tensor| {
                let h = h.dot(at_use(w));
                (h, scope(BACKWARD, || w.exp()))
            });
            (h, ws - gradients)
        };
        let traced = trace(f, (f32s(&[3, 8, 8]), f32s(&[4, 8]))).unwrap();
        let attribution = Attribution::new(&traced.graph, &layout());
        assert_eq!(attribution.arguments[0].layers, Some(3));
        // What the loop stacks reaches the update of the stack.
        let [inner] = of(&attribution, "backward/exp")[..] else {
            panic!("{attribution:?}");
        };
        assert_eq!(inner.updates, BTreeSet::from([0]));
        let [product] = of(&attribution, "dot_general")[..] else {
            panic!("{attribution:?}");
        };
        assert_eq!(product.results, BTreeSet::from([0]));
    }
}
