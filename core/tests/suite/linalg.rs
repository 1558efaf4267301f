//! Factorizations of matrices and systems of equations.

use shardax_core::{DType, Tensor, TriangularSolve, grad};

use crate::interpreter::Array;
use crate::support::{assert_close, check, check_first, check_vmap, eval, floats, noise};

/// A symmetric positive definite matrix.
fn positive(x: Tensor) -> Tensor {
    x.matmul(x.swap_axes(-1, -2)) + eye(x.size(-1)) * 2.0
}

fn eye(size: usize) -> Tensor {
    let count = |axis| Tensor::iota(DType::I32, [size, size], axis);
    count(0).eq(count(1)).cast(DType::F64)
}

#[test]
fn cholesky_factors() {
    let x = || [noise(1, &[2, 3, 3])];
    let results = eval(&x(), |[x]| {
        let a = positive(x);
        let l = a.cholesky();
        (a, l.matmul(l.swap_axes(-1, -2)))
    });
    assert_close("l l^T", &results[..1], &results[1..], 1e-12);
    check(x(), |[x]: [Tensor; 1]| positive(x).cholesky());
    check_vmap([noise(1, &[3, 3])], |[x]| positive(x).cholesky());
    // Also of a matrix that is changed in one place alone.
    let a = Array::f64(&[2, 2], [4.0, 1.0, 1.0, 3.0]);
    check([a], |[a]: [Tensor; 1]| a.cholesky());
}

#[test]
fn triangular_systems() {
    for left in [true, false] {
        for (lower, transpose, unit_diagonal) in [
            (true, false, false),
            (true, true, false),
            (false, false, true),
            (false, true, false),
            (true, false, true),
            (false, true, true),
        ] {
            let solve = TriangularSolve {
                left,
                lower,
                transpose,
                unit_diagonal,
            };
            println!("{solve:?}");
            let b = if left { [2, 3, 2] } else { [2, 2, 3] };
            let args = || [noise(3, &[2, 3, 3]), noise(4, &b)];
            let f = |[a, b]: [Tensor; 2]| (a + eye(3) * 2.5).triangular_solve(b, solve);
            check(args(), f);
            check_vmap(args(), f);
        }
    }
}

#[test]
fn orthogonal_factors() {
    for shape in [&[3, 3][..], &[4, 2], &[2, 3, 2], &[2, 4], &[1, 1], &[3, 1]] {
        println!("{shape:?}");
        let x = || [noise(6, shape)];
        let results = eval(&x(), |[x]| {
            let (q, r) = x.qr();
            let unit = q.swap_axes(-1, -2).matmul(q);
            (
                (x, eye(unit.size(-1)).broadcast_to(unit.shape())),
                (q.matmul(r), (unit, r)),
            )
        });
        assert_close("q r", &results[..1], &results[2..3], 1e-13);
        assert_close("q^T q", &results[1..2], &results[3..4], 1e-13);
        let r = &results[4];
        let columns = r.ty.shape[r.ty.rank() - 1];
        let rows = r.ty.shape[r.ty.rank() - 2];
        for (i, v) in r.floats().iter().enumerate() {
            assert!(i / columns % rows <= i % columns || *v == 0.0, "{r:?}");
        }
        check_first(&x(), |[x]: [Tensor; 1]| x.qr());
        check_vmap(x(), |[x]| x.qr());
    }
    // Second derivatives go through the reflections themselves.
    check([noise(6, &[3, 2])], |[x]: [Tensor; 1]| x.qr());
    let zero = eval(&[Array::f64(&[2, 2], [0.0; 4])], |[x]| x.qr());
    assert_eq!(zero[0].floats(), [1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn systems_inverses_and_determinants() {
    let shifted = |a: Tensor| a + eye(3) * 1.5;
    let args = || [noise(8, &[2, 3, 3]), noise(9, &[3, 2])];
    let results = eval(&args(), |[a, b]| {
        let a = shifted(a);
        let x = a.solve(b);
        let unit = a.matmul(a.inv());
        (
            (b.broadcast_to([2, 3, 2]), eye(3).broadcast_to([2, 3, 3])),
            (a.matmul(x), unit),
        )
    });
    assert_close("a x", &results[..1], &results[2..3], 1e-12);
    assert_close("a a^-1", &results[1..2], &results[3..4], 1e-12);
    check(args(), |[a, b]: [Tensor; 2]| shifted(a).solve(b));
    check_vmap([noise(8, &[3, 3]), noise(9, &[3, 2])], |[a, b]| {
        (a + eye(3) * 3.0).solve(b)
    });
    check([noise(8, &[2, 3, 3])], |[a]: [Tensor; 1]| shifted(a).det());
    check(
        [noise(8, &[3, 3]), noise(2, &[3])],
        |[a, b]: [Tensor; 2]| shifted(a).solve(b),
    );
    let a = [Array::f64(
        &[2, 2, 2],
        [1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 1.0, 0.0],
    )];
    let det = floats(&a, |[a]| a.det());
    assert!(
        (det[0] + 2.0).abs() < 1e-14 && (det[1] + 1.0).abs() < 1e-14,
        "{det:?}"
    );
    let singular = [Array::f64(&[2, 2], [1.0, 2.0, 2.0, 4.0])];
    let (sign, log) = {
        let results = eval(&singular, |[a]| a.slogdet());
        (results[0].floats()[0], results[1].floats()[0])
    };
    assert!(log < -30.0, "{sign} {log}");
    let identity = floats(
        &[Array::f64(
            &[3, 3],
            [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        )],
        |[a]| a.det(),
    );
    assert_eq!(identity, [1.0]);
}

#[test]
fn near_orthogonal_matrices() {
    for shape in [[4, 6], [6, 4]] {
        let x = eval(&[noise(2, &shape)], |[x]| {
            let o = x.orthogonalize(5);
            let o = if o.size(0) < o.size(1) {
                o
            } else {
                o.swap_axes(0, 1)
            };
            o.matmul(o.swap_axes(0, 1))
        });
        for (i, v) in x[0].floats().into_iter().enumerate() {
            let exact = if i % 5 == 0 { 1.0 } else { 0.0 };
            assert!((v - exact).abs() < 0.55, "{i}: {v}");
        }
    }
    check_first(&[noise(2, &[2, 3])], |[x]: [Tensor; 1]| x.orthogonalize(2));
}

#[test]
fn products_and_traces() {
    let a = || [noise(1, &[2, 3]), noise(2, &[3, 2])];
    check(a(), |[a, b]: [Tensor; 2]| (a.outer(b), a.kron(b)));
    check([noise(1, &[2, 3, 3])], |[a]: [Tensor; 1]| a.trace());
    let pair = [
        Array::f64(&[2], [1.0, 2.0]),
        Array::f64(&[3], [1.0, 10.0, 100.0]),
    ];
    let kron = floats(&pair, |[a, b]| a.kron(b));
    assert_eq!(kron, [1.0, 10.0, 100.0, 2.0, 20.0, 200.0]);
    let trace = floats(&[Array::f64(&[2, 2], [1.0, 2.0, 3.0, 4.0])], |[a]| {
        grad(|a: Tensor| a.trace() * 2.0)(a)
    });
    assert_eq!(trace, [2.0, 0.0, 0.0, 2.0]);
}
