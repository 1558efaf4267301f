//! Functions of networks: values by their formulas, derivatives, batches, and what happens at edges.

mod attention;
mod embeddings;
mod functions;
mod losses;
mod mistakes;
mod norms;

use shardax_core::{Tensor, grad};

use crate::interpreter::Array;
use crate::support::floats;

/// Elements of `found` are those of `wanted`, NaN where that is NaN.
#[track_caller]
fn same(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len(), "{found:?} {wanted:?}");
    for (a, b) in found.iter().zip(wanted) {
        let near = a == b || (a - b).abs() <= 1e-12 * b.abs().max(1.0);
        assert!(near || (a.is_nan() && b.is_nan()), "{found:?} {wanted:?}");
    }
}

/// The gradient of the sum of `f` at `x`.
fn gradient(x: &[f64], f: impl Fn(Tensor) -> Tensor) -> Vec<f64> {
    let x = [Array::f64(&[x.len()], x.iter().copied())];
    floats(&x, |[x]| grad(|x: Tensor| f(x).sum(..))(x))
}
