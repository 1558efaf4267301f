//! Attention, plain and block by block, and rotary positions.

use shardax_core::nn::{self, AttentionOptions, BlockSizes, Rope, RopeScaling};
use shardax_core::{DType, Tensor, TensorType, grad, trace, value_and_grad};

use super::same;
use crate::interpreter::Array;
use crate::support::{assert_close, check, check_vmap, eval, floats, noise};

/// `[batch, queries, heads, kv_heads, keys]` and what is hidden: each head's softmax by its formula.
fn reference([q, k, v]: &[Array; 3], score: impl Fn([usize; 4], f64) -> Option<f64>) -> Vec<f64> {
    let [batch, queries, heads, features] = q.ty.shape[..] else {
        panic!("{q:?}")
    };
    let (keys, kv_heads) = (k.ty.shape[1], k.ty.shape[2]);
    let at = |x: &Array, i: [usize; 4]| x.at(&i).as_f64();
    let mut result = Vec::new();
    for b in 0..batch {
        for t in 0..queries {
            for h in 0..heads {
                let n = h / (heads / kv_heads);
                let scores: Vec<Option<f64>> = (0..keys)
                    .map(|s| {
                        let dot: f64 = (0..features)
                            .map(|f| at(q, [b, t, h, f]) * at(k, [b, s, n, f]))
                            .sum();
                        score([b, h, t, s], dot)
                    })
                    .collect();
                let weights = scores.iter().map(|s| s.map_or(0.0, f64::exp));
                let weights: Vec<f64> = weights.collect();
                let sum: f64 = weights.iter().sum();
                for f in 0..v.ty.shape[3] {
                    let mixed: f64 = (0..keys).map(|s| weights[s] * at(v, [b, s, n, f])).sum();
                    result.push(if sum == 0.0 { 0.0 } else { mixed / sum });
                }
            }
        }
    }
    result
}

fn inputs(queries: usize, keys: usize, heads: usize, kv_heads: usize) -> [Array; 3] {
    [
        noise(1, &[2, queries, heads, 2]),
        noise(2, &[2, keys, kv_heads, 2]),
        noise(3, &[2, keys, kv_heads, 3]),
    ]
}

const ROOT: f64 = std::f64::consts::FRAC_1_SQRT_2;

#[test]
fn is_the_formula_with_shared_heads() {
    for (heads, kv_heads) in [(2, 2), (4, 2), (3, 1)] {
        let x = inputs(3, 4, heads, kv_heads);
        let wanted = reference(&x, |_, dot| Some(dot * ROOT));
        let found = floats(&x, |[q, k, v]| {
            nn::attention(q, k, v, AttentionOptions::default())
        });
        same(&found, &wanted);
    }
    // Keys and values are not repeated.
    let types = [[1, 8, 6, 4], [1, 5, 2, 4], [1, 5, 2, 4]];
    let types = types.map(|shape| TensorType::new(DType::F32, shape));
    let program = crate::support::graph(types, |[q, k, v]| {
        nn::attention(q, k, v, AttentionOptions::default())
    });
    let text = program.to_string();
    assert!(
        !text.contains("[1,5,6,4]") && !text.contains("[1,5,2,3,4]"),
        "{text}"
    );
}

/// Options, and which pairs they let see each other.
type Seen = (AttentionOptions, fn(usize, usize) -> bool);

fn windows() -> [Seen; 6] {
    let options = AttentionOptions::default;
    let causal = AttentionOptions::causal;
    [
        (causal(), |t, s| s <= t),
        (
            AttentionOptions {
                window: (Some(1), None),
                ..causal()
            },
            |t, s| s <= t && s + 1 >= t,
        ),
        (
            AttentionOptions {
                window: (Some(0), Some(1)),
                ..options()
            },
            |t, s| s == t || s == t + 1,
        ),
        (
            AttentionOptions {
                window: (None, Some(1)),
                ..options()
            },
            |t, s| s <= t + 1,
        ),
        (
            AttentionOptions {
                query_offset: 2.into(),
                ..causal()
            },
            |t, s| s <= t + 2,
        ),
        // The first two queries see nothing.
        (
            AttentionOptions {
                query_offset: (-2).into(),
                ..causal()
            },
            |t, s| s + 2 <= t,
        ),
    ]
}

