//! Functions with a derivative of their own: `custom_jvp` and `custom_vjp`.
//!
//! The rule is traced together with the function into graphs that the equation holds, if a derivative
//! is taken around the call: [`order`] counts how many are. The first one replaces the function by its
//! rule, so the function itself is traced for none, and the rule for one less: one that calls its own
//! function comes to an end. A backward rule is known only as a transpose; between linearization and
//! transposition an operation that can be transposed and nothing else stands for the derivative.

use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::close::{Closed, Shared, close, close_on, rewired};
use super::linearize::{Dual, Mode, Tangents, inline};
use super::once::Form;
use super::vmap::{Batch, batch_body, batch_body_with};
use crate::error::{ErrorKind, Source};
use crate::graph::{Equation, Graph};
use crate::lax;
use crate::op::{Custom, CustomLinear, CustomRule, Op};
use crate::rules::batch::Batched;
use crate::rules::transpose::Operand;
use crate::tensor::Tensor;
use crate::trace::{emit, fail_at, of_order, order};
use crate::tree::{Path, Tree};
use crate::types::TensorType;

/// `f` with a forward derivative of its own: `rule(argument, tangent)` returns the result and its
/// tangent, which is linear in the tangent given. Reverse mode is its transpose. The rule is traced where a
/// derivative is taken, and may call the function itself.
///
/// What the functions capture has no derivative; to ask for one is an error.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, custom_jvp, grad, trace};
///
/// // log(1 + e^x), whose derivative is written without overflow.
/// let log1pexp = custom_jvp(
///     |x: Tensor| (x.exp() + 1.0).log(),
///     |x: Tensor, t: Tensor| ((x.exp() + 1.0).log(), x.sigmoid() * t),
/// );
/// let program = trace(grad(log1pexp), TensorType::scalar(DType::F32))?;
/// assert!(program.graph.to_string().contains("logistic"));
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn custom_jvp<A: Tree<Tensor>, R: Tree<Tensor>>(
    f: impl Fn(A) -> R,
    rule: impl Fn(A, A) -> (R, R),
) -> impl Fn(A) -> R {
    let source = Location::caller();
    move |args| {
        let op = "custom_jvp";
        let body = of_order(0, || close(&args, &f, op, source));
        let Some(rest) = order().checked_sub(1) else {
            return without_rule(op, &args, body, source);
        };
        let same = |args: &A| args.replace_leaves(&mut |_, t| *t);
        let pair = (same(&args), same(&args));
        let rule = of_order(rest, || close(&pair, |(x, t)| rule(x, t), op, source));
        let wanted = result_types(&body);
        let (results, tangents) = &rule.result;
        let mut problems = unlike(("result", results), &rule.graph, ("result", &wanted));
        problems.extend(unlike(
            ("tangent", tangents),
            &rule.graph,
            ("result", &wanted),
        ));
        let help = "`rule(argument, tangent)` returns the function's result and its tangent, of the same types";
        refuse(op, "the rule", problems, help, source);

        let arguments = args.leaves();
        let count = arguments.len();
        let mut shared = Shared::new(arguments);
        shared.capture(&body.operands[count..]);
        shared.capture(&rule.operands[2 * count..]);
        // The rule takes all operands, then the tangents.
        let (all, types) = (shared.operands.len(), shared.types());
        let captured = shared.positions(&rule.operands[2 * count..]);
        let from: Vec<usize> = (0..count)
            .chain(all..all + count)
            .chain(captured.map(|p| count + p))
            .collect();
        let inputs = types.iter().chain(&types[..count]).cloned();
        let custom = Custom {
            body: shared.function(&body),
            arguments: count,
            rule: CustomRule::Jvp(rewired(&rule.graph, inputs, &from)),
        };
        let results = emit(Op::Custom(Box::new(custom)), &shared.operands, source);
        body.result.with_leaves(&results)
    }
}

