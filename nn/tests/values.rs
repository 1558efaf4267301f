//! What modules compute, against their formulas in f64 or the functions they are made of.

mod numbers;

use numbers::{array, assert_close, numbers};
use shardax_core::random::Key;
use shardax_core::{DType, Dim, Padding, Tensor, value_and_grad};
use shardax_nn::{
    self as nn, Attention, AttentionOptions, BatchNorm, Conv, CrossEntropyOptions, LayerNorm,
    RmsNorm, Rope, RunningStatistics,
};
use shardax_xla::{Array, jit};

fn mean_loss(logits: Tensor, targets: Tensor) -> Tensor {
    nn::cross_entropy(logits, targets, CrossEntropyOptions::default())
}

fn causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor {
    nn::attention(q, k, v, AttentionOptions::causal())
}

#[test]
fn layer_norm_is_its_formula() {
    let (rows, n) = (3, 8);
    let (x, gain, offset) = (numbers(rows * n, 1), numbers(n, 2), numbers(n, 3));
    let norm = jit(|norm: LayerNorm, x: Tensor| norm.forward(x));
    let module = LayerNorm {
        gain: array(&gain, &[n]),
        offset: array(&offset, &[n]),
        eps: 1e-5,
    };
    let y = norm.call((module, array(&x, &[rows, n]))).unwrap();
    let mut expected = Vec::new();
    for row in x.chunks(n) {
        let row: Vec<f64> = row.iter().map(|&v| v.into()).collect();
        let mean = row.iter().sum::<f64>() / n as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        for (i, v) in row.iter().enumerate() {
            let normal = (v - mean) / (variance + 1e-5).sqrt();
            expected.push(normal * f64::from(gain[i]) + f64::from(offset[i]));
        }
    }
    assert_close(&y, &expected, 1e-5);
}

#[test]
fn layer_norm_of_bf16_has_statistics_in_f32() {
    // In bf16 neighbors of 256 are 2 apart: a mean taken there would be far off.
    let x: Vec<f32> = (0..16).map(|i| 256.0 + 2.0 * i as f32).collect();
    let normalize = |x: Tensor| LayerNorm::init(&[16]).forward(x);
    let wide = jit(normalize).call(array(&x, &[1, 16])).unwrap();
    let narrow = jit(move |x: Tensor| {
        let y = normalize(x.cast(DType::BF16));
        assert_eq!(y.dtype(), DType::BF16);
        y.cast(DType::F32)
    });
    let expected: Vec<f64> = wide
        .to_vec::<f32>()
        .unwrap()
        .iter()
        .map(|&v| v.into())
        .collect();
    assert_close(&narrow.call(array(&x, &[1, 16])).unwrap(), &expected, 0.01);
}

#[test]
fn cross_entropy_is_its_formula_and_so_is_its_gradient() {
    let (rows, classes) = (4, 5);
    let mut logits = numbers(rows * classes, 4);
    // Large enough that exp overflows unless the largest is subtracted.
    logits[3] = 200.0;
    let targets = [0, 4, 2, 2];
    let loss = jit(|logits: Tensor, targets: Tensor| {
        value_and_grad(|logits: Tensor| mean_loss(logits, targets))(logits)
    });
    let targets_array = Array::from_slice(&targets, [rows]).unwrap();
    let (loss, gradient) = loss
        .call((array(&logits, &[rows, classes]), targets_array))
        .unwrap();
    let (mut expected_loss, mut expected_gradient) = (0.0, Vec::new());
    for (row, &target) in logits.chunks(classes).zip(&targets) {
        let row: Vec<f64> = row.iter().map(|&v| v.into()).collect();
        let largest = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|v| (v - largest).exp()).sum();
        expected_loss += (sum.ln() + largest - row[target as usize]) / rows as f64;
        for (class, v) in row.iter().enumerate() {
            let hit = f64::from(u8::from(class == target as usize));
            expected_gradient.push(((v - largest).exp() / sum - hit) / rows as f64);
        }
    }
    assert_close(&loss, &[expected_loss], 1e-4);
    assert_close(&gradient, &expected_gradient, 1e-6);
}

#[test]
fn targets_that_are_no_classes_are_refused_or_nan() {
    let logits = numbers(8, 4);
    let loss = |targets: Array| jit(mean_loss).call((array(&logits, &[2, 4]), targets));
    let column = loss(Array::from_slice(&[0, 3], [2, 1]).unwrap()).unwrap_err();
    let message = column.to_string();
    assert!(
        message.starts_with("`cross_entropy`: the logits are f32[2,4] and the targets i32[2,1]"),
        "{message}"
    );
    assert!(loss(array(&[0.0, 3.0], &[2])).is_err());
    let outside = loss(Array::from_slice(&[0, 4], [2]).unwrap()).unwrap();
    assert!(outside.item::<f32>().unwrap().is_nan());
    let narrow = loss(Array::from_slice(&[0u8, 3], [2]).unwrap()).unwrap();
    let wide = loss(Array::from_slice(&[0i64, 3], [2]).unwrap()).unwrap();
    assert_eq!(narrow.item::<f32>().unwrap(), wide.item::<f32>().unwrap());
}

