//! Convolutions and pooling.

use shardax_core::{ConvOptions, DType, Padding, Pool, Reducer, Tensor, grad};

use crate::interpreter::Array;
use crate::support::{check, check_vmap, eval, floats, noise};

/// Convolutions of every kind: shapes of operand and kernel, and options.
fn convolutions() -> Vec<(&'static str, Vec<usize>, Vec<usize>, ConvOptions)> {
    let options = ConvOptions::new;
    vec![
        ("no space", vec![2, 3], vec![4, 3], options()),
        ("plain", vec![2, 2, 5], vec![3, 2, 3], options()),
        (
            "strided and padded",
            vec![1, 2, 6, 5],
            vec![3, 2, 3, 2],
            options().strides([2, 1]).padding([(1, 2), (0, 1)]),
        ),
        (
            "cut off",
            vec![1, 1, 7],
            vec![1, 1, 2],
            options().padding([(-1, -2)]).strides([2]),
        ),
        (
            "dilated on both sides",
            vec![1, 2, 4],
            vec![2, 2, 3],
            options()
                .lhs_dilation([3])
                .rhs_dilation([2])
                .strides([2])
                .padding([(2, 1)]),
        ),
        (
            "feature groups",
            vec![2, 4, 5],
            vec![6, 2, 3],
            options().feature_groups(2).padding(Padding::Same),
        ),
        (
            "depthwise",
            vec![1, 3, 4],
            vec![3, 1, 3],
            options()
                .feature_groups(3)
                .padding(Padding::SameLower)
                .strides([2]),
        ),
        (
            "batch groups",
            vec![4, 2, 4],
            vec![6, 2, 2],
            options().batch_groups(2).padding([(1, 0)]),
        ),
        (
            "features last",
            vec![1, 3, 4, 2],
            vec![2, 2, 2, 3],
            options()
                .layouts("NHWC", "HWIO", "NHWC")
                .padding(Padding::Same),
        ),
        (
            "other orders",
            vec![2, 4, 1, 3],
            vec![2, 2, 2, 3],
            options().layouts("CHNW", "WIHO", "HNWC").strides([1, 2]),
        ),
        (
            "padding alone",
            vec![1, 1, 1],
            vec![1, 1, 2],
            options().padding([(3, 3)]),
        ),
        ("no window", vec![1, 1, 2], vec![1, 1, 3], options()),
    ]
}

#[test]
fn derivatives_and_batches_of_convolutions() {
    for (name, lhs, rhs, options) in convolutions() {
        println!("{name}");
        let args = || [noise(1, &lhs), noise(2, &rhs)];
        check(args(), |[x, k]: [Tensor; 2]| x.conv(k, &options));
        check_vmap(args(), |[x, k]| x.conv(k, &options));
    }
}

#[test]
fn a_convolution_is_not_turned_around() {
    let args = [
        Array::f64(&[1, 1, 4], [1.0, 2.0, 3.0, 4.0]),
        Array::f64(&[1, 1, 2], [10.0, 1.0]),
    ];
    let plain = floats(&args, |[x, k]| x.conv(k, &ConvOptions::new()));
    assert_eq!(plain, [12.0, 23.0, 34.0]);
    let same = ConvOptions::new().padding(Padding::Same);
    assert_eq!(
        floats(&args, |[x, k]| x.conv(k, &same)),
        [12.0, 23.0, 34.0, 40.0]
    );
    let lower = ConvOptions::new().padding(Padding::SameLower);
    assert_eq!(
        floats(&args, |[x, k]| x.conv(k, &lower)),
        [1.0, 12.0, 23.0, 34.0]
    );
}

#[test]
fn a_transposed_convolution_is_larger() {
    let args = [
        Array::f64(&[1, 1, 2], [1.0, 2.0]),
        Array::f64(&[1, 1, 3], [1.0, 10.0, 100.0]),
    ];
    let size =
        |options: &ConvOptions| eval(&args, |[x, k]| x.conv_transpose(k, options))[0].floats();
    let two = ConvOptions::new().strides([2]);
    // 1 0 2, convolved with every position that it reaches.
    assert_eq!(size(&two), [100.0, 10.0, 201.0, 20.0, 2.0]);
    assert_eq!(size(&two.clone().padding(Padding::Same)).len(), 4);
    assert_eq!(
        size(&ConvOptions::new().strides([5]).padding(Padding::Same)).len(),
        10
    );
    check(
        [noise(1, &[1, 2, 3]), noise(2, &[2, 2, 3])],
        |[x, k]: [Tensor; 2]| x.conv_transpose(k, &two),
    );
}

