//! Custom derivatives, linearization, and rematerialization with policies.

use shardax_core::{
    DType, Policy, Tensor, TensorType, custom_jvp, custom_vjp, grad, jvp, linearize, remat_with,
    scan, trace, value_and_grad, vjp, vmap,
};

use crate::interpreter::Array;
use crate::support::{assert_close, check, eval, floats, graph, noise};

/// x^2 with a derivative of 3x, so that it is seen which is used.
fn odd(x: Tensor) -> Tensor {
    custom_jvp(
        |x: Tensor| x * x,
        |x: Tensor, t: Tensor| (x * x, 3.0 * x * t),
    )(x)
}

fn odd_backward(x: Tensor) -> Tensor {
    custom_vjp(
        |x: Tensor| x * x,
        |x: Tensor| (x * x, x),
        |x: Tensor, ct: Tensor| 3.0 * x * ct,
    )(x)
}

#[test]
fn a_forward_rule_serves_both_modes() {
    let x = || [Array::f64(&[2], [1.0, 2.0])];
    assert_eq!(floats(&x(), |[x]| odd(x)), [1.0, 4.0]);
    assert_eq!(
        floats(&x(), |[x]| grad(|x: Tensor| odd(x).sum(..))(x)),
        [3.0, 6.0]
    );
    assert_eq!(floats(&x(), |[x]| jvp(odd, x, x).1), [3.0, 12.0]);
    // The derivative of the rule itself.
    let second = |x: Tensor| grad(|x: Tensor| grad(|x: Tensor| odd(x).sum(..))(x).sum(..))(x);
    assert_eq!(floats(&x(), |[x]| second(x)), [3.0, 3.0]);
}

#[test]
fn a_backward_rule_serves_reverse_mode() {
    let x = || [Array::f64(&[2], [1.0, 2.0])];
    assert_eq!(
        floats(&x(), |[x]| grad(|x: Tensor| odd_backward(x).sum(..))(x)),
        [3.0, 6.0]
    );
    let second =
        |x: Tensor| grad(|x: Tensor| grad(|x: Tensor| odd_backward(x).sum(..))(x).sum(..))(x);
    assert_eq!(floats(&x(), |[x]| second(x)), [3.0, 3.0]);
    // The forward derivative of a gradient is that of the backward rule.
    let hessian = |x: Tensor| jvp(grad(|x: Tensor| odd_backward(x).sum(..)), x, x).1;
    assert_eq!(floats(&x(), |[x]| hessian(x)), [3.0, 6.0]);
}

#[test]
fn rules_go_through_loops_and_recomputation() {
    for f in [odd, odd_backward] {
        let looped = move |x: Tensor| {
            scan(
                x,
                Tensor::ones(DType::F64, [3]),
                |h: Tensor, one: Tensor| (f(h) * 0.1 * one, ()),
            )
            .0
            .sum(..)
        };
        let unrolled = move |x: Tensor| (0..3).fold(x, |h, _| f(h) * 0.1).sum(..);
        let x = [noise(3, &[4])];
        let wanted = eval(&x, |[x]| value_and_grad(unrolled)(x));
        assert_close(
            "scan",
            &eval(&x, |[x]| value_and_grad(looped)(x)),
            &wanted,
            1e-14,
        );
        let again = eval(&x, |[x]| {
            value_and_grad(remat_with(Policy::Nothing, unrolled))(x)
        });
        assert_close("remat", &again, &wanted, 1e-14);
        let each = eval(&x, |[x]| {
            value_and_grad(|x: Tensor| {
                vmap(|x: Tensor| (0..3).fold(x, |h, _| f(h) * 0.1))(x).sum(..)
            })(x)
        });
        assert_close("vmap", &each, &wanted, 1e-14);
    }
}

#[test]
fn a_rule_may_apply_a_function_with_a_rule_to_its_tangent() {
    let scaled = custom_jvp(
        |x: Tensor| x * 2.0,
        |x: Tensor, t: Tensor| (x * 2.0, t * 5.0),
    );
    let outer = custom_jvp(
        |x: Tensor| x * x,
        |x: Tensor, t: Tensor| (x * x, scaled(t * x)),
    );
    let x = [Array::f64(&[2], [1.0, 3.0])];
    let found = floats(&x, |[x]| grad(|x: Tensor| outer(x).sum(..))(x));
    assert_eq!(found, [2.0, 6.0]);
}

