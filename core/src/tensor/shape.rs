//! Changing shapes.

use std::panic::Location;

use super::Tensor;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Dims, Op};
use crate::trace::{emit1, fail, fail_at, method};
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
    /// The same elements, in row-major order, under another shape.
    #[track_caller]
    pub fn reshape(self, shape: impl AsRef<[usize]>) -> Tensor {
        lax::reshape(self, shape.as_ref())
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

    /// Removes a dimension of size 1.
    #[track_caller]
    pub fn squeeze(self, at: isize) -> Tensor {
        let ty = self.ty();
        let at = axis("squeeze", at, &ty);
        if ty.shape[at] != 1 {
            let problem = format!("dimension {at} of {ty} is not of size 1");
            fail_at(
                ErrorKind::Shape {
                    op: "squeeze",
                    problem,
                },
                None,
                Location::caller(),
            )
        }
        let mut shape = ty.shape;
        shape.remove(at);
        lax::reshape(self, &shape)
    }

    /// Reverses the order along dimensions.
    #[track_caller]
    pub fn reverse(self, axes: impl AsRef<[isize]>) -> Tensor {
        let ty = self.ty();
        let source = Location::caller();
        let dims: Dims = axes
            .as_ref()
            .iter()
            .map(|&a| axis_at("reverse", a, &ty, source))
            .collect();
        emit1(Op::Reverse(dims), &[self], source)
    }
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
