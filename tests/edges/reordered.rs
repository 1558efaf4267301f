//! Annotations one after the other that put the axes of one dimension on others, in every order.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{Runtime, Sharding, concatenate};
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

/// Values without elements, which XLA divides by the size of.
#[test]
fn nothing_moves_to_other_dimensions() -> Result<()> {
    let x = Array::from_slice::<f32>(&[], [1, 3, 0])?;
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new("a=3,b=2".parse().unwrap()).partitioner(partitioner);
        let f = |x: Tensor| {
            let x = x.shard(&[Dim::Unsharded, Dim::Mesh(&["a"]), Dim::Mesh(&["b"])]);
            x.shard(&[Dim::Unsharded, Dim::Open, Dim::Mesh(&["a", "b"])])
        };
        let found = jit(f).layout(&layout).call(x.clone())?;
        assert!(found.to_vec::<f32>()?.is_empty());
    }
    Ok(())
}

/// Index vectors of which devices have parts.
#[test]
fn components_of_indices_come_together() -> Result<()> {
    let x = Array::from_slice(&(0..24).map(|i| i as f32).collect::<Vec<_>>(), [4, 6])?;
    let at = Array::from_slice(&[1i32, 5, 3, 6, 0, 0, 2, 2], [4, 2])?;
    // Of a batch, an index that is outside and stays so.
    let batched = |x: Tensor, at: Tensor| {
        let at = at.shard(&[Dim::Unsharded, Dim::Unsharded, Dim::Mesh(&["b"])]);
        let add = |(x, at): (Tensor, Tensor)| x.scatter_nd(at, -1.25, shardax::Combine::Add);
        vmap(add)((x, at))
    };
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new("a=3,b=2".parse().unwrap()).partitioner(partitioner);
        let x = Array::from_slice(&[1f32; 4], [2, 2, 1, 1])?;
        let at = Array::from_slice(&[1i32; 4], [2, 1, 2])?;
        let all = jit(batched).layout(&layout).call((x, at))?;
        assert_eq!(all.to_vec::<f32>()?, [1.0; 4], "{partitioner}");
    }
    let f = |x: Tensor, at: Tensor| {
        let at = at.shard(&[Dim::Unsharded, Dim::Mesh(&["b"])]);
        (
            x.scatter_nd(at, -100.0, shardax::Combine::Add),
            x.gather_nd(at),
        )
    };
    let one = jit(f).call((x.clone(), at.clone()))?;
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new("a=3,b=2".parse().unwrap()).partitioner(partitioner);
        let all = jit(f).layout(&layout).call((x.clone(), at.clone()))?;
        assert_eq!(
            all.0.to_vec::<f32>()?,
            one.0.to_vec::<f32>()?,
            "{partitioner}"
        );
        let (all, one) = (all.1.to_vec::<f32>()?, one.1.to_vec::<f32>()?);
        // What is outside gives NaN.
        assert_eq!(all[1].is_nan(), one[1].is_nan());
        assert_eq!(
            [all[0], all[2], all[3]],
            [one[0], one[2], one[3]],
            "{partitioner}"
        );
    }
    Ok(())
}

/// Batches of indices over an axis that splits what they point at.
#[test]
fn batches_of_indices_lie_as_those_of_the_table() -> Result<()> {
    let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let x = Array::from_slice(&values, [4, 4, 1])?;
    let at = [1i32, 1, 1, 1, 0, 1, 2, 3, 3, 3, 1, 1, 0, 0, 1, 0];
    let at = Array::from_slice(&at, [4, 4])?;
    let rows = Array::from_slice(&[100f32, 1000., 10000., 100000.], [4, 1])?;
    let f = |x: Tensor, at: Tensor, rows: Tensor| {
        let each = |(x, at): (Tensor, Tensor)| {
            let along = x.take_along(at.expand_dims(-1), 0);
            x.scatter_add(at, rows, 0) + x.take(at, 0) * 0.5 + along * 0.25
        };
        vmap(each)((x, at))
    };
    let one = jit(f).call((x.clone(), at.clone(), rows.clone()))?;
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new("a=4,b=2".parse().unwrap()).partitioner(partitioner);
        let split = |x: Tensor, at: Tensor, rows: Tensor| {
            let x = x.shard(&[Dim::Unsharded, Dim::Mesh(&["a"]), Dim::Unsharded]);
            let at = at.shard(&[Dim::Mesh(&["a"]), Dim::Mesh(&["b"])]);
            f(x, at, rows)
        };
        let all = jit(split).layout(&layout);
        let all = all.call((x.clone(), at.clone(), rows.clone()))?;
        assert_eq!(all.to_vec::<f32>()?, one.to_vec::<f32>()?, "{partitioner}");
    }
    Ok(())
}

