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

const USES: usize = 2000;

fn zero() -> Tensor {
    Tensor::scalar(0, DType::F32)
}

/// `sum + w x`, where the product is narrow.
fn add_use(w: Tensor, sum: Tensor, x: Tensor) -> Tensor {
    sum + (w * x.cast(w.dtype())).cast(DType::F32)
}

fn summed(w: Tensor, xs: Tensor) -> Tensor {
    scan(zero(), xs, |sum, x| (add_use(w, sum, x), ())).0
}

/// A function of a weight and of all x.
type Loss = fn(Tensor, Tensor) -> Tensor;

/// The sum of `w x` over all x, written in several ways.
const LOSSES: [(&str, Loss); 7] = [
    ("scan", summed),
    ("a loop in a loop", |w, xs| {
        let rows = xs.reshape([USES / 50, 50]);
        scan(zero(), rows, |sum, row| (sum + summed(w, row), ())).0
    }),
    ("fori_loop", |w, xs| {
        fori_loop(0, USES as i64, zero(), |i, sum| {
            add_use(w, sum, xs.take(i, 0))
        })
    }),
    ("a carry that stays", |w, xs| {
        let step = |(sum, w): (Tensor, Tensor), x| ((add_use(w, sum, x), w), ());
        scan((zero(), w), xs, step).0.0
    }),
    ("remat", |w, xs| remat(|(w, xs)| summed(w, xs))((w, xs))),
    ("vmap", |w, xs| vmap(|x| add_use(w, zero(), x))(xs).sum(..)),
    ("written out", |w, xs| {
        let sum = (0..300).fold(zero(), |sum, i| add_use(w, sum, xs.index(0, i)));
        sum * (USES as f64 / 300.0)
    }),
];

/// d/dw of a sum over many x of w x, in a narrow type, is the sum of x however the uses of `w` are written.
#[test]
fn cotangents_of_what_is_used_often_do_not_stall() -> Result<()> {
    let gradients = |xs: Tensor| {
        let of = |(_, loss): (&str, Loss)| {
            [DType::BF16, DType::F16].map(|narrow| {
                let of_narrow = grad(|w: Tensor| loss(w, xs))(Tensor::scalar(1, narrow));
                // A master weight, cast as `Precision` does.
                let of_master = grad(|w: Tensor| loss(w.cast(narrow), xs));
                let of_master = of_master(Tensor::scalar(1, DType::F32));
                stack([of_narrow.cast(DType::F32), of_master], 0)
            })
        };
        LOSSES.into_iter().flat_map(of).collect::<Vec<Tensor>>()
    };
    let right = USES as f32 * 0.5;
    let xs = Array::from_slice(&[0.5f32; USES], [USES])?;
    for layout in [vec![Layout::single()], super::eight_devices()].concat() {
        let program = jit(gradients).layout(&layout);
        for (i, found) in program.call(xs.clone())?.iter().enumerate() {
            let found = found.to_vec::<f32>()?;
            let (name, _) = LOSSES[i / 2];
            // Rounded once: to the nearest of eight bits, at worst.
            let is_right = |found: &f32| (found - right).abs() <= right / 512.0;
            assert!(found.iter().all(is_right), "{name}: {found:?}, not {right}");
        }
    }
    Ok(())
}
