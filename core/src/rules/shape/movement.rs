//! Operations that move elements.

use super::{Fault, Rule};
use crate::op::Dims;
use crate::types::{Shape, TensorType};

impl Rule<'_> {
    pub(super) fn broadcast(&self, shape: &Shape, dims: &Dims) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        let ascending = dims.windows(2).all(|w| w[0] < w[1]);
        let fits = dims.len() == ty.rank()
            && ascending
            && dims
                .iter()
                .zip(&ty.shape)
                .all(|(&d, &size)| shape.get(d).is_some_and(|&to| size == to || size == 1));
        if !fits {
            return self.shape_error(format!(
                "{ty} does not broadcast to {shape:?} along {dims:?}"
            ));
        }
        Ok(TensorType::new(ty.dtype, shape))
    }

    pub(super) fn reshape(&self, shape: &Shape) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        let to = TensorType::new(ty.dtype, shape);
        if ty.element_count() != to.element_count() {
            let refused = self.shape_error(format!(
                "{ty} has {} elements, {to} has {}",
                ty.element_count(),
                to.element_count()
            ));
            return self.advise(
                refused,
                "the sizes must multiply to as many; -1 for one of them finds it",
            );
        }
        Ok(to)
    }

    pub(super) fn transpose(&self, permutation: &Dims) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.dimensions(permutation, ty.rank())?;
        if permutation.len() != ty.rank() {
            let refused = self.argument_error(format!(
                "the permutation {permutation:?} has {} entries, {ty} has {} dimensions",
                permutation.len(),
                ty.rank()
            ));
            return self.advise(
                refused,
                format!("name each of the {} dimensions once", ty.rank()),
            );
        }
        let shape: Shape = permutation.iter().map(|&p| ty.shape[p]).collect();
        Ok(TensorType::new(ty.dtype, shape))
    }

    pub(super) fn slice(
        &self,
        starts: &Dims,
        limits: &Dims,
        strides: &Dims,
    ) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        let mut shape = Shape::new();
        for (dim, &size) in ty.shape.iter().enumerate() {
            let (start, limit, stride) = (starts[dim], limits[dim], strides[dim]);
            if start > limit || limit > size || stride == 0 {
                return self.argument_error(format!(
                    "range {start}..{limit} by {stride} of dimension {dim} of {ty}"
                ));
            }
            shape.push((limit - start).div_ceil(stride));
        }
        Ok(TensorType::new(ty.dtype, shape))
    }

    pub(super) fn pad(
        &self,
        low: &Dims,
        high: &Dims,
        interior: &Dims,
    ) -> Result<TensorType, Fault> {
        let (ty, value) = (self.operand(0)?, self.operand(1)?);
        if !value.is_like(&TensorType::scalar(ty.dtype)) {
            return self.dtype_error(format!("the padding {value} is not a scalar of {ty}"), None);
        }
        // What is beyond all sizes is refused as such.
        let padded = |dim: usize, size: usize| {
            size.saturating_sub(1)
                .saturating_mul(interior[dim])
                .saturating_add(size)
                .saturating_add(low[dim])
                .saturating_add(high[dim])
        };
        let shape: Shape = ty
            .shape
            .iter()
            .enumerate()
            .map(|(d, &s)| padded(d, s))
            .collect();
        Ok(TensorType::new(ty.dtype, shape))
    }

    pub(super) fn concatenate(&self, dimension: usize) -> Result<TensorType, Fault> {
        let first = self.operand(0)?;
        self.dimension(dimension, first.rank())?;
        let mut shape = first.shape.clone();
        for (position, ty) in self.operands.iter().enumerate().skip(1) {
            let mut expected = first.shape.clone();
            if ty.rank() == first.rank() {
                expected[dimension] = ty.shape[dimension];
            }
            if ty.dtype != first.dtype {
                return self.dtype_error(
                    format!("operand {position} is {ty}, operand 0 is {first}"),
                    Some("convert one of them with `.cast(...)`".into()),
                );
            }
            if ty.shape != expected {
                let refused = self.shape_error(format!(
                    "operand {position} is {ty}, operand 0 is {first}: they may differ in dimension \
                     {dimension} alone"
                ));
                return self.advise(refused, "`stack` joins along a new dimension");
            }
            shape[dimension] = shape[dimension].saturating_add(ty.shape[dimension]);
        }
        Ok(TensorType::new(first.dtype, shape))
    }

    fn starts(&self, from: usize, rank: usize) -> Result<(), Fault> {
        let starts = &self.operands[from.min(self.operands.len())..];
        let scalar = |ty: &&TensorType| ty.rank() == 0 && ty.dtype.is_integer();
        if starts.len() != rank || !starts.iter().all(scalar) {
            return self.argument_error(format!(
                "wants {rank} integer scalars as starts, got {}",
                starts
                    .iter()
                    .map(|t| t.to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
        Ok(())
    }

    pub(super) fn dynamic_slice(&self, sizes: &Dims) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.starts(1, ty.rank())?;
        if sizes.len() != ty.rank() || sizes.iter().zip(&ty.shape).any(|(s, d)| s > d) {
            return self.shape_error(format!("a window of {sizes:?} is larger than {ty}"));
        }
        Ok(TensorType::new(ty.dtype, sizes))
    }

    pub(super) fn dynamic_update_slice(&self) -> Result<TensorType, Fault> {
        let (ty, update) = (self.operand(0)?, self.operand(1)?);
        self.starts(2, ty.rank())?;
        let fits = update.dtype == ty.dtype
            && update.rank() == ty.rank()
            && update.shape.iter().zip(&ty.shape).all(|(u, d)| u <= d);
        if !fits {
            return self.shape_error(format!("the update {update} does not fit into {ty}"));
        }
        Ok(ty.clone())
    }
}
