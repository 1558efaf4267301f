//! Sorting, running reductions, products, and reductions at their edges.

use shardax_core::{
    DType, Tensor, TensorType, associative_scan, grad, hessian, s, sort_by_key, trace,
};

use crate::interpreter::Array;
use crate::support::{between, check, check_first, check_vmap, eval, floats, ints, noise};

fn vector(values: &[f64]) -> Array {
    Array::f64(&[values.len()], values.iter().copied())
}

/// The gradient of the sum of `f`.
fn gradient(values: &[f64], f: fn(Tensor) -> Tensor) -> Vec<f64> {
    floats(&[vector(values)], |[x]| grad(|x: Tensor| f(x).sum(..))(x))
}

const INF: f64 = f64::INFINITY;

#[test]
fn sorts_put_nan_last_and_are_stable() {
    let x = || [vector(&[3., f64::NAN, -1., INF, 3., -INF])];
    let up = floats(&x(), |[x]| x.sort(0));
    assert_eq!(up[..5], [-INF, -1., 3., 3., INF]);
    assert!(up[5].is_nan());
    let down = floats(&x(), |[x]| x.sort_descending(0));
    assert!(down[0].is_nan());
    assert_eq!(down[1..], [INF, 3., 3., -1., -INF]);
    assert_eq!(ints(&x(), |[x]| x.argsort(0)), [5, 2, 0, 4, 3, 1]);
    assert_eq!(
        ints(&x(), |[x]| x.argsort_descending(-1)),
        [1, 3, 0, 4, 2, 5]
    );
    assert_eq!(ints(&x(), |[x]| x.top_k(3).1), [1, 3, 0]);
    let keys = Array::i32(&[4], [2, 1, 2, 1]);
    let by_two = eval(&[keys, vector(&[0., 3., -1., 2.])], |[k, x]| {
        sort_by_key([k, x], 2, 0)
    });
    assert_eq!(by_two[0].ints(), [1, 1, 2, 2]);
    assert_eq!(by_two[1].floats(), [2., 3., -1., 0.]);
    let columns = floats(&[Array::f64(&[2, 2], [3., 0., 1., 2.])], |[x]| x.sort(0));
    assert_eq!(columns, [1., 0., 3., 2.]);
}

#[test]
fn derivatives_move_with_the_sorted() {
    let x = || [noise(1, &[3, 5]), noise(2, &[3, 5])];
    check(x(), |[x, y]| (x * y).sort(1));
    check(x(), |[x, y]| x.square().sort_descending(0) * y);
    check(x(), |[x, y]| sort_by_key([x, y, x * y], 1, 1));
    check(x(), |[x, y]| x.top_k(2).0 * y.get(s![.., ..2]));
    check(x(), |[x, y]| (x * y).median(1) + (x * y).quantile(0.3, ..));
    check_vmap(x(), |[x, y]| {
        (
            x.sort(0),
            x.argsort(1),
            sort_by_key([x, y], 1, 0),
            x.top_k(2),
        )
    });
    check_vmap(x(), |[x, y]| grad(|x: Tensor| (x.sort(1) * y).sum(..))(x));
}

#[test]
fn the_hessian_through_a_sort() {
    // sum_i w_i sort(x)_i^3
    let values = [0.5, -1.0, 2.0];
    let hessian = floats(&[vector(&values)], |[x]| {
        let weights = Tensor::constant(&[1.0, 10.0, 100.0], [3]);
        hessian(|x: Tensor| (weights * x.sort(0).square() * x.sort(0)).sum(..))(x)
    });
    let second = |x: f64, w: f64| 6.0 * w * x;
    let wanted = [
        second(0.5, 10.),
        0.,
        0.,
        0.,
        second(-1.0, 1.),
        0.,
        0.,
        0.,
        second(2.0, 100.),
    ];
    assert_eq!(hessian, wanted);
}

#[test]
fn searches() {
    let sorted = || vector(&[1., 3., 3., 5.]);
    let values = || vector(&[0., 1., 3., 4., 5., 9., f64::NAN, -INF]);
    let left = ints(&[sorted(), values()], |[x, v]| x.searchsorted(v));
    assert_eq!(left, [0, 0, 1, 3, 3, 4, 4, 0]);
    let right = ints(&[sorted(), values()], |[x, v]| x.searchsorted_right(v));
    assert_eq!(right, [0, 1, 3, 3, 4, 4, 4, 0]);
    for count in 0..9 {
        let x = Array::i32(&[count], 0..count as i32);
        let found = ints(&[x], |[x]| {
            x.searchsorted(Tensor::arange(DType::I32, count + 1))
        });
        let wanted: Vec<i64> = (0..=count as i64).collect();
        assert_eq!(found, wanted);
    }
    assert_eq!(ints(&[sorted()], |[x]| x.searchsorted(3.0)), [1]);
    check_vmap([noise(1, &[4]), noise(2, &[2])], |[x, v]| {
        x.sort(0).searchsorted(v)
    });
}

