//! `x.at(s![1..3, .., -1])`: reading and updating a part of a tensor.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use std::panic::Location;

use super::argument;
use super::gather::Rows;
use super::scatter::fitted;
use crate::dtype::DType;
use crate::error::Source;
use crate::lax;
use crate::literal::Number;
use crate::op::{Binary, Combine, Dims};
use crate::tensor::Tensor;
use crate::tensor::arithmetic::{IntoOperand, Operand};
use crate::trace::{fail_at, method};
use crate::types::{Shape, TensorType};

/// A part of a tensor, for [`Tensor::at`] and [`Tensor::get`]: an entry for each dimension.
///
/// | entry | selects |
/// |---|---|
/// | `2`, `-1` | one element, and the dimension disappears; negative ones count from the last |
/// | `1..3`, `..-1`, `2..`, `..` | a range |
/// | `..;2`, `1..9;3` | every second, every third of a range, from its first |
/// | `..;-1` | a range from its last element to its first |
/// | `...` | all dimensions that no other entry is for, once |
/// | `NewAxis` | no dimension; a new one of size 1 |
/// | `indices` | the elements that an integer tensor names |
///
/// Tensors are taken together, as numpy does: they broadcast, and their dimensions stand where the
/// first of them stands, or in front if there are ranges between them. An index in a tensor that is
/// outside reads NaN and writes nothing; one that is written in the program is a mistake.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, s, trace};
///
/// let program = |x: Tensor| (x.get(s![0, 1..-1, ..;2]), x.at(s![..., -1]).add(1.0));
/// let traced = trace(program, TensorType::new(DType::F32, [2, 5, 4]))?;
/// let types: Vec<String> = traced.output_types().iter().map(|ty| ty.to_string()).collect();
/// assert_eq!(types, ["f32[3,2]", "f32[2,5,4]"]);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[macro_export]
macro_rules! s {
    (@entries [$($done:expr),*]) => {
        [$($done),*]
    };
    (@entries [$($done:expr),*] ... $(, $($rest:tt)*)?) => {
        $crate::s!(@entries [$($done,)* $crate::Index::Ellipsis] $($($rest)*)?)
    };
    (@entries [$($done:expr),*] NewAxis $(, $($rest:tt)*)?) => {
        $crate::s!(@entries [$($done,)* $crate::Index::NewAxis] $($($rest)*)?)
    };
    (@entries [$($done:expr),*] $range:expr ; $step:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@entries [$($done,)* $crate::s!(@entry $range).step($step)] $($($rest)*)?)
    };
    (@entries [$($done:expr),*] $entry:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@entries [$($done,)* $crate::s!(@entry $entry)] $($($rest)*)?)
    };
    // `1..-1` is no empty range here, as the lint would have it.
    (@entry $entry:expr) => {{
        #[allow(clippy::reversed_empty_ranges)]
        let entry = $crate::Index::from($entry);
        entry
    }};
    ($($entries:tt)*) => {
        $crate::s!(@entries [] $($entries)*)
    };
}

/// One entry of [`s!`](crate::s).
#[derive(Clone, Copy, Debug)]
pub enum Index {
    /// One element of a dimension, which disappears.
    Element(isize),
    /// A range of a dimension.
    Range {
        /// The first element; without it the first there is.
        start: Option<isize>,
        /// One past the last element; without it all there are.
        end: Option<isize>,
        /// Distance of the elements taken; negative from the last to the first.
        step: isize,
    },
    /// All dimensions that no other entry is for.
    Ellipsis,
    /// A new dimension.
    NewAxis,
    /// The elements of a dimension that an integer tensor names.
    Tensor(Tensor),
}

impl Index {
    /// A range with this step.
    #[track_caller]
    pub fn step(self, by: isize) -> Self {
        match self {
            Index::Range { start, end, .. } if by != 0 => Index::Range {
                start,
                end,
                step: by,
            },
            _ => {
                let of = match self {
                    Index::Range { .. } => "a range",
                    _ => "what is no range",
                };
                let problem = format!("a step of {by} of {of}");
                let help = "steps are of ranges, and not 0";
                let source = Location::caller();
                fail_at(argument("s!", problem), Some(help.into()), source)
            }
        }
    }

    fn range(start: Option<isize>, end: Option<isize>) -> Self {
        Index::Range {
            start,
            end,
            step: 1,
        }
    }
}

