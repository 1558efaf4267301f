//! Sorting, and running reductions.

use super::{Fault, Rule, Types};
use crate::dtype::DType;
use crate::op::{Cumulative, Reducer, Sort};
use crate::types::TensorType;

impl Rule<'_> {
    pub(super) fn sort(&self, sort: Sort) -> Result<Types, Fault> {
        let first = self.operand(0)?;
        self.dimension(sort.dim, first.rank())?;
        if sort.keys == 0 || sort.keys > self.operands.len() {
            return self.argument_error(format!(
                "{} of {} operands are compared",
                sort.keys,
                self.operands.len()
            ));
        }
        for ty in self.operands {
            if ty.shape != first.shape {
                return self.shape_error(format!("{ty} is sorted together with {first}"));
            }
        }
        for ty in &self.operands[..sort.keys] {
            if ty.dtype.is_complex() {
                return self.dtype_error(format!("complex numbers of {ty} have no order"), None);
            }
        }
        Ok(self.operands.iter().map(|ty| (*ty).clone()).collect())
    }

    pub(super) fn cumulative(&self, cumulative: Cumulative) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.dimension(cumulative.dim, ty.rank())?;
        self.reducible(cumulative.reducer, ty)?;
        Ok(ty.clone())
    }

    /// Whether elements of this type can be combined so.
    pub(super) fn reducible(&self, reducer: Reducer, ty: &TensorType) -> Result<(), Fault> {
        match reducer {
            Reducer::And | Reducer::Or if !(ty.dtype == DType::Bool || ty.dtype.is_integer()) => {
                self.dtype_error(format!("takes a boolean or integer tensor, not {ty}"), None)
            }
            Reducer::Max | Reducer::Min if ty.dtype.is_complex() => {
                self.dtype_error(format!("complex numbers of {ty} have no order"), None)
            }
            Reducer::And
            | Reducer::Max
            | Reducer::Min
            | Reducer::Or
            | Reducer::Prod
            | Reducer::Sum => Ok(()),
        }
    }
}
