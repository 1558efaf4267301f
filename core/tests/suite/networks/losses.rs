//! Losses.

use shardax_core::nn::{self, ChunkSizes, CrossEntropyOptions};
use shardax_core::{DType, Tensor, TensorType, grad, value_and_grad};

use super::{gradient, same};
use crate::interpreter::Array;
use crate::support::{assert_close, between, check, check_vmap, eval, floats, graph, noise};

const INF: f64 = f64::INFINITY;

fn labels(of: &[i32]) -> Array {
    Array::i32(&[of.len()], of.iter().copied())
}

/// Loss by its formula, of one position.
fn position(logits: &[f64], label: usize, smoothing: f64, z: f64) -> f64 {
    let log_sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
    let uniform: f64 = logits.iter().map(|x| log_sum - x).sum::<f64>() / logits.len() as f64;
    (1.0 - smoothing) * (log_sum - logits[label]) + smoothing * uniform + z * log_sum * log_sum
}

#[test]
fn cross_entropy_is_its_formula() {
    let x = [noise(1, &[4, 5]), labels(&[3, 0, -100, 2])];
    let rows = x[0].floats();
    let row = |i: usize| &rows[5 * i..5 * i + 5];
    let plain = CrossEntropyOptions {
        ignored: Some(-100),
        ..CrossEntropyOptions::default()
    };
    let all = CrossEntropyOptions {
        label_smoothing: 0.2,
        z_loss: 0.01,
        ..plain
    };
    for (options, smoothing, z) in [(plain, 0.0, 0.0), (all, 0.2, 0.01)] {
        let of = |i: usize, label: usize| position(row(i), label, smoothing, z);
        let found = floats(&x, |[x, y]| nn::cross_entropy(x, y, options));
        let each = [of(0, 3), of(1, 0), of(3, 2)];
        same(&found, &[each.iter().sum::<f64>() / 3.0]);
        let weighted = floats(&x, |[x, y]| {
            let weights = Some(Tensor::constant(&[1.0, 0.5, 9.0, 0.0], [4]));
            nn::cross_entropy(x, y, CrossEntropyOptions { weights, ..options })
        });
        same(&weighted, &[(each[0] + 0.5 * each[1]) / 1.5]);
        check([x[0].clone()], |[x]| {
            let y = Tensor::constant(&[3i32, 0, -100, 2], [4]);
            nn::cross_entropy(x, y, options)
        });
    }
    check_vmap(x, |[x, y]| {
        nn::cross_entropy(x, y.clamp(0, 4), CrossEntropyOptions::default())
    });
}

#[test]
fn labels_that_are_no_class() {
    for label in [5, -1, -100] {
        let x = [noise(1, &[2, 5]), labels(&[1, label])];
        let options = CrossEntropyOptions::default();
        let found = floats(&x, |[x, y]| nn::cross_entropy(x, y, options));
        assert!(found[0].is_nan(), "{label}");
        let chunks = ChunkSizes {
            positions: 1,
            classes: 2,
        };
        let found = floats(&x, |[x, y]| {
            let weight = Tensor::constant(&noise(2, &[5, 5]).floats(), [5, 5]);
            nn::chunked_cross_entropy(x, weight, y, options, chunks)
        });
        assert!(found[0].is_nan(), "{label}");
    }
    // A narrow type that cannot count the classes.
    let x = [noise(1, &[1, 300]), Array::new(DType::U8, &[1], [200i64])];
    let found = floats(&x, |[x, y]| {
        nn::cross_entropy(x, y, CrossEntropyOptions::default())
    });
    same(&found, &[position(&x[0].floats(), 200, 0.0, 0.0)]);
}

