//! What every operation and tensor method computes.

use shardax_core::{DType, Operand, Tensor, TensorType, concatenate, einsum};

use crate::interpreter::Array;
use crate::support::{assert_close, between, eval, floats, graph, ints, noise};

/// Compares an element-wise function with the same function of f64.
#[track_caller]
fn same(x: &[f64], f: impl Fn(Tensor) -> Tensor, expected: impl Fn(f64) -> f64) {
    let x = Array::f64(&[x.len()], x.iter().copied());
    let wanted = Array::f64(&x.ty.shape, x.floats().into_iter().map(expected));
    assert_close(
        "an element-wise function",
        &eval(&[x], |[x]| f(x)),
        &[wanted],
        1e-14,
    );
}

#[test]
fn elementwise_functions() {
    let x = [-1.5, -0.3, 0.0, 0.2, 1.0, 2.5];
    let positive = [0.1, 0.5, 1.0, 3.0];
    same(&x, Tensor::abs, f64::abs);
    same(&x, Tensor::cos, f64::cos);
    same(&x, Tensor::exp, f64::exp);
    same(&x, Tensor::expm1, f64::exp_m1);
    same(&x, Tensor::floor, f64::floor);
    same(&positive, Tensor::log, f64::ln);
    same(&positive, Tensor::log1p, f64::ln_1p);
    same(&x, Tensor::sigmoid, |v| 1.0 / (1.0 + (-v).exp()));
    same(&x, |x| -x, |v| -v);
    same(&positive, Tensor::rsqrt, |v| 1.0 / v.sqrt());
    same(&x, Tensor::sin, f64::sin);
    same(&positive, Tensor::sqrt, f64::sqrt);
    same(&x, Tensor::tanh, f64::tanh);
    same(&x, Tensor::square, |v| v * v);
    same(&x, Tensor::relu, |v| v.max(0.0));
    same(&x, Tensor::silu, |v| v / (1.0 + (-v).exp()));
    same(&x, |x| x.maximum(0.1), |v| v.max(0.1));
    same(&x, |x| x.minimum(0.1), |v| v.min(0.1));
    same(&positive, |x| x.pow(2.5), |v| v.powf(2.5));
    same(&positive, |x| 2.5 - x / 3.0 * 2, |v| 2.5 - v / 3.0 * 2.0);
    same(&positive, |x| 1 / x, |v| 1.0 / v);
    same(&x, |x| x % 0.4, |v| v % 0.4);
    assert_eq!(
        floats(&[Array::f64(&[3], [-2., 0., 5.])], |[x]| x.sign()),
        [-1.0, 0.0, 1.0]
    );
}

#[test]
fn gelu_and_erf_have_their_tabulated_values() {
    // Abramowitz and Stegun, table 7.1.
    let erf = floats(&[Array::f64(&[3], [0.5, 1.0, 2.0])], |[x]| x.erf());
    for (value, table) in erf
        .iter()
        .zip([0.520_499_877_8, 0.842_700_792_9, 0.995_322_265_0])
    {
        assert!((value - table).abs() < 1e-10, "{value} is not {table}");
    }
    let exact = floats(&[Array::f64(&[2], [1.0, -1.0])], |[x]| x.gelu_exact());
    assert!((exact[0] - 0.841_344_746_068_5).abs() < 1e-12);
    assert!((exact[1] + 0.158_655_253_931_5).abs() < 1e-12);
    let approximate = floats(&[Array::f64(&[1], [1.0])], |[x]| x.gelu());
    assert!((approximate[0] - 0.841_191_990_608).abs() < 1e-11);
}

