//! Every derivative rule, first and second order, against finite differences.

use shardax_core::{
    DType, Tensor, TensorType, concatenate, einsum, grad, jvp, value_and_grad, vjp,
};

use crate::interpreter::Array;
use crate::support::{assert_close, between, check, check_first, eval, floats, noise};

#[test]
fn elementwise_functions() {
    let any = || [noise(1, &[5])];
    let positive = || [between(0.4, 2.0, 2, &[5])];
    check(any(), |[x]| x.abs());
    check(any(), |[x]| x.cos());
    check(any(), |[x]| x.erf());
    check(any(), |[x]| x.exp());
    check(any(), |[x]| x.expm1());
    check(any(), |[x]| x.floor() * x);
    check(positive(), |[x]| x.log());
    check(positive(), |[x]| x.log1p());
    check(any(), |[x]| x.sigmoid());
    check(any(), |[x]| -x);
    check(positive(), |[x]| x.rsqrt());
    check(any(), |[x]| x.sign() + x);
    check(any(), |[x]| x.sin());
    check(positive(), |[x]| x.sqrt());
    check(any(), |[x]| x.tanh());
    check(any(), |[x]| x.gelu());
    check(any(), |[x]| x.gelu_exact());
    check(any(), |[x]| x.relu());
    check(any(), |[x]| x.silu());
    check(any(), |[x]| x.square());
}

#[test]
fn binary_functions() {
    let two = || [noise(1, &[4]), noise(2, &[4])];
    let positive = || [between(0.5, 2.0, 3, &[4]), between(0.5, 2.0, 4, &[4])];
    check(two(), |[x, y]| x + y);
    check(two(), |[x, y]| x - y);
    check(two(), |[x, y]| x * y);
    check(positive(), |[x, y]| x / y);
    check(positive(), |[x, y]| x.pow(y));
    check(positive(), |[x, y]| (x * 3) % y);
    check(positive(), |[x, y]| (-3 * x) % y);
    check(two(), |[x, y]| x.maximum(y));
    check(two(), |[x, y]| x.minimum(y));
    check([noise(1, &[4])], |[x]| {
        x - 2 * x + 1.5 - (3 - x) / 2 + 1 / (x + 3)
    });
    check([noise(1, &[4])], |[x]| x * x * x);
    check([between(0.5, 2.0, 3, &[4])], |[x]| {
        2.0 - 3.0f64.ln() * x.pow(2.5) / 2
    });
    check([noise(1, &[2, 1]), noise(2, &[3])], |[x, y]| x * y - y);
}

#[test]
fn at_kinks_the_documented_convention_holds() {
    let gradient =
        |x: f64, f: fn(Tensor) -> Tensor| floats(&[Array::f64(&[], [x])], |[x]| grad(f)(x))[0];
    assert_eq!(gradient(0.0, |x| x.abs()), 0.0);
    assert_eq!(gradient(0.0, |x| x.relu()), 0.0);
    assert_eq!(gradient(2.0, |x| x.maximum(2)), 0.5);
    assert_eq!(gradient(2.0, |x| x.minimum(2)), 0.5);
    assert_eq!(gradient(2.0, |x| x.maximum(x)), 1.0);
    assert_eq!(gradient(0.0, |x| x.pow(0)), 0.0);
    assert_eq!(gradient(0.0, |x| x.pow(2)), 0.0);
    assert_eq!(gradient(0.0, |x| x.pow(1)), 1.0);
    assert_eq!(gradient(-2.0, |x| x.pow(3)), 12.0);
    let exponent = floats(
        &[Array::f64(&[], [0.0]), Array::f64(&[], [2.0])],
        |[x, y]| grad(|y: Tensor| x.pow(y))(y),
    );
    assert_eq!(exponent, [0.0]);
    let ties = Array::f64(&[4], [3., 1., 3., 2.]);
    let shared = floats(&[ties], |[x]| grad(|x: Tensor| x.max(..))(x));
    assert_eq!(shared, [0.5, 0.0, 0.5, 0.0]);
    let rows = Array::f64(&[2, 2], [1., 1., 0., 5.]);
    let shared = floats(&[rows], |[x]| grad(|x: Tensor| x.min(1).sum(..))(x));
    assert_eq!(shared, [0.5, 0.5, 1.0, 0.0]);
}

