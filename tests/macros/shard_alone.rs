//! `#[shard]` where no function around it has one, and where no macro can stand.

use shardax::prelude::*;

struct Model {
    #[shard(embed)]
    scale: Tensor,
}

impl Model {
    fn forward(&self, #[shard(batch)] x: Tensor) -> Tensor {
        #[shard(batch)]
        let y = x * self.scale;
        y
    }
}

fn statement(x: Tensor) -> Tensor {
    #[shard(batch)]
    let y = x * 2.0;
    y
}

fn expression(x: Tensor) -> Tensor {
    statement(#[shard(batch)] x)
}

fn main() {}