#[test]
fn different_elements() {
    let x = || [vector(&[3., 1., 3., f64::NAN, 2., f64::NAN])];
    let found = eval(&x(), |[x]| {
        let unique = x.unique(5, -1.0);
        (unique.values, unique.counts, unique.inverse)
    });
    let values = found[0].floats();
    assert!(
        values[..3] == [1., 2., 3.] && values[3].is_nan() && values[4] == -1.0,
        "{values:?}"
    );
    assert_eq!(found[1].ints(), [1, 1, 2, 2, 0]);
    assert_eq!(found[2].ints(), [2, 0, 2, 3, 1, 3]);
    let few = eval(&x(), |[x]| (x.unique(2, 0).values, x.unique(2, 0).counts));
    assert_eq!(few[0].floats(), [1., 2.]);
    assert_eq!(few[1].ints(), [1, 1]);
    let none = Array::i32(&[0], []);
    assert_eq!(ints(&[none], |[x]| x.unique(2, 7).values), [7, 7]);
    check_vmap([Array::i32(&[2, 3], [4, 2, 4, 4, 1, 2])], |[x]| {
        x.unique(3, 0).values
    });
}

#[test]
fn counts() {
    let i = || [Array::i32(&[5], [1, 3, 1, -1, 0])];
    assert_eq!(ints(&i(), |[i]| i.bincount(3)), [1, 2, 0]);
    assert_eq!(ints(&i(), |[i]| i.count_nonzero(..)), [4]);
    let x = || [vector(&[0., 0.5, 1.0, 1.9, 2.0, 2.1, -0.1, f64::NAN])];
    assert_eq!(ints(&x(), |[x]| x.histogram(2, 0.0, 2.0)), [2, 3]);
}

#[test]
fn quantiles() {
    let x = || [vector(&[4., 1., 3., 2.])];
    assert_eq!(floats(&x(), |[x]| x.median(..)), [2.5]);
    assert_eq!(floats(&x(), |[x]| x.quantile(0.0, 0)), [1.]);
    assert_eq!(floats(&x(), |[x]| x.quantile(1.0, 0)), [4.]);
    assert_eq!(floats(&x(), |[x]| x.quantile(0.25, 0)), [1.75]);
    assert!(floats(&[vector(&[1., f64::NAN])], |[x]| x.median(0))[0].is_nan());
}

#[test]
fn running_reductions() {
    let x = || [vector(&[2., 0., 3., -1.])];
    let run = |f: fn(Tensor) -> Tensor| floats(&x(), |[x]| f(x));
    assert_eq!(run(|x| x.cumsum(0)), [2., 2., 5., 4.]);
    assert_eq!(run(|x| x.cumsum_reverse(0)), [4., 2., 2., -1.]);
    assert_eq!(run(|x| x.cumprod(0)), [2., 0., 0., 0.]);
    assert_eq!(run(|x| x.cumprod_reverse(0)), [0., 0., -3., -1.]);
    assert_eq!(run(|x| x.cummax(0)), [2., 2., 3., 3.]);
    assert_eq!(run(|x| x.cummax_reverse(0)), [3., 3., 3., -1.]);
    assert_eq!(run(|x| x.cummin(0)), [2., 0., 0., -1.]);
    assert_eq!(run(|x| x.cummin_reverse(0)), [-1., -1., -1., -1.]);
    let log_sums = run(|x| x.cumlogsumexp(0));
    let mut sum = 0.0;
    for (found, x) in log_sums.iter().zip([2f64, 0., 3., -1.]) {
        sum += x.exp();
        assert!((found - f64::ln(sum)).abs() < 1e-12, "{log_sums:?}");
    }
    assert_eq!(
        floats(&[vector(&[-INF, -1000., 0., INF])], |[x]| x.cumlogsumexp(0)),
        [-INF, -1000., 0., INF]
    );
}

#[test]
fn derivatives_of_running_reductions() {
    for shape in [[1, 2], [4, 2], [5, 1]] {
        let x = || [noise(1, &shape), noise(2, &shape)];
        check(x(), |[x, y]| ((x * y).cumsum(0), (x * y).cumsum_reverse(1)));
        check(x(), |[x, y]| {
            ((x * y).cumprod(0), (x * y).cumprod_reverse(0))
        });
        check(x(), |[x, y]| ((x * y).cummax(0), (x * y).cummax_reverse(0)));
        check(x(), |[x, y]| ((x * y).cummin(0), (x * y).cummin_reverse(1)));
        check(x(), |[x, y]| {
            ((x * y).cumlogsumexp(0), (x * y).cumlogsumexp_reverse(0))
        });
        check_vmap(x(), |[x, y]| {
            (
                x.cumsum(0),
                y.cumprod_reverse(1),
                x.cummax(0),
                (x + y).cumlogsumexp(0),
            )
        });
    }
    check_vmap([noise(1, &[3, 2])], |[x]| {
        grad(|x: Tensor| x.cumprod(0).sum(..))(x)
    });
}

