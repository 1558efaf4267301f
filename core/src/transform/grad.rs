//! `grad`, `value_and_grad`, `vjp`, `jvp` and `linearize`.

use std::panic::Location;

use super::close::{Closed, close};
use super::linearize::{Dual, Linear, LinearMap, Mode, jvp_graph};
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::literal::Number;
use crate::tensor::{Tensor, leaf};
use crate::trace::{at, fail_at, of_order, order, type_of};
use crate::tree::{Path, Tree};
use crate::types::TensorType;
use shardax_sharding::Role;

/// What a differentiated function may return: the loss, or the loss and more.
pub trait Objective: Tree<Tensor> {
    /// The scalar that is differentiated.
    fn loss(&self) -> Tensor;
}

impl Objective for Tensor {
    fn loss(&self) -> Tensor {
        *self
    }
}

/// The second part is handed through without being differentiated.
impl<Aux: Tree<Tensor>> Objective for (Tensor, Aux) {
    fn loss(&self) -> Tensor {
        self.0
    }
}

/// The gradient of a scalar function with respect to every leaf of its argument.
///
/// What the function captures is constant. See [`value_and_grad`].
#[track_caller]
pub fn grad<P: Tree<Tensor>, O: Objective>(f: impl Fn(P) -> O) -> impl Fn(P) -> P {
    let source = Location::caller();
    move |parameters| value_and_grad_at(&f, parameters, source).1
}

/// The function's result and its gradient with respect to every leaf of its argument.
///
/// Leaves with `#[shard]` annotations are used where the layout wants parameters while they
/// compute, and their gradients lie where it wants gradients.
///
/// A loss that is not a scalar of a floating-point type, and leaves of integer types, are errors.
///
/// ```
/// use shardax_core::{Tensor, TensorType, DType, trace, value_and_grad};
///
/// let step = |x: Tensor| value_and_grad(|x: Tensor| (x * x).sum(..))(x);
/// let program = trace(step, TensorType::new(DType::F32, [3]))?;
/// assert_eq!(program.output_types()[1].to_string(), "f32[3]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn value_and_grad<P: Tree<Tensor>, O: Objective>(f: impl Fn(P) -> O) -> impl Fn(P) -> (O, P) {
    let source = Location::caller();
    move |parameters| value_and_grad_at(&f, parameters, source)
}

fn value_and_grad_at<P: Tree<Tensor>, O: Objective>(
    f: impl FnOnce(P) -> O,
    parameters: P,
    source: Source,
) -> (O, P) {
    check_differentiable(&parameters, "grad", source);
    let in_use = |path: &mut Path, t: &Tensor| match path.is_stacked() {
        // Stacked parameters are gathered one layer at a time, by the loop over them.
        false => leaf(*t, path, Role::ParameterAtUse, source),
        true => *t,
    };
    let used = |parameters: P| f(parameters.replace_leaves(&mut { in_use }));
    let traced = of_order(order() + 1, || close(&parameters, used, "grad", source));
    let loss = traced.result.loss();
    let ty = traced.graph.ty(loss.value);
    if ty.rank() != 0 || !ty.dtype.is_float() {
        let problem = format!("the loss is {ty}, not a floating-point scalar");
        let help = "reduce it, for example with `.mean(..)`";
        fail_at(
            ErrorKind::Derivative {
                op: "grad",
                problem,
            },
            Some(help.into()),
            source,
        )
    }
    at(source, || differentiated(&traced, &parameters, source))
}

/// The traced loss and its gradient, emitted.
fn differentiated<P: Tree<Tensor>, O: Objective>(
    traced: &Closed<O>,
    parameters: &P,
    source: Source,
) -> (O, P) {
    let loss = traced.result.loss();
    let ty = traced.graph.ty(loss.value);
    let position = traced.graph.outputs().iter().position(|&o| o == loss.value);
    let pullback = Pullback::new(traced, parameters.leaves().len(), source);
    let objective = traced.result.with_leaves(&pullback.results);
    let one = |o: usize| (Some(o) == position).then(|| lax::full(Number::Float(1.0), ty));
    let cotangents: Vec<Option<Tensor>> = (0..pullback.results.len()).map(one).collect();
    let gradients = pullback.apply(&cotangents, source);
    let mut next = gradients.into_iter();
    let gradients = parameters.replace_leaves(&mut |path, parameter_leaf| {
        let gradient = next
            .next()
            .flatten()
            .unwrap_or_else(|| lax::zeros(&parameter_leaf.ty()));
        leaf(gradient, path, Role::Gradient, source)
    });
    (objective, gradients)
}

