//! Random orders and choices.

use std::panic::Location;

use super::{Key, constant, refuse};
use crate::dtype::DType;
use crate::lax;
use crate::op::Sort;
use crate::tensor::Tensor;
use crate::trace::method;
use crate::types::TensorType;

impl Key {
    /// The numbers 0 to `count - 1` in a random order, as `i32`.
    ///
    /// They are sorted by random bits, as often as makes an order by equal bits unlikely.
    #[track_caller]
    pub fn permutation(self, count: usize) -> Tensor {
        method("permutation", Location::caller(), || {
            let mut numbers = lax::iota(TensorType::new(DType::I32, [count]), 0);
            let size = count.max(1) as f64;
            let rounds = (3.0 * size.ln() / f64::from(u32::MAX).ln()).ceil() as usize;
            let mut key = self;
            for _ in 0..rounds {
                let keys = key.split(2);
                key = keys[0];
                let by_first = Sort {
                    dim: 0,
                    keys: 1,
                    descending: false,
                };
                numbers = lax::sort(&[keys[1].bits([count]), numbers], by_first)[1];
            }
            numbers
        })
    }

    /// The slices of a tensor along a dimension in a random order.
    #[track_caller]
    pub fn shuffle(self, x: Tensor, axis: isize) -> Tensor {
        method("shuffle", Location::caller(), || {
            x.take(self.permutation(x.size(axis)), axis)
        })
    }

    /// Numbers from 0 to `count - 1` with equal probability, as `i32`: each any number of times, or, if
    /// not `replace`, at most once.
    #[track_caller]
    pub fn choice(self, count: usize, shape: impl AsRef<[usize]>, replace: bool) -> Tensor {
        method("choice", Location::caller(), || {
            let shape = shape.as_ref();
            let draws = checked(count, shape, replace);
            match (draws, i32::try_from(count)) {
                (0, _) => Tensor::zeros(DType::I32, shape),
                (_, Ok(high)) if replace => self.randint(0, high, shape),
                (_, Ok(_)) => self.permutation(count).slice(0, ..draws).reshape(shape),
                (_, Err(_)) => refuse(format!("{count} numbers are more than an i32 counts"), None),
            }
        })
    }

    /// Numbers from 0 to `n - 1`, as `i32`, with the probabilities in the vector `p` of `n` floats: each
    /// any number of times, or, if not `replace`, at most once.
    ///
    /// There is no derivative by `p`; to ask for one is an error.
    #[track_caller]
    pub fn choice_weighted(self, p: Tensor, shape: impl AsRef<[usize]>, replace: bool) -> Tensor {
        method("choice_weighted", Location::caller(), || {
            let (ty, shape) = (p.ty(), shape.as_ref());
            if ty.rank() != 1 || !ty.dtype.is_float() {
                refuse(
                    format!("the probabilities are {ty}, not a vector of floats"),
                    None,
                )
            }
            let p = constant("choice_weighted", p);
            let count = ty.shape[0];
            let draws = checked(count, shape, replace);
            if draws == 0 {
                return Tensor::zeros(DType::I32, shape);
            }
            if !replace {
                // The largest sums of logarithm and Gumbel noise are such a draw.
                let scores = self.gumbel(ty.dtype, [count]) + p.log();
                return scores.top_k(draws).1.reshape(shape);
            }
            let sums = p.cumsum(0);
            let at = sums.index(0, count - 1) * (1.0 - self.uniform(ty.dtype, shape));
            sums.searchsorted(at)
        })
    }
}

/// The number of draws.
fn checked(count: usize, shape: &[usize], replace: bool) -> usize {
    let draws: usize = shape.iter().product();
    if draws > 0 && count == 0 {
        refuse("there is nothing to choose from".to_owned(), None)
    }
    if !replace && draws > count {
        let problem = format!("{draws} different ones of {count}");
        refuse(problem, Some("draw fewer, or with replacement"))
    }
    draws
}
