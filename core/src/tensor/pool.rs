//! Reductions of windows: pooling.

use std::panic::Location;

use smallvec::SmallVec;

use super::Tensor;
use super::conv::Padding;
use super::shape::axis_at;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Dims, Reducer, Window};
use crate::trace::{fail_at, method};
use crate::types::TensorType;

/// Windows along some dimensions of a tensor. By default they lie side by side, without padding.
///
/// ```
/// use shardax_core::{DType, Pool, Tensor, TensorType, trace};
///
/// let halves = Pool::new([1, 2], [2, 2]);
/// let image = TensorType::new(DType::F32, [8, 32, 32, 3]);
/// let program = trace(|x: Tensor| x.max_pool(&halves), image)?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[8,16,16,3]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    axes: SmallVec<[isize; 4]>,
    sizes: Dims,
    strides: Option<Dims>,
    dilation: Option<Dims>,
    base_dilation: Option<Dims>,
    padding: Padding,
    count_padding: bool,
}

impl Pool {
    /// Windows of these sizes along these axes; negative ones count from the last.
    pub fn new(axes: impl AsRef<[isize]>, sizes: impl AsRef<[usize]>) -> Self {
        Pool {
            axes: axes.as_ref().iter().copied().collect(),
            sizes: Dims::from_slice(sizes.as_ref()),
            strides: None,
            dilation: None,
            base_dilation: None,
            padding: Padding::Valid,
            count_padding: true,
        }
    }

    /// Steps between windows, by axis; by default the sizes.
    #[must_use]
    pub fn strides(mut self, strides: impl AsRef<[usize]>) -> Self {
        self.strides = Some(Dims::from_slice(strides.as_ref()));
        self
    }

    /// Distances of a window's elements, by axis.
    #[must_use]
    pub fn dilation(mut self, dilation: impl AsRef<[usize]>) -> Self {
        self.dilation = Some(Dims::from_slice(dilation.as_ref()));
        self
    }

    /// Distances of the tensor's elements, by axis; what is between them changes no reduction.
    #[must_use]
    pub fn base_dilation(mut self, dilation: impl AsRef<[usize]>) -> Self {
        self.base_dilation = Some(Dims::from_slice(dilation.as_ref()));
        self
    }

    /// Elements around the tensor, which change no reduction.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Whether a mean counts the padding as elements that are 0 (the default), or only the elements
    /// that are there.
    #[must_use]
    pub fn count_padding(mut self, count: bool) -> Self {
        self.count_padding = count;
        self
    }

    fn window(&self, op: &'static str, ty: &TensorType, source: Source) -> Window {
        let axes = self.axes.iter().map(|&axis| axis_at(op, axis, ty, source));
        let axes: Dims = axes.collect();
        let count = axes.len();
        let mut problems = Vec::new();
        if (1..count).any(|i| axes[..i].contains(&axes[i])) {
            problems.push(format!("axes {:?} of {ty} name one twice", self.axes));
        }
        let mut numbers = |what: &str, given: Option<&Dims>, default: &Dims| {
            let given = given.unwrap_or(default);
            if given.len() != count || given.contains(&0) {
                problems.push(format!(
                    "{what} {given:?}: there are {count} axes, and none of them is 0"
                ));
                return Dims::from_elem(1, count);
            }
            given.clone()
        };
        let ones = Dims::from_elem(1, count);
        let sizes = numbers("sizes", Some(&self.sizes), &ones);
        let strides = numbers("strides", self.strides.as_ref(), &sizes);
        let dilation = numbers("dilation", self.dilation.as_ref(), &ones);
        let base_dilation = numbers("base_dilation", self.base_dilation.as_ref(), &ones);
        if !problems.is_empty() {
            let problem = problems.join("; ");
            fail_at(ErrorKind::Argument { op, problem }, None, source)
        }
        let spanned = |size: usize, gap: usize| size.saturating_sub(1) * gap + size.min(1);
        let lengths: Dims = (0..count)
            .map(|i| spanned(ty.shape[axes[i]], base_dilation[i]))
            .collect();
        let reach: Dims = (0..count).map(|i| spanned(sizes[i], dilation[i])).collect();
        let padding = self.padding.resolve(op, &lengths, &reach, &strides, source);
        let mut window = Window {
            sizes: Dims::from_elem(1, ty.rank()),
            strides: Dims::from_elem(1, ty.rank()),
            padding: SmallVec::from_elem((0, 0), ty.rank()),
            base_dilation: Dims::from_elem(1, ty.rank()),
            window_dilation: Dims::from_elem(1, ty.rank()),
        };
        for (i, &axis) in axes.iter().enumerate() {
            window.sizes[axis] = sizes[i];
            window.strides[axis] = strides[i];
            window.window_dilation[axis] = dilation[i];
            window.base_dilation[axis] = base_dilation[i];
            let (Ok(low), Ok(high)) = (padding[i].0.try_into(), padding[i].1.try_into()) else {
                let problem = format!("padding {:?} is negative", padding[i]);
                let help = "cut elements off with a slice".to_owned();
                fail_at(ErrorKind::Argument { op, problem }, Some(help), source)
            };
            window.padding[axis] = (low, high);
        }
        window
    }
}