/// A linearized function, before its transpose is written.
struct Pullback {
    results: Vec<Tensor>,
    tangents: Vec<Option<Tensor>>,
    linear: Linear,
}

impl Pullback {
    /// Emits `traced` and its derivative with respect to its first `arguments` operands.
    fn new<R>(traced: &Closed<R>, arguments: usize, source: Source) -> Self {
        let wanted = traced
            .operands
            .iter()
            .enumerate()
            .map(|(i, t)| (i < arguments).then(|| t.ty()));
        let linear = Linear::begin(wanted, source);
        let duals: Vec<Dual> = traced
            .operands
            .iter()
            .zip(linear.tangents())
            .map(|(&primal, &tangent)| Dual { primal, tangent })
            .collect();
        let outputs = jvp_graph(&traced.graph, &duals, Mode::Linearize);
        Pullback {
            results: outputs.iter().map(|d| d.primal).collect(),
            tangents: outputs.iter().map(|d| d.tangent).collect(),
            linear,
        }
    }

    /// The cotangents of the arguments, for cotangents of the results.
    fn apply(self, cotangents: &[Option<Tensor>], source: Source) -> Vec<Option<Tensor>> {
        let outputs = self.tangents.into_iter().zip(cotangents.iter().copied());
        self.linear.transpose(outputs, source)
    }
}

/// The result of `f` and a function from cotangents of the result to cotangents of the argument.
///
/// The function may be called anywhere inside the program, and more than once. A cotangent has the
/// type of its result; that of a result which is not real does not matter.
///
/// ```
/// use shardax_core::{Tensor, TensorType, DType, trace, vjp};
///
/// let program = trace(
///     |x: Tensor, ct: Tensor| {
///         let (_, pullback) = vjp(|x: Tensor| x.sin(), x);
///         pullback(ct)
///     },
///     (TensorType::new(DType::F32, [3]), TensorType::new(DType::F32, [3])),
/// )?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[3]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn vjp<A: Tree<Tensor>, R: Tree<Tensor>>(
    f: impl FnOnce(A) -> R,
    argument: A,
) -> (R, impl Fn(R) -> A) {
    let source = Location::caller();
    let (result, map) = linear_map("vjp", f, &argument, source);
    let types: Vec<TensorType> = result.leaves().iter().map(|t| t.ty()).collect();
    let apply = move |cotangent: R| {
        check_alike("vjp", ["cotangent", "result"], &cotangent, &types, source);
        let cotangents: Vec<Option<Tensor>> = cotangent.leaves().into_iter().map(Some).collect();
        let mut next = map.transpose(&cotangents, source).into_iter();
        let zeros = |t: &Tensor| at(source, || lax::zeros(&t.ty()));
        argument.replace_leaves(&mut |_, t| next.next().flatten().unwrap_or_else(|| zeros(t)))
    };
    (result, apply)
}

/// The result of `f` and its derivative at `argument`, a linear function of a tangent that may be
/// called more than once: what does not depend on the tangent is computed once.
///
/// ```
/// use shardax_core::{Tensor, TensorType, DType, linearize, trace};
///
/// let program = trace(
///     |x: Tensor, t: Tensor| {
///         let (_, derivative) = linearize(|x: Tensor| x.sin(), x);
///         (derivative(t), derivative(t * 2.0))
///     },
///     (TensorType::new(DType::F32, [3]), TensorType::new(DType::F32, [3])),
/// )?;
/// assert_eq!(program.graph.to_string().matches("cos").count(), 1);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn linearize<A: Tree<Tensor>, R: Tree<Tensor>>(
    f: impl FnOnce(A) -> R,
    argument: A,
) -> (R, impl Fn(A) -> R) {
    let source = Location::caller();
    let (result, map) = linear_map("linearize", f, &argument, source);
    let types: Vec<TensorType> = argument.leaves().iter().map(|t| t.ty()).collect();
    let shape = result.replace_leaves(&mut |_, t| *t);
    let apply = move |tangent: A| {
        check_alike(
            "linearize",
            ["tangent", "argument"],
            &tangent,
            &types,
            source,
        );
        at(source, || {
            let mut next = map.apply(&tangent.leaves()).into_iter();
            let zeros = |t: &Tensor| lax::zeros(&t.ty());
            shape.replace_leaves(&mut |_, t| next.next().flatten().unwrap_or_else(|| zeros(t)))
        })
    };
    (result, apply)
}