#[test]
fn nothing_that_counts_is_a_loss_of_zero() {
    let options = CrossEntropyOptions {
        ignored: Some(-1),
        ..CrossEntropyOptions::default()
    };
    let x = [noise(1, &[2, 3]), labels(&[-1, -1])];
    let found = eval(&x, |[x, y]| {
        value_and_grad(|x: Tensor| nn::cross_entropy(x, y, options))(x)
    });
    same(&found[0].floats(), &[0.0]);
    same(&found[1].floats(), &[0.0; 6]);
    let none = [Array::f64(&[0, 3], []), labels(&[])];
    same(
        &floats(&none, |[x, y]| {
            nn::cross_entropy(x, y, CrossEntropyOptions::default())
        }),
        &[0.0],
    );
    // What is ignored may be infinite or NaN.
    let x = [
        Array::f64(&[2, 2], [f64::NAN, INF, 0.0, 0.0]),
        labels(&[-1, 1]),
    ];
    let found = eval(&x, |[x, y]| {
        value_and_grad(|x: Tensor| nn::cross_entropy(x, y, options))(x)
    });
    same(&found[0].floats(), &[2f64.ln()]);
    same(&found[1].floats()[2..], &[0.5, -0.5]);
    let mean = floats(&[noise(1, &[3])], |[x]| {
        nn::weighted_mean(x, Some(x.zeros_like()))
    });
    same(&mean, &[0.0]);
}

#[test]
fn chunks_are_the_whole() {
    let all = [noise(1, &[2, 5, 3]), noise(2, &[3, 7])];
    let of = [3i32, 0, -1, 2, 6, 1, 1, 6, 5, 4];
    let weights = [1.0, 0.5, 2.0, 1.0, 0.0, 3.0, 1.0, 1.0, 2.0, 1.5];
    let options = || CrossEntropyOptions {
        label_smoothing: 0.1,
        ignored: Some(-1),
        z_loss: 0.02,
        weights: Some(Tensor::constant(&weights, [2, 5])),
    };
    let labels = || Tensor::constant(&of, [2, 5]);
    let plain = |[h, w]: [Tensor; 2]| nn::cross_entropy(h.dot(w), labels(), options());
    let first = eval(&all, |x| value_and_grad(plain)(x));
    let second = |f: &dyn Fn([Tensor; 2]) -> Tensor| {
        eval(&all, |x| {
            let gradient = grad(f);
            grad(|x: [Tensor; 2]| {
                let [a, b] = gradient(x);
                a.sin().square().sum(..) + b.square().sum(..)
            })(x)
        })
    };
    for [positions, classes] in [[1, 1], [2, 3], [3, 4], [5, 7], [9, usize::MAX]] {
        let chunks = ChunkSizes { positions, classes };
        let chunked =
            |[h, w]: [Tensor; 2]| nn::chunked_cross_entropy(h, w, labels(), options(), chunks);
        let what = format!("{chunks:?}");
        assert_close(
            &what,
            &eval(&all, |x| value_and_grad(chunked)(x)),
            &first,
            1e-13,
        );
        assert_close(&what, &second(&chunked), &second(&plain), 1e-12);
        let simple = |[h, w]: [Tensor; 2]| {
            let labels = labels().maximum(0);
            nn::chunked_cross_entropy(h, w, labels, CrossEntropyOptions::default(), chunks)
        };
        let whole = |[h, w]: [Tensor; 2]| {
            nn::cross_entropy(
                h.dot(w),
                labels().maximum(0),
                CrossEntropyOptions::default(),
            )
        };
        let found = eval(&all, |x| value_and_grad(simple)(x));
        assert_close(
            &what,
            &found,
            &eval(&all, |x| value_and_grad(whole)(x)),
            1e-13,
        );
    }
    check_vmap(all, |[h, w]| {
        let chunks = ChunkSizes {
            positions: 2,
            classes: 3,
        };
        nn::chunked_cross_entropy(
            h,
            w,
            labels(),
            CrossEntropyOptions {
                ignored: Some(-1),
                ..Default::default()
            },
            chunks,
        )
    });
}

