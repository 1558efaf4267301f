//! Scan, stacks and rematerialization: values, and derivatives of first and second order.

use shardax_core::{
    DType, Stack, Tensor, TensorType, grad, jvp, remat, scan, scan_reverse, value_and_grad,
};

use crate::interpreter::Array;
use crate::support::{assert_close, check, eval, floats, graph, noise};

#[test]
fn a_scan_carries_and_stacks() {
    let x = || [Array::f64(&[4], [1., 2., 3., 4.])];
    let sums = |[x]: [Tensor; 1]| {
        scan(Tensor::scalar(0, DType::F64), x, |s: Tensor, x: Tensor| {
            (s + x, s * x)
        })
    };
    let found = eval(&x(), sums);
    assert_eq!(found[0].floats(), [10.0]);
    assert_eq!(found[1].floats(), [0.0, 2.0, 9.0, 24.0]);
    let reverse = eval(&x(), |[x]| {
        scan_reverse(Tensor::scalar(0, DType::F64), x, |s: Tensor, x: Tensor| {
            (s + x, s * x)
        })
    });
    assert_eq!(reverse[0].floats(), [10.0]);
    assert_eq!(reverse[1].floats(), [9.0, 14.0, 12.0, 0.0]);
}

#[test]
fn scans_differentiate() {
    let xw = || [noise(1, &[3, 2]), noise(2, &[2, 2]), noise(3, &[2])];
    // Carry only, with a captured weight.
    check(xw(), |[xs, w, h]| {
        scan(h, xs, |h: Tensor, x: Tensor| ((h.dot(w) + x).tanh(), ())).0
    });
    // Outputs only.
    check(xw(), |[xs, w, _]| {
        scan((), xs, |(), x: Tensor| ((), x.dot(w).sin())).1
    });
    // Both, from the last to the first.
    check(xw(), |[xs, w, h]| {
        scan_reverse(h, xs, |h: Tensor, x: Tensor| {
            let next = (h.dot(w) * x).sin();
            (next, next * h)
        })
    });
    // A carry that starts as a constant.
    check(xw(), |[xs, w, _]| {
        scan(
            Tensor::zeros(DType::F64, [2]),
            xs,
            |h: Tensor, x: Tensor| ((h.dot(w) + x).tanh(), h * x),
        )
    });
    // Only the captured weight has a derivative.
    check([noise(2, &[2, 2])], |[w]| {
        let xs = Tensor::constant(&noise(1, &[3, 2]).floats(), [3, 2]);
        scan(Tensor::ones(DType::F64, [2]), xs, |h: Tensor, x: Tensor| {
            ((h.dot(w) + x).tanh(), ())
        })
        .0
    });
    // Only the initial carry has one.
    check([noise(3, &[2])], |[h]| {
        let xs = Tensor::constant(&noise(1, &[3, 2]).floats(), [3, 2]);
        scan(h, xs, |h: Tensor, x: Tensor| ((h * x).sin(), h.sum(..)))
    });
}

#[test]
fn carries_of_every_kind_differentiate() {
    // One goes through unchanged, one is swapped, one counts, one never gets a derivative.
    check(
        [noise(1, &[3, 2]), noise(2, &[2]), noise(3, &[2])],
        |[xs, a, b]| {
            let count = Tensor::scalar(0, DType::I32);
            let carry = (a, b, count, a * b);
            let ((a, b, _, same), ys) = scan(carry, xs, |(a, b, n, same), x: Tensor| {
                let even = (n % 2).eq(0);
                (
                    (b * x + same, even.select(a, a.cos()), n + 1, same),
                    (a * b, n.cast(DType::F64) * x),
                )
            });
            (a, b, same, ys)
        },
    );
    // A derivative that reaches a carry in the third iteration only.
    check([noise(1, &[4])], |[xs]| {
        let zero = || Tensor::scalar(0.5, DType::F64);
        scan(
            (zero(), zero(), zero()),
            xs,
            |(a, b, c): (Tensor, Tensor, Tensor), x: Tensor| ((a + x.sin(), b * a, c + b), c),
        )
    });
    // Results that do not depend on the loop, and carries that nobody reads.
    check([noise(1, &[3]), noise(2, &[])], |[xs, y]| {
        let (_, ys) = scan(y, xs, |y: Tensor, x: Tensor| {
            (y * x, (x.sin(), Tensor::scalar(2, DType::F64)))
        });
        ys
    });
}

