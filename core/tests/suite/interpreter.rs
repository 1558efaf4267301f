//! A reference interpreter: what each primitive means, one element at a time.
//!
//! It is the oracle of the tests, so it is written to be read and not to be fast. Floats are
//! computed in f64 and rounded to the element type after each operation; integers wrap.

use half::{bf16, f16};
use shardax_core::{
    Binary, Comparison, DType, DotDims, Element, Equation, Graph, Leaf, Literal, Number, Op,
    Reducer, Scan, TensorType, Unary, ValueId,
};

/// A value: elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    pub(crate) ty: TensorType,
    pub(crate) data: Vec<Number>,
}

impl Leaf for Array {}

impl Array {
    /// An f64 array.
    pub(crate) fn f64(shape: &[usize], data: impl IntoIterator<Item = f64>) -> Self {
        Self::new(DType::F64, shape, data)
    }

    /// An i32 array.
    pub(crate) fn i32(shape: &[usize], data: impl IntoIterator<Item = i32>) -> Self {
        Self::new(DType::I32, shape, data)
    }

    pub(crate) fn new<N: Into<Number>>(
        dtype: DType,
        shape: &[usize],
        data: impl IntoIterator<Item = N>,
    ) -> Self {
        let ty = TensorType::new(dtype, shape);
        let data: Vec<Number> = data.into_iter().map(|v| fit(v.into(), dtype)).collect();
        assert_eq!(data.len(), ty.element_count(), "elements of {ty}");
        Array { ty, data }
    }

    pub(crate) fn from_fn(ty: TensorType, mut f: impl FnMut(&[usize]) -> Number) -> Self {
        let data = indices(&ty.shape)
            .iter()
            .map(|i| fit(f(i), ty.dtype))
            .collect();
        Array { ty, data }
    }

    /// The elements of a float array.
    pub(crate) fn floats(&self) -> Vec<f64> {
        self.data.iter().map(|&v| float(v)).collect()
    }

    /// The elements of an integer array.
    pub(crate) fn ints(&self) -> Vec<i64> {
        self.data.iter().map(|&v| int(v)).collect()
    }

    pub(crate) fn is_float(&self) -> bool {
        self.ty.dtype.is_float()
    }

    fn at(&self, index: &[usize]) -> Number {
        self.data[offset(index, &self.ty.shape)]
    }

    fn scalar(&self) -> Number {
        self.data[0]
    }

    /// Element `i` of the leading dimension.
    fn element(&self, i: usize) -> Self {
        let ty = TensorType::new(self.ty.dtype, &self.ty.shape[1..]);
        let count = ty.element_count();
        let data = self.data[i * count..(i + 1) * count].to_vec();
        Array { ty, data }
    }
}

/// All indices of a shape in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![Vec::new()], |prefixes, &size| {
        let extend = |prefix: &Vec<usize>| {
            let prefix = prefix.clone();
            (0..size)
                .map(move |i| [prefix.as_slice(), &[i]].concat())
                .collect::<Vec<_>>()
        };
        prefixes.iter().flat_map(extend).collect()
    })
}

fn offset(index: &[usize], shape: &[usize]) -> usize {
    assert_eq!(index.len(), shape.len());
    index.iter().zip(shape).fold(0, |offset, (&i, &size)| {
        assert!(i < size, "index {index:?} of shape {shape:?}");
        offset * size + i
    })
}

fn float(v: Number) -> f64 {
    match v {
        Number::Float(v) => v,
        Number::Int(v) => v as f64,
        Number::Bool(v) => f64::from(u8::from(v)),
    }
}

fn int(v: Number) -> i64 {
    match v {
        Number::Int(v) => v,
        Number::Bool(v) => i64::from(v),
        Number::Float(v) => v as i64,
    }
}

fn boolean(v: Number) -> bool {
    match v {
        Number::Bool(v) => v,
        Number::Int(v) => v != 0,
        Number::Float(v) => v != 0.0,
    }
}

/// The value of `dtype` that `v` becomes: rounded, truncated towards zero, or wrapped.
fn fit(v: Number, dtype: DType) -> Number {
    match dtype {
        DType::Bool => Number::Bool(boolean(v)),
        DType::F64 => Number::Float(float(v)),
        DType::F32 => Number::Float(f64::from(float(v) as f32)),
        DType::F16 => Number::Float(f16::from_f64(float(v)).to_f64()),
        DType::BF16 => Number::Float(bf16::from_f64(float(v)).to_f64()),
        DType::I8 => Number::Int(i64::from(int(v) as i8)),
        DType::I16 => Number::Int(i64::from(int(v) as i16)),
        DType::I32 => Number::Int(i64::from(int(v) as i32)),
        DType::I64 => Number::Int(int(v)),
        DType::U8 => Number::Int(i64::from(int(v) as u8)),
        DType::U16 => Number::Int(i64::from(int(v) as u16)),
        DType::U32 => Number::Int(i64::from(int(v) as u32)),
        // Kept as the i64 of the same bits.
        DType::U64 => Number::Int(int(v)),
        other => panic!("the interpreter has no {other}"),
    }
}

