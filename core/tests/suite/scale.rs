//! Large programs: what a transform writes grows as the program does, and no faster. (How long it takes
//! is measured by `benches/growth.rs`.)

use shardax_core::{DType, Tensor, TensorType, grad, ir::Graph, remat, scan, trace};

fn chain(x: Tensor, length: usize) -> Tensor {
    (0..length / 2).fold(x, |x, _| x.sin() * 0.5)
}

fn gradient(length: usize, f: impl Fn(Tensor, usize) -> Tensor) -> Graph {
    let traced = trace(
        |x: Tensor| grad(|x: Tensor| f(x, length).sum(..))(x),
        TensorType::new(DType::F32, [4]),
    );
    traced.unwrap_or_else(|error| panic!("{error}")).graph
}

/// Ten times the program is at most about ten times as much.
#[track_caller]
fn grows_linearly(small: usize, f: impl Fn(Tensor, usize) -> Tensor) {
    let count = |length| gradient(length, &f).equation_count();
    let (short, long) = (count(small), count(10 * small));
    assert!(short > 0 && long <= 11 * short, "{short} became {long}");
}

#[test]
fn a_long_program() {
    grows_linearly(1_000, chain);
}

#[test]
fn a_long_loop_body() {
    let ones = || Tensor::ones(DType::F32, [3]);
    grows_linearly(1_000, |x, length| {
        scan(x, ones(), |x: Tensor, one: Tensor| {
            (chain(x * one, length), ())
        })
        .0
    });
}

#[test]
fn a_long_rematerialized_function() {
    grows_linearly(1_000, |x, length| remat(|x: Tensor| chain(x, length))(x));
}

#[test]
fn many_carries_that_feed_one_another() {
    grows_linearly(200, |x, count| {
        let ones = Tensor::ones(DType::F32, [3]);
        let carries = vec![x; count];
        let shift = |carries: Vec<Tensor>, one: Tensor| {
            let mut next = carries.clone();
            next.rotate_left(1);
            next[0] = next[0].sin() * one;
            (next, ())
        };
        scan(carries, ones, shift).0[0]
    });
}

#[test]
fn many_small_gradients() {
    grows_linearly(300, |x, count| {
        (0..count).fold(x, |x, _| grad(|x: Tensor| (x.sin() * x).sum(..))(x))
    });
}

#[test]
fn many_captures() {
    grows_linearly(300, |x, count| {
        let outer: Vec<Tensor> = (0..count).map(|i| x * i as f64).collect();
        let sum = |x: Tensor| outer.iter().fold(x, |sum, &t| sum * t.sin());
        scan(
            x,
            Tensor::ones(DType::F32, [3]),
            |x: Tensor, one: Tensor| (sum(x) * one, ()),
        )
        .0
    });
}
