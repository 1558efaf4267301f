//! Values that are no tensors where a program is traced.

use shardax::prelude::*;

struct Config {
    width: usize,
}

#[derive(Module)]
struct Inner<L = Tensor> {
    weight: L,
}

#[derive(Clone, Copy, PartialEq, Module)]
struct Copied<L = Tensor> {
    weight: L,
}

#[derive(Module)]
struct Outer<L = Tensor> {
    inner: Inner,
    many: Vec<Copied>,
    bias: Option<Tensor>,
    config: Config,
    weight: L,
}

struct Plain {
    weight: Tensor,
}

fn loss(model: Plain, x: Tensor) -> Tensor {
    model.weight * x
}

fn captures(weight: Array, bias: &Array) {
    jit(|x: Tensor| x * weight.clone());
    jit(|x: Tensor| x.maximum(bias));
    jit(|x: Tensor| weight.clone());
}

fn functions() {
    jit(loss);
    jit(|x: Tensor| Plain { weight: x });
    jit(|x: Tensor| (x, x, x, x, x, x, x, x, x, x, x, x, x));
    jit(|x: Tensor, y: &Tensor| x * *y);
    type T = Tensor;
    jit(|a: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T, _: T| a);
}

fn main() {}
