//! Constructs inside of each other are lowered in as much text as their depth.

#[path = "../../core/tests/nesting/constructs.rs"]
mod constructs;

use shardax_core::{DType, Tensor, TensorType, grad, trace, vmap};
use shardax_sharding::{Layout, Mesh};
use shardax_xla::lower::{self, Argument};

use constructs::{BACKWARD, CONSTRUCTS, Construct, Inner, WHILE, most, nest};

/// The lines of the module.
fn lines(f: &dyn Fn(Tensor) -> Tensor) -> usize {
    let traced = trace(f, TensorType::new(DType::F64, [3]));
    let graph = traced.unwrap_or_else(|error| panic!("{error}")).graph;
    let mesh: Mesh = "data=2".parse().expect("a mesh");
    let module = lower::lower(&lower::Program {
        name: "nested",
        graph: &graph,
        layout: &Layout::new(mesh).shard("batch", "data"),
        arguments: &vec![Argument::default(); graph.inputs().len()],
        results: &vec![None; graph.outputs().len()],
        on_host: true,
    });
    let module = module.unwrap_or_else(|faults| panic!("{faults:?}"));
    module.text().lines().count()
}

type Transform = fn(Tensor, Inner) -> Tensor;

#[track_caller]
fn check(transform: &str, around: Transform, constructs: &[(&str, Construct)]) {
    for (i, (outer, a)) in constructs.iter().enumerate() {
        for (inner, b) in &constructs[..=i] {
            let at = |levels: usize| lines(&|x| around(x, &|x| nest(x, [*a, *b], levels)));
            let (low, high) = (at(4), at(20));
            // What the innermost level keeps for the backward pass is handed out by each level around it.
            let most = match transform {
                "grad" => 25,
                _ => most([outer, inner]),
            };
            assert!(
                high <= most * low,
                "{transform} of {outer} and {inner}: {low} became {high}"
            );
        }
    }
}

#[test]
fn the_text_grows_as_the_depth() {
    let (mut all, mut reverse) = (CONSTRUCTS.to_vec(), CONSTRUCTS.to_vec());
    all.extend([WHILE, BACKWARD]);
    reverse.push(BACKWARD);
    check("trace", |x, f| f(x), &all);
    check("grad", |x, f| grad(|x: Tensor| f(x).sum(..))(x), &reverse);
    check("vmap", |x, f| vmap(f)(x.broadcast_to([2, 3])).sum(0), &all);
}
