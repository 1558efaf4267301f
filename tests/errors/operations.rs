//! Shapes and element types.

use shardax::nn::{self, AttentionOptions, CrossEntropyOptions};
use shardax::prelude::*;
use shardax::{ConvOptions, s};

use super::{Outcome, chapter, ones};

chapter![
    shapes_that_do_not_broadcast,
    a_product_of_sizes_that_differ,
    a_product_with_a_scalar,
    batches_that_do_not_match,
    a_wrong_axis,
    an_axis_twice,
    no_common_element_type,
    a_fraction_for_integers,
    a_constant_out_of_range,
    a_number_too_large_for_its_type,
    counting_further_than_the_type,
    a_function_of_floats_on_integers,
    a_sum_of_booleans,
    another_number_of_elements,
    parts_that_do_not_join,
    a_permutation_that_is_none,
    a_slice_past_the_end,
    too_many_indices,
    indices_that_are_floats,
    an_empty_table,
    updates_of_another_shape,
    more_than_there_are,
    subscripts_that_do_not_fit,
    a_choice_by_numbers,
    a_convolution_of_other_channels,
    a_matrix_that_is_not_square,
    heads_that_do_not_divide,
    labels_that_are_floats,
    a_rate_above_one,
    a_key_that_is_none,
];

/// Adding shapes that do not broadcast
///
/// Reshape one of them, or put a dimension of size 1 where the other is to be repeated: `b.expand_dims(1)`.
fn shapes_that_do_not_broadcast() -> Outcome {
    let add = |x: Tensor, b: Tensor| x + b;
    jit(add).call((ones(&[2, 3]), ones(&[2])))?;
    Ok(())
}

/// A product of sizes that differ
///
/// `dot` sums over the last dimension of the left operand and the first of the right: transpose one of them,
/// or say with `einsum` which dimensions are meant.
fn a_product_of_sizes_that_differ() -> Outcome {
    let layer = |x: Tensor, w: Tensor| x.dot(w);
    jit(layer).call((ones(&[8, 64]), ones(&[256, 64])))?;
    Ok(())
}

/// A product with a scalar
///
/// `dot` and `matmul` are products of vectors and matrices; `*` is the one of elements and broadcasts.
fn a_product_with_a_scalar() -> Outcome {
    let scaled = |x: Tensor, factor: Tensor| x.dot(factor);
    jit(scaled).call((ones(&[2, 3]), ones(&[])))?;
    Ok(())
}

/// Matrix products of other batches
///
/// The dimensions before the last two are a batch; they broadcast, as those of `+` do.
fn batches_that_do_not_match() -> Outcome {
    let scores = |q: Tensor, k: Tensor| q.matmul(k);
    jit(scores).call((ones(&[7, 2, 3]), ones(&[6, 3, 5])))?;
    Ok(())
}

/// An axis that is not there
///
/// Axes count from 0, or from -1 backwards; `..` means all of them.
fn a_wrong_axis() -> Outcome {
    let norm = |x: Tensor| x.square().sum(2).sqrt();
    jit(norm).call(ones(&[2, 3]))?;
    Ok(())
}

/// An axis twice
///
/// Name each axis once; a negative one may be one that is named already.
fn an_axis_twice() -> Outcome {
    let mean = |x: Tensor| x.mean([1, -1]);
    jit(mean).call(ones(&[2, 3]))?;
    Ok(())
}

/// Element types that have none in common
///
/// Two tensors are promoted to a type that holds the values of both; where there is none, convert one.
fn no_common_element_type() -> Outcome {
    let difference = |a: Tensor, b: Tensor| a - b;
    let a = Array::from_slice(&[1u64, 2], [2])?;
    let b = Array::from_slice(&[1i32, 2], [2])?;
    jit(difference).call((a, b))?;
    Ok(())
}

