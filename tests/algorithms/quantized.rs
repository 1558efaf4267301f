//! Sums in eight bits.

use shardax::prelude::*;
use shardax::train::collectives::{Code, Quantization, quantized_all_reduce};
use shardax::xla::report::CollectiveKind::{AllGather, AllToAll};

use crate::{Random, layout, layouts, sent, sent_at_all};

const CODES: [Code; 3] = [Code::Int8, Code::Float8E4M3, Code::Float8E5M2];
const DEVICES: usize = 8;
const BLOCK: usize = 16;

/// The sum in each code of `[DEVICES, length]` numbers.
fn sums(x: Tensor) -> (Tensor, Tensor, Tensor) {
    let whole = PartitionSpec::whole;
    let region = manual(
        "data",
        PartitionSpec::new(("data",)),
        (whole(), whole(), whole()),
        |x: Tensor| {
            let x = x.index(0, 0);
            let [a, b, c] = CODES
                .map(|code| quantized_all_reduce(x, "data", Quantization { code, block: BLOCK }));
            (a, b, c)
        },
    );
    region(x)
}

/// Rows of the exchange, as long as whole blocks.
fn row(length: usize) -> usize {
    length.div_ceil(DEVICES).next_multiple_of(BLOCK)
}

/// The largest size in each number's block.
fn largest(values: &[f64]) -> Vec<f64> {
    let row = row(values.len());
    let block = |i: usize| (i / row, i % row / BLOCK);
    let in_block = |i: usize| {
        let others = (0..values.len()).filter(move |&j| block(j) == block(i));
        others.map(|j| values[j].abs()).fold(0.0, f64::max)
    };
    (0..values.len()).map(in_block).collect()
}

/// Of hundreds of random values of all sizes, each sum is as near as the bound says.
#[test]
fn errors_are_within_the_bound() {
    let length = 300;
    let step = jit(sums).layout(&layout("data=8"));
    let mut random = Random(7);
    let mut worst = [0f64; 3];
    for case in 0..100 {
        // From numbers of one size to such of very different ones, with zeros among them.
        let spread = (case % 10) as f32;
        let scale = 10f32.powi(case % 25 - 12);
        let mut x: Vec<f32> = Vec::new();
        for _ in 0..DEVICES * length {
            let size = 10f32.powf(random.next() * spread);
            let zero = random.next() > 0.8;
            x.push(if zero {
                0.0
            } else {
                random.next() * size * scale
            });
        }
        let found = step
            .call(Array::from_slice(&x, [DEVICES, length]).unwrap())
            .unwrap();
        let addend = |d: usize| -> Vec<f64> {
            x[d * length..][..length]
                .iter()
                .map(|&v| f64::from(v))
                .collect()
        };
        let addends: Vec<Vec<f64>> = (0..DEVICES).map(addend).collect();
        let of_addends: Vec<Vec<f64>> = addends.iter().map(|a| largest(a)).collect();
        let exact: Vec<f64> = (0..length)
            .map(|i| addends.iter().map(|a| a[i]).sum())
            .collect();
        for (c, (code, found)) in CODES
            .into_iter()
            .zip([found.0, found.1, found.2])
            .enumerate()
        {
            let found: Vec<f32> = found.to_vec().unwrap();
            let first: Vec<f64> = (0..length)
                .map(|i| {
                    let parts = addends.iter().zip(&of_addends);
                    parts
                        .map(|(a, max)| code.error_bound(a[i].abs(), max[i]))
                        .sum()
                })
                .collect();
            let rounded: Vec<f64> = exact.iter().zip(&first).map(|(e, f)| e.abs() + f).collect();
            let of_sum = largest(&rounded);
            for i in 0..length {
                let total: f64 = addends.iter().map(|a| a[i].abs()).sum();
                let bound =
                    first[i] + code.error_bound(rounded[i], of_sum[i]) + total * 2e-6 + 1e-37;
                let error = (f64::from(found[i]) - exact[i]).abs();
                assert!(
                    error <= bound,
                    "{code:?} case {case} element {i}: {} instead of {}, bound {bound}",
                    found[i],
                    exact[i]
                );
                worst[c] = worst[c].max(error / bound);
            }
        }
    }
    // The bounds are not empty words.
    assert!(worst.iter().all(|w| *w > 0.3), "{worst:?}");
}

