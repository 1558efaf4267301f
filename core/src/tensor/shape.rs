//! Changing shapes, and the order of elements along dimensions.

use std::panic::Location;

use super::Tensor;
use super::reduce::{Axes, dims_at};
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::Dims;
use crate::trace::{fail, fail_at, method};
use crate::types::{Shape, TensorType};

/// The dimension that an axis means; a negative one counts from the last.
#[track_caller]
pub(crate) fn axis(op: &'static str, axis: isize, ty: &TensorType) -> usize {
    axis_at(op, axis, ty, Location::caller())
}

pub(crate) fn axis_at(op: &'static str, axis: isize, ty: &TensorType, source: Source) -> usize {
    let rank = ty.rank() as isize;
    if (-rank..rank).contains(&axis) {
        return axis.rem_euclid(rank) as usize;
    }
    let problem = format!("{ty} has no axis {axis}");
    let help = match rank {
        0 => "a scalar has no axes".to_owned(),
        1 => "its one axis is 0, or -1 from the last".to_owned(),
        _ => format!(
            "its axes are 0 to {}, or -{rank} to -1 from the last",
            rank - 1
        ),
    };
    fail_at(ErrorKind::Argument { op, problem }, Some(help), source)
}

/// The shape that all broadcast to, by numpy's rules: aligned at the last dimension, and a
/// dimension of size 1 repeats.
pub(crate) fn broadcast_shapes(op: &'static str, types: &[&TensorType], source: Source) -> Shape {
    let rank = types.iter().map(|ty| ty.rank()).max().unwrap_or(0);
    let mut shape: Shape = smallvec::smallvec![1; rank];
    let mut clashes = Vec::new();
    for ty in types {
        for (size, dim) in ty.shape.iter().rev().zip((0..rank).rev()) {
            if shape[dim] == 1 {
                shape[dim] = *size;
            } else if *size != 1 && *size != shape[dim] {
                clashes.push(format!("{} against {size} in dimension {dim}", shape[dim]));
            }
        }
    }
    if clashes.is_empty() {
        return shape;
    }
    let listed: Vec<String> = types.iter().map(|ty| ty.to_string()).collect();
    let problem = format!(
        "shapes {} do not broadcast together: {}",
        listed.join(" and "),
        clashes.join(", ")
    );
    let help = "shapes are aligned at the last dimension; sizes there must be equal or 1";
    fail_at(ErrorKind::Shape { op, problem }, Some(help.into()), source)
}

impl Tensor {
    /// The same elements, in row-major order, under another shape: `x.reshape([2, 3])`. One size may
    /// be left to be found: `x.reshape([-1, 3])`, or `x.reshape([INFER, n])` beside a `usize`.
    #[track_caller]
    pub fn reshape(self, shape: impl IntoShape) -> Tensor {
        let source = Location::caller();
        method("reshape", source, || {
            let shape = inferred("reshape", shape.into_shape(), &self.ty(), source);
            lax::reshape(self, &shape)
        })
    }

    /// All elements in one dimension, in row-major order.
    #[track_caller]
    pub fn flatten(self) -> Tensor {
        method("flatten", Location::caller(), || {
            lax::reshape(self, &[self.ty().element_count()])
        })
    }

    /// [`Tensor::flatten`], by numpy's other name.
    #[track_caller]
    pub fn ravel(self) -> Tensor {
        method("ravel", Location::caller(), || self.flatten())
    }

    /// Dimensions `from` to `to`, both included, made one.
    #[track_caller]
    pub fn merge_dims(self, from: isize, to: isize) -> Tensor {
        let source = Location::caller();
        method("merge_dims", source, || {
            let ty = self.ty();
            let from = axis_at("merge_dims", from, &ty, source);
            let to = axis_at("merge_dims", to, &ty, source).max(from);
            let mut shape = ty.shape;
            let merged = shape.drain(from..=to).product();
            shape.insert(from, merged);
            lax::reshape(self, &shape)
        })
    }

    /// Repeats dimensions of size 1 and adds leading ones, by numpy's rules.
    #[track_caller]
    pub fn broadcast_to(self, shape: impl AsRef<[usize]>) -> Tensor {
        let shape = shape.as_ref();
        method("broadcast_to", Location::caller(), || {
            let ty = self.ty();
            let fits = ty.rank() <= shape.len()
                && ty
                    .shape
                    .iter()
                    .rev()
                    .zip(shape.iter().rev())
                    .all(|(&a, &b)| a == b || a == 1);
            if !fits {
                let to = TensorType::new(ty.dtype, shape);
                let problem = format!("{ty} does not broadcast to {to}");
                let help =
                    "shapes are aligned at the last dimension; sizes there must be equal or 1";
                fail(
                    ErrorKind::Shape {
                        op: "broadcast_to",
                        problem,
                    },
                    Some(help.into()),
                )
            }
            let dims: Dims = (shape.len() - ty.rank()..shape.len()).collect();
            lax::broadcast(self, shape, &dims)
        })
    }