impl Tensor {
    /// The reduction of every window. The derivative of an extremum is shared equally by all elements
    /// that attain it.
    #[track_caller]
    pub fn reduce_window(self, reducer: Reducer, pool: &Pool) -> Tensor {
        let op = reducer.window_name();
        self.pooled(op, reducer, pool, Location::caller())
    }

    /// The largest element of every window; equal ones share the derivative.
    #[track_caller]
    pub fn max_pool(self, pool: &Pool) -> Tensor {
        self.pooled("max_pool", Reducer::Max, pool, Location::caller())
    }

    /// The smallest element of every window; equal ones share the derivative.
    #[track_caller]
    pub fn min_pool(self, pool: &Pool) -> Tensor {
        self.pooled("min_pool", Reducer::Min, pool, Location::caller())
    }

    /// The sum of every window; narrow floats are summed in `f32`.
    #[track_caller]
    pub fn sum_pool(self, pool: &Pool) -> Tensor {
        self.pooled("sum_pool", Reducer::Sum, pool, Location::caller())
    }

    /// The mean of every window; [`Pool::count_padding`] says what it counts.
    #[track_caller]
    pub fn avg_pool(self, pool: &Pool) -> Tensor {
        let (op, source) = ("avg_pool", Location::caller());
        method(op, source, || {
            let ty = self.ty();
            if !ty.dtype.is_differentiable() {
                let problem = format!("takes a floating-point tensor, not {ty}");
                let help = "convert it with `.cast(...)`".to_owned();
                fail_at(ErrorKind::DType { op, problem }, Some(help), source)
            }
            let wide = lax::convert(self, ty.dtype.accumulator());
            let window = pool.window(op, &ty, source);
            let sum = lax::reduce_window(Reducer::Sum, wide, window.clone());
            let mean = if pool.count_padding {
                let count: usize = window.sizes.iter().product();
                sum / count as f64
            } else {
                let there = Tensor::ones(wide.dtype(), ty.shape);
                sum / lax::reduce_window(Reducer::Sum, there, window).maximum(1)
            };
            lax::convert(mean, ty.dtype)
        })
    }

    fn pooled(self, op: &'static str, reducer: Reducer, pool: &Pool, source: Source) -> Tensor {
        method(op, source, || {
            let ty = self.ty();
            let window = pool.window(op, &ty, source);
            let wide = match reducer {
                Reducer::Sum | Reducer::Prod => ty.dtype.accumulator(),
                _ => ty.dtype,
            };
            let reduced = lax::reduce_window(reducer, lax::convert(self, wide), window);
            lax::convert(reduced, ty.dtype)
        })
    }
}
