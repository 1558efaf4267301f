//! The conventions at edges, as `docs/guide/tensors.md` states them, on the compiled program.
//!
//! Where a formula has no value, or where floats or a compiler give NaN, the value and the derivative are the
//! mathematical ones or a convention. The core's own tests check the rules with an interpreter; here the compiler has
//! had its way with them, in f64 and in f32.

mod activations;
mod casts;
mod contracted;
mod control_flow;
mod determinants;
mod eight_bits;
mod elementwise;
mod extrema;
mod extrema_narrow;
mod fourier;
mod grouped;
mod guards;
mod indexing;
mod lengths;
mod long_sums;
mod masked;
mod networks;
mod polygamma;
mod reductions;
mod reordered;
mod seams;
mod sharded;
mod shifted;
mod slopes;
mod split;
mod training;

use shardax::hessian;
use shardax::prelude::*;
use shardax::xla::Result;

/// A function at arguments where something is special.
struct Edge {
    name: &'static str,
    f: fn(Tensor) -> Tensor,
    x: &'static [f64],
    /// What it gives.
    value: &'static [f64],
    /// The derivative of the sum of its elements.
    gradient: &'static [f64],
}

/// An [`Edge`]: its name, the function, its argument, its value and its gradient.
const fn edge(
    name: &'static str,
    f: fn(Tensor) -> Tensor,
    x: &'static [f64],
    value: &'static [f64],
    gradient: &'static [f64],
) -> Edge {
    Edge {
        name,
        f,
        x,
        value,
        gradient,
    }
}

/// Whether a number is the expected one but for rounding; NaN is like NaN.
fn near(found: f64, expected: f64, tolerance: f64) -> bool {
    found == expected
        || found.is_nan() && expected.is_nan()
        || (found - expected).abs() <= tolerance * expected.abs().max(1.0)
}

fn all_near(found: &[f64], expected: &[f64], tolerance: f64) -> bool {
    let mut pairs = found.iter().zip(expected);
    found.len() == expected.len() && pairs.all(|(&f, &e)| near(f, e, tolerance))
}

/// An array on the host, of this element type.
fn array(values: &[f64], dtype: DType) -> Result<Array> {
    match dtype {
        DType::F64 => Array::from_slice(values, [values.len()]),
        _ => {
            let narrow: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            Array::from_slice(&narrow, [values.len()])
        }
    }
}

fn numbers(array: &Array) -> Result<Vec<f64>> {
    match array.dtype() {
        DType::F64 => array.to_vec::<f64>(),
        _ => Ok(array.to_vec::<f32>()?.into_iter().map(f64::from).collect()),
    }
}

