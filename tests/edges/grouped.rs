//! Convolutions with groups, and their gradients, where some axes split the batch and others do not.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{ConvOptions, Padding};

#[test]
fn gradients_of_grouped_kernels_are_summed_over_the_batch_alone() -> Result<()> {
    let options = || ConvOptions::new().padding(Padding::Same);
    let cases: Vec<(&str, ConvOptions, [usize; 3])> = vec![
        ("groups", options().feature_groups(2), [8, 2, 3]),
        ("depthwise", options().feature_groups(4), [8, 1, 3]),
        (
            "strides",
            options().feature_groups(2).strides([2]),
            [8, 2, 3],
        ),
    ];
    for p in [Partitioner::Shardy, Partitioner::Gspmd] {
        for (name, options, kernel) in &cases {
            for dims in [[&["b"][..], &[]], [&["a", "b"], &[]], [&["a"], &["b"]]] {
                let f = move |v: (Tensor, Tensor)| {
                    let v0 =
                        v.0.shard(&[Dim::Mesh(dims[0]), Dim::Mesh(dims[1]), Dim::Unsharded]);
                    let loss = |(x, w): (Tensor, Tensor)| x.conv(w, options).sin().sum(..);
                    grad(loss)((v0, v.1))
                };
                let layout = Layout::new(Mesh::new([("a", 2), ("b", 4)]).unwrap()).partitioner(p);
                let size: usize = kernel.iter().product();
                let x = || -> Result<(Array, Array)> {
                    let v = |n: usize| {
                        (0..n)
                            .map(|i| ((i * 7) % 11) as f32 * 0.1 - 0.5)
                            .collect::<Vec<_>>()
                    };
                    Ok((
                        Array::from_slice(&v(8 * 4 * 5), [8, 4, 5])?,
                        Array::from_slice(&v(size), *kernel)?,
                    ))
                };
                let one = jit(f).call(x()?)?;
                let all = jit(f).layout(&layout).call(x()?)?;
                let near = |a: &Array, b: &Array| -> Result<bool> {
                    Ok(a.to_vec::<f32>()?
                        .iter()
                        .zip(b.to_vec::<f32>()?)
                        .all(|(a, b)| (a - b).abs() < 1e-4))
                };
                println!(
                    "{p} {name} {dims:?} {} {}",
                    near(&one.0, &all.0)?,
                    near(&one.1, &all.1)?
                );
            }
        }
    }
    Ok(())
}
