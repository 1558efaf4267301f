//! What must hold of a program without any device: derivatives are what differences are, and a batch
//! is a loop.
//!
//! The interpreter computes both sides, so a law costs no compilation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::{
    DType, Error, Layout, Tensor, TensorType, grad,
    ir::{Binary, Graph, Op, Unary},
    jvp, trace, under, vmap_axes,
};
use shardax_interpreter::{Array, Observer, interpret, interpret_with};

use crate::check::{Failure, Kind, caught, inputs};
use crate::oracle::{Oracle, Verdict};
use crate::program::{Action, Block, Form, Program};
use crate::run;

/// The step of differences.
const STEP: f64 = 1e-4;

/// Checks the laws.
///
/// # Errors
///
/// The first that does not hold.
pub(crate) fn check(program: &Program, seen: &mut Vec<String>) -> Result<(), Failure> {
    differences(program, seen)?;
    batches(program, seen)
}

/// A function that is checked under a program's layout.
fn graph(
    program: &Program,
    types: Vec<TensorType>,
    f: impl Fn(Vec<Tensor>) -> Vec<Tensor>,
) -> Result<Result<Graph, Error>, Failure> {
    let layout = run::layout(&program.place).unwrap_or_else(|_| Layout::single());
    caught(|| under(&layout, || trace(f, types)).map(|traced| traced.graph))
}

/// What the interpreter gives; nothing if it cannot.
fn interpreted(graph: &Graph, inputs: &[Array]) -> Option<Vec<Array>> {
    catch_unwind(AssertUnwindSafe(|| interpret(graph, inputs))).ok()
}

/// The gradient of a weighted sum of results along a direction, in both modes, against differences in
/// f64.
fn differences(program: &Program, seen: &mut Vec<String>) -> Result<(), Failure> {
    let mut program = program.clone();
    program.form = match program.form {
        Form::Second => Form::Gradient,
        form @ Form::Batch { .. } => form,
        _ => Form::Values,
    };
    let mut stops = false;
    widen(&mut program, &mut stops);
    let x = inputs(&program);
    if stops || !x.iter().any(Array::is_float) {
        return Ok(());
    }
    let types: Vec<TensorType> = x.iter().map(|x| x.ty.clone()).collect();
    let loss = |x: Vec<Tensor>| vec![run::weighed(&run::program(&program, x))];
    let Ok(value) = graph(&program, types.clone(), loss)? else {
        return Ok(());
    };
    if !is_wide(&value) {
        return Ok(());
    }
    let direction: Vec<Array> = x.iter().map(along).collect();
    let at = |step: f64| {
        let moved: Vec<Array> = x
            .iter()
            .zip(&direction)
            .map(|(x, d)| moved(x, d, step))
            .collect();
        let value = interpreted(&value, &moved)?.first()?.floats()[0];
        value.is_finite().then_some(value)
    };
    let values: Option<Vec<f64>> = [-2.0, -1.0, 0.0, 1.0, 2.0]
        .map(|k| at(k * STEP))
        .into_iter()
        .collect();
    let Some(v) = values else { return Ok(()) };
    // Slopes on both sides differ by the step times the curvature; at a kink, by more.
    let bend = |near: usize| (v[2 + near] - 2.0 * v[2] + v[2 - near]) / (near as f64 * STEP);
    let slope = |near: usize| (v[2 + near] - v[2 - near]) / (2.0 * near as f64 * STEP);
    let scale = 1.0 + slope(1).abs() + v[2].abs() * 1e-6;
    let bound = 1e-5 * scale;
    if (bend(2) - 2.0 * bend(1)).abs() > bound || (slope(2) - slope(1)).abs() > bound {
        seen.push("not smooth".to_owned());
        return Ok(());
    }
    let fault = |mode: &str, found: f64| {
        let wanted = slope(1);
        let message = format!(
            "the derivative along a direction is {found:e} by {mode} mode, and {wanted:e} by differences"
        );
        let kind = Kind::Differences;
        Failure { kind, message }
    };
    let is_near = |found: f64| (found - slope(1)).abs() <= 20.0 * bound;
    let mut edges = Edges::default();
    let seen_all = catch_unwind(AssertUnwindSafe(|| interpret_with(&value, &x, &mut edges)));
    let is_open = seen_all.is_err() || edges.found;
    let is_off = |found: f64| !is_near(found) && !is_open;

    let of = |x: &[Tensor], floats: Vec<Tensor>| {
        run::weighed(&run::program(&program, run::joined(x, &floats)))
    };
    let reverse = |x: Vec<Tensor>| grad(|floats: Vec<Tensor>| of(&x, floats))(run::floats(&x));
    if let Ok(reverse) = graph(&program, types.clone(), reverse)?
        && let Some(gradients) = interpreted(&reverse, &x)
    {
        let own = direction.iter().filter(|d| d.is_float());
        let products = gradients.iter().zip(own);
        let products = products.map(|(g, d)| dot(g, d));
        let found: f64 = products.sum();
        seen.push("differences".to_owned());
        if is_off(found) {
            return Err(fault("reverse", found));
        }
    }
    // A tangent of 0 is none to a NaN.
    if !x
        .iter()
        .filter(|x| x.is_float())
        .all(|x| x.floats().into_iter().all(is_movable))
    {
        return Ok(());
    }
    let forward = |x: Vec<Tensor>| {
        let floats = run::floats(&x);
        let directions = floats.iter().map(|x| run::direction(*x)).collect();
        vec![jvp(|floats: Vec<Tensor>| of(&x, floats), floats, directions).1]
    };
    if let Ok(forward) = graph(&program, types, forward)?
        && let Some(found) = interpreted(&forward, &x)
    {
        let found = found[0].floats()[0];
        if is_off(found) {
            return Err(fault("forward", found));
        }
    }
    Ok(())
}

