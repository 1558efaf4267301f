//! Sorting, searching and counting.
//!
//! NaN counts as larger than every number. Sorts are stable, those in descending order too.

use std::cmp::Ordering;
use std::panic::Location;

use super::Tensor;
use super::arithmetic::{IntoOperand, Operand};
use super::reduce::{Axes, dims_at};
use super::shape::axis_at;
use crate::blocks::{apart, known_blocks, whole};
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::literal::Number;
use crate::op::{Combine, Comparison, Cumulative, Dims, GatherDims, Reducer, Sort};
use crate::trace::{fail_at, method};
use crate::types::TensorType;

impl Tensor {
    /// The elements along a dimension in ascending order.
    #[track_caller]
    pub fn sort(self, axis: isize) -> Tensor {
        sorted("sort", self, axis, false, Location::caller())
    }

    /// The elements along a dimension in descending order.
    #[track_caller]
    pub fn sort_descending(self, axis: isize) -> Tensor {
        sorted("sort_descending", self, axis, true, Location::caller())
    }

    /// The positions, as `i32`, along a dimension of its elements in ascending order.
    #[track_caller]
    pub fn argsort(self, axis: isize) -> Tensor {
        let source = Location::caller();
        method("argsort", source, || {
            let dim = axis_at("argsort", axis, &self.ty(), source);
            with_positions(self.stop_gradient(), dim, false).1
        })
    }

    /// The positions, as `i32`, along a dimension of its elements in descending order.
    #[track_caller]
    pub fn argsort_descending(self, axis: isize) -> Tensor {
        let source = Location::caller();
        method("argsort_descending", source, || {
            let dim = axis_at("argsort_descending", axis, &self.ty(), source);
            with_positions(self.stop_gradient(), dim, true).1
        })
    }

    /// The `k` largest elements of the last dimension in descending order, and their positions as
    /// `i32`. Of equal ones the first come first.
    #[track_caller]
    pub fn top_k(self, k: usize) -> (Tensor, Tensor) {
        let source = Location::caller();
        method("top_k", source, || {
            let ty = self.ty();
            let dim = axis_at("top_k", -1, &ty, source);
            if k > ty.shape[dim] {
                let size = ty.shape[dim];
                let problem = format!("`k` is {k}, the last dimension of {ty} has {size} elements");
                let help =
                    format!("give at most {size}; `swap_axes` brings another dimension last");
                fail_at(argument("top_k", problem), Some(help), source)
            }
            let (values, positions) = with_positions(self, dim, true);
            let first = |x: Tensor| lax::slice_dim(x, dim, 0, k);
            (first(values), first(positions))
        })
    }

    /// Where each of `values` goes in this ascending vector so that it stays in order, as `i32`:
    /// before equal elements. If the vector isn't ascending, the result is some position, which
    /// need not be the same under every layout.
    #[track_caller]
    pub fn searchsorted(self, values: impl IntoOperand) -> Tensor {
        search(
            "searchsorted",
            self,
            values.into(),
            false,
            Location::caller(),
        )
    }

    /// [`Tensor::searchsorted`], after equal elements.
    #[track_caller]
    pub fn searchsorted_right(self, values: impl IntoOperand) -> Tensor {
        search(
            "searchsorted_right",
            self,
            values.into(),
            true,
            Location::caller(),
        )
    }

    /// The different elements of this tensor in ascending order: `size` of them, the smallest if
    /// there are more, filled up with `fill`. NaNs count as one element.
    #[track_caller]
    pub fn unique(self, size: usize, fill: impl Into<Number>) -> Unique {
        let source = Location::caller();
        let fill = fill.into();
        method("unique", source, || {
            let ty = self.ty();
            let flat = self.flatten();
            let count = ty.element_count();
            let slots = TensorType::new(ty.dtype, [size]);
            let filled = lax::full(fill, &slots);
            let zeros = lax::zeros(&TensorType::new(DType::I32, [size]));
            if count == 0 || size == 0 {
                let inverse = lax::zeros(&TensorType::new(DType::I32, &ty.shape));
                return Unique {
                    values: filled,
                    counts: zeros,
                    inverse,
                };
            }
            let (sorted, order) = with_positions(flat, 0, false);
            let part = |start, limit| lax::slice_dim(sorted, 0, start, limit);
            let (before, after) = (part(0, count - 1), part(1, count));
            let mut changes = before.ne(after);
            if ty.dtype.is_float() {
                changes &= !(before.ne(before) & after.ne(after));
            }
            let steps = lax::convert(changes, DType::I32).pad(0, 1, 0, 0);
            let slot = lax::cumulative(
                steps,
                Cumulative {
                    reducer: Reducer::Sum,
                    dim: 0,
                    reverse: false,
                },
            );
            // Slots beyond the last are left out by the scatter.
            let back = lax::zeros(&TensorType::new(DType::I32, [count]));
            let set = |into: Tensor, index: Tensor, values: Tensor, combine: Combine| {
                lax::scatter(into, index, values, GatherDims::rows(0, 1, 1), combine)
            };
            let ones = lax::full(1.into(), &TensorType::new(DType::I32, [count]));
            Unique {
                values: filled.scatter(slot, sorted, 0),
                counts: zeros.scatter_add(slot, ones, 0),
                inverse: lax::reshape(set(back, order, slot, Combine::Set), &ty.shape),
            }
        })
    }

