//! Wrong dimensions in every place where `#[shard]` lists them.

use shardax::prelude::*;

#[shard(batch, batch)]
fn result(x: Tensor) -> Tensor {
    x
}

#[shard]
fn argument(#[shard("data", "data")] x: Tensor, #[shard(1)] y: Tensor) -> Tensor {
    let inner = || {
        #[shard(batch, a::b)]
        let z = x;
        z
    };
    if true {
        #[shard]
        let w = y;
        return w;
    }
    inner()
}

fn main() {}
