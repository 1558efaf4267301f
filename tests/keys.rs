//! Draws from keys that are made of one key compile, whatever they meet.
//!
//! XLA's CPU compiler once did not come to an end with two of them in one fusion: a test that hangs
//! is one that fails.

use shardax::prelude::*;
use shardax::xla::Result;

fn key() -> Key<Array> {
    Key(Array::from_slice(&Key::seed_words(42), [2]).unwrap())
}

#[test]
fn draws_from_one_key_meet() -> Result<()> {
    const F32: DType = DType::F32;
    let draws: [fn(Key) -> Tensor; 8] = [
        |k| k.fold_in(0).normal(F32, [4]) + k.fold_in(1).normal(F32, [4]),
        |k| k.fold_in(0).normal(F32, [4]) + k.fold_in(1).uniform(F32, [4]),
        |k| k.fold_in(0).uniform(F32, [64, 1]) * k.fold_in(1).normal(F32, [64, 16]),
        |k| k.fold_in(0).gumbel(F32, [4]) + k.fold_in(1).gumbel(F32, [4]),
        |k| k.fold_in(0).laplace(F32, [4]) + k.fold_in(1).laplace(F32, [4]),
        |k| {
            let kept = k.fold_in(0).bernoulli(0.5, [4]);
            kept.select(k.fold_in(1).normal(F32, [4]), 0.0)
        },
        |k| nn::dropout(k.fold_in(0).normal(F32, [4]), k.fold_in(1), 0.1),
        |k| {
            let keys = k.split(3);
            let product = keys[0].normal(F32, [4]) * keys[1].uniform(F32, [4]);
            product + keys[2].normal(F32, [4])
        },
    ];
    for (i, draw) in draws.into_iter().enumerate() {
        let found = jit(draw).name(format!("draw_{i}")).call(key())?;
        let found = found.to_vec::<f32>()?;
        assert!(found.iter().all(|v| v.is_finite()), "{found:?}");
    }
    Ok(())
}
