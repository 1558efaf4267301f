//! `vmap` is a loop over the elements: for every construct, alone and composed with the others.

use shardax_core::{
    DType, Tensor, Tree, cond, custom_jvp, custom_vjp, fori_loop, grad, hessian, host_call, jacfwd,
    jacrev, jvp, remat, scan, scan_reverse, switch, value_and_grad, vjp, vmap, vmap_axes,
    while_loop,
};

use crate::interpreter::Array;
use crate::support::{assert_close, check, check_vmap, eval, floats, noise};

#[test]
fn of_elementwise_functions_and_reductions() {
    check_vmap([noise(1, &[3, 2]), noise(2, &[2])], |[x, y]| {
        ((x * y).sin() + y.exp() - x.sum(0)).max(1)
    });
    check_vmap([noise(1, &[3, 2]), noise(2, &[3, 2])], |[x, y]| {
        let mask = x.gt(y);
        (
            mask.select(x, y * 2.0),
            mask.any(0),
            x.argmax(1),
            y.cast(DType::I32),
        )
    });
    check_vmap([noise(1, &[4])], |[x]| {
        (x.softmax(-1), x.logsumexp(-1), x.var(..))
    });
}

#[test]
fn of_movement() {
    check_vmap([noise(1, &[2, 3]), noise(2, &[])], |[x, y]| {
        (
            x.transpose([1, 0]).reshape([6]),
            x.broadcast_to([4, 2, 3]).slice(1, 1..),
            x.expand_dims(1).broadcast_to([2, 5, 3]),
            x.reverse([1]).pad(0, 1, 2, 0.5),
            shardax_core::concatenate([x, x * y, x], 0),
        )
    });
}

#[test]
fn of_products() {
    let shapes = || [noise(1, &[2, 3]), noise(2, &[3, 4])];
    check_vmap(shapes(), |[a, b]| a.dot(b));
    check_vmap(shapes(), |[a, b]| shardax_core::einsum("ij,jk->ki", [a, b]));
    check_vmap([noise(1, &[2, 3, 4]), noise(2, &[2, 4, 3])], |[a, b]| {
        a.matmul(b)
    });
}

#[test]
fn of_dynamic_windows() {
    let start = || Array::i32(&[], [1]);
    check_vmap([noise(1, &[4, 3]), start()], |[x, i]| {
        x.dynamic_slice(0, i, 2)
    });
    check_vmap(
        [noise(1, &[4, 3]), noise(2, &[2, 3]), start()],
        |[x, u, i]| x.dynamic_update(0, i, u),
    );
}

#[test]
fn of_loops_and_choices() {
    check_vmap([noise(1, &[3]), noise(2, &[4, 3])], |[h, xs]| {
        scan(h, xs, |h: Tensor, x: Tensor| ((h * x).sin(), h + x))
    });
    // A carry that becomes batched in the second iteration.
    check_vmap([noise(2, &[4, 3])], |[xs]| {
        let zero = Tensor::zeros(DType::F64, [3]);
        let body = |(a, b): (Tensor, Tensor), x: Tensor| ((b * 2.0 + 1.0, a + x), a);
        scan_reverse((zero, zero), xs, body)
    });
    check_vmap([noise(1, &[3])], |[x]| {
        cond(
            x.sum(..).gt(0.0),
            x,
            |x: Tensor| x.sin(),
            |x: Tensor| x * 3.0,
        )
    });
    check_vmap([noise(1, &[3]), Array::i32(&[], [1])], |[x, i]| {
        let branches: [fn(Tensor) -> Tensor; 3] = [|x| x, |x| x.exp(), |x| -x];
        switch(i, x, branches)
    });
    check_vmap([noise(1, &[])], |[x]| {
        while_loop(
            (x.abs() + 0.1, Tensor::scalar(0, DType::I32)),
            |(x, _): (Tensor, Tensor)| x.lt(1.0),
            |(x, n): (Tensor, Tensor)| (x * 1.5, n + 1),
        )
    });
    check_vmap([Array::i32(&[], [2]), noise(1, &[2])], |[n, x]| {
        fori_loop(0, n, x, |i: Tensor, y: Tensor| y * x + i.cast(DType::F64))
    });
}

