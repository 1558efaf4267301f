//! Choices and loops with a condition: values, derivatives, and what is kept of them.

use shardax_core::{
    DType, Tensor, TensorType, cond, fori_loop, grad, jacfwd, jvp, scan, scan_unrolled, switch,
    value_and_grad, while_loop,
};

use crate::interpreter::Array;
use crate::support::{assert_close, check, check_first, eval, floats, graph, ints, noise};

fn truth(value: bool) -> Array {
    Array::new(DType::Bool, &[], [value])
}

#[test]
fn a_choice_computes_its_branch() {
    let f = |[p, x]: [Tensor; 2]| cond(p, x, |x: Tensor| x * 2.0, |x: Tensor| x.sin());
    let x = Array::f64(&[2], [1.0, 3.0]);
    assert_eq!(floats(&[truth(true), x.clone()], f), [2.0, 6.0]);
    assert_eq!(floats(&[truth(false), x], f), [1f64.sin(), 3f64.sin()]);
}

#[test]
fn a_switch_takes_the_nearest_branch() {
    let branches: [fn(Tensor) -> Tensor; 3] = [|x| x, |x| x * 10, |x| x * 100];
    for (index, wanted) in [(0, 1), (1, 10), (2, 100), (-7, 1), (9, 100)] {
        let index = Array::i32(&[], [index]);
        let x = Array::i32(&[], [1]);
        assert_eq!(ints(&[index, x], |[i, x]| switch(i, x, branches)), [wanted]);
    }
    // An index that would wrap around in i32.
    let wide = Array::new(DType::I64, &[], [1i64 << 32]);
    let x = Array::i32(&[], [1]);
    assert_eq!(ints(&[wide, x], |[i, x]| switch(i, x, branches)), [100]);
}

#[test]
fn choices_differentiate() {
    for chosen in [true, false] {
        let inputs = || [noise(1, &[3]), noise(2, &[3, 3])];
        // Branches keep different values, and one captures.
        check(inputs(), |[x, w]| {
            let p = Tensor::scalar(chosen, DType::Bool);
            cond(
                p,
                x,
                |x: Tensor| x.dot(w).sin() * x.exp(),
                |x: Tensor| (x * 0.5).tanh(),
            )
        });
        // One branch does not depend on the argument at all.
        check(inputs(), |[x, w]| {
            let p = Tensor::scalar(chosen, DType::Bool);
            let (a, b) = cond(
                p,
                (x, w),
                |(x, w): (Tensor, Tensor)| (x.dot(w), x * 2.0),
                |(x, _): (Tensor, Tensor)| (Tensor::ones(DType::F64, [3]), x),
            );
            a * b
        });
        // The predicate depends on the argument.
        check(inputs(), |[x, w]| {
            let p = x.sum(..).gt(if chosen { -100.0 } else { 100.0 });
            cond(p, x, |x: Tensor| x.dot(w).sin(), |x: Tensor| x * x)
        });
    }
}

#[test]
fn a_choice_in_a_loop_differentiates() {
    check([noise(1, &[3]), noise(2, &[4, 3])], |[h, xs]| {
        scan(h, xs, |h: Tensor, x: Tensor| {
            let next = cond(
                x.sum(..).gt(0.0),
                (h, x),
                |(h, x): (Tensor, Tensor)| (h * x).sin(),
                |(h, x): (Tensor, Tensor)| h.exp() * 0.1 + x,
            );
            (next, next.sum(..))
        })
    });
}

