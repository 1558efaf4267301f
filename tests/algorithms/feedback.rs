//! Compressed gradients with error feedback.

use shardax::prelude::*;
use shardax::random::Key;
use shardax::train::Replicas;
use shardax::train::collectives::{
    Code, Compression, ErrorFeedback, LowRank, LowRankState, Quantization,
};
use shardax::xla::report::CollectiveKind::{AllGather, AllReduce, AllToAll};

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
        quantized(Code::Sign),
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
        let signs = Quantization {
            code: Code::Sign,
            block: 56,
        };
        let report = compile(Compression::Quantized(signs), &layout);
        // A bit a number, in two blocks.
        let message = 2 * (56 / 8 + 4);
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

/// Matrices as thin factors: what came out and what is kept are what went in, and a sum of low rank is
/// found exactly, without the errors of others.
#[test]
fn thin_factors() {
    let (rows, columns, rank) = (12, 9, 2);
    let compression = LowRank { rank };
    let step = move |g: Gradient, state: LowRankState<Gradient, Vec<Tensor>>| {
        let (own, whole) = (PartitionSpec::new(("data",)), PartitionSpec::whole());
        let specs = ((own.clone(), own.clone()), own.clone(), whole.clone());
        let region = manual(
            "data",
            specs,
            (whole.clone(), own, whole),
            |(g, kept, basis): (Gradient, Replicas<Gradient>, Vec<Tensor>)| {
                let g = (g.0.index(0, 0), g.1.index(0, 0));
                let state = LowRankState { kept, basis };
                let (sum, state) = compression.all_reduce(g, state, "data");
                (sum, state.kept, state.basis)
            },
        );
        let (sum, kept, basis) = region((g, state.kept, state.basis));
        let kept = kept.placed();
        (sum, LowRankState { kept, basis })
    };
    for layout in layouts("data=4") {
        let init = jit(move || {
            let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape);
            let gradients = (zeros(&[rows, columns]), zeros(&[5]));
            compression.init(&gradients, DEVICES, Key::from_seed(0))
        });
        let mut state = init.layout(&layout).call(()).unwrap();
        let step = jit(step).layout(&layout);
        let types = (
            TensorType::new(DType::F32, [DEVICES, rows, columns]),
            TensorType::new(DType::F32, [DEVICES, 5]),
        );
        let report = step.compile((types, state.types())).unwrap();
        let report = report.collectives().unwrap();
        // One sum of the first factor and of the vector, and one of the second factor.
        let numbers = rank * (rows + columns) + 5;
        let summed: u64 = report
            .of(AllReduce, &["data"])
            .map(|c| c.payload_bytes)
            .sum();
        assert_eq!(summed, 4 * numbers as u64, "{report}");
        assert_eq!(report.collectives.len(), 2, "{report}");

        let mut random = Random(5);
        let outer = |random: &mut Random| -> Vec<f32> {
            let (a, b) = (random.many(rows), random.many(columns));
            a.iter()
                .flat_map(|a| b.iter().map(move |b| a * b))
                .collect()
        };
        let directions = [outer(&mut random), outer(&mut random)];
        let size = rows * columns;
        let (mut went_in, mut came_out) = (vec![0f64; size], vec![0f64; size]);
        for round in 0..12 {
            // A sum of rank 2 at first, nothing in between, and then full noise.
            let matrices: Vec<f32> = (0..DEVICES)
                .flat_map(|_| {
                    let (a, b, noise) = (random.next(), random.next(), random.many(size));
                    let noise = move |i: usize| if round < 8 { 0.0 } else { noise[i] };
                    let on = if round == 4 { 0.0 } else { 1.0 };
                    let directions = &directions;
                    (0..size)
                        .map(move |i| on * (a * directions[0][i] + b * directions[1][i]) + noise(i))
                })
                .collect();
            let vectors = random.many(DEVICES * 5);
            for (i, value) in matrices.iter().enumerate() {
                went_in[i % size] += f64::from(*value);
            }
            let g = (
                Array::from_slice(&matrices, [DEVICES, rows, columns]).unwrap(),
                Array::from_slice(&vectors, [DEVICES, 5]).unwrap(),
            );
            let sum;
            (sum, state) = step.call((g, state)).unwrap();
            let [matrix, vector]: [Vec<f32>; 2] = [&sum.0, &sum.1].map(|a| a.to_vec().unwrap());
            for (total, value) in came_out.iter_mut().zip(&matrix) {
                *total += f64::from(*value);
            }
            for (i, found) in vector.iter().enumerate() {
                let wanted: f32 = (0..DEVICES).map(|d| vectors[d * 5 + i]).sum();
                assert!((found - wanted).abs() < 1e-5, "{found} {wanted}");
            }
            let kept: Vec<f32> = state.kept.0.0.to_vec().unwrap();
            for i in 0..size {
                let kept: f64 = (0..DEVICES).map(|d| f64::from(kept[d * size + i])).sum();
                assert!(
                    (came_out[i] + kept - went_in[i]).abs() < 1e-4,
                    "round {round}"
                );
                if round < 8 {
                    assert!(kept.abs() < 1e-4, "round {round}: {kept}");
                }
            }
        }
    }
}

#[test]
fn factors_of_other_matrices_are_refused() {
    let f = |g: Tensor, basis: Tensor| {
        let compression = LowRank { rank: 2 };
        let state = LowRankState {
            kept: compression.init(&g, 1, Key::from_seed(0)).kept,
            basis: vec![basis],
        };
        let whole = PartitionSpec::whole;
        let own = || PartitionSpec::new(("data",));
        let region = manual(
            "data",
            (whole(), own(), whole()),
            whole(),
            |(g, kept, basis): (Tensor, Replicas<Tensor>, Vec<Tensor>)| {
                let state = LowRankState { kept, basis };
                compression.all_reduce(g, state, "data").0
            },
        );
        region((g, state.kept, state.basis))
    };
    let matrix = |shape: [usize; 2]| TensorType::new(DType::F32, shape);
    let outcome = jit(f).compile((matrix([6, 4]), matrix([6, 2])));
    let text = outcome.map(|_| ()).unwrap_err().to_string();
    let wanted =
        "`basis` has f32[6,2], and is to have a matrix for each of the gradients' 1 matrices";
    assert!(text.contains(wanted), "{text}");
    assert!(text.contains("feedback.rs"), "{text}");
}
