//! The golden file: what is computed of which inputs, and what JAX computes.
//!
//! `scripts/oracle_jax.py` writes it, and says how inputs are made and numbers are stored.

use std::fmt;

use serde_json::Value;
use shardax::prelude::*;
use shardax::xla::Result;

/// Rows of every case.
pub(crate) const ROWS: usize = 2;

/// One case.
pub(crate) struct Case {
    pub(crate) op: String,
    pub(crate) params: Params,
    pub(crate) inputs: Vec<Input>,
    /// Inputs that all rows have in common.
    pub(crate) shared: Vec<usize>,
    pub(crate) results: Vec<TensorType>,
    pub(crate) has_gradient: bool,
    /// Whether the derivative in forward mode is compared.
    pub(crate) has_forward: bool,
    /// How many times the error of the element type is allowed.
    pub(crate) tolerance: f64,
    /// Of each result, then of the gradient of each float input, all rows.
    pub(crate) expected: Vec<Numbers>,
}

/// `reduce_sum {"axes":[1]} (f32[3,4] -2 2)`
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<&str> = self.inputs.iter().map(|i| i.text.as_str()).collect();
        write!(f, "{} {} ({})", self.op, self.params.0, inputs.join(", "))?;
        match self.shared.as_slice() {
            [] => Ok(()),
            shared => write!(f, " shared {shared:?}"),
        }
    }
}

impl Case {
    /// Positions of the inputs that have a gradient.
    pub(crate) fn floats(&self) -> Vec<usize> {
        let is_float = |&k: &usize| self.inputs[k].ty.dtype.is_float();
        (0..self.inputs.len()).filter(is_float).collect()
    }

    /// The type of what stands at position `i` of what is computed.
    pub(crate) fn part_type(&self, i: usize) -> &TensorType {
        match i.checked_sub(self.results.len()) {
            None => &self.results[i],
            Some(j) => &self.inputs[self.floats()[j]].ty,
        }
    }

    /// What stands at position `i` of what is computed.
    pub(crate) fn part(&self, i: usize) -> String {
        match i.checked_sub(self.results.len()) {
            None => format!("result {i}"),
            Some(j) => format!("gradient of input {}", self.floats()[j]),
        }
    }
}

/// Parameters of an operation, by name.
pub(crate) struct Params(Value);

impl Params {
    fn get(&self, name: &str) -> &Value {
        let value = self.0.get(name);
        value.unwrap_or_else(|| panic!("no parameter `{name}` in {}", self.0))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some()
    }

    pub(crate) fn float(&self, name: &str) -> f64 {
        number(self.get(name))
    }

    pub(crate) fn int(&self, name: &str) -> i64 {
        self.get(name)
            .as_i64()
            .unwrap_or_else(|| panic!("`{name}` is not an integer"))
    }

    pub(crate) fn size(&self, name: &str) -> usize {
        self.int(name) as usize
    }

    pub(crate) fn axis(&self, name: &str) -> isize {
        self.int(name) as isize
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name) == Some(&Value::Bool(true))
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        let text = self.get(name).as_str();
        text.unwrap_or_else(|| panic!("`{name}` is not a text"))
    }

    pub(crate) fn dtype(&self, name: &str) -> DType {
        dtype(self.text(name))
    }

    pub(crate) fn ints(&self, name: &str) -> Vec<i64> {
        integers(self.get(name))
    }

    pub(crate) fn sizes(&self, name: &str) -> Vec<usize> {
        self.ints(name).into_iter().map(|n| n as usize).collect()
    }

    pub(crate) fn axes(&self, name: &str) -> Vec<isize> {
        self.ints(name).into_iter().map(|n| n as isize).collect()
    }

    /// Padding before and after, by dimension.
    pub(crate) fn pairs(&self, name: &str) -> Vec<(i64, i64)> {
        let groups = self.groups::<2>(name).into_iter();
        groups.map(|[low, high]| (low, high)).collect()
    }

    /// Lists of `N` integers, by dimension.
    pub(crate) fn groups<const N: usize>(&self, name: &str) -> Vec<[i64; N]> {
        let group = |v: &Value| {
            let found = integers(v).try_into();
            found.unwrap_or_else(|other| panic!("`{name}` has {other:?}, not {N} integers"))
        };
        list(self.get(name)).iter().map(group).collect()
    }
}

/// An input of one row.
pub(crate) struct Input {
    /// As the golden file describes it.
    text: String,
    pub(crate) ty: TensorType,
    low: f64,
    high: f64,
    ties: bool,
    bits: bool,
}

impl Input {
    /// Of `f32[2,3] -2 2 ties`.
    fn parse(text: &str) -> Input {
        let mut words = text.split(' ');
        let mut next = || words.next().unwrap_or_default();
        let ty = tensor_type(next());
        let [low, high] = [next(), next()].map(|n| n.parse().expect("a bound is a number"));
        let kind = next();
        Input {
            text: text.to_owned(),
            ty,
            low,
            high,
            ties: kind == "ties",
            bits: kind == "bits",
        }
    }