/// One past an inclusive end; past the last element there is no end.
fn past(end: isize) -> Option<isize> {
    (end != -1).then(|| end.saturating_add(1))
}

impl From<Tensor> for Index {
    fn from(indices: Tensor) -> Self {
        Index::Tensor(indices)
    }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        Index::range(None, None)
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl From<$int> for Index {
            fn from(at: $int) -> Self {
                Index::Element(at as isize)
            }
        }
        impl From<Range<$int>> for Index {
            fn from(range: Range<$int>) -> Self {
                Index::range(Some(range.start as isize), Some(range.end as isize))
            }
        }
        impl From<RangeFrom<$int>> for Index {
            fn from(range: RangeFrom<$int>) -> Self {
                Index::range(Some(range.start as isize), None)
            }
        }
        impl From<RangeTo<$int>> for Index {
            fn from(range: RangeTo<$int>) -> Self {
                Index::range(None, Some(range.end as isize))
            }
        }
        impl From<RangeInclusive<$int>> for Index {
            fn from(range: RangeInclusive<$int>) -> Self {
                Index::range(Some(*range.start() as isize), past(*range.end() as isize))
            }
        }
        impl From<RangeToInclusive<$int>> for Index {
            fn from(range: RangeToInclusive<$int>) -> Self {
                Index::range(None, past(range.end as isize))
            }
        }
    )*};
}

integers!(i32, isize, usize);

impl Tensor {
    /// A part of this tensor, to be read or updated: `x.at(s![1..3, -1]).set(0)`.
    #[track_caller]
    pub fn at(self, index: impl AsRef<[Index]>) -> At {
        let part = Part::new("at", &self.ty(), index.as_ref(), Location::caller());
        At { x: self, part }
    }

    /// A part of this tensor: `x.get(s![1..3, .., -1])`.
    #[track_caller]
    pub fn get(self, index: impl AsRef<[Index]>) -> Tensor {
        let source = Location::caller();
        method("get", source, || {
            Part::new("get", &self.ty(), index.as_ref(), source).read(self, source)
        })
    }
}

/// A part of a tensor, made by [`Tensor::at`]. Updates return the whole tensor; the value broadcasts
/// to the shape of the part.
#[derive(Clone, Debug)]
pub struct At {
    x: Tensor,
    part: Part,
}

macro_rules! updates {
    ($($(#[$doc:meta])* $name:ident $combine:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(&self, value: impl IntoOperand) -> Tensor {
            let source = Location::caller();
            method(concat!("at.", stringify!($name)), source, || {
                self.part.write(self.x, value.into(), Combine::$combine, source)
            })
        }
    )*};
}

impl At {
    /// The part.
    #[track_caller]
    pub fn get(&self) -> Tensor {
        let source = Location::caller();
        method("at.get", source, || self.part.read(self.x, source))
    }

    updates! {
        /// The tensor with the part replaced. Where a tensor of indices names an element twice, one
        /// of its values wins, and has the gradient.
        set Set,
        /// The tensor with a value added to the part; twice where an element is named twice.
        add Add,
        /// The tensor with the part multiplied by a value.
        mul Mul,
        /// The tensor with the smaller of the part and a value. Equal ones share the derivative.
        min Min,
        /// The tensor with the larger of the part and a value. Equal ones share the derivative.
        max Max,
    }
}

/// What entries mean for a tensor.
#[derive(Clone, Debug)]
struct Part {
    /// The window that ranges and elements select, by dimension.
    starts: Dims,
    limits: Dims,
    strides: Dims,
    /// Dimensions that are walked from the last.
    reversed: Dims,
    /// Sizes without the dimensions of which one element is selected.
    window: Shape,
    /// The dimensions of `window` that tensors index, and these.
    indexed: Dims,
    indices: Vec<Tensor>,
    /// Where the tensors' dimensions are.
    at: usize,
    /// Where new dimensions are, in the result without them; ascending.
    new_axes: Dims,
}

