//! A maximum over devices is the maximum on one: NaN wins, and -0 is less than 0.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::xla::pjrt::OptionValue;
use shardax::{CheckOptions, Pool, pmin};

use super::{Edge, TYPES, array, check_split, edge, eight_devices};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Eight elements, one for each device.
const ROWS: [[f64; 8]; 6] = [
    [1.0, 2.0, NAN, 4.0, 5.0, 6.0, 7.0, 8.0],
    [NAN; 8],
    [-0.0, 0.0, -0.0, 0.0, 0.0, -0.0, -0.0, -0.0],
    [0.0, -0.0, 0.0, 0.0, -0.0, 0.0, 0.0, 0.0],
    [-INF, -3.0, -2.5, -INF, -7.0, -1e-40, -2.0, -9.0],
    [INF, 3.0, 2.5, 1e-40, 7.0, NAN, -INF, -9.0],
];

/// All that is made of maxima and minima, as bits: of two zeros and of NaN too.
fn extrema(x: Tensor) -> Vec<Tensor> {
    let to = Tensor::iota(DType::I32, [8], 0) % 2;
    let filled = |with: f64| Tensor::full(with, x.dtype(), [2]);
    let found = vec![
        x.max(0),
        x.min(0),
        x.max(..),
        grad(|x: Tensor| x.max(0).cast(DType::F32))(x),
        grad(|x: Tensor| x.min(0).cast(DType::F32))(x),
        // A guard: the step is taken if all is small.
        x.abs().max(0).lt(1e4).cast(x.dtype()),
        filled(-1.0).scatter_max(to, x, 0),
        filled(1.0).scatter_min(to, x, 0),
        x.cummax(0),
        x.cummin(0),
    ];
    let narrow = |t: Tensor| t.cast(DType::F64);
    let mut all: Vec<Tensor> = found.into_iter().map(narrow).collect();
    all.extend([x.argmax(0), x.argmin(0)].map(|t| t.cast(DType::F64)));
    all
}

/// NaN of any kind is NaN, and zeros have signs.
fn bits(arrays: &[Array]) -> Result<Vec<Vec<Option<u64>>>> {
    let of = |x: f64| (!x.is_nan()).then_some(x.to_bits());
    let read = |a: &Array| Ok(a.to_vec::<f64>()?.into_iter().map(of).collect());
    arrays.iter().map(read).collect()
}

#[test]
fn are_those_of_one_device() -> Result<()> {
    for dtype in [
        DType::F64,
        DType::F32,
        DType::BF16,
        DType::F16,
        DType::F8E5M2,
    ] {
        let program = |layout: &Layout| {
            jit(move |x: Tensor| extrema(x.cast(dtype).shard(&[Dim::Logical("batch")])))
                .layout(layout)
        };
        let alone = program(&Layout::single());
        for layout in eight_devices() {
            let split = program(&layout);
            for row in ROWS {
                let x = array(&row, DType::F64)?;
                let expected = bits(&alone.call(x.clone())?)?;
                let found = bits(&split.call(x)?)?;
                assert_eq!(found, expected, "{dtype} {row:?} {layout}");
                assert_eq!(expected[0] == vec![None], row.iter().any(|x| x.is_nan()));
            }
        }
    }
    Ok(())
}

#[test]
fn in_manual_regions_too() -> Result<()> {
    let mesh = Mesh::new([("data", 8)])?;
    let layout = Layout::new(mesh);
    let program = jit(|x: Tensor| {
        let whole = (PartitionSpec::whole(), PartitionSpec::whole());
        let region = |x: Tensor| (pmax(x, "data"), pmin(x, "data"));
        manual("data", PartitionSpec::new(("data",)), whole, region)(x)
    })
    .layout(&layout);
    let found = |row: &[f64; 8]| -> Result<[f64; 2]> {
        let (max, min) = program.call(array(row, DType::F32)?)?;
        Ok([max.item::<f32>()?.into(), min.item::<f32>()?.into()])
    };
    assert!(found(&ROWS[0])?.iter().all(|x| x.is_nan()));
    let zeros = found(&ROWS[2])?.map(f64::is_sign_negative);
    assert_eq!(zeros, [false, true]);
    assert_eq!(found(&ROWS[4])?[1], -INF);
    Ok(())
}