#[test]
fn what_is_sent() {
    for length in [8 * 64, 300] {
        for layout in layouts("data=8") {
            let types = TensorType::new(DType::F32, [DEVICES, length]);
            let report = jit(sums)
                .layout(&layout)
                .compile(types)
                .unwrap()
                .collectives()
                .unwrap();
            // A byte a number and 4 for each block's scale, to 7 of 8 devices and from them.
            let row = row(length);
            let message = (row + 4 * row / BLOCK) as u64;
            let codes = CODES.len() as u64;
            assert_eq!(
                sent(&report, AllToAll, &["data"]),
                codes * 7 * message,
                "{report}"
            );
            assert_eq!(
                sent(&report, AllGather, &["data"]),
                codes * 7 * message,
                "{report}"
            );
            assert_eq!(sent_at_all(&report), codes * 14 * message, "{report}");
        }
    }
    // With the usual blocks, a quarter of f32 and half of bf16.
    let length = 1 << 14;
    let step = move |x: Tensor| {
        let split = PartitionSpec::new(("data",));
        let sum = manual("data", split, PartitionSpec::whole(), |x: Tensor| {
            quantized_all_reduce(x.index(0, 0), "data", Quantization::new(Code::Int8))
        });
        sum(x)
    };
    for (dtype, exact) in [(DType::F32, 4), (DType::BF16, 2)] {
        let types = TensorType::new(dtype, [DEVICES, length]);
        let program = jit(step).layout(&layout("data=8")).compile(types).unwrap();
        let report = program.collectives().unwrap();
        let exact = 2 * 7 * (length * exact / 8) as u64;
        let ratio = sent_at_all(&report) as f64 / exact as f64;
        let wanted = match dtype {
            DType::F32 => 0.25 * (1.0 + 4.0 / 256.0),
            _ => 0.5 * (1.0 + 4.0 / 256.0),
        };
        assert!((ratio - wanted).abs() < 1e-9, "{dtype} {ratio}\n{report}");
    }
}

#[test]
fn what_is_not_finite_is_seen_and_zeros_are_exact() {
    let length = 100;
    let mut x = vec![0f32; DEVICES * length];
    x[5] = f32::NAN;
    x[2 * length + 9] = f32::INFINITY;
    x[3 * length + 70] = f32::NEG_INFINITY;
    x[6 * length + 71] = 3.0;
    for layout in layouts("data=8") {
        let step = jit(sums).layout(&layout);
        let found = step
            .call(Array::from_slice(&x, [DEVICES, length]).unwrap())
            .unwrap();
        for found in [found.0, found.1, found.2] {
            let found: Vec<f32> = found.to_vec().unwrap();
            for (i, value) in found.iter().enumerate() {
                match i {
                    5 | 9 | 70 => assert!(value.is_nan(), "{i}: {value}"),
                    71 => assert!((value - 3.0).abs() < 1e-6, "{value}"),
                    _ => assert_eq!(*value, 0.0, "{i}"),
                }
            }
        }
    }
}

/// The derivative is that of the exact sum; one device sums exactly.
#[test]
fn the_gradient_passes_straight_through() {
    let f = |x: Tensor| grad(|x: Tensor| (sums(x).1 * Tensor::arange(DType::F32, 40)).sum(..))(x);
    let x = Array::from_slice(&Random(3).many(DEVICES * 40), [DEVICES, 40]).unwrap();
    let slopes: Vec<f32> = (0..40).map(|i| i as f32).collect();
    let step = jit(f).layout(&layout("data=8"));
    let found: Vec<f32> = step.call(x).unwrap().to_vec().unwrap();
    assert_eq!(found, slopes.repeat(DEVICES));
    let one = Array::from_slice(&slopes, [1, 40]).unwrap();
    let found = jit(sums).call(one).unwrap().0;
    assert_eq!(found.to_vec::<f32>().unwrap(), slopes);
}

#[test]
fn integers_are_refused() {
    let f = |x: Tensor| sums(x.cast(DType::I32));
    let types = TensorType::new(DType::F32, [DEVICES, 4]);
    let error = jit(f)
        .layout(&layout("data=8"))
        .compile(types)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("i32[4]{data} is not a floating-point tensor"),
        "{error}"
    );
}