#[test]
fn integers_wrap_and_divide_towards_zero() {
    let x = || {
        [
            Array::i32(&[4], [-7, 7, i32::MAX, 6]),
            Array::i32(&[4], [2, -2, 1, 4]),
        ]
    };
    assert_eq!(ints(&x(), |[a, b]| a + b), [-5, 5, i64::from(i32::MIN), 10]);
    assert_eq!(ints(&x(), |[a, b]| a / b), [-3, -3, i64::from(i32::MAX), 1]);
    assert_eq!(ints(&x(), |[a, b]| a % b), [-1, 1, 0, 2]);
    assert_eq!(ints(&x(), |[a, _]| a.abs()), [7, 7, i64::from(i32::MAX), 6]);
    assert_eq!(ints(&x(), |[a, b]| a & b), [0, 6, 1, 4]);
    assert_eq!(ints(&x(), |[a, b]| a | b), [-5, -1, i64::from(i32::MAX), 6]);
    assert_eq!(
        ints(&x(), |[a, b]| a ^ b),
        [-5, -7, i64::from(i32::MAX) - 1, 2]
    );
    assert_eq!(ints(&x(), |[a, _]| !a), [6, -8, i64::from(i32::MIN), -7]);
    assert_eq!(
        ints(&x(), |[a, _]| a >> 1),
        [-4, 3, i64::from(i32::MAX / 2), 3]
    );
    assert_eq!(ints(&x(), |[a, _]| a >> 40), [-1, 0, 0, 0]);
    let words = [Array::new(DType::U32, &[2], [u32::MAX, 5])];
    assert_eq!(ints(&words, |[x]| x + 2), [1, 7]);
    assert_eq!(ints(&words, |[x]| x * 3), [i64::from(u32::MAX) - 2, 15]);
    assert_eq!(ints(&words, |[x]| x << 1), [i64::from(u32::MAX) - 1, 10]);
    assert_eq!(ints(&words, |[x]| x >> 30), [3, 0]);
    assert_eq!(
        ints(&words, |[x]| (x >> 1) << 31),
        [i64::from(1u32 << 31), 0]
    );
}

#[test]
fn comparisons_and_booleans() {
    let x = || [Array::f64(&[3], [1., 2., 3.])];
    assert_eq!(ints(&x(), |[x]| x.eq(2)), [0, 1, 0]);
    assert_eq!(ints(&x(), |[x]| x.ne(2.0)), [1, 0, 1]);
    assert_eq!(ints(&x(), |[x]| x.lt(2)), [1, 0, 0]);
    assert_eq!(ints(&x(), |[x]| x.le(2)), [1, 1, 0]);
    assert_eq!(ints(&x(), |[x]| x.gt(2)), [0, 0, 1]);
    assert_eq!(ints(&x(), |[x]| x.ge(2)), [0, 1, 1]);
    assert_eq!(ints(&x(), |[x]| x.gt(1) & !x.eq(3)), [0, 1, 0]);
    assert_eq!(ints(&x(), |[x]| x.gt(1).all(..)), [0]);
    assert_eq!(ints(&x(), |[x]| x.gt(1).any(..)), [1]);
    assert_eq!(floats(&x(), |[x]| x.gt(1).select(x, -1)), [-1.0, 2.0, 3.0]);
    assert_eq!(floats(&x(), |[x]| x.gt(1).select(1.5, x)), [1.0, 1.5, 1.5]);
    let nan = [Array::f64(&[2], [f64::NAN, 1.0])];
    assert_eq!(ints(&nan, |[x]| x.eq(x)), [0, 1]);
    assert_eq!(ints(&nan, |[x]| x.ne(x)), [1, 0]);
}

