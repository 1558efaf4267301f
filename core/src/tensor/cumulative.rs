//! Running reductions, and associative scans in general.

use std::panic::Location;

use super::Tensor;
use super::shape::axis_at;
use crate::blocks::{Blocks, Combine, Scanned, apart, each, joined};
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Binary, Comparison, Cumulative, Dims, Reducer};
use crate::trace::{fail_at, method};
use crate::tree::{Path, Tree};
use crate::types::TensorType;
use crate::vary::{settled_elements, varying_over};

macro_rules! running {
    ($($(#[$doc:meta])* $name:ident $reversed:ident $reducer:ident),* $(,)?) => {
        /// Running reductions along one dimension: of what comes before each element, itself
        /// included; of what comes after it, those that end in `_reverse`.
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(self, axis: isize) -> Tensor {
                running(stringify!($name), self, Reducer::$reducer, axis, false, Location::caller())
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] from the last element to the first.")]
            #[track_caller]
            pub fn $reversed(self, axis: isize) -> Tensor {
                running(stringify!($reversed), self, Reducer::$reducer, axis, true, Location::caller())
            }
        )*}
    };
}

running! {
    /// The running sum; of narrow floats accumulated in `f32`.
    cumsum cumsum_reverse Sum,
    /// The running product; of narrow floats accumulated in `f32`. Its derivative is exact where
    /// elements are 0.
    cumprod cumprod_reverse Prod,
    /// The running maximum; equal ones share the derivative.
    cummax cummax_reverse Max,
    /// The running minimum; equal ones share the derivative.
    cummin cummin_reverse Min,
}

impl Tensor {
    /// The running `log(sum(exp(x)))` along one dimension, without overflow.
    #[track_caller]
    pub fn cumlogsumexp(self, axis: isize) -> Tensor {
        let source = Location::caller();
        method("cumlogsumexp", source, || {
            log_sums(self, axis, false, source)
        })
    }

    /// [`Tensor::cumlogsumexp`] from the last element to the first.
    #[track_caller]
    pub fn cumlogsumexp_reverse(self, axis: isize) -> Tensor {
        let source = Location::caller();
        method("cumlogsumexp_reverse", source, || {
            log_sums(self, axis, true, source)
        })
    }
}

fn running(
    op: &'static str,
    x: Tensor,
    reducer: Reducer,
    axis: isize,
    reverse: bool,
    source: Source,
) -> Tensor {
    method(op, source, || {
        let ty = x.ty();
        let dim = axis_at(op, axis, &ty, source);
        if ty.dtype == DType::Bool && matches!(reducer, Reducer::Sum | Reducer::Prod) {
            let problem = format!("takes a numeric tensor, not {ty}");
            let help = "convert it with `.cast(DType::I32)`";
            fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
        }
        let wide = match reducer {
            Reducer::Sum | Reducer::Prod => ty.dtype.accumulator(),
            _ => ty.dtype,
        };
        let cumulative = Cumulative {
            reducer,
            dim,
            reverse,
        };
        lax::convert(lax::cumulative(lax::convert(x, wide), cumulative), ty.dtype)
    })
}

fn log_sums(x: Tensor, axis: isize, reverse: bool, source: Source) -> Tensor {
    let op = "cumlogsumexp";
    let ty = x.ty();
    axis_at(op, axis, &ty, source);
    if !ty.dtype.is_float() {
        let problem = format!("takes a floating-point tensor, not {ty}");
        let help = "convert it with `.cast(...)`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
    }
    let wide = lax::convert(x, ty.dtype.accumulator());
    let pairs = (wide, lax::full(1.into(), &wide.ty()));
    // Each pair is a largest element and the sum of exponentials of differences from it.
    let (largest, sum) = associative_scan(log_sum, pairs, axis, reverse);
    // Of -inf alone the sum is -inf, whatever moves by a finite amount.
    let none = largest.eq(f64::NEG_INFINITY);
    let total = none.select(f64::NEG_INFINITY, largest + sum.log());
    lax::convert(total, ty.dtype)
}

