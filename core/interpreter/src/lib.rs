//! A reference interpreter: what each primitive means, one element at a time.
//!
//! It is the oracle of the tests, so it is written to be read and not to be fast. Floats are
//! computed in f64 and rounded to the element type after each operation; integers wrap. What it
//! cannot do (complex numbers) is a panic, for only tests use it.

#![forbid(unsafe_code)]

mod control;
mod devices;
mod elementwise;
mod index;
mod linalg;
mod order;
mod window;

use half::{bf16, f16};
use shardax_core::{
    DType, F8E4M3FN, F8E5M2, Leaf, Literal, Number, Reducer, TensorType,
    ir::{Binary, DotDims, Equation, Graph, Op, ValueId},
};

use devices::Lane;
use elementwise::{binary, bitcast, compare, unary};

/// A value: elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Element type and shape.
    pub ty: TensorType,
    /// The elements, each a value of the element type; a `u64` is the `i64` of the same bits.
    pub data: Vec<Number>,
}

impl Leaf for Array {}

impl Array {
    /// An f64 array.
    pub fn f64(shape: &[usize], data: impl IntoIterator<Item = f64>) -> Self {
        Self::new(DType::F64, shape, data)
    }

    /// An i32 array.
    pub fn i32(shape: &[usize], data: impl IntoIterator<Item = i32>) -> Self {
        Self::new(DType::I32, shape, data)
    }

    /// An array of these elements, rounded or wrapped to the element type.
    pub fn new<N: Into<Number>>(
        dtype: DType,
        shape: &[usize],
        data: impl IntoIterator<Item = N>,
    ) -> Self {
        let ty = TensorType::new(dtype, shape);
        let data: Vec<Number> = data.into_iter().map(|v| fit(v.into(), dtype)).collect();
        assert_eq!(data.len(), ty.element_count(), "elements of {ty}");
        Array { ty, data }
    }

    /// The array whose element at each index `f` gives.
    pub fn from_fn(ty: TensorType, mut f: impl FnMut(&[usize]) -> Number) -> Self {
        let data = indices(&ty.shape)
            .iter()
            .map(|i| fit(f(i), ty.dtype))
            .collect();
        Array { ty, data }
    }

    /// The elements of a float array.
    pub fn floats(&self) -> Vec<f64> {
        self.data.iter().map(|&v| float(v)).collect()
    }

    /// The elements of an integer array.
    pub fn ints(&self) -> Vec<i64> {
        self.data.iter().map(|&v| int(v)).collect()
    }

    /// Whether the elements are real floating-point numbers.
    pub fn is_float(&self) -> bool {
        self.ty.dtype.is_float()
    }

    /// The element at an index.
    pub fn at(&self, index: &[usize]) -> Number {
        self.data[offset(index, &self.ty.shape)]
    }

    fn scalar(&self) -> Number {
        self.data[0]
    }

    /// Element `i` of the leading dimension.
    pub fn element(&self, i: usize) -> Self {
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
        DType::F8E4M3FN => Number::Float(F8E4M3FN::from_f64(float(v)).to_f64()),
        DType::F8E5M2 => Number::Float(F8E5M2::from_f64(float(v)).to_f64()),
        DType::I4 => Number::Int((int(v) << 60) >> 60),
        DType::U4 => Number::Int(int(v) & 15),
        DType::I8 => Number::Int(i64::from(int(v) as i8)),
        DType::I16 => Number::Int(i64::from(int(v) as i16)),
        DType::I32 => Number::Int(i64::from(int(v) as i32)),
        DType::I64 => Number::Int(int(v)),
        DType::U8 => Number::Int(i64::from(int(v) as u8)),
        DType::U16 => Number::Int(i64::from(int(v) as u16)),
        DType::U32 => Number::Int(i64::from(int(v) as u32)),
        // Kept as the i64 of the same bits.
        DType::U64 => Number::Int(int(v)),
        DType::C64 => panic!("the interpreter has no complex numbers"),
    }
}

/// What a conversion makes of a number, before it fits the type: of a float for an integer type, the nearest bound
/// if it is out of range.
fn converted(v: Number, to: DType) -> Number {
    match v {
        Number::Float(v) if to == DType::U64 => Number::Int(v as u64 as i64),
        Number::Float(v) if to.is_integer() => {
            Number::Int((v as i64).clamp(smallest(to), largest(to)))
        }
        other => other,
    }
}