    /// Result dimension `i` is dimension `permutation[i]` of this tensor.
    #[track_caller]
    pub fn transpose(self, permutation: impl AsRef<[usize]>) -> Tensor {
        lax::transpose(self, permutation.as_ref())
    }

    /// Exchanges two dimensions.
    #[track_caller]
    pub fn swap_axes(self, a: isize, b: isize) -> Tensor {
        let ty = self.ty();
        let (a, b) = (axis("swap_axes", a, &ty), axis("swap_axes", b, &ty));
        let mut permutation: Dims = (0..ty.rank()).collect();
        permutation.swap(a, b);
        lax::transpose(self, &permutation)
    }

    /// Moves dimensions `from` to the places `to`; the others keep their order.
    #[track_caller]
    pub fn moveaxis(self, from: impl Axes, to: impl Axes) -> Tensor {
        let source = Location::caller();
        method("moveaxis", source, || {
            let ty = self.ty();
            let [from, to] = [from.list(ty.rank()), to.list(ty.rank())].map(|axes| {
                let axes = axes.into_iter();
                axes.map(|axis| axis_at("moveaxis", axis, &ty, source))
                    .collect::<Dims>()
            });
            let once = |dims: &Dims| (1..dims.len()).all(|i| !dims[..i].contains(&dims[i]));
            if from.len() != to.len() || !once(&from) || !once(&to) {
                let problem = format!("dimensions {from:?} of {ty} to {to:?}");
                let help = "name as many places as dimensions, each once";
                let kind = argument("moveaxis", problem);
                fail_at(kind, Some(help.into()), source)
            }
            let mut pairs: Vec<(usize, usize)> = to.into_iter().zip(from.iter().copied()).collect();
            pairs.sort_unstable();
            let mut permutation: Dims = (0..ty.rank()).filter(|d| !from.contains(d)).collect();
            for (to, from) in pairs {
                permutation.insert(to, from);
            }
            lax::transpose(self, &permutation)
        })
    }

    /// Inserts a dimension of size 1 before dimension `at`; a negative one counts from the end,
    /// -1 appends.
    #[track_caller]
    pub fn expand_dims(self, at: isize) -> Tensor {
        let ty = self.ty();
        let rank = ty.rank() as isize + 1;
        if !(-rank..rank).contains(&at) {
            let problem = format!("the result, of {rank} dimensions, has no axis {at}");
            fail(
                ErrorKind::Argument {
                    op: "expand_dims",
                    problem,
                },
                None,
            )
        }
        let at = at.rem_euclid(rank) as usize;
        let mut shape = ty.shape;
        shape.insert(at, 1);
        lax::reshape(self, &shape)
    }

    /// Removes dimensions of size 1: `x.squeeze(-1)`, `x.squeeze([0, 2])`.
    #[track_caller]
    pub fn squeeze(self, axes: impl Axes) -> Tensor {
        let source = Location::caller();
        method("squeeze", source, || {
            let ty = self.ty();
            let dims = dims_at("squeeze", &axes, &ty, source);
            if let Some(dim) = dims.iter().find(|&&dim| ty.shape[dim] != 1) {
                let problem = format!("dimension {dim} of {ty} is not of size 1");
                let op = "squeeze";
                fail_at(ErrorKind::Shape { op, problem }, None, source)
            }
            let sizes = ty.shape.iter().enumerate();
            let kept = sizes.filter(|(d, _)| !dims.contains(d));
            let shape: Shape = kept.map(|(_, &size)| size).collect();
            lax::reshape(self, &shape)
        })
    }

    /// Reverses the order along dimensions.
    #[track_caller]
    pub fn reverse(self, axes: impl AsRef<[isize]>) -> Tensor {
        let source = Location::caller();
        method("reverse", source, || {
            let dims = dims_at("reverse", &axes.as_ref(), &self.ty(), source);
            lax::reverse(self, &dims)
        })
    }

    /// Reverses the order along dimensions: `x.flip(0)`, `x.flip(..)`.
    #[track_caller]
    pub fn flip(self, axes: impl Axes) -> Tensor {
        let source = Location::caller();
        method("flip", source, || {
            let dims = dims_at("flip", &axes, &self.ty(), source);
            lax::reverse(self, &dims)
        })
    }