#[test]
fn causality_and_windows() {
    for (options, sees) in windows() {
        let x = inputs(4, 5, 2, 1);
        let wanted = reference(&x, |[_, _, t, s], dot| sees(t, s).then_some(dot * ROOT));
        let found = floats(&x, |[q, k, v]| nn::attention(q, k, v, options));
        same(&found, &wanted);
        check(inputs(3, 3, 2, 1), |[q, k, v]| {
            nn::attention(q, k, v, options)
        });
        for blocks in [[1, 1], [2, 3], [3, 2], [9, 9]] {
            let [queries, keys] = blocks;
            let blocks = BlockSizes { queries, keys };
            let found = floats(&x, |[q, k, v]| {
                nn::blockwise_attention(q, k, v, options, blocks)
            });
            same(&found, &wanted);
        }
    }
}

/// Everything at once, with what depends on tensors. The third query of the first example sees nothing.
fn everything(bias: Tensor) -> AttentionOptions {
    let mask = (0..2 * 4 * 5).map(|i| i % 7 != 3 && i / 5 != 2);
    let mask: Vec<bool> = mask.collect();
    AttentionOptions {
        causal: true,
        window: (Some(3), None),
        mask: Some(Tensor::constant(&mask, [2, 1, 4, 5])),
        bias: Some(bias),
        scale: Some(0.8),
        softcap: Some(1.5),
        query_offset: Tensor::constant(&[1i32, 0], [2]).into(),
        segments: Some((
            Tensor::constant(&[0i32, 0, 1, 1, 0, 0, 0, 0], [2, 4]),
            Tensor::constant(&[0i32, 0, 1, 1, 1, 0, 0, 0, 0, 0], [2, 5]),
        )),
    }
}

#[test]
fn all_options_together() {
    let [q, k, v] = inputs(4, 5, 4, 2);
    let bias = noise(4, &[4, 1, 5]);
    let segments = [[0, 0, 1, 1], [0; 4]];
    let of_keys = [[0, 0, 1, 1, 1], [0; 5]];
    let wanted = reference(&[q.clone(), k.clone(), v.clone()], |[b, h, t, s], dot| {
        let at = t + [1, 0][b];
        let i = (b * 4 + t) * 5 + s;
        let seen = s <= at && s + 3 >= at && i % 7 != 3 && i / 5 != 2;
        let seen = seen && segments[b][t] == of_keys[b][s];
        let score = 1.5 * (dot * 0.8 / 1.5).tanh() + bias.at(&[h, 0, s]).as_f64();
        seen.then_some(score)
    });
    let all = [q, k, v, bias];
    let plain = |[q, k, v, bias]: [Tensor; 4]| nn::attention(q, k, v, everything(bias));
    same(&floats(&all, plain), &wanted);
    assert_eq!(wanted[2 * 12..3 * 12], [0.0; 12], "a row that sees nothing");
    for [queries, keys] in [[2, 2], [3, 4], [4, 5]] {
        let blocks = BlockSizes { queries, keys };
        let blockwise = |[q, k, v, bias]: [Tensor; 4]| {
            nn::blockwise_attention(q, k, v, everything(bias), blocks)
        };
        same(&floats(&all, blockwise), &wanted);
        // First derivatives, and second ones in reverse mode.
        let loss = |f: &dyn Fn([Tensor; 4]) -> Tensor, x: [Tensor; 4]| {
            (f(x).sin() * noise_like(f(x))).sum(..)
        };
        let first = |f: &dyn Fn([Tensor; 4]) -> Tensor| {
            eval(&all, |x| value_and_grad(|x: [Tensor; 4]| loss(f, x))(x))
        };
        assert_close("gradient", &first(&blockwise), &first(&plain), 1e-12);
        let second = |f: &dyn Fn([Tensor; 4]) -> Tensor| {
            eval(&all, |x| {
                let gradient = grad(|x: [Tensor; 4]| loss(f, x));
                grad(|x: [Tensor; 4]| {
                    let parts = gradient(x).map(|g| (g.sin() * noise_like(g)).sum(..));
                    parts[0] + parts[1] + parts[2] + parts[3]
                })(x)
            })
        };
        assert_close(
            "second derivative",
            &second(&blockwise),
            &second(&plain),
            1e-11,
        );
    }
    check(all, plain);
}