#[test]
fn reductions() {
    let x = || [noise(1, &[2, 3, 2])];
    check(x(), |[x]| x.sum(..));
    check(x(), |[x]| x.sum([0, 2]));
    check(x(), |[x]| x.mean(1));
    check(x(), |[x]| x.var([1, -1]));
    check(x(), |[x]| x.max(1));
    check(x(), |[x]| x.min([0, 1]));
    check(x(), |[x]| x.softmax(1));
    check(x(), |[x]| x.log_softmax(-1));
    check(x(), |[x]| x.logsumexp(0));
}

#[test]
fn products() {
    let ab = || [noise(1, &[2, 3]), noise(2, &[3, 4])];
    check(ab(), |[a, b]| a.dot(b));
    check([noise(1, &[2, 2, 3]), noise(2, &[3, 2, 2])], |[a, b]| {
        a.dot(b)
    });
    check([noise(1, &[3]), noise(2, &[3])], |[a, b]| a.dot(b));
    check([noise(1, &[3, 1, 2, 2]), noise(2, &[2, 2, 3])], |[a, b]| {
        a.matmul(b)
    });
    check([noise(1, &[2, 2])], |[a]| a.dot(a).dot(a));
    check(ab(), |[a, b]| einsum("ab,bc->ca", [a, b]));
    check([noise(1, &[2, 3, 2]), noise(2, &[2, 2, 3])], |x| {
        einsum("bac,dba->cbd", x)
    });
    check([noise(1, &[2, 3, 4]), noise(2, &[4, 3, 2])], |x| {
        einsum("abc,cba->b", x)
    });
    check([noise(1, &[3, 4, 2]), noise(2, &[4, 2, 3])], |x| {
        einsum("abc,bca->", x)
    });
    check([noise(1, &[3, 3]), noise(2, &[3, 2])], |x| {
        einsum("aa,ab->ab", x)
    });
    check([noise(1, &[2, 3]), noise(2, &[2])], |x| {
        einsum("ab,c->ca", x)
    });
    check(
        [noise(1, &[2, 3]), noise(2, &[3, 2]), noise(3, &[2, 2])],
        |x| einsum("ab,bc,cd->da", x),
    );
    check([noise(1, &[2, 3, 2])], |x| einsum("abc->ca", x));
}

#[test]
fn shapes() {
    let x = || [noise(1, &[2, 3])];
    check(x(), |[x]| x.transpose([1, 0]));
    check([noise(1, &[2, 3, 4])], |[x]| x.transpose([2, 0, 1]));
    check(x(), |[x]| x.reshape([3, 2]));
    check(x(), |[x]| x.expand_dims(1).broadcast_to([2, 4, 3]));
    check([noise(1, &[2, 1])], |[x]| x.broadcast_to([3, 2, 4]));
    check(x(), |[x]| x.slice(1, 1..));
    check(x(), |[x]| x.index(0, 1));
    check(x(), |[x]| x.reverse([0, 1]));
    check(x(), |[x]| x.pad(1, 2, 1, 0.5));
    check(x(), |[x]| x.tril(0));
    check([noise(1, &[2, 3]), noise(2, &[2, 1])], |[x, y]| {
        concatenate([x, y, x], 1)
    });
    check([noise(1, &[2, 3])], |[x]| {
        concatenate([x, Tensor::ones(DType::F64, [2, 1])], 1)
    });
    check([noise(1, &[0, 3])], |[x]| x.slice(0, 0..0).sum(0));
}