    /// Moves elements `shift` places along a dimension; those that leave it at the end come back at
    /// the beginning.
    #[track_caller]
    pub fn roll(self, shift: isize, axis: isize) -> Tensor {
        let source = Location::caller();
        method("roll", source, || {
            let ty = self.ty();
            let dim = axis_at("roll", axis, &ty, source);
            let size = ty.shape[dim];
            let shift = match size {
                0 => 0,
                size => shift.rem_euclid(size as isize) as usize,
            };
            if shift == 0 {
                return self;
            }
            let part = |start, limit| lax::slice_dim(self, dim, start, limit);
            lax::concatenate(&[part(size - shift, size), part(0, size - shift)], dim)
        })
    }

    /// [`Tensor::roll`] by as many places as `shift`, an integer scalar of the program, says; of either sign, and further than the
    /// dimension is long.
    #[track_caller]
    pub fn roll_by(self, shift: Tensor, axis: isize) -> Tensor {
        let source = Location::caller();
        method("roll_by", source, || {
            let (ty, by) = (self.ty(), shift.ty());
            let dim = axis_at("roll_by", axis, &ty, source);
            if !by.dtype.is_integer() || by.rank() != 0 {
                let (op, problem) = ("roll_by", format!("`shift` is {by}, not an integer scalar"));
                fail_at(ErrorKind::Argument { op, problem }, None, source)
            }
            let size = ty.shape[dim];
            if size == 0 {
                return self;
            }
            // What comes back at the beginning stands behind the end of the first copy.
            let twice = lax::concatenate(&[self, self], dim);
            let start = (-shift.cast(DType::I64)).rem_euclid(size as i64);
            twice.dynamic_slice(dim as isize, start, size)
        })
    }

    /// The whole repeated along dimensions, `counts` times each; of fewer dimensions than this tensor
    /// they are the last, and more add leading ones.
    #[track_caller]
    pub fn tile(self, counts: impl AsRef<[usize]>) -> Tensor {
        method("tile", Location::caller(), || {
            let ty = self.ty();
            let rank = ty.rank().max(counts.as_ref().len());
            let padded = |of: &[usize]| -> Vec<usize> { [&vec![1; rank - of.len()], of].concat() };
            let (sizes, counts) = (padded(&ty.shape), padded(counts.as_ref()));
            // A dimension of its own for each count, before that of the elements.
            let repeated: Shape = counts
                .iter()
                .zip(&sizes)
                .flat_map(|(&c, &s)| [c, s])
                .collect();
            let from = rank - ty.rank();
            let dims: Dims = (from..rank).map(|d| 2 * d + 1).collect();
            let shape: Shape = counts
                .iter()
                .zip(&sizes)
                .map(|(&c, &s)| c.saturating_mul(s))
                .collect();
            lax::reshape(lax::broadcast(self, &repeated, &dims), &shape)
        })
    }

    /// Each element along a dimension `count` times in a row.
    #[track_caller]
    pub fn repeat(self, count: usize, axis: isize) -> Tensor {
        let source = Location::caller();
        method("repeat", source, || {
            let ty = self.ty();
            let dim = axis_at("repeat", axis, &ty, source);
            let mut repeated = ty.shape.clone();
            repeated.insert(dim + 1, count);
            let dims: Dims = (0..=ty.rank()).filter(|&d| d != dim + 1).collect();
            let mut shape = ty.shape;
            shape[dim] = shape[dim].saturating_mul(count);
            lax::reshape(lax::broadcast(self, &repeated, &dims), &shape)
        })
    }
}

/// Joins tensors along a dimension; a negative axis counts from the last.
#[track_caller]
pub fn concatenate(parts: impl AsRef<[Tensor]>, axis: isize) -> Tensor {
    let source = Location::caller();
    method("concatenate", source, || {
        let parts = parts.as_ref();
        let dim = axis_at(
            "concatenate",
            axis,
            &first("concatenate", parts, source),
            source,
        );
        lax::concatenate(parts, dim)
    })
}

