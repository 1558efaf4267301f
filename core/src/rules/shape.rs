//! Result types of primitives, and whether operands fit.

use smallvec::{SmallVec, smallvec};

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::op::{Binary, Dims, DotDims, Op, Reducer, Remat, Scan, Unary};
use crate::types::{Shape, TensorType};

/// What is wrong, and what to do about it.
pub(crate) type Fault = (ErrorKind, Option<String>);
type Types = SmallVec<[TensorType; 1]>;

/// The types of the results of `op` applied to operands of these types.
pub(crate) fn infer(op: &Op, operands: &[&TensorType]) -> Result<Types, Fault> {
    let rule = Rule {
        name: op.name(),
        operands,
    };
    rule.infer(op)
}

struct Rule<'a> {
    name: &'static str,
    operands: &'a [&'a TensorType],
}

impl Rule<'_> {
    fn infer(&self, op: &Op) -> Result<Types, Fault> {
        let one = |ty: TensorType| -> Result<Types, Fault> { Ok(smallvec![ty]) };
        match op {
            Op::Constant(literal) => one(literal.ty().clone()),
            Op::Tangent(ty) => one(ty.clone()),
            Op::Iota { ty, dimension } => {
                self.dimension(*dimension, ty.rank())?;
                if ty.dtype == DType::Bool {
                    return self.dtype_error("counts numbers, not booleans".into(), None);
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
            Op::Take { axis } => one(self.take(*axis)?),
            Op::ScatterAdd { axis } => one(self.scatter_add(*axis)?),
            Op::TakeAlong { axis } => one(self.take_along(*axis)?),
            Op::ScatterAddAlong { axis } => one(self.scatter_add_along(*axis)?),
            Op::Shard(constraint) => {
                let ty = self.operand(0)?;
                if constraint.dims.len() != ty.rank() {
                    let names: Vec<String> =
                        constraint.dims.iter().map(|d| d.to_string()).collect();
                    return Err((
                        ErrorKind::Shape {
                            op: self.name,
                            problem: format!(
                                "the annotation ({}) names {} dimensions, the tensor {ty} has {}",
                                names.join(", "),
                                names.len(),
                                ty.rank()
                            ),
                        },
                        Some(
                            "write one name for each dimension, `_` for one that is never split"
                                .into(),
                        ),
                    ));
                }
                one(ty.clone())
            }
            Op::OptimizationBarrier => Ok(self.operands.iter().map(|t| (*t).clone()).collect()),
            Op::StopGradient => one(self.operand(0)?.clone()),
            Op::Scan(scan) => self.scan(scan),
            Op::Remat(remat) => self.remat(remat),
        }
    }

    fn shape_error<T>(&self, problem: String) -> Result<T, Fault> {
        let op = self.name;
        Err((ErrorKind::Shape { op, problem }, None))
    }

    fn dtype_error<T>(&self, problem: String, help: Option<String>) -> Result<T, Fault> {
        let op = self.name;
        Err((ErrorKind::DType { op, problem }, help))
    }

    fn argument_error<T>(&self, problem: String) -> Result<T, Fault> {
        let op = self.name;
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

    fn unary(&self, unary: Unary) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        let dtype = ty.dtype;
        let fits = match unary {
            Unary::Neg => dtype != DType::Bool,
            Unary::Abs | Unary::Sign => dtype != DType::Bool && !dtype.is_unsigned_integer(),
            Unary::Not => dtype == DType::Bool || dtype.is_integer(),
            Unary::Floor | Unary::Erf => dtype.is_float(),
            Unary::Cos
            | Unary::Exp
            | Unary::Expm1
            | Unary::Log
            | Unary::Log1p
            | Unary::Logistic
            | Unary::Rsqrt
            | Unary::Sin
            | Unary::Sqrt
            | Unary::Tanh => dtype.is_differentiable(),
        };
        if fits {
            return Ok(ty.clone());
        }
        let wanted = match unary {
            Unary::Not => "a boolean or integer",
            Unary::Neg => "a numeric",
            Unary::Abs | Unary::Sign => "a signed numeric",
            _ => "a floating-point",
        };
        self.dtype_error(
            format!("takes {wanted} tensor, not {ty}"),
            Some("convert it with `.cast(...)`".into()),
        )
    }

    fn binary(&self, binary: Binary) -> Result<TensorType, Fault> {
        let [lhs, _] = self.same_types()?;
        let dtype = lhs.dtype;
        let (fits, wanted) = match binary {
            Binary::And | Binary::Or | Binary::Xor => (
                dtype == DType::Bool || dtype.is_integer(),
                "boolean or integer",
            ),
            Binary::ShiftLeft | Binary::ShiftRight => (dtype.is_integer(), "integer"),
            Binary::Sub | Binary::Div | Binary::Pow | Binary::Rem => {
                (dtype != DType::Bool, "numeric")
            }
            Binary::Add | Binary::Mul | Binary::Max | Binary::Min => (true, "numeric"),
        };
        if fits {
            return Ok(lhs.clone());
        }
        self.dtype_error(
            format!("takes {wanted} tensors, not {lhs}"),
            Some("convert them with `.cast(...)`".into()),
        )
    }

    fn select(&self) -> Result<TensorType, Fault> {
        let (predicate, on_true, on_false) = (self.operand(0)?, self.operand(1)?, self.operand(2)?);
        if predicate.dtype != DType::Bool {
            return self.dtype_error(
                format!("the predicate is {predicate}, not boolean"),
                Some("compare it, for example `.ne(0)`".into()),
            );
        }
        if on_true != on_false {
            return self.dtype_error(
                format!("the two cases {on_true} and {on_false} differ"),
                None,
            );
        }
        if predicate.shape != on_true.shape {
            return self.shape_error(format!(
                "the predicate {predicate} and the cases {on_true} differ in shape"
            ));
        }
        Ok(on_true.clone())
    }

    fn bitcast(&self, dtype: DType) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        if ty.dtype.bits() != dtype.bits() {
            return self.dtype_error(
                format!(
                    "{ty} has {}-bit elements, and {dtype} {}-bit ones",
                    ty.dtype.bits(),
                    dtype.bits()
                ),
                None,
            );
        }
        if ty.dtype.is_complex() != dtype.is_complex() {
            return self.dtype_error(
                format!("elements of {ty} are not read as {dtype}: one is complex, one is not"),
                None,
            );
        }
        Ok(TensorType::new(dtype, &ty.shape))
    }

    fn broadcast(&self, shape: &Shape, dims: &Dims) -> Result<TensorType, Fault> {
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

    fn reshape(&self, shape: &Shape) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        let to = TensorType::new(ty.dtype, shape);
        if ty.element_count() != to.element_count() {
            return self.shape_error(format!(
                "{ty} has {} elements, {to} has {}",
                ty.element_count(),
                to.element_count()
            ));
        }
        Ok(to)
    }

    fn transpose(&self, permutation: &Dims) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.dimensions(permutation, ty.rank())?;
        if permutation.len() != ty.rank() {
            return self.argument_error(format!(
                "the permutation {permutation:?} has {} entries, {ty} has {} dimensions",
                permutation.len(),
                ty.rank()
            ));
        }
        let shape: Shape = permutation.iter().map(|&p| ty.shape[p]).collect();
        Ok(TensorType::new(ty.dtype, shape))
    }

    fn slice(&self, starts: &Dims, limits: &Dims, strides: &Dims) -> Result<TensorType, Fault> {
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

    fn pad(&self, low: &Dims, high: &Dims, interior: &Dims) -> Result<TensorType, Fault> {
        let (ty, value) = (self.operand(0)?, self.operand(1)?);
        if *value != TensorType::scalar(ty.dtype) {
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

    fn concatenate(&self, dimension: usize) -> Result<TensorType, Fault> {
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
                return self.shape_error(format!(
                    "operand {position} is {ty}, operand 0 is {first}: they may differ in dimension \
                     {dimension} alone"
                ));
            }
            shape[dimension] = shape[dimension].saturating_add(ty.shape[dimension]);
        }
        Ok(TensorType::new(first.dtype, shape))
    }

    fn reduce(&self, reducer: Reducer, dims: &Dims) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.dimensions(dims, ty.rank())?;
        let bits = matches!(reducer, Reducer::And | Reducer::Or);
        if bits && !(ty.dtype == DType::Bool || ty.dtype.is_integer()) {
            return self.dtype_error(format!("takes a boolean or integer tensor, not {ty}"), None);
        }
        let kept = ty
            .shape
            .iter()
            .enumerate()
            .filter(|(d, _)| !dims.contains(d));
        let shape: Shape = kept.map(|(_, &size)| size).collect();
        Ok(TensorType::new(ty.dtype, shape))
    }

    fn dot(&self, dims: &DotDims) -> Result<TensorType, Fault> {
        let (lhs, rhs) = (self.operand(0)?, self.operand(1)?);
        let lhs_dims: Dims = dims
            .lhs_batch
            .iter()
            .chain(&dims.lhs_contract)
            .copied()
            .collect();
        let rhs_dims: Dims = dims
            .rhs_batch
            .iter()
            .chain(&dims.rhs_contract)
            .copied()
            .collect();
        self.dimensions(&lhs_dims, lhs.rank())?;
        self.dimensions(&rhs_dims, rhs.rank())?;
        let mut problems = Vec::new();
        for (&l, &r) in lhs_dims.iter().zip(&rhs_dims) {
            if lhs.shape[l] != rhs.shape[r] {
                problems.push(format!(
                    "dimension {l} of the left operand {lhs} has {} elements, dimension {r} of the \
                     right operand {rhs} has {}",
                    lhs.shape[l], rhs.shape[r]
                ));
            }
        }
        if !problems.is_empty() {
            return self.shape_error(problems.join("; "));
        }
        if lhs.dtype != rhs.dtype && !(lhs.dtype.is_float() && rhs.dtype.is_float()) {
            return self.dtype_error(
                format!("element types {lhs} and {rhs} differ"),
                Some("convert one of them with `.cast(...)`".into()),
            );
        }
        let batch = dims.lhs_batch.iter().map(|&d| lhs.shape[d]);
        let lhs_free = dims.lhs_free(lhs.rank()).into_iter().map(|d| lhs.shape[d]);
        let rhs_free = dims.rhs_free(rhs.rank()).into_iter().map(|d| rhs.shape[d]);
        let shape: Shape = batch.chain(lhs_free).chain(rhs_free).collect();
        Ok(TensorType::new(dims.result, shape))
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

    fn dynamic_slice(&self, sizes: &Dims) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.starts(1, ty.rank())?;
        if sizes.len() != ty.rank() || sizes.iter().zip(&ty.shape).any(|(s, d)| s > d) {
            return self.shape_error(format!("a window of {sizes:?} is larger than {ty}"));
        }
        Ok(TensorType::new(ty.dtype, sizes))
    }

    fn dynamic_update_slice(&self) -> Result<TensorType, Fault> {
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

    fn indices(&self, i: usize) -> Result<&TensorType, Fault> {
        let ty = self.operand(i)?;
        if !ty.dtype.is_integer() {
            return self.dtype_error(format!("the indices are {ty}, not integers"), None);
        }
        Ok(ty)
    }

    fn take(&self, axis: usize) -> Result<TensorType, Fault> {
        let (ty, indices) = (self.operand(0)?, self.indices(1)?);
        self.dimension(axis, ty.rank())?;
        let before = ty.shape[..axis].iter();
        let shape: Shape = before
            .chain(&indices.shape)
            .chain(&ty.shape[axis + 1..])
            .copied()
            .collect();
        Ok(TensorType::new(ty.dtype, shape))
    }

    fn scatter_add(&self, axis: usize) -> Result<TensorType, Fault> {
        let updates = self.operand(2)?;
        let wanted = self.take(axis)?;
        if *updates != wanted {
            return self.shape_error(format!("the updates are {updates}, not {wanted}"));
        }
        Ok(self.operand(0)?.clone())
    }

    fn take_along(&self, axis: usize) -> Result<TensorType, Fault> {
        let (ty, indices) = (self.operand(0)?, self.indices(1)?);
        self.dimension(axis, ty.rank())?;
        let fits = indices.rank() == ty.rank()
            && (0..ty.rank()).all(|d| d == axis || indices.shape[d] == ty.shape[d]);
        if !fits {
            return self.shape_error(format!(
                "the indices {indices} and the operand {ty} may differ in dimension {axis} alone"
            ));
        }
        Ok(TensorType::new(ty.dtype, &indices.shape))
    }

    fn scatter_add_along(&self, axis: usize) -> Result<TensorType, Fault> {
        let updates = self.operand(2)?;
        let wanted = self.take_along(axis)?;
        if *updates != wanted {
            return self.shape_error(format!("the updates are {updates}, not {wanted}"));
        }
        Ok(self.operand(0)?.clone())
    }

    /// The body's carries must come out as they went in, and its inputs be what the operands are.
    fn scan(&self, scan: &Scan) -> Result<Types, Fault> {
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
                    && operand.dtype == body.ty(input).dtype
                    && operand.shape[1..] == body.ty(input).shape[..]
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
            TensorType::new(ty.dtype, shape)
        });
        Ok(carries.chain(stacked).collect())
    }

    fn remat(&self, remat: &Remat) -> Result<Types, Fault> {
        let body = &remat.body;
        let fits = body.inputs().len() == self.operands.len()
            && body
                .inputs()
                .iter()
                .zip(self.operands)
                .all(|(&i, &ty)| body.ty(i) == ty);
        if !fits {
            return self.argument_error("operands are not what the body takes".into());
        }
        Ok(body.outputs().iter().map(|&o| body.ty(o).clone()).collect())
    }
}
