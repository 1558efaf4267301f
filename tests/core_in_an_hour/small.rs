//! A small Shardax, step by step: the code of `docs/core.md`, which explains it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;

/// What an equation does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    /// A number.
    Constant(f64),
    Add,
    Mul,
    Neg,
    Sin,
    Cos,
    /// The sum over a dimension, which disappears.
    Sum(usize),
    /// A new dimension at a position, of a size.
    Broadcast(usize, usize),
    /// The place of a tangent that is not known yet.
    Tangent,
}

pub(crate) type Value = usize;
pub(crate) type Shape = Vec<usize>;

#[derive(Clone, Debug)]
pub(crate) struct Equation {
    pub(crate) op: Op,
    pub(crate) operands: Vec<Value>,
    pub(crate) result: Value,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    /// The shape of each value.
    pub(crate) shapes: Vec<Shape>,
    pub(crate) inputs: Vec<Value>,
    pub(crate) equations: Vec<Equation>,
    pub(crate) outputs: Vec<Value>,
}

/// The shape of a result, if the operands fit.
fn shape_of(op: Op, operands: &[Shape]) -> Result<Shape, String> {
    match (op, operands) {
        (Op::Constant(_), []) => Ok(vec![]),
        (Op::Add | Op::Mul, [x, y]) if x == y => Ok(x.clone()),
        (Op::Add | Op::Mul, [x, y]) => Err(format!("{op:?}: {x:?} does not fit {y:?}")),
        (Op::Neg | Op::Sin | Op::Cos, [x]) => Ok(x.clone()),
        (Op::Sum(dim), [x]) if dim < x.len() => {
            let rest = x.iter().enumerate().filter(|(d, _)| *d != dim);
            Ok(rest.map(|(_, size)| *size).collect())
        }
        (Op::Broadcast(dim, size), [x]) if dim <= x.len() => {
            let mut shape = x.clone();
            shape.insert(dim, size);
            Ok(shape)
        }
        _ => Err(format!("{op:?} does not take {operands:?}")),
    }
}

/// A handle: a value of the program that is being traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tensor(pub(crate) Value);

thread_local! {
    static TRACED: RefCell<Graph> = RefCell::default();
}

/// Appends an equation.
fn emit(op: Op, operands: &[Tensor]) -> Tensor {
    TRACED.with_borrow_mut(|graph| {
        let shapes: Vec<Shape> = operands.iter().map(|x| graph.shapes[x.0].clone()).collect();
        // The real tracer unwinds with an error that names the user's line, and `trace` returns it.
        let shape = shape_of(op, &shapes).unwrap_or_else(|problem| panic!("{problem}"));
        graph.shapes.push(shape);
        let result = graph.shapes.len() - 1;
        let operands = operands.iter().map(|x| x.0).collect();
        graph.equations.push(Equation {
            op,
            operands,
            result,
        });
        Tensor(result)
    })
}

/// Runs a function on handles, and returns what it wrote.
pub(crate) fn trace(f: impl FnOnce(&[Tensor]) -> Vec<Tensor>, inputs: &[Shape]) -> Graph {
    let outer = TRACED.take();
    let inputs = (0..inputs.len()).zip(inputs).map(|(value, shape)| {
        TRACED.with_borrow_mut(|graph| graph.shapes.push(shape.clone()));
        Tensor(value)
    });
    let inputs: Vec<Tensor> = inputs.collect();
    let outputs = f(&inputs);
    let mut graph = TRACED.replace(outer);
    graph.inputs = inputs.iter().map(|x| x.0).collect();
    graph.outputs = outputs.iter().map(|x| x.0).collect();
    graph
}

impl std::ops::Add for Tensor {
    type Output = Tensor;
    fn add(self, other: Tensor) -> Tensor {
        emit(Op::Add, &[self, other])
    }
}

impl std::ops::Mul for Tensor {
    type Output = Tensor;
    fn mul(self, other: Tensor) -> Tensor {
        emit(Op::Mul, &[self, other])
    }
}

impl Tensor {
    pub(crate) fn sin(self) -> Tensor {
        emit(Op::Sin, &[self])
    }

    pub(crate) fn sum(self, dim: usize) -> Tensor {
        emit(Op::Sum(dim), &[self])
    }