/// A fraction for integers
///
/// A number in the program takes the element type of the tensor it meets, and never changes it: convert the tensor.
fn a_fraction_for_integers() -> Outcome {
    let half = |x: Tensor| x * 0.5;
    jit(half).call(Array::from_slice(&[1i32, 2, 3], [3])?)?;
    Ok(())
}

/// A constant out of range
///
/// Take a type that holds the number, or `clamp` before you convert.
fn a_constant_out_of_range() -> Outcome {
    let shifted = |x: Tensor| x.cast(DType::I8) + 300;
    jit(shifted).call(ones(&[3]))?;
    Ok(())
}

/// A number too large for its type
///
/// Infinity is written as `f64::INFINITY`; any other number has to be one of the type.
fn a_number_too_large_for_its_type() -> Outcome {
    let scaled = |x: Tensor| x.cast(DType::F16) * 1e5;
    jit(scaled).call(ones(&[3]))?;
    Ok(())
}

/// Counting further than the type
///
/// An `i8` ends at 127: the numbers after it would be negative.
fn counting_further_than_the_type() -> Outcome {
    let numbers = |x: Tensor| x + Tensor::arange(DType::I8, 300);
    jit(numbers).call(ones(&[300]))?;
    Ok(())
}

/// A function of floats on integers
///
/// Integers are not turned into floats silently: `.cast(DType::F32)` says which ones.
fn a_function_of_floats_on_integers() -> Outcome {
    let root = |x: Tensor| x.sqrt();
    jit(root).call(Array::from_slice(&[1i32, 4, 9], [3])?)?;
    Ok(())
}

/// A sum of booleans
///
/// How many are true, and whether one is, are two questions: ask one of them.
fn a_sum_of_booleans() -> Outcome {
    let correct = |x: Tensor| x.gt(0).sum(..);
    jit(correct).call(ones(&[2, 3]))?;
    Ok(())
}

/// A reshape to another number of elements
///
/// One size may be left out, as -1: `x.reshape([-1, 2])`.
fn another_number_of_elements() -> Outcome {
    let pairs = |x: Tensor| x.reshape([4, 2]);
    jit(pairs).call(ones(&[2, 3]))?;
    Ok(())
}

/// Joining parts that do not fit
///
/// `concatenate` joins along a dimension that is there; `stack` makes a new one, of tensors of one shape.
fn parts_that_do_not_join() -> Outcome {
    let joined = |a: Tensor, b: Tensor| concatenate([a, b], 0);
    jit(joined).call((ones(&[2, 3]), ones(&[2, 4])))?;
    Ok(())
}

/// A permutation that is none
///
/// `transpose` takes every dimension once, in the new order.
fn a_permutation_that_is_none() -> Outcome {
    let heads_first = |x: Tensor| x.transpose([0, 2, 2, 3]);
    jit(heads_first).call(ones(&[2, 5, 4, 8]))?;
    Ok(())
}

/// A slice past the end
///
/// Positions that are written in the program must be there; a start that is computed is moved to where the slice fits,
/// see `dynamic_slice`.
fn a_slice_past_the_end() -> Outcome {
    let first = |x: Tensor| x.get(s![.., ..100]);
    jit(first).call(ones(&[2, 64]))?;
    Ok(())
}

/// More indices than dimensions
///
/// Write at most one entry for each dimension; `...` stands for those in the middle.
fn too_many_indices() -> Outcome {
    let corner = |x: Tensor| x.get(s![0, 0, 0]);
    jit(corner).call(ones(&[2, 3]))?;
    Ok(())
}

/// Indices that are floats
///
/// Indices are integers; `cast` rounds toward zero, so `round_even` first if they are not whole.
fn indices_that_are_floats() -> Outcome {
    let rows = |table: Tensor, ids: Tensor| table.take(ids, 0);
    jit(rows).call((ones(&[10, 4]), ones(&[3])))?;
    Ok(())
}

/// A table of no rows
///
/// There is no row that could be read; see where the table's first dimension comes from.
fn an_empty_table() -> Outcome {
    let embed = |table: Tensor, ids: Tensor| nn::embedding(ids, table);
    let ids = Array::from_slice(&[0i32, 1], [2])?;
    jit(embed).call((ones(&[0, 4]), ids))?;
    Ok(())
}

