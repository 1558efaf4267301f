//! Functions of single elements: values, derivatives, and the conventions at their edges.

use std::f64::consts::{FRAC_PI_2, LN_2, PI};

use shardax_core::random::Key;
use shardax_core::{DType, Tensor, grad, hessian, jvp, value_and_grad, vjp, vmap};

use crate::interpreter::Array;
use crate::support::{between, check, check_vmap, eval, floats, graph, ints};

type Function = fn(Tensor) -> Tensor;

/// Every function of one number that has a derivative, and where it is tested.
const FUNCTIONS: &[(&str, Function, f64, f64)] = &[
    ("abs", |x| x.abs(), 0.1, 2.0),
    ("acos", |x| x.acos(), -0.9, 0.9),
    ("acosh", |x| x.acosh(), 1.1, 3.0),
    ("asin", |x| x.asin(), -0.9, 0.9),
    ("asinh", |x| x.asinh(), -3.0, 3.0),
    ("atan", |x| x.atan(), -3.0, 3.0),
    ("atanh", |x| x.atanh(), -0.9, 0.9),
    ("cbrt", |x| x.cbrt(), -3.0, -0.2),
    ("cos", |x| x.cos(), -3.0, 3.0),
    ("cosh", |x| x.cosh(), -2.0, 2.0),
    ("digamma", |x| x.digamma(), 0.3, 5.0),
    ("erf", |x| x.erf(), -2.0, 2.0),
    ("erf_inv", |x| x.erf_inv(), -0.9, 0.9),
    ("erfc", |x| x.erfc(), -2.0, 2.0),
    ("exp", |x| x.exp(), -2.0, 2.0),
    ("exp2", |x| x.exp2(), -2.0, 2.0),
    ("expm1", |x| x.expm1(), -2.0, 2.0),
    ("lgamma", |x| x.lgamma(), 0.3, 5.0),
    ("lgamma of negative numbers", |x| x.lgamma(), -1.9, -1.1),
    ("log", |x| x.log(), 0.2, 3.0),
    ("log10", |x| x.log10(), 0.2, 3.0),
    ("log1p", |x| x.log1p(), -0.8, 3.0),
    ("log2", |x| x.log2(), 0.2, 3.0),
    ("logit", |x| x.logit(), 0.1, 0.9),
    ("neg", |x| -x, -1.0, 1.0),
    (
        "polygamma",
        |x| Tensor::full(2, DType::F64, x.shape()).polygamma(x),
        0.5,
        4.0,
    ),
    ("recip", |x| x.recip(), 0.3, 2.0),
    ("rsqrt", |x| x.rsqrt(), 0.3, 2.0),
    ("sigmoid", |x| x.sigmoid(), -3.0, 3.0),
    ("sin", |x| x.sin(), -3.0, 3.0),
    ("sinc", |x| x.sinc(), -2.0, 2.0),
    ("sinc near 0", |x| x.sinc(), -0.03, 0.03),
    ("sinh", |x| x.sinh(), -2.0, 2.0),
    ("sqrt", |x| x.sqrt(), 0.3, 2.0),
    ("square", |x| x.square(), -2.0, 2.0),
    ("tan", |x| x.tan(), -1.2, 1.2),
    ("tanh", |x| x.tanh(), -2.0, 2.0),
    ("fract", |x| x.fract() * x, 0.1, 0.9),
    ("power 3", |x| x.pow(3), -2.0, 2.0),
    ("power 2", |x| x.pow(2), -2.0, 2.0),
    ("power 1", |x| x.pow(1), -2.0, 2.0),
    ("power 0", |x| x.pow(0) * x, -2.0, 2.0),
    ("power -1.5", |x| x.pow(-1.5), 0.3, 2.0),
];

#[test]
fn derivatives_of_one_operand() {
    for &(name, f, low, high) in FUNCTIONS {
        println!("{name}");
        check([between(low, high, 3, &[5])], |[x]| f(x));
        // A batch is of numbers in -1 to 1.
        let middle = (low + high) / 2.0;
        check_vmap([between(-1.0, 1.0, 4, &[3])], |[x]| {
            f(x * ((high - low) / 2.0) + middle)
        });
    }
}