#[test]
fn products_of_narrow_operands_are_summed_in_the_type_asked_for() {
    let args = [
        Array::new(DType::BF16, &[1, 1, 3], [1.0, 2.0, 3.0]),
        Array::new(DType::BF16, &[1, 1, 2], [1.0, 0.0078125]),
    ];
    let options = ConvOptions::new().result(DType::F32);
    let result = eval(&args, |[x, k]| x.conv(k, &options));
    assert_eq!(result[0].ty.dtype, DType::F32);
    assert_eq!(result[0].floats(), [1.015625, 2.0234375]);
    let gradients = eval(&args, |[x, k]| {
        grad(|(x, k): (Tensor, Tensor)| x.conv(k, &options).sum(..))((x, k))
    });
    assert_eq!(gradients[0].ty.dtype, DType::BF16);
    assert_eq!(gradients[1].floats(), [3.0, 5.0]);
}

fn pools() -> Vec<(&'static str, Pool)> {
    vec![
        ("side by side", Pool::new([1], [2])),
        ("overlapping", Pool::new([1, 2], [3, 2]).strides([1, 1])),
        (
            "padded",
            Pool::new([-1, 1], [2, 3])
                .strides([2, 2])
                .padding([(1, 0), (1, 1)]),
        ),
        (
            "dilated",
            Pool::new([1], [2])
                .strides([1])
                .dilation([2])
                .padding([(1, 2)]),
        ),
        (
            "apart",
            Pool::new([1], [2])
                .strides([2])
                .base_dilation([2])
                .padding([(0, 1)]),
        ),
        (
            "same",
            Pool::new([1, 2], [2, 2])
                .strides([2, 2])
                .padding(Padding::Same),
        ),
        ("nothing", Pool::new([], [])),
    ]
}

#[test]
fn derivatives_and_batches_of_pooling() {
    for (name, pool) in pools() {
        println!("{name}");
        let x = || [noise(5, &[2, 4, 3])];
        for reducer in [Reducer::Max, Reducer::Min, Reducer::Sum] {
            check(x(), |[x]: [Tensor; 1]| x.reduce_window(reducer, &pool));
            check_vmap(x(), |[x]| x.reduce_window(reducer, &pool));
        }
        check(x(), |[x]: [Tensor; 1]| x.avg_pool(&pool));
        check(x(), |[x]: [Tensor; 1]| {
            x.avg_pool(&pool.clone().count_padding(false))
        });
        check(x(), |[x]: [Tensor; 1]| {
            (x + 2.0).reduce_window(Reducer::Prod, &pool)
        });
    }
}

#[test]
fn equal_extrema_share_the_derivative() {
    let x = [Array::f64(&[5], [2.0, 2.0, 1.0, 2.0, 0.0])];
    let pool = Pool::new([0], [3]).strides([1]);
    let gradient = floats(&x, |[x]| grad(|x: Tensor| x.max_pool(&pool).sum(..))(x));
    assert_eq!(gradient, [0.5, 1.0, 0.0, 1.5, 0.0]);
}

#[test]
fn a_mean_counts_the_padding_or_not() {
    let x = [Array::f64(&[3], [3.0, 6.0, 9.0])];
    let pool = Pool::new([0], [3]).strides([1]).padding(Padding::Same);
    assert_eq!(floats(&x, |[x]| x.avg_pool(&pool)), [3.0, 6.0, 5.0]);
    let there = pool.count_padding(false);
    assert_eq!(floats(&x, |[x]| x.avg_pool(&there)), [4.5, 6.0, 7.5]);
    let narrow = [Array::new(DType::BF16, &[4096], [1.0; 4096])];
    let all = Pool::new([0], [4096]);
    assert_eq!(floats(&narrow, |[x]| x.sum_pool(&all)), [4096.0]);
}