/// The outputs of a graph.
pub(crate) fn interpret(graph: &Graph, inputs: &[Array]) -> Vec<Array> {
    assert_eq!(graph.inputs().len(), inputs.len(), "inputs of\n{graph}");
    let mut values: Vec<Option<Array>> = vec![None; graph.value_count()];
    for (id, input) in graph.inputs().iter().zip(inputs) {
        assert_eq!(graph.ty(*id), &input.ty);
        values[id.index()] = Some(input.clone());
    }
    let read = |values: &[Option<Array>], id: &ValueId| {
        values[id.index()]
            .clone()
            .expect("a value is defined before it is read")
    };
    for equation in graph.equations() {
        let operands: Vec<Array> = equation.operands.iter().map(|o| read(&values, o)).collect();
        let types: Vec<TensorType> = equation
            .results
            .iter()
            .map(|r| graph.ty(*r).clone())
            .collect();
        let results = apply(equation, &types, &operands);
        assert_eq!(results.len(), types.len());
        for ((id, result), ty) in equation.results.iter().zip(results).zip(types) {
            assert_eq!(result.ty, ty, "the result of `{}`", equation.op.name());
            values[id.index()] = Some(result);
        }
    }
    graph.outputs().iter().map(|o| read(&values, o)).collect()
}

/// The results, of types `types`, of one equation.
fn apply(equation: &Equation, types: &[TensorType], x: &[Array]) -> Vec<Array> {
    match &equation.op {
        Op::Scan(scan) => return run_scan(scan, types, x),
        Op::Remat(remat) => return interpret(&remat.body, x),
        Op::OptimizationBarrier => return x.to_vec(),
        _ => {}
    }
    let ty = types[0].clone();
    let elementwise = |f: &dyn Fn(&[Number]) -> Number| {
        Array::from_fn(ty.clone(), |i| {
            f(&x.iter().map(|x| x.at(i)).collect::<Vec<_>>())
        })
    };
    vec![match &equation.op {
        Op::Constant(literal) => constant(literal),
        Op::Iota { dimension, .. } => Array::from_fn(ty, |i| Number::Int(i[*dimension] as i64)),
        Op::Unary(op) => elementwise(&|v| unary(*op, v[0])),
        Op::Binary(op) => {
            let dtype = ty.dtype;
            elementwise(&|v| binary(*op, v[0], v[1], dtype))
        }
        Op::Compare(op) => elementwise(&|v| Number::Bool(compare(*op, v[0], v[1]))),
        Op::Select => elementwise(&|v| if boolean(v[0]) { v[1] } else { v[2] }),
        Op::Convert(_) | Op::Shard(_) | Op::StopGradient => elementwise(&|v| v[0]),
        Op::BitcastConvert(to) => elementwise(&|v| bitcast(v[0], x[0].ty.dtype, *to)),
        Op::Broadcast { dims, .. } => Array::from_fn(ty, |i| {
            let sizes = x[0].ty.shape.iter();
            let from: Vec<usize> = dims
                .iter()
                .zip(sizes)
                .map(|(&d, &size)| if size == 1 { 0 } else { i[d] })
                .collect();
            x[0].at(&from)
        }),
        Op::Reshape(_) => Array {
            ty,
            data: x[0].data.clone(),
        },
        Op::Transpose(permutation) => Array::from_fn(ty, |i| {
            let mut from = vec![0; i.len()];
            for (to, &d) in permutation.iter().enumerate() {
                from[d] = i[to];
            }
            x[0].at(&from)
        }),
        Op::Slice {
            starts, strides, ..
        } => Array::from_fn(ty, |i| {
            let from: Vec<usize> = (0..i.len())
                .map(|d| starts[d] + i[d] * strides[d])
                .collect();
            x[0].at(&from)
        }),
        Op::Pad { low, interior, .. } => Array::from_fn(ty, |i| {
            let from = (0..i.len()).map(|d| {
                let (inner, step) = (i[d].checked_sub(low[d])?, interior[d] + 1);
                (inner % step == 0 && inner / step < x[0].ty.shape[d]).then_some(inner / step)
            });
            match from.collect::<Option<Vec<usize>>>() {
                Some(from) => x[0].at(&from),
                None => x[1].scalar(),
            }
        }),
        Op::Concatenate(dimension) => Array::from_fn(ty, |i| {
            let mut from = i.to_vec();
            for part in x {
                let size = part.ty.shape[*dimension];
                if from[*dimension] < size {
                    return part.at(&from);
                }
                from[*dimension] -= size;
            }
            panic!("index {i:?} is in no part")
        }),
        Op::Reverse(dims) => Array::from_fn(ty.clone(), |i| {
            let mut from = i.to_vec();
            for &d in dims {
                from[d] = ty.shape[d] - 1 - i[d];
            }
            x[0].at(&from)
        }),
        Op::Reduce(reducer, dims) => reduce(*reducer, dims, &ty, &x[0]),
        Op::DotGeneral(dims) => dot(dims, &ty, &x[0], &x[1]),
        Op::DynamicSlice(sizes) => {
            let starts = starts(&x[1..], &x[0].ty.shape, sizes);
            Array::from_fn(ty, |i| {
                let from: Vec<usize> = i.iter().zip(&starts).map(|(i, s)| i + s).collect();
                x[0].at(&from)
            })
        }
        Op::DynamicUpdateSlice => {
            let starts = starts(&x[2..], &x[0].ty.shape, &x[1].ty.shape);
            let mut result = x[0].clone();
            for i in indices(&x[1].ty.shape) {
                let to: Vec<usize> = i.iter().zip(&starts).map(|(i, s)| i + s).collect();
                result.data[offset(&to, &ty.shape)] = x[1].at(&i);
            }
            result
        }
        Op::Take { axis } => Array::from_fn(ty, |i| x[0].at(&row(i, *axis, &x[1]))),
        Op::TakeAlong { axis } => Array::from_fn(ty, |i| x[0].at(&along(i, *axis, &x[1]))),
        Op::ScatterAdd { axis } => scatter_add(x, |i| row(i, *axis, &x[1])),
        Op::ScatterAddAlong { axis } => scatter_add(x, |i| along(i, *axis, &x[1])),
        Op::Tangent(_) => panic!("a tangent is left in the graph"),
        Op::Scan(_) | Op::Remat(_) | Op::OptimizationBarrier => unreachable!("handled above"),
    }]
}

