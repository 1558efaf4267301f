//! Whole derivatives: Jacobians and Hessians.

use std::panic::Location;

use super::grad::{grad, jvp, vjp};
use super::vmap::vmap;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::Comparison;
use crate::tensor::Tensor;
use crate::trace::{at, fail_at};
use crate::tree::Tree;
use crate::types::{Shape, TensorType};

/// The derivative of every element of the result by every element of the argument, in forward mode:
/// for an argument smaller than the result.
///
/// Every leaf of the result gets the dimensions of the argument after its own.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, jacfwd, trace};
///
/// let polar = |x: Tensor| -> Tensor { x.square().expand_dims(0).broadcast_to([5, 2]) };
/// let program = trace(jacfwd(polar), TensorType::new(DType::F32, [2]))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[5,2,2]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn jacfwd<R: Tree<Tensor>>(f: impl Fn(Tensor) -> R) -> impl Fn(Tensor) -> R {
    let source = Location::caller();
    move |x| {
        at(source, || {
            let ty = x.ty();
            let pushed = vmap(|t: Tensor| jvp(&f, x, t).1)(basis(&ty, source));
            // The directions, one dimension in front, become the last ones of the argument.
            pushed.replace_leaves(&mut |_, t| {
                let rank = t.rank();
                let order: Vec<usize> = (1..rank).chain([0]).collect();
                let last = lax::transpose(*t, &order);
                let result = last.ty().shape;
                let shape: Shape = result[..rank - 1]
                    .iter()
                    .chain(&ty.shape)
                    .copied()
                    .collect();
                lax::reshape(last, &shape)
            })
        })
    }
}

/// The derivative of every element of the result by every element of the argument, in reverse mode:
/// for a result smaller than the argument.
///
/// Every leaf of the argument gets the dimensions of the result before its own.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, jacrev, trace};
///
/// let f = |x: Tensor| x.dot(x);
/// let program = trace(jacrev(f), TensorType::new(DType::F32, [3, 3]))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[3,3,3,3]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn jacrev<A: Tree<Tensor>>(f: impl Fn(A) -> Tensor) -> impl Fn(A) -> A {
    let source = Location::caller();
    move |args| {
        at(source, || {
            let (y, pullback) = vjp(&f, args);
            let ty = y.ty();
            let pulled = vmap(pullback)(basis(&ty, source));
            pulled.replace_leaves(&mut |_, t| {
                let leaf = t.ty().shape;
                let shape: Shape = ty.shape.iter().chain(&leaf[1..]).copied().collect();
                lax::reshape(*t, &shape)
            })
        })
    }
}

/// The second derivatives of a scalar function: forward mode of its gradient.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, hessian, trace};
///
/// let program = trace(
///     hessian(|x: Tensor| x.exp().sum(..)),
///     TensorType::new(DType::F32, [3]),
/// )?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[3,3]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn hessian(f: impl Fn(Tensor) -> Tensor) -> impl Fn(Tensor) -> Tensor {
    jacfwd(grad(f))
}

/// The directions of a space: `[elements, dimensions...]`.
fn basis(ty: &TensorType, source: Source) -> Tensor {
    if !ty.dtype.is_float() {
        let problem = format!("the derivative of {ty}, which is not of real floats");
        let kind = ErrorKind::Derivative {
            op: "jacobian",
            problem,
        };
        fail_at(kind, Some("convert it with `.cast(...)`".into()), source)
    }
    let count = ty.element_count();
    let square = TensorType::new(DType::I32, [count, count]);
    let rows = lax::iota(square.clone(), 0);
    let diagonal = lax::compare(Comparison::Eq, rows, lax::iota(square, 1));
    let shape: Shape = std::iter::once(count)
        .chain(ty.shape.iter().copied())
        .collect();
    lax::reshape(lax::convert(diagonal, ty.dtype), &shape)
}
