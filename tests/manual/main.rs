//! Manual regions: values, derivatives, batches and loops, against what one device computes, under
//! both partitioners; and what is refused.

mod derivatives;
mod edges;
mod laws;
mod mistakes;
mod values;

use shardax::prelude::*;

/// A layout without rules over `data=2, model=4`, or another mesh, for each partitioner.
pub(crate) fn layouts(mesh: &str) -> Vec<Layout> {
    [Partitioner::Shardy, Partitioner::Gspmd]
        .into_iter()
        .map(|partitioner| layout(mesh).partitioner(partitioner))
        .collect()
}

pub(crate) fn layout(mesh: &str) -> Layout {
    Layout::new(mesh.parse().unwrap())
}

/// 0, 1, 2, ... scaled to about one.
pub(crate) fn counted(shape: &[usize]) -> Array {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
    Array::from_slice(&values, shape).unwrap()
}

pub(crate) fn close(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!(
            (f - w).abs() <= 1e-5 * w.abs().max(1.0),
            "element {i}: {f} instead of {w}\n{found:?}\n{wanted:?}"
        );
    }
}

/// A region, and the same computation written for one device, of `x` f64[16,4] and `w` f64[4,4].
pub(crate) type Case = (&'static str, Computed, Computed);

type Computed = fn(Tensor, Tensor) -> Tensor;

/// Numbers of which no two are equal.
fn numbers(shape: [usize; 2], by: f64) -> Array {
    let values = (0..shape[0] * shape[1]).map(|i| (i as f64 * by).sin());
    Array::from_slice(&values.collect::<Vec<_>>(), shape).unwrap()
}

/// Checks values and both gradients of all cases, in one program for each layout.
pub(crate) fn check(cases: &[Case], layouts: &[Layout]) {
    let program = |of: fn(&Case) -> Computed| {
        let all = move |x: Tensor, w: Tensor| {
            let results = cases.iter().map(|case| {
                let loss = |(x, w): (Tensor, Tensor)| {
                    let value = of(case)(x, w);
                    let weights = (Tensor::arange(DType::F64, value.flatten().size(0)) * 0.7).cos();
                    ((value.flatten() * weights).sum(..), value)
                };
                let ((_, value), gradients) = value_and_grad(loss)((x, w));
                (value, gradients)
            });
            results.collect::<Vec<_>>()
        };
        jit(all).xla_option("xla_backend_optimization_level", 0)
    };
    let args = || (numbers([16, 4], 0.37), numbers([4, 4], 0.73));
    let wanted = program(|case| case.2).call(args()).unwrap();
    let mut wrong = Vec::new();
    for layout in layouts {
        let found = program(|case| case.1).layout(layout).call(args()).unwrap();
        for ((name, ..), (found, wanted)) in cases.iter().zip(found.iter().zip(&wanted)) {
            let parts = [
                ("value", &found.0, &wanted.0),
                ("gradient of x", &found.1.0, &wanted.1.0),
                ("gradient of w", &found.1.1, &wanted.1.1),
            ];
            for (what, found, wanted) in parts {
                let [f, w] = [found, wanted].map(|array| array.to_vec::<f64>().unwrap());
                let near = |(f, w): (&f64, &f64)| (f - w).abs() <= 1e-10 * w.abs().max(1.0);
                if f.len() != w.len() || !f.iter().zip(&w).all(near) {
                    let by = layout.chosen_partitioner();
                    wrong.push(format!("{name}, {by}, {what}: {f:?}, not {w:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