fn constant(literal: &Literal) -> Array {
    let ty = literal.ty().clone();
    let numbers = literal.numbers();
    let data = if literal.is_splat() {
        vec![numbers[0]; ty.element_count()]
    } else {
        numbers
    };
    Array { ty, data }
}

fn unary(op: Unary, v: Number) -> Number {
    match (op, v) {
        (Unary::Abs, Number::Int(v)) => return Number::Int(v.wrapping_abs()),
        (Unary::Neg, Number::Int(v)) => return Number::Int(v.wrapping_neg()),
        (Unary::Sign, Number::Int(v)) => return Number::Int(v.signum()),
        (Unary::Not, Number::Int(v)) => return Number::Int(!v),
        (Unary::Not, Number::Bool(v)) => return Number::Bool(!v),
        _ => {}
    }
    let v = float(v);
    Number::Float(match op {
        Unary::Abs => v.abs(),
        Unary::Cos => v.cos(),
        Unary::Erf => erf(v),
        Unary::Exp => v.exp(),
        Unary::Expm1 => v.exp_m1(),
        Unary::Floor => v.floor(),
        Unary::Log => v.ln(),
        Unary::Log1p => v.ln_1p(),
        Unary::Logistic => 1.0 / (1.0 + (-v).exp()),
        Unary::Neg => -v,
        Unary::Not => panic!("the complement of a float"),
        Unary::Rsqrt => 1.0 / v.sqrt(),
        Unary::Sign if v == 0.0 || v.is_nan() => v,
        Unary::Sign => v.signum(),
        Unary::Sin => v.sin(),
        Unary::Sqrt => v.sqrt(),
        Unary::Tanh => v.tanh(),
    })
}

