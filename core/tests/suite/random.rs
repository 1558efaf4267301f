//! Random numbers: the values of the reference generator, distributions, mistakes.

use shardax_core::random::Key;
use shardax_core::{DType, Tensor, TensorType, scan, trace};

use crate::interpreter::Array;
use crate::support::{close, eval, floats, ints};

const U32: DType = DType::U32;

fn key(seed: u64) -> Array {
    Array::new(U32, &[2], Key::seed_words(seed))
}

fn draw(seed: u64, f: impl Fn(Key) -> Tensor) -> Array {
    eval(&[key(seed)], |[words]| f(Key(words))).swap_remove(0)
}

/// Known answers of the generator's authors, for key words and counts of zeros, ones and pi.
#[test]
fn threefry_gives_its_known_answers() {
    // `fold_in` hashes (0, data) with the key.
    assert_eq!(
        draw(0, |k| k.fold_in(0).0).ints(),
        [0x6b20_0159, 0x99ba_4efe]
    );
    assert_eq!(Key::seed_words(0x1_0000_0007), [1, 7]);
}

#[test]
fn keys_equal_those_of_jax() {
    let halves = |k: Key| shardax_core::concatenate([k.split(3)[0].0, k.split(3)[2].0], 0);
    let expected = [1832780943, 270669613, 2465931498, 255383827];
    assert_eq!(draw(42, halves).ints(), expected);
    assert_eq!(
        draw(42, |k| k.fold_in(7).0).ints(),
        [2547012911, 1371500959]
    );
    assert_eq!(
        draw(42, |k| k.fold_in(u32::MAX).0).ints(),
        [2398536845, 3890976714]
    );
    let folded = |[words, data]: [Tensor; 2]| Key(words).fold_in(data).0;
    let seven = Array::new(DType::I64, &[], [7i64]);
    assert_eq!(ints(&[key(42), seven], folded), [2547012911, 1371500959]);
    assert_eq!(
        ints::<0>(&[], |[]| Key::from_seed(42).fold_in(7).0),
        [2547012911, 1371500959]
    );
}

#[test]
fn bits_equal_those_of_jax_in_every_shape() {
    let expected = [
        2098992034, 2919706841, 2646866425, 2409546199, 1935504149, 2516274904,
    ];
    assert_eq!(draw(42, |k| k.bits([6])).ints(), expected);
    assert_eq!(draw(42, |k| k.bits([2, 3])).ints(), expected);
    assert_eq!(draw(42, |k| k.bits([3, 1, 2])).ints(), expected);
    assert_eq!(draw(42, |k| k.bits([])).ints(), expected[..1]);
    assert_eq!(draw(42, |k| k.bits([0])).ints(), [0i64; 0]);
}

#[test]
fn numbers_equal_those_of_jax() {
    let near = |drawn: Array, expected: [f64; 6]| {
        let expected = Array::new(DType::F32, &[6], expected);
        assert!(close(&drawn, &expected, 1e-6), "{drawn:?}\n{expected:?}");
    };
    near(
        draw(42, |k| k.uniform(DType::F32, [6])),
        [
            0.488709569,
            0.679797173,
            0.616271496,
            0.561016083,
            0.450644612,
            0.585865855,
        ],
    );
    near(
        draw(42, |k| k.uniform_in(-1.0, 3.0, DType::F32, [6])),
        [
            0.954838276,
            1.71918869,
            1.46508598,
            1.24406433,
            0.802578449,
            1.34346342,
        ],
    );
    near(
        draw(42, |k| k.normal(DType::F32, [6])),
        [
            -0.028304616,
            0.467131853,
            0.295702964,
            0.153545916,
            -0.124032818,
            0.216923147,
        ],
    );
    near(
        draw(42, |k| k.truncated_normal(-2.0, 2.0, DType::F32, [6])),
        [
            -0.0270164981,
            0.44438082,
            0.281877071,
            0.146508053,
            -0.1183623,
            0.206907481,
        ],
    );
    near(
        draw(42, |k| k.gumbel(DType::F32, [6])),
        [
            0.334093392,
            0.952019453,
            0.725530565,
            0.54817152,
            0.226804957,
            0.626115918,
        ],
    );
    assert_eq!(
        draw(42, |k| k.randint(0, 10, [6])).ints(),
        [4, 4, 1, 9, 9, 9]
    );
    assert_eq!(
        draw(42, |k| k.randint(-5, 1000, [6])).ints(),
        [184, 514, 736, 539, 804, 979]
    );
    assert_eq!(
        draw(42, |k| k.bernoulli(0.3, [8])).ints(),
        [0, 0, 0, 0, 0, 0, 1, 0]
    );
}

