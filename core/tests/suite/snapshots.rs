//! Printed programs: derivatives hold no equation that a person would not have written.

use shardax_core::{DType, Stack, Tensor, TensorType, grad, remat, scan, value_and_grad};

use crate::support::graph;

fn f32<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

#[test]
fn the_gradient_of_a_small_network() {
    let types = [f32([8, 3]), f32([3, 4]), f32([4]), f32([4, 2])];
    let graph = graph(types, |[x, w, b, v]| {
        let loss = |(w, b, v): (Tensor, Tensor, Tensor)| {
            let hidden = (x.dot(w) + b).tanh();
            hidden.dot(v).square().mean(..)
        };
        value_and_grad(loss)((w, b, v))
    });
    insta::assert_snapshot!(graph, @"");
}

#[test]
fn the_gradient_of_cross_entropy() {
    let graph = graph([f32([8, 10]), TensorType::new(DType::I32, [8])], |[x, targets]| {
        grad(|x: Tensor| {
            let picked = (x * targets.one_hot(10, DType::F32)).sum(-1);
            (x.logsumexp(-1) - picked).mean(..)
        })(x)
    });
    insta::assert_snapshot!(graph, @"");
}

#[test]
fn the_gradient_of_gelu_layer_norm() {
    let graph = graph([f32([8, 10])], |[x]| {
        grad(|x: Tensor| {
            let centred = x - x.mean(-1).expand_dims(-1);
            let normal = centred * (centred.square().mean(-1) + 1e-5).rsqrt().expand_dims(-1);
            normal.gelu().sum(..)
        })(x)
    });
    insta::assert_snapshot!(graph, @"");
}

#[test]
fn the_gradient_of_a_scan() {
    let types = [f32([6, 4, 4]), f32([6, 4]), f32([2, 4])];
    let graph = graph(types, |[w, b, h]| {
        grad(|(w, b): (Tensor, Tensor)| {
            let layer = |h: Tensor, (w, b): (Tensor, Tensor)| h + (h.dot(w) + b).gelu() * 0.5;
            Stack((w, b)).scan(h, layer).sum(..)
        })((w, b))
    });
    insta::assert_snapshot!(graph, @"");
}

#[test]
fn the_gradient_of_a_rematerialized_layer() {
    let graph = graph([f32([4, 4]), f32([2, 4])], |[w, x]| {
        grad(|w: Tensor| remat(|w: Tensor| x.dot(w).sin().dot(w).cos())(w).sum(..))(w)
    });
    insta::assert_snapshot!(graph, @"");
}

#[test]
fn the_gradient_of_a_loop_of_rematerialized_layers() {
    let graph = graph([f32([6, 4, 4]), f32([2, 4])], |[w, h]| {
        grad(|w: Tensor| {
            let layer = remat(|(h, w): (Tensor, Tensor)| h.dot(w).tanh().dot(w) + h);
            scan(h, w, |h: Tensor, w: Tensor| (layer((h, w)), ())).0.sum(..)
        })(w)
    });
    insta::assert_snapshot!(graph, @"");
}

#[test]
fn the_gradient_of_an_attention_head() {
    let types = [f32([2, 8, 4]), f32([2, 8, 4]), f32([2, 8, 4])];
    let graph = graph(types, |[q, k, v]| {
        grad(|(q, k, v): (Tensor, Tensor, Tensor)| {
            let scores = shardax_core::einsum("btd,bsd->bts", [q, k]) * 0.5;
            let mask = Tensor::iota(DType::I32, [8, 8], 0).ge(Tensor::iota(DType::I32, [8, 8], 1));
            let weights = mask.select(scores, -1e30).softmax(-1);
            shardax_core::einsum("bts,bsd->btd", [weights, v]).square().sum(..)
        })((q, k, v))
    });
    insta::assert_snapshot!(graph, @"");
}