    /// The value below which a part `q`, from 0 to 1, of the elements over dimensions lies, which
    /// disappear; linear between neighbors. NaN where an element is NaN.
    #[track_caller]
    pub fn quantile(self, q: f64, axes: impl Axes) -> Tensor {
        let source = Location::caller();
        method("quantile", source, || {
            let ty = self.ty();
            let dims = dims_at("quantile", &axes, &ty, source);
            let count: usize = dims.iter().map(|&d| ty.shape[d]).product();
            if !(0.0..=1.0).contains(&q) || count == 0 || !ty.dtype.is_float() {
                let problem = format!("quantile {q} of {count} elements of {ty}");
                let help = "it takes floats, at least one, and a part of 0 to 1";
                fail_at(argument("quantile", problem), Some(help.into()), source)
            }
            let kept: Dims = (0..ty.rank()).filter(|d| !dims.contains(d)).collect();
            let order: Dims = kept.iter().chain(&dims).copied().collect();
            let shape: Dims = kept.iter().map(|&d| ty.shape[d]).chain([count]).collect();
            let lines = lax::reshape(lax::transpose(self, &order), &shape);
            let sorted = with_positions(lines, kept.len(), false).0;
            let at = |i: usize| sorted.index(-1, i);
            let place = q * (count - 1) as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            let value = match part > 0.0 {
                true => at(low) * (1.0 - part) + at(low + 1) * part,
                false => at(low),
            };
            // A NaN is the last.
            let last = at(count - 1).stop_gradient();
            last.ne(last).select(last, value)
        })
    }

    /// The middle one of the elements over dimensions, which disappear; of an even number the mean
    /// of the two in the middle.
    #[track_caller]
    pub fn median(self, axes: impl Axes) -> Tensor {
        method("median", Location::caller(), || self.quantile(0.5, axes))
    }

    /// How often each of 0 to `length - 1` is among these integers, as `i32`; others are not counted.
    #[track_caller]
    pub fn bincount(self, length: usize) -> Tensor {
        method("bincount", Location::caller(), || {
            let counts = lax::zeros(&TensorType::new(DType::I32, [length]));
            counts.scatter_add(self.flatten(), 1, 0)
        })
    }

    /// How many elements, as `i32`, are in each of `bins` equal parts of `low` to `high`; each part is
    /// without its upper bound, the last with it. Elements outside are not counted.
    #[track_caller]
    pub fn histogram(self, bins: usize, low: f64, high: f64) -> Tensor {
        let source = Location::caller();
        method("histogram", source, || {
            let ty = self.ty();
            if bins == 0 || low.partial_cmp(&high) != Some(Ordering::Less) || !ty.dtype.is_float() {
                let problem = format!("{bins} bins from {low} to {high} for {ty}");
                let help = "it takes floats, at least one bin, and bounds in order";
                fail_at(argument("histogram", problem), Some(help.into()), source)
            }
            let edges = Self::linspace(ty.dtype, low, high, bins + 1);
            let values = self.stop_gradient().flatten();
            let bin = edges.searchsorted_right(values) - 1;
            let last = values.eq(lax::broadcast(edges.index(0, bins), &values.shape(), &[]));
            last.select((bins - 1) as i64, bin).bincount(bins)
        })
    }
}

/// What [`Tensor::unique`] finds.
#[derive(Clone, Copy, Debug)]
pub struct Unique {
    /// The different elements in ascending order, then the fill.
    pub values: Tensor,
    /// How often each occurs, as `i32`; 0 for the fill.
    pub counts: Tensor,
    /// For each element of the tensor the position of its equal in `values`, as `i32`; at least
    /// their number where there was no room.
    pub inverse: Tensor,
}