/// `f` with a backward derivative of its own: `forward(argument)` returns the result and residuals,
/// and `backward(residuals, cotangent)` the argument's cotangent. The rules are traced where a derivative is
/// taken, and may call the function itself.
///
/// What the functions capture has no derivative; to ask for one is an error, and so is forward mode.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, custom_vjp, grad, trace};
///
/// // The identity, whose gradient is clipped on its way back.
/// let clipped = custom_vjp(
///     |x: Tensor| x,
///     |x: Tensor| (x, ()),
///     |(), ct: Tensor| ct.clamp(-1.0, 1.0),
/// );
/// let loss = |x: Tensor| (clipped(x) * 100.0).sum(..);
/// let program = trace(grad(loss), TensorType::new(DType::F32, [3]))?;
/// assert!(program.graph.to_string().contains("min"));
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn custom_vjp<A: Tree<Tensor>, R: Tree<Tensor>, S: Tree<Tensor>>(
    f: impl Fn(A) -> R,
    forward: impl Fn(A) -> (R, S),
    backward: impl Fn(S, R) -> A,
) -> impl Fn(A) -> R {
    let source = Location::caller();
    move |args| {
        let op = "custom_vjp";
        let body = of_order(0, || close(&args, &f, op, source));
        let Some(rest) = order().checked_sub(1) else {
            return without_rule(op, &args, body, source);
        };
        let forward = of_order(rest, || close(&args, &forward, op, source));
        let wanted = result_types(&body);
        let (results, residuals) = &forward.result;
        let problems = unlike(("result", results), &forward.graph, ("result", &wanted));
        let help =
            "`forward(argument)` returns the function's result, of the same types, and residuals";
        refuse(op, "`forward`", problems, help, source);
        let copied = |t: &Tensor| *t;
        let kept = (
            residuals.replace_leaves(&mut |_, t| copied(t)),
            results.replace_leaves(&mut |_, t| copied(t)),
        );
        let ty = |t: &Tensor| forward.graph.ty(t.value).clone();
        let inner: Vec<TensorType> = kept.leaves().iter().map(ty).collect();
        let backward = of_order(rest, || {
            close_on(&kept, ty, |(s, ct)| backward(s, ct), op, source)
        });
        let wanted: Vec<TensorType> = args.leaves().iter().map(|t| t.ty()).collect();
        let found = ("cotangent", &backward.result);
        let problems = unlike(found, &backward.graph, ("argument", &wanted));
        let help = "`backward(residuals, cotangent)` returns a cotangent for each leaf of the argument, of its type";
        refuse(op, "`backward`", problems, help, source);

        let arguments = args.leaves();
        let count = arguments.len();
        let mut shared = Shared::new(arguments);
        shared.capture(&body.operands[count..]);
        shared.capture(&forward.operands[count..]);
        shared.capture(&backward.operands[inner.len()..]);
        // Backward takes the captures, then residuals and cotangents.
        let captures = shared.captures().len();
        let from: Vec<usize> = (captures..captures + inner.len())
            .chain(shared.positions(&backward.operands[inner.len()..]))
            .collect();
        let types = shared.captures().iter().map(|t| t.ty()).chain(inner);
        let custom = Custom {
            body: shared.function(&body),
            arguments: count,
            rule: CustomRule::Vjp {
                forward: shared.function(&forward),
                backward: rewired(&backward.graph, types, &from),
                residuals: residuals.leaves().len(),
            },
        };
        let results = emit(Op::Custom(Box::new(custom)), &shared.operands, source);
        body.result.with_leaves(&results)
    }
}

/// The function where no derivative of it is taken.
fn without_rule<A: Tree<Tensor>, R: Tree<Tensor>>(
    op: &'static str,
    args: &A,
    body: Closed<R>,
    source: Source,
) -> R {
    let custom = Custom {
        body: Arc::new(body.graph),
        arguments: args.leaves().len(),
        rule: CustomRule::Untraced(op),
    };
    let results = emit(Op::Custom(Box::new(custom)), &body.operands, source);
    body.result.with_leaves(&results)
}