/// Checks values, reverse mode and forward mode of all edges, in one program for each element type.
fn check(edges: &[Edge]) -> Result<()> {
    let mut wrong = Vec::new();
    for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 2e-5)] {
        let program = jit(|xs: Vec<Tensor>| {
            let results = edges.iter().zip(xs).map(|(edge, x)| {
                let total = |x: Tensor| (edge.f)(x).sum(..);
                let slope = jvp(total, x, Tensor::ones(x.dtype(), x.shape())).1;
                ((edge.f)(x).flatten(), grad(total)(x), slope.flatten())
            });
            results.collect::<Vec<_>>()
        });
        let xs = edges.iter().map(|edge| array(edge.x, dtype));
        let results = program.call(xs.collect::<Result<_>>()?)?;
        for (edge, (value, gradient, slope)) in edges.iter().zip(&results) {
            let found = [
                ("value", value, edge.value),
                ("gradient", gradient, edge.gradient),
                ("forward derivative", slope, &[edge.gradient.iter().sum()]),
            ];
            for (what, found, expected) in found {
                let found = numbers(found)?;
                if !all_near(&found, expected, tolerance) {
                    let name = edge.name;
                    wrong.push(format!(
                        "{dtype}: {name}: {what} {found:?}, not {expected:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Element types, and the errors that are allowed in each.
const TYPES: &[(DType, f64)] = &[(DType::F64, 1e-11), (DType::F32, 2e-5), (DType::BF16, 2e-2)];

/// Checks values, reverse mode and forward mode of functions of eight numbers in several types: on one
/// device, and on eight of which each has one of the numbers, with each partitioner.
fn check_split(edges: &[Edge], types: &[(DType, f64)]) -> Result<()> {
    let mut wrong = Vec::new();
    for layout in [vec![Layout::single()], eight_devices()].concat() {
        let program = jit(|xs: Vec<Tensor>| {
            let in_each = types.iter().map(|&(dtype, _)| {
                let results = edges.iter().zip(&xs).map(|(edge, x)| {
                    let f = |x: Tensor| (edge.f)(x.shard(&[Dim::Logical("batch")]));
                    let total = |x: Tensor| f(x).cast(DType::F64).sum(..);
                    let x = x.shard(&[Dim::Logical("batch")]).cast(dtype);
                    let slope = jvp(total, x, Tensor::ones(dtype, x.shape())).1;
                    let results = [f(x).flatten(), grad(total)(x), slope.flatten()];
                    results.map(|y| y.cast(DType::F64))
                });
                results.collect::<Vec<_>>()
            });
            in_each.collect::<Vec<_>>()
        })
        .layout(&layout);
        let xs = edges.iter().map(|edge| array(edge.x, DType::F64));
        let in_each = program.call(xs.collect::<Result<_>>()?)?;
        for ((dtype, tolerance), results) in types.iter().zip(&in_each) {
            for (edge, results) in edges.iter().zip(results) {
                let sum = [edge.gradient.iter().sum()];
                for (result, expected) in results.iter().zip([edge.value, edge.gradient, &sum]) {
                    let found = numbers(result)?;
                    if !all_near(&found, expected, *tolerance) {
                        let name = edge.name;
                        wrong.push(format!(
                            "{dtype}: {name}: {found:?}, not {expected:?}\n{layout}"
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A function, its argument, and its second derivatives.
type Second = (
    &'static str,
    fn(Tensor) -> Tensor,
    &'static [f64],
    &'static [f64],
);

/// Checks second derivatives, forward over reverse and reverse twice, in several types.
fn check_second(cases: &[Second], types: &[(DType, f64)]) -> Result<()> {
    let program = jit(|xs: Vec<Tensor>| {
        let in_each = types.iter().map(|&(dtype, _)| {
            let results = cases.iter().zip(&xs).map(|((_, f, ..), x)| {
                let (x, total) = (x.cast(dtype), |x: Tensor| f(x).sum(..));
                let reverse_twice = |x: Tensor| {
                    let rows =
                        (0..x.size(0)).map(|i| grad(|x: Tensor| grad(total)(x).index(0, i))(x));
                    concatenate(rows.collect::<Vec<_>>(), 0)
                };
                [hessian(total)(x).flatten(), reverse_twice(x)].map(|y| y.cast(DType::F64))
            });
            results.collect::<Vec<_>>()
        });
        in_each.collect::<Vec<_>>()
    });
    let xs = cases.iter().map(|(_, _, x, _)| array(x, DType::F64));
    let in_each = program.call(xs.collect::<Result<_>>()?)?;
    let mut wrong = Vec::new();
    for ((dtype, tolerance), results) in types.iter().zip(&in_each) {
        for ((name, _, _, expected), results) in cases.iter().zip(results) {
            for (mode, found) in ["forward over reverse", "reverse twice"]
                .iter()
                .zip(results)
            {
                let found = numbers(found)?;
                if !all_near(&found, expected, *tolerance) {
                    wrong.push(format!(
                        "{dtype}: {name}, {mode}: {found:?}, not {expected:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Eight devices that split `batch`, with each partitioner.
fn eight_devices() -> Vec<Layout> {
    let mesh = Mesh::new([("data", 8)]).expect("a mesh");
    let layout = Layout::new(mesh).shard("batch", "data");
    vec![layout.clone(), layout.partitioner(Partitioner::Gspmd)]
}