/// By the series `2/sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!`, all terms of one sign.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, 0.0, 0.0);
    while sum + term != sum {
        sum += term;
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

fn binary(op: Binary, a: Number, b: Number, dtype: DType) -> Number {
    match (a, b) {
        (Number::Float(a), Number::Float(b)) => Number::Float(match op {
            Binary::Add => a + b,
            Binary::Div => a / b,
            Binary::Max => larger(a, b),
            Binary::Min => -larger(-a, -b),
            Binary::Mul => a * b,
            Binary::Pow => a.powf(b),
            Binary::Rem => a % b,
            Binary::Sub => a - b,
            other => panic!("`{}` of floats", other.name()),
        }),
        (Number::Bool(a), Number::Bool(b)) => Number::Bool(match op {
            Binary::Add | Binary::Max | Binary::Or => a | b,
            Binary::Mul | Binary::Min | Binary::And => a & b,
            Binary::Xor => a ^ b,
            other => panic!("`{}` of booleans", other.name()),
        }),
        _ => Number::Int(binary_int(op, int(a), int(b), dtype)),
    }
}

/// The larger; NaN if one is.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Integers are kept as the i64 of the same value, and wrapped to their type by the caller.
fn binary_int(op: Binary, a: i64, b: i64, dtype: DType) -> i64 {
    let bits = 8 * dtype.host_bytes() as i64;
    let within = (0..bits).contains(&b);
    match op {
        Binary::Add => a.wrapping_add(b),
        Binary::And => a & b,
        Binary::Div => a.wrapping_div(b),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Or => a | b,
        Binary::Pow => (0..b).fold(1, |power: i64, _| power.wrapping_mul(a)),
        Binary::Rem => a.wrapping_rem(b),
        Binary::ShiftLeft => {
            if within {
                a.wrapping_shl(b as u32)
            } else {
                0
            }
        }
        Binary::ShiftRight if dtype == DType::U64 => {
            (a as u64).checked_shr(b as u32).unwrap_or(0) as i64
        }
        // Other unsigned numbers are not negative here.
        Binary::ShiftRight => a >> if within { b } else { 63 },
        Binary::Sub => a.wrapping_sub(b),
        Binary::Xor => a ^ b,
    }
}

fn compare(op: Comparison, a: Number, b: Number) -> bool {
    let order = match (a, b) {
        (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
        _ => Some(int(a).cmp(&int(b))),
    };
    match op {
        Comparison::Eq => order.is_some_and(|o| o.is_eq()),
        Comparison::Ne => order.is_none_or(|o| o.is_ne()),
        Comparison::Lt => order.is_some_and(|o| o.is_lt()),
        Comparison::Le => order.is_some_and(|o| o.is_le()),
        Comparison::Gt => order.is_some_and(|o| o.is_gt()),
        Comparison::Ge => order.is_some_and(|o| o.is_ge()),
    }
}

fn bitcast(v: Number, from: DType, to: DType) -> Number {
    let literal = Literal::scalar(v, from).expect("a value of its own type");
    let bytes = literal.bytes();
    match to {
        DType::F16 => f16::from_bytes(bytes)[0].to_f64().into(),
        DType::BF16 => bf16::from_bytes(bytes)[0].to_f64().into(),
        DType::F32 => f32::from_bytes(bytes)[0].into(),
        DType::F64 => f64::from_bytes(bytes)[0].into(),
        DType::I32 => i32::from_bytes(bytes)[0].into(),
        DType::U32 => u32::from_bytes(bytes)[0].into(),
        DType::I64 => Number::Int(i64::from_bytes(bytes)[0]),
        other => panic!("the interpreter has no bitcast to {other}"),
    }
}

fn reduce(reducer: Reducer, dims: &[usize], ty: &TensorType, x: &Array) -> Array {
    let dtype = ty.dtype;
    let (first, op) = match reducer {
        Reducer::Sum => (Number::Int(0), Binary::Add),
        Reducer::And => (Number::Int(-1), Binary::And),
        Reducer::Or => (Number::Int(0), Binary::Or),
        Reducer::Max if dtype.is_float() => (Number::Float(f64::NEG_INFINITY), Binary::Max),
        Reducer::Min if dtype.is_float() => (Number::Float(f64::INFINITY), Binary::Min),
        Reducer::Max => (Number::Int(smallest(dtype)), Binary::Max),
        Reducer::Min => (Number::Int(largest(dtype)), Binary::Min),
    };
    let mut result = Array::from_fn(ty.clone(), |_| first);
    for i in indices(&x.ty.shape) {
        let kept = (0..i.len()).filter(|d| !dims.contains(d));
        let to: Vec<usize> = kept.map(|d| i[d]).collect();
        let slot = &mut result.data[offset(&to, &ty.shape)];
        *slot = fit(binary(op, *slot, x.at(&i), dtype), dtype);
    }
    result
}

fn smallest(dtype: DType) -> i64 {
    match dtype {
        DType::I8 => i8::MIN.into(),
        DType::I16 => i16::MIN.into(),
        DType::I32 => i32::MIN.into(),
        DType::I64 => i64::MIN,
        _ => 0,
    }
}

fn largest(dtype: DType) -> i64 {
    match dtype {
        DType::Bool => 1,
        DType::I8 => i8::MAX.into(),
        DType::I16 => i16::MAX.into(),
        DType::I32 => i32::MAX.into(),
        DType::U8 => u8::MAX.into(),
        DType::U16 => u16::MAX.into(),
        DType::U32 => u32::MAX.into(),
        _ => i64::MAX,
    }
}

fn dot(dims: &DotDims, ty: &TensorType, lhs: &Array, rhs: &Array) -> Array {
    let (lhs_free, rhs_free) = (dims.lhs_free(lhs.ty.rank()), dims.rhs_free(rhs.ty.rank()));
    let contracted: Vec<usize> = dims.lhs_contract.iter().map(|&d| lhs.ty.shape[d]).collect();
    Array::from_fn(ty.clone(), |i| {
        let (batch, free) = i.split_at(dims.lhs_batch.len());
        let (left, right) = free.split_at(lhs_free.len());
        let index = |rank: usize, parts: [(&[usize], &[usize]); 3]| {
            let mut index = vec![0; rank];
            for (dims, values) in parts {
                for (&d, &v) in dims.iter().zip(values) {
                    index[d] = v;
                }
            }
            index
        };
        let products = indices(&contracted).into_iter().map(|c| {
            let a = index(
                lhs.ty.rank(),
                [
                    (&dims.lhs_batch, batch),
                    (&lhs_free, left),
                    (&dims.lhs_contract, &c),
                ],
            );
            let b = index(
                rhs.ty.rank(),
                [
                    (&dims.rhs_batch, batch),
                    (&rhs_free, right),
                    (&dims.rhs_contract, &c),
                ],
            );
            binary(Binary::Mul, lhs.at(&a), rhs.at(&b), ty.dtype)
        });
        let zero = fit(Number::Int(0), ty.dtype);
        products.fold(zero, |sum, product| {
            binary(Binary::Add, sum, product, ty.dtype)
        })
    })
}

/// Start indices, moved so that the window fits.
fn starts(starts: &[Array], shape: &[usize], sizes: &[usize]) -> Vec<usize> {
    let limits = shape
        .iter()
        .zip(sizes)
        .map(|(shape, size)| (shape - size) as i64);
    starts
        .iter()
        .zip(limits)
        .map(|(s, limit)| int(s.scalar()).clamp(0, limit) as usize)
        .collect()
}

/// The index into the operand of element `i` of a `take`.
fn row(i: &[usize], axis: usize, by: &Array) -> Vec<usize> {
    let (before, rest) = i.split_at(axis);
    let (at, after) = rest.split_at(by.ty.rank());
    [before, &[int(by.at(at)) as usize], after].concat()
}

/// The index into the operand of element `i` of a `take_along`.
fn along(i: &[usize], axis: usize, by: &Array) -> Vec<usize> {
    let mut index = i.to_vec();
    index[axis] = int(by.at(i)) as usize;
    index
}

/// `x[0]` with each element of `x[2]` added where `to` says.
fn scatter_add(x: &[Array], to: impl Fn(&[usize]) -> Vec<usize>) -> Array {
    let mut result = x[0].clone();
    let (shape, dtype) = (&x[0].ty.shape, x[0].ty.dtype);
    for i in indices(&x[2].ty.shape) {
        let slot = &mut result.data[offset(&to(&i), shape)];
        *slot = fit(binary(Binary::Add, *slot, x[2].at(&i), dtype), dtype);
    }
    result
}

fn run_scan(scan: &Scan, types: &[TensorType], operands: &[Array]) -> Vec<Array> {
    let (carries, rest) = operands.split_at(scan.carries);
    let (xs, constants) = rest.split_at(scan.xs);
    let mut carries = carries.to_vec();
    let mut stacked = vec![Vec::new(); types.len() - scan.carries];
    let forward: Vec<usize> = (0..scan.length).collect();
    let order: Vec<usize> = if scan.reverse {
        forward.into_iter().rev().collect()
    } else {
        forward
    };
    for i in order {
        let mut inputs = carries;
        inputs.extend(xs.iter().map(|x| x.element(i)));
        inputs.extend_from_slice(constants);
        let mut outputs = interpret(&scan.body, &inputs);
        let ys = outputs.split_off(scan.carries);
        carries = outputs;
        for (elements, y) in stacked.iter_mut().zip(ys) {
            elements.push(y);
        }
    }
    for (mut elements, ty) in stacked.into_iter().zip(&types[scan.carries..]) {
        if scan.reverse {
            elements.reverse();
        }
        let data = elements.into_iter().flat_map(|y: Array| y.data).collect();
        carries.push(Array {
            ty: ty.clone(),
            data,
        });
    }
    carries
}