fn result_types<R: Tree<Tensor>>(closed: &Closed<R>) -> Vec<TensorType> {
    let outputs = closed.graph.outputs().iter();
    outputs.map(|&o| closed.graph.ty(o).clone()).collect()
}

/// How the leaves of what a rule returned, values of `graph`, differ from what is wanted.
fn unlike<T: Tree<Tensor>>(
    (what, found): (&str, &T),
    graph: &Graph,
    (like, wanted): (&str, &[TensorType]),
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut count = 0;
    found.visit_leaves(&mut Path::root(), &mut |path, t| {
        let ty = graph.ty(t.value);
        if let Some(wanted) = wanted.get(count).filter(|wanted| !wanted.is_like(ty)) {
            let leaf = path.leaf_of(what);
            problems.push(format!("{leaf} is {ty}, the {like} is {wanted}"));
        }
        count += 1;
    });
    if count != wanted.len() {
        problems.push(format!(
            "it returns {count} {what} leaves, the {like} has {}",
            wanted.len()
        ));
    }
    problems
}

fn refuse(op: &'static str, of: &str, problems: Vec<String>, help: &str, source: Source) {
    if problems.is_empty() {
        return;
    }
    let problem = format!("{of} does not fit the function: {}", problems.join("; "));
    fail_at(ErrorKind::Shape { op, problem }, Some(help.into()), source)
}

/// The derivative that was given.
pub(crate) fn jvp_custom(
    equation: &Equation,
    custom: &Custom,
    operands: &[Dual],
    mode: Mode,
) -> SmallVec<[Dual; 1]> {
    let source = equation.source;
    let op = equation.op.name();
    let derivative = |problem: &str, help: &str| -> ! {
        let kind = ErrorKind::Derivative {
            op,
            problem: problem.to_owned(),
        };
        fail_at(kind, Some(help.to_owned()), source)
    };
    if operands[custom.arguments..]
        .iter()
        .any(|d| d.tangent.is_some())
    {
        derivative(
            "the function, or its rule, captures a value that is being differentiated",
            "give it the value as an argument, so that the rule has a derivative for it, or put \
             `.stop_gradient()` on it",
        )
    }
    let primals: Vec<Tensor> = operands.iter().map(|d| d.primal).collect();
    let written = |d: &Dual| d.tangent.unwrap_or_else(|| lax::zeros(&d.primal.ty()));
    let tangents: Vec<Tensor> = operands[..custom.arguments].iter().map(written).collect();
    let results = equation.results.len();
    let (values, tangents) = match &custom.rule {
        CustomRule::Untraced(_) => derivative(
            "its rule was not traced, for fewer derivatives were taken where the function was called",
            "a pullback or a linearized function that is differentiated itself is so once: take the higher derivatives of \
             a function that calls it, as in `grad(|x| grad(f)(x).sum(..))`",
        ),
        CustomRule::Jvp(rule) => {
            let mut outputs = inline(rule, &[primals, tangents].concat());
            let tangents = outputs.split_off(results);
            (outputs, tangents)
        }
        CustomRule::Vjp { .. } if mode == Mode::Forward => derivative(
            "a function with a backward rule has no forward derivative",
            "differentiate it in reverse mode (`grad`, `vjp`, `jacrev`), or give it a `custom_jvp`",
        ),
        CustomRule::Vjp {
            forward, backward, ..
        } => {
            let mut outputs = inline(forward, &primals);
            let residuals = outputs.split_off(results);
            let known = [&primals[custom.arguments..], &residuals].concat();
            let linear = CustomLinear {
                backward: Arc::clone(backward),
                known: known.len(),
                results: outputs.iter().map(|t| t.ty()).collect(),
            };
            let operands = [known, tangents].concat();
            let tangents = emit(Op::CustomLinear(linear), &operands, source);
            (outputs, tangents.to_vec())
        }
    };
    let dual = |(primal, tangent): (Tensor, Tensor)| Dual {
        primal,
        tangent: primal.dtype().is_differentiable().then_some(tangent),
    };
    values.into_iter().zip(tangents).map(dual).collect()
}