#[test]
fn derivatives_of_two_operands() {
    type Pair = fn(Tensor, Tensor) -> Tensor;
    let functions: &[(&str, Pair)] = &[
        ("add", |x, y| x + y),
        ("atan2", |x, y| (x - 1.0).atan2(y - 1.3)),
        ("copysign", |x, y| x.copysign(y - 1.0)),
        ("div", |x, y| x / y),
        ("hypot", |x, y| (x - 1.0).hypot(y)),
        ("logaddexp", |x, y| (x * 3.0).logaddexp(y)),
        ("maximum", |x, y| x.maximum(y)),
        ("minimum", |x, y| x.minimum(y)),
        ("modulo", |x, y| (x * -7.0).modulo(y)),
        ("mul", |x, y| x * y),
        ("pow", |x, y| x.pow(y)),
        ("rem", |x, y| (x * -7.0) % y),
        ("rem_euclid", |x, y| (x * -7.0).rem_euclid(-y)),
        ("sub", |x, y| x - y),
    ];
    for (name, f) in functions {
        println!("{name}");
        let args = || [between(0.4, 2.0, 8, &[4]), between(0.5, 1.9, 9, &[4])];
        check(args(), |[x, y]| f(x, y));
        check_vmap(
            [between(-1.0, 1.0, 8, &[4]), between(-1.0, 1.0, 9, &[4])],
            |[x, y]| f(x + 1.5, y + 1.6),
        );
    }
}

/// `f` and its derivatives of first and second order at one number.
fn at(x: f64, f: impl Fn(Tensor) -> Tensor) -> [f64; 3] {
    let results = eval(&[Array::f64(&[], [x])], |[x]| {
        let (y, slope) = value_and_grad(&f)(x);
        (y, (slope, grad(grad(&f))(x)))
    });
    [0, 1, 2].map(|i| results[i].floats()[0])
}

#[test]
fn what_was_not_chosen_has_no_derivative() {
    // The branch that is not taken has an infinite slope or is not a number.
    let functions: &[(&str, Function)] = &[
        ("sqrt", |x| x.sqrt()),
        ("log", |x| x.log()),
        ("rsqrt", |x| x.rsqrt()),
        ("recip", |x| x.recip()),
        ("cbrt", |x| x.cbrt()),
        ("x log x", |x| x * x.log()),
        ("square of the quotient", |x| (1.0 / x) * (1.0 / x)),
        ("pow", |x| x.pow(0.5)),
        ("pow of a negative", |x| (x - 1.0).pow(0.5)),
        ("acos", |x| (x + 1.0).acos()),
        ("acosh", |x| (x + 1.0).acosh()),
        ("asin", |x| (x - 1.0).asin()),
        ("atanh", |x| (x - 1.0).atanh()),
        ("log1p", |x| (x - 1.0).log1p()),
        ("lgamma", |x| x.lgamma()),
        ("digamma", |x| x.digamma()),
        ("overflow", |x| (x + 1e3).exp()),
        ("logarithm of a negative", |x| (x - 1.0).log().sin()),
        ("chained", |x| x.sqrt().recip().exp().log1p()),
        ("atan2", |x| x.atan2(x)),
    ];
    for (name, f) in functions {
        let found = at(0.0, |x| x.lt(1.0).select(x, f(x)));
        assert_eq!(found, [0.0, 1.0, 0.0], "{name}");
        let twice = eval(&[Array::f64(&[], [0.0])], |[x]| {
            hessian(|x: Tensor| x.lt(1.0).select(x * x, f(x)))(x)
        });
        assert_eq!(twice[0].floats(), [2.0], "{name}, forward over reverse");
        let forward = eval(
            &[Array::f64(&[], [0.0]), Array::f64(&[], [1.0])],
            |[x, t]| jvp(|x: Tensor| x.lt(1.0).select(x, f(x)), x, t).1,
        );
        assert_eq!(forward[0].floats(), [1.0], "{name}, forward");
    }
}

