//! Activations and the softmax family.

use shardax_core::{DType, Tensor, grad, nn};

use super::{gradient, same};
use crate::interpreter::Array;
use crate::support::{assert_close, between, check, check_vmap, eval, floats, noise};

const INF: f64 = f64::INFINITY;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// An activation, and its formula.
type Activation = (&'static str, fn(Tensor) -> Tensor, fn(f64) -> f64);

const ACTIVATIONS: [Activation; 17] = [
    ("relu", |x| x.relu(), |x| x.max(0.0)),
    ("relu6", |x| x.relu6(), |x| x.clamp(0.0, 6.0)),
    ("leaky_relu", |x| x.leaky_relu(0.1), |x| x.max(0.1 * x)),
    (
        "elu",
        |x| x.elu(1.5),
        |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() },
    ),
    (
        "selu",
        |x| x.selu(),
        |x| {
            let (alpha, scale) = (1.6732632423543772, 1.0507009873554805);
            scale * if x > 0.0 { x } else { alpha * x.exp_m1() }
        },
    ),
    (
        "celu",
        |x| x.celu(2.0),
        |x| x.max(0.0) + (2.0 * (x / 2.0).exp_m1()).min(0.0),
    ),
    ("silu", |x| x.silu(), |x| x * sigmoid(x)),
    ("softplus", |x| x.softplus(), |x| x.exp().ln_1p()),
    ("log_sigmoid", |x| x.log_sigmoid(), |x| sigmoid(x).ln()),
    ("softsign", |x| x.softsign(), |x| x / (1.0 + x.abs())),
    ("mish", |x| x.mish(), |x| x * x.exp().ln_1p().tanh()),
    ("hard_tanh", |x| x.hard_tanh(), |x| x.clamp(-1.0, 1.0)),
    (
        "hard_sigmoid",
        |x| x.hard_sigmoid(),
        |x| (x + 3.0).clamp(0.0, 6.0) / 6.0,
    ),
    (
        "hard_swish",
        |x| x.hard_swish(),
        |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
    ),
    (
        "squareplus",
        |x| x.squareplus(4.0),
        |x| (x + (x * x + 4.0).sqrt()) / 2.0,
    ),
    ("squareplus of 0", |x| x.squareplus(0.0), |x| x.max(0.0)),
    (
        "gelu",
        |x| x.gelu(),
        |x| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        },
    ),
];

#[test]
fn activations_are_their_formulas() {
    // No kink of any of them is near.
    let x = [-7.5, -3.3, -2.6, -1.2, -0.4, 0.3, 1.7, 2.2, 5.0, 6.5];
    for (name, f, formula) in ACTIVATIONS {
        let input = [Array::f64(&[x.len()], x)];
        let wanted = Array::f64(&[x.len()], x.map(formula));
        assert_close(name, &eval(&input, |[x]| f(x)), &[wanted], 1e-13);
        check(input, |[x]| f(x));
        check_vmap([noise(1, &[3])], |[x]| f(x));
    }
}

#[test]
fn activations_keep_nan_and_have_their_limits() {
    let ends: [(&str, [f64; 2]); 17] = [
        ("relu", [0.0, INF]),
        ("relu6", [0.0, 6.0]),
        ("leaky_relu", [-INF, INF]),
        ("elu", [-1.5, INF]),
        ("selu", [-1.7580993408473766, INF]),
        ("celu", [-2.0, INF]),
        ("silu", [0.0, INF]),
        ("softplus", [0.0, INF]),
        ("log_sigmoid", [-INF, 0.0]),
        ("softsign", [-1.0, 1.0]),
        ("mish", [0.0, INF]),
        ("hard_tanh", [-1.0, 1.0]),
        ("hard_sigmoid", [0.0, 1.0]),
        ("hard_swish", [0.0, INF]),
        ("squareplus", [0.0, INF]),
        ("squareplus of 0", [0.0, INF]),
        ("gelu", [0.0, INF]),
    ];
    for ((name, f, _), (same_name, [low, high])) in ACTIVATIONS.into_iter().zip(ends) {
        assert_eq!(name, same_name);
        let x = [Array::f64(&[4], [-INF, INF, f64::NAN, -1e300])];
        let found = floats(&x, |[x]| f(x));
        println!("{name}");
        same(&found[..3], &[low, high, f64::NAN]);
        assert!(!found[3].is_nan(), "{name} {found:?}");
        let slopes = gradient(&[-1e300, -40.0, 0.0, 40.0, 1e300], f);
        assert!(slopes.iter().all(|s| s.is_finite()), "{name} {slopes:?}");
    }
}

#[test]
fn kinks_have_the_documented_derivatives() {
    same(&gradient(&[0.0], |x| x.relu()), &[0.0]);
    same(&gradient(&[0.0, 6.0], |x| x.relu6()), &[0.0, 0.0]);
    same(&gradient(&[0.0], |x| x.leaky_relu(0.1)), &[1.0]);
    same(&gradient(&[0.0], |x| x.elu(1.5)), &[1.5]);
    same(&gradient(&[0.0], |x| x.celu(3.0)), &[1.0]);
    same(&gradient(&[0.0], |x| x.softplus()), &[0.5]);
    same(&gradient(&[-1.0, 1.0], |x| x.hard_tanh()), &[1.0, 1.0]);
    same(&gradient(&[-3.0, 3.0], |x| x.hard_sigmoid()), &[0.0, 0.0]);
    // A function without a kink has its second derivative where its formula has one.
    let second = |f: fn(Tensor) -> Tensor| gradient(&[0.0], |x| grad(|x: Tensor| f(x).sum(..))(x));
    same(&second(|x| x.softplus()), &[0.25]);
    same(&second(|x| x.log_sigmoid()), &[-0.25]);
    same(&second(|x| x.squareplus(4.0)), &[0.25]);
}

