//! Large programs: no transform takes time that grows faster than the program.

use std::time::{Duration, Instant};

use shardax_core::{DType, Graph, Tensor, TensorType, grad, remat, scan, trace};

/// The longest of a few runs would be fair on a quiet machine; the shortest is on a busy one.
fn time(f: impl Fn() -> Graph) -> Duration {
    let once = || {
        let start = Instant::now();
        let graph = f();
        assert!(graph.equation_count() > 0);
        start.elapsed()
    };
    (0..3).map(|_| once()).min().unwrap_or_default()
}

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

/// Ten times the program takes at most about ten times as long.
#[track_caller]
fn grows_linearly(small: usize, f: impl Fn(Tensor, usize) -> Tensor) {
    let (short, long) = (
        time(|| gradient(small, &f)),
        time(|| gradient(10 * small, &f)),
    );
    println!("{small}: {short:?}, {}: {long:?}", 10 * small);
    assert!(
        long < 30 * short + Duration::from_millis(20),
        "{short:?} became {long:?}"
    );
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