    /// What is drawn for result `j` when gradients are taken, and for inputs when they are perturbed.
    fn unit(ty: &TensorType) -> Input {
        Input {
            text: String::new(),
            ty: ty.clone(),
            low: -1.0,
            high: 1.0,
            ties: false,
            bits: false,
        }
    }

    /// The elements as input `k`, in [`wide`]'s type; with `rows`, that many along a leading dimension.
    pub(crate) fn elements(&self, k: u32, rows: usize) -> Numbers {
        let count = (self.ty.element_count() * rows) as u32;
        let float = |k: u32, i: u32| {
            let value =
                self.low + f64::from(hash(k, i) >> 8) * 2f64.powi(-24) * (self.high - self.low);
            match self.ties {
                true => (value * 2.0).round_ties_even() / 2.0,
                false => value,
            }
        };
        let floats = |k| (0..count).map(move |i| float(k, i));
        match self.ty.dtype {
            DType::C64 => {
                let pairs = floats(k).zip(floats(k + 50));
                Numbers::Float(pairs.flat_map(|(re, im)| [re, im]).collect())
            }
            dtype if dtype.is_float() => Numbers::Float(floats(k).collect()),
            _ if self.bits => {
                let bits = |i| i128::from(u64::from(hash(k, i)) | u64::from(hash(k + 50, i)) << 32);
                Numbers::Int((0..count).map(bits).collect())
            }
            _ => {
                let span = (self.high - self.low) as u32;
                let int = |i| self.low as i128 + i128::from(hash(k, i) % span);
                Numbers::Int((0..count).map(int).collect())
            }
        }
    }
}

/// Cotangents of result `j`.
pub(crate) fn cotangent(j: usize, result: &TensorType, rows: usize) -> Numbers {
    Input::unit(result).elements(100 + j as u32, rows)
}

/// The direction in which input `k` is perturbed, for one row.
pub(crate) fn tangent(k: usize, input: &Input) -> Numbers {
    Input::unit(&input.ty).elements(200 + k as u32, 1)
}

fn hash(k: u32, i: u32) -> u32 {
    let mut x = i.wrapping_add(1_000_003u32.wrapping_mul(k + 1));
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// Numbers of an array; complex ones as pairs.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    Float(Vec<f64>),
    Int(Vec<i128>),
}

impl Numbers {
    pub(crate) fn len(&self) -> usize {
        match self {
            Numbers::Float(values) => values.len(),
            Numbers::Int(values) => values.len(),
        }
    }

    /// Where `a` blocks of `b` elements stand one after another, `b` blocks of `a`: moves the
    /// leading dimension to the end. Complex numbers stay pairs.
    pub(crate) fn transposed(&self, dtype: DType, a: usize, b: usize) -> Numbers {
        fn transposed<T: Copy>(values: &[T], unit: usize, a: usize, b: usize) -> Vec<T> {
            let element = |i: usize, j: usize| &values[(i * b + j) * unit..][..unit];
            let elements = (0..b).flat_map(|j| (0..a).map(move |i| (i, j)));
            elements
                .flat_map(|(i, j)| element(i, j).iter().copied())
                .collect()
        }
        match self {
            Numbers::Float(values) => {
                let unit = if dtype.is_complex() { 2 } else { 1 };
                Numbers::Float(transposed(values, unit, a, b))
            }
            Numbers::Int(values) => Numbers::Int(transposed(values, 1, a, b)),
        }
    }

    /// Row `row` of all rows.
    pub(crate) fn row(&self, row: usize) -> Numbers {
        let size = self.len() / ROWS;
        let range = row * size..(row + 1) * size;
        match self {
            Numbers::Float(values) => Numbers::Float(values[range].to_vec()),
            Numbers::Int(values) => Numbers::Int(values[range].to_vec()),
        }
    }

    /// An array of [`wide`]'s type.
    pub(crate) fn array(&self, dtype: DType, shape: &[usize]) -> Result<Array> {
        macro_rules! array {
            ($values:expr, $ty:ty) => {{
                let values: Vec<$ty> = $values.iter().map(|&v| v as $ty).collect();
                Array::from_slice(&values, shape)
            }};
        }
        if dtype.is_complex() {
            // The program puts the pairs together.
            return self.array(DType::F32, &[shape, &[2]].concat());
        }
        match (self, wide(dtype)) {
            (Numbers::Float(v), DType::F64) => array!(v, f64),
            (Numbers::Float(v), _) => array!(v, f32),
            (Numbers::Int(v), DType::I8) => array!(v, i8),
            (Numbers::Int(v), DType::I16) => array!(v, i16),
            (Numbers::Int(v), DType::I64) => array!(v, i64),
            (Numbers::Int(v), DType::U8) => array!(v, u8),
            (Numbers::Int(v), DType::U16) => array!(v, u16),
            (Numbers::Int(v), DType::U32) => array!(v, u32),
            (Numbers::Int(v), DType::U64) => array!(v, u64),
            (Numbers::Int(v), DType::Bool) => {
                let values: Vec<bool> = v.iter().map(|&v| v % 2 != 0).collect();
                Array::from_slice(&values, shape)
            }
            (Numbers::Int(v), _) => array!(v, i32),
        }
    }

