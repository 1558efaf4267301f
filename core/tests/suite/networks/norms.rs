//! Normalization.

use shardax_core::{DType, Tensor, nn};

use super::same;
use crate::interpreter::Array;
use crate::support::{check, check_vmap, eval, floats, noise};

/// `(x - mean) / sqrt(var + eps)`.
fn normalized(x: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter().map(|x| (x - mean) / (var + eps).sqrt()).collect()
}

#[test]
fn of_features() {
    let inputs = || [noise(1, &[2, 4]), noise(2, &[4]), noise(3, &[4])];
    let [x, scale, offset] = inputs().map(|a| a.floats());
    let wanted: Vec<f64> = x
        .chunks(4)
        .flat_map(|row| normalized(row, 1e-3))
        .enumerate()
        .map(|(i, y)| y * scale[i % 4] + offset[i % 4])
        .collect();
    let norm =
        |[x, scale, offset]: [Tensor; 3]| nn::layer_norm(x, Some(scale), Some(offset), -1, 1e-3);
    same(&floats(&inputs(), norm), &wanted);
    check(inputs(), norm);
    check_vmap(inputs(), norm);
    let wanted: Vec<f64> = x
        .chunks(4)
        .flat_map(|row| {
            let square = row.iter().map(|x| x * x).sum::<f64>() / 4.0;
            row.iter()
                .map(|x| x / (square + 1e-3).sqrt())
                .collect::<Vec<_>>()
        })
        .enumerate()
        .map(|(i, y)| y * scale[i % 4])
        .collect();
    let norm = |[x, scale, _]: [Tensor; 3]| nn::rms_norm(x, Some(scale), -1, 1e-3);
    same(&floats(&inputs(), norm), &wanted);
    check(inputs(), norm);
    // Over dimensions that are not the last, with parameters of their sizes.
    let inputs = || [noise(1, &[3, 2, 2]), noise(2, &[3, 2])];
    let moved = |[x, scale]: [Tensor; 2]| nn::layer_norm(x, Some(scale), None, [1, 0], 1e-5);
    let last = |[x, scale]: [Tensor; 2]| {
        let x = x.transpose([2, 0, 1]);
        nn::layer_norm(x, Some(scale), None, [-2, -1], 1e-5).transpose([1, 2, 0])
    };
    same(&floats(&inputs(), moved), &floats(&inputs(), last));
}

#[test]
fn of_channels() {
    let inputs = || [noise(1, &[3, 2, 4]), noise(2, &[2]), noise(3, &[2])];
    let norm =
        |[x, scale, offset]: [Tensor; 3]| nn::batch_norm(x, Some(scale), Some(offset), 1, 1e-3);
    let found = eval(&inputs(), norm);
    let [x, scale, offset] = inputs().map(|a| a.floats());
    for channel in 0..2 {
        let at = |i: usize| (i / 4 * 2 + channel) * 4 + i % 4;
        let own: Vec<f64> = (0..12).map(|i| x[at(i)]).collect();
        let normal = normalized(&own, 1e-3);
        let y = found[0].floats();
        for i in 0..12 {
            let wanted = normal[i] * scale[channel] + offset[channel];
            assert!((y[at(i)] - wanted).abs() < 1e-12);
        }
        let mean = own.iter().sum::<f64>() / 12.0;
        let var = own.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 12.0;
        same(
            &[found[1].floats()[channel], found[2].floats()[channel]],
            &[mean, var],
        );
    }
    check(inputs(), norm);
    check_vmap(inputs(), norm);
    // By its own statistics, inference gives the same.
    let again = floats(&inputs(), |[x, scale, offset]| {
        let (_, batch) = nn::batch_norm(x, None, None, 1, 1e-3);
        nn::batch_norm_inference(x, batch, Some(scale), Some(offset), 1, 1e-3)
    });
    same(&again, &found[0].floats());
    let running = eval(&[noise(1, &[2]), noise(2, &[2])], |[a, b]| {
        nn::running_statistics((a, b), (b, a), 0.75)
    });
    let (a, b) = (noise(1, &[2]).floats(), noise(2, &[2]).floats());
    let wanted: Vec<f64> = (0..2).map(|i| 0.75 * a[i] + 0.25 * b[i]).collect();
    same(&running[0].floats(), &wanted);
}

#[test]
fn of_groups() {
    let inputs = || [noise(1, &[2, 3, 4]), noise(2, &[4]), noise(3, &[4])];
    let norm =
        |[x, scale, offset]: [Tensor; 3]| nn::group_norm(x, Some(scale), Some(offset), 2, -1, 1e-3);
    let found = floats(&inputs(), norm);
    let [x, scale, offset] = inputs().map(|a| a.floats());
    for (example, group) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let at = |i: usize| example * 12 + i / 2 * 4 + group * 2 + i % 2;
        let own: Vec<f64> = (0..6).map(|i| x[at(i)]).collect();
        for (i, y) in normalized(&own, 1e-3).into_iter().enumerate() {
            let wanted = y * scale[at(i) % 4] + offset[at(i) % 4];
            assert!((found[at(i)] - wanted).abs() < 1e-12);
        }
    }
    check(inputs(), norm);
    let instance = |[x, ..]: [Tensor; 3]| nn::instance_norm(x, None, None, 2, 1e-5);
    let alone = |[x, ..]: [Tensor; 3]| nn::layer_norm(x, None, None, 1, 1e-5);
    same(&floats(&inputs(), instance), &floats(&inputs(), alone));
}

#[test]
fn equal_values_give_zero_with_finite_derivatives() {
    let x = || [Array::f64(&[1, 3], [2.0; 3])];
    let norms: [fn(Tensor) -> Tensor; 3] = [
        |x| nn::layer_norm(x, None, None, -1, 0.1),
        |x| nn::batch_norm(x, None, None, -1, 0.1).0,
        |x| nn::group_norm(x, None, None, 1, -1, 0.1),
    ];
    for norm in norms {
        same(&floats(&x(), |[x]| norm(x)), &[0.0; 3]);
        check(x(), |[x]| norm(x));
    }
    let zero = [Array::f64(&[3], [0.0; 3])];
    check(zero, |[x]| nn::rms_norm(x, None, 0, 0.1));
}

/// In bf16 the squares of 300 numbers near 100 would lose the variance.
#[test]
fn narrow_values_have_wide_statistics() {
    let x = (0..300).map(|i| 100.0 + f64::from(i % 2));
    let x = [Array::new(DType::BF16, &[300], x)];
    let found = floats(&x, |[x]| nn::layer_norm(x, None, None, -1, 0.0));
    same(&found[..2], &[-1.0, 1.0]);
}