/// Joins tensors of one shape along a new dimension, which is dimension `axis` of the result; a
/// negative one counts from its last.
#[track_caller]
pub fn stack(parts: impl AsRef<[Tensor]>, axis: isize) -> Tensor {
    let source = Location::caller();
    method("stack", source, || {
        let parts = parts.as_ref();
        let mut ty = first("stack", parts, source);
        ty.shape.insert(0, 1);
        let dim = axis_at("stack", axis, &ty, source);
        ty.shape.remove(0);
        if let Some(other) = parts
            .iter()
            .map(|p| p.ty())
            .find(|other| !other.is_like(&ty))
        {
            let problem = format!("{other} is stacked on {ty}");
            let op = "stack";
            fail_at(ErrorKind::Shape { op, problem }, None, source)
        }
        ty.shape.insert(dim, 1);
        let parts: Vec<Tensor> = parts.iter().map(|&p| lax::reshape(p, &ty.shape)).collect();
        lax::concatenate(&parts, dim)
    })
}

fn first(op: &'static str, parts: &[Tensor], source: Source) -> TensorType {
    match parts {
        [first, ..] => first.ty(),
        [] => fail_at(
            argument(op, "there is nothing to join".to_owned()),
            None,
            source,
        ),
    }
}

fn argument(op: &'static str, problem: String) -> ErrorKind {
    ErrorKind::Argument { op, problem }
}

/// The size of [`Tensor::reshape`] that follows from the others. It is no size that arithmetic ends
/// at by mistake.
pub const INFER: usize = usize::MAX - 1;

/// A shape, of which one size may be [`INFER`]; -1 means the same.
pub trait IntoShape {
    /// Its sizes; without a value, one that is negative and not -1.
    fn into_shape(self) -> Result<Shape, i64>;
}

macro_rules! into_shape {
    ($($shape:ty),* $(,)?) => {$(
        impl IntoShape for $shape {
            fn into_shape(self) -> Result<Shape, i64> {
                Ok(Shape::from_slice(self.as_ref()))
            }
        }
    )*};
}

into_shape!(&[usize], Vec<usize>, &Vec<usize>, Shape, &Shape);

impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self) -> Result<Shape, i64> {
        Ok(Shape::from_slice(&self))
    }
}

impl<const N: usize> IntoShape for &[usize; N] {
    fn into_shape(self) -> Result<Shape, i64> {
        Ok(Shape::from_slice(self))
    }
}

macro_rules! into_shape_signed {
    ($($int:ty),*) => {$(
        impl<const N: usize> IntoShape for [$int; N] {
            fn into_shape(self) -> Result<Shape, i64> {
                let size = |size: $int| match size {
                    -1 => Ok(INFER),
                    size => usize::try_from(size).map_err(|_| size as i64),
                };
                self.into_iter().map(size).collect()
            }
        }
    )*};
}

into_shape_signed!(i32, i64, isize);

/// The shape with the size that was left out.
fn inferred(op: &'static str, shape: Result<Shape, i64>, ty: &TensorType, source: Source) -> Shape {
    let mut shape = match shape {
        Ok(shape) => shape,
        Err(size) => {
            let problem = format!("{ty} has no size {size}");
            let help = "-1 is a size that follows from the others; no other is negative";
            fail_at(argument(op, problem), Some(help.into()), source)
        }
    };
    let open: Dims = (0..shape.len()).filter(|&d| shape[d] == INFER).collect();
    let [open] = open[..] else {
        if open.len() > 1 {
            let problem = format!("{} sizes of {ty} are left open", open.len());
            fail_at(
                argument(op, problem),
                Some("leave out one at most".into()),
                source,
            )
        }
        return shape;
    };
    shape[open] = 1;
    let others = TensorType::new(ty.dtype, &shape).element_count();
    let count = ty.element_count();
    if others == 0 || !count.is_multiple_of(others) {
        let problem = format!("the {count} elements of {ty} do not divide into rows of {others}");
        fail_at(ErrorKind::Shape { op, problem }, None, source)
    }
    shape[open] = count / others;
    shape
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::trace::catch;

    fn broadcast<const N: usize>(shapes: [&[usize]; N]) -> Option<Vec<usize>> {
        let types = shapes.map(|shape| TensorType::new(DType::F32, shape));
        let types: Vec<&TensorType> = types.iter().collect();
        catch(|| broadcast_shapes("add", &types, Location::caller()))
            .ok()
            .map(|s| s.to_vec())
    }

    #[test]
    fn shapes_broadcast_from_the_last_dimension() {
        assert_eq!(broadcast([&[2, 3], &[3]]), Some(vec![2, 3]));
        assert_eq!(broadcast([&[2, 1], &[1, 3], &[]]), Some(vec![2, 3]));
        assert_eq!(broadcast([&[1], &[0]]), Some(vec![0]));
        assert_eq!(broadcast([]), Some(vec![]));
        assert_eq!(broadcast([&[2, 3], &[2]]), None);
        assert_eq!(broadcast([&[0], &[2]]), None);
    }
}
