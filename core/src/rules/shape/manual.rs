//! Manual regions and collectives.

use smallvec::smallvec;

use super::{Fault, Rule, Types};
use crate::dtype::DType;
use crate::op::{Collective, CollectiveOp, Manual};
use crate::types::TensorType;

impl Rule<'_> {
    /// The body takes blocks of the operands, and the results are made of blocks that it returns.
    pub(super) fn manual(&self, manual: &Manual) -> Result<Types, Fault> {
        let (body, own) = (&manual.body, manual.names());
        let specs = manual.inputs.iter();
        let pairs = self.operands.iter().zip(specs);
        let blocks = pairs.map(|(ty, spec)| manual.block(ty, spec));
        let taken = body.inputs().iter().map(|&i| body.ty(i).clone());
        if self.operands.len() != body.inputs().len() || !blocks.eq(taken) {
            return self.argument_error("operands are not what the region takes".into());
        }
        let results = body.outputs().iter().zip(&manual.outputs);
        let whole = results.map(|(&output, spec)| {
            let ty = body.ty(output);
            let counts = manual.blocks(spec);
            let sizes = ty.shape.iter().zip(&counts);
            let shape: Vec<usize> = sizes.map(|(size, count)| size * count).collect();
            ty.with_shape(shape).with_varying(ty.varying.without(own))
        });
        Ok(whole.collect())
    }

    /// The result, with the axes that it varies over.
    pub(super) fn collective(&self, collective: &Collective) -> Result<Types, Fault> {
        let (own, count) = (collective.names(), collective.size());
        if collective.kind == CollectiveOp::AxisIndex {
            return Ok(smallvec![TensorType::scalar(DType::I32).with_varying(own)]);
        }
        let ty = self.operand(0)?;
        let resized = |dim: usize, resize: &dyn Fn(usize) -> usize| {
            let mut ty = ty.clone();
            ty.shape[dim] = resize(ty.shape[dim]);
            ty
        };
        let ordered = matches!(collective.kind, CollectiveOp::Pmax | CollectiveOp::Pmin);
        let summed = matches!(
            collective.kind,
            CollectiveOp::Psum | CollectiveOp::ReduceScatter(_)
        );
        if summed && ty.dtype == DType::Bool {
            let help = "cast it first, or use `pmax` for \"any\" and `pmin` for \"all\"";
            return self.dtype_error("booleans have no sum".into(), Some(help.into()));
        }
        if ordered && ty.dtype.is_complex() {
            return self.dtype_error(format!("{} has no order", ty.dtype), None);
        }
        Ok(smallvec![match collective.kind {
            CollectiveOp::Psum
            | CollectiveOp::Pmax
            | CollectiveOp::Pmin
            | CollectiveOp::AssumeInvariant => ty.with_varying(ty.varying.without(own)),
            CollectiveOp::AllGather { dim, invariant } => {
                self.dimension(dim, ty.rank())?;
                let whole = resized(dim, &|size| size * count);
                match invariant {
                    true => whole.with_varying(ty.varying.without(own)),
                    false => whole,
                }
            }
            CollectiveOp::ReduceScatter(dim) => {
                self.parts(ty, dim, count)?;
                resized(dim, &|size| size / count)
            }
            CollectiveOp::AllToAll { split, join } => {
                self.parts(ty, split, count)?;
                self.dimension(join, ty.rank())?;
                let mut ty = resized(split, &|size| size / count);
                ty.shape[join] *= count;
                ty
            }
            CollectiveOp::Ppermute(_) => ty.clone(),
            CollectiveOp::AxisIndex | CollectiveOp::Vary => {
                ty.with_varying(ty.varying.union(own))
            }
        }])
    }

    /// A dimension can be cut into as many parts as there are devices.
    fn parts(&self, ty: &TensorType, dim: usize, count: usize) -> Result<(), Fault> {
        self.dimension(dim, ty.rank())?;
        if ty.shape[dim].is_multiple_of(count) {
            return Ok(());
        }
        self.shape_error(format!(
            "dimension {dim} of {ty} cannot be cut into {count} equal parts, one for each device"
        ))
    }
}