#[test]
fn a_backward_rule_may_keep_integers_and_nothing() {
    let picked = custom_vjp(
        |x: Tensor| x.max(0),
        |x: Tensor| (x.max(0), x.argmax(0)),
        |i: Tensor, ct: Tensor| {
            let hot = Tensor::arange(DType::I32, 3).eq(i);
            hot.select(ct.broadcast_to([3]), 0.0)
        },
    );
    let x = [Array::f64(&[3], [1.0, 5.0, 2.0])];
    assert_eq!(
        floats(&x, |[x]| grad(|x: Tensor| picked(x) * 2.0)(x)),
        [0.0, 2.0, 0.0]
    );
}

#[test]
fn a_linearized_function_is_applied_more_than_once() {
    let f = |[x, t]: [Tensor; 2]| {
        let (y, derivative) = linearize(|x: Tensor| (x.sin() * x).dot(x), x);
        (y, derivative(t), derivative(t * 2.0))
    };
    let inputs = [noise(1, &[3]), noise(2, &[3])];
    let found = eval(&inputs, f);
    let both = eval(&inputs, |[x, t]| {
        jvp(|x: Tensor| (x.sin() * x).dot(x), x, t)
    });
    assert_close("value", &found[..1], &both[..1], 0.0);
    assert_close("tangent", &found[1..2], &both[1..], 1e-15);
    assert_eq!(found[2].floats()[0], 2.0 * found[1].floats()[0]);
    check(inputs, f);
}

#[test]
fn a_pullback_is_called_anywhere_and_more_than_once() {
    let f = |[x, ct]: [Tensor; 2]| {
        let (_, pullback) = vjp(|x: Tensor| x.sin() * x, x);
        let (_, each) = scan((), Tensor::arange(DType::F64, 3), |(), i: Tensor| {
            ((), pullback(ct * i))
        });
        (each, pullback(ct))
    };
    let found = eval(&[noise(1, &[2]), noise(2, &[2])], f);
    let (each, once) = (found[0].floats(), found[1].floats());
    assert_eq!(each[..2], [0.0, 0.0]);
    assert_eq!(each[2..4], once);
    check([noise(1, &[2]), noise(2, &[2])], f);
}

#[test]
fn policies_change_what_is_kept_and_no_value() {
    let block = |(x, w): (Tensor, Tensor)| {
        let h = x.dot(w).named("up").sin();
        (h.dot(w).exp() * h).named("down").sum(..)
    };
    let policies = [
        Policy::Nothing,
        Policy::Dots,
        Policy::DotsWithoutBatch,
        Policy::names(["up"]),
        Policy::offload(["up", "down"]),
    ];
    let inputs = [noise(1, &[2, 3]), noise(2, &[3, 3])];
    let plain = eval(&inputs, |[x, w]| value_and_grad(block)((x, w)));
    for policy in policies {
        let f = remat_with(policy.clone(), block);
        let found = eval(&inputs, |[x, w]| value_and_grad(&f)((x, w)));
        assert_close(&format!("{policy:?}"), &found, &plain, 1e-13);
        check(inputs.clone(), |[x, w]| f((x, w)));
    }
    // Products that are computed: two forward, four backward, and what is not kept again.
    let products = |policy: Policy| {
        let f = remat_with(policy, block);
        let types = [[2, 3], [3, 3]].map(|shape| TensorType::new(DType::F32, shape));
        let graph = graph(types, |[x, w]| value_and_grad(&f)((x, w)));
        graph.to_string().matches("dot_general").count()
    };
    assert_eq!(products(Policy::Dots), 6);
    assert_eq!(products(Policy::Nothing), 8);
    assert_eq!(products(Policy::names(["up"])), 7);
}

#[test]
fn offloaded_values_go_to_the_host_and_come_back() {
    let f = remat_with(Policy::offload(["h"]), |x: Tensor| {
        x.sin().named("h").exp().sum(..)
    });
    let traced = trace(grad(f), TensorType::new(DType::F32, [4])).map(|t| t.graph.to_string());
    let text = traced.unwrap_or_else(|error| error.to_string());
    assert!(
        text.contains("pinned_host") && text.contains("place"),
        "{text}"
    );
    assert_eq!(text.matches("place").count(), 2, "{text}");
}