/// Sees, and may change, what goes into every equation and what comes out of it.
pub trait Observer {
    /// Before an operation without regions is computed.
    fn operands(&mut self, _op: &Op, _operands: &mut [Array]) {}
    /// After an operation without regions was computed.
    fn results(&mut self, _op: &Op, _results: &mut [Array]) {}
}

/// Sees everything and changes nothing.
impl Observer for () {}

/// The outputs of a graph.
///
/// # Panics
///
/// When the inputs are not of the graph's types, or the graph has what the interpreter has not.
pub fn interpret(graph: &Graph, inputs: &[Array]) -> Vec<Array> {
    interpret_with(graph, inputs, &mut ())
}

/// [`interpret`] under the eyes of an observer.
///
/// # Panics
///
/// As for [`interpret`].
pub fn interpret_with(graph: &Graph, inputs: &[Array], observer: &mut dyn Observer) -> Vec<Array> {
    let lane = Lane {
        position: Vec::new(),
        values: inputs.to_vec(),
    };
    run(graph, &[lane], observer).remove(0)
}

/// The outputs of a graph on each of several devices.
fn run(graph: &Graph, lanes: &[Lane], observer: &mut dyn Observer) -> Vec<Vec<Array>> {
    let mut known: Vec<Vec<Option<Array>>> = Vec::new();
    for lane in lanes {
        assert_eq!(
            graph.inputs().len(),
            lane.values.len(),
            "inputs of\n{graph}"
        );
        let mut values = vec![None; graph.value_count()];
        for (id, input) in graph.inputs().iter().zip(&lane.values) {
            values[id.index()] = Some(typed(input.clone(), graph.ty(*id)));
        }
        known.push(values);
    }
    let read = |values: &[Option<Array>], ids: &[ValueId]| -> Vec<Array> {
        let value = |id: &ValueId| values[id.index()].clone();
        let all = ids
            .iter()
            .map(|id| value(id).expect("a value is defined before it is read"));
        all.collect()
    };
    for equation in graph.equations() {
        let types: Vec<TensorType> = equation
            .results
            .iter()
            .map(|r| graph.ty(*r).clone())
            .collect();
        let operands = lanes.iter().zip(&known).map(|(lane, values)| Lane {
            position: lane.position.clone(),
            values: read(values, &equation.operands),
        });
        let operands: Vec<Lane> = operands.collect();
        let results = step(equation, &types, operands, observer);
        for (values, results) in known.iter_mut().zip(results) {
            assert_eq!(results.len(), types.len());
            for ((id, result), ty) in equation.results.iter().zip(results).zip(&types) {
                values[id.index()] = Some(typed(result, ty));
            }
        }
    }
    known
        .iter()
        .map(|values| read(values, graph.outputs()))
        .collect()
}

/// The value as one of a type, which says also over which devices it varies.
fn typed(mut value: Array, ty: &TensorType) -> Array {
    assert!(value.ty.is_like(ty), "{} in place of {ty}", value.ty);
    value.ty = ty.clone();
    value
}

/// The results of one equation on each device.
fn step(
    equation: &Equation,
    types: &[TensorType],
    mut lanes: Vec<Lane>,
    observer: &mut dyn Observer,
) -> Vec<Vec<Array>> {
    match &equation.op {
        Op::Scan(scan) => control::scan(scan, types, &lanes, observer),
        Op::Cond(cond) => control::cond(cond, &lanes, observer),
        Op::While(looped) => control::while_loop(looped, &lanes, observer),
        Op::Remat(remat) => run(&remat.body, &lanes, observer),
        Op::Custom(custom) => run(&custom.body, &lanes, observer),
        Op::Manual(region) => devices::manual(region, types, &lanes, observer),
        Op::Collective(collective) => {
            for lane in &mut lanes {
                observer.operands(&equation.op, &mut lane.values);
            }
            let told = devices::collective(collective, &types[0], &lanes);
            told.into_iter().map(|result| vec![result]).collect()
        }
        op => {
            let one = |mut lane: Lane| {
                observer.operands(op, &mut lane.values);
                let mut results = apply(equation, types, &lane.values);
                observer.results(op, &mut results);
                results
            };
            lanes.into_iter().map(one).collect()
        }
    }
}