#[test]
fn scanned_integers_have_no_derivative() {
    check([noise(1, &[4, 2]), noise(2, &[2])], |[table, h]| {
        let rows = Tensor::constant(&[3i32, 0, 3], [3]);
        scan(h, rows, |h: Tensor, i: Tensor| {
            ((h + table.take(i, 0)).sin(), i)
        })
        .0
    });
}

#[test]
fn captures_of_captures_differentiate() {
    check(
        [noise(1, &[3]), noise(2, &[]), noise(3, &[2])],
        |[xs, w, inner]| {
            let scaled = w * 2;
            scan(w, xs, |h: Tensor, x: Tensor| {
                let (h, ys) = scan(h, inner, |h: Tensor, z: Tensor| {
                    let next = (h * z + x * scaled).sin();
                    (next, next * w)
                });
                (h, ys.sum(..))
            })
        },
    );
    check([noise(1, &[2, 3]), noise(2, &[])], |[xss, w]| {
        scan_reverse(w, xss, |h: Tensor, xs: Tensor| {
            scan(h, xs, |h: Tensor, x: Tensor| ((h * x + w).cos(), h * h))
        })
    });
}

#[test]
fn scans_of_length_zero_and_one() {
    for length in [0, 1] {
        check([noise(1, &[length, 2]), noise(2, &[2])], |[xs, h]| {
            scan(h, xs, |h: Tensor, x: Tensor| ((h * x).sin(), h))
        });
    }
}

#[test]
fn a_loop_with_every_rule_in_it() {
    check(
        [noise(1, &[2, 3]), noise(2, &[3, 4]), noise(3, &[4, 3])],
        |[h, w, v]| {
            let layers = Tensor::arange(DType::I32, 2);
            scan(h, layers, |h: Tensor, i: Tensor| {
                let normal =
                    (h - h.mean(-1).expand_dims(-1)) * (h.var(-1).expand_dims(-1) + 1e-3).rsqrt();
                let hidden = normal.dot(w).gelu();
                let mask = Tensor::arange(DType::I32, 3).ge(i);
                let mixed = mask.select(hidden.dot(v), h.max(-1).expand_dims(-1));
                (h + mixed.softmax(-1), mixed.log_softmax(-1).index(1, 0))
            })
        },
    );
}

#[test]
fn remat_differentiates() {
    let two = || [noise(1, &[3]), noise(2, &[3])];
    check(two(), |[x, y]| remat(|x: Tensor| x.sin().exp())(x) * y);
    check(two(), |[x, y]| {
        remat(|(x, y): (Tensor, Tensor)| (x.sin() * y, y.exp() * y))((x, y))
    });
    // A capture, a result that is not read, one that is constant, one handed through.
    check(two(), |[x, y]| {
        remat(|x: Tensor| (x.sin() * y, x.cos(), Tensor::scalar(2, DType::F64), x))(x).0
    });
    check(two(), |[x, y]| {
        remat(|x: Tensor| (x.sin() * y, Tensor::scalar(2, DType::F64), x))(x)
    });
    // Nested.
    check(two(), |[x, y]| {
        remat(|x: Tensor| remat(|x: Tensor| (x * y).sin())(x.exp()) * x)(x)
    });
    // Of an argument without a derivative.
    check(two(), |[x, y]| {
        remat(|(x, i): (Tensor, Tensor)| x.take(i, 0) * y)((
            x,
            Tensor::constant(&[2i32, 0, 1], [3]),
        ))
    });
}

#[test]
fn remat_and_scan_nest() {
    let xs = || [noise(1, &[3, 2]), noise(2, &[2, 2]), noise(3, &[2])];
    check(xs(), |[xs, w, h]| {
        let layer = remat(|(h, x): (Tensor, Tensor)| (h.dot(w) + x).tanh());
        scan(h, xs, |h: Tensor, x: Tensor| (layer((h, x)), h.sum(..)))
    });
    check(xs(), |[xs, w, h]| {
        remat(|(xs, h)| scan(h, xs, |h: Tensor, x: Tensor| ((h.dot(w) + x).tanh(), h)))((xs, h))
    });
    check(xs(), |[xs, w, h]| {
        let layer = remat(|(h, x): (Tensor, Tensor)| {
            scan(h, x, |h: Tensor, x: Tensor| ((h.dot(w) * x).sin(), ())).0
        });
        scan(h, xs, |h: Tensor, x: Tensor| (layer((h, x)), ())).0
    });
}