#[test]
fn chunks_of_bf16_are_summed_in_f32() {
    let types = [[4, 8, 16], [16, 32, 0]].map(|s| {
        let shape: Vec<usize> = s.into_iter().filter(|&n| n > 0).collect();
        TensorType::new(DType::BF16, shape)
    });
    let text = graph(types, |x| {
        value_and_grad(|[h, w]: [Tensor; 2]| {
            let labels = Tensor::zeros(DType::I32, [4, 8]);
            let chunks = ChunkSizes {
                positions: 4,
                classes: 16,
            };
            nn::chunked_cross_entropy(h, w, labels, CrossEntropyOptions::default(), chunks)
        })(x)
    });
    let outputs: Vec<String> = text
        .outputs()
        .iter()
        .map(|&o| text.ty(o).to_string())
        .collect();
    assert_eq!(outputs, ["f32[]", "bf16[4,8,16]", "bf16[16,32]"]);
    let text = text.to_string();
    assert!(
        text.contains("f32[4,4,16]") && !text.contains("[4,8,32]"),
        "{text}"
    );
}

#[test]
fn other_losses_are_their_formulas() {
    let x = || [between(-3.0, 3.0, 1, &[4]), between(0.1, 0.9, 2, &[4])];
    let [a, b] = x().map(|a| a.floats());
    let mean =
        |f: &dyn Fn(f64, f64) -> f64| [a.iter().zip(&b).map(|(&a, &b)| f(a, b)).sum::<f64>() / 4.0];
    let bce = |x: f64, y: f64| {
        let p = 1.0 / (1.0 + (-x).exp());
        -y * p.ln() - (1.0 - y) * (1.0 - p).ln()
    };
    same(
        &floats(&x(), |[a, b]| nn::binary_cross_entropy(a, b, None)),
        &mean(&bce),
    );
    same(
        &floats(&x(), |[a, b]| nn::mse(a, b, None)),
        &mean(&|a, b| (a - b).powi(2)),
    );
    let huber = |a: f64, b: f64| match (a - b).abs() {
        d if d <= 0.7 => d * d / 2.0,
        d => 0.7 * (d - 0.35),
    };
    same(
        &floats(&x(), |[a, b]| nn::huber(a, b, None, 0.7)),
        &mean(&huber),
    );
    check(x(), |[a, b]| {
        (
            nn::binary_cross_entropy(a, b, None),
            nn::mse(a, b, None),
            nn::huber(a, b, None, 0.7),
        )
    });
    check_vmap(x(), |[a, b]| nn::binary_cross_entropy(a, b, None));
    let pairs = || [noise(1, &[2, 3]), noise(2, &[2, 3])];
    let kl = |[a, b]: [Tensor; 2]| nn::kl_div(a.log_softmax(-1), b.log_softmax(-1), None);
    let [a, b] = pairs().map(|a| a.floats());
    let soft = |x: &[f64]| -> Vec<f64> {
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        x.iter().map(|x| x.exp() / sum).collect()
    };
    let row = |i: usize| {
        let (q, p) = (soft(&a[3 * i..3 * i + 3]), soft(&b[3 * i..3 * i + 3]));
        p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum::<f64>()
    };
    same(&floats(&pairs(), kl), &[(row(0) + row(1)) / 2.0]);
    check(pairs(), kl);
}

#[test]
fn losses_at_the_ends() {
    let x = [
        Array::f64(&[4], [INF, -INF, INF, 800.0]),
        Array::f64(&[4], [1.0, 0.0, 0.0, 0.0]),
    ];
    let each = |i: usize| {
        floats(&x, |[x, y]| {
            nn::binary_cross_entropy(x.slice(0, i..=i), y.slice(0, i..=i), None)
        })[0]
    };
    same(&[0, 1, 2, 3].map(each), &[0.0, 0.0, INF, 800.0]);
    // Targets that are certain, predictions that are so too.
    let x = [
        Array::f64(&[2, 2], [0.0, -INF, -0.5, -1.0]),
        Array::f64(&[2, 2], [0.0, -INF, -INF, 0.0]),
    ];
    same(&floats(&x, |[q, p]| nn::kl_div(q, p, None)), &[0.5]);
    let slopes = gradient(&[-0.5, -1.0], |q| {
        nn::kl_div(q, Tensor::constant(&[0.0, -INF], [2]), None)
    });
    same(&slopes, &[-1.0, 0.0]);
    same(
        &gradient(&[1e200], |x| nn::huber(x, x.zeros_like(), None, 1.0)),
        &[1.0],
    );
}