#[test]
fn every_float_type_has_the_moments_of_its_distribution() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let moments = |drawn: Array| {
            assert_eq!(drawn.ty.dtype, dtype);
            let values = drawn.floats();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let square = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
            (mean, square - mean * mean, values)
        };
        let (mean, variance, values) = moments(draw(1, |k| k.uniform(dtype, [1000])));
        assert!(
            (mean - 0.5).abs() < 0.03 && (variance - 1.0 / 12.0).abs() < 0.01,
            "{dtype}"
        );
        assert!(values.iter().all(|v| (0.0..1.0).contains(v)), "{dtype}");
        let (mean, variance, _) = moments(draw(2, |k| k.normal(dtype, [1000])));
        assert!(
            mean.abs() < 0.1 && (variance - 1.0).abs() < 0.15,
            "{dtype} {mean} {variance}"
        );
        let (mean, variance, _) = moments(draw(3, |k| k.gumbel(dtype, [1000])));
        assert!(
            (mean - 0.577).abs() < 0.15 && (variance - 1.645).abs() < 0.3,
            "{dtype}"
        );
        let positive = |k: Key| k.truncated_normal(0.0, f64::INFINITY, dtype, [1000]);
        let (mean, variance, values) = moments(draw(4, positive));
        assert!(
            (mean - 0.798).abs() < 0.06 && (variance - 0.363).abs() < 0.06,
            "{dtype}"
        );
        assert!(values.iter().all(|&v| v >= 0.0), "{dtype}");
    }
}

#[test]
fn randint_covers_its_range_and_no_more() {
    let mut drawn = draw(5, |k| k.randint(-2, 3, [200])).ints();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn, [-2, -1, 0, 1, 2]);
    let widest = draw(6, |k| k.randint(i32::MIN, i32::MAX, [100])).ints();
    assert!(widest.iter().any(|&v| v > 1 << 30) && widest.iter().any(|&v| v < -(1 << 30)));
    assert_eq!(draw(7, |k| k.randint(3, 4, [3])).ints(), [3, 3, 3]);
}

#[test]
fn categorical_follows_its_logits() {
    let probabilities = [0.5f64, 0.3, 0.2];
    for (axis, shape) in [(-1isize, [2000, 3]), (0, [3, 2000])] {
        let drawn = draw(8, |k| {
            let logits = Tensor::constant(&probabilities.map(|p| p.ln() as f32), [3]);
            let logits = if axis == 0 {
                logits.reshape([3, 1])
            } else {
                logits
            };
            k.categorical(logits.broadcast_to(shape), axis)
        });
        assert_eq!(drawn.ty, TensorType::new(DType::I32, [2000]));
        for (class, p) in probabilities.iter().enumerate() {
            let count = drawn.ints().iter().filter(|&&c| c == class as i64).count();
            assert!(
                (count as f64 / 2000.0 - p).abs() < 0.05,
                "class {class}: {count}"
            );
        }
    }
}

