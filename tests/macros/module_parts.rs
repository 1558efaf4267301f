//! Parts that are no trees, and configuration that cannot be cloned.

use shardax::prelude::*;

struct NotATree<L>(L);

#[derive(Module)]
struct Outer<L = Tensor> {
    inner: NotATree<L>,
}

struct NotClone;

#[derive(Module)]
struct Configured<L = Tensor> {
    config: NotClone,
    weight: L,
}

fn main() {}
