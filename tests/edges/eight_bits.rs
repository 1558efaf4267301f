//! Floats of eight bits, one of whose types has no infinities.

use shardax::prelude::*;
use shardax::xla::Result;

use super::{Edge, check_split, edge};

/// A half of the distance between neighbors.
const TYPES: &[(DType, f64)] = &[
    (DType::F8E4M3FN, 0.07),
    (DType::F8E5M2, 0.14),
    (DType::F32, 2e-4),
];

const ZERO: &[f64] = &[0.; 8];
const X: &[f64] = &[8., 7., 6., 5., 4., 3., 2., 1.];
const PARTS: &[f64] = &[
    0.6323, 0.2326, 0.0856, 0.0315, 0.0116, 0.0043, 0.0016, 0.0006,
];
/// The largest numbers of `f8e4m3fn`.
const FAR: &[f64] = &[448., -448., 448., 0., 100., 7., -7., 6.];

#[rustfmt::skip]
const SOFTMAX: &[Edge] = &[
    edge("softmax", |x| x.softmax(0), X, PARTS, ZERO),
    edge("far softmax", |x| x.softmax(0), FAR, &[0.5, 0., 0.5, 0., 0., 0., 0., 0.], ZERO),
    edge("log_softmax", |x| x.log_softmax(0), X, &[-0.4583, -1.4583, -2.4583, -3.4583, -4.4583, -5.4583, -6.4583, -7.4583],
        &[-4.058661, -0.860978, 0.315385, 0.748144, 0.907347, 0.965915, 0.987461, 0.995387]),
    edge("logsumexp", |x| x.logsumexp(0), X, &[8.4583], PARTS),
    edge("softmax_where", |x| x.softmax_where(x.gt(2.5), 0), X, &[0.6337, 0.2331, 0.0858, 0.0316, 0.0116, 0.0043, 0., 0.], ZERO),
    edge("softmax_where nothing is", |x| x.softmax_where(x.gt(9), 0), X, ZERO, ZERO),
    edge("largest", |x| x.max(0), FAR, &[448.], &[0.5, 0., 0.5, 0., 0., 0., 0., 0.]),
    edge("smallest", |x| x.min(0), FAR, &[-448.], &[0., 1., 0., 0., 0., 0., 0., 0.]),
    edge("nan_to_num", |x| x.nan_to_num(), FAR, FAR, &[1.; 8]),
];

#[test]
fn have_softmax() -> Result<()> {
    check_split(SOFTMAX, TYPES)
}

#[test]
fn extrema_of_nothing() -> Result<()> {
    let program = jit(|x: Tensor| {
        let of = |dtype: DType| [x.cast(dtype).max(0), x.cast(dtype).min(0)];
        [DType::F8E4M3FN, DType::F8E5M2].map(|dtype| of(dtype).map(|x| x.cast(DType::F32)))
    });
    let found = program.call(Array::from_slice::<f32>(&[], [0])?)?;
    let found: Vec<f32> = found
        .iter()
        .flatten()
        .map(Array::item)
        .collect::<Result<_>>()?;
    assert_eq!(found, [-448.0, 448.0, f32::NEG_INFINITY, f32::INFINITY]);
    Ok(())
}

/// A negative number of four bits that XLA computes while it compiles comes as one.
#[test]
fn constants_of_four_bits_have_their_sign() -> Result<()> {
    let f = |x: Tensor| {
        let folded = (Tensor::arange(DType::F64, 3) * 0.77 - 1.3).sin() * 2.5;
        (
            folded.cast(DType::I4),
            x.cast(DType::I4),
            Tensor::scalar(-1, DType::I4) + 0,
            Tensor::scalar(15, DType::U4) + 0,
        )
    };
    let (folded, cast, one, most) = jit(f).call(Array::from_slice(&[-1i32, 7, -8], [3])?)?;
    assert_eq!(folded.to_bytes()?, [-2i8, -1, 0].map(|v| v as u8));
    assert_eq!(cast.to_bytes()?, [-1i8, 7, -8].map(|v| v as u8));
    assert_eq!(
        (one.to_bytes()?, most.to_bytes()?),
        (vec![0xFF], vec![0x0F])
    );
    Ok(())
}
