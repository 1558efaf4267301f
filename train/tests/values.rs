//! What optimizers, clipping and precision compute, against their formulas in f64.

#[path = "../../nn/tests/numbers/mod.rs"]
mod numbers;

use numbers::{array, assert_close, numbers};
use shardax_core::{DType, Path, Tensor, tree_combine, value_and_grad};
use shardax_train::{AdamW, Decay, Moments, Precision, Schedule, clip_by_global_norm};
use shardax_xla::{Array, jit};

#[test]
fn adamw_is_its_formula_and_decays_what_it_should() {
    let adam = AdamW {
        lr: 0.1,
        weight_decay: 0.5,
        ..AdamW::default()
    };
    let (weight, bias) = (numbers(6, 8), numbers(3, 9));
    let gradients: Vec<_> = (0..3)
        .map(|i| (numbers(6, 10 + i), numbers(3, 20 + i)))
        .collect();
    let step = move |p: (Tensor, Tensor),
                     g: (Tensor, Tensor),
                     m: Moments<(Tensor, Tensor)>,
                     t: Tensor| { adam.update(p, g, m, t) };
    let step = jit(step);
    let pair = |w: &[f32], b: &[f32]| (array(w, &[2, 3]), array(b, &[3]));
    let zeros = || pair(&[0.0; 6], &[0.0; 3]);
    let mut parameters = pair(&weight, &bias);
    let mut moments = Moments {
        first: zeros(),
        second: zeros(),
    };
    for (t, (w, b)) in gradients.iter().enumerate() {
        let t = Array::scalar(t as i32);
        (parameters, moments) = step.call((parameters, pair(w, b), moments, t)).unwrap();
    }
    let expected = |start: &[f32], gradients: Vec<&Vec<f32>>, decay: f64| {
        let element = |i: usize| {
            let (mut p, mut m, mut v) = (f64::from(start[i]), 0.0, 0.0);
            for (t, g) in gradients.iter().enumerate() {
                let (g, t) = (f64::from(g[i]), t as i32 + 1);
                m = 0.9 * m + 0.1 * g;
                v = 0.95 * v + 0.05 * g * g;
                let (m, v) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.95f64.powi(t)));
                p -= 0.1 * (m / (v.sqrt() + 1e-8) + decay * p);
            }
            p
        };
        (0..start.len()).map(element).collect::<Vec<f64>>()
    };
    assert_close(
        &parameters.0,
        &expected(&weight, gradients.iter().map(|g| &g.0).collect(), 0.5),
        1e-5,
    );
    assert_close(
        &parameters.1,
        &expected(&bias, gradients.iter().map(|g| &g.1).collect(), 0.0),
        1e-5,
    );
}

#[test]
fn gradients_are_clipped_only_above_the_bound() {
    let clip = jit(|g: (Tensor, Tensor)| clip_by_global_norm(g, 1.0));
    let (large, norm) = clip
        .call((array(&[3.0, 0.0], &[2]), array(&[4.0], &[1])))
        .unwrap();
    assert_close(&norm, &[5.0], 1e-6);
    assert_close(&large.0, &[0.6, 0.0], 1e-6);
    assert_close(&large.1, &[0.8], 1e-6);
    let (small, norm) = clip
        .call((array(&[0.3, 0.0], &[2]), array(&[0.4], &[1])))
        .unwrap();
    assert_close(&norm, &[0.5], 1e-6);
    assert_close(&small.0, &[0.3, 0.0], 1e-7);
}

#[test]
fn mixed_precision_keeps_gradients_in_f32() {
    let gradient = jit(|w: Tensor, x: Tensor| {
        let loss = |w: Tensor| {
            let w = Precision::BF16.cast(w);
            assert_eq!(w.dtype(), DType::BF16);
            (w * x.cast(DType::BF16)).sum(..).cast(DType::F32)
        };
        value_and_grad(loss)(w).1
    });
    let gradient = gradient
        .call((array(&[1.0, 2.0], &[2]), array(&[0.5, -2.0], &[2])))
        .unwrap();
    assert_eq!(gradient.dtype(), DType::F32);
    assert_close(&gradient, &[0.5, -2.0], 0.0);
}