#[test]
fn attention_is_its_formula() {
    let (seq, heads, k) = (5, 2, 4);
    let shape = [1, seq, heads, k];
    let [q, key, v] = [5, 6, 7].map(|seed| numbers(seq * heads * k, seed));
    let [q_array, k_array, v_array] = [&q, &key, &v].map(|values| array(values, &shape));
    let mixed = jit(causal).call((q_array, k_array, v_array)).unwrap();
    let at = |x: &[f32], t: usize, h: usize, i: usize| f64::from(x[(t * heads + h) * k + i]);
    let mut expected = Vec::new();
    for t in 0..seq {
        for h in 0..heads {
            let score = |s: usize| {
                let dot: f64 = (0..k).map(|i| at(&q, t, h, i) * at(&key, s, h, i)).sum();
                (dot / (k as f64).sqrt()).exp()
            };
            let total: f64 = (0..=t).map(score).sum();
            for i in 0..k {
                expected.push((0..=t).map(|s| score(s) / total * at(&v, s, h, i)).sum());
            }
        }
    }
    assert_close(&mixed, &expected, 1e-5);
}

/// Numbers without a pattern, as an array.
fn random(shape: &[usize], seed: u32) -> Array {
    array(&numbers(shape.iter().product(), seed), shape)
}

/// The results of a program that computes one thing in two ways.
fn assert_same((a, b): (Array, Array)) {
    let b: Vec<f64> = b
        .to_vec::<f32>()
        .unwrap()
        .into_iter()
        .map(f64::from)
        .collect();
    assert!(b.iter().any(|&value| value != 0.0));
    assert_close(&a, &b, 1e-5);
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let norm = RmsNorm {
        gain: array(&[1.0, 2.0, 0.5], &[3]),
        eps: 0.25,
    };
    let y = jit(|norm: RmsNorm, x: Tensor| norm.forward(x));
    let y = y.call((norm, array(&[2.0, -1.0, 0.5], &[3]))).unwrap();
    let root = ((4.0 + 1.0 + 0.25) / 3.0 + 0.25f64).sqrt();
    assert_close(&y, &[2.0 / root, -2.0 / root, 0.25 / root], 1e-6);
}

#[test]
fn attention_attends_to_its_own_maps_and_heads_share_keys() {
    let both = jit(|x: Tensor| {
        let attention = Attention::init(Key::from_seed(1), 8, [4, 2], 6);
        let rope = Rope::default();
        let attention = Attention {
            rope: Some(rope),
            ..attention
        };
        let [q, k, v] = [attention.query, attention.key, attention.value].map(|map| x.dot(map));
        let positions = Tensor::arange(DType::I32, 5);
        let (q, k) = (rope.apply(q, positions), rope.apply(k, positions));
        // Heads 0 and 1 have the keys of head 0, heads 2 and 3 those of head 1.
        let repeated = |x: Tensor| {
            let wide = x.expand_dims(3).broadcast_to([2, 5, 2, 2, 6]);
            wide.reshape([2, 5, 4, 6])
        };
        let mixed = causal(q, repeated(k), repeated(v)).reshape([2, 5, 24]);
        let joined = mixed.dot(attention.output.reshape([24, 8]));
        (attention.forward(x, AttentionOptions::causal()), joined)
    });
    assert_same(both.call(random(&[2, 5, 8], 1)).unwrap());
}

#[test]
fn convolutions_sum_products_along_space_in_their_groups() {
    const NAMES: [Dim; 3] = [Dim::Logical("channels"), Dim::Unsharded, Dim::Unsharded];
    let both = jit(|x: Tensor| {
        let conv = Conv::init(Key::from_seed(2), [4, 6], 2, &[3], &NAMES).with_bias();
        let conv = Conv {
            bias: Some(Tensor::arange(DType::F32, 6)),
            stride: 2,
            padding: Padding::Valid,
            dilation: 2,
            ..conv
        };
        // 9 positions, a window that reaches over 5: it begins at 0, 2 and 4.
        let windows = [0, 2, 4].map(|start| {
            let taps = [0, 2, 4].map(|tap| x.index(2, start + tap));
            let window = shardax_core::stack(taps, 2);
            let group = |g: usize| {
                let x = window.slice(1, 2 * g..2 * g + 2).reshape([2, 6]);
                let kernel = conv.kernel.slice(0, 3 * g..3 * g + 3);
                x.dot(kernel.reshape([3, 6]).transpose([1, 0]))
            };
            shardax_core::concatenate([group(0), group(1)], 1) + Tensor::arange(DType::F32, 6)
        });
        (conv.forward(x), shardax_core::stack(windows, 2))
    });
    assert_same(both.call(random(&[2, 4, 9], 2)).unwrap());
}

