//! Manual regions: values, derivatives, batches and loops, against what one device computes, under
//! both partitioners; and what is refused.

mod derivatives;
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