#[test]
fn the_decay_predicate_sees_the_path() {
    let adam = AdamW {
        decays: |path: &Path, _| path.to_string() == "1",
        lr: 1.0,
        weight_decay: 0.25,
        ..AdamW::default()
    };
    let step = jit(move |p: (Tensor, Tensor), t: Tensor| {
        let zero = (p.0.zeros_like(), p.1.zeros_like());
        adam.update(p, zero, adam.init(&p), t).0
    });
    let parameters = (Array::scalar(8f32), Array::scalar(8f32));
    let (kept, decayed) = step.call((parameters, Array::scalar(0_i32))).unwrap();
    assert_close(&kept, &[8.0], 0.0);
    assert_close(&decayed, &[6.0], 1e-6);
}

#[test]
fn a_schedule_is_its_formula_and_sets_the_rate_of_an_update() {
    let steps = [0i32, 3, 9, 10, 55, 109, 110, 1000, 20_000_000];
    for decay in [
        Decay::None,
        Decay::Linear { end: 0.1 },
        Decay::Cosine { end: 0.2 },
    ] {
        let schedule = Schedule {
            peak: 0.5,
            warmup: 10,
            steps: 110,
            decay,
        };
        let rates = jit(move |step: Tensor| schedule.at(step));
        let rates = rates.call(array_of(&steps)).unwrap();
        let expected = steps.map(|t| {
            let t = f64::from(t);
            let passed = ((t - 10.0) / 100.0).clamp(0.0, 1.0);
            let left = match decay {
                Decay::None => 1.0,
                Decay::Linear { end } => 1.0 - (1.0 - end) * passed,
                Decay::Cosine { end } => {
                    end + (1.0 - end) * (1.0 + (std::f64::consts::PI * passed).cos()) / 2.0
                }
            };
            0.5 * ((t + 1.0) / 10.0).min(1.0) * left
        });
        assert_close(&rates, &expected, 1e-6);
    }
    let (weight, gradient) = (numbers(6, 1), numbers(6, 2));
    let update = |scheduled: bool| {
        let adam = AdamW {
            lr: 0.25,
            ..AdamW::default()
        };
        let step = move |p: Tensor, g: Tensor, t: Tensor| match scheduled {
            true => {
                adam.update_at(t.cast(DType::F32) * 0.25, p, g, adam.init(&p), t)
                    .0
            }
            false => adam.update(p, g, adam.init(&p), t).0,
        };
        let arrays = (
            array(&weight, &[2, 3]),
            array(&gradient, &[2, 3]),
            Array::scalar(1i32),
        );
        jit(step).call(arrays).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(update(true), update(false));
}

fn array_of(values: &[i32]) -> Array {
    Array::from_slice(values, [values.len()]).unwrap()
}

#[test]
fn trees_are_combined_leaf_by_leaf() {
    let f = |p: (Tensor, Vec<Tensor>), g: (Tensor, Vec<Tensor>)| {
        tree_combine([&p, &g, &p], |[p, g, q]| p - g * 2.0 + q)
    };
    let tree = |by: f32| {
        (
            Array::scalar(by),
            vec![Array::scalar(by * 2.0), Array::scalar(by * 3.0)],
        )
    };
    let (a, b) = jit(f).call((tree(1.0), tree(10.0))).unwrap();
    let found = [&a, &b[0], &b[1]].map(|x| x.item::<f32>().unwrap());
    assert_eq!(found, [-18.0, -36.0, -54.0]);
    let (one, two) = (tree(1.0), (Array::scalar(1f32), vec![Array::scalar(1f32)]));
    let error = jit(f).call((one, two)).unwrap_err().to_string();
    assert!(
        error.contains("tree 1 has another structure than tree 0 (number of leaves: 2 and 3)"),
        "{error}"
    );
    assert!(error.contains("values.rs"), "{error}");
}
