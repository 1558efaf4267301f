//! Derivatives for which JAX is silent or wrong, and second ones, against differences in f64.
//!
//! Each function takes a vector. All its differences come from one call, by `vmap` over the vectors
//! that differ in one element.

use shardax::nn::{self, AttentionOptions};
use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{Combine, Padding, Pool, Reducer, TriangularSolve, vmap};

/// Half the distance of the two vectors of a difference.
const STEP: f64 = 1e-5;
const RELATIVE_ERROR: f64 = 1e-7;

type Function = fn(Tensor) -> Tensor;

/// Functions, and where they are differentiated.
const FUNCTIONS: &[(&str, Function, &[f64])] = &[
    ("prod of one zero", |x| x.prod(0), &[2.0, 0.0, 3.0, 4.0]),
    ("prod of two zeros", |x| x.prod(0), &[2.0, 0.0, 3.0, 0.0]),
    ("cumprod of a zero", |x| x.cumprod(0), &[2.0, 0.0, 3.0, 4.0]),
    (
        "cumprod of two zeros",
        |x| x.cumprod(0),
        &[0.0, 2.0, 0.0, 4.0],
    ),
    (
        "cumprod_reverse of a zero",
        |x| x.cumprod_reverse(0),
        &[2.0, 0.0, 3.0, 4.0],
    ),
    (
        "prod, second",
        |x| grad(|x: Tensor| x.prod(0))(x),
        &[2.0, 0.0, 3.0, 0.0],
    ),
    (
        "cumprod, second",
        |x| grad(|x: Tensor| x.cumprod(0).sum(..))(x),
        &[2.0, 0.0, 3.0, 4.0],
    ),
    (
        "scatter_mul of one row twice",
        scatter_mul,
        &[2.0, 3.0, 0.0, 4.0],
    ),
    (
        "scatter_mul by two zeros",
        scatter_mul,
        &[2.0, 3.0, 0.0, 0.0],
    ),
    (
        "scatter of one row twice",
        scatter_last,
        &[2.0, 3.0, 0.5, 4.0],
    ),
    (
        "windows of products",
        |x| windows(Reducer::Prod, x),
        &[2.0, 0.0, 3.0, 4.0, -1.0],
    ),
    (
        "dilated windows of maxima",
        |x| windows(Reducer::Max, x),
        &[2.0, 0.5, 3.0, 4.0, -1.0],
    ),
    (
        "dilated windows of minima",
        |x| windows(Reducer::Min, x),
        &[2.0, 0.5, 3.0, 4.0, -1.0],
    ),
    ("powers of 0", powers, &[0.0, 0.0, 0.0]),
    (
        "a branch without a derivative",
        |x| x.lt(1.0).select(x, x.sqrt()),
        &[0.0, 0.5, 2.0],
    ),
    (
        "square of the norm at 0",
        |x| x.norm(..).square(),
        &[0.0, 0.0],
    ),
    (
        "cbrt of negative numbers",
        |x| x.cbrt(),
        &[-8.0, -1.0, 27.0],
    ),
    ("asin and acos", |x| x.asin() - x.acos() * 0.5, &[0.9, -0.9]),
    ("erf_inv", |x| x.erf_inv(), &[0.75, -0.75]),
    (
        "atan2 in all quadrants",
        |x| x.atan2(x.reverse([0])),
        &[1.0, -2.0, -0.5, 3.0],
    ),
    ("modulo", |x| x.modulo(1.5), &[2.0, -2.0, 0.25]),
    ("copysign", |x| x.copysign(x.reverse([0])), &[2.0, -3.0]),
    (
        "attention that sees nothing",
        blind_attention,
        &[1.0, -2.0, 0.5, 3.0],
    ),
    ("sort, second", |x| grad(ordered)(x), &[2.0, -1.0, 3.0, 0.5]),
    (
        "sort_descending, second",
        |x| grad(ordered_down)(x),
        &[2.0, -1.0, 3.0, 0.5],
    ),
    (
        "cummax, second",
        |x| grad(|x: Tensor| x.cummax(0).square().sum(..))(x),
        &[2.0, -1.0, 3.0, 0.5],
    ),
    (
        "lgamma, second",
        |x| grad(|x: Tensor| x.lgamma().sum(..))(x),
        &[0.5, 2.0, 4.5],
    ),
    (
        "digamma, second",
        |x| grad(|x: Tensor| x.digamma().sum(..))(x),
        &[0.5, 2.0, 4.5],
    ),
    (
        "erfc, second",
        |x| grad(|x: Tensor| x.erfc().sum(..))(x),
        &[-0.5, 0.0, 1.5],
    ),
    (
        "logsumexp, second",
        |x| grad(|x: Tensor| x.logsumexp(0))(x),
        &[1.0, -2.0, 0.5],
    ),
    (
        "softplus, second",
        |x| grad(|x: Tensor| x.softplus().sum(..))(x),
        &[-3.0, 0.0, 2.0],
    ),
    (
        "std, second",
        |x| grad(|x: Tensor| x.std(0))(x),
        &[1.0, -2.0, 0.5],
    ),
    (
        "cholesky, second",
        |x| grad(|x: Tensor| factor(x).square().sum(..))(x),
        &[3.0, 0.5, 1.0, 2.0],
    ),
    (
        "triangular_solve, second",
        |x| grad(solved)(x),
        &[2.0, 0.5, 1.5, -1.0],
    ),
    (
        "qr, second",
        |x| grad(|x: Tensor| x.reshape([2, 2]).qr().1.square().mean(..))(x),
        &[2.0, 0.5, 1.5, -1.0],
    ),
];