#[test]
fn operands_broadcast_and_promote() {
    let column = Array::f64(&[2, 1], [10., 20.]);
    let row = Array::i32(&[3], [1, 2, 3]);
    assert_eq!(
        floats(&[column, row], |[a, b]| a + b),
        [11.0, 12.0, 13.0, 21.0, 22.0, 23.0]
    );
    let dtype_of = |a: DType, b: DType| {
        let types = [TensorType::scalar(a), TensorType::scalar(b)];
        let graph = graph(types, |[a, b]| a * b);
        graph.ty(graph.outputs()[0]).dtype
    };
    assert_eq!(dtype_of(DType::BF16, DType::F32), DType::F32);
    assert_eq!(dtype_of(DType::BF16, DType::F16), DType::F32);
    assert_eq!(dtype_of(DType::BF16, DType::I64), DType::BF16);
    assert_eq!(dtype_of(DType::Bool, DType::I8), DType::I8);
    assert_eq!(dtype_of(DType::I8, DType::U8), DType::I16);
    assert_eq!(dtype_of(DType::I32, DType::U8), DType::I32);
    let keeps = graph([TensorType::scalar(DType::BF16)], |[x]| x * 2.5 + 1);
    assert_eq!(keeps.ty(keeps.outputs()[0]).dtype, DType::BF16);
}

#[test]
fn casts_and_bits() {
    let x = || [Array::f64(&[4], [-1.7, 2.9, 0.1, 3.0])];
    assert_eq!(ints(&x(), |[x]| x.cast(DType::I32)), [-1, 2, 0, 3]);
    assert_eq!(ints(&x(), |[x]| x.cast(DType::Bool)), [1, 1, 1, 1]);
    assert_eq!(
        floats(&x(), |[x]| x.cast(DType::F32)),
        [-1.7f32, 2.9, 0.1, 3.0].map(f64::from)
    );
    assert_eq!(floats(&x(), |[x]| x.cast(DType::BF16))[2], 0.100_097_656_25);
    let bits = ints(&[Array::new(DType::F32, &[1], [1.0f32])], |[x]| {
        x.bitcast(DType::U32)
    });
    assert_eq!(bits, [0x3f80_0000]);
    let float = floats(&[Array::new(DType::U32, &[1], [0x3f80_0000u32])], |[x]| {
        x.bitcast(DType::F32)
    });
    assert_eq!(float, [1.0]);
}

#[test]
fn making_tensors() {
    let none: [Array; 0] = [];
    assert_eq!(
        ints(&none, |[]| Tensor::iota(DType::I32, [2, 3], 0)),
        [0, 0, 0, 1, 1, 1]
    );
    assert_eq!(
        ints(&none, |[]| Tensor::iota(DType::I32, [2, 3], -1)),
        [0, 1, 2, 0, 1, 2]
    );
    assert_eq!(ints(&none, |[]| Tensor::arange(DType::U8, 3)), [0, 1, 2]);
    assert_eq!(
        floats(&none, |[]| Tensor::full(2.5, DType::F32, [2])),
        [2.5, 2.5]
    );
    assert_eq!(
        floats(&none, |[]| Tensor::zeros(DType::F32, [1, 2])),
        [0.0, 0.0]
    );
    assert_eq!(
        floats(&none, |[]| Tensor::ones(DType::F32, [1, 2])),
        [1.0, 1.0]
    );
    assert_eq!(
        floats(&none, |[]| Tensor::constant(&[1f32, 2., 3.], [3]) * 2),
        [2.0, 4.0, 6.0]
    );
    assert_eq!(ints(&none, |[]| Tensor::scalar(true, DType::Bool)), [1]);
}

