//! Reading and writing by index.

use super::{Fault, Rule};
use crate::op::{Combine, Dims, GatherDims};
use crate::types::{Shape, TensorType};

impl Rule<'_> {
    fn indices(&self, i: usize) -> Result<&TensorType, Fault> {
        let ty = self.operand(i)?;
        if !ty.dtype.is_integer() {
            return self.dtype_error(format!("the indices are {ty}, not integers"), None);
        }
        Ok(ty)
    }

    /// Sizes of the indices' dimensions that are not of index vectors, with where each is.
    fn index_dims(&self, dims: &GatherDims, indices: &TensorType) -> Result<Shape, Fault> {
        if !dims.vectors {
            return Ok(indices.shape.clone());
        }
        match indices.shape.split_last() {
            Some((&components, rest)) if components == dims.start_map.len() => {
                Ok(Shape::from_slice(rest))
            }
            _ => self.shape_error(format!(
                "index vectors of {} components are in the last dimension of the indices, which are \
                 {indices}",
                dims.start_map.len()
            )),
        }
    }

    /// Whether dimension numbers fit an operand and its indices.
    fn gather_dims(&self, dims: &GatherDims) -> Result<(), Fault> {
        let (ty, indices) = (self.operand(0)?, self.indices(1)?);
        let left_out: Dims = dims
            .collapsed
            .iter()
            .chain(&dims.operand_batch)
            .copied()
            .collect();
        self.dimensions(&left_out, ty.rank())?;
        self.dimensions(&dims.start_map, ty.rank())?;
        self.dimensions(&dims.indices_batch, self.index_dims(dims, indices)?.len())?;
        let windowed = ty.rank() - left_out.len();
        if windowed != dims.offset.len() || !dims.offset.is_sorted() {
            return self.argument_error(format!(
                "windows of {ty} have {windowed} dimensions, and {:?} are named",
                dims.offset
            ));
        }
        if !dims.vectors && dims.start_map.len() != 1 {
            return self.argument_error("single indices name one dimension".into());
        }
        if dims.operand_batch.len() != dims.indices_batch.len() {
            return self.argument_error("batch dimensions come in pairs".into());
        }
        for (&d, &i) in dims.operand_batch.iter().zip(&dims.indices_batch) {
            if ty.shape[d] != indices.shape[i] {
                return self.shape_error(format!(
                    "dimension {d} of {ty} goes together with dimension {i} of the indices {indices}"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn gather(&self, dims: &GatherDims, sizes: &Dims) -> Result<TensorType, Fault> {
        self.gather_dims(dims)?;
        let (ty, indices) = (self.operand(0)?, self.indices(1)?);
        if sizes.len() != ty.rank() || sizes.iter().zip(&ty.shape).any(|(s, d)| s > d) {
            return self.shape_error(format!("a window of {sizes:?} is larger than {ty}"));
        }
        let in_window = |d: &usize| !dims.collapsed.contains(d) && !dims.operand_batch.contains(d);
        if (0..ty.rank()).any(|d| !in_window(&d) && sizes[d] != 1) {
            return self.argument_error(format!("windows {sizes:?} have left out dimensions"));
        }
        let mut window = (0..ty.rank()).filter(in_window).map(|d| sizes[d]);
        let mut batch = self.index_dims(dims, indices)?.into_iter();
        let rank = dims.offset.len() + batch.len();
        let shape: Shape = (0..rank)
            .filter_map(|d| match dims.offset.contains(&d) {
                true => window.next(),
                false => batch.next(),
            })
            .collect();
        Ok(TensorType::new(ty.dtype, shape))
    }

    pub(super) fn scatter(&self, dims: &GatherDims, combine: Combine) -> Result<TensorType, Fault> {
        self.gather_dims(dims)?;
        let (ty, indices, updates) = (self.operand(0)?, self.indices(1)?, self.operand(2)?);
        if ty.dtype != updates.dtype {
            return self.dtype_error(
                format!("the updates are {updates}, the operand is {ty}"),
                Some("convert the updates with `.cast(...)`".into()),
            );
        }
        if ty.dtype.is_complex() && matches!(combine, Combine::Max | Combine::Min) {
            return self.dtype_error(format!("complex numbers of {ty} have no order"), None);
        }
        let batch = self.index_dims(dims, indices)?;
        let mut in_window = (0..ty.rank())
            .filter(|d| !dims.collapsed.contains(d) && !dims.operand_batch.contains(d));
        let mut next = batch.iter();
        let fits =
            updates.rank() == dims.offset.len() + batch.len()
                && updates.shape.iter().enumerate().all(|(d, &size)| {
                    match dims.offset.contains(&d) {
                        true => in_window.next().is_some_and(|w| size <= ty.shape[w]),
                        false => next.next() == Some(&size),
                    }
                });
        if !fits {
            return self.shape_error(format!(
                "updates {updates} do not fit indices {indices} into {ty}"
            ));
        }
        Ok(ty.clone())
    }
}
