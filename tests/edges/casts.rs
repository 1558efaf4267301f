//! Conversions between element types: what is out of range.

use shardax::prelude::*;
use shardax::xla::Result;

use super::eight_devices;

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

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// The lower bits, as the integer of the type that they mean; of `u64`, as the `i64` of the same bits.
fn lower_bits(v: i64, to: DType) -> i64 {
    match to {
        DType::I4 => v << 60 >> 60,
        DType::I8 => i64::from(v as i8),
        DType::I16 => i64::from(v as i16),
        DType::I32 => i64::from(v as i32),
        DType::U4 => v & 15,
        DType::U8 => i64::from(v as u8),
        DType::U16 => i64::from(v as u16),
        DType::U32 => i64::from(v as u32),
        _ => v,
    }
}

/// The nearest integer of the type towards 0, and 0 of NaN.
fn nearest(v: f64, to: DType) -> i64 {
    match to {
        DType::I4 => (v as i64).clamp(-8, 7),
        DType::I8 => i64::from(v as i8),
        DType::I16 => i64::from(v as i16),
        DType::I32 => i64::from(v as i32),
        DType::I64 => v as i64,
        DType::U4 => (v as i64).clamp(0, 15),
        DType::U8 => i64::from(v as u8),
        DType::U16 => i64::from(v as u16),
        DType::U32 => i64::from(v as u32),
        _ => v as u64 as i64,
    }
}

fn layouts() -> Vec<Layout> {
    [vec![Layout::single()], eight_devices()].concat()
}

/// `x`, split, in each integer type, each read as `i64`.
fn in_integers(x: Tensor) -> Vec<Tensor> {
    let x = x.shard(&[Dim::Logical("batch")]);
    let cast = |to: DType| x.cast(to).cast(DType::I64);
    INTEGERS.map(cast).to_vec()
}

#[test]
fn floats_become_the_nearest_integer() -> Result<()> {
    let values = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e20,
        -1e20,
        -1.7,
        2.7,
        300.0,
    ];
    for layout in layouts() {
        let program =
            jit(|x: Tensor| FLOATS.map(|from| in_integers(x.cast(from))).to_vec()).layout(&layout);
        let found = program.call(Array::from_slice(&values, [8])?)?;
        for (from, found) in FLOATS.iter().zip(found) {
            for (to, found) in INTEGERS.iter().zip(found) {
                let expected = values.map(|v| nearest(v, *to));
                assert_eq!(found.to_vec::<i64>()?, expected, "{from} to {to}\n{layout}");
            }
        }
    }
    Ok(())
}

#[test]
fn integers_keep_their_lower_bits() -> Result<()> {
    let values = [
        300,
        -1,
        128,
        -129,
        65_543,
        i64::MIN,
        (1 << 40) + 5,
        i64::MAX,
    ];
    for layout in layouts() {
        let program = jit(|x: Tensor| {
            let from = |from: DType| in_integers(x.cast(from));
            INTEGERS.map(from).to_vec()
        })
        .layout(&layout);
        let found = program.call(Array::from_slice(&values, [8])?)?;
        for (from, found) in INTEGERS.iter().zip(found) {
            for (to, found) in INTEGERS.iter().zip(found) {
                let expected = values.map(|v| lower_bits(lower_bits(v, *from), *to));
                assert_eq!(found.to_vec::<i64>()?, expected, "{from} to {to}\n{layout}");
            }
        }
    }
    Ok(())
}

#[test]
fn narrower_floats_without_infinities_are_nan() -> Result<()> {
    let values = [f32::INFINITY, 1e5, 448.0, -460.0, -500.0, 0.3, 1e-9, -1e30];
    for layout in layouts() {
        let program = jit(|x: Tensor| {
            let x = x.shard(&[Dim::Logical("batch")]);
            [DType::F8E4M3FN, DType::F8E5M2, DType::F16].map(|to| x.cast(to).cast(DType::F32))
        })
        .layout(&layout);
        let [finite, narrow, half] = program.call(Array::from_slice(&values, [8])?)?;
        let finite = finite.to_vec::<f32>()?;
        let nan = finite.iter().map(|v| v.is_nan()).collect::<Vec<_>>();
        let too_large = [true, true, false, false, true, false, false, true];
        assert_eq!(nan, too_large, "{finite:?}\n{layout}");
        assert_eq!(finite[2..4], [448.0, -448.0], "{layout}");
        let (inf, none) = (f32::INFINITY, f32::NEG_INFINITY);
        let expected = [inf, inf, 448.0, -448.0, -512.0, 0.3125, 0.0, none];
        assert_eq!(narrow.to_vec::<f32>()?, expected, "{layout}");
        assert_eq!(
            half.to_vec::<f32>()?[..4],
            [inf, inf, 448.0, -460.0],
            "{layout}"
        );
    }
    Ok(())
}