#[test]
fn a_probability_broadcasts() {
    let p = Array::new(DType::F32, &[2, 1], [0.0, 1.0]);
    let drawn = ints(&[key(9), p], |[words, p]| Key(words).bernoulli(p, [2, 4]));
    assert_eq!(drawn, [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn erf_inv_inverts_erf_with_its_derivative() {
    let x = [
        -0.999_999_9,
        -0.99,
        -0.5,
        -1e-9,
        0.0,
        1e-3,
        0.7,
        0.997,
        0.999_999_999,
    ];
    let x = [Array::f64(&[9], x)];
    let there_and_back = floats(&x, |[x]| x.erf_inv().erf());
    for (back, x) in there_and_back.iter().zip(x[0].floats()) {
        // The interpreter's own error function is good to this.
        assert!((back - x).abs() < 2e-7, "{back} {x}");
    }
    let gradient = |[x]: [Tensor; 1]| shardax_core::grad(|x: Tensor| x.erf_inv().sum(..))(x);
    let slope = |[x]: [Tensor; 1]| x.erf_inv().square().exp() * (std::f64::consts::PI.sqrt() / 2.0);
    for (a, b) in floats(&x, gradient).iter().zip(floats(&x, slope)) {
        assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    }
    let ends = [Array::f64(&[3], [-1.0, 1.0, 1.5])];
    let values = floats(&ends, |[x]| x.erf_inv());
    assert_eq!(values[..2], [f64::NEG_INFINITY, f64::INFINITY]);
    assert!(values[2].is_nan());
    assert_eq!(floats(&ends, gradient)[..2], [f64::INFINITY; 2]);
}

type Draw = fn(Key) -> Tensor;

#[test]
fn mistakes_are_named() {
    let fails = |f: Draw, words: TensorType| match trace(f, Key(words)) {
        Ok(_) => panic!("no error"),
        Err(error) => {
            assert!(error.source_line.file().ends_with("random.rs"), "{error}");
            assert!(error.source_line.file().contains("suite"), "{error}");
            error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        }
    };
    let key = || TensorType::new(U32, [2]);
    let table: [(Draw, &str); 8] = [
        (
            |k| k.randint(3, 3, [2]),
            "`randint`: the range 3..3 is empty",
        ),
        (
            |k| k.uniform_in(0.0, f64::NAN, DType::F32, [2]),
            "`uniform_in`: the range 0..NaN is empty or infinite",
        ),
        (
            |k| k.truncated_normal(1.0, -1.0, DType::F32, [2]),
            "`truncated_normal`: the range 1..-1 is empty",
        ),
        (
            |k| k.bernoulli(1.5, [2]),
            "`bernoulli`: the probability 1.5 is not in 0..=1",
        ),
        (
            |k| k.normal(DType::I32, [2]),
            "`normal`: cannot be of element type i32",
        ),
        (
            |k| k.uniform(DType::F8E5M2, [2]),
            "`uniform`: cannot be of element type f8e5m2",
        ),
        (
            |k| k.fold_in(-1).0,
            "`fold_in`: -1 is not an integer from 0 to 2^32 - 1",
        ),
        (
            |k| k.fold_in(Tensor::scalar(1.0, DType::F32)).0,
            "`fold_in`: the data is f32[], not an integer scalar",
        ),
    ];
    for (f, message) in table {
        assert_eq!(fails(f, key()), message);
    }
    let wrong = fails(|k| k.bits([2]), TensorType::new(U32, [4]));
    assert_eq!(wrong, "`bits`: the key is u32[4], not u32[2]");
    let wrong = fails(|k| k.0.erf_inv(), key());
    assert_eq!(
        wrong,
        "`erf_inv`: takes a floating-point tensor, not u32[2]"
    );
}

/// Of `jax.random.key(1)`, but for the rounding of logarithms.
#[test]
fn distributions_by_rejection_equal_those_of_jax() {
    let alpha = [0.3, 1.0, 2.5, 0.01, 7.0, 1.5, 40.0, 0.7];
    let drawn = |f: fn(Key, Tensor) -> Tensor| {
        let alpha = Array::new(DType::F32, &[8], alpha);
        floats(&[key(1), alpha], |[words, alpha]| f(Key(words), alpha))
    };
    let near = |found: &[f64], expected: &[f64]| {
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() < 2e-5 * b.abs(), "{found:?}\n{expected:?}");
        }
    };
    let gamma = [
        1.6807743e-03,
        4.7469407e-01,
        4.4099135,
        1.5581563e-01,
        11.805102,
        1.0867431,
        37.05909,
        3.3486072e-02,
    ];
    near(&drawn(|k, a| k.gamma(a, DType::F32, [8])), &gamma);
    let log = [
        -6.3885007,
        -0.74508476,
        1.483855,
        -1.8590817,
        2.4685318,
        0.08318524,
        3.6125135,
        -3.3966258,
    ];
    near(&drawn(|k, a| k.loggamma(a, DType::F32, [8])), &log);
    let beta = [0.03379853, 0.07621749, 0.9058684];
    near(&drawn(|k, a| k.beta(a, 2.0, DType::F32, [8]))[..3], &beta);
    let points = drawn(|k, a| k.dirichlet(a, DType::F32, [2]));
    near(
        &points[..3],
        &[3.05447902e-05, 8.62664171e-03, 8.01415965e-02],
    );
    near(&points[8..10], &[1.62879599e-03, 8.57276749e-03]);
    near(
        &draw(1, |k| k.exponential(DType::F32, [3])).floats(),
        &[0.57737947, 0.7630396, 0.5904432],
    );
    let laplace = [0.13094613, -0.06989245, 0.11447223];
    near(&draw(1, |k| k.laplace(DType::F32, [3])).floats(), &laplace);
}

#[test]
fn orders_and_choices_equal_those_of_jax() {
    assert_eq!(
        draw(1, |k| k.permutation(10)).ints(),
        [7, 6, 3, 2, 0, 8, 1, 5, 9, 4]
    );
    assert_eq!(
        draw(1, |k| k.choice(9, [6], true)).ints(),
        [4, 2, 8, 8, 1, 1]
    );
    assert_eq!(
        draw(1, |k| k.choice(9, [2, 3], false)).ints(),
        [7, 6, 3, 2, 0, 8]
    );
    let weighted = |replace: bool| {
        draw(1, move |k| {
            let alpha = [0.3f32, 1.0, 2.5, 0.01, 7.0, 1.5, 40.0, 0.7];
            k.choice_weighted(Tensor::constant(&alpha, [8]) / 53.01, [6], replace)
        })
        .ints()
    };
    assert_eq!(weighted(true), [6, 6, 6, 6, 4, 6]);
    assert_eq!(weighted(false), [6, 4, 7, 2, 5, 1]);
    let shuffled = draw(1, |k| {
        k.shuffle(Tensor::iota(DType::I32, [2, 10], 1) * 2, 1)
    })
    .ints();
    assert_eq!(shuffled[10..], [14, 12, 6, 4, 0, 16, 2, 10, 18, 8]);
    assert_eq!(draw(1, |k| k.choice(0, [0], true)).ints(), []);
}

#[test]
fn integers_of_every_type_equal_those_of_jax() {
    let integers = |dtype: DType, low: i64, high: i64| {
        draw(1, move |k| {
            k.randint_as(dtype, low, high, [4]).cast(DType::I64)
        })
        .ints()
    };
    assert_eq!(integers(DType::U8, 0, 256), [252, 175, 224, 105]);
    assert_eq!(integers(DType::I8, -128, 128), [124, 47, 96, -23]);
    assert_eq!(integers(DType::I16, -300, 300), [-104, 227, 140, 53]);
    assert_eq!(integers(DType::U16, 3, 9), [7, 8, 5, 8]);
    let wide = [1733648129, 357486521, 956228325, 755481454];
    assert_eq!(integers(U32, 5, 2_000_000_000), wide);
    let wider = [
        34288286176949340,
        19423493698938477,
        8000695471858899,
        87902395201211261,
    ];
    assert_eq!(
        integers(DType::I64, -1_000_000_000_000_000, 100_000_000_000_000_000),
        wider
    );
    let large = [286176949340, 493698938477, 695471858899, 395201211261];
    assert_eq!(integers(DType::U64, 0, 1_000_000_000_000), large);
}

#[test]
fn keys_come_as_an_array() {
    let array = draw(3, |k| k.split_array(4).0);
    let each = draw(3, |k| {
        let words: Vec<Tensor> = k.split(4).into_iter().map(|k| k.0).collect();
        shardax_core::stack(words, 0)
    });
    assert_eq!(array, each);
}

#[test]
fn a_draw_has_no_derivative_by_its_parameters() {
    type Draw = fn(Key, Tensor) -> Tensor;
    let draws: [(&str, Draw); 8] = [
        ("bernoulli", |k, p| k.bernoulli(p, [2, 3]).cast(DType::F32)),
        ("categorical", |k, p| k.categorical(p, -1).cast(DType::F32)),
        ("choice_weighted", |k, p| {
            k.choice_weighted(p, [2], true).cast(DType::F32)
        }),
        ("choice_weighted", |k, p| {
            k.choice_weighted(p, [2], false).cast(DType::F32)
        }),
        ("gamma", |k, p| k.gamma(p, DType::F32, [2, 3])),
        ("loggamma", |k, p| k.loggamma(p, DType::F32, [2, 3])),
        ("beta", |k, p| k.beta(2.0, p, DType::F32, [2, 3])),
        ("dirichlet", |k, p| k.dirichlet(p, DType::F32, [2])),
    ];
    let ty = TensorType::new(DType::F32, [3]);
    for (name, draw) in draws {
        let loss = |p: Tensor| (draw(Key::from_seed(1), p) * p.sum(..)).sum(..);
        let forward = |p: Tensor| shardax_core::jvp(loss, p, p).1;
        let in_a_loop = |p: Tensor| {
            let step = |sum: Tensor, p: Tensor| (sum + loss(p), ());
            scan(p.sum(..), shardax_core::stack([p, p], 0), step).0
        };
        let programs = [
            trace(shardax_core::grad(loss), ty.clone()),
            trace(forward, ty.clone()),
            trace(shardax_core::grad(in_a_loop), ty.clone()),
        ];
        for program in programs {
            let error = program.err().map(|e| e.to_string()).unwrap_or_default();
            let expected =
                format!("`{name}`: a draw has no derivative by the parameters of its distribution");
            assert!(error.starts_with(&expected), "{name}: {error}");
            assert!(error.contains("core/tests/suite/random.rs"), "{error}");
            assert!(
                error.contains("put `.stop_gradient()` on the parameter"),
                "{error}"
            );
        }
        let fixed = |p: Tensor| (draw(Key::from_seed(1), p.stop_gradient()) * p.sum(..)).sum(..);
        let error = trace(shardax_core::grad(fixed), ty.clone()).err();
        assert_eq!(error, None, "{name}");
    }
    // Shifted and scaled, a draw has its derivative.
    let moved = |p: Tensor| (p + p * Key::from_seed(1).normal(DType::F32, [3])).sum(..);
    assert!(trace(shardax_core::grad(moved), ty).is_ok());
}