/// Updates of another shape
///
/// There is an update for each index, with the dimensions of the operand after it.
fn updates_of_another_shape() -> Outcome {
    let count = |x: Tensor, ids: Tensor| Tensor::zeros(DType::F32, [10, 4]).scatter_add(ids, x, 0);
    let ids = Array::from_slice(&[0i32, 1, 2], [3])?;
    jit(count).call((ones(&[2, 4]), ids))?;
    Ok(())
}

/// More of the largest than there are elements
///
/// `top_k` looks along the last dimension.
fn more_than_there_are() -> Outcome {
    let best = |x: Tensor| x.top_k(10).0;
    jit(best).call(ones(&[4, 8]))?;
    Ok(())
}

/// Subscripts that do not fit
///
/// All that is wrong with the subscripts is listed: a letter is one size everywhere, and stands once in the result.
fn subscripts_that_do_not_fit() -> Outcome {
    let product = |a: Tensor, b: Tensor| einsum("ij,jk,kl->iim", [a, b]);
    jit(product).call((ones(&[2, 3]), ones(&[4, 5])))?;
    Ok(())
}

/// A choice by numbers
///
/// `select` is a method of the condition, which is boolean.
fn a_choice_by_numbers() -> Outcome {
    let masked = |mask: Tensor, x: Tensor| mask.select(x, 0);
    jit(masked).call((ones(&[3]), ones(&[3])))?;
    Ok(())
}

/// A convolution of other channels
///
/// Say how the dimensions lie with `ConvOptions::layouts`; without it they are batch, channels, space, and those of the
/// kernel channels out, channels in, space.
fn a_convolution_of_other_channels() -> Outcome {
    let conv = |x: Tensor, kernel: Tensor| x.conv(kernel, &ConvOptions::new());
    jit(conv).call((ones(&[8, 32, 32, 3]), ones(&[16, 3, 3, 3])))?;
    Ok(())
}

/// A factorization of a matrix that is not square
///
/// Dimensions before the last two are a batch of matrices.
fn a_matrix_that_is_not_square() -> Outcome {
    let factor = |a: Tensor| a.cholesky();
    jit(factor).call(ones(&[7, 3, 4]))?;
    Ok(())
}

/// Query heads that do not share key heads evenly
///
/// Each head of keys and values serves the same number of query heads: make the one a multiple of the other.
fn heads_that_do_not_divide() -> Outcome {
    let attend = |q, k, v| nn::attention(q, k, v, AttentionOptions::causal());
    let keys = ones(&[2, 16, 4, 8]);
    jit(attend).call((ones(&[2, 16, 6, 8]), keys.clone(), keys))?;
    Ok(())
}

/// Labels that are floats
///
/// A label is the number of its class. For targets that are distributions use `nn::kl_div`.
fn labels_that_are_floats() -> Outcome {
    let loss = |logits, labels| nn::cross_entropy(logits, labels, CrossEntropyOptions::default());
    jit(loss).call((ones(&[4, 10]), ones(&[4, 10])))?;
    Ok(())
}

/// A probability above one
///
/// The rate of `dropout` is the part that is dropped, not a percentage.
fn a_rate_above_one() -> Outcome {
    let drop = |x: Tensor, key: Key| nn::dropout(x, key, 10.0);
    let key = Key(Array::from_slice(&Key::seed_words(0), [2])?);
    jit(drop).call((ones(&[3]), key))?;
    Ok(())
}

/// A key that is none
///
/// A key that comes from outside of the program is `Key(Array::from_slice(&Key::seed_words(seed), [2])?)`.
fn a_key_that_is_none() -> Outcome {
    let noise = |key: Key| key.normal(DType::F32, [4]);
    let seed = Array::scalar(42u32);
    jit(noise).call(Key(seed))?;
    Ok(())
}
