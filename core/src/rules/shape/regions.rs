//! Operations that contain functions.

use super::{Fault, Rule, Types};
use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::{Cond, Custom, Remat, Scan, While};
use crate::types::{Shape, TensorType};

impl Rule<'_> {
    /// The body's carries must come out as they went in, and its inputs be what the operands are.
    pub(super) fn scan(&self, scan: &Scan) -> Result<Types, Fault> {
        let body = &scan.body;
        if body.inputs().len() != self.operands.len() {
            return self.argument_error(format!(
                "the body takes {} values, {} are given",
                body.inputs().len(),
                self.operands.len()
            ));
        }
        for (i, (&input, &operand)) in body.inputs().iter().zip(self.operands).enumerate() {
            let scanned = (scan.carries..scan.carries + scan.xs).contains(&i);
            let fits = if scanned {
                operand.shape.first() == Some(&scan.length)
                    && operand.with_shape(&operand.shape[1..]) == *body.ty(input)
            } else {
                operand == body.ty(input)
            };
            if !fits {
                return self.shape_error(format!(
                    "operand {i} is {operand}, the body takes {}{}",
                    body.ty(input),
                    if scanned {
                        format!(" in each of {} iterations", scan.length)
                    } else {
                        String::new()
                    }
                ));
            }
        }
        let carries = body.outputs()[..scan.carries]
            .iter()
            .map(|&o| body.ty(o).clone());
        let stacked = body.outputs()[scan.carries..].iter().map(|&o| {
            let ty = body.ty(o);
            let shape: Shape = std::iter::once(scan.length)
                .chain(ty.shape.iter().copied())
                .collect();
            ty.with_shape(shape)
        });
        Ok(carries.chain(stacked).collect())
    }

    /// Every branch takes the operands but the first, and returns the same types.
    pub(super) fn cond(&self, cond: &Cond) -> Result<Types, Fault> {
        let index = self.operand(0)?;
        if index.dtype != DType::I32 || index.rank() != 0 {
            return self.dtype_error(format!("the index is {index}, not an i32 scalar"), None);
        }
        let Some(first) = cond.branches.first() else {
            return self.argument_error("there is no branch to choose".into());
        };
        let results = outputs(first);
        for (i, branch) in cond.branches.iter().enumerate() {
            self.takes(branch, &self.operands[1..])?;
            let returned = outputs(branch);
            if returned != results {
                let list = |types: &Types| {
                    let types: Vec<String> = types.iter().map(|ty| ty.to_string()).collect();
                    types.join(", ")
                };
                return self.shape_error(format!(
                    "branch {i} returns ({}), branch 0 ({})",
                    list(&returned),
                    list(&results)
                ));
            }
        }
        Ok(results)
    }

    /// The condition is a boolean scalar, and the body returns the carries as they came.
    pub(super) fn while_loop(&self, looped: &While) -> Result<Types, Fault> {
        self.takes(&looped.cond, self.operands)?;
        self.takes(&looped.body, self.operands)?;
        let decided = outputs(&looped.cond);
        let is_boolean = |ty: &TensorType| ty.dtype == DType::Bool && ty.rank() == 0;
        if !matches!(decided.as_slice(), [ty] if is_boolean(ty)) {
            return self.dtype_error(
                "the condition does not return one boolean scalar".into(),
                Some("reduce it with `.any(..)` or `.all(..)`".into()),
            );
        }
        let results = outputs(&looped.body);
        let carries = self.operands.get(..looped.carries);
        let kept = carries.is_some_and(|c| c.iter().copied().eq(&results));
        if !kept {
            return self.shape_error("the body does not return the carries as they came".into());
        }
        Ok(results)
    }

    pub(super) fn remat(&self, remat: &Remat) -> Result<Types, Fault> {
        self.takes(&remat.body, self.operands)?;
        Ok(outputs(&remat.body))
    }

    pub(super) fn custom(&self, custom: &Custom) -> Result<Types, Fault> {
        self.takes(&custom.body, self.operands)?;
        Ok(outputs(&custom.body))
    }

    fn takes(&self, body: &Graph, operands: &[&TensorType]) -> Result<(), Fault> {
        let inputs = body.inputs().iter().map(|&i| body.ty(i));
        if inputs.eq(operands.iter().copied()) {
            return Ok(());
        }
        self.argument_error("operands are not what the function inside takes".into())
    }
}

fn outputs(body: &Graph) -> Types {
    body.outputs().iter().map(|&o| body.ty(o).clone()).collect()
}