#[test]
fn reductions() {
    let x = || [Array::f64(&[2, 3], [1., 5., 3., 4., 2., 6.])];
    assert_eq!(floats(&x(), |[x]| x.sum(..)), [21.0]);
    assert_eq!(floats(&x(), |[x]| x.sum(0)), [5.0, 7.0, 9.0]);
    assert_eq!(floats(&x(), |[x]| x.sum([-1])), [9.0, 12.0]);
    assert_eq!(floats(&x(), |[x]| x.sum([1, 0])), [21.0]);
    assert_eq!(floats(&x(), |[x]| x.mean(-1)), [3.0, 4.0]);
    assert_eq!(floats(&x(), |[x]| x.max(0)), [4.0, 5.0, 6.0]);
    assert_eq!(floats(&x(), |[x]| x.min(..)), [1.0]);
    assert_eq!(ints(&x(), |[x]| x.argmax(1)), [1, 2]);
    assert_eq!(
        ints(&[Array::f64(&[4], [1., 3., 3., 0.])], |[x]| x.argmax(0)),
        [1]
    );
    assert_eq!(
        ints(&[Array::f64(&[3], [1., f64::NAN, 3.])], |[x]| x.argmax(0)),
        [1]
    );
    let variance = floats(&x(), |[x]| x.var(1));
    assert!((variance[0] - 8.0 / 3.0).abs() < 1e-15, "{variance:?}");
    assert_eq!(
        floats(&x(), |[x]| x.max(1).keep_dims(x, 1) - x),
        [4., 0., 2., 2., 4., 0.]
    );
    assert_eq!(floats(&[Array::f64(&[0], [])], |[x]| x.sum(..)), [0.0]);
    assert_eq!(
        floats(&[Array::f64(&[0], [])], |[x]| x.max(..)),
        [f64::NEG_INFINITY]
    );
    assert_eq!(ints(&[Array::i32(&[3], [1, 2, 3])], |[x]| x.sum(..)), [6]);
}

#[test]
fn sums_of_half_precision_do_not_stop_growing() {
    let ones = || [Array::new(DType::BF16, &[1000], [1.0; 1000])];
    assert_eq!(floats(&ones(), |[x]| x.sum(..)), [1000.0]);
    assert_eq!(floats(&ones(), |[x]| x.mean(..)), [1.0]);
    assert_eq!(floats(&ones(), |[x]| einsum("i->", [x])), [1000.0]);
    let gradient = floats(&[Array::new(DType::BF16, &[], [2.0])], |[x]| {
        shardax_core::grad(|x: Tensor| (x + Tensor::ones(DType::BF16, [1000])).sum(..))(x)
    });
    assert_eq!(gradient, [1000.0]);
}

#[test]
fn softmax_family() {
    let x = || [Array::f64(&[2, 3], [1., 2., 3., 1000., 1000., -1000.])];
    let row: f64 = [1f64, 2., 3.].iter().map(|v| v.exp()).sum();
    let softmax = floats(&x(), |[x]| x.softmax(-1));
    assert!((softmax[0] - 1f64.exp() / row).abs() < 1e-15);
    assert_eq!(softmax[3..], [0.5, 0.5, 0.0]);
    let logsumexp = floats(&x(), |[x]| x.logsumexp(1));
    assert!((logsumexp[0] - row.ln()).abs() < 1e-14);
    assert!((logsumexp[1] - 1000.0 - 2f64.ln()).abs() < 1e-12);
    let log_softmax = floats(&x(), |[x]| x.log_softmax(1));
    assert!((log_softmax[1] - (2.0 - row.ln())).abs() < 1e-14);
    let masked = || [Array::f64(&[2], [f64::NEG_INFINITY; 2])];
    assert_eq!(floats(&masked(), |[x]| x.softmax(0)), [0.0, 0.0]);
    assert_eq!(floats(&masked(), |[x]| x.logsumexp(0)), [f64::NEG_INFINITY]);
}