#[test]
fn remat_keeps_the_value_and_the_gradient() {
    let args = [noise(1, &[4]), noise(2, &[4])];
    let f = |(x, y): (Tensor, Tensor)| ((x * y).sin().exp() + x.square()).sum(..);
    let plain = eval(&args, |[x, y]| value_and_grad(f)((x, y)));
    let again = eval(&args, |[x, y]| value_and_grad(remat(f))((x, y)));
    assert_close("remat", &plain, &again, 1e-15);
}

#[test]
fn a_gradient_inside_of_a_loop() {
    // Gradient descent, and its derivative with respect to where it starts.
    check([noise(1, &[2]), noise(2, &[3, 2])], |[w, targets]| {
        scan(w, targets, |w: Tensor, target: Tensor| {
            let loss = |w: Tensor| ((w.sin() - target).square()).sum(..);
            let (loss, gradient) = value_and_grad(loss)(w);
            (w - 0.1 * gradient, loss)
        })
    });
    check([noise(1, &[2]), noise(2, &[3, 2])], |[w, xs]| {
        scan(w, xs, |w: Tensor, x: Tensor| {
            let (value, tangent) = jvp(|w: Tensor| (w * x).sin(), w, x);
            (tangent, value)
        })
    });
}

#[test]
fn third_derivatives_go_through_loops() {
    let f = |x: Tensor| {
        let ones = Tensor::ones(DType::F64, [3]);
        let layer = remat(|x: Tensor| x.sin() * x);
        scan(x, ones, |x: Tensor, one: Tensor| (layer(x) + one, ())).0
    };
    // By hand: the same loop unrolled.
    let unrolled = |x: Tensor| {
        let step = |x: Tensor| x.sin() * x + 1;
        step(step(step(x)))
    };
    let x = [Array::f64(&[], [0.3])];
    let third = eval(&x, |[x]| grad(|x| grad(|x| grad(f)(x))(x))(x));
    let wanted = eval(&x, |[x]| grad(|x| grad(|x| grad(unrolled)(x))(x))(x));
    assert_close("third derivative", &third, &wanted, 1e-10);
}

#[test]
fn a_stack_runs_its_layers_in_order() {
    let layers = Array::f64(&[3], [1., 2., 3.]);
    let found = floats(&[layers.clone(), Array::f64(&[], [1.0])], |[w, x]| {
        Stack(w).scan(x, |x: Tensor, w: Tensor| x * w + w)
    });
    assert_eq!(found, [((1.0 * 1.0 + 1.0) * 2.0 + 2.0) * 3.0 + 3.0]);
    let none: [Array; 0] = [];
    let made = eval(&none, |[]| {
        Stack::init(3, |i| {
            (i.cast(DType::F64) * 2, Tensor::ones(DType::F32, [2]))
        })
    });
    assert_eq!(made[0].floats(), [0.0, 2.0, 4.0]);
    assert_eq!(made[1].ty, TensorType::new(DType::F32, [3, 2]));
    check(
        [noise(1, &[3, 2, 2]), noise(2, &[3, 2]), noise(3, &[2])],
        |[w, b, x]| {
            Stack((w, b)).scan(x, |x: Tensor, (w, b): (Tensor, Tensor)| {
                (x.dot(w) + b).tanh() + x
            })
        },
    );
    check([noise(1, &[3, 2, 2]), noise(3, &[2])], |[w, x]| {
        let layer = remat(|(x, w): (Tensor, Tensor)| x.dot(w).tanh() + x);
        Stack(w).scan(x, |x: Tensor, w: Tensor| layer((x, w)))
    });
}

#[test]
fn what_nobody_reads_leaves_the_loop() {
    let types = [
        TensorType::new(DType::F64, [3]),
        TensorType::new(DType::F64, [3]),
    ];
    let graph = graph(types, |[x, y]| {
        let zero = || Tensor::scalar(0, DType::F64);
        let ((sum, _), _) = scan(
            (zero(), zero()),
            (x, y),
            |(a, b): (Tensor, Tensor), (x, y): (Tensor, Tensor)| ((a + x, b + y), a * b),
        );
        sum
    });
    insta::assert_snapshot!(graph, @"
    (a: f64[3], b: f64[3]) {
      c = constant 0.0 : f64[]
      d = scan c a length=3 carries=1 xs=1 : f64[] (a: f64[], b: f64[]) {
        c = add a b : f64[]
        return c
      }
      return d
    }
    ");
}