/// What is written into a dimension that the devices do not divide.
#[test]
fn uneven_tables_keep_their_elements() -> Result<()> {
    let f = |x: Tensor, y: Tensor| {
        let all = concatenate([x.shard(&[Dim::Mesh(&["a"])]), y], 0);
        all.put_along(all.argmax(0).expand_dims(0), 7, 0)
    };
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new("a=2".parse().unwrap()).partitioner(partitioner);
        let args = (
            Array::from_slice(&[1f32, 3.0], [2])?,
            Array::from_slice(&[-1f32], [1])?,
        );
        let found = jit(f).layout(&layout).call(args)?;
        assert_eq!(found.to_vec::<f32>()?, [1.0, 7.0, -1.0], "{partitioner}");
    }
    Ok(())
}

/// One update of a table that the program splits just before.
#[test]
fn one_update_changes_one_element() -> Result<()> {
    let splits = |x: Tensor| [x, x.shard(&[Dim::Mesh(&["a"]), Dim::Open])];
    let writes = |x: Vec<Tensor>| {
        let (index, at, top) = (
            x[2],
            x[2].expand_dims(0),
            x[0].shard(&[Dim::Mesh(&["a"]), Dim::Open]),
        );
        let written = |x: Tensor| {
            let row = |value: f64| Tensor::full(value, x.dtype(), [1, 3]);
            let column = at.expand_dims(1).broadcast_to([1, 3]);
            vec![
                x.scatter_add(at, row(9.0), 0),
                x.scatter_max(at, row(9.5), 0),
                x.put_along(column, 7.0, 0),
                x.slice(1, 0..1).put_along(at.expand_dims(1), 7.0, 0),
                x.at(s![at, 1]).set(5.0),
                x.at(s![index]).min(0.5),
                grad(|x: Tensor| (x.take(at, 0) * x.take(at, 0)).sum(..))(x),
            ]
        };
        let table = || concatenate([top, x[1]], 0) * 2.0;
        splits(table())
            .into_iter()
            .flat_map(written)
            .collect::<Vec<_>>()
    };
    let values: Vec<f64> = (1..25).map(f64::from).collect();
    let (top, bottom) = values.split_at(6);
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new("a=2".parse().unwrap()).partitioner(partitioner);
        for at in 0..8 {
            let x = vec![
                Array::from_slice(top, [2, 3])?,
                Array::from_slice(bottom, [6, 3])?,
                Array::from_slice(&[at], [])?,
            ];
            let wanted = jit(writes).call(x.clone())?;
            let found = jit(writes).layout(&layout).call(x)?;
            for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let [found, wanted] = [found, wanted].map(Array::to_vec::<f64>);
                assert_eq!(found?, wanted?, "{partitioner}, {at}, result {i}");
            }
        }
    }
    Ok(())
}

/// Blocks of a region over the axes of one dimension, of which the major one splits another.
#[test]
fn axes_move_into_regions() -> Result<()> {
    let values: Vec<f32> = (0..36).map(|i| i as f32).collect();
    let doubled = |x: Tensor| {
        let x = x.shard(&[Dim::Mesh(&["b", "a"]), Dim::Open]);
        let to = PartitionSpec::new(((), ("b", "a")));
        let region = |x: Tensor| (x * 2.0).reshape([1, 6]);
        manual(["a", "b"], PartitionSpec::new(("a", "b")), to, region)(x)
            .shard(&[Dim::Open, Dim::Mesh(&["b"])])
    };
    for (mesh, size) in [("a=2,b=3", 2), ("a=3,b=2", 3)] {
        let mut wanted = vec![0.0; 36];
        for (i, value) in values.iter().enumerate() {
            let (row, column) = (i / 6, i % 6);
            let [rows, columns] = [6 / size, size];
            let block = column / columns * size + row / rows;
            wanted[block * 6 + row % rows * columns + column % columns] = value * 2.0;
        }
        for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
            let layout = Layout::new(mesh.parse().unwrap()).partitioner(partitioner);
            let x = Array::from_slice(&values, [6, 6])?;
            let found = jit(doubled).layout(&layout).call(x)?;
            assert_eq!(found.to_vec::<f32>()?, wanted, "{mesh} {partitioner}");
        }
    }
    Ok(())
}
