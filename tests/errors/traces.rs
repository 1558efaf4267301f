//! Tensors where they do not live.

use std::cell::Cell;

use shardax::prelude::*;

use super::{Outcome, chapter, ones};

chapter![
    a_tensor_kept_from_an_earlier_trace,
    a_tensor_that_leaves_a_loop,
    a_tensor_outside_of_any_trace,
];

/// A tensor kept from an earlier trace
///
/// A tensor is a handle into the program being traced. What is to be kept between calls is returned, as an `Array`, and
/// given to the next call as an argument.
fn a_tensor_kept_from_an_earlier_trace() -> Outcome {
    let last = Cell::new(None);
    let step = jit(|x: Tensor| {
        let previous = last.replace(Some(x)).unwrap_or(x);
        x - previous
    });
    step.call(ones(&[3]))?;
    step.call(ones(&[4]))?;
    Ok(())
}

/// A tensor that leaves the body of a loop
///
/// Return it from the body: as part of the carry if the last one is wanted, as the second result if all are.
fn a_tensor_that_leaves_a_loop() -> Outcome {
    let last = |xs: Tensor| {
        let last = Cell::new(xs);
        scan((), xs, |(), x: Tensor| {
            last.set(x);
            ((), ())
        });
        last.get() * 2.0
    };
    jit(last).call(ones(&[3]))?;
    Ok(())
}

/// A tensor outside of any trace
///
/// Tensors are made inside of the function that is given to `jit`; values outside are `Array`s.
fn a_tensor_outside_of_any_trace() -> Outcome {
    let x = Tensor::zeros(DType::F32, [3]);
    let y = x + 1.0;
    println!("{y:?}");
    Ok(())
}