    pub(crate) fn shape(self) -> Shape {
        TRACED.with_borrow(|graph| graph.shapes[self.0].clone())
    }
}

/// Walks through a program: what stands for each value is computed from what stands for the operands.
fn walk<V: Clone>(
    graph: &Graph,
    inputs: &[V],
    mut step: impl FnMut(&Equation, Vec<V>) -> V,
) -> Vec<V> {
    let mut values: HashMap<Value, V> = HashMap::new();
    values.extend(graph.inputs.iter().copied().zip(inputs.iter().cloned()));
    for equation in &graph.equations {
        let operands = equation.operands.iter().map(|x| values[x].clone());
        let result = step(equation, operands.collect());
        values.insert(equation.result, result);
    }
    graph.outputs.iter().map(|x| values[x].clone()).collect()
}

/// Elements, the last dimension varying fastest.
pub(crate) type Array = Vec<f64>;

pub(crate) fn interpret(graph: &Graph, inputs: &[Array]) -> Vec<Array> {
    walk(graph, inputs, |equation, x| {
        let each = |f: fn(f64) -> f64| x[0].iter().map(|v| f(*v)).collect();
        let pairs = |f: fn(f64, f64) -> f64| {
            let pairs = x[0].iter().zip(&x[1]);
            pairs.map(|(a, b)| f(*a, *b)).collect()
        };
        let shape = &graph.shapes[equation.result];
        // How many elements there are to one step of a dimension.
        let inner = |dim: usize| shape[dim..].iter().product::<usize>();
        match equation.op {
            Op::Constant(v) => vec![v],
            Op::Add => pairs(|a, b| a + b),
            Op::Mul => pairs(|a, b| a * b),
            Op::Neg => each(|v| -v),
            Op::Sin => each(f64::sin),
            Op::Cos => each(f64::cos),
            Op::Sum(dim) => {
                let (size, inner) = (graph.shapes[equation.operands[0]][dim], inner(dim));
                let at = |i: usize, k: usize| x[0][(i / inner * size + k) * inner + i % inner];
                let count = shape.iter().product();
                (0..count)
                    .map(|i| (0..size).map(|k| at(i, k)).sum())
                    .collect()
            }
            Op::Broadcast(dim, size) => {
                let inner = inner(dim + 1);
                let count = shape.iter().product();
                (0..count)
                    .map(|i| x[0][i / inner / size * inner + i % inner])
                    .collect()
            }
            Op::Tangent => panic!("a tangent that nobody gave"),
        }
    })
}

/// A value and its tangent.
type Dual = (Tensor, Option<Tensor>);

/// The tangent of a result.
fn jvp_rule(op: Op, x: &[Dual]) -> Option<Tensor> {
    let add = |a: Option<Tensor>, b: Option<Tensor>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
    match op {
        Op::Constant(_) => None,
        Op::Add => add(x[0].1, x[1].1),
        Op::Mul => add(x[0].1.map(|t| t * x[1].0), x[1].1.map(|t| x[0].0 * t)),
        Op::Sin => x[0].1.map(|t| t * emit(Op::Cos, &[x[0].0])),
        Op::Cos => x[0].1.map(|t| t * emit(Op::Neg, &[x[0].0.sin()])),
        // What is linear treats a tangent as it treats a value.
        Op::Neg | Op::Sum(_) | Op::Broadcast(..) => x[0].1.map(|t| emit(op, &[t])),
        Op::Tangent => panic!("a tangent that nobody gave"),
    }
}

fn input_shapes(graph: &Graph) -> Vec<Shape> {
    let inputs = graph.inputs.iter();
    inputs.map(|x| graph.shapes[*x].clone()).collect()
}

/// Writes a program, and how it carries tangents, into the one that is traced.
fn duals(graph: &Graph, inputs: &[Dual]) -> Vec<Dual> {
    walk(graph, inputs, |equation, x| {
        let values: Vec<Tensor> = x.iter().map(|dual| dual.0).collect();
        let result = emit(equation.op, &values);
        (result, jvp_rule(equation.op, &x))
    })
}

