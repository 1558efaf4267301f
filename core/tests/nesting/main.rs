//! Loops, choices and other constructs inside of each other: what a transform does grows as their depth, and does not double
//! with each level.
//!
//! What is counted is how many functions are traced, which [`Tensor`]'s debug form tells: it names the trace that a tensor
//! belongs to by a number that all traces of the process share. So nothing else is tested here.

mod constructs;

use std::cell::RefCell;

use shardax_core::{
    DType, PartitionSpec, Tensor, TensorType, concatenate, grad, jvp, manual, stack, trace, under,
    vmap,
};
use shardax_sharding::{Layout, Mesh};

use constructs::{BACKWARD, CONSTRUCTS, Construct, Inner, WHILE, most, nest};

/// The number of the next trace.
fn next_trace() -> usize {
    let shown = RefCell::new(String::new());
    let show = |x: Tensor| {
        *shown.borrow_mut() = format!("{x:?}");
        x
    };
    assert!(trace(show, TensorType::scalar(DType::F64)).is_ok());
    let shown = shown.into_inner();
    let (_, number) = shown.split_once("FrameId(").expect("it names its trace");
    number.trim_end_matches(')').parse().expect("a number")
}

/// How many functions are traced for a program, and how many equations it has.
fn cost(f: &dyn Fn(Tensor) -> Tensor) -> [usize; 2] {
    let before = next_trace();
    let traced = trace(f, TensorType::new(DType::F64, [3]));
    let graph = traced.unwrap_or_else(|error| panic!("{error}")).graph;
    [next_trace() - before, graph.equation_count()]
}

/// What a transform makes of a function.
type Transform = fn(Tensor, Inner) -> Tensor;

const TRACE: (&str, Transform) = ("trace", |x, f| f(x));
const GRAD: (&str, Transform) = ("grad", |x, f| grad(|x: Tensor| f(x).sum(..))(x));
const JVP: (&str, Transform) = ("jvp", |x, f| jvp(f, x, x).1);
const VMAP: (&str, Transform) = ("vmap", |x, f| vmap(f)(stack([x, x], 0)).sum(0));

/// Five times the depth is at most so many times as much.
#[track_caller]
fn check(what: &str, around: Transform, pair: [Construct; 2], most: usize) {
    let at = |levels: usize| cost(&|x| around(x, &|x| nest(x, pair, levels)));
    let (low, high) = (at(4), at(20));
    for (low, high) in low.into_iter().zip(high) {
        assert!(high <= most * low, "{what}: {low} became {high}");
    }
}

#[test]
fn nothing_doubles_with_each_level() {
    let (mut both, mut reverse) = (CONSTRUCTS.to_vec(), CONSTRUCTS.to_vec());
    both.push(WHILE);
    reverse.push(BACKWARD);
    for (constructs, transforms) in [
        (both, vec![TRACE, JVP, VMAP]),
        (reverse, vec![TRACE, GRAD, VMAP]),
    ] {
        for (transform, around) in transforms {
            for (i, (outer, a)) in constructs.iter().enumerate() {
                for (inner, b) in &constructs[..=i] {
                    let what = format!("{transform} of {outer} and {inner} in turn");
                    check(&what, around, [*a, *b], most([outer, inner]));
                }
            }
        }
    }
    // In a region, where functions are written again for what differs between devices.
    let layout = Layout::new("data=2".parse::<Mesh>().expect("a mesh"));
    for (name, construct) in CONSTRUCTS {
        let at = |levels: usize| {
            under(&layout, || {
                cost(&|x| {
                    let f = |x: Tensor| nest(x, [construct, construct], levels);
                    let rows = || PartitionSpec::new(["data"]);
                    manual("data", rows(), rows(), f)(concatenate([x, x], 0))
                })
            })
        };
        let (low, high) = (at(4), at(20));
        assert!(
            high[0] <= most([name, name]) * low[0],
            "{name} in a region: {low:?} became {high:?}"
        );
    }
}
