//! What cannot derive `Module`.

use shardax::prelude::*;

#[derive(Module)]
enum Choice<L = Tensor> {
    One(L),
}

#[derive(Module)]
union Either<L: Copy = Tensor> {
    one: L,
}

#[derive(Module)]
struct Config {
    width: usize,
}

#[derive(Module)]
struct Borrowed<'a, L = Tensor> {
    name: &'a str,
    weight: L,
}

#[derive(Module)]
struct TwoLeaves<A = Tensor, B = Tensor> {
    a: A,
    b: B,
}

fn main() {}
