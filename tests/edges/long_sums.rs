//! Sums of many narrow floats: a running sum in bf16 would stay at 256, since 256 + 1 is 256 there.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{Padding, Pool, s};

const LONG: usize = 100_000;

#[test]
fn of_half_precision_do_not_stall() -> Result<()> {
    for (dtype, total) in [(DType::BF16, 99_840.0), (DType::F16, f32::INFINITY)] {
        let program = jit(move |ones: Tensor| {
            let ones = ones.cast(dtype);
            let alternating = (Tensor::iota(DType::I32, [LONG], 0) % 2).cast(dtype) * 2;
            let column = ones.expand_dims(1);
            let first = Tensor::zeros(DType::I32, [LONG]);
            let sums = vec![
                ones.sum(..),
                ones.cumsum(0).get(s![-1]),
                ones.cumsum_reverse(0).get(s![0]),
                ones.dot(ones),
                ones.expand_dims(0).matmul(column).squeeze([0, 1]),
                einsum("i,i->", [ones, ones]),
                ones.norm(..).square(),
                ones.sum_pool(&Pool::new([0], [LONG]).padding(Padding::Valid))
                    .squeeze(0),
                Tensor::zeros(dtype, [3])
                    .scatter_add(first, ones, 0)
                    .index(0, 0),
                // Gradients of what is repeated are such sums.
                grad(|x: Tensor| (x.broadcast_to([LONG]) * ones).cast(DType::F32).sum(..))(
                    ones.index(0, 0),
                ),
                grad(|x: Tensor| x.take(first, 0).cast(DType::F32).sum(..))(ones.slice(0, ..3))
                    .index(0, 0),
            ];
            let others = vec![
                (ones.mean(..), 1.0),
                (alternating.mean(..), 1.0),
                (alternating.var(..), 1.0),
                (alternating.std(..), 1.0),
                (ones.cumprod(0).get(s![-1]), 1.0),
                (ones.zeros_like().logsumexp(0).cast(DType::F32), 11.5),
                (ones.softmax(0).cast(DType::F32).sum(..), 1.0),
                (ones.avg_pool(&Pool::new([0], [LONG])).squeeze(0), 1.0),
            ];
            let off = others
                .into_iter()
                .map(|(x, expected)| (x.cast(DType::F32) - expected).abs());
            let sums: Vec<Tensor> = sums.into_iter().map(|x| x.cast(DType::F32)).collect();
            (sums, off.collect::<Vec<_>>())
        });
        let (sums, off) = program.call(Array::from_slice(&vec![1f32; LONG], [LONG])?)?;
        let read = |xs: &[Array]| {
            xs.iter()
                .map(Array::item::<f32>)
                .collect::<Result<Vec<f32>>>()
        };
        let (sums, off) = (read(&sums)?, read(&off)?);
        let is_total = |sum: &f32| *sum == total || (sum - total).abs() <= 512.0;
        assert!(sums.iter().all(is_total), "{dtype}: {sums:?}");
        assert!(off.iter().all(|off| *off <= 0.03), "{dtype}: {off:?}");
    }
    Ok(())
}
