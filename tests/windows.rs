//! Convolutions and pools of split data compute what one device does: values and gradients, with
//! either partitioner. Without care XLA gives wrong numbers for these, or aborts the process.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{ConvOptions, Padding, Pool, hessian};

const X: [f64; 8] = [0.3, -0.7, 1.1, 0.45, -0.2, 0.9, -1.3, 0.6];

fn numbers(shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    (Tensor::arange(DType::F64, count) * 0.37)
        .sin()
        .reshape(shape)
}

fn oblong(x: Tensor) -> Tensor {
    let kernel = x.get(s![0..4]).reshape([2, 2, 1, 1]);
    let options = ConvOptions::new()
        .layouts("NHWC", "HWIO", "NCHW")
        .padding(Padding::SameLower)
        .strides([2, 3]);
    x.reshape([1, 2, 4, 1]).conv(kernel, &options)
}

fn grouped(x: Tensor) -> Tensor {
    let data = (numbers(&[2, 2, 8, 7]) * x.reshape([1, 1, 8, 1])).shard(&[
        Dim::Unsharded,
        Dim::Unsharded,
        Dim::Logical("batch"),
        Dim::Unsharded,
    ]);
    let options = ConvOptions::new()
        .feature_groups(2)
        .strides([2, 2])
        .padding(Padding::Same);
    data.conv(numbers(&[4, 1, 3, 3]) * x.get(s![0..3]), &options)
}

fn depthwise(x: Tensor) -> Tensor {
    let options = ConvOptions::new()
        .feature_groups(2)
        .strides([2])
        .padding(Padding::Same);
    x.reshape([1, 2, 4]).conv(x.reshape([4, 1, 2]), &options)
}

fn transposed(x: Tensor) -> Tensor {
    let options = ConvOptions::new().strides([3]).padding(Padding::Same);
    let kernel = x.get(s![0..3]).reshape([1, 1, 3]);
    x.reshape([1, 1, 8]).conv_transpose(kernel, &options)
}

fn pooled(x: Tensor) -> Tensor {
    let pool = Pool::new([0], [3]).strides([2]).padding([(1, 2)]);
    let apart = pool.clone().base_dilation([2]);
    x.max_pool(&pool).square().sum(..) + x.sum_pool(&apart).square().sum(..)
}

/// Values, gradients and second derivatives of everything.
fn everything(x: Tensor) -> Vec<Tensor> {
    let functions: [fn(Tensor) -> Tensor; 5] = [oblong, grouped, depthwise, transposed, pooled];
    let x = x.shard(&[Dim::Logical("batch")]);
    let rows = x.reshape([8, 1]) + x.reshape([1, 8]);
    let rows = rows.shard(&[Dim::Logical("batch"), Dim::Unsharded]);
    let mut all = Vec::new();
    for f in functions {
        let loss = move |x: Tensor| f(x).square().sum(..);
        all.extend([f(x), grad(loss)(x), hessian(loss)(x), vmap(f)(rows)]);
    }
    all
}

#[test]
fn windows_over_split_data() -> Result<()> {
    let results = |layout: &Layout| -> Result<Vec<Vec<f64>>> {
        let found = jit(everything)
            .layout(layout)
            .call(Array::from_slice(&X, [8])?)?;
        found.iter().map(|array| array.to_vec::<f64>()).collect()
    };
    let wanted = results(&Layout::single())?;
    let split = Layout::new(Mesh::new([("data", 8)])?).shard("batch", "data");
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let found = results(&split.clone().partitioner(partitioner))?;
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9 * b.abs().max(1.0);
            assert!(
                found.iter().zip(wanted).all(close),
                "result {i} under {partitioner:?}\n{found:?}\n{wanted:?}"
            );
        }
    }
    Ok(())
}
