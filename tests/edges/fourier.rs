//! Fourier transforms of values that are split along other dimensions, or along the one that is transformed.

use shardax::prelude::*;
use shardax::xla::Result;

#[test]
fn transforms_of_split_values() -> Result<()> {
    let values: Vec<f32> = (0..2 * 8 * 8).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = Array::from_slice(&values, [2, 8, 8])?;
    let transforms = |x: Tensor| {
        let correlated = (x.rfft() * x.rfft()).irfft(x.size(-1));
        let whole = x.cast(DType::C64).fft();
        (
            correlated,
            whole.real() + whole.imag(),
            grad(|x: Tensor| x.rfft().abs().square().sum(..))(x),
        )
    };
    let [one, ..] = [jit(transforms).call(x.clone())?];
    let one = [one.0, one.1, one.2];
    let splits: [[&'static [&'static str]; 3]; 4] = [
        [&[], &["a"], &[]],
        [&[], &["a", "b"], &[]],
        [&["a"], &[], &["b"]],
        [&[], &["b"], &["a"]],
    ];
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new(Mesh::new([("a", 2), ("b", 4)]).unwrap()).partitioner(partitioner);
        for split in splits {
            let f = |x: Tensor| transforms(x.shard(&split.map(Dim::Mesh)));
            let all = jit(f).layout(&layout).call(x.clone())?;
            for (one, all) in one.iter().zip([all.0, all.1, all.2]) {
                let (one, all) = (one.to_vec::<f32>()?, all.to_vec::<f32>()?);
                let is_near = one.iter().zip(&all).all(|(a, b)| (a - b).abs() <= 1e-3);
                assert!(is_near, "{split:?} {partitioner}: {one:?} {all:?}");
            }
        }
    }
    Ok(())
}