#[test]
fn reading_and_writing_by_index() {
    let rows = || [noise(1, &[4, 2])];
    let at = |i: &[i32]| Tensor::constant(i, [i.len()]);
    check(rows(), |[x]| x.take(at(&[3, 0, 3]), 0));
    check(rows(), |[x]| x.take(at(&[1, 1, 0]), 1));
    check(rows(), |[x]| x.take(Tensor::scalar(2, DType::I32), 0));
    check(rows(), |[x]| {
        x.take_along(Tensor::constant(&[1i32, 0, 0, 1], [4, 1]), 1)
    });
    check(rows(), |[x]| {
        x.take_along(Tensor::constant(&[3i32, 3, 0, 1, 2, 2], [3, 2]), 0)
    });
    let start = || Tensor::scalar(2, DType::I32);
    check(rows(), |[x]| x.dynamic_slice(0, start(), 2));
    check([noise(1, &[4, 2]), noise(2, &[2, 2])], |[x, u]| {
        x.dynamic_update(0, start(), u)
    });
    check([noise(1, &[4, 2])], |[x]| {
        x.dynamic_update(0, start(), Tensor::ones(DType::F64, [1, 2]))
    });
    let outside = floats(&[noise(1, &[3])], |[x]| {
        grad(|x: Tensor| {
            let rows = x.take(Tensor::constant(&[1i32, 9], [2]), 0);
            rows.slice(0, ..1).sum(..)
        })(x)
    });
    assert_eq!(outside, [0.0, 1.0, 0.0]);
}

#[test]
fn select_cast_and_stop_gradient() {
    check([noise(1, &[4]), noise(2, &[4])], |[x, y]| {
        x.gt(0.1).select(x * y, y)
    });
    check([noise(1, &[4])], |[x]| x.gt(0).select(x * x, 1));
    check([noise(1, &[4])], |[x]| {
        (x.cast(DType::I32).cast(DType::F64) + x) * x
    });
    check([noise(1, &[3]), noise(2, &[])], |[x, y]| {
        x.ge(0).select(x, y)
    });
    let stopped = floats(&[Array::f64(&[], [3.0])], |[x]| {
        grad(|x: Tensor| x * x.stop_gradient())(x)
    });
    assert_eq!(stopped, [3.0]);
    let through = eval(&[Array::new(DType::BF16, &[], [3.0])], |[x]| {
        grad(|x: Tensor| x.cast(DType::F32).square())(x)
    });
    assert_eq!(through, [Array::new(DType::BF16, &[], [6.0])]);
}

#[test]
fn a_small_network() {
    let loss = |[x, w, b, v]: [Tensor; 4]| {
        let hidden = (x.dot(w) + b).gelu();
        let logits = hidden.dot(v);
        (logits.logsumexp(-1) - logits.index(1, 0)).mean(..)
    };
    check(
        [
            noise(1, &[3, 2]),
            noise(2, &[2, 4]),
            noise(3, &[4]),
            noise(4, &[4, 3]),
        ],
        loss,
    );
}

#[test]
fn several_results_and_unused_parameters() {
    check([noise(1, &[2]), noise(2, &[3])], |[x, y]| {
        (x.sin(), [y.sum(..) * x, x], y)
    });
    check([noise(1, &[2]), noise(2, &[3])], |[x, _]| x.sin());
    let unused = eval(&[noise(1, &[2]), noise(2, &[3])], |x| {
        grad(|[x, _]: [Tensor; 2]| x.sum(..))(x)
    });
    assert_eq!(unused[0].floats(), [1.0, 1.0]);
    assert_eq!(unused[1].floats(), [0.0, 0.0, 0.0]);
}

#[test]
fn a_parameter_may_be_the_result() {
    let x = || [Array::f64(&[], [3.0])];
    assert_eq!(floats(&x(), |[x]| grad(|x: Tensor| x)(x)), [1.0]);
    assert_eq!(floats(&x(), |[x]| jvp(|x: Tensor| x, x, x * 2).1), [6.0]);
    assert_eq!(
        floats(&x(), |[x]| vjp(|x: Tensor| [x, x], x).1([x, x])),
        [6.0]
    );
    let constant = floats(&x(), |[x]| {
        grad(|_: Tensor| Tensor::scalar(1, DType::F64))(x)
    });
    assert_eq!(constant, [0.0]);
}