fn scatter_mul(x: Tensor) -> Tensor {
    let indices = Tensor::constant(&[0i32, 2, 0], [3]);
    x.scatter_mul(indices, x.slice(0, 1..), 0)
}

/// The update that wins has the derivative, whichever it is.
fn scatter_last(x: Tensor) -> Tensor {
    let indices = Tensor::constant(&[1i32, 3, 1], [3, 1]);
    x.zeros_like()
        .scatter_nd(indices, x.slice(0, 1..), Combine::Set)
}

fn windows(reducer: Reducer, x: Tensor) -> Tensor {
    let pool = Pool::new([0], [2])
        .strides([1])
        .dilation([2])
        .padding(Padding::Explicit(vec![(1, 0)]));
    x.reduce_window(reducer, &pool)
}

fn powers(x: Tensor) -> Tensor {
    x.pow(Tensor::constant(&[0.0, 1.0, 2.0], [3]))
}

fn ordered(x: Tensor) -> Tensor {
    let weights = Tensor::arange(DType::F64, x.size(0)) + 1.0;
    (x.sort(0).square() * weights).sum(..)
}

fn ordered_down(x: Tensor) -> Tensor {
    let weights = Tensor::arange(DType::F64, x.size(0)) + 1.0;
    (x.sort_descending(0).square() * weights).sum(..)
}

fn blind_attention(x: Tensor) -> Tensor {
    let heads = x.reshape([1, 2, 1, 2]);
    let options = AttentionOptions {
        mask: Some(Tensor::zeros(DType::Bool, [1, 1, 2, 2])),
        ..AttentionOptions::default()
    };
    nn::attention(heads, heads, heads, options)
}

fn factor(x: Tensor) -> Tensor {
    let x = x.reshape([2, 2]);
    (x.matmul(x.swap_axes(0, 1)) + Tensor::eye(DType::F64, 2)).cholesky()
}

fn solved(x: Tensor) -> Tensor {
    let lower = TriangularSolve {
        left: true,
        lower: true,
        transpose: false,
        unit_diagonal: false,
    };
    let x = x.reshape([2, 2]);
    x.triangular_solve(x.square(), lower).square().sum(..)
}

/// The function at vectors that differ in one element, up and then down.
fn around(f: Function, x: Tensor) -> Tensor {
    let steps = Tensor::eye(DType::F64, x.size(0)) * STEP;
    vmap(f)(concatenate([x + steps, x - steps], 0))
}

#[test]
fn derivatives_equal_differences() -> Result<()> {
    let program = jit(|vectors: Vec<Tensor>| -> Vec<(Tensor, Tensor, Tensor)> {
        let all = FUNCTIONS.iter().zip(vectors);
        all.map(|((_, f, _), x)| {
            let (value, pullback) = vjp(f, x);
            let count = value.shape().iter().product();
            // Numbers that are all different.
            let cotangents = (Tensor::arange(DType::F64, count) * 0.75).cos() + 0.5;
            let cotangents = cotangents.reshape(value.shape());
            let moved = around(*f, x);
            (pullback(cotangents), cotangents, moved)
        })
        .collect()
    });
    let vectors = FUNCTIONS
        .iter()
        .map(|(_, _, x)| Array::from_slice(x, [x.len()]));
    let results = program.call(vectors.collect::<Result<Vec<_>>>()?)?;
    let mut faults = Vec::new();
    for ((name, _, x), (gradient, cotangents, moved)) in FUNCTIONS.iter().zip(results) {
        let [gradient, cotangents, moved] =
            [gradient, cotangents, moved].map(|a| a.to_vec::<f64>());
        let (gradient, cotangents, moved) = (gradient?, cotangents?, moved?);
        let (up, down) = moved.split_at(moved.len() / 2);
        let size = cotangents.len();
        let difference = |i: usize| -> f64 {
            let part = i * size..(i + 1) * size;
            let pairs = up[part.clone()].iter().zip(&down[part]);
            let slopes = pairs.map(|(up, down)| (up - down) / (2.0 * STEP));
            slopes.zip(&cotangents).map(|(slope, ct)| slope * ct).sum()
        };
        let expected: Vec<f64> = (0..x.len()).map(difference).collect();
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= RELATIVE_ERROR * b.abs().max(10.0);
        if gradient.len() != x.len() || !gradient.iter().zip(&expected).all(near) {
            faults.push(format!(
                "{name}: gradient {gradient:?}, differences {expected:?}"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}
