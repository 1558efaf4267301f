//! How the time of tracing, differentiating and lowering grows with the size of the program, and how
//! the size of a program grows with the number of layers in a scan.
//!
//! Prints a table; the figure to watch is the time of one equation, which should not grow.
//! `cargo bench --bench growth`

use std::error::Error;
use std::time::{Duration, Instant};

use shardax::prelude::*;
use shardax::xla::lower::{self, Argument};
use shardax::{ir::Graph, trace};

/// A program of `equations` equations: a chain of the operations that models are made of.
fn chain(x: Tensor, equations: usize) -> Tensor {
    let mut x = x;
    for _ in 0..equations / 4 {
        x = (x * 0.5 + x.sin()).tanh();
    }
    x
}

fn layers(x: Tensor, weights: Tensor) -> Tensor {
    scan(x, weights, |h: Tensor, w: Tensor| (h.dot(w).tanh(), ()))
        .0
        .sum(..)
}

struct Times {
    traced: Duration,
    differentiated: Duration,
    lowered: Duration,
    equations: usize,
}

fn measure(equations: usize) -> Result<Times, Box<dyn Error>> {
    let ty = TensorType::new(DType::F32, [8]);
    let start = Instant::now();
    let plain = trace(|x: Tensor| chain(x, equations), ty.clone())?;
    let traced = start.elapsed();
    let found = plain.graph.equation_count();
    let start = Instant::now();
    let gradient = trace(grad(|x: Tensor| chain(x, equations).sum(..)), ty)?;
    // The gradient traces the function once itself.
    let differentiated = start.elapsed().saturating_sub(traced);
    let start = Instant::now();
    lowered(&gradient.graph)?;
    Ok(Times {
        traced,
        differentiated,
        lowered: start.elapsed(),
        equations: found,
    })
}

/// The bytes of the module.
fn lowered(graph: &Graph) -> Result<usize, Box<dyn Error>> {
    let layout = Layout::new(Mesh::new([("data", 1)])?);
    let arguments = vec![Argument::default(); graph.inputs().len()];
    let results = vec![None; graph.outputs().len()];
    let module = lower::lower(&lower::Program {
        name: "growth",
        graph,
        layout: &layout,
        arguments: &arguments,
        results: &results,
        on_host: true,
    })
    .map_err(shardax::xla::Error::from)?;
    Ok(module.text().len())
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("equations      trace  differentiate      lower        sum  ns/equation");
    for size in [1_000, 10_000, 100_000, 300_000] {
        // The fastest of three: what the program takes, not what else the machine does.
        let mut best: Option<(Duration, Times)> = None;
        for _ in 0..3 {
            let times = measure(size)?;
            let sum = times.traced + times.differentiated + times.lowered;
            if best.as_ref().is_none_or(|(fastest, _)| sum < *fastest) {
                best = Some((sum, times));
            }
        }
        let Some((sum, times)) = best else { continue };
        println!(
            "{:>9}  {:>7.1} ms     {:>7.1} ms {:>7.1} ms {:>7.1} ms  {:>11.0}",
            times.equations,
            times.traced.as_secs_f64() * 1e3,
            times.differentiated.as_secs_f64() * 1e3,
            times.lowered.as_secs_f64() * 1e3,
            sum.as_secs_f64() * 1e3,
            sum.as_nanos() as f64 / times.equations as f64
        );
    }
    println!("\nlayers in a scan  equations of the gradient  bytes of StableHLO");
    for count in [2, 32, 512] {
        let types = (
            TensorType::new(DType::F32, [4, 16]),
            TensorType::new(DType::F32, [count, 16, 16]),
        );
        let step = |x: Tensor, w: Tensor| grad(|w: Tensor| layers(x, w))(w);
        let traced = trace(step, types)?;
        println!(
            "{count:>16}  {:>25}  {:>18}",
            traced.graph.equation_count(),
            lowered(&traced.graph)?
        );
    }
    Ok(())
}