/// Sorts tensors of one shape together along a dimension: by the first `keys` of them, the first one
/// first, in ascending order.
#[track_caller]
pub fn sort_by_key(operands: impl AsRef<[Tensor]>, keys: usize, axis: isize) -> Vec<Tensor> {
    let source = Location::caller();
    method("sort_by_key", source, || {
        let operands = operands.as_ref();
        let Some(first) = operands.first() else {
            let problem = "there is nothing to sort".to_owned();
            fail_at(argument("sort_by_key", problem), None, source)
        };
        let sort = Sort {
            dim: axis_at("sort_by_key", axis, &first.ty(), source),
            keys,
            descending: false,
        };
        lax::sort(operands, sort).into_vec()
    })
}

fn argument(op: &'static str, problem: String) -> ErrorKind {
    ErrorKind::Argument { op, problem }
}

fn sorted(op: &'static str, x: Tensor, axis: isize, descending: bool, source: Source) -> Tensor {
    method(op, source, || {
        let sort = Sort {
            dim: axis_at(op, axis, &x.ty(), source),
            keys: 1,
            descending,
        };
        lax::sort(&[x], sort)[0]
    })
}

/// The elements in order, and the positions where they were.
fn with_positions(x: Tensor, dim: usize, descending: bool) -> (Tensor, Tensor) {
    let positions = lax::iota(TensorType::new(DType::I32, &x.ty().shape), dim);
    let sort = Sort {
        dim,
        keys: 1,
        descending,
    };
    let sorted = lax::sort(&[x, positions], sort);
    (sorted[0], sorted[1])
}

/// Binary search for all values at once, in about `log2 n` steps.
fn search(op: &'static str, x: Tensor, values: Operand, right: bool, source: Source) -> Tensor {
    method(op, source, || {
        let ty = x.ty();
        let values = match values {
            Operand::Number(number) => lax::full(number, &TensorType::scalar(ty.dtype)),
            Operand::Tensor(values) => values,
        };
        let values_ty = values.ty();
        if ty.rank() != 1 || values_ty.dtype != ty.dtype || ty.dtype.is_complex() {
            let problem = format!("values {values_ty} in {ty}");
            let help = "it takes a vector, and values of its element type";
            fail_at(argument(op, problem), Some(help.into()), source)
        }
        let (x, values) = (x.stop_gradient(), values.stop_gradient());
        let size = ty.shape[0];
        let count = values_ty.element_count();
        let blocks = match known_blocks(x, 0) {
            None => return places(size, values, right, |at| lax::take(x, at, 0)),
            // What is found is reduced over devices, which takes as many bytes as twice the values.
            Some(_) if size <= 2 * count => {
                let x = whole(x, 0);
                return places(size, values, right, |at| lax::take(x, at, 0));
            }
            Some(blocks) => blocks,
        };
        // Each device looks in its own block, and what it finds there adds up.
        let x = apart(x, 0, blocks);
        let values = lax::broadcast(lax::reshape(values, &[count]), &[blocks, count], &[1]);
        let found = places(size / blocks, values, right, |at| lax::take_along(x, at, 1));
        lax::reshape(lax::sum(found, &[0]), &values_ty.shape)
    })
}

/// How many of `count` elements, which are read by their position, come before each value.
fn places(count: usize, values: Tensor, right: bool, read: impl Fn(Tensor) -> Tensor) -> Tensor {
    let mut found = lax::zeros(&TensorType::new(DType::I32, values.shape()));
    if count == 0 {
        return found;
    }
    let steps = std::iter::successors(Some(1usize), |step| step.checked_mul(2));
    let steps: Vec<usize> = steps.take_while(|&step| step <= count).collect();
    for &step in steps.iter().rev() {
        let next = found + step as i64;
        let last = (count - 1) as i64;
        let element = read((next - 1).minimum(last));
        let comes_before = match right {
            false => less(element, values),
            true => !less(values, element),
        };
        let goes_on = comes_before & next.le(count as i64);
        found = lax::select(goes_on, next, found);
    }
    found
}

/// The order of sorts: NaN after every number.
fn less(a: Tensor, b: Tensor) -> Tensor {
    let less = lax::compare(Comparison::Lt, a, b);
    match a.dtype().is_float() {
        true => less | (a.eq(a) & b.ne(b)),
        false => less,
    }
}
