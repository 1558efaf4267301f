//! Compressed gradients with error feedback.

use shardax::prelude::*;
use shardax::train::Replicas;
use shardax::train::collectives::{Code, Compression, ErrorFeedback, Quantization};
use shardax::xla::report::CollectiveKind::{AllGather, AllToAll};

use crate::{Random, layouts, sent, sent_at_all};

const DEVICES: usize = 4;
/// The leaves of a gradient have 3 * 7 and 20 elements.
const LENGTH: usize = 41;

type Gradient<L = Tensor> = (L, L);

/// Sums with feedback of `[DEVICES, ...]` gradients.
fn step(
    feedback: ErrorFeedback,
) -> impl Fn(Gradient, Replicas<Gradient>) -> (Gradient, Replicas<Gradient>) {
    move |gradients, kept| {
        let own = PartitionSpec::new(("data",));
        let specs = (own.clone(), own.clone());
        let region = manual(
            "data",
            specs,
            (PartitionSpec::whole(), own),
            |(g, kept): (Gradient, Replicas<Gradient>)| {
                let g = (g.0.index(0, 0), g.1.index(0, 0));
                feedback.all_reduce(g, kept, "data")
            },
        );
        let (sums, kept) = region((gradients, kept));
        (sums, kept.placed())
    }
}

fn numbers(tree: &Gradient<Array>) -> Vec<Vec<f32>> {
    [&tree.0, &tree.1].map(|a| a.to_vec().unwrap()).into()
}

/// After many steps, what came out and what is kept are what went in; and most of it came out.
#[test]
fn nothing_is_lost() {
    let quantized = |code| Compression::Quantized(Quantization { code, block: 8 });
    for compression in [
        Compression::Largest(0.1),
        quantized(Code::Int8),
        quantized(Code::Float8E5M2),
    ] {
        let feedback = ErrorFeedback(compression);
        for layout in layouts("data=4") {
            let init = jit(move || {
                let gradient = |shape: &[usize]| Tensor::zeros(DType::F32, shape);
                feedback.init(&(gradient(&[3, 7]), gradient(&[20])), DEVICES)
            });
            let mut kept = init.layout(&layout).call(()).unwrap();
            let step = jit(step(feedback)).layout(&layout);
            let mut random = Random(1);
            let (mut went_in, mut came_out) = (vec![0f64; LENGTH], vec![0f64; LENGTH]);
            for _ in 0..20 {
                let values = [random.many(DEVICES * 21), random.many(DEVICES * 20)];
                for d in 0..DEVICES {
                    let of_device = values[0][d * 21..][..21]
                        .iter()
                        .chain(&values[1][d * 20..][..20]);
                    for (total, value) in went_in.iter_mut().zip(of_device) {
                        *total += f64::from(*value);
                    }
                }
                let gradients = (
                    Array::from_slice(&values[0], [DEVICES, 3, 7]).unwrap(),
                    Array::from_slice(&values[1], [DEVICES, 20]).unwrap(),
                );
                let sums;
                (sums, kept) = step.call((gradients, kept)).unwrap();
                for (total, sum) in came_out.iter_mut().zip(numbers(&sums).concat()) {
                    *total += f64::from(sum);
                }
            }
            let kept = numbers(&kept.0);
            let still = |i: usize| -> f64 {
                let (leaf, size, i) = if i < 21 { (0, 21, i) } else { (1, 20, i - 21) };
                (0..DEVICES)
                    .map(|d| f64::from(kept[leaf][d * size + i]))
                    .sum()
            };
            for i in 0..LENGTH {
                let found = came_out[i] + still(i);
                assert!(
                    (found - went_in[i]).abs() < 1e-4,
                    "{compression:?} {i}: {found} {}",
                    went_in[i]
                );
            }
            let lost: f64 = (0..LENGTH).map(|i| still(i).abs()).sum();
            assert!(lost > 0.0, "{compression:?}");
        }
    }
}