#[test]
fn shapes() {
    let x = || [Array::f64(&[2, 3], [1., 2., 3., 4., 5., 6.])];
    assert_eq!(
        floats(&x(), |[x]| x.transpose([1, 0])),
        [1., 4., 2., 5., 3., 6.]
    );
    assert_eq!(
        floats(&x(), |[x]| x.swap_axes(-1, 0)),
        [1., 4., 2., 5., 3., 6.]
    );
    assert_eq!(
        eval(&x(), |[x]| x.reshape([3, 2]))[0].ty.to_string(),
        "f64[3,2]"
    );
    assert_eq!(
        eval(&x(), |[x]| x.expand_dims(1))[0].ty.to_string(),
        "f64[2,1,3]"
    );
    assert_eq!(
        eval(&x(), |[x]| x.expand_dims(-1))[0].ty.to_string(),
        "f64[2,3,1]"
    );
    assert_eq!(
        eval(&x(), |[x]| x.expand_dims(0).squeeze(0))[0]
            .ty
            .to_string(),
        "f64[2,3]"
    );
    assert_eq!(floats(&x(), |[x]| x.reverse([1])), [3., 2., 1., 6., 5., 4.]);
    assert_eq!(
        floats(&x(), |[x]| x.index(1, 2).broadcast_to([2, 2])),
        [3., 6., 3., 6.]
    );
    assert_eq!(floats(&x(), |[x]| x.slice(1, 1..)), [2., 3., 5., 6.]);
    assert_eq!(floats(&x(), |[x]| x.slice(-1, ..=0)), [1., 4.]);
    assert_eq!(floats(&x(), |[x]| x.slice(0, 1..2)), [4., 5., 6.]);
    assert_eq!(
        floats(&x(), |[x]| x.pad(0, 1, 0, 9)),
        [9., 9., 9., 1., 2., 3., 4., 5., 6.]
    );
    assert_eq!(
        floats(&x(), |[x]| concatenate([x, x.slice(0, ..1)], 0)).len(),
        9
    );
    assert_eq!(
        floats(&x(), |[x]| concatenate([x, x.slice(1, ..1)], -1)),
        [1., 2., 3., 1., 4., 5., 6., 4.]
    );
    assert_eq!(floats(&x(), |[x]| x.tril(0)), [1., 0., 0., 4., 5., 0.]);
    assert_eq!(floats(&x(), |[x]| x.tril(1)), [1., 2., 0., 4., 5., 6.]);
    assert_eq!(floats(&x(), |[x]| x.tril(-1)), [0., 0., 0., 4., 0., 0.]);
}

#[test]
fn reading_by_index() {
    let x = Array::f64(&[3, 2], [1., 2., 3., 4., 5., 6.]);
    let at = |i: &[i32]| [x.clone(), Array::i32(&[i.len()], i.iter().copied())];
    assert_eq!(
        floats(&at(&[2, 0]), |[x, i]| x.take(i, 0)),
        [5., 6., 1., 2.]
    );
    assert_eq!(floats(&at(&[1]), |[x, i]| x.take(i, 1)), [2., 4., 6.]);
    let outside = floats(&at(&[-1, 3, 1]), |[x, i]| x.take(i, 0));
    assert!(outside[..4].iter().all(|v| v.is_nan()), "{outside:?}");
    assert_eq!(outside[4..], [3., 4.]);
    let integers = [Array::i32(&[2], [7, 8]), Array::i32(&[2], [1, 2])];
    assert_eq!(
        ints(&integers, |[x, i]| x.take(i, 0)),
        [8, i64::from(i32::MIN)]
    );
    let bytes = [
        Array::f64(&[300], (0..300).map(f64::from)),
        Array::new(DType::U8, &[1], [255u8]),
    ];
    assert_eq!(floats(&bytes, |[x, i]| x.take(i, 0)), [255.0]);
    let along = [x.clone(), Array::i32(&[3, 1], [1, 0, 5])];
    let picked = floats(&along, |[x, i]| x.take_along(i, 1));
    assert_eq!(picked[..2], [2., 3.]);
    assert!(picked[2].is_nan());
    let hot = [Array::i32(&[3], [1, 0, 7])];
    assert_eq!(
        floats(&hot, |[i]| i.one_hot(2, DType::F32)),
        [0., 1., 1., 0., 0., 0.]
    );
}