impl Part {
    fn new(op: &'static str, ty: &TensorType, entries: &[Index], source: Source) -> Self {
        let entries = spelled_out(op, ty, entries, source);
        let mut part = Part {
            starts: Dims::new(),
            limits: Dims::new(),
            strides: Dims::new(),
            reversed: Dims::new(),
            window: Shape::new(),
            indexed: Dims::new(),
            indices: Vec::new(),
            at: 0,
            new_axes: Dims::new(),
        };
        let has_tensors = entries.iter().any(|e| matches!(e, Index::Tensor(_)));
        let advanced: Vec<usize> = (0..entries.len())
            .filter(|&i| matches!(entries[i], Index::Tensor(_) | Index::Element(_)))
            .filter(|_| has_tensors)
            .collect();
        let together = advanced.windows(2).all(|w| w[0] + 1 == w[1]);
        // Dimensions of the result so far that are ranges, and where new ones go among them.
        let mut ranges = 0;
        let mut new_axes = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            if advanced.first() == Some(&i) && together {
                part.at = ranges;
            }
            let dim = part.starts.len();
            match *entry {
                Index::NewAxis => new_axes.push((i, ranges)),
                Index::Element(at) => {
                    let start = element(op, at, ty, dim, source);
                    part.push(start, start + 1, 1);
                }
                Index::Range { start, end, step } => {
                    let (start, limit) = bounds(op, [start, end], ty, dim, source);
                    let stride = step.unsigned_abs();
                    let count = (limit - start).div_ceil(stride);
                    // From the last element on, when walked from there.
                    let skipped = match step < 0 && count > 0 {
                        true => limit - start - 1 - (count - 1) * stride,
                        false => 0,
                    };
                    if step < 0 {
                        part.reversed.push(dim);
                    }
                    part.push(start + skipped, limit, stride);
                    part.window.push(count);
                    ranges += 1;
                }
                Index::Tensor(indices) => {
                    part.push(0, ty.shape[dim], 1);
                    part.indexed.push(part.window.len());
                    part.indices.push(indices);
                    part.window.push(ty.shape[dim]);
                }
                // Spelled out before.
                Index::Ellipsis => {}
            }
        }
        let block = match advanced.first() {
            Some(&first) if together => first,
            _ => 0,
        };
        let rank = part.indices.iter().map(|t| t.rank()).max().unwrap_or(0);
        let place = |(entry, ranges): (usize, usize)| match entry >= block {
            true => ranges + rank,
            false => ranges,
        };
        part.new_axes = new_axes.into_iter().map(place).collect();
        part
    }

    fn push(&mut self, start: usize, limit: usize, stride: usize) {
        self.starts.push(start);
        self.limits.push(limit);
        self.strides.push(stride);
    }

    /// The window, without the dimensions of single elements.
    fn cut(&self, x: Tensor) -> Tensor {
        let cut = lax::slice(
            x,
            self.starts.clone(),
            self.limits.clone(),
            self.strides.clone(),
        );
        lax::reshape(self.turned(cut), &self.window)
    }

    fn turned(&self, x: Tensor) -> Tensor {
        match self.reversed.is_empty() {
            true => x,
            false => lax::reverse(x, &self.reversed),
        }
    }

    fn rows(&self, op: &'static str, ty: &TensorType, source: Source) -> Option<Rows> {
        let ty = TensorType::new(ty.dtype, &self.window);
        (!self.indices.is_empty())
            .then(|| Rows::new(op, &ty, &self.indexed, &self.indices, self.at, source))
    }

    fn with_new_axes(&self, shape: &[usize]) -> Shape {
        let mut shape = Shape::from_slice(shape);
        for (count, &at) in self.new_axes.iter().enumerate() {
            shape.insert(at + count, 1);
        }
        shape
    }

    fn read(&self, x: Tensor, source: Source) -> Tensor {
        let window = self.cut(x);
        let read = match self.rows("get", &x.ty(), source) {
            Some(rows) => rows.read(window),
            None => window,
        };
        lax::reshape(read, &self.with_new_axes(&read.ty().shape))
    }

    fn write(&self, x: Tensor, value: Operand, combine: Combine, source: Source) -> Tensor {
        let ty = x.ty();
        let rows = self.rows("at", &ty, source);
        let selected = match &rows {
            Some(rows) => rows.ty.clone(),
            None => TensorType::new(ty.dtype, &self.window),
        };
        let wanted = TensorType::new(ty.dtype, self.with_new_axes(&selected.shape));
        let value = lax::reshape(fitted("at", value, &wanted, source), &selected.shape);
        let window = match (rows, combine) {
            (Some(rows), _) => rows.write(self.cut(x), value, combine),
            (None, Combine::Set) => value,
            (None, Combine::Add) => lax::add(self.cut(x), value),
            (None, Combine::Mul) => lax::mul(self.cut(x), value),
            (None, Combine::Max) => lax::binary(Binary::Max, self.cut(x), value),
            (None, Combine::Min) => lax::binary(Binary::Min, self.cut(x), value),
        };
        self.put_back(x, window)
    }

    /// `x` with the window replaced.
    fn put_back(&self, x: Tensor, window: Tensor) -> Tensor {
        let ty = x.ty();
        let counts =
            (0..ty.rank()).map(|d| (self.limits[d] - self.starts[d]).div_ceil(self.strides[d]));
        let shape: Shape = counts.collect();
        let window = self.turned(lax::reshape(window, &shape));
        if shape == ty.shape {
            return window;
        }
        if self.strides.iter().all(|&stride| stride == 1) {
            let dtype = match ty.shape.iter().all(|&size| size <= i32::MAX as usize) {
                true => DType::I32,
                false => DType::I64,
            };
            let scalar = TensorType::scalar(dtype);
            let start = |&start: &usize| lax::full(Number::Int(start as i64), &scalar);
            let starts: Vec<Tensor> = self.starts.iter().map(start).collect();
            return lax::dynamic_update_slice(x, window, &starts);
        }
        if window.ty().element_count() == 0 {
            return x;
        }
        let spread = |window: Tensor| {
            let zero = lax::zeros(&TensorType::scalar(window.dtype()));
            let interior: Dims = self.strides.iter().map(|stride| stride - 1).collect();
            let high = (0..ty.rank())
                .map(|d| ty.shape[d] - self.starts[d] - ((shape[d] - 1) * self.strides[d] + 1))
                .collect();
            lax::pad(window, zero, self.starts.clone(), high, interior)
        };
        let here = lax::full(true.into(), &TensorType::new(DType::Bool, &shape));
        lax::select(spread(here), spread(window), x)
    }
}