#[test]
fn of_derivatives() {
    let f = |x: Tensor, w: Tensor| (x.dot(w).tanh() * x).sum(..);
    check_vmap([noise(1, &[3]), noise(2, &[3, 3])], |[x, w]| {
        value_and_grad(|(x, w): (Tensor, Tensor)| f(x, w))((x, w))
    });
    check_vmap([noise(1, &[3]), noise(2, &[3, 3])], |[x, w]| {
        jvp(|x: Tensor| x.dot(w).sin(), x, x)
    });
    check_vmap([noise(1, &[3]), noise(2, &[3, 3])], |[x, w]| {
        vjp(|x: Tensor| remat(|x: Tensor| x.dot(w).sin())(x), x).1(x)
    });
    check_vmap([noise(1, &[3])], |[x]| {
        hessian(|x: Tensor| (x.sin() * x).sum(..))(x)
    });
    check_vmap([noise(1, &[3]), noise(2, &[4, 3])], |[h, xs]| {
        grad(|h: Tensor| {
            scan(h, xs, |h: Tensor, x: Tensor| ((h * x).sin(), ()))
                .0
                .sum(..)
        })(h)
    });
}

#[test]
fn has_derivatives() {
    check([noise(1, &[5, 3]), noise(2, &[3, 3])], |[xs, w]| {
        vmap(|x: Tensor| x.dot(w).sin() * x)(xs)
    });
    check([noise(1, &[3, 5]), noise(2, &[3, 3])], |[xs, w]| {
        vmap_axes(|x: Tensor| (x.dot(w).sin(), x.sum(..)), [Some(1)], -1)(xs)
    });
}

#[test]
fn of_custom_rules() {
    let doubled = custom_jvp(
        |x: Tensor| x * x,
        |x: Tensor, t: Tensor| (x * x, 3.0 * x * t),
    );
    check_vmap([noise(1, &[3])], |[x]| {
        grad(|x: Tensor| doubled(x).sum(..))(x)
    });
    // The gradient of a batch: the rule is applied to what vmap made of the function.
    let found = floats(&[Array::f64(&[2], [1.0, 2.0])], |[x]| {
        grad(|x: Tensor| vmap(&doubled)(x).sum(..))(x)
    });
    assert_eq!(found, [3.0, 6.0]);

    let scaled = custom_vjp(
        |(x, w): (Tensor, Tensor)| x * w,
        |(x, w): (Tensor, Tensor)| (x * w, (x, w)),
        |(x, w): (Tensor, Tensor), ct: Tensor| (ct * w * 10.0, (ct * x).sum(..) * 10.0),
    );
    check_vmap([noise(1, &[3]), noise(2, &[])], |[x, w]| {
        grad(|(x, w): (Tensor, Tensor)| scaled((x, w)).sum(..))((x, w))
    });
    // An argument that serves the whole batch gets the sum.
    let inputs = [Array::f64(&[2, 1], [1.0, 2.0]), Array::f64(&[], [3.0])];
    let found = eval(&inputs, |[x, w]| {
        let each =
            |(x, w): (Tensor, Tensor)| vmap_axes(&scaled, [Some(0), None], 0)((x, w)).sum(..);
        grad(each)((x, w))
    });
    assert_eq!(found[0].floats(), [30.0, 30.0]);
    assert_eq!(found[1].floats(), [30.0]);
}

#[test]
fn of_host_functions_is_one_call_after_the_other() {
    check_vmap([noise(1, &[3]), noise(2, &[])], |[x, y]| {
        let ty = x.ty();
        host_call("double", [x, y], ty, |args: &[shardax_core::Literal]| {
            let doubled: Vec<f64> = args[0].numbers().iter().map(|n| n.as_f64() * 2.0).collect();
            let literal = shardax_core::Literal::from_slice(&doubled, [3]);
            Ok(vec![literal.ok_or("three numbers")?])
        })
    });
}