/// The transpose that was given.
pub(crate) fn transpose_custom(
    linear: &CustomLinear,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
) -> Tangents {
    let known = operands[..linear.known].iter().map(|o| o.tensor);
    let cts = cotangents.iter().zip(&linear.results);
    let cts = cts.map(|(ct, ty)| ct.unwrap_or_else(|| lax::zeros(ty)));
    let inputs: Vec<Tensor> = known.chain(cts).collect();
    let results = inline(&linear.backward, &inputs);
    let mut by_operand: Tangents = smallvec![None; operands.len()];
    for (slot, ct) in by_operand[linear.known..].iter_mut().zip(results) {
        *slot = Some(ct);
    }
    by_operand
}

/// The function and its rule, each for the batch.
pub(crate) fn batch_custom(
    equation: &Equation,
    custom: &Custom,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let dims: Vec<Option<usize>> = operands.iter().map(|o| o.dim).collect();
    let (arguments, captures) = dims.split_at(custom.arguments);
    let results = equation.results.len();
    let batched =
        |outputs: &[Option<usize>]| -> Vec<bool> { outputs.iter().map(Option::is_some).collect() };
    let union =
        |a: &[bool], b: &[bool]| -> Vec<bool> { a.iter().zip(b).map(|(a, b)| a | b).collect() };
    let own = batched(&batch_body(&custom.body, &dims, &[], batch).outputs);
    let (wanted, rule) = match &custom.rule {
        CustomRule::Untraced(name) => (own, CustomRule::Untraced(name)),
        CustomRule::Jvp(rule) => {
            let inputs = [&dims, arguments].concat();
            let found = batched(&batch_body(rule, &inputs, &[], batch).outputs);
            let (values, tangents) = found.split_at(results);
            let wanted = union(&own, &union(values, tangents));
            let both = [wanted.clone(), wanted.clone()].concat();
            let rule = batch_body(rule, &inputs, &both, batch).graph;
            (wanted, CustomRule::Jvp(rule))
        }
        CustomRule::Vjp {
            forward,
            backward,
            residuals,
        } => {
            let found = batched(&batch_body(forward, &dims, &[], batch).outputs);
            let wanted = union(&own, &found[..results]);
            let all = [&wanted, &found[results..]].concat();
            let forward = batch_body(forward, &dims, &all, batch);
            let (values, kept) = forward.outputs.split_at(results);
            let inputs = [captures, kept, values].concat();
            // An argument that serves the whole batch gets the sum of its cotangents.
            let form = Form::Cotangents(arguments.to_vec());
            let backward = batch_body_with(backward, &inputs, batch, form, |outputs, _| {
                let as_given = |(ct, dim): (Batched, &Option<usize>)| match (ct.dim, dim) {
                    (_, Some(dim)) => Batched::new(ct.at(*dim, batch.size), *dim),
                    (Some(of), None) => Batched::constant(lax::sum(ct.tensor, &[of])),
                    // It comes from results that serve the whole batch too.
                    (None, None) => ct,
                };
                outputs.into_iter().zip(arguments).map(as_given).collect()
            });
            let rule = CustomRule::Vjp {
                forward: forward.graph,
                backward: backward.graph,
                residuals: *residuals,
            };
            (wanted, rule)
        }
    };
    let body = batch_body(&custom.body, &dims, &wanted, batch).graph;
    let custom = Custom {
        body,
        arguments: custom.arguments,
        rule,
    };
    let tensors: Vec<Tensor> = operands.iter().map(|o| o.tensor).collect();
    let outputs = emit(Op::Custom(Box::new(custom)), &tensors, equation.source);
    outputs
        .into_iter()
        .zip(wanted)
        .map(|(tensor, wanted)| Batched {
            tensor,
            dim: wanted.then_some(0),
        })
        .collect()
}