#[test]
fn edges_have_the_mathematical_slope() {
    let infinity = f64::INFINITY;
    // A slope that is infinite stays so where something depends on it.
    assert_eq!(at(0.0, |x| x.sqrt())[1], infinity);
    assert_eq!(at(0.0, |x| x.cbrt())[1], infinity);
    assert_eq!(at(1.0, |x| x.asin())[1], infinity);
    assert_eq!(at(1.0, |x| x.acos())[1], -infinity);
    assert_eq!(at(1.0, |x| x.acosh())[1], infinity);
    assert_eq!(at(0.0, |x| x.abs()), [0.0, 0.0, 0.0]);
    assert_eq!(at(0.0, |x| x.sign()), [0.0, 0.0, 0.0]);
    assert_eq!(at(0.0, |x| x.maximum(0))[1], 0.5);
    assert_eq!(at(0.0, |x| x.atan2(0.0 * x))[1], 0.0);
    assert_eq!(at(0.0, |x| x.hypot(x))[1], 0.0);
    assert_eq!(at(0.0, |x| x.sinc())[..2], [1.0, 0.0]);
    assert!((at(0.0, |x| x.sinc())[2] + PI * PI / 3.0).abs() < 1e-12);
    // The square of a norm: its slope is 0 times infinity on the way.
    assert_eq!(at(0.0, |x| (x * x).sqrt().square())[1], 0.0);
    // A half power of a square: |x|.
    assert_eq!(at(0.0, |x| (x * x).pow(0.5))[1], 0.0);
    assert_eq!(at(0.0, |x| x.pow(0.0))[..2], [1.0, 0.0]);
    assert_eq!(at(0.0, |x| x.pow(1.0)), [0.0, 1.0, 0.0]);
    assert_eq!(at(0.0, |x| x.pow(2.0)), [0.0, 0.0, 2.0]);
    assert_eq!(at(-2.0, |x| x.pow(3.0)), [-8.0, 12.0, -12.0]);
    // Tangents of 0 stay 0.
    let zeros = [Array::f64(&[], [0.0]), Array::f64(&[], [0.0])];
    assert_eq!(
        floats(&zeros, |[x, t]| jvp(|x: Tensor| x.log(), x, t).1),
        [0.0]
    );
    // Slopes that are there are accurate near the edge.
    let near = 1.0 - 1e-12;
    let slope = at(near, |x| x.asin())[1];
    assert!(
        (slope * ((1.0 - near) * (1.0 + near)).sqrt() - 1.0).abs() < 1e-12,
        "{slope}"
    );
}

#[test]
fn powers_of_exponents_in_an_array() {
    let args = [
        Array::f64(&[3], [0.0; 3]),
        Array::f64(&[3], [0.0, 1.0, 2.0]),
    ];
    let gradient = eval(&args, |[x, y]| {
        grad(move |(x, y): (Tensor, Tensor)| x.pow(y).sum(..))((x, y))
    });
    assert_eq!(gradient[0].floats(), [0.0, 1.0, 0.0]);
    assert_eq!(gradient[1].floats(), [0.0, 0.0, 0.0]);
    let scalar = [Array::f64(&[], [0.0])];
    let sum = floats(&scalar, |[x]| {
        grad(|x: Tensor| x.pow(Tensor::constant(&[0.0f64, 1.0, 2.0], [3])).sum(..))(x)
    });
    assert_eq!(sum, [1.0]);
    let second = floats(&args, |[x, y]| {
        grad(|x: Tensor| grad(|x: Tensor| x.pow(y).sum(..))(x).sum(..))(x)
    });
    assert_eq!(second, [0.0, 0.0, 2.0]);
}

#[test]
fn known_factors_cost_no_guard() {
    let text = |f: fn(Tensor) -> Tensor| {
        graph([Array::f64(&[3], [0.0; 3]).ty], |[x]| {
            grad(|x: Tensor| f(x).sum(..))(x)
        })
        .to_string()
    };
    for plain in [text(|x| x * 3.0 / 7.0), text(|x| 2.0 * x - 1.0)] {
        assert!(!plain.contains("or_zero"), "{plain}");
    }
    let squared = text(|x| x.pow(2));
    assert!(
        !squared.contains("pow") || squared.matches("pow").count() == 1,
        "{squared}"
    );
}