#[test]
fn gated_units() {
    let halves = || [noise(1, &[2, 4])];
    let found = floats(&halves(), |[x]| x.glu(-1));
    let x = noise(1, &[2, 4]).floats();
    let wanted = [0, 1, 4, 5].map(|i| x[i] * sigmoid(x[i + 2]));
    same(&found, &wanted);
    check(halves(), |[x]| x.glu(0));
    check_vmap(halves(), |[x]| x.glu(1));
    let two = || [noise(1, &[3]), noise(2, &[3])];
    let (a, b) = (noise(1, &[3]).floats(), noise(2, &[3]).floats());
    let wanted: Vec<f64> = (0..3).map(|i| a[i] * sigmoid(a[i]) * b[i]).collect();
    same(&floats(&two(), |[x, y]| nn::swiglu(x, y)), &wanted);
    check(two(), |[x, y]| (nn::swiglu(x, y), nn::geglu(x, y)));
    check(
        [between(-2.0, 2.0, 3, &[4, 2]), noise(1, &[2])],
        |[x, a]| x.prelu(a),
    );
    check_vmap(two(), |[x, y]| (x.prelu(y), nn::geglu(x, y)));
}

#[test]
fn squareplus_does_not_cancel_or_overflow() {
    let x = [Array::f64(&[1], [-1e8])];
    same(&floats(&x, |[x]| x.squareplus(4.0)), &[1e-8]);
    let x = [Array::new(DType::F16, &[2], [300.0, -300.0])];
    let found = floats(&x, |[x]| x.squareplus(4.0));
    assert_eq!(found[0], 300.0);
    assert!((found[1] - 1.0 / 300.0).abs() < 1e-5, "{found:?}");
}

#[test]
fn softmax_over_several_dimensions_and_under_a_mask() {
    let x = || [noise(1, &[2, 3, 2])];
    let all = floats(&x(), |[x]| x.softmax([0, 2]).sum([0, 2]));
    same(&all, &[1.0; 3]);
    check(x(), |[x]| (x.softmax([0, 2]), x.log_softmax([-1, 0])));
    check(x(), |[x]| (x.logsumexp(..), x.logsumexp([1])));
    let mask = || Tensor::constant(&[true, false, true], [3]);
    let row = [Array::f64(&[3], [1.0, f64::NAN, 1.0])];
    same(
        &floats(&row, |[x]| x.softmax_where(mask(), -1)),
        &[0.5, 0.0, 0.5],
    );
    let slopes = gradient(&[1.0, f64::NAN, 3.0], |x| {
        x.softmax_where(mask(), -1).square()
    });
    assert!(slopes[1] == 0.0 && slopes[0].is_finite(), "{slopes:?}");
    check([noise(1, &[2, 3])], |[x]| x.softmax_where(mask(), -1));
    let nothing = || Tensor::constant(&[false; 3], [3]);
    same(
        &floats(&row, |[x]| x.softmax_where(nothing(), 0)),
        &[0.0; 3],
    );
    same(
        &gradient(&[1.0, 2.0, 3.0], |x| x.softmax_where(nothing(), 0)),
        &[0.0; 3],
    );
}

#[test]
fn rows_of_negative_infinity() {
    let row = || [Array::f64(&[2], [-INF, -INF])];
    same(&floats(&row(), |[x]| x.softmax(0)), &[0.0, 0.0]);
    same(&floats(&row(), |[x]| x.log_softmax(0)), &[-INF, -INF]);
    same(&floats(&row(), |[x]| x.logsumexp(0)), &[-INF]);
    same(&gradient(&[-INF, -INF], |x| x.logsumexp(0)), &[0.0, 0.0]);
    let again = |x: Tensor| grad(|x: Tensor| x.logsumexp(0))(x).square();
    same(&gradient(&[-INF, -INF], again), &[0.0, 0.0]);
    let of_softmax = gradient(&[-INF, -INF], |x| x.softmax(0).square());
    same(&of_softmax, &[0.0, 0.0]);
    let one = [Array::f64(&[3], [-INF, 0.0, -INF])];
    same(&floats(&one, |[x]| x.softmax(0)), &[0.0, 1.0, 0.0]);
    same(
        &gradient(&[-INF, 0.0, -INF], |x| x.logsumexp(0)),
        &[0.0, 1.0, 0.0],
    );
    // Of nothing at all.
    let empty = [Array::f64(&[2, 0], [])];
    same(&floats(&empty, |[x]| x.logsumexp(1)), &[-INF, -INF]);
    same(&floats(&empty, |[x]| x.softmax(1)), &[]);
    // NaN is not lost.
    let nan = [Array::f64(&[2], [f64::NAN, 1.0])];
    assert!(floats(&nan, |[x]| x.logsumexp(0))[0].is_nan());
}