#[test]
fn running_products_with_zeros_are_exact() {
    assert_eq!(gradient(&[0., 2., 3.], |x| x.cumprod(0)), [9., 0., 0.]);
    assert_eq!(
        gradient(&[2., 0., 3., 4.], |x| x.cumprod(0)),
        [1., 2. + 6. + 24., 0., 0.]
    );
    assert_eq!(
        gradient(&[2., 0., 3., 4.], |x| x.prod(0)),
        [0., 24., 0., 0.]
    );
    assert_eq!(gradient(&[2., 0., 3., 0.], |x| x.prod(0)), [0.; 4]);
    for values in [[2., 0., 3., 4.], [0., 0., 3., 4.], [0., 0., 0., 4.]] {
        check([vector(&values)], |[x]| {
            (x.prod(0), x.cumprod(0), x.cumprod_reverse(0))
        });
    }
    // Second derivatives with two zeros.
    let hessian = floats(&[vector(&[0., 0., 5.])], |[x]| {
        hessian(|x: Tensor| x.prod(..))(x)
    });
    assert_eq!(hessian, [0., 5., 0., 5., 0., 0., 0., 0., 0.]);
}

#[test]
fn products_over_dimensions() {
    let x = || [noise(1, &[3, 5, 2])];
    check(x(), |[x]| (x.prod(..), x.prod([0, 2]), x.prod(1)));
    check_vmap(x(), |[x]| (x.prod(1), grad(|x: Tensor| x.prod(..))(x)));
    assert_eq!(floats(&[Array::f64(&[0], [])], |[x]| x.prod(0)), [1.]);
    assert_eq!(gradient(&[], |x| x.prod(0)), [0.0; 0]);
    assert_eq!(
        ints(&[Array::i32(&[3], [2, -3, 4])], |[x]| x.prod(..)),
        [-24]
    );
    let equations = |f: fn(Tensor) -> Tensor| {
        let program = move |x: Tensor| grad(|x: Tensor| f(x).sum(..))(x);
        let traced = trace(program, TensorType::new(DType::F32, [1000]));
        traced
            .map(|t| t.graph.equations().len())
            .unwrap_or(usize::MAX)
    };
    assert!(
        equations(|x| x.prod(0)) < 120,
        "{}",
        equations(|x| x.prod(0))
    );
    assert!(
        equations(|x| x.cumprod(0)) < 200,
        "{}",
        equations(|x| x.cumprod(0))
    );
}

#[test]
fn equal_extrema_share_the_gradient() {
    let third = 1.0 / 3.0;
    assert_eq!(
        gradient(&[1., 2., 2., 2.], |x| x.max(0)),
        [0., third, third, third]
    );
    assert_eq!(
        gradient(&[2., 1., 2.], |x| x.cummax(0)),
        [1. + 1. + 0.5, 0., 0.5]
    );
    assert_eq!(gradient(&[2., 2., 1.], |x| x.cummin(0)), [1.5, 0.5, 1.]);
    assert_eq!(
        gradient(&[1., 2., 2.], |x| x.cummax_reverse(0)),
        [0., 1., 2.]
    );
}

#[test]
fn scans_with_a_function() {
    let affine = |(a, b): (Tensor, Tensor), (c, d): (Tensor, Tensor)| (a * c, b * c + d);
    for size in 0..8 {
        let x = [noise(1, &[2, size]), noise(2, &[2, size])];
        let (a, b) = (x[0].floats(), x[1].floats());
        for reverse in [false, true] {
            let found = eval(&x, |[a, b]| associative_scan(affine, (a, b), 1, reverse).1);
            let mut wanted = vec![0.0; 2 * size];
            for row in 0..2 {
                let mut state = 0.0;
                for i in 0..size {
                    let i = if reverse { size - 1 - i } else { i };
                    state = a[row * size + i] * state + b[row * size + i];
                    wanted[row * size + i] = state;
                }
            }
            let found = found[0].floats();
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(found.iter().zip(&wanted).all(near), "{found:?}\n{wanted:?}");
        }
    }
    check([noise(1, &[2, 5]), noise(2, &[2, 5])], |[a, b]| {
        associative_scan(affine, (a, b), 1, false).1
    });
    check_vmap([noise(1, &[2, 5]), noise(2, &[2, 5])], |[a, b]| {
        associative_scan(affine, (a, b), -1, true)
    });
}