#[test]
fn nests_over_any_axes() {
    let inputs = [noise(1, &[2, 3]), noise(2, &[4, 3])];
    let all = eval(&inputs, |[a, b]| {
        let row = |a: Tensor| vmap(|b: Tensor| (a * b).sum(..))(b);
        vmap(row)(a)
    });
    let product = eval(&inputs, |[a, b]| a.dot(b.transpose([1, 0])));
    assert_close("pairs", &all, &product, 1e-14);
    let columns = eval(&inputs, |[a, _]| {
        let outer = |x: Tensor| vmap_axes(|y: Tensor| y.sin(), [Some(-1)], 0)(x);
        vmap_axes(outer, [Some(1)], 1)(a)
    });
    let sines = eval(&inputs, |[a, _]| a.sin());
    assert_close("axes", &columns, &sines, 0.0);
}

#[test]
fn of_jacobians() {
    let f = |x: Tensor| x.sin() * x.sum(..);
    let x = [noise(1, &[3])];
    let forward = eval(&x, |[x]| jacfwd(f)(x));
    let reverse = eval(&x, |[x]| jacrev(f)(x));
    assert_close("jacobians", &forward, &reverse, 1e-14);
    let quadratic = eval(&x, |[x]| {
        hessian(|x: Tensor| (x * x).sum(..) * x.sum(..))(x)
    });
    let v = x[0].floats();
    let sum: f64 = v.iter().sum();
    let wanted = (0..9).map(|i| {
        let (a, b) = (i / 3, i % 3);
        2.0 * v[a] + 2.0 * v[b] + if a == b { 2.0 * sum } else { 0.0 }
    });
    assert_close("hessian", &quadratic, &[Array::f64(&[3, 3], wanted)], 1e-13);
}

/// `vmap` writes what a person would: the batch is a dimension of the same equations.
#[test]
fn writes_no_more_equations_than_the_function() {
    let count = |f: &dyn Fn([Tensor; 2]) -> Tensor| {
        let types = [[5, 3], [3, 3]].map(|s| shardax_core::TensorType::new(DType::F32, s));
        crate::support::graph(types, f).to_string()
    };
    insta::assert_snapshot!(count(&|[xs, w]| vmap(|x: Tensor| x.dot(w).tanh())(xs)), @"
    (a: f32[5,3], b: f32[3,3]) {
      c = dot_general a b contract=[1],[0] : f32[5,3]
      d = tanh c : f32[5,3]
      return d
    }
    ");
    insta::assert_snapshot!(
        count(&|[xs, w]| vmap(grad(|x: Tensor| x.dot(w).tanh().sum(..)))(xs)), @"
        (a: f32[5,3], b: f32[3,3]) {
          c = dot_general a b contract=[1],[0] : f32[5,3]
          d = cosh c : f32[5,3]
          e = constant 1.0 : f32[]
          f = broadcast e dims=[] : f32[5,3]
          g = div f d : f32[5,3]
          h = mul g g : f32[5,3]
          i = dot_general h b contract=[1],[1] : f32[5,3]
          return i
        }
        "
    );
    insta::assert_snapshot!(count(&|[xs, w]| vmap(|x: Tensor| x * 2.0 + w.index(0, 0))(xs)), @"
    (a: f32[5,3], b: f32[3,3]) {
      c = constant 2.0 : f32[]
      d = broadcast c dims=[] : f32[5,3]
      e = mul a d : f32[5,3]
      f = slice b starts=[0, 0] limits=[1, 3] : f32[1,3]
      g = reshape f : f32[3]
      h = broadcast g dims=[1] : f32[5,3]
      i = add e h : f32[5,3]
      return i
    }
    ");
}

/// A function of trees.
#[test]
fn maps_over_trees() {
    let inputs = [noise(1, &[4, 3]), noise(2, &[4])];
    fn apply<T: Tree<Tensor>>(f: impl Fn(T) -> Tensor, tree: T) -> Tensor {
        f(tree)
    }
    let found = eval(&inputs, |[x, y]| {
        vmap(|(x, rest): (Tensor, Vec<Tensor>)| apply(|x: Tensor| x * rest[0], x))((x, vec![y]))
    });
    let wanted = eval(&inputs, |[x, y]| x * y.expand_dims(1));
    assert_close("trees", &found, &wanted, 0.0);
}
