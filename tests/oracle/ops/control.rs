//! Control flow, and transforms of functions.

use shardax::prelude::*;
use shardax::{
    cond, custom_jvp, custom_vjp, fori_loop, hessian, jacfwd, jacrev, linearize, scan_reverse,
    switch, vmap, while_loop,
};

use crate::golden::Params;

pub(super) fn apply(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    branches(op, x)
        .or_else(|| loops(op, params, x))
        .or_else(|| transforms(op, x))
}

fn branches(op: &str, x: &[Tensor]) -> Option<Vec<Tensor>> {
    Some(match op {
        "cond" => {
            let (a, b) = cond(
                x[0],
                (x[1], x[2]),
                |(x, y): (Tensor, Tensor)| (x.sin() * y, x),
                |(x, y)| (x + y, y.exp()),
            );
            vec![a, b]
        }
        "switch" => {
            let branches: [fn(Tensor) -> Tensor; 3] = [|x| x * x, |x| x.sin(), |x| x.exp() + 1.0];
            vec![switch(x[0], x[1], branches)]
        }
        _ => return None,
    })
}

fn loops(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let step = |carry: Tensor, x: Tensor| {
        let carry = (carry + x).tanh();
        (carry, carry * x)
    };
    let pair = |(a, b): (Tensor, Tensor)| vec![a, b];
    Some(match op {
        "scan" if params.flag("reverse") => pair(scan_reverse(x[0], x[1], step)),
        "scan" => pair(scan(x[0], x[1], step)),
        "scan_captured" => {
            let w = x[2];
            pair(scan(x[0], x[1], |c: Tensor, x: Tensor| {
                ((w.dot(c) + x).tanh(), c)
            }))
        }
        "scan_nested" => pair(scan(x[0], x[1], |c: Tensor, xs: Tensor| {
            scan(c, xs, |c: Tensor, x: Tensor| (c * 0.5 + x, c))
        })),
        "while_collatz" => {
            let count = Tensor::scalar(0, DType::I32);
            pair(while_loop(
                (x[0], count),
                |(n, _)| n.gt(1),
                |(n, count): (Tensor, Tensor)| {
                    let next = (n % 2).eq(0).select(n / 2, 3 * n + 1);
                    (next, count + 1)
                },
            ))
        }
        "while_halve" => vec![while_loop(
            x[0],
            |x: Tensor| x.abs().sum(..).gt(1.0),
            |x| x * 0.5,
        )],
        "fori" => {
            let x = x[0];
            let one = x.zeros_like() + 1.0;
            vec![fori_loop(0, 4, one, |i, y: Tensor| {
                y * x + i.cast(DType::F32)
            })]
        }
        "fori_dynamic" => {
            let (n, x) = (x[0], x[1]);
            vec![fori_loop(0, n, x, |i, y: Tensor| {
                y + x * i.cast(DType::F32)
            })]
        }
        _ => return None,
    })
}

/// A function of a vector to a number.
fn energy(x: Tensor) -> Tensor {
    let n = x.size(0);
    let previous = concatenate([x.slice(0, n - 1..), x.slice(0, ..n - 1)], 0);
    let product = (1..n).fold(x.index(0, 0), |p, i| p * x.index(0, i));
    (x.sin() * previous).sum(..) + product
}

/// A function of a vector to a vector.
fn field(x: Tensor) -> Tensor {
    let (first, last) = (x.index(0, 0), x.index(0, x.size(0) - 1));
    let parts = [x.square().sum(..), first.sin() * last, (-x.max(..)).exp()];
    concatenate(parts.map(|part| part.reshape([1])), 0)
}

fn transforms(op: &str, x: &[Tensor]) -> Option<Vec<Tensor>> {
    Some(match op {
        "grad" => vec![grad(energy)(x[0])],
        "hessian" => vec![hessian(energy)(x[0])],
        "jacfwd" => vec![jacfwd(field)(x[0])],
        "jacrev" => vec![jacrev(field)(x[0])],
        "value_and_grad" => {
            let (value, gradient) = value_and_grad(energy)(x[0]);
            vec![value, gradient]
        }
        "jvp" => {
            let (value, tangent) = jvp(field, x[0], x[1]);
            vec![value, tangent]
        }
        "linearize" => vec![linearize(field, x[0]).1(x[1])],
        "vmap_grad" => vec![vmap(grad(energy))(x[0])],
        "hessian_product" => vec![jvp(grad(energy), x[0], x[1]).1],
        "hessian_sort" => vec![hessian(sorted_energy)(x[0])],
        "custom_jvp" => {
            // A derivative that is not the function's own.
            let clipped = |x: Tensor| x.clamp(-1.0, 1.0);
            vec![custom_jvp(clipped, move |x, t| (clipped(x), 2.0 * t))(x[0])]
        }
        "custom_vjp" => {
            let rounded = |(x, scale): (Tensor, Tensor)| (x / scale).round_even() * scale;
            let forward = move |(x, scale)| (rounded((x, scale)), x);
            let backward = |x: Tensor, ct: Tensor| (ct, ct * x);
            vec![custom_vjp(rounded, forward, backward)((x[0], x[1]))]
        }
        "stop_gradient" => vec![x[0] * x[0].stop_gradient()],
        "remat" => vec![remat(|x: Tensor| (x.sin() * x).sin())(x[0])],
        "nested_jit" => vec![x[0].tanh() * x[0]],
        _ => return None,
    })
}

fn sorted_energy(x: Tensor) -> Tensor {
    let weights = Tensor::arange(DType::F32, x.size(0)) + 1.0;
    (x.sort(0).square() * weights).sum(..)
}