#[test]
fn norms_and_deviations_have_gradient_0_at_0() {
    assert_eq!(gradient(&[0., 0.], |x| x.norm(0)), [0., 0.]);
    assert_eq!(gradient(&[0., 0.], |x| x.norm(0).square()), [0., 0.]);
    let unit = gradient(&[3., 4.], |x| x.norm(0));
    assert!((unit[0] - 0.6).abs() < 1e-15 && unit[1] == 0.8, "{unit:?}");
    assert_eq!(gradient(&[2., 2.], |x| x.std(0)), [0., 0.]);
    let x = || [vector(&[1., 2., 4., 9.])];
    assert_eq!(floats(&x(), |[x]| x.var(0)), [9.5]);
    assert_eq!(floats(&x(), |[x]| x.var_ddof(0, 2)), [19.]);
    assert_eq!(floats(&x(), |[x]| x.std_ddof(.., 2)), [19f64.sqrt()]);
    check([noise(1, &[3, 4])], |[x]| {
        (x.norm([0, 1]), x.std(0), x.var_ddof(1, 1))
    });
}

#[test]
fn sums_of_exponentials_with_weights() {
    let weighted = |x: &[f64], w: &[f64]| {
        eval(&[vector(x), vector(w)], |[x, w]| {
            let f = |(x, w): (Tensor, Tensor)| x.logsumexp_weighted(w, 0);
            (f((x, w)), grad(f)((x, w)))
        })
        .iter()
        .map(Array::floats)
        .collect::<Vec<_>>()
    };
    assert_eq!(
        weighted(&[-INF, -INF], &[1., 2.]),
        [vec![-INF], vec![0., 0.], vec![0., 0.]]
    );
    // Of nothing it has the slope of a logarithm at 0.
    assert_eq!(
        weighted(&[5., 1.], &[0., 0.]),
        [vec![-INF], vec![0., 0.], vec![INF, INF]]
    );
    let ones = weighted(&[0., 0., 0.], &[2., 0., 5.]);
    assert_eq!(ones[2], [1. / 7.; 3]);
    // What has no weight may be anything.
    let some = weighted(&[f64::NAN, 1000.], &[0., 1.]);
    assert_eq!(some[0], [1000.]);
    assert_eq!(some[1], [0., 1.]);
    check([noise(1, &[3, 4]), between(0.5, 2.0, 2, &[4])], |[x, w]| {
        x.logsumexp_weighted(w, 1)
    });
    check_vmap([noise(1, &[4]), between(0.5, 2.0, 2, &[4])], |[x, w]| {
        x.logsumexp_weighted(w.abs(), 0)
    });
}

#[test]
fn long_sums_of_narrow_floats_do_not_stall() {
    let ones = || [Array::new(DType::BF16, &[1000], vec![1.0; 1000])];
    assert_eq!(floats(&ones(), |[x]| x.sum(0)), [1000.]);
    assert_eq!(floats(&ones(), |[x]| x.mean(0)), [1.]);
    assert_eq!(floats(&ones(), |[x]| x.cumsum(0).get(s![-1])), [1000.]);
    assert_eq!(floats(&ones(), |[x]| x.var(0)), [0.]);
    assert_eq!(
        floats(&ones(), |[x]| x.norm(0).square()),
        [bf16_square_of_root(1000.0)]
    );
    let scattered = floats(&ones(), |[x]| {
        let zero = Tensor::zeros(DType::BF16, [1]);
        zero.scatter_add(Tensor::zeros(DType::I32, [1000]), x, 0)
    });
    assert_eq!(scattered, [1000.]);
    let steps = || [Array::new(DType::BF16, &[64], vec![1.0078125; 64])];
    let exact = 1.0078125f64.powi(64);
    let product = floats(&steps(), |[x]| x.prod(0))[0];
    assert!((product - exact).abs() / exact < 4e-3, "{product} {exact}");
    let gradient = floats(&ones(), |[x]| {
        grad(|x: Tensor| x.cumsum(0).cast(DType::F32).sum(..))(x).get(s![0])
    });
    assert_eq!(gradient, [1000.]);
}

fn bf16_square_of_root(x: f64) -> f64 {
    let round = |x: f64| half::bf16::from_f64(x).to_f64();
    round(round(x.sqrt()).powi(2))
}

#[test]
fn reductions_of_nothing_and_of_nan() {
    let none = || [Array::f64(&[0], [])];
    assert_eq!(floats(&none(), |[x]| x.sum(0)), [0.]);
    assert_eq!(floats(&none(), |[x]| x.max(0)), [-INF]);
    assert_eq!(floats(&none(), |[x]| x.cumsum(0)), [0.0; 0]);
    assert_eq!(floats(&none(), |[x]| x.cumlogsumexp(0)), [0.0; 0]);
    check_first(&none(), |[x]| {
        (x.cumprod(0), x.cummax(0), x.sort(0), x.cumlogsumexp(0))
    });
}