#[test]
fn what_is_sent() {
    let types = |shape: [usize; 2]| TensorType::new(DType::F32, shape);
    let compile = |compression, layout: &Layout| {
        let step = jit(step(ErrorFeedback(compression))).layout(layout);
        let gradients = (types([DEVICES, 100]), types([DEVICES, 300]));
        let kept = Replicas((types([DEVICES, 100]), types([DEVICES, 300])));
        step.compile((gradients, kept))
            .unwrap()
            .collectives()
            .unwrap()
    };
    for layout in layouts("data=4") {
        let report = compile(Compression::Largest(0.05), &layout);
        // 20 of 400 numbers with their places, 4 bytes each, to 3 others.
        assert_eq!(sent(&report, AllGather, &["data"]), 3 * 20 * 8, "{report}");
        assert_eq!(sent_at_all(&report), 3 * 20 * 8, "{report}");
        let quantization = Quantization {
            code: Code::Int8,
            block: 50,
        };
        let report = compile(Compression::Quantized(quantization), &layout);
        let message = 100 + 2 * 4;
        assert_eq!(sent(&report, AllToAll, &["data"]), 3 * message, "{report}");
        assert_eq!(sent_at_all(&report), 2 * 3 * message, "{report}");
    }
}

/// The first sum has the largest elements of each device, in their places; NaN is one of them.
#[test]
fn the_largest_are_sent_first() {
    let feedback = ErrorFeedback(Compression::Largest(2.0 / LENGTH as f64));
    let mut values = [vec![0.5f32; DEVICES * 21], vec![-0.25f32; DEVICES * 20]];
    values[0][3] = 4.0;
    values[1][2] = -8.0;
    values[0][21 + 3] = 2.0;
    values[1][20 + 19] = f32::NAN;
    for layout in layouts("data=4") {
        let gradients = (
            Array::from_slice(&values[0], [DEVICES, 3, 7]).unwrap(),
            Array::from_slice(&values[1], [DEVICES, 20]).unwrap(),
        );
        let zeros = |count: usize| vec![0f32; DEVICES * count];
        let kept = Replicas((
            Array::from_slice(&zeros(21), [DEVICES, 3, 7]).unwrap(),
            Array::from_slice(&zeros(20), [DEVICES, 20]).unwrap(),
        ));
        let (sums, kept) = jit(step(feedback))
            .layout(&layout)
            .call((gradients, kept))
            .unwrap();
        let sums = numbers(&sums);
        // Devices 2 and 3 have no larger ones than 0.5, and send the first two.
        let mut wanted = [vec![0f32; 21], vec![0f32; 20]];
        wanted[0][0] = 1.0;
        wanted[0][1] = 1.0;
        wanted[0][3] = 6.0;
        wanted[1][2] = -8.0;
        assert_eq!(sums[0], wanted[0]);
        assert_eq!(sums[1][..19], wanted[1][..19]);
        assert!(sums[1][19].is_nan());
        let kept = numbers(&kept.0);
        assert_eq!((kept[0][3], kept[0][4], kept[1][39]), (0.0, 0.5, 0.0));
    }
}

#[test]
fn a_state_of_another_shape_is_refused() {
    let feedback = ErrorFeedback(Compression::Largest(0.1));
    let matrix = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let layout = &layouts("data=4")[0];
    let message = |kept: Gradient<TensorType>| {
        let gradients = (matrix(&[4, 5]), matrix(&[4, 6]));
        let outcome = jit(step(feedback))
            .layout(layout)
            .compile((gradients, Replicas(kept)));
        outcome.map(|_| ()).unwrap_err().to_string()
    };
    let text = message((matrix(&[8, 5]), matrix(&[8, 6])));
    assert!(
        text.contains("has not one entry for it in its first dimension"),
        "{text}"
    );
    let text = message((matrix(&[4, 5]), matrix(&[4, 7])));
    assert!(
        text.contains("`kept.1` is f32[7]{data}, and the parameter is f32[6]{data}"),
        "{text}"
    );
}