#[test]
fn rounding_and_remainders() {
    let x = [Array::f64(&[7], [-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5])];
    assert_eq!(
        floats(&x, |[x]| x.round()),
        [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
    );
    assert_eq!(
        floats(&x, |[x]| x.round_even()),
        [-2.0, -2.0, 0.0, 0.0, 0.0, 2.0, 2.0]
    );
    assert_eq!(
        floats(&x, |[x]| x.trunc()),
        [-2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0]
    );
    assert_eq!(
        floats(&x, |[x]| x.ceil()),
        [-2.0, -1.0, 0.0, 0.0, 1.0, 2.0, 3.0]
    );
    assert_eq!(
        floats(&x, |[x]| x.fract()),
        [-0.5, -0.5, -0.5, 0.0, 0.5, 0.5, 0.5]
    );
    let pair = || {
        [
            Array::i32(&[4], [7, -7, 7, -7]),
            Array::i32(&[4], [3, 3, -3, -3]),
        ]
    };
    assert_eq!(ints(&pair(), |[x, y]| x % y), [1, -1, 1, -1]);
    assert_eq!(ints(&pair(), |[x, y]| x.rem_euclid(y)), [1, 2, 1, 2]);
    assert_eq!(ints(&pair(), |[x, y]| x.modulo(y)), [1, 2, -2, -1]);
    assert_eq!(ints(&pair(), |[x, y]| x.floor_div(y)), [2, -3, -3, 2]);
    let tenth = [Array::f64(&[2], [1.0, -1.0]), Array::f64(&[], [0.1])];
    assert_eq!(floats(&tenth, |[x, y]| x.floor_div(y)), [9.0, -10.0]);
}

#[test]
fn values_that_are_not_finite() {
    let x = || {
        [Array::f64(
            &[4],
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0],
        )]
    };
    assert_eq!(ints(&x(), |[x]| x.is_nan()), [1, 0, 0, 0]);
    assert_eq!(ints(&x(), |[x]| x.is_inf()), [0, 1, 1, 0]);
    assert_eq!(ints(&x(), |[x]| x.is_finite()), [0, 0, 0, 1]);
    let limits = floats(&x(), |[x]| x.nan_to_num());
    assert_eq!(limits, [0.0, f64::MAX, f64::MIN, 1.0]);
    let pairs = || {
        let infinite = [f64::NEG_INFINITY, f64::INFINITY, f64::NEG_INFINITY];
        [
            Array::f64(&[3], infinite),
            Array::f64(&[3], [f64::NEG_INFINITY, 1.0, 2.0]),
        ]
    };
    assert_eq!(
        floats(&pairs(), |[x, y]| x.logaddexp(y)),
        [f64::NEG_INFINITY, f64::INFINITY, 2.0]
    );
    assert_eq!(floats(&pairs(), |[x, y]| x.hypot(y)), [f64::INFINITY; 3]);
    let large = [Array::f64(&[], [3e300]), Array::f64(&[], [4e300])];
    assert_eq!(floats(&large, |[x, y]| x.hypot(y)), [5e300]);
    let zeros = [Array::f64(&[2], [2.0, 2.0]), Array::f64(&[2], [0.0, -0.0])];
    assert_eq!(floats(&zeros, |[x, sign]| x.copysign(sign)), [2.0, -2.0]);
}

#[test]
fn bits_of_integers() {
    let x = [Array::i32(&[4], [0, 1, -1, 40])];
    assert_eq!(ints(&x, |[x]| x.popcount()), [0, 1, 32, 2]);
    assert_eq!(ints(&x, |[x]| x.leading_zeros()), [32, 31, 0, 26]);
    assert_eq!(ints(&x, |[x]| x.shift_right_logical(28)), [0, 0, 15, 0]);
    assert_eq!(ints(&x, |[x]| x >> 1), [0, 0, -1, 20]);
    let bytes = [Array::new(DType::U8, &[2], [0i32, 129])];
    assert_eq!(ints(&bytes, |[x]| x.leading_zeros()), [8, 0]);
    let narrow = [Array::f64(&[3], [1.0 + 1.0 / 256.0, 1e-300, 70000.0])];
    let rounded = floats(&narrow, |[x]| x.reduce_precision(5, 7));
    assert_eq!(rounded, [1.0, 0.0, f64::INFINITY]);
}