#[test]
fn a_choice_keeps_what_one_branch_needs() {
    // Both branches keep one value of the same type: they share its place.
    let graph = graph(
        [
            TensorType::new(DType::Bool, []),
            TensorType::new(DType::F64, [8]),
        ],
        |[p, x]| {
            grad(|x: Tensor| {
                cond(
                    p,
                    x,
                    |x: Tensor| x.sin().sum(..),
                    |x: Tensor| x.exp().sum(..),
                )
            })(x)
        },
    );
    insta::assert_snapshot!(graph, @"
    (a: bool[], b: f64[8]) {
      c = convert a : i32[]
      d = cond c b : f64[8] branch (a: f64[8]) {
        b = exp a : f64[8]
        return b
      } branch (a: f64[8]) {
        b = cos a : f64[8]
        return b
      }
      e = constant 1.0 : f64[]
      f = cond c d e : f64[8] branch (a: f64[8], b: f64[]) {
        c = broadcast b dims=[] : f64[8]
        d = mul_or_zero c a : f64[8]
        return d
      } branch (a: f64[8], b: f64[]) {
        c = broadcast b dims=[] : f64[8]
        d = mul_or_zero c a : f64[8]
        return d
      }
      return f
    }
    ");
}

#[test]
fn a_while_loop_runs_until_its_condition_is_false() {
    let halves = |[x]: [Tensor; 1]| {
        while_loop(
            (x, Tensor::scalar(0, DType::I32)),
            |(x, _): (Tensor, Tensor)| x.gt(1.0),
            |(x, n): (Tensor, Tensor)| (x * 0.5, n + 1),
        )
    };
    let found = eval(&[Array::f64(&[], [12.0])], halves);
    assert_eq!(found[0].floats(), [0.75]);
    assert_eq!(found[1].ints(), [4]);
    let none = eval(&[Array::f64(&[], [0.5])], halves);
    assert_eq!(none[1].ints(), [0]);
}

#[test]
fn a_while_loop_has_a_forward_derivative() {
    let power = |x: Tensor| {
        let three = Tensor::scalar(3, DType::I32);
        while_loop(
            (three, x * 0.5),
            |(n, _): (Tensor, Tensor)| n.gt(0),
            |(n, y): (Tensor, Tensor)| (n - 1, y * x),
        )
        .1
    };
    // x^4 / 2
    let both = eval(&[Array::f64(&[], [2.0])], |[x]| {
        jvp(power, x, Tensor::scalar(1, DType::F64))
    });
    assert_eq!(
        (both[0].floats(), both[1].floats()),
        (vec![8.0], vec![16.0])
    );
    let second = floats(&[Array::f64(&[], [2.0])], |[x]| jacfwd(jacfwd(power))(x));
    assert_eq!(second, [24.0]);
}

#[test]
fn what_a_while_loop_computes_can_be_a_constant_of_a_gradient() {
    let f = |x: Tensor| {
        let scale = while_loop(x.sum(..), |s: Tensor| s.gt(1.0), |s: Tensor| s * 0.5);
        (x * scale.stop_gradient()).sum(..)
    };
    let found = floats(&[Array::f64(&[2], [1.0, 3.0])], |[x]| grad(f)(x));
    assert_eq!(found, [1.0, 1.0]);
}

#[test]
fn a_counted_loop_between_numbers_is_a_scan() {
    let power =
        |[x]: [Tensor; 1]| fori_loop(2, 5, x, |i: Tensor, y: Tensor| y * x + i.cast(DType::F64));
    check([noise(1, &[3])], power);
    assert_eq!(floats(&[Array::f64(&[1], [2.0])], power), [34.0]);
    let none = floats(&[Array::f64(&[1], [2.0])], |[x]| {
        fori_loop(5, 2, x, |_, y: Tensor| y * x)
    });
    assert_eq!(none, [2.0]);
}

#[test]
fn a_counted_loop_between_tensors_runs() {
    let sum = |[n]: [Tensor; 1]| {
        fori_loop(
            0,
            n,
            Tensor::scalar(0, DType::I32),
            |i: Tensor, sum: Tensor| sum + i,
        )
    };
    assert_eq!(ints(&[Array::i32(&[], [5])], sum), [10]);
    assert_eq!(ints(&[Array::i32(&[], [-5])], sum), [0]);
}

#[test]
fn a_scan_over_nothing_returns_its_carry() {
    let f = |x: Tensor| {
        let none = Tensor::zeros(DType::F64, [0, 3]);
        scan(x, none, |h: Tensor, x: Tensor| (h.sin() * x, h * x))
    };
    check_first(&[noise(1, &[3])], |[x]| f(x));
    let both = eval(&[noise(1, &[3])], |[x]| {
        value_and_grad(|x: Tensor| f(x).0.sum(..))(x)
    });
    assert_eq!(both[1].floats(), [1.0, 1.0, 1.0]);
}

#[test]
fn unrolling_changes_nothing() {
    let inputs = [noise(1, &[2]), noise(2, &[5, 2])];
    let body = |h: Tensor, x: Tensor| ((h * x).sin(), h + x);
    let plain = eval(&inputs, |[h, xs]| scan(h, xs, body));
    for unroll in [0, 1, 2, 5, 9] {
        let found = eval(&inputs, |[h, xs]| scan_unrolled(h, xs, unroll, body));
        assert_close("unrolled", &found, &plain, 0.0);
    }
}