/// The results, of types `types`, of one equation.
fn apply(equation: &Equation, types: &[TensorType], x: &[Array]) -> Vec<Array> {
    match &equation.op {
        Op::Foreign(foreign) => return control::foreign(foreign, x),
        Op::Sort(sort) => return order::sort(*sort, x),
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
        Op::Unary(op) => elementwise(&|v| unary(*op, v[0], x[0].ty.dtype)),
        Op::Binary(op) => {
            let dtype = ty.dtype;
            elementwise(&|v| binary(*op, v[0], v[1], dtype))
        }
        Op::Compare(op) => elementwise(&|v| Number::Bool(compare(*op, v[0], v[1]))),
        Op::Select => elementwise(&|v| if boolean(v[0]) { v[1] } else { v[2] }),
        Op::Convert(to) => elementwise(&|v| converted(v[0], *to)),
        Op::Shard(_) | Op::StopGradient(_) | Op::Name(_) | Op::Place(_) => elementwise(&|v| v[0]),
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
        Op::Gather { dims, sizes } => index::gather(dims, sizes, ty, &x[0], &x[1]),
        Op::Scatter { dims, combine } => index::scatter(dims, *combine, x),
        Op::Conv(conv) => window::conv(conv, ty, &x[0], &x[1]),
        Op::ReduceWindow(reducer, of) => window::reduce_window(*reducer, of, ty, &x[0]),
        Op::Cumulative(cumulative) => order::cumulative(*cumulative, &x[0]),
        Op::Cholesky => linalg::cholesky(&x[0]),
        Op::TriangularSolve(solve) => linalg::triangular_solve(*solve, &x[0], &x[1]),
        Op::Fft(_) => panic!("the interpreter has no complex numbers"),
        Op::ReducePrecision { exponent, mantissa } => {
            elementwise(&|v| elementwise::reduce_precision(v[0], *exponent, *mantissa))
        }
        Op::CustomLinear(_) | Op::Tangent(_) => panic!("a tangent is left in the graph"),
        Op::Sort(_)
        | Op::Scan(_)
        | Op::Cond(_)
        | Op::While(_)
        | Op::Remat(_)
        | Op::Custom(_)
        | Op::Manual(_)
        | Op::Collective(_)
        | Op::Foreign(_)
        | Op::OptimizationBarrier => unreachable!("handled above"),
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

/// What a reduction starts with, and how it goes on.
fn reduction(reducer: Reducer, dtype: DType) -> (Number, Binary) {
    match reducer {
        Reducer::Sum => (Number::Int(0), Binary::Add),
        Reducer::Prod => (Number::Int(1), Binary::Mul),
        Reducer::And => (Number::Int(-1), Binary::And),
        Reducer::Or => (Number::Int(0), Binary::Or),
        Reducer::Max if dtype.is_float() => (Number::Float(-farthest(dtype)), Binary::Max),
        Reducer::Min if dtype.is_float() => (Number::Float(farthest(dtype)), Binary::Min),
        Reducer::Max => (Number::Int(smallest(dtype)), Binary::Max),
        Reducer::Min => (Number::Int(largest(dtype)), Binary::Min),
    }
}

fn reduce(reducer: Reducer, dims: &[usize], ty: &TensorType, x: &Array) -> Array {
    let dtype = ty.dtype;
    let (first, op) = reduction(reducer, dtype);
    let mut result = Array::from_fn(ty.clone(), |_| first);
    for i in indices(&x.ty.shape) {
        let kept = (0..i.len()).filter(|d| !dims.contains(d));
        let to: Vec<usize> = kept.map(|d| i[d]).collect();
        let slot = &mut result.data[offset(&to, &ty.shape)];
        *slot = fit(binary(op, *slot, x.at(&i), dtype), dtype);
    }
    result
}

/// Infinity, or the largest number of a float type without it.
fn farthest(dtype: DType) -> f64 {
    match dtype.largest_finite() {
        Some(largest) if !dtype.has_infinities() => largest,
        _ => f64::INFINITY,
    }
}

fn smallest(dtype: DType) -> i64 {
    match dtype {
        DType::I4 => -8,
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
        DType::I4 => 7,
        DType::U4 => 15,
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
