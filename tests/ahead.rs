//! Programs compiled for clusters of H100s, which are not there.

use shardax::prelude::*;
use shardax::{Chip, Cluster};

#[test]
fn tiny() {
    let cluster = Cluster::new(Chip::H100, 1, 8).unwrap();
    let layout = Layout::new(Mesh::new([("data", 8)]).unwrap()).shard("batch", "data");
    let f = jit(|x: Tensor| {
        x.shard(&[Dim::Logical("batch"), Dim::Unsharded])
            .square()
            .sum(..)
    })
    .layout(&layout);
    let program = f
        .compile_for(&cluster, TensorType::new(DType::F32, [64, 32]))
        .unwrap();
    println!(
        "{program}\n{}\n{}\n{:?}",
        program.memory(),
        program.collectives().unwrap(),
        program.compile_time()
    );
    println!("{}", program.optimized_hlo().unwrap());
}