/// The program of `x, t` that gives the results of `f` at `x`, and how they move along `t`.
pub(crate) fn jvp(graph: &Graph) -> Graph {
    let shapes = input_shapes(graph);
    let count = shapes.len();
    let derivative = |x: &[Tensor]| {
        let inputs: Vec<Dual> = (0..count).map(|i| (x[i], Some(x[count + i]))).collect();
        let results = duals(graph, &inputs);
        let zero = |y: Tensor| {
            y.shape()
                .iter()
                .fold(emit(Op::Constant(0.0), &[]), |zero, &size| {
                    let rank = zero.shape().len();
                    emit(Op::Broadcast(rank, size), &[zero])
                })
        };
        let tangents = results.iter().map(|(y, t)| t.unwrap_or_else(|| zero(*y)));
        let tangents: Vec<Tensor> = tangents.collect();
        results.iter().map(|(y, _)| *y).chain(tangents).collect()
    };
    trace(derivative, &[&shapes[..], &shapes[..]].concat())
}

/// The cotangents that an equation hands to those of its operands that are linear.
fn transpose_rule(equation: &Equation, is_linear: &[bool], ct: Tensor) -> Vec<(Value, Tensor)> {
    let x = &equation.operands;
    match equation.op {
        Op::Add => (0..2)
            .filter(|i| is_linear[*i])
            .map(|i| (x[i], ct))
            .collect(),
        // One factor is a tangent, the other a number: two would not be linear.
        Op::Mul if is_linear[0] => vec![(x[0], ct * Tensor(x[1]))],
        Op::Mul => vec![(x[1], Tensor(x[0]) * ct)],
        Op::Neg => vec![(x[0], emit(Op::Neg, &[ct]))],
        Op::Sum(dim) => {
            let size = Tensor(x[0]).shape()[dim];
            vec![(x[0], emit(Op::Broadcast(dim, size), &[ct]))]
        }
        Op::Broadcast(dim, _) => vec![(x[0], ct.sum(dim))],
        op => panic!("{op:?} is not linear"),
    }
}

/// The program that gives a scalar function's value and its gradient by every input.
pub(crate) fn value_and_grad(graph: &Graph) -> Graph {
    let shapes = input_shapes(graph);
    let derivative = |x: &[Tensor]| {
        let place = |x: &Tensor| {
            TRACED.with_borrow_mut(|graph| {
                let shape = graph.shapes[x.0].clone();
                graph.shapes.push(shape);
                let (op, result) = (Op::Tangent, graph.shapes.len() - 1);
                graph.equations.push(Equation {
                    op,
                    operands: vec![],
                    result,
                });
                Tensor(result)
            })
        };
        let places: Vec<Tensor> = x.iter().map(place).collect();
        let inputs: Vec<Dual> = x.iter().zip(&places).map(|(x, t)| (*x, Some(*t))).collect();
        let (loss, tangent) = duals(graph, &inputs)[0];

        // The equations that depend on a tangent are taken out of the program, and transposed into it.
        let linear: Vec<Equation> = TRACED.with_borrow_mut(|graph| {
            let mut reached: Vec<Value> = places.iter().map(|t| t.0).collect();
            let all = std::mem::take(&mut graph.equations);
            let (linear, others) = all.into_iter().partition(|equation| {
                let is_linear = equation.operands.iter().any(|x| reached.contains(x));
                reached.extend(is_linear.then_some(equation.result));
                is_linear || equation.op == Op::Tangent
            });
            graph.equations = others;
            linear
        });
        let mut cts: HashMap<Value, Tensor> = HashMap::new();
        cts.extend(tangent.map(|t| (t.0, emit(Op::Constant(1.0), &[]))));
        let is_linear = |x: &Value| linear.iter().any(|equation| equation.result == *x);
        for equation in linear
            .iter()
            .rev()
            .filter(|equation| equation.op != Op::Tangent)
        {
            let Some(ct) = cts.remove(&equation.result) else {
                continue;
            };
            let which: Vec<bool> = equation.operands.iter().map(is_linear).collect();
            for (operand, ct) in transpose_rule(equation, &which, ct) {
                let sum = cts.remove(&operand).map_or(ct, |other| other + ct);
                cts.insert(operand, sum);
            }
        }
        let gradients = places.iter().map(|t| cts[&t.0]);
        [loss].into_iter().chain(gradients).collect()
    };
    trace(derivative, &shapes)
}

