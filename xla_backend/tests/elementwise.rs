//! Every element-wise function on every element type that it takes, on the CPU plugin.

use shardax_core::{DType, Dim, F8E4M3FN, Tensor, grad};
use shardax_sharding::{Layout, Mesh};
use shardax_xla::{Array, Result, jit};

type Function = fn(Tensor) -> Tensor;

/// Functions of floats, and what is added to numbers in 0.1 to 0.9 first.
const OF_FLOATS: &[(&str, Function, f64)] = &[
    ("abs", |x| x.abs(), -0.5),
    ("acos", |x| x.acos(), 0.0),
    ("acosh", |x| x.acosh(), 1.0),
    ("asin", |x| x.asin(), 0.0),
    ("asinh", |x| x.asinh(), 0.0),
    ("atan", |x| x.atan(), 0.0),
    ("atan2", |x| x.atan2(x - 0.5), 0.0),
    ("atanh", |x| x.atanh(), 0.0),
    ("cbrt", |x| x.cbrt(), -0.5),
    ("ceil", |x| x.ceil(), -0.5),
    ("clamp", |x| x.clamp(0.25, 0.5), 0.0),
    ("cos", |x| x.cos(), 0.0),
    ("cosh", |x| x.cosh(), 0.0),
    ("digamma", |x| x.digamma(), 1.0),
    ("div", |x| (x + 1.0) / x, 0.0),
    ("erf", |x| x.erf(), 0.0),
    ("erf_inv", |x| x.erf_inv(), 0.0),
    ("erfc", |x| x.erfc(), 0.0),
    ("exp", |x| x.exp(), 0.0),
    ("exp2", |x| x.exp2(), 0.0),
    ("expm1", |x| x.expm1(), 0.0),
    ("floor", |x| x.floor(), -0.5),
    ("is_finite", |x| x.is_finite(), 0.0),
    ("lgamma", |x| x.lgamma(), 0.0),
    ("log", |x| x.log(), 0.0),
    ("log1p", |x| x.log1p(), 0.0),
    ("maximum", |x| x.maximum(0.5), 0.0),
    ("minimum", |x| x.minimum(0.5), 0.0),
    ("mul", |x| x * x, 0.0),
    ("neg", |x| -x, 0.0),
    ("polygamma", |x| (x * 0.0 + 1.0).polygamma(x), 1.0),
    ("pow", |x| x.pow(x), 0.0),
    ("rem", |x| x % 0.25, 0.0),
    ("round", |x| x.round(), 0.0),
    ("round_even", |x| x.round_even(), 0.0),
    ("rsqrt", |x| x.rsqrt(), 0.0),
    ("select", |x| x.gt(0.5).select(x, -x), 0.0),
    ("sigmoid", |x| x.sigmoid(), 0.0),
    ("sign", |x| x.sign(), -0.5),
    ("sin", |x| x.sin(), 0.0),
    ("sinh", |x| x.sinh(), 0.0),
    ("sqrt", |x| x.sqrt(), 0.0),
    ("sub", |x| x - 0.5, 0.0),
    ("tan", |x| x.tan(), 0.0),
    ("tanh", |x| x.tanh(), 0.0),
    ("compare", |x| x.lt(0.5).ne(x.ge(0.75)), 0.0),
    ("reduce_precision", |x| x.reduce_precision(4, 1), 0.0),
    ("sum", |x| x.sum(0), 0.0),
    ("prod", |x| x.prod(0), 0.0),
    ("max", |x| x.max(0), 0.0),
    ("min", |x| x.min(0), 0.0),
    ("dot", |x| x.dot(x), 0.0),
];

