//! Attention that sees nothing, losses that count nothing, and masks that are drawn again.

use shardax::nn::{self, AttentionOptions, BlockSizes, CrossEntropyOptions};
use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{Policy, remat_with};

use super::eight_devices;

fn noise(shape: &[usize]) -> Result<Array> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0)
        .collect();
    Array::from_slice(&values, shape)
}

#[test]
fn a_row_that_sees_nothing_is_zero() -> Result<()> {
    let [queries, keys] = [3, 4];
    let program = jit(move |q: Tensor, k: Tensor, v: Tensor| {
        // Query 1 sees no key.
        let mask = Tensor::iota(DType::I32, [1, 1, queries, keys], 2).ne(1);
        let hidden = mask.select(Tensor::scalar(0.0, DType::F32), f64::NEG_INFINITY);
        let by_mask = AttentionOptions {
            mask: Some(mask),
            ..AttentionOptions::default()
        };
        let by_bias = AttentionOptions {
            bias: Some(hidden),
            ..AttentionOptions::default()
        };
        let run = move |(q, k, v): (Tensor, Tensor, Tensor)| {
            [
                nn::attention(q, k, v, by_mask),
                nn::attention(q, k, v, by_bias),
                nn::blockwise_attention(
                    q,
                    k,
                    v,
                    by_mask,
                    BlockSizes {
                        queries: 2,
                        keys: 2,
                    },
                ),
            ]
        };
        let loss = move |args| {
            run(args)
                .map(|x: Tensor| x.sum(..))
                .into_iter()
                .fold(Tensor::scalar(0.0, DType::F32), |a, b| a + b)
        };
        (run((q, k, v)), grad(loss)((q, k, v)))
    });
    let (results, (dq, dk, dv)) = program.call((
        noise(&[1, queries, 2, 2])?,
        noise(&[1, keys, 2, 2])?,
        noise(&[1, keys, 2, 2])?,
    ))?;
    for result in &results {
        let rows = result.to_vec::<f32>()?;
        assert_eq!(rows[4..8], [0.0; 4]);
        assert!(rows.iter().all(|x| x.is_finite()) && rows[..4] != [0.0; 4]);
    }
    assert_eq!(dq.to_vec::<f32>()?[4..8], [0.0; 4]);
    for gradient in [dq, dk, dv] {
        assert!(gradient.to_vec::<f32>()?.iter().all(|x| x.is_finite()));
    }
    Ok(())
}

#[test]
fn losses_that_count_nothing_are_zero() -> Result<()> {
    let program = jit(|logits: Tensor, labels: Tensor| {
        let options = CrossEntropyOptions {
            ignored: Some(-100),
            ..CrossEntropyOptions::default()
        };
        let loss = move |logits| nn::cross_entropy(logits, labels, options);
        let zero = logits.zeros_like();
        let weighted = move |logits| nn::mse(logits, zero, Some(zero));
        [
            value_and_grad(loss)(logits),
            value_and_grad(weighted)(logits),
        ]
    });
    let logits = noise(&[2, 3])?;
    let ignored = Array::from_slice(&[-100i32, -100], [2])?;
    for (loss, gradient) in program.call((logits.clone(), ignored))? {
        assert_eq!(loss.item::<f32>()?, 0.0);
        assert_eq!(gradient.to_vec::<f32>()?, [0.0; 6]);
    }
    // A label that is no class makes the loss NaN.
    for outside in [3, -1] {
        let labels = Array::from_slice(&[0i32, outside], [2])?;
        let [(loss, _), _] = program.call((logits.clone(), labels))?;
        assert!(loss.item::<f32>()?.is_nan());
    }
    Ok(())
}

#[test]
fn a_mask_that_is_drawn_again_is_the_same() -> Result<()> {
    for layout in [vec![Layout::single()], eight_devices()].concat() {
        let program = jit(|x: Tensor, key: Key| {
            let x = x.shard(&[Dim::Logical("batch"), Dim::Unsharded]);
            let block =
                move |x: Tensor, layer: Tensor| nn::dropout(x.sin(), key.fold_in(layer), 0.5).exp();
            let through = |f: &dyn Fn(Tensor, Tensor) -> Tensor, x: Tensor| {
                let layers = Tensor::arange(DType::I32, 3);
                scan(x, layers, |x, layer| (f(x, layer), ())).0
            };
            let plain = |x: Tensor| through(&block, x);
            let remade = |x: Tensor| {
                let again = remat(|(x, layer): (Tensor, Tensor)| block(x, layer));
                through(&|x, layer| again((x, layer)), x)
            };
            let dots = |x: Tensor| {
                let again =
                    remat_with(Policy::Dots, |(x, layer): (Tensor, Tensor)| block(x, layer));
                through(&|x, layer| again((x, layer)), x)
            };
            let gradient =
                |f: &dyn Fn(Tensor) -> Tensor| value_and_grad(|x: Tensor| f(x).sum(..))(x);
            (
                vec![gradient(&plain), gradient(&remade), gradient(&dots)],
                plain(x),
            )
        })
        .layout(&layout);
        let key = Key(Array::from_slice(&Key::seed_words(7), [2])?);
        let (results, values) = program.call((noise(&[16, 4])?, key))?;
        let all = results
            .iter()
            .map(|(loss, gradient)| Ok((loss.item::<f32>()?, gradient.to_vec::<f32>()?)));
        let all = all.collect::<Result<Vec<_>>>()?;
        assert_eq!(all[0], all[1], "{layout}");
        assert_eq!(all[0], all[2], "{layout}");
        // An element that the last layer dropped is exp(0), and has no gradient; others have one.
        let values = values.to_vec::<f32>()?;
        let dropped = values
            .iter()
            .zip(&all[0].1)
            .filter(|(value, _)| **value == 1.0);
        assert!(dropped.clone().count() > 16);
        assert!(dropped.into_iter().all(|(_, slope)| *slope == 0.0));
        assert!(all[0].1.iter().filter(|slope| **slope != 0.0).count() > 2);
    }
    Ok(())
}