fn noise_like(x: Tensor) -> Tensor {
    Tensor::constant(&noise(9, &x.shape()).floats(), x.shape())
}

#[test]
fn a_bias_in_every_shape_has_its_derivative() {
    let blocks = BlockSizes {
        queries: 2,
        keys: 3,
    };
    let shapes: [&[usize]; 6] = [&[], &[5], &[4, 1], &[2, 4, 5], &[2, 1, 1, 5], &[2, 2, 4, 5]];
    for shape in shapes {
        let [q, k, v] = inputs(4, 5, 2, 1);
        let all = [q, k, v, noise(4, shape)];
        let loss = |blockwise: bool| {
            eval(&all, |x| {
                grad(|[q, k, v, bias]: [Tensor; 4]| {
                    let options = AttentionOptions {
                        bias: Some(bias),
                        ..AttentionOptions::causal()
                    };
                    let y = match blockwise {
                        true => nn::blockwise_attention(q, k, v, options, blocks),
                        false => nn::attention(q, k, v, options),
                    };
                    (y * noise_like(y)).sum(..)
                })(x)
            })
        };
        assert_close(&format!("{shape:?}"), &loss(true), &loss(false), 1e-13);
    }
}

#[test]
fn a_row_that_sees_nothing_has_finite_derivatives() {
    let options = || AttentionOptions {
        mask: Some(Tensor::constant(&[false], [1])),
        ..AttentionOptions::default()
    };
    let blocks = BlockSizes {
        queries: 2,
        keys: 2,
    };
    for blockwise in [false, true] {
        let f = |[q, k, v]: [Tensor; 3]| match blockwise {
            true => nn::blockwise_attention(q, k, v, options(), blocks),
            false => nn::attention(q, k, v, options()),
        };
        let results = eval(&inputs(3, 3, 1, 1), |x| {
            value_and_grad(|x: [Tensor; 3]| (f(x) + 1.0).square().sum(..))(x)
        });
        assert_eq!(results[0].floats(), [18.0]);
        for gradient in &results[1..] {
            assert!(gradient.floats().iter().all(|&g| g == 0.0), "{gradient:?}");
        }
    }
    // Without any key at all, or any query.
    for (queries, keys) in [(2, 0), (0, 2), (0, 0)] {
        let x = inputs(queries, keys, 2, 1);
        let default = AttentionOptions::default;
        let plain = floats(&x, |[q, k, v]| nn::attention(q, k, v, default()));
        same(&plain, &vec![0.0; 2 * queries * 2 * 3]);
        let blockwise = floats(&x, |[q, k, v]| {
            nn::blockwise_attention(q, k, v, default(), blocks)
        });
        same(&blockwise, &plain);
    }
}

