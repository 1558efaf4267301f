//! `jit` on the CPU plugin.

use shardax_core::{Dim, Stack, Tensor, value_and_grad};
use shardax_sharding::{Layout, Mesh};
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
