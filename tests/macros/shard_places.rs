//! Places where `#[shard]` cannot stand.

use shardax::prelude::*;

#[shard(batch)]
async fn asynchronous(x: Tensor) -> Tensor {
    x
}

#[shard]
const fn constant(x: Tensor) -> Tensor {
    x
}

#[shard(batch)]
fn nothing(x: Tensor) {}

#[shard(batch)]
fn pair(x: Tensor) -> (Tensor, Tensor) {
    (x, x)
}

#[shard(batch)]
fn borrowed(x: &Tensor) -> &Tensor {
    x
}

#[shard(batch)]
fn fallible(x: Tensor) -> Result<Tensor, std::fmt::Error> {
    Ok(x)
}

#[shard(batch)]
fn question(x: Option<Tensor>) -> Tensor {
    x?
}

macro_rules! give {
    ($($tokens:tt)*) => { $($tokens)* };
}

#[shard(batch)]
fn hidden_return(x: Tensor) -> Tensor {
    give!(return x);
}

#[shard]
fn patterns(#[shard(batch)] (a, b): (Tensor, Tensor), #[shard(batch)] _: Tensor) {
    #[shard(batch)]
    let (c, d) = (a, b);
    #[shard(batch)]
    let ref e = c;
    #[shard(batch)]
    let f;
    f = d;
    let g = |#[shard(batch)] x: Tensor| x;
    g(#[shard(batch)] f);
}

struct Model;

#[shard(batch)]
impl Model {
    #[shard(batch)]
    #[shard(seq)]
    fn twice(#[shard(batch)] &self, x: Tensor) -> Tensor {
        x
    }
}

trait Forward {
    #[shard(batch)]
    fn forward(&self, x: Tensor) -> Tensor;
}

#[shard(batch)]
struct Batch {
    tokens: Tensor,
}

fn main() {}