/// Entries with an ellipsis replaced by the ranges that it stands for; one is added at the end where
/// none is written.
fn spelled_out(op: &'static str, ty: &TensorType, entries: &[Index], source: Source) -> Vec<Index> {
    let is_ellipsis = |entry: &Index| matches!(entry, Index::Ellipsis);
    let ellipses = entries.iter().filter(|e| is_ellipsis(e)).count();
    let without = |e: &&Index| matches!(e, Index::Ellipsis | Index::NewAxis);
    let named = entries.len() - entries.iter().filter(without).count();
    if ellipses > 1 || named > ty.rank() {
        let problem = format!("{named} entries and {ellipses} ellipses for {ty}");
        let help = format!(
            "write at most {} and one `...`; a `NewAxis` is for no dimension",
            ty.rank()
        );
        fail_at(argument(op, problem), Some(help), source)
    }
    let at = entries
        .iter()
        .position(is_ellipsis)
        .unwrap_or(entries.len());
    let mut all = entries.to_vec();
    let rest = vec![Index::range(None, None); ty.rank() - named];
    all.splice(at..at + ellipses, rest);
    all
}

fn element(op: &'static str, at: isize, ty: &TensorType, dim: usize, source: Source) -> usize {
    let size = ty.shape[dim];
    let from_first = if at < 0 { at + size as isize } else { at };
    match usize::try_from(from_first) {
        Ok(at) if at < size => at,
        _ => {
            let problem = format!("dimension {dim} of {ty} has no element {at}");
            let help = match size {
                0 => "it has none".to_owned(),
                _ => format!("it has 0 to {}, or -{size} to -1 from the last", size - 1),
            };
            fail_at(argument(op, problem), Some(help), source)
        }
    }
}

fn bounds(
    op: &'static str,
    [start, end]: [Option<isize>; 2],
    ty: &TensorType,
    dim: usize,
    source: Source,
) -> (usize, usize) {
    let size = ty.shape[dim];
    let bound = |at: Option<isize>, otherwise: usize| match at {
        None => Some(otherwise),
        Some(at) if at < 0 => usize::try_from(at + size as isize).ok(),
        Some(at) => usize::try_from(at).ok(),
    };
    match (bound(start, 0), bound(end, size)) {
        (Some(start), Some(limit)) if start <= limit && limit <= size => (start, limit),
        _ => {
            let shown = |bound: Option<isize>| bound.map(|b| b.to_string()).unwrap_or_default();
            let problem = format!(
                "dimension {dim} of {ty} has no range {}..{}",
                shown(start),
                shown(end)
            );
            let help = format!(
                "it has {size} elements, and a range does not end before it begins; negative bounds \
                 count from the end"
            );
            fail_at(argument(op, problem), Some(help), source)
        }
    }
}