fn dot(a: &Array, b: &Array) -> f64 {
    let pairs = a.floats().into_iter().zip(b.floats());
    // Nothing depends on what has a direction of 0, whatever its gradient.
    pairs.filter(|(_, b)| *b != 0.0).map(|(a, b)| a * b).sum()
}

/// The same as [`run::direction`], but for numbers that a step along it would not change enough to see, or makes NaN.
fn along(x: &Array) -> Array {
    let one = |(i, v): (usize, f64)| match is_movable(v) {
        true => (i as f64 * 0.9).cos() + 0.3,
        false => 0.0,
    };
    match x.is_float() {
        true => Array::f64(&x.ty.shape, x.floats().into_iter().enumerate().map(one)),
        false => x.clone(),
    }
}

/// Whether a step of [`STEP`] has enough digits of its own beside a number.
fn is_movable(v: f64) -> bool {
    v.abs() < 1e6
}

/// Looks for points where functions have no derivative, or an infinite one: there only a finite slope is compared,
/// and nothing is asked of a number that a rule can but choose.
#[derive(Default)]
struct Edges {
    found: bool,
}

impl Observer for Edges {
    fn operands(&mut self, op: &Op, x: &mut [Array]) {
        let is =
            |x: &Array, edges: &[f64]| x.is_float() && x.floats().iter().any(|v| edges.contains(v));
        self.found |= match op {
            Op::Unary(Unary::Acosh) => is(&x[0], &[1.0]),
            Op::Unary(Unary::Acos | Unary::Asin | Unary::Atanh) => is(&x[0], &[1.0, -1.0]),
            Op::Unary(
                Unary::Abs | Unary::Cbrt | Unary::Log | Unary::Rsqrt | Unary::Sign | Unary::Sqrt,
            ) => is(&x[0], &[0.0]),
            Op::Binary(Binary::Div | Binary::DivOrZero) => is(&x[1], &[0.0]),
            _ => false,
        };
    }

    fn results(&mut self, _: &Op, results: &mut [Array]) {
        // Where a number on the way is huge, whatever repeats has no slope that a step could show.
        let is_huge = |x: &Array| x.is_float() && x.floats().iter().any(|v| !is_movable(*v));
        self.found |= results.iter().any(is_huge);
    }
}

fn moved(x: &Array, direction: &Array, step: f64) -> Array {
    if !x.is_float() {
        return x.clone();
    }
    let pairs = x.floats().into_iter().zip(direction.floats());
    Array::f64(&x.ty.shape, pairs.map(|(x, d)| x + step * d))
}

