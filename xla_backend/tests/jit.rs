//! `jit` on the CPU plugin.

use shardax_core::{Dim, Stack, Tensor, value_and_grad};
use shardax_sharding::{Layout, Mesh, Partitioner};
use shardax_xla::{Array, Result, jit};

#[test]
fn values_come_back() -> Result<()> {
    let f = jit(|x: Tensor, y: Tensor| (x.dot(y), (x * 2.0 + 1.0).sum(..)));
    let x = Array::from_slice(&[1f32, 2.0, 3.0, 4.0], [2, 2])?;
    let (product, sum) = f.call((x.clone(), x))?;
    assert_eq!(product.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
    assert_eq!(sum.item::<f32>()?, 24.0);
    Ok(())
}

#[test]
fn a_sharded_gradient_equals_that_of_one_device() -> Result<()> {
    fn loss_and_gradient(w: Stack<Tensor>, x: Tensor) -> (Tensor, Stack<Tensor>) {
        value_and_grad(|w: Stack<Tensor>| {
            let x = x.shard(&[Dim::Logical("batch"), Dim::Logical("embed")]);
            w.scan(x, |x: Tensor, w: Tensor| x.dot(w).tanh().softmax(-1))
                .square()
                .sum(..)
        })(w)
    }
    let w: Vec<f32> = (0..3 * 16 * 16)
        .map(|i| ((i * 7919) % 100) as f32 / 100.0 - 0.5)
        .collect();
    let x: Vec<f32> = (0..8 * 16)
        .map(|i| ((i * 104729) % 100) as f32 / 100.0 - 0.5)
        .collect();
    let w = Array::from_slice(&w, [3, 16, 16])?;
    let x = Array::from_slice(&x, [8, 16])?;
    let one = jit(loss_and_gradient);
    let (loss, gradient) = one.call((Stack(w.clone()), x.clone()))?;
    let (loss, gradient) = (loss.item::<f32>()?, gradient.0.to_vec::<f32>()?);
    let layout = Layout::new(Mesh::new([("data", 8)])?).shard("batch", "data");
    let eight = jit(loss_and_gradient).layout(&layout);
    let (loss8, gradient8) = eight.call((Stack(w), x))?;
    assert!(
        (loss8.item::<f32>()? - loss).abs() < 1e-6,
        "{loss} {:?}",
        loss8.item::<f32>()
    );
    for (a, b) in gradient8.0.to_vec::<f32>()?.iter().zip(&gradient) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    Ok(())
}

/// The same function on one device, and split along `rows` by either partitioner.
fn everywhere(f: fn(Tensor) -> Tensor, x: &Array) -> Result<Vec<Vec<f32>>> {
    let mesh = Mesh::new([("data", 4)])?;
    let split = Layout::new(mesh).shard("rows", "data");
    let layouts = [
        Layout::single(),
        split.clone(),
        split.partitioner(Partitioner::Gspmd),
    ];
    let run = |layout: &Layout| jit(f).layout(layout).call(x.clone())?.to_vec::<f32>();
    layouts.iter().map(run).collect()
}

fn rows(x: Tensor) -> Tensor {
    let mut dims = vec![Dim::Logical("rows")];
    dims.resize(x.rank(), Dim::Unsharded);
    x.shard(&dims)
}

#[test]
fn narrow_indices_reach_every_row_of_a_split_table() -> Result<()> {
    let table: Vec<f32> = (0..512).map(|i| i as f32).collect();
    let x = Array::from_slice(&table, [512])?;
    let take = |x: Tensor| rows(x).take(Tensor::constant(&[0u8, 1, 200, 255], [4]), 0);
    for values in everywhere(take, &x)? {
        assert_eq!(values, [0.0, 1.0, 200.0, 255.0]);
    }
    Ok(())
}

#[test]
fn elements_set_apart_stay_right_when_the_result_is_split() -> Result<()> {
    let x = Array::from_slice(&(0..24).map(|i| i as f32).collect::<Vec<_>>(), [24])?;
    let apart = |x: Tensor| rows(x.dilate(0, 1, 0.25).slice(0, ..24));
    let expected: Vec<f32> = (0..24)
        .map(|i| if i % 2 == 0 { (i / 2) as f32 } else { 0.25 })
        .collect();
    for values in everywhere(apart, &x)? {
        assert_eq!(values, expected);
    }
    Ok(())
}

#[test]
fn the_largest_of_what_is_not_a_number_is_not_a_number() -> Result<()> {
    // On one device: the runtime's own reduction across devices leaves NaNs out.
    let x = Array::from_slice(&[1.0, f32::NAN, 1.0, 2.0], [4])?;
    let extrema = jit(|x: Tensor| (x.max(..), x.min(..), x.argmax(0)));
    let (largest, smallest, position) = extrema.call(x)?;
    assert!(largest.item::<f32>()?.is_nan());
    assert!(smallest.item::<f32>()?.is_nan());
    assert_eq!(position.item::<i32>()?, 1);
    Ok(())
}

#[test]
fn a_loop_over_nothing_returns_what_it_was_given() -> Result<()> {
    let loss = |w: Stack<Tensor>, x: Tensor| {
        value_and_grad(|x: Tensor| w.clone().scan(x, |x: Tensor, w: Tensor| x * w).sum(..))(x)
    };
    let none = Stack(Array::from_slice::<f32>(&[], [0, 3])?);
    let x = Array::from_slice(&[1f32, 2.0, 3.0], [3])?;
    let (sum, gradient) = jit(loss).call((none, x))?;
    assert_eq!(sum.item::<f32>()?, 6.0);
    assert_eq!(gradient.to_vec::<f32>()?, [1.0, 1.0, 1.0]);
    Ok(())
}
