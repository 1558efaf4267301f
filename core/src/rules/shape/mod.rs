//! Result types of primitives, and whether operands fit.

mod contract;
mod elementwise;
mod gather;
mod manual;
mod movement;
mod order;
mod regions;
mod window;

use smallvec::{SmallVec, smallvec};

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::literal::{Literal, Number};
use crate::op::Op;
use crate::types::TensorType;

/// What is wrong, and what to do about it.
pub(crate) type Fault = (ErrorKind, Option<String>);
/// Those of the results of an operation.
pub(crate) type Types = SmallVec<[TensorType; 1]>;

/// The types of the results of `op` applied to operands of these types.
pub(crate) fn infer(op: &Op, operands: &[&TensorType]) -> Result<Types, Fault> {
    Rule { op, operands }.infer()
}

struct Rule<'a> {
    op: &'a Op,
    operands: &'a [&'a TensorType],
}

impl Rule<'_> {
    fn infer(&self) -> Result<Types, Fault> {
        let one = |ty: TensorType| -> Result<Types, Fault> { Ok(smallvec![ty]) };
        match self.op {
            Op::Constant(literal) => one(literal.ty().clone()),
            Op::Tangent(ty) => one(ty.clone()),
            Op::Iota { ty, dimension } => {
                self.dimension(*dimension, ty.rank())?;
                if ty.dtype == DType::Bool {
                    return self.dtype_error("counts numbers, not booleans".into(), None);
                }
                let last = ty.shape[*dimension].saturating_sub(1);
                if Literal::scalar(Number::Int(last as i64), ty.dtype).is_none() {
                    let problem = format!("counts to {last}, which is not a value of {}", ty.dtype);
                    let help = "count in `DType::I32` or another type that holds it";
                    return self.dtype_error(problem, Some(help.into()));
                }
                one(ty.clone())
            }
            Op::Unary(unary) => one(self.unary(*unary)?),
            Op::Binary(binary) => one(self.binary(*binary)?),
            Op::Compare(_) => {
                let [lhs, _] = self.same_types()?;
                one(TensorType::new(DType::Bool, &lhs.shape))
            }
            Op::Select => one(self.select()?),
            Op::Convert(dtype) => one(TensorType::new(*dtype, &self.operand(0)?.shape)),
            Op::BitcastConvert(dtype) => one(self.bitcast(*dtype)?),
            Op::Broadcast { shape, dims } => one(self.broadcast(shape, dims)?),
            Op::Reshape(shape) => one(self.reshape(shape)?),
            Op::Transpose(permutation) => one(self.transpose(permutation)?),
            Op::Slice {
                starts,
                limits,
                strides,
            } => one(self.slice(starts, limits, strides)?),
            Op::Pad {
                low,
                high,
                interior,
            } => one(self.pad(low, high, interior)?),
            Op::Concatenate(dimension) => one(self.concatenate(*dimension)?),
            Op::Reverse(dims) => {
                let ty = self.operand(0)?;
                self.dimensions(dims, ty.rank())?;
                one(ty.clone())
            }
            Op::Reduce(reducer, dims) => one(self.reduce(*reducer, dims)?),
            Op::DotGeneral(dims) => one(self.dot(dims)?),
            Op::DynamicSlice(sizes) => one(self.dynamic_slice(sizes)?),
            Op::DynamicUpdateSlice => one(self.dynamic_update_slice()?),
            Op::Gather { dims, sizes } => one(self.gather(dims, sizes)?),
            Op::Scatter { dims, combine } => one(self.scatter(dims, *combine)?),
            Op::Conv(conv) => one(self.conv(conv)?),
            Op::ReduceWindow(reducer, window) => one(self.reduce_window(*reducer, window)?),
            Op::Cumulative(cumulative) => one(self.cumulative(*cumulative)?),
            Op::Sort(sort) => self.sort(*sort),
            Op::Cholesky => one(self.cholesky()?),
            Op::TriangularSolve(solve) => one(self.triangular_solve(*solve)?),
            Op::Fft(fft) => one(self.fft(fft)?),
            Op::ReducePrecision { exponent, mantissa } => {
                one(self.reduce_precision(*exponent, *mantissa)?)
            }
            Op::Shard(constraint) => {
                let ty = self.operand(0)?;
                if constraint.dims.len() != ty.rank() {
                    let names: Vec<String> =
                        constraint.dims.iter().map(|d| d.to_string()).collect();
                    return Err((
                        ErrorKind::Shape {
                            op: self.op.name(),
                            problem: format!(
                                "the annotation ({}) has {} {}, the tensor {ty} has {} dimensions",
                                names.join(", "),
                                names.len(),
                                if names.len() == 1 { "name" } else { "names" },
                                ty.rank()
                            ),
                        },
                        Some(annotation_help(names.len(), ty.rank())),
                    ));
                }
                one(ty.clone())
            }
            Op::OptimizationBarrier => Ok(self.operands.iter().map(|t| (*t).clone()).collect()),
            Op::StopGradient(_) | Op::Name(_) | Op::Place(_) => one(self.operand(0)?.clone()),
            Op::Scan(scan) => self.scan(scan),
            Op::Cond(cond) => self.cond(cond),
            Op::While(looped) => self.while_loop(looped),
            Op::Remat(remat) => self.remat(remat),
            Op::Custom(custom) => self.custom(custom),
            Op::CustomLinear(linear) => Ok(linear.results.iter().cloned().collect()),
            Op::Manual(manual) => self.manual(manual),
            Op::Collective(collective) => self.collective(collective),
            Op::Foreign(foreign) => Ok(foreign.results.iter().cloned().collect()),
        }
    }

    fn shape_error<T>(&self, problem: String) -> Result<T, Fault> {
        let op = self.op.name();
        Err((ErrorKind::Shape { op, problem }, None))
    }

    fn dtype_error<T>(&self, problem: String, help: Option<String>) -> Result<T, Fault> {
        let op = self.op.name();
        Err((ErrorKind::DType { op, problem }, help))
    }

    /// A refusal, with what to do about it.
    fn advise<T>(&self, refused: Result<T, Fault>, help: impl Into<String>) -> Result<T, Fault> {
        refused.map_err(|(kind, _)| (kind, Some(help.into())))
    }

    fn argument_error<T>(&self, problem: String) -> Result<T, Fault> {
        let op = self.op.name();
        Err((ErrorKind::Argument { op, problem }, None))
    }

    fn operand(&self, i: usize) -> Result<&TensorType, Fault> {
        match self.operands.get(i) {
            Some(ty) => Ok(ty),
            None => self.argument_error(format!("operand {i} is missing")),
        }
    }

    fn dimension(&self, dimension: usize, rank: usize) -> Result<(), Fault> {
        if dimension < rank {
            return Ok(());
        }
        self.argument_error(format!(
            "dimension {dimension} of a tensor with {rank} dimensions"
        ))
    }

    fn dimensions(&self, dims: &[usize], rank: usize) -> Result<(), Fault> {
        for (i, &dim) in dims.iter().enumerate() {
            self.dimension(dim, rank)?;
            if dims[..i].contains(&dim) {
                return self.argument_error(format!("dimension {dim} is named twice"));
            }
        }
        Ok(())
    }

    fn same_types(&self) -> Result<[&TensorType; 2], Fault> {
        let (lhs, rhs) = (self.operand(0)?, self.operand(1)?);
        if lhs.dtype != rhs.dtype {
            return self.dtype_error(
                format!("element types {lhs} and {rhs} differ"),
                Some("convert one of them with `.cast(...)`".into()),
            );
        }
        if lhs.shape != rhs.shape {
            return self.shape_error(format!("shapes {lhs} and {rhs} differ"));
        }
        Ok([lhs, rhs])
    }
}

/// What to do about an annotation of `names` names on a tensor of `rank` dimensions.
pub(crate) fn annotation_help(names: usize, rank: usize) -> String {
    let mut help = "write one name for each dimension, `_` for one that is never split".to_owned();
    if rank == names + 1 {
        help += "; where the first dimension is a batch of what the function is written for, run it by `vmap`, and where \
                 it is one of layers, hold them in a `Stack`: each names that dimension itself";
    }
    help
}