/// The program for `size` examples at once: those inputs have them in front that are mapped, and all results.
pub(crate) fn vmap(graph: &Graph, size: usize, mapped: &[bool]) -> Graph {
    let shapes = graph.inputs.iter().zip(mapped).map(|(x, mapped)| {
        let front = mapped.then_some(size);
        front
            .into_iter()
            .chain(graph.shapes[*x].iter().copied())
            .collect()
    });
    let shapes: Vec<Shape> = shapes.collect();
    let in_front = |(x, mapped): (Tensor, bool)| match mapped {
        true => x,
        false => emit(Op::Broadcast(0, size), &[x]),
    };
    let batched = |x: &[Tensor]| {
        let inputs: Vec<(Tensor, bool)> = x.iter().copied().zip(mapped.iter().copied()).collect();
        let results = walk(graph, &inputs, |equation, x| {
            if !x.iter().any(|(_, mapped)| *mapped) {
                let x: Vec<Tensor> = x.iter().map(|(x, _)| *x).collect();
                return (emit(equation.op, &x), false);
            }
            let op = match equation.op {
                Op::Sum(dim) => Op::Sum(dim + 1),
                Op::Broadcast(dim, size) => Op::Broadcast(dim + 1, size),
                elementwise => elementwise,
            };
            let x: Vec<Tensor> = x.into_iter().map(in_front).collect();
            (emit(op, &x), true)
        });
        results.into_iter().map(in_front).collect()
    };
    trace(batched, &shapes)
}

/// The program as a module of StableHLO.
pub(crate) fn lower(graph: &Graph) -> String {
    let ty = |x: Value| {
        let sizes: String = graph.shapes[x]
            .iter()
            .map(|size| format!("{size}x"))
            .collect();
        format!("tensor<{sizes}f64>")
    };
    let types = |all: &[Value]| all.iter().map(|x| ty(*x)).collect::<Vec<_>>().join(", ");
    let named = graph.inputs.iter().map(|x| format!("%{x}: {}", ty(*x)));
    let (inputs, outputs) = (named.collect::<Vec<_>>().join(", "), types(&graph.outputs));
    let mut text =
        format!("module @small {{\nfunc.func public @main({inputs}) -> ({outputs}) {{\n");
    for Equation {
        op,
        operands,
        result,
    } in &graph.equations
    {
        let x: Vec<String> = operands.iter().map(|x| format!("%{x}")).collect();
        let (all, to) = (x.join(", "), ty(*result));
        let functional = format!("({}) -> {to}", types(operands));
        let line = match op {
            Op::Constant(v) => format!("stablehlo.constant dense<{v:?}> : {to}"),
            Op::Add => format!("stablehlo.add {all} : {to}"),
            Op::Mul => format!("stablehlo.multiply {all} : {to}"),
            Op::Neg => format!("stablehlo.negate {all} : {to}"),
            Op::Sin => format!("stablehlo.sine {all} : {to}"),
            Op::Cos => format!("stablehlo.cosine {all} : {to}"),
            Op::Sum(dim) => {
                let zero = "stablehlo.constant dense<0.0> : tensor<f64>";
                let _ = writeln!(text, "%zero{result} = {zero}");
                format!(
                    "stablehlo.reduce({all} init: %zero{result}) applies stablehlo.add across dimensions = [{dim}] : \
                     ({}, tensor<f64>) -> {to}",
                    types(operands)
                )
            }
            Op::Broadcast(dim, _) => {
                let kept = (0..graph.shapes[*result].len()).filter(|d| d != dim);
                let kept: Vec<String> = kept.map(|d| d.to_string()).collect();
                format!(
                    "stablehlo.broadcast_in_dim {all}, dims = [{}] : {functional}",
                    kept.join(", ")
                )
            }
            Op::Tangent => panic!("a tangent that nobody gave"),
        };
        let _ = writeln!(text, "%{result} = {line}");
    }
    let outputs: Vec<String> = graph.outputs.iter().map(|x| format!("%{x}")).collect();
    let _ = writeln!(
        text,
        "return {} : {}\n}}\n}}",
        outputs.join(", "),
        types(&graph.outputs)
    );
    text
}
