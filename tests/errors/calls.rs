//! Calls and arrays.

use shardax::prelude::*;
use shardax::{Literal, PartitionSpec, Runtime, Sharding, host_call};

use super::{Outcome, chapter, ones};

chapter![
    values_that_do_not_fill_the_shape,
    an_array_read_as_another_type,
    one_element_of_many,
    an_argument_donated_for_nothing,
    an_array_donated_and_used,
    an_array_after_its_donation,
    a_donation_of_no_argument,
    an_array_of_another_client,
    rows_that_the_devices_do_not_divide,
    a_block_that_is_not_whole,
    a_host_function_that_fails,
    a_host_function_of_other_results,
    a_number_that_is_not_finite,
];

/// Values that do not fill the shape
///
/// Give as many values as the shape has elements, the last dimension varying fastest.
fn values_that_do_not_fill_the_shape() -> Outcome {
    Array::from_slice(&[1f32, 2.0, 3.0], [2, 2])?;
    Ok(())
}

/// An array read as another type
///
/// Reading does not convert.
fn an_array_read_as_another_type() -> Outcome {
    let sum = jit(|x: Tensor| x.sum(..)).call(ones(&[3]))?;
    sum.item::<f64>()?;
    Ok(())
}

/// One element of many
///
/// Reduce in the program, or read all of them.
fn one_element_of_many() -> Outcome {
    let losses = jit(|x: Tensor| x * 2.0).call(ones(&[3]))?;
    losses.item::<f32>()?;
    Ok(())
}

/// An argument donated for nothing
///
/// A donated argument gives its memory to a result of the same type. One that has no such result keeps it: do not donate it.
fn an_argument_donated_for_nothing() -> Outcome {
    fn step(w: Tensor, x: Tensor) -> (Tensor, Tensor) {
        let loss = w.dot(x).square().sum(..);
        (w - 0.1, loss)
    }
    jit(step)
        .donate(&[0, 1])
        .call((ones(&[2, 3]), ones(&[3])))?;
    Ok(())
}

/// An array that is donated and used at once
///
/// The memory is overwritten while the other argument is read: make a copy first, by a program that returns it twice.
fn an_array_donated_and_used() -> Outcome {
    let x = jit(|x: Tensor| x * 1.0).call(ones(&[3]))?;
    let add = jit(|x: Tensor, y: Tensor| x + y).name("add").donate(&[0]);
    add.call((x.clone(), x))?;
    Ok(())
}

/// An array after its donation
///
/// Go on with the result: `state = step.call(state)?`.
fn an_array_after_its_donation() -> Outcome {
    let double = jit(|x: Tensor| x * 2.0).name("double").donate(&[0]);
    let first = double.call(ones(&[3]))?;
    double.call(first.clone())?;
    double.call(first)?;
    Ok(())
}

/// A donation of an argument that is not there
///
/// Arguments count from 0.
fn a_donation_of_no_argument() -> Outcome {
    let double = jit(|x: Tensor| x * 2.0).name("double").donate(&[1]);
    double.call(ones(&[3]))?;
    Ok(())
}

/// An array of another client
///
/// Programs of one process share a runtime unless one is given; then give all of them the same.
fn an_array_of_another_client() -> Outcome {
    let (one, two) = (Runtime::cpu(1)?, Runtime::cpu(1)?);
    let x = jit(|x: Tensor| x * 2.0).runtime(&one).call(ones(&[3]))?;
    jit(|x: Tensor| x + 1.0)
        .name("increment")
        .runtime(&two)
        .call(x)?;
    Ok(())
}

/// Rows that the devices do not divide
///
/// Nothing is padded for you, since a mean or a loss would have to know of it: drop or repeat rows, or pad them and mask
/// them in the program.
fn rows_that_the_devices_do_not_divide() -> Outcome {
    let rows = Sharding::new(Mesh::new([("data", 8)])?, PartitionSpec::new(("data", ())));
    ones(&[17, 4]).reshard(&rows)?;
    Ok(())
}

/// A block that is not whole
///
/// The callback gives as many elements as the bounds it is given have.
fn a_block_that_is_not_whole() -> Outcome {
    let rows = Sharding::new(Mesh::new([("data", 8)])?, PartitionSpec::new(("data", ())));
    let row = |_: &[std::ops::Range<usize>]| Ok::<_, std::io::Error>(vec![1f32; 4]);
    Array::from_callback([16, 4], &rows, row)?;
    Ok(())
}

/// A host function that fails
///
/// What the closure returns as `Err` comes from reading the program's results, with the line of the call.
fn a_host_function_that_fails() -> Outcome {
    let checked = |x: Tensor| {
        host_call("positive", [x], x.ty(), |values: &[Literal]| {
            let negative = values[0]
                .numbers()
                .iter()
                .find(|n| n.as_f64() < 0.0)
                .copied();
            match negative {
                Some(n) => Err(format!("{n} is negative")),
                None => Ok(values.to_vec()),
            }
        })
    };
    let x = Array::from_slice(&[1f32, -2.0], [2])?;
    jit(checked).call(x)?.to_vec::<f32>()?;
    Ok(())
}

/// A host function of other results
///
/// The closure returns a literal for each type that was declared, of that type.
fn a_host_function_of_other_results() -> Outcome {
    let total = |x: Tensor| host_call("total", [x], x.sum(..).ty(), |values| Ok(values.to_vec()));
    jit(total).call(ones(&[3]))?.to_vec::<f32>()?;
    Ok(())
}

/// A number that is not finite
///
/// Without `debug_nans()` NaN is a value like others. Look at the operands of the operation that is named: here
/// `p.gt(0).select(p * p.log(), 0)` is meant.
fn a_number_that_is_not_finite() -> Outcome {
    let entropy = |p: Tensor| -(p * p.log()).sum(..);
    let p = Array::from_slice(&[1f32, 0.0], [2])?;
    jit(entropy).name("entropy").debug_nans().call(p)?;
    Ok(())
}
