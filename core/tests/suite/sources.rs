//! Every equation knows the user's line, whatever function or transform wrote it.

use shardax_core::{
    DType, Stack, Tensor, TensorType, Tree, concatenate, einsum, grad, ir::Graph, jvp, remat,
    scope, vjp,
};

use crate::support::graph;

#[track_caller]
fn all_mine(graph: &Graph) {
    for equation in graph.equations() {
        let (file, line) = (equation.source.file(), equation.source.line());
        assert_eq!(
            file,
            file!(),
            "line {line}, of `{}` in\n{graph}",
            equation.op.name()
        );
        for (_, region) in equation.op.regions() {
            all_mine(region);
        }
    }
}

#[track_caller]
fn mine<R: Tree<Tensor>>(f: impl Fn([Tensor; 3]) -> R) {
    let types = [
        TensorType::new(DType::F32, [2, 3]),
        TensorType::new(DType::F32, [3, 3]),
        TensorType::new(DType::I32, [2]),
    ];
    all_mine(&graph(types, f));
}

fn every_method([x, w, i]: [Tensor; 3]) -> Vec<Tensor> {
    let start = i.index(0, 0);
    vec![
        x + 1 - x * x / 2 % 3,
        -x,
        2 * x,
        x.abs().cos().erf().exp().expm1().floor().log().log1p(),
        x.sigmoid()
            .rsqrt()
            .sign()
            .sin()
            .sqrt()
            .tanh()
            .square()
            .erf_inv(),
        x.maximum(0).minimum(x).pow(2),
        x.gt(0).select(x, 1),
        (!x.gt(0) & x.lt(1)).all(..).cast(DType::F32),
        x.stop_gradient().bitcast(DType::U32),
        x.gelu() + x.gelu_exact() + x.relu() + x.silu(),
        x.softmax(-1) + x.log_softmax(0) + x.logsumexp(1).expand_dims(1),
        x.sum(..) + x.mean(..) + x.var(..) + x.max(..) + x.min(..),
        x.argmax(1) + x.argmin(1),
        x.dot(w).matmul(w).dot_as(w, DType::F64),
        einsum("ij,jj->i", [x, w]),
        einsum("ij,jk,kk->ki", [x, w, w]),
        x.reshape([3, 2])
            .transpose([1, 0])
            .swap_axes(0, 1)
            .reverse([0]),
        x.broadcast_to([4, 2, 3])
            .index(0, 1)
            .pad(0, 1, 1, 2)
            .slice(0, 1..3),
        concatenate([x, x], 0),
        x.dynamic_slice(0, start, 1) + x.dynamic_update(0, start, x.slice(0, ..1)),
        x.take(i, 0) + x.take_along(i.one_hot(3, DType::I32), 1) + x.scatter_add(i, x, 0),
        w.tril(0) + Tensor::ones(DType::F32, [3, 3]) + Tensor::arange(DType::F32, 3),
        Tensor::scalar(1, DType::F32) + Tensor::constant(&[1f32], [1]) + x.zeros_like(),
        x.stop_gradient(),
    ]
}

#[test]
fn of_methods() {
    mine(every_method);
}

#[test]
fn of_derivatives() {
    mine(|[x, w, i]| {
        grad(|(x, w): (Tensor, Tensor)| {
            let mut loss = Tensor::scalar(0, DType::F32);
            for y in every_method([x, w, i]) {
                loss += y.sum(..).cast(DType::F32);
            }
            loss
        })((x, w))
    });
    mine(|[x, w, _]| jvp(|x: Tensor| x.dot(w).tanh(), x, x));
    mine(|[x, w, _]| vjp(|x: Tensor| (x.dot(w).tanh(), w), x).1((x, w)));
}

#[test]
fn of_loops() {
    mine(|[x, w, _]| {
        grad(|(x, w): (Tensor, Tensor)| {
            let layer = remat(|(h, w): (Tensor, Tensor)| (h * w).tanh() * 2);
            let layers = Stack((w, Stack::init(3, |i| i.cast(DType::F32)).0));
            layers
                .scan(x, |h: Tensor, (w, i): (Tensor, Tensor)| layer((h, w)) + i)
                .sum(..)
        })((x, w))
    });
}

#[test]
fn scopes_nest_and_reach_the_derivative() {
    let types = [TensorType::new(DType::F32, [2])];
    let graph = graph(types, |[x]| {
        grad(|x: Tensor| scope("block", || scope("mlp", || x.sin())).sum(..))(x)
    });
    let scopes: Vec<(&str, Option<&str>)> = graph
        .equations()
        .iter()
        .map(|e| (e.op.name(), e.scope.as_deref()))
        .collect();
    assert_eq!(scopes, [("cos", Some("block/mlp"))]);
}

#[test]
fn a_scope_that_is_called_like_the_mark_of_backward_passes_is_marked_too() {
    let types = [TensorType::new(DType::F32, [2])];
    let graph = graph(types, |[x]| {
        let inside = |x: Tensor| scope("backward_lstm", || x.sin() * 3.0).sum(..);
        grad(|x: Tensor| inside(x) + (x * 2.0).exp().sum(..))(x)
    });
    let scope_of = |name: &str| {
        let named = graph.equations().iter().filter(|e| e.op.name() == name);
        named.map(|e| e.scope.as_deref()).collect::<Vec<_>>()
    };
    assert_eq!(scope_of("cos"), [Some("backward_lstm")]);
    let products = [None, Some("backward"), Some("backward/backward_lstm")];
    assert_eq!(scope_of("mul"), products);
}
