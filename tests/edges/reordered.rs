//! Annotations one after the other that put the axes of one dimension on others, in every order.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{Runtime, Sharding};
use shardax_sharding::Axes;

const SPLITS: &[[&[&str]; 2]] = &[
    [&["a"], &["b"]],
    [&["b"], &["a"]],
    [&["a", "b"], &[]],
    [&["b", "a"], &[]],
    [&[], &["a", "b"]],
    [&[], &["b", "a"]],
    [&["a"], &[]],
    [&[], &["b"]],
];

/// XLA ends the process over some of these, if the axes are of different sizes.
#[test]
fn axes_move_to_other_dimensions() -> Result<()> {
    let values: Vec<f32> = (0..36).map(|i| i as f32).collect();
    let x = Array::from_slice(&values, [6, 6])?;
    let chains = |x: Tensor| {
        let split = |x: Tensor, to: &[&'static [&'static str]; 2]| x.shard(&to.map(Dim::Mesh));
        let each = SPLITS.iter().flat_map(|from| {
            let from = split(x, from) * 2.0;
            SPLITS.iter().map(move |to| split(from, to) + 1.0)
        });
        each.collect::<Vec<_>>()
    };
    let wanted: Vec<f32> = values.iter().map(|x| x * 2.0 + 1.0).collect();
    for (mesh, partitioner) in [
        ("a=2,b=3", Partitioner::Shardy),
        ("a=3,b=2", Partitioner::Shardy),
        ("a=2,b=3", Partitioner::Gspmd),
    ] {
        let layout = Layout::new(mesh.parse().unwrap()).partitioner(partitioner);
        for found in jit(chains).layout(&layout).call(x.clone())? {
            assert_eq!(found.to_vec::<f32>()?, wanted, "{mesh} {partitioner}");
        }
    }
    Ok(())
}

/// The same of arrays at rest.
#[test]
fn arrays_move_to_other_dimensions() -> Result<()> {
    let values: Vec<f32> = (0..36).map(|i| i as f32).collect();
    let layout = Layout::new("a=2,b=3".parse().unwrap());
    let split = |to: &[&[&str]; 2]| {
        let spec: PartitionSpec = to
            .iter()
            .map(|axes| axes.iter().copied().collect::<Axes>())
            .collect();
        Sharding::new(layout.mesh().clone(), spec)
    };
    let x = Array::from_slice(&values, [6, 6])?;
    let runtime = Runtime::shared(6)?;
    for from in SPLITS {
        let from = x.put(&runtime, &split(from))?;
        for to in SPLITS {
            let found = from.reshard(&split(to))?;
            assert_eq!(found.to_vec::<f32>()?, values, "{to:?}");
        }
    }
    Ok(())
}
