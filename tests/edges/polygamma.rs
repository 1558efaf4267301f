//! The polygamma function below zero, at its poles and at infinity.

use shardax::prelude::*;
use shardax::xla::Result;

/// `(-1)^n n!` times the sum of `1 / (x + k)^(n + 1)`, which is what the function loses on the way up by so many steps.
fn climbed(n: i32, x: f64, steps: usize) -> f64 {
    let terms = (0..steps).map(|k| (x + k as f64).powi(-n - 1));
    let factorial: f64 = (1..=n).map(f64::from).product();
    let sign = if n % 2 == 0 { 1.0 } else { -1.0 };
    sign * factorial * terms.sum::<f64>()
}

#[test]
fn below_zero_it_is_what_recurrence_makes_of_it() -> Result<()> {
    let below = [-60.3, -14.2, -6.860501439998652, -1.5, -0.25, -1e-3];
    let steps = |x: f64| (-x).ceil() as usize + 1;
    let above = below.map(|x| x + steps(x) as f64);
    for n in 1..=4 {
        let f = move |x: Tensor| Tensor::full(f64::from(n), x.dtype(), x.shape()).polygamma(x);
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 3e-4)] {
            let f = move |x: Tensor| f(x.cast(dtype)).cast(DType::F64);
            let at = |x: &[f64]| {
                jit(f)
                    .call(Array::from_slice(x, [x.len()])?)?
                    .to_vec::<f64>()
            };
            for ((x, found), high) in below.iter().zip(at(&below)?).zip(at(&above)?) {
                let wanted = high - climbed(n, *x, steps(*x));
                let is_near = (found - wanted).abs() <= tolerance * wanted.abs().max(high.abs());
                assert!(is_near, "order {n}, {dtype}, {x}: {found}, not {wanted}");
            }
        }
    }
    let second = |x: Tensor| grad(|x: Tensor| grad(|x: Tensor| x.lgamma())(x))(x);
    let found = jit(second)
        .call(Array::scalar(-6.860501439998652))?
        .item::<f64>()?;
    assert!((found - 54.67240751778826).abs() < 1e-11, "{found}");
    Ok(())
}

#[test]
fn at_poles_and_at_infinity() -> Result<()> {
    let x = Array::from_slice(&[f64::INFINITY, 0.0, -3.0, -1e30], [4])?;
    for dtype in [DType::F64, DType::F32] {
        let f = move |x: Tensor| {
            let x = x.cast(dtype);
            let of = |n: f64| {
                Tensor::full(n, x.dtype(), x.shape())
                    .polygamma(x)
                    .cast(DType::F64)
            };
            stack([of(0.0), of(1.0), of(2.0), of(3.0)], 0)
        };
        let found = jit(f).call(x.clone())?.to_vec::<f64>()?;
        assert_eq!(found[0], f64::INFINITY);
        assert_eq!([found[4], found[8], found[12]], [0.0; 3]);
        // Of odd orders both sides of a pole agree.
        for order in [1, 3] {
            assert_eq!(
                found[4 * order + 1..4 * order + 4],
                [f64::INFINITY; 3],
                "{dtype}"
            );
        }
        assert!(found[9..12].iter().all(|v| v.is_nan()), "{dtype} {found:?}");
    }
    Ok(())
}