#[test]
fn goes_through_batches() {
    let blocks = BlockSizes {
        queries: 2,
        keys: 2,
    };
    let small = || {
        [
            noise(1, &[1, 3, 2, 2]),
            noise(2, &[1, 3, 1, 2]),
            noise(3, &[1, 3, 1, 2]),
        ]
    };
    check_vmap(small(), |[q, k, v]| {
        nn::attention(q, k, v, AttentionOptions::causal())
    });
    check_vmap(small(), |[q, k, v]| {
        nn::blockwise_attention(q, k, v, AttentionOptions::causal(), blocks)
    });
    check_vmap(small(), |[q, k, v]| {
        grad(|[q, k, v]: [Tensor; 3]| {
            let y = nn::blockwise_attention(q, k, v, AttentionOptions::causal(), blocks);
            y.square().sum(..)
        })([q, k, v])
    });
}

/// Decoding one position after the other is attention to the whole.
#[test]
fn decodes_from_a_cache() {
    let x = inputs(4, 4, 2, 1);
    let whole = floats(&x, |[q, k, v]| {
        nn::attention(q, k, v, AttentionOptions::causal())
    });
    let steps = floats(&x, |[q, k, v]| {
        let step = |at: usize| {
            let options = AttentionOptions {
                query_offset: Tensor::scalar(at as i64, DType::I32).into(),
                ..AttentionOptions::causal()
            };
            nn::attention(q.slice(1, at..at + 1), k, v, options)
        };
        shardax_core::concatenate([0, 1, 2, 3].map(step), 1)
    });
    same(&steps, &whole);
}

#[test]
fn causal_blocks_that_are_hidden_are_left_out() {
    let ty = TensorType::new(DType::F32, [1, 8, 1, 2]);
    let blocks = BlockSizes {
        queries: 2,
        keys: 2,
    };
    let pairs = |options: AttentionOptions| {
        let program = trace(
            |q: Tensor, k: Tensor, v: Tensor| nn::blockwise_attention(q, k, v, options, blocks),
            (ty.clone(), ty.clone(), ty.clone()),
        );
        let text = program.unwrap().graph.to_string();
        let found = [4, 7, 10, 16]
            .into_iter()
            .find(|n| text.contains(&format!("i32[{n}]")));
        found.unwrap_or_default()
    };
    assert_eq!(pairs(AttentionOptions::default()), 16);
    assert_eq!(pairs(AttentionOptions::causal()), 10);
    let local = AttentionOptions {
        window: (Some(1), None),
        ..AttentionOptions::causal()
    };
    assert_eq!(pairs(local), 7);
}

#[test]
fn blockwise_attention_has_no_forward_derivative() {
    let ty = TensorType::new(DType::F32, [1, 2, 1, 2]);
    let error = trace(
        |q: Tensor| {
            let f = |q: Tensor| {
                let blocks = BlockSizes::default();
                nn::blockwise_attention(q, q, q, AttentionOptions::default(), blocks)
            };
            shardax_core::jvp(f, q, q).1
        },
        ty,
    );
    let text = error.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(text.contains("has no forward derivative"), "{text}");
    assert!(text.contains(file!()), "{text}");
}

fn turned(rope: Rope, x: &Array, positions: &[f64]) -> Vec<f64> {
    let inputs = [
        x.clone(),
        Array::f64(&[positions.len()], positions.iter().copied()),
    ];
    floats(&inputs, |[x, p]| rope.apply(x, p))
}

