//! Wrong annotations of fields, all reported in one compile.

use shardax::prelude::*;

#[derive(Module)]
#[shard(embed)]
struct Block<L = Tensor> {
    #[shard(embed)]
    width: usize,
    #[shard(embed)]
    norm: Norm<L>,
    #[shard(embed, embed)]
    square: L,
    #[shard("data", ("model", "data"))]
    axes: L,
    #[shard(embed)]
    #[shard(mlp)]
    twice: L,
    #[shard]
    bare: L,
    #[shard = "embed"]
    value: L,
    #[shard(4, a::b, "", "a b", (), ("data", model), embed + mlp)]
    entries: L,
    #[shard(embed mlp)]
    comma: L,
    #[shard(embed)]
    pair: (L, L),
}

#[derive(Module)]
struct Norm<L = Tensor> {
    #[shard(embed)]
    scale: L,
}

fn main() {}