/// Of four numbers, the first times a factor that is no number.
fn first_times(factor: f64, x: Tensor) -> Tensor {
    x * Tensor::constant(&[factor, 1.0, 1.0, 1.0], [4]).cast(x.dtype())
}

fn scattered(x: Tensor, smallest: bool) -> Tensor {
    let to = Tensor::iota(DType::I32, [8], 0) / 2;
    if smallest {
        Tensor::full(9.0, x.dtype(), [4]).scatter_min(to, x, 0)
    } else {
        Tensor::full(-9.0, x.dtype(), [4]).scatter_max(to, x, 0)
    }
}

const X: &[f64] = &[1., 2., 3., 4., 5., 6., 7., 8.];
const OF_LARGEST: &[f64] = &[0., NAN, 0., 1., 0., 1., 0., 1.];
const OF_SMALLEST: &[f64] = &[NAN, 0., 1., 0., 1., 0., 1., 0.];
const INFINITE: &[f64] = &[0., INF, 0., 1., 0., 1., 0., 1.];

#[rustfmt::skip]
const NO_NUMBERS: &[Edge] = &[
    edge("max", |x| first_times(NAN, x.reshape([4, 2]).max(1)), X, &[NAN, 4., 6., 8.], OF_LARGEST),
    edge("min", |x| first_times(NAN, x.reshape([4, 2]).min(1)), X, &[NAN, 3., 5., 7.], OF_SMALLEST),
    edge("max_pool", |x| first_times(NAN, x.max_pool(&Pool::new([0], [2]).strides([2]))), X, &[NAN, 4., 6., 8.], OF_LARGEST),
    edge("min_pool", |x| first_times(NAN, x.min_pool(&Pool::new([0], [2]).strides([2]))), X, &[NAN, 3., 5., 7.], OF_SMALLEST),
    edge("scatter_max", |x| first_times(NAN, scattered(x, false)), X, &[NAN, 4., 6., 8.], OF_LARGEST),
    edge("scatter_min", |x| first_times(NAN, scattered(x, true)), X, &[NAN, 3., 5., 7.], OF_SMALLEST),
    edge("infinite max", |x| first_times(INF, x.reshape([4, 2]).max(1)), X, &[INF, 4., 6., 8.], INFINITE),
    edge("infinite max_pool", |x| first_times(INF, x.max_pool(&Pool::new([0], [2]).strides([2]))), X, &[INF, 4., 6., 8.], INFINITE),
    edge("infinite scatter_max", |x| first_times(INF, scattered(x, false)), X, &[INF, 4., 6., 8.], INFINITE),
];

#[test]
fn what_is_no_extremum_has_no_part_in_a_cotangent_that_is_no_number() -> Result<()> {
    check_split(NO_NUMBERS, TYPES)
}

/// The tangents of an extremum of `lgamma`, which XLA for the CPU computes in two ways in one program
/// when it does not optimize.
fn tangents(
    f: fn(Tensor) -> Tensor,
    columns: usize,
    xla: &[(String, OptionValue)],
) -> Result<Vec<f32>> {
    let program = jit(move |x: Tensor| {
        let y = |x: Tensor| f((x.abs() + 0.5).lgamma());
        let x = x.broadcast_to([5, columns]);
        jvp(y, x, Tensor::ones(DType::F32, [5, columns]))
    });
    let program = xla.iter().fold(program, |program, (name, value)| {
        program.xla_option(name, value.clone())
    });
    let x: Vec<f32> = (0..columns)
        .map(|i| (i * 7919 % 1000) as f32 / 300.0 - 1.7)
        .collect();
    program.call(Array::from_slice(&x, [columns])?)?.1.to_vec()
}

#[test]
fn elements_that_are_computed_twice_are_found() -> Result<()> {
    let none = [("xla_backend_optimization_level".to_owned(), 0.into())];
    let quick = CheckOptions::default().quick().xla;
    for columns in [2, 19] {
        let running: [fn(Tensor) -> Tensor; 2] = [|x| x.cummax(1), |x| x.cummin(0)];
        for f in running {
            let found = tangents(f, columns, &none)?;
            assert!(
                found.iter().all(|t| t.abs() > 0.01 && t.is_finite()),
                "{found:?}"
            );
        }
        let found = tangents(|x| x.min(0), columns, &quick)?;
        assert!(found.iter().all(|t| t.is_finite()), "{found:?}");
    }
    Ok(())
}