#[test]
fn batch_norm_returns_its_running_statistics_and_predicts_by_them() {
    let step = jit(|x: Tensor| {
        let norm = BatchNorm {
            eps: 0.0,
            momentum: 0.75,
            ..BatchNorm::init(&[2])
        };
        let (y, running) = norm.forward(x, RunningStatistics::init(&[2]));
        let predicted = norm.forward_inference(x, running.clone());
        (y, running, predicted)
    });
    let x = [1.0, 10.0, 3.0, 20.0, 5.0, 60.0];
    let (y, running, predicted) = step.call(array(&x, &[3, 2])).unwrap();
    let (means, variances) = ([3.0, 30.0], [8.0 / 3.0, 1400.0 / 3.0f64]);
    let by = |mean: &dyn Fn(usize) -> f64, variance: &dyn Fn(usize) -> f64| {
        let of = |(i, x): (usize, &f32)| (f64::from(*x) - mean(i % 2)) / variance(i % 2).sqrt();
        x.iter().enumerate().map(of).collect::<Vec<f64>>()
    };
    assert_close(&y, &by(&|c| means[c], &|c| variances[c]), 1e-5);
    let mean = |c: usize| 0.25 * means[c];
    let variance = |c: usize| 0.75 + 0.25 * variances[c];
    assert_close(&running.mean, &[mean(0), mean(1)], 1e-5);
    assert_close(&running.variance, &[variance(0), variance(1)], 1e-4);
    assert_close(&predicted, &by(&mean, &variance), 1e-5);
}

#[test]
fn weights_begin_with_the_variance_that_the_docs_say() {
    let squares = jit(|| {
        let key = Key::from_seed(3);
        let linear = nn::Linear::init(key, [400, 100], &[Dim::Unsharded; 2]).weight;
        let conv = Conv::init(key, [64, 64], 4, &[3, 3], &[Dim::Unsharded; 4]).kernel;
        let attention = Attention::init(key, 256, [4, 2], 16);
        let embedding = nn::Embedding::init(key, 100, 100).table;
        let of = |x: Tensor, variance: f64| x.square().mean(..) / variance;
        [
            of(linear, 1.0 / 400.0),
            of(conv, 1.0 / 144.0),
            of(attention.query, 1.0 / 256.0),
            of(attention.value, 1.0 / 256.0),
            of(attention.output, 1.0 / 64.0),
            of(embedding, 0.02 * 0.02),
        ]
    });
    for (i, ratio) in squares.call(()).unwrap().iter().enumerate() {
        let ratio = ratio.item::<f32>().unwrap();
        assert!((ratio - 1.0).abs() < 0.1, "weight {i}: {ratio}");
    }
}

#[test]
fn mistakes_are_told_at_the_line_of_the_user() {
    let x = || random(&[2, 4], 3);
    let told = |found: Result<Array, shardax_xla::Error>, line: u32, expected: &str| {
        let message = found.unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
        assert!(message.contains(&format!("values.rs:{line}")), "{message}");
    };
    let line = line!() + 1;
    let heads = jit(|_: Tensor| Attention::init(Key::from_seed(0), 4, [4, 3], 2).query);
    told(
        heads.call(x()),
        line,
        "`Attention::init`: `heads` is [4, 3]",
    );
    let line = line!() + 1;
    let groups = jit(|_: Tensor| Conv::init(Key::from_seed(0), [4, 6], 4, &[3], &[]).kernel);
    let expected = "`Conv::init`: 4 groups of 4 channels in and 6 out";
    told(groups.call(x()), line, expected);
    let line = line!() + 1;
    let names = jit(|_: Tensor| Conv::init(Key::from_seed(0), [4, 6], 1, &[3], &[]).kernel);
    let expected = "`Conv::init`: 0 names for the kernel [6, 4, 3]";
    told(names.call(x()), line, expected);
    let attend = |x: Tensor, options: AttentionOptions| {
        Attention::init(Key::from_seed(0), 4, [2, 1], 2).forward(x, options)
    };
    let line = line!() - 2;
    let flat = jit(move |x: Tensor| attend(x, AttentionOptions::causal()));
    told(
        flat.call(x()),
        line,
        "`Attention::forward`: `x` is f32[2,4]",
    );
    let later = jit(move |x: Tensor| {
        let options = AttentionOptions {
            query_offset: 3.into(),
            ..AttentionOptions::causal()
        };
        attend(x.expand_dims(0), options)
    });
    told(
        later.call(x()),
        line,
        "`Attention::forward`: `options.query_offset` is not 0",
    );
}