/// Emits `f` and its derivative; the latter as a function of its own.
fn linear_map<A: Tree<Tensor>, R: Tree<Tensor>>(
    op: &'static str,
    f: impl FnOnce(A) -> R,
    argument: &A,
    source: Source,
) -> (R, LinearMap) {
    check_differentiable(argument, op, source);
    // What is returned may be differentiated itself.
    let traced = of_order(order() + 2, || close(argument, f, op, source));
    let arguments = argument.leaves().len();
    at(source, || {
        let pullback = Pullback::new(&traced, arguments, source);
        let result = traced.result.with_leaves(&pullback.results);
        (result, LinearMap::new(pullback.linear, &pullback.tangents))
    })
}

/// The result of `f` and its derivative in the direction `tangent`, in one forward pass.
///
/// ```
/// use shardax_core::{Tensor, TensorType, DType, jvp, trace};
///
/// let program = trace(
///     |x: Tensor, t: Tensor| jvp(|x: Tensor| x.sin(), x, t),
///     (TensorType::new(DType::F32, [3]), TensorType::new(DType::F32, [3])),
/// )?;
/// assert_eq!(program.output_types().len(), 2);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn jvp<A: Tree<Tensor>, R: Tree<Tensor>>(
    f: impl FnOnce(A) -> R,
    argument: A,
    tangent: A,
) -> (R, R) {
    let source = Location::caller();
    check_differentiable(&argument, "jvp", source);
    let types: Vec<TensorType> = argument
        .leaves()
        .into_iter()
        .map(|t| type_of(t, "jvp", source))
        .collect();
    check_alike("jvp", ["tangent", "argument"], &tangent, &types, source);
    let traced = of_order(order() + 1, || close(&argument, f, "jvp", source));
    let tangents = tangent.leaves();
    let dual = |(i, &primal): (usize, &Tensor)| Dual {
        primal,
        tangent: tangents.get(i).copied(),
    };
    let duals: Vec<Dual> = traced.operands.iter().enumerate().map(dual).collect();
    at(source, || {
        let outputs = jvp_graph(&traced.graph, &duals, Mode::Forward);
        let primals: Vec<Tensor> = outputs.iter().map(|d| d.primal).collect();
        let tangent = |d: &Dual| d.tangent.unwrap_or_else(|| lax::zeros(&d.primal.ty()));
        let tangents: Vec<Tensor> = outputs.iter().map(tangent).collect();
        (
            traced.result.with_leaves(&primals),
            traced.result.with_leaves(&tangents),
        )
    })
}

/// Whether `given`, `[what it is, what it must be like]`, has leaves of `types`.
fn check_alike<T: Tree<Tensor>>(
    op: &'static str,
    [what, like]: [&str; 2],
    given: &T,
    types: &[TensorType],
    source: Source,
) {
    let mut problems = Vec::new();
    let mut count = 0;
    given.visit_leaves(&mut Path::root(), &mut |path, t| {
        let found = type_of(*t, op, source);
        let wanted = types.get(count).filter(|ty| ty.dtype.is_differentiable());
        count += 1;
        if let Some(wanted) = wanted.filter(|wanted| **wanted != found) {
            problems.push(format!(
                "{} is {found}, the {like} is {wanted}",
                path.leaf_of(what)
            ));
        }
    });
    if count != types.len() {
        problems.push(format!(
            "it has {count} leaves, the {like} has {}",
            types.len()
        ));
    }
    if !problems.is_empty() {
        let problem = format!("the {what} is not like the {like}: {}", problems.join("; "));
        let help = format!("give a {what} of the {like}'s own types, a number for each element");
        fail_at(ErrorKind::Shape { op, problem }, Some(help), source)
    }
}

fn check_differentiable<P: Tree<Tensor>>(parameters: &P, op: &'static str, source: Source) {
    let mut problems = Vec::new();
    parameters.visit_leaves(&mut Path::root(), &mut |path, t| {
        let ty = type_of(*t, op, source);
        if !ty.dtype.is_differentiable() {
            problems.push(format!("{} is {ty}", path.leaf_of("argument")));
        }
    });
    if !problems.is_empty() {
        let problem = format!(
            "no derivative exists by values that are not real: {}",
            problems.join(", ")
        );
        let help = "let the function capture them instead of taking them as its argument";
        fail_at(
            ErrorKind::Derivative { op, problem },
            Some(help.into()),
            source,
        )
    }
}