fn log_sum((a, p): (Tensor, Tensor), (b, q): (Tensor, Tensor)) -> (Tensor, Tensor) {
    let larger = a.ge(b);
    let largest = lax::select(larger, a, b);
    let smallest = lax::select(larger, b, a);
    // The difference of equal infinities is 0.
    let infinite = lax::compare(Comparison::Eq, a, b) & a.abs().eq(f64::INFINITY);
    let zero = lax::zeros(&a.ty());
    let [low, high] = [smallest, largest].map(|x| lax::select(infinite, zero, x));
    let factor = lax::binary(Binary::Sub, low, high).exp();
    let [of_larger, of_smaller] = [lax::select(larger, p, q), lax::select(larger, q, p)];
    (largest, of_larger + of_smaller * factor)
}

/// What an associative function makes of each element of a dimension and all those before it (after
/// it, if `reverse`): `f` combines whole slices, in about `2 log2 n` calls.
///
/// `xs` is a tree of tensors with equally many elements along `axis`; `f` is given two trees of
/// slices, with equally many elements again, and combines each pair of them: on the left what the
/// scan meets first. (Blelloch: "Prefix sums and their applications", 1990.)
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, associative_scan, trace};
///
/// // The states of h[i] = a[i] h[i-1] + b[i].
/// let states = |a: Tensor, b: Tensor| {
///     let then = |(a, b): (Tensor, Tensor), (c, d): (Tensor, Tensor)| (a * c, b * c + d);
///     associative_scan(then, (a, b), 0, false).1
/// };
/// let ty = TensorType::new(DType::F32, [16]);
/// assert_eq!(trace(states, (ty.clone(), ty))?.output_types()[0].to_string(), "f32[16]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
///
/// # Errors
///
/// It is a mistake, found while tracing, if the leaves do not have equally many elements along
/// `axis`, or if `f` returns other types than it is given.
#[track_caller]
pub fn associative_scan<T: Tree<Tensor>>(
    f: impl Fn(T, T) -> T,
    xs: T,
    axis: isize,
    reverse: bool,
) -> T {
    let source = Location::caller();
    method("associative_scan", source, || {
        let mut leaves = Vec::new();
        let mut sizes: Vec<(String, TensorType, usize)> = Vec::new();
        xs.visit_leaves(&mut Path::root(), &mut |path, leaf| {
            let ty = leaf.ty();
            let dim = axis_at("associative_scan", axis, &ty, source);
            sizes.push((path.leaf_of("argument"), ty, dim));
            leaves.push(*leaf);
        });
        let size_of = |(_, ty, dim): &(String, TensorType, usize)| ty.shape[*dim];
        if sizes.windows(2).any(|w| size_of(&w[0]) != size_of(&w[1])) {
            let listed: Vec<String> = sizes
                .iter()
                .map(|of| format!("{} is {}, of size {} there", of.0, of.1, size_of(of)))
                .collect();
            let problem = format!("sizes along axis {axis} differ: {}", listed.join(", "));
            let op = "associative_scan";
            fail_at(ErrorKind::Shape { op, problem }, None, source)
        }
        let dims: Dims = sizes.iter().map(|(_, _, dim)| *dim).collect();
        let combine = |earlier: &[Tensor], later: &[Tensor]| {
            let mut combined = f(xs.with_leaves(earlier), xs.with_leaves(later)).leaves();
            for (leaf, given) in combined.iter_mut().zip(earlier) {
                *leaf = varying_over(*leaf, leaf.ty().varying, given.ty().varying, source);
            }
            let types = |leaves: &[Tensor]| leaves.iter().map(|t| t.ty()).collect::<Vec<_>>();
            let (given, returned) = (types(earlier), types(&combined));
            if given != returned {
                let listed = |types: &[TensorType]| {
                    let names: Vec<String> = types.iter().map(|ty| ty.to_string()).collect();
                    names.join(", ")
                };
                let problem = format!(
                    "the function is given {} and returns {}",
                    listed(&given),
                    listed(&returned)
                );
                let op = "associative_scan";
                fail_at(ErrorKind::Shape { op, problem }, None, source)
            }
            combined
        };
        let any_two =
            |leaves: &[Tensor]| f(xs.with_leaves(leaves), xs.with_leaves(leaves)).leaves();
        let leaves = match sizes.first().map(size_of) {
            Some(2..) => settled_elements(leaves, any_two, source),
            _ => leaves,
        };
        let blocks = Blocks::of(&leaves, &dims, reverse);
        // Of blocks `f` is given all that it combines along the one dimension that it knows.
        let count = blocks.count;
        let of_blocks = |earlier: &[Tensor], later: &[Tensor]| {
            let [earlier, later] = [earlier, later].map(|xs| each(xs, &dims, joined));
            each(&combine(&earlier, &later), &dims, |x, dim| {
                apart(x, dim, count)
            })
        };
        let turned = |xs: &[Tensor], dims: &[usize]| match reverse {
            true => each(xs, dims, |x, dim| lax::reverse(x, &[dim])),
            false => xs.to_vec(),
        };
        let halved = |combine: Combine, xs: &[Tensor], along: &[usize]| {
            turned(&halving(combine, turned(xs, along), along), along)
        };
        let scanned = Scanned {
            combine: &combine,
            of_blocks: &|xs, inner| halved(&of_blocks, xs, inner),
            of_whole: &|xs, dims| halved(&combine, xs, dims),
            of_split: &|xs, dims| halved(&combine, xs, dims),
            identity: None,
        };
        xs.with_leaves(&blocks.scan(&leaves, &scanned))
    })
}

