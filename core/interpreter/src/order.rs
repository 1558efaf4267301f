//! Sorting, and running reductions.

use std::cmp::Ordering;

use shardax_core::{
    Number,
    ir::{Cumulative, Sort},
};

use super::{Array, binary, fit, float, indices, int, offset, reduction};

/// NaN after every number.
fn order(a: Number, b: Number) -> Ordering {
    match (a, b) {
        (Number::Float(_), _) | (_, Number::Float(_)) => {
            let (a, b) = (float(a), float(b));
            let nan_last = a.is_nan().cmp(&b.is_nan());
            a.partial_cmp(&b).unwrap_or(nan_last)
        }
        _ => int(a).cmp(&int(b)),
    }
}

/// The indices of each line along `dim`, in order.
fn lines(shape: &[usize], dim: usize) -> Vec<Vec<usize>> {
    let mut first = shape.to_vec();
    first[dim] = first[dim].min(1);
    let line = |i: &Vec<usize>| {
        let at = |at: usize| [&i[..dim], &[at], &i[dim + 1..]].concat();
        (0..shape[dim]).map(|j| offset(&at(j), shape)).collect()
    };
    indices(&first).iter().map(line).collect()
}

pub(super) fn sort(sort: Sort, x: &[Array]) -> Vec<Array> {
    let mut results = x.to_vec();
    for line in lines(&x[0].ty.shape, sort.dim) {
        let mut sorted = line.clone();
        sorted.sort_by(|&a, &b| {
            let keys = x[..sort.keys].iter().map(|x| order(x.data[a], x.data[b]));
            let ascending = keys.fold(Ordering::Equal, Ordering::then);
            if sort.descending {
                ascending.reverse()
            } else {
                ascending
            }
        });
        for (result, x) in results.iter_mut().zip(x) {
            for (&to, &from) in line.iter().zip(&sorted) {
                result.data[to] = x.data[from];
            }
        }
    }
    results
}

pub(super) fn cumulative(cumulative: Cumulative, x: &Array) -> Array {
    let dtype = x.ty.dtype;
    let (first, op) = reduction(cumulative.reducer, dtype);
    let mut result = x.clone();
    for mut line in lines(&x.ty.shape, cumulative.dim) {
        if cumulative.reverse {
            line.reverse();
        }
        let mut so_far = fit(first, dtype);
        for i in line {
            so_far = fit(binary(op, so_far, x.data[i], dtype), dtype);
            result.data[i] = so_far;
        }
    }
    result
}