#[test]
fn value_and_grad_hands_the_rest_through() {
    let results = eval(&[Array::f64(&[2], [1., 2.])], |[x]| {
        let loss = |x: Tensor| {
            let squares = x * x;
            (squares.sum(..), (squares, squares.sum(..)))
        };
        let ((loss, (squares, same)), gradient) = value_and_grad(loss)(x);
        (loss, squares, same, gradient)
    });
    let found: Vec<Vec<f64>> = results.iter().map(Array::floats).collect();
    assert_eq!(
        found,
        [vec![5.0], vec![1.0, 4.0], vec![5.0], vec![2.0, 4.0]]
    );
}

#[test]
fn what_is_captured_is_constant_inside_and_varies_outside() {
    let x = || [Array::f64(&[], [3.0])];
    let inner = floats(&x(), |[x]| grad(|y: Tensor| y * y * x)(x));
    assert_eq!(inner, [18.0]);
    // d/dx (x * d/dy (y^2 x) at y = x) = d/dx 2 x^3
    let outer = floats(&x(), |[x]| {
        grad(|x: Tensor| x * grad(|y: Tensor| y * y * x)(x))(x)
    });
    assert_eq!(outer, [54.0]);
    check([noise(1, &[3]), noise(2, &[3])], |[x, y]| {
        grad(|z: Tensor| (z.sin() * y * (z * x).exp()).sum(..))(x * y)
    });
}

#[test]
fn derivatives_nest() {
    let x = || [Array::f64(&[], [0.7])];
    let third = floats(&x(), |[x]| {
        grad(|x| grad(|x| grad(|x: Tensor| x.sin())(x))(x))(x)
    });
    assert!((third[0] + 0.7f64.cos()).abs() < 1e-14, "{third:?}");
    let forward = floats(&x(), |[x]| {
        let one = Tensor::scalar(1, DType::F64);
        jvp(|x| jvp(|x: Tensor| x.exp() * x, x, one).1, x, one).1
    });
    assert!(
        (forward[0] - 0.7f64.exp() * 2.7).abs() < 1e-13,
        "{forward:?}"
    );
    let hessian_vector = |[x, v]: [Tensor; 2]| {
        let f = |x: Tensor| (x.sin() * x.dot(x)).sum(..);
        let by_jvp = jvp(grad(f), x, v).1;
        let by_grad = grad(|x: Tensor| grad(f)(x).dot(v))(x);
        let by_dual = grad(|x: Tensor| jvp(f, x, v).1)(x);
        (by_jvp, by_grad, by_dual)
    };
    let found = eval(&[noise(1, &[4]), noise(2, &[4])], hessian_vector);
    assert_close("reverse over reverse", &found[..1], &found[1..2], 1e-13);
    assert_close("reverse over forward", &found[..1], &found[2..], 1e-13);
}

#[test]
fn a_pullback_can_be_applied_to_what_was_computed_after_it() {
    let found = floats(&[Array::f64(&[2], [1., 2.])], |[x]| {
        let (y, pullback) = vjp(|x: Tensor| x * x, x);
        let later = y.sin() * y;
        pullback(later)
    });
    let wanted = [1f64, 2.0].map(|x| 2.0 * x * (x * x).sin() * x * x);
    assert!((found[0] - wanted[0]).abs() < 1e-14 && (found[1] - wanted[1]).abs() < 1e-14);
}

#[test]
fn gradients_have_the_types_of_their_parameters() {
    let types = [
        TensorType::new(DType::BF16, [2, 2]),
        TensorType::new(DType::F32, [2]),
    ];
    let graph = crate::support::graph(types, |p| grad(|[w, x]: [Tensor; 2]| w.dot(x).sum(..))(p));
    let found: Vec<String> = graph
        .outputs()
        .iter()
        .map(|&o| graph.ty(o).to_string())
        .collect();
    assert_eq!(found, ["bf16[2,2]", "f32[2]"]);
}

#[test]
fn integer_results_have_no_tangent() {
    check_first(&[noise(1, &[4])], |[x]| (x.argmax(0), x * 2, x.gt(0)));
}