const FLOATS: [DType; 6] = [
    DType::F8E4M3FN,
    DType::F8E5M2,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// Functions of integers from -3 to 3, or 1 to 7 of an unsigned type.
const OF_INTEGERS: &[(&str, Function)] = &[
    ("add", |x| x + 1),
    ("and", |x| x & 3),
    ("clz", |x| x.leading_zeros()),
    ("compare", |x| x.lt(2)),
    ("div", |x| x / 2),
    ("floor_div", |x| x.floor_div(2)),
    ("max", |x| x.max(0)),
    ("maximum", |x| x.maximum(2)),
    ("min", |x| x.min(0)),
    ("minimum", |x| x.minimum(2)),
    ("mul", |x| x * 2),
    ("neg", |x| -x),
    ("not", |x| !x),
    ("or", |x| x | 4),
    ("popcount", |x| x.popcount()),
    ("pow", |x| x.pow(2)),
    ("prod", |x| x.slice(0, ..2).prod(0)),
    ("rem", |x| x % 2),
    ("select", |x| x.gt(1).select(x, 0)),
    ("shift_left", |x| x << 1),
    ("shift_right", |x| x >> 1),
    ("shift_right_logical", |x| x.shift_right_logical(1)),
    ("sub", |x| x - 1),
    ("sum", |x| x.sum(0)),
    ("xor", |x| x ^ 2),
    ("dot", |x| x.slice(0, ..2).dot(x.slice(0, ..2))),
];

const INTEGERS: [DType; 10] = [
    DType::I4,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U4,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

/// All functions at once, on `x`.
fn all<F: Fn(Tensor) -> Tensor + Copy>(functions: &[F], dtype: DType, x: Tensor) -> Vec<Tensor> {
    functions.iter().map(|f| f(x).cast(dtype)).collect()
}

#[test]
fn floats_of_every_width() -> Result<()> {
    let x: Vec<f64> = (0..5).map(|i| 0.125 + 0.1875 * f64::from(i)).collect();
    let x = Array::from_slice(&x, [5])?;
    let run = |dtype: DType| {
        let program = move |x: Tensor| -> Vec<Tensor> {
            let each = OF_FLOATS.iter();
            each.map(|&(_, f, offset)| f((x + offset).cast(dtype)).cast(DType::F64))
                .collect()
        };
        jit(program).call(x.clone())
    };
    let exact = run(DType::F64)?;
    for dtype in FLOATS {
        let bits = dtype.precision().map_or(0, |(bits, _)| bits);
        // A few steps of rounding, of operands and of the result.
        let tolerance = 8.0 * f64::from(bits).exp2().recip();
        for ((name, ..), (found, exact)) in OF_FLOATS.iter().zip(run(dtype)?.iter().zip(&exact)) {
            let (found, exact) = (found.to_vec::<f64>()?, exact.to_vec::<f64>()?);
            for (a, b) in found.iter().zip(&exact) {
                let near = (a - b).abs() <= tolerance * b.abs().max(1.0);
                assert!(near, "{name} of {dtype}: {found:?}, not {exact:?}");
            }
        }
    }
    Ok(())
}

/// The number of an integer type that has the low bits of `value`.
fn wrapped(value: i64, dtype: DType) -> i64 {
    let unused = 64 - dtype.bits();
    match dtype.is_signed_integer() {
        true => value << unused >> unused,
        false => ((value as u64) << unused >> unused) as i64,
    }
}

#[test]
fn integers_of_every_width() -> Result<()> {
    for dtype in INTEGERS {
        let signed = dtype.is_signed_integer();
        let x: Vec<i64> = (0..7).map(|i| if signed { i - 3 } else { i + 1 }).collect();
        let argument = Array::from_slice(&x, [7])?;
        let run = |dtype: DType| {
            let functions: Vec<Function> = OF_INTEGERS.iter().map(|&(_, f)| f).collect();
            jit(move |x: Tensor| all(&functions, DType::I64, x.cast(dtype))).call(argument.clone())
        };
        let bits = |x: i64| {
            let unused = 64 - dtype.bits();
            (x as u64) << unused >> unused
        };
        let exact = run(DType::I64)?;
        for ((name, _), (found, exact)) in OF_INTEGERS.iter().zip(run(dtype)?.iter().zip(&exact)) {
            let found = found.to_vec::<i64>()?;
            // What depends on the width is counted here.
            let wanted: Vec<i64> = match *name {
                "clz" => {
                    let unused = 64 - dtype.bits() as i64;
                    x.iter()
                        .map(|&x| i64::from(bits(x).leading_zeros()) - unused)
                        .collect()
                }
                "popcount" => x.iter().map(|&x| i64::from(bits(x).count_ones())).collect(),
                "shift_right_logical" => x.iter().map(|&x| (bits(x) >> 1) as i64).collect(),
                _ => exact.to_vec::<i64>()?,
            };
            let wanted: Vec<i64> = wanted.into_iter().map(|v| wrapped(v, dtype)).collect();
            assert_eq!(found, wanted, "{name} of {dtype}");
        }
    }
    Ok(())
}

#[test]
fn booleans() -> Result<()> {
    let x = Array::from_slice(&[false, true], [2])?;
    let run = jit(|x: Tensor| {
        let y = Tensor::constant(&[true], [1]);
        let both = (x & y, (x | y, (x ^ y, !x)));
        let counted = (x.any(..), (x.all(..), x.eq(y).select(x, y)));
        (both, counted)
    });
    let ((and, (or, (xor, not))), (any, (all, select))) = run.call(x)?;
    let truth = |a: Array| a.to_vec::<bool>();
    assert_eq!(truth(and)?, [false, true]);
    assert_eq!(truth(or)?, [true, true]);
    assert_eq!(truth(xor)?, [true, false]);
    assert_eq!(truth(not)?, [true, false]);
    assert_eq!((truth(any)?, truth(all)?), (vec![true], vec![false]));
    assert_eq!(truth(select)?, [true, true]);
    Ok(())
}

/// Functions of complex numbers that are real for real ones.
const OF_COMPLEX: &[(&str, Function)] = &[
    ("abs", |x| x.abs()),
    ("acos", |x| x.acos()),
    ("asin", |x| x.asin()),
    ("asinh", |x| x.asinh()),
    ("atan", |x| x.atan()),
    ("atanh", |x| x.atanh()),
    ("cos", |x| x.cos()),
    ("cosh", |x| x.cosh()),
    ("div", |x| (x + 1.0) / x),
    ("dot", |x| x.dot(x)),
    ("exp", |x| x.exp()),
    ("expm1", |x| x.expm1()),
    ("log", |x| x.log()),
    ("log1p", |x| x.log1p()),
    ("mul", |x| x * x),
    ("neg", |x| -x),
    ("pow", |x| x.pow(x)),
    ("prod", |x| x.prod(0)),
    ("rsqrt", |x| x.rsqrt()),
    ("sigmoid", |x| x.sigmoid()),
    ("sign", |x| x.sign()),
    ("sin", |x| x.sin()),
    ("sinh", |x| x.sinh()),
    ("sqrt", |x| x.sqrt()),
    ("sub", |x| x - 0.5),
    ("sum", |x| x.sum(0)),
    ("tan", |x| x.tan()),
    ("tanh", |x| x.tanh()),
];

#[test]
fn complex_numbers() -> Result<()> {
    let x = Array::from_slice(&[0.125f32, 0.5, 0.75], [3])?;
    let run = |dtype: DType| {
        let functions: Vec<Function> = OF_COMPLEX.iter().map(|&(_, f)| f).collect();
        jit(move |x: Tensor| all(&functions, DType::F32, x.cast(dtype))).call(x.clone())
    };
    let (complex, real) = (run(DType::C64)?, run(DType::F32)?);
    for ((name, _), (found, exact)) in OF_COMPLEX.iter().zip(complex.iter().zip(&real)) {
        let (found, exact) = (found.to_vec::<f32>()?, exact.to_vec::<f32>()?);
        for (a, b) in found.iter().zip(&exact) {
            assert!((a - b).abs() < 1e-5, "{name}: {found:?}, not {exact:?}");
        }
    }
    let z = Array::from_slice(&[[3f32, 4.0], [0.0, 0.0], [-1.0, 0.0]], [3])?;
    let parts = jit(|z: Tensor| (z.conj(), (z.sign(), (z.abs(), z.angle()))));
    let (conj, (sign, (abs, angle))) = parts.call(z)?;
    assert_eq!(conj.to_vec::<[f32; 2]>()?[0], [3.0, -4.0]);
    assert_eq!(abs.to_vec::<f32>()?, [5.0, 0.0, 1.0]);
    let sign = sign.to_vec::<[f32; 2]>()?;
    assert!(
        (sign[0][0] - 0.6).abs() < 1e-6 && sign[1] == [0.0, 0.0],
        "{sign:?}"
    );
    assert_eq!(angle.to_vec::<f32>()?[2], std::f32::consts::PI);
    Ok(())
}

#[test]
fn narrow_floats_come_and_go() -> Result<()> {
    let numbers = [0.5, -448.0, 0.0].map(F8E4M3FN::from_f64);
    let x = Array::from_slice(&numbers, [3])?;
    let y = jit(|x: Tensor| x + Tensor::constant(&[F8E4M3FN::from_f64(1.0)], [1])).call(x)?;
    let sum: Vec<f64> = y.to_vec::<F8E4M3FN>()?.iter().map(|v| v.to_f64()).collect();
    assert_eq!(sum, [1.5, -448.0, 1.0]);
    Ok(())
}

/// The gradient at 0 of a function that is the identity there, and has no finite slope elsewhere.
#[test]
fn branches_that_are_not_taken_have_no_derivative() -> Result<()> {
    fn gradients(x: Tensor) -> Vec<Tensor> {
        let functions: [Function; 6] = [
            |x| x.sqrt(),
            |x| x.log(),
            |x| 1 / x,
            |x| x * x.log(),
            |x| x.pow(0.5),
            |x| (x + 1e3).exp(),
        ];
        let slope = |f: Function| grad(move |x: Tensor| x.lt(1.0).select(x, f(x)).sum(..))(x);
        functions.map(slope).to_vec()
    }
    let x = Array::from_slice(&[0f32; 8], [8])?;
    let layout = Layout::new(Mesh::new([("data", 8)])?).shard("batch", "data");
    let sharded = |x: Tensor| gradients(x.shard(&[Dim::Logical("batch")]));
    let one = jit(gradients).call(x.clone())?;
    let eight = jit(sharded).layout(&layout).call(x)?;
    for gradient in one.iter().chain(&eight) {
        assert_eq!(gradient.to_vec::<f32>()?, [1.0; 8]);
    }
    Ok(())
}