/// Pairs of neighbors are combined, which leaves a scan of half the size; it gives every second
/// element, and the others are one more combination away.
fn halving(combine: Combine, xs: Vec<Tensor>, dims: &[usize]) -> Vec<Tensor> {
    let size = xs
        .iter()
        .zip(dims)
        .map(|(x, &dim)| x.ty().shape[dim])
        .next();
    let Some(size) = size.filter(|&size| size > 1) else {
        return xs;
    };
    let every_second = |from: usize, count: usize| {
        each(&xs, dims, |x, dim| {
            let shape = x.ty().shape;
            let (mut starts, mut limits) =
                (Dims::from_elem(0, shape.len()), Dims::from_slice(&shape));
            let mut strides = Dims::from_elem(1, shape.len());
            starts[dim] = from;
            limits[dim] = from + 2 * count - 1;
            strides[dim] = 2;
            lax::slice(x, starts, limits, strides)
        })
    };
    let pairs = size / 2;
    let odd = halving(
        combine,
        combine(&every_second(0, pairs), &every_second(1, pairs)),
        dims,
    );
    let part = |xs: &[Tensor], from: usize, to: usize| {
        each(xs, dims, |x, dim| lax::slice_dim(x, dim, from, to))
    };
    let first = part(&xs, 0, 1);
    let rest = size - pairs - 1;
    let even = match rest {
        0 => first,
        rest => {
            let later = combine(&part(&odd, 0, rest), &every_second(2, rest));
            let joined = first.iter().zip(&later).zip(dims);
            joined
                .map(|((&a, &b), &dim)| lax::concatenate(&[a, b], dim))
                .collect()
        }
    };
    let both = even.into_iter().zip(odd).zip(dims);
    both.map(|((even, odd), &dim)| interleaved(even, odd, dim))
        .collect()
}

/// The elements of two tensors in turn; the first has as many, or one more.
fn interleaved(even: Tensor, odd: Tensor, dim: usize) -> Tensor {
    let pairs = odd.ty().shape[dim];
    let apart = |x: Tensor| {
        let mut shape = x.ty().shape;
        shape.insert(dim + 1, 1);
        lax::reshape(x, &shape)
    };
    let paired = lax::slice_dim(even, dim, 0, pairs);
    let joined = lax::concatenate(&[apart(paired), apart(odd)], dim + 1);
    let mut shape = odd.ty().shape;
    shape[dim] = 2 * pairs;
    let joined = lax::reshape(joined, &shape);
    let size = even.ty().shape[dim];
    if size == pairs {
        return joined;
    }
    lax::concatenate(&[joined, lax::slice_dim(even, dim, pairs, size)], dim)
}