    /// Of bytes in the order and type in which they are stored.
    pub(crate) fn of_bytes(dtype: DType, bytes: &[u8]) -> Numbers {
        macro_rules! read {
            ($kind:ident, $ty:ty) => {{
                let chunks = bytes.chunks_exact(size_of::<$ty>());
                let read = chunks.map(|c| <$ty>::from_le_bytes(c.try_into().unwrap_or_default()));
                Numbers::$kind(read.map(|v| v.into()).collect())
            }};
        }
        match wide(dtype) {
            DType::F64 => read!(Float, f64),
            DType::F32 | DType::C64 => read!(Float, f32),
            DType::I8 => read!(Int, i8),
            DType::I16 => read!(Int, i16),
            DType::I32 => read!(Int, i32),
            DType::I64 => read!(Int, i64),
            DType::U16 => read!(Int, u16),
            DType::U32 => read!(Int, u32),
            DType::U64 => read!(Int, u64),
            _ => read!(Int, u8),
        }
    }
}

/// The type in which numbers of an element type are stored and passed to programs.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F8E4M3FN | DType::F8E5M2 | DType::F16 | DType::BF16 => DType::F32,
        DType::I4 => DType::I8,
        DType::U4 => DType::U8,
        other => other,
    }
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is not a list"))
}

fn integers(value: &Value) -> Vec<i64> {
    list(value).iter().map(|v| number(v) as i64).collect()
}

/// Of `f32[2,3]`.
fn tensor_type(text: &str) -> TensorType {
    let (name, shape) = text
        .trim_end_matches(']')
        .split_once('[')
        .unwrap_or((text, ""));
    let sizes = shape.split(',').filter(|n| !n.is_empty());
    let shape: Vec<usize> = sizes
        .map(|n| n.parse().expect("a size is a number"))
        .collect();
    TensorType::new(dtype(name), shape)
}

fn dtype(name: &str) -> DType {
    use DType::*;
    let all = [
        Bool, I4, I8, I16, I32, I64, U4, U8, U16, U32, U64, F8E4M3FN, F8E5M2, F16, BF16, F32, F64,
        C64,
    ];
    let found = all.into_iter().find(|dtype| dtype.name() == name);
    found.unwrap_or_else(|| panic!("no element type `{name}`"))
}

/// All cases, by family.
pub(crate) fn cases() -> Vec<(String, Vec<Case>)> {
    let index: Value =
        serde_json::from_str(include_str!("../goldens/ops.json")).expect("the index is JSON");
    let mut rest: &[u8] = include_bytes!("../goldens/ops.bin");
    let families = index.as_object().expect("the index is an object");
    let read = families
        .iter()
        .map(|(family, cases)| {
            let cases = list(cases).iter().map(|golden| case(golden, &mut rest));
            (family.clone(), cases.collect())
        })
        .collect();
    assert!(rest.is_empty(), "{} bytes belong to no case", rest.len());
    read
}

fn case(golden: &Value, rest: &mut &[u8]) -> Case {
    let texts = |name: &str| {
        list(&golden[name])
            .iter()
            .map(|v| v.as_str().unwrap_or_default())
    };
    let inputs: Vec<Input> = texts("in").map(Input::parse).collect();
    let results: Vec<TensorType> = texts("out").map(tensor_type).collect();
    let is_set = |name: &str| golden.get(name) != Some(&Value::Bool(false));
    let floats = inputs.iter().map(|input| &input.ty);
    let floats: Vec<&TensorType> = floats.filter(|ty| ty.dtype.is_float()).collect();
    let float_results = results.iter().any(|ty| ty.dtype.is_float());
    let has_gradient = is_set("gradient") && !floats.is_empty() && float_results;
    let gradients = floats.into_iter().filter(|_| has_gradient);
    let mut take = |ty: &TensorType| {
        let count = ROWS * ty.element_count() * wide(ty.dtype).host_bytes();
        let (taken, after) = rest.split_at(count);
        *rest = after;
        Numbers::of_bytes(ty.dtype, taken)
    };
    let expected = results.iter().chain(gradients).map(&mut take).collect();
    let shared = golden.get("shared").map(integers).unwrap_or_default();
    Case {
        op: golden["op"].as_str().unwrap_or_default().to_owned(),
        params: Params(
            golden
                .get("params")
                .cloned()
                .unwrap_or(serde_json::json!({})),
        ),
        shared: shared.into_iter().map(|k| k as usize).collect(),
        tolerance: golden.get("tolerance").map_or(1.0, number),
        inputs,
        results,
        has_gradient,
        has_forward: has_gradient && is_set("forward"),
        expected,
    }
}