#[test]
fn assignment_names_a_result_anew() {
    let x = [Array::f64(&[], [7.0])];
    let found = floats(&x, |[x]| {
        let mut y = x;
        y += 1;
        y *= 2.0;
        y -= x;
        y /= 3;
        y %= 2.0;
        y
    });
    assert_eq!(found, [1.0]);
    let bits = [Array::i32(&[], [6])];
    let found = ints(&bits, |[x]| {
        let mut y = x;
        y <<= 2;
        y |= 1;
        y &= 0x19;
        y ^= x;
        y >>= 1;
        y
    });
    assert_eq!(found, [15]);
}

#[test]
fn special_functions_have_known_values() {
    let x = [Array::f64(&[4], [1.0, 0.5, 2.0, 5.0])];
    let lgamma = floats(&x, |[x]| x.lgamma());
    for (found, exact) in lgamma.iter().zip([0.0, 0.5 * PI.ln(), 0.0, 24f64.ln()]) {
        assert!((found - exact).abs() < 1e-13, "{found} {exact}");
    }
    let euler = 0.577_215_664_901_532_9;
    let digamma = floats(&x, |[x]| x.digamma());
    for (found, exact) in digamma
        .iter()
        .zip([-euler, -euler - 2.0 * LN_2, 1.0 - euler])
    {
        assert!((found - exact).abs() < 1e-13, "{found} {exact}");
    }
    let trigamma = floats(&x, |[x]| Tensor::full(1, DType::F64, [4]).polygamma(x));
    for (found, exact) in trigamma.iter().zip([PI * PI / 6.0, PI * PI / 2.0]) {
        assert!((found - exact).abs() < 1e-13, "{found} {exact}");
    }
    let half = [Array::f64(&[2], [1.0, -1.0])];
    let angles = floats(&half, |[x]| x.atan2(0.0 * x));
    assert_eq!(angles, [FRAC_PI_2, -FRAC_PI_2]);
}

#[test]
fn rounding_at_random_is_right_on_average() {
    let value = 1.0 + 1.0 / 512.0;
    let x = Array::new(DType::F32, &[4096], [value; 4096]);
    let cast = |dtype: DType| {
        eval(std::array::from_ref(&x), move |[x]| {
            x.stochastic_cast(Key::from_seed(3), dtype).cast(DType::F32)
        })[0]
            .floats()
    };
    let rounded = cast(DType::BF16);
    assert!(rounded.iter().all(|&v| v == 1.0 || v == 1.0 + 1.0 / 128.0));
    let mean = rounded.iter().sum::<f64>() / 4096.0;
    // Four standard deviations.
    let error = 4.0 / 128.0 * (0.25f64 * 0.75 / 4096.0).sqrt();
    assert!((mean - value).abs() < error, "{mean}");
    assert!(cast(DType::F32).iter().all(|&v| v == value));
    let edges = [f64::INFINITY, -0.0, 1e5, 3e-5, -65504.0];
    let found = floats(&[Array::new(DType::F32, &[5], edges)], |[x]| {
        x.stochastic_cast(Key::from_seed(1), DType::F16)
            .cast(DType::F32)
    });
    assert_eq!(found[..3], [f64::INFINITY, 0.0, f64::INFINITY]);
    assert!((found[3] - 3e-5).abs() <= 2f64.powi(-24), "{found:?}");
    assert_eq!(found[4], -65504.0);
    let gradient = eval(&[Array::new(DType::F32, &[2], [1.1, -2.3])], |[x]| {
        let (_, pullback) = vjp(
            |x: Tensor| x.stochastic_cast(Key::from_seed(1), DType::BF16),
            x,
        );
        pullback(Tensor::full(0.5, DType::BF16, [2]))
    });
    assert_eq!(gradient[0].floats(), [0.5, 0.5]);
}

#[test]
fn a_batch_is_rounded_element_by_element() {
    let x = Array::new(DType::F32, &[3, 2], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
    let batched = eval(&[x], |[x]| {
        vmap(|x: Tensor| {
            x.stochastic_cast(Key::from_seed(1), DType::BF16)
                .cast(DType::F32)
        })(x)
    });
    let numbers = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
    for (found, x) in batched[0].floats().iter().zip(numbers) {
        assert!((found - x).abs() < x / 128.0, "{found} {x}");
    }
}