/// What stops derivatives, or has one by convention where it has none: a quantile of equal elements, and what takes its
/// sign from another number than its size.
const NO_DERIVATIVE: [&str; 6] = [
    "stop_gradient",
    "nextafter",
    "reduce_precision",
    "copysign",
    "quantile",
    "median",
];

/// Makes floating-point numbers f64, and looks for what is no function of its operands.
fn widen(program: &mut Program, stops: &mut bool) {
    for input in &mut program.inputs {
        if input.ty.dtype.is_float() {
            input.ty.dtype = DType::F64;
        }
    }
    widen_block(&mut program.body, stops);
}

fn widen_block(block: &mut Block, stops: &mut bool) {
    for statement in &mut block.statements {
        match &mut statement.action {
            Action::Call { name, parameters } => {
                if parameters.dtype.is_float() {
                    parameters.dtype = DType::F64;
                }
                *stops |= NO_DERIVATIVE.contains(&name.as_str());
            }
            Action::Annotate(_) => {}
            Action::Within { blocks, .. } => {
                for block in blocks {
                    widen_block(block, stops);
                }
            }
        }
    }
}

/// Whether f64 is the only type of fractions.
fn is_wide(graph: &Graph) -> bool {
    let text = graph.to_string();
    !["f32[", "f16[", "bf16[", "f8e", "c64["]
        .iter()
        .any(|name| text.contains(name))
}

/// A batch gives for each element what the program gives for it alone.
fn batches(program: &Program, seen: &mut Vec<String>) -> Result<(), Failure> {
    let mut single = program.clone();
    for input in &mut single.inputs {
        input.split = None;
    }
    let given = inputs(program);
    let (size, mapped, batched): (usize, Vec<bool>, Vec<Array>) = match &program.form {
        Form::Batch { size, mapped } => (*size, mapped.clone(), given),
        _ => (
            2,
            vec![true; given.len()],
            given.iter().map(doubled).collect(),
        ),
    };
    if let Form::Batch { .. } = program.form {
        single.form = Form::Values;
    }
    let elements = |i: usize| -> Vec<Array> {
        let each = batched.iter().zip(&mapped);
        each.map(|(x, &mapped)| if mapped { x.element(i) } else { x.clone() })
            .collect()
    };
    let types = |x: &[Array]| x.iter().map(|x| x.ty.clone()).collect::<Vec<_>>();
    let axes: Vec<Option<isize>> = mapped.iter().map(|&m| m.then_some(0)).collect();
    let one = |x: Vec<Tensor>| run::program(&single, x);
    let (Ok(batch), Ok(alone)) = (
        graph(program, types(&batched), |x| vmap_axes(one, &axes, 0)(x))?,
        graph(program, types(&elements(0)), one)?,
    ) else {
        return Ok(());
    };
    let Some(oracle) = Oracle::new(&batch, &batched, 4) else {
        return Ok(());
    };
    seen.push("batches".to_owned());
    let alone: Option<Vec<_>> = (0..size)
        .map(|i| interpreted(&alone, &elements(i)))
        .collect();
    let Some(alone) = alone else { return Ok(()) };
    for r in 0..oracle.exact().len() {
        let joined: Vec<f64> = alone
            .iter()
            .flat_map(|results| results[r].floats())
            .collect();
        if !matches!(oracle.judge(r, &joined), Verdict::Wrong(..)) {
            continue;
        }
        let more = Oracle::new(&batch, &batched, 40);
        if let Some(Verdict::Wrong(element, one, all)) = more.map(|more| more.judge(r, &joined)) {
            let message =
                format!("element {element} of result {r} is {all:e} in a batch, and {one:e} alone");
            let kind = Kind::Loop;
            return Err(Failure { kind, message });
        }
    }
    Ok(())
}

/// A batch of two, of which the second is the first backwards.
fn doubled(x: &Array) -> Array {
    let shape: Vec<usize> = [2].into_iter().chain(x.ty.shape.iter().copied()).collect();
    let data = x.data.iter().chain(x.data.iter().rev());
    Array::new(x.ty.dtype, &shape, data.copied())
}