#[test]
fn dynamic_windows_stay_inside() {
    let x = Array::f64(&[4], [1., 2., 3., 4.]);
    let at = |i: i32| [x.clone(), Array::i32(&[], [i])];
    assert_eq!(floats(&at(1), |[x, i]| x.dynamic_slice(0, i, 2)), [2., 3.]);
    assert_eq!(floats(&at(9), |[x, i]| x.dynamic_slice(0, i, 2)), [3., 4.]);
    assert_eq!(floats(&at(-9), |[x, i]| x.dynamic_slice(0, i, 2)), [1., 2.]);
    let update = |[x, i]: [Tensor; 2]| x.dynamic_update(0, i, Tensor::zeros(DType::F64, [2]));
    assert_eq!(floats(&at(1), update), [1., 0., 0., 4.]);
    assert_eq!(floats(&at(9), update), [1., 2., 0., 0.]);
    let long = [
        Array::f64(&[300], (0..300).map(f64::from)),
        Array::new(DType::U8, &[], [255u8]),
    ];
    assert_eq!(floats(&long, |[x, i]| x.dynamic_slice(0, i, 1)), [255.0]);
}

/// Sums products over all letters, in the most literal way.
fn naive_einsum(inputs: &[&str], output: &str, sizes: &[(char, usize)], x: &[Array]) -> Vec<f64> {
    let position = |labels: &str, values: &[usize]| -> usize {
        labels.chars().fold(0, |offset, c| {
            let at = sizes.iter().position(|(l, _)| *l == c).unwrap_or(0);
            offset * sizes[at].1 + values[at]
        })
    };
    let count = output
        .chars()
        .map(|c| sizes.iter().find(|(l, _)| *l == c).map_or(1, |s| s.1))
        .product();
    let mut result = vec![0.0; count];
    let total: usize = sizes.iter().map(|(_, size)| size).product();
    for mut flat in 0..total {
        let mut values = vec![0; sizes.len()];
        for (value, (_, size)) in values.iter_mut().zip(sizes).rev() {
            *value = flat % size;
            flat /= size;
        }
        let product: f64 = inputs
            .iter()
            .zip(x)
            .map(|(labels, x)| x.floats()[position(labels, &values)])
            .product();
        result[position(output, &values)] += product;
    }
    result
}

#[test]
fn einsum_is_the_sum_over_its_letters() {
    let sizes = [('a', 2), ('b', 3), ('c', 4), ('d', 2)];
    let shape = |labels: &str| -> Vec<usize> {
        labels
            .chars()
            .map(|c| sizes.iter().find(|(l, _)| *l == c).map_or(1, |s| s.1))
            .collect()
    };
    let cases = [
        ("ab,bc->ac", "ac"),
        ("ab,cb->ca", "ca"),
        ("abc,abd->acd", "acd"),
        ("bac,dab->bdc", "bdc"),
        ("abc,bca->", ""),
        ("ab,c->acb", "acb"),
        ("ab,abc->c", "c"),
        ("abcd,d->cb", "cb"),
        ("aa,ab->ab", "ab"),
        ("aab,b->a", "a"),
        ("abc->cab", "cab"),
        ("aba->b", "b"),
        ("ab,bc,cd->ad", "ad"),
        ("ab,bc,ca->b", "b"),
        ("ba,bc", "ac"),
        ("a b , b", "a"),
    ];
    for (subscripts, output) in cases {
        let compact: String = subscripts.chars().filter(|c| *c != ' ').collect();
        let labels: Vec<&str> = compact
            .split("->")
            .next()
            .unwrap_or("")
            .split(',')
            .collect();
        let used: Vec<(char, usize)> = sizes
            .iter()
            .copied()
            .filter(|(c, _)| compact.contains(*c))
            .collect();
        let x: Vec<Array> = labels
            .iter()
            .enumerate()
            .map(|(i, l)| noise(i as u64, &shape(l)))
            .collect();
        let wanted = naive_einsum(&labels, output, &used, &x);
        let found = match x.as_slice() {
            [a] => eval(std::array::from_ref(a), |x| einsum(subscripts, x)),
            [a, b] => eval(&[a.clone(), b.clone()], |x| einsum(subscripts, x)),
            [a, b, c] => eval(&[a.clone(), b.clone(), c.clone()], |x| {
                einsum(subscripts, x)
            }),
            _ => Vec::new(),
        };
        let wanted = Array::f64(&shape(output), wanted);
        assert_close(subscripts, &found, &[wanted], 1e-13);
    }
}

