//! The largest of numbers that are kept in more digits than their type has, for one use and not for another.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{ConvOptions, Padding, Pool};

/// Values of which a reduction is taken: products that XLA computes in f32.
type Values = fn(Tensor, Tensor) -> Tensor;

const PRODUCTS: &[(&str, Values)] = &[
    ("conv", |x, w| {
        let kernel = w.reshape([1, 1, 8]).slice(-1, ..1);
        x.reshape([8, 1, 8])
            .conv(kernel, &ConvOptions::new().padding(Padding::Same))
            .reshape([8, 8])
    }),
    ("dot", |x, w| x.dot(w.reshape([8, 1])) * w),
    ("mul", |x, w| x * w),
];

type Reduction = fn(Tensor) -> Tensor;

/// Of these, the derivatives by all elements sum to the number of results.
const REDUCTIONS: &[(&str, Reduction)] = &[
    ("max", |x| x.max(-1)),
    ("min", |x| x.min(0)),
    ("max_pool", |x| {
        x.reshape([8, 1, 8]).max_pool(&Pool::new([2], [2]))
    }),
    ("cummax", |x| x.cummax(-1)),
    ("cummin", |x| x.cummin_reverse(0)),
    ("equal to the largest", |x| {
        let largest = x.max(-1).expand_dims(-1);
        let attained = x.eq(largest).cast(x.dtype());
        ((x * attained).sum(-1) / attained.sum(-1)).max(-1)
    }),
];

#[test]
fn one_element_is_the_largest() -> Result<()> {
    for dtype in [DType::BF16, DType::F16] {
        let program = jit(move |x: Tensor, w: Tensor| {
            let (x, w) = (x.cast(dtype), w.cast(dtype));
            let all = PRODUCTS.iter().flat_map(|(_, values)| {
                REDUCTIONS.iter().map(|(_, reduction)| {
                    let values = values(x, w);
                    let sum = |y: Tensor| reduction(y).cast(DType::F32).sum(..);
                    let results = reduction(values).shape().iter().product::<usize>() as f64;
                    // The sum of the gradient is right or wrong whichever elements it is on.
                    grad(|x: Tensor| sum(values + x))(values.zeros_like())
                        .cast(DType::F32)
                        .sum(..)
                        - results
                })
            });
            all.collect::<Vec<_>>()
        });
        let numbers = |n: usize, by: f32| {
            (0..n)
                .map(|i| (i as f32 * by + 0.3).sin())
                .collect::<Vec<_>>()
        };
        let x = Array::from_slice(&numbers(64, 0.77), [8, 8])?;
        let w = Array::from_slice(&numbers(8, 1.3), [8])?;
        let found = program.call((x, w))?;
        for (i, left) in found.iter().enumerate() {
            let (product, reduction) = (
                PRODUCTS[i / REDUCTIONS.len()].0,
                REDUCTIONS[i % REDUCTIONS.len()].0,
            );
            assert_eq!(
                left.item::<f32>()?,
                0.0,
                "{reduction} of {product} in {dtype}"
            );
        }
    }
    Ok(())
}
