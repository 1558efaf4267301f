//! Loops, branches and batches.

use shardax::prelude::*;
use shardax::{cond, fori_loop, switch, vmap, vmap_axes, while_loop};

use super::{Outcome, chapter, ones};

chapter![
    a_carry_that_changes_its_type,
    a_carry_that_grows,
    leaves_of_other_lengths,
    nothing_to_scan_over,
    branches_that_return_other_types,
    a_predicate_of_many_elements,
    a_branch_by_a_float,
    a_condition_that_is_a_number,
    a_bound_that_is_a_float,
    batches_of_other_sizes,
    a_batch_axis_that_is_not_there,
    nothing_is_mapped,
    a_function_that_calls_itself,
];

/// A carry that changes its type
///
/// The carry of a loop has one type from the first step to the last: start with the type that the body returns, or
/// convert what it returns.
fn a_carry_that_changes_its_type() -> Outcome {
    let count = |xs: Tensor| {
        let zero = Tensor::scalar(0, DType::I32);
        scan(zero, xs, |n: Tensor, x: Tensor| (n + x, ())).0
    };
    jit(count).call(ones(&[5]))?;
    Ok(())
}

/// A carry that grows
///
/// Shapes are known while tracing. Return what each step makes as the second result, and the loop stacks it.
fn a_carry_that_grows() -> Outcome {
    let history = |xs: Tensor| {
        let append = |h: Tensor, x: Tensor| (concatenate([h, x.expand_dims(0)], 0), ());
        scan(Tensor::zeros(DType::F32, [0]), xs, append).0
    };
    jit(history).call(ones(&[5]))?;
    Ok(())
}

/// Scanning over leaves of other lengths
///
/// A scan takes one element of every leaf in each step.
fn leaves_of_other_lengths() -> Outcome {
    let products = |xs: (Tensor, Tensor)| scan((), xs, |(), (x, y)| ((), x * y)).1;
    jit(|x, y| products((x, y))).call((ones(&[5, 2]), ones(&[4, 2])))?;
    Ok(())
}

/// Scanning over nothing
///
/// The number of steps is that of the elements; with no elements to read, count.
fn nothing_to_scan_over() -> Outcome {
    let forever = |x: Tensor| scan(x, (), |x: Tensor, ()| (x * 2.0, ())).0;
    jit(forever).call(ones(&[2]))?;
    Ok(())
}

/// Branches that return other types
///
/// The program has one result whatever branch it takes: make them return the same structure, shapes and types.
fn branches_that_return_other_types() -> Outcome {
    let choose = |p: Tensor, x: Tensor| {
        let big = p.sum(..).gt(0);
        cond(big, x, |x: Tensor| (x, x.sum(..)), |x: Tensor| (x, x.gt(0)))
    };
    jit(choose).call((ones(&[2]), ones(&[3])))?;
    Ok(())
}

/// A predicate of many elements
///
/// `cond` takes one branch for the whole operand; `select` chooses element by element.
fn a_predicate_of_many_elements() -> Outcome {
    let relu = |x: Tensor| cond(x.gt(0), x, |x: Tensor| x, |x: Tensor| x.zeros_like());
    jit(relu).call(ones(&[3]))?;
    Ok(())
}

/// A branch by a float
///
/// Convert the index, and decide how it is rounded: `i.floor().cast(DType::I32)`.
fn a_branch_by_a_float() -> Outcome {
    let choose = |i: Tensor, x: Tensor| {
        let branches: [fn(Tensor) -> Tensor; 2] = [|x| x.sin(), |x| x.cos()];
        switch(i, x, branches)
    };
    jit(choose).call((ones(&[]), ones(&[3])))?;
    Ok(())
}

/// A condition that is a number
///
/// Compare: numbers are not true or false.
fn a_condition_that_is_a_number() -> Outcome {
    let halve = |x: Tensor| while_loop(x, |x: Tensor| x - 1.0, |x: Tensor| x * 0.5);
    jit(halve).call(ones(&[]))?;
    Ok(())
}

/// A bound that is a float
///
/// A loop counts with integers.
fn a_bound_that_is_a_float() -> Outcome {
    let power = |n: Tensor, x: Tensor| fori_loop(0, n, x, |_, y: Tensor| y * x);
    jit(power).call((ones(&[]), ones(&[3])))?;
    Ok(())
}

/// Batches of other sizes
///
/// `vmap` takes one element of every argument at a time; `None` in `vmap_axes` is for one that is the same for all.
fn batches_of_other_sizes() -> Outcome {
    let dots = |x: Tensor, w: Tensor| vmap(|(x, w): (Tensor, Tensor)| x.dot(w))((x, w));
    jit(dots).call((ones(&[8, 3]), ones(&[3, 5])))?;
    Ok(())
}

/// A batch axis that is not there
///
/// Axes are those of the argument as it is given, with its batch.
fn a_batch_axis_that_is_not_there() -> Outcome {
    let sums = |x: Tensor| vmap_axes(|x: Tensor| x.sum(..), [Some(2)], 0)(x);
    jit(sums).call(ones(&[8, 3]))?;
    Ok(())
}

/// A batch of which nothing is mapped
///
/// Without a mapped argument nothing says how large the batch is; call the function itself.
fn nothing_is_mapped() -> Outcome {
    let sums = |x: Tensor| vmap_axes(|x: Tensor| x.sum(..), [None], 0)(x);
    jit(sums).call(ones(&[8, 3]))?;
    Ok(())
}

/// A function that calls itself without an end
///
/// Both branches of a `cond` are traced, whatever it will choose: a recursion ends by a number of levels that Rust counts,
/// or is written as a loop.
fn a_function_that_calls_itself() -> Outcome {
    fn halved(x: Tensor) -> Tensor {
        let half = |x: Tensor| halved(x * 0.5);
        cond(x.gt(1), x, half, |x: Tensor| x)
    }
    jit(halved).call(Array::scalar(9f32))?;
    Ok(())
}
