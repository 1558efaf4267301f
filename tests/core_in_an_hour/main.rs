//! The small Shardax of `docs/core.md` computes what it should, and is what stands there.

mod small;

use shardax::Runtime;
use shardax::xla::pjrt::{CompileOptions, ElementType, ExecuteOptions};
use small::{Graph, Tensor, interpret, jvp, lower, trace, value_and_grad, vmap};

const TEXT: &str = include_str!("../../docs/core.md");
const CODE: &str = include_str!("small.rs");

/// The code between fences is the file but for its first lines, so that what is read is what is tested.
#[test]
fn the_text_has_the_code_that_is_tested() {
    let blocks = TEXT
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or(""));
    let text = blocks.collect::<Vec<_>>().join("\n");
    let code = CODE.split_once("\n\n").map_or("", |(_, code)| code);
    assert_eq!(text, code, "`docs/core.md` and `small.rs` differ");
}

/// `sum(sin(x) * x + x)`, of a vector of three.
fn function() -> Graph {
    let f = |x: &[Tensor]| vec![(x[0].sin() * x[0] + x[0]).sum(0)];
    trace(f, &[vec![3]])
}

const X: [f64; 3] = [0.3, -1.2, 2.5];

fn value(x: &[f64]) -> f64 {
    x.iter().map(|x| x.sin() * x + x).sum()
}

fn slope(x: f64) -> f64 {
    x.cos() * x + x.sin() + 1.0
}

fn near(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    let pairs = found.iter().zip(wanted);
    assert!(
        pairs.into_iter().all(|(f, w)| (f - w).abs() < 1e-12),
        "{found:?} {wanted:?}"
    );
}

#[test]
fn values_and_derivatives_in_both_modes() {
    let f = function();
    near(&interpret(&f, &[X.to_vec()])[0], &[value(&X)]);
    let t = [0.5, 2.0, -1.0];
    let forward = interpret(&jvp(&f), &[X.to_vec(), t.to_vec()]);
    near(&forward[0], &[value(&X)]);
    near(
        &forward[1],
        &[X.iter().zip(t).map(|(x, t)| slope(*x) * t).sum()],
    );
    let backward = interpret(&value_and_grad(&f), &[X.to_vec()]);
    near(&backward[0], &[value(&X)]);
    near(&backward[1], &X.map(slope));
    // A gradient is a program, and can be differentiated again: here along t.
    let second = interpret(&jvp(&value_and_grad(&f)), &[X.to_vec(), t.to_vec()]);
    let curvature = |x: f64| 2.0 * x.cos() - x * x.sin();
    let wanted: Vec<f64> = X.iter().zip(t).map(|(x, t)| curvature(*x) * t).collect();
    near(&second[3], &wanted);
}

#[test]
fn a_batch_is_a_loop() {
    let f = |x: &[Tensor]| vec![(x[0].sin() * x[1]).sum(0)];
    let f = trace(f, &[vec![3], vec![3]]);
    let (many, one) = ([X, [1.0, 2.0, 3.0]].concat(), vec![2.0, 0.5, -1.0]);
    let all = interpret(
        &vmap(&value_and_grad(&f), 2, &[true, false]),
        &[many.clone(), one.clone()],
    );
    for (i, x) in many.chunks(3).enumerate() {
        let alone = interpret(&value_and_grad(&f), &[x.to_vec(), one.clone()]);
        near(&all[0][i..i + 1], &alone[0]);
        near(&all[1][3 * i..3 * i + 3], &alone[1]);
        near(&all[2][3 * i..3 * i + 3], &alone[2]);
    }
}

#[test]
#[should_panic(expected = "Add: [3] does not fit [2]")]
fn what_does_not_fit_is_told() {
    trace(|x: &[Tensor]| vec![x[0] + x[1]], &[vec![3], vec![2]]);
}

#[test]
fn xla_runs_it() -> Result<(), Box<dyn std::error::Error>> {
    let graph = vmap(&value_and_grad(&function()), 2, &[true]);
    let x = [X, [1.0, 2.0, 3.0]].concat();
    let runtime = Runtime::shared(1)?;
    let client = runtime.client();
    let program = client.compile(lower(&graph).as_bytes(), &CompileOptions::default())?;
    let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let x_there = client.buffer_from_host(&bytes, ElementType::F64, &[2, 3], 0)?;
    let results = program.execute(1, |_, _| &x_there, &ExecuteOptions::default())?;
    for (found, wanted) in results.outputs.iter().zip(interpret(&graph, &[x])) {
        let numbers = found.to_host()?;
        let numbers = numbers
            .chunks_exact(8)
            .map(|b| b.try_into().map(f64::from_le_bytes));
        near(&numbers.collect::<Result<Vec<f64>, _>>()?, &wanted);
    }
    Ok(())
}
