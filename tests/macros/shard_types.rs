//! Values that are no tensors, reported at the annotation.

use shardax::prelude::*;

#[shard(batch)]
fn result(x: f32) -> f32 {
    x
}

#[shard]
fn argument(#[shard(batch)] x: f32, y: Tensor) {
    #[shard(batch)]
    let z = (y, y);
}

fn main() {}