#[test]
fn rotary_positions_in_both_conventions() {
    let x = noise(1, &[3, 2, 6]);
    let positions = [0.0, 1.0, 7.0];
    for interleaved in [false, true] {
        for dims in [6, 4] {
            let rope = Rope {
                base: 100.0,
                dims: Some(dims),
                interleaved,
                ..Rope::default()
            };
            let found = turned(rope, &x, &positions);
            let v = x.floats();
            let mut wanted = v.clone();
            for (row, of_row) in v.chunks(6).enumerate() {
                for pair in 0..dims / 2 {
                    let angle = positions[row / 2] * 100f64.powf(-2.0 * pair as f64 / dims as f64);
                    let (i, j) = match interleaved {
                        true => (2 * pair, 2 * pair + 1),
                        false => (pair, pair + dims / 2),
                    };
                    let (sin, cos) = angle.sin_cos();
                    wanted[row * 6 + i] = of_row[i] * cos - of_row[j] * sin;
                    wanted[row * 6 + j] = of_row[j] * cos + of_row[i] * sin;
                }
            }
            same(&found, &wanted);
            check([x.clone()], |[x]| {
                rope.apply(x, Tensor::arange(DType::I32, 3))
            });
        }
    }
    // Each sequence may have positions of its own.
    let both = [
        noise(1, &[2, 3, 1, 4]),
        Array::i32(&[2, 3], [0, 1, 2, 5, 6, 7]),
    ];
    let found = floats(&both, |[x, p]| Rope::default().apply(x, p));
    let second = floats(&both, |[x, p]| {
        Rope::default().apply(x.index(0, 1), p.index(0, 1))
    });
    same(&found[12..], &second);
    check_vmap(both, |[x, p]| Rope::default().apply(x, p));
}

/// The angles at position 1 of a head of 8 features, by turning (1, 0).
fn angles(scaling: RopeScaling, last: f64) -> Vec<f64> {
    let rope = Rope {
        scaling,
        ..Rope::default()
    };
    let x = Array::f64(&[2, 1, 8], [1., 1., 1., 1., 0., 0., 0., 0.].repeat(2));
    let y = turned(rope, &x, &[1.0, last]);
    (0..4).map(|i| y[i + 4].atan2(y[i])).collect()
}

#[test]
fn scalings_of_rotary_positions() {
    let plain: Vec<f64> = (0..4)
        .map(|i| 10_000f64.powf(-f64::from(i) / 4.0))
        .collect();
    same(&angles(RopeScaling::None, 5.0), &plain);
    let slower: Vec<f64> = plain.iter().map(|f| f / 4.0).collect();
    same(&angles(RopeScaling::Linear { factor: 4.0 }, 5.0), &slower);
    // The fastest pair stays, the slowest is interpolated.
    let ntk = angles(RopeScaling::Ntk { factor: 4.0 }, 5.0);
    same(&[ntk[0], ntk[3]], &[plain[0], plain[3] / 4.0]);
    // Within the original length nothing changes; at twice of it, the base is that of factor 2 * 2 - 1.
    let dynamic = RopeScaling::DynamicNtk {
        factor: 2.0,
        original_length: 8,
    };
    same(&angles(dynamic, 7.0), &plain);
    same(
        &angles(dynamic, 15.0),
        &angles(RopeScaling::Ntk { factor: 3.0 }, 5.0),
    );
    // Wavelengths are 6.3, 63, 628 and 6283.
    let llama = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_length: 1000,
    };
    let turns = 1000.0 * plain[2] / std::f64::consts::TAU;
    let smooth = (turns - 1.0) / 3.0;
    let mixed = (1.0 - smooth) * plain[2] / 8.0 + smooth * plain[2];
    same(
        &angles(llama, 5.0),
        &[plain[0], plain[1], mixed, plain[3] / 8.0],
    );
    let yarn = RopeScaling::Yarn {
        factor: 8.0,
        original_length: 1000,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
    };
    // Pairs 0 to ceil(8 ln(1000 / 2 pi) / (2 ln 10000)) = 3 are a ramp.
    let ramp = |i: usize| (i as f64 / 3.0) * plain[i] / 8.0 + (1.0 - i as f64 / 3.0) * plain[i];
    let wanted: Vec<f64> = (0..4).map(ramp).collect();
    same(&angles(yarn, 5.0), &wanted);
    // It also lengthens queries and keys.
    let rope = Rope {
        scaling: yarn,
        ..Rope::default()
    };
    let x = Array::f64(&[1, 1, 8], [1., 1., 1., 1., 0., 0., 0., 0.]);
    let length = turned(rope, &x, &[0.0])[0];
    assert!((length - (0.1 * 8f64.ln() + 1.0)).abs() < 1e-12);
}