#[test]
fn products() {
    let a = between(0.0, 1.0, 1, &[2, 3]);
    let b = between(0.0, 1.0, 2, &[3, 4]);
    let wanted = eval(&[a.clone(), b.clone()], |x| einsum("ij,jk->ik", x));
    assert_close(
        "dot",
        &eval(&[a.clone(), b.clone()], |[a, b]| a.dot(b)),
        &wanted,
        0.0,
    );
    assert_close("matmul", &eval(&[a, b], |[a, b]| a.matmul(b)), &wanted, 0.0);
    let stack = noise(3, &[5, 1, 2, 3]);
    let matrices = noise(4, &[4, 3, 2]);
    let wanted = eval(&[stack.clone(), matrices.clone()], |[a, b]| {
        einsum("xij,yjk->xyik", [a.reshape([5, 2, 3]), b])
    });
    assert_close(
        "batches",
        &eval(&[stack, matrices], |[a, b]| a.matmul(b)),
        &wanted,
        1e-15,
    );
    let bf16 = [Array::new(DType::BF16, &[300], [1.0; 300])];
    assert_eq!(floats(&bf16, |[x]| x.dot_as(x, DType::F32)), [300.0]);
    let mixed = graph(
        [
            TensorType::new(DType::BF16, [2]),
            TensorType::new(DType::I32, [2]),
        ],
        |[a, b]| a.dot(b),
    );
    assert_eq!(mixed.ty(mixed.outputs()[0]).dtype, DType::BF16);
}

#[test]
fn numbers_and_tensors_are_operands() {
    let x = [Array::f64(&[], [3.0])];
    let three = |o: Operand| move |[x]: [Tensor; 1]| x.maximum(o);
    assert_eq!(floats(&x, three(4.into())), [4.0]);
    assert_eq!(floats(&x, |[x]| x.maximum(x + 1)), [4.0]);
}

#[test]
fn selecting_and_adding_elements() {
    let x = || [Array::f64(&[2, 3], [4., -1., 2., 0., -1., f64::NAN])];
    assert_eq!(ints(&x(), |[x]| x.argmin(1)), [1, 2]);
    assert_eq!(ints(&x(), |[x]| x.argmin(0)), [1, 0, 1]);
    let row = || [Array::f64(&[5], [-1000., -1., 0.5, 2., 1000.])];
    assert_eq!(
        floats(&row(), |[x]| x.clamp(-1.0, 1.5)),
        [-1., -1., 0.5, 1.5, 1.5]
    );
    let softplus = floats(&row(), |[x]| x.softplus());
    assert_eq!((softplus[0], softplus[4]), (0.0, 1000.0));
    assert!((softplus[2] - (1.0 + 0.5f64.exp()).ln()).abs() < 1e-15);
    assert_eq!(floats(&row(), |[x]| x.step_by(0, 2)), [-1000., 0.5, 1000.]);
    assert_eq!(
        floats(&row(), |[x]| x.slice(0, 1..3).dilate(0, 2, 7)),
        [-1., 7., 7., 0.5]
    );
    // A row twice, and rows that are not there.
    let table = || Array::f64(&[3, 2], [0.; 6]);
    let added = |indices: [i32; 4]| {
        let indices = Array::i32(&[4], indices);
        let updates = Array::f64(&[4, 2], (1..=8).map(f64::from));
        floats(&[table(), indices, updates], |[x, i, u]| {
            x.scatter_add(i, u, 0)
        })
    };
    assert_eq!(added([2, 0, 2, 1]), [3., 4., 7., 8., 6., 8.]);
    assert_eq!(added([3, 0, -1, i32::MAX]), [3., 4., 0., 0., 0., 0.]);
}
