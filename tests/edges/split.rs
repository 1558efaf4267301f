//! Operations along a dimension that devices split give what they give on one device, values and gradients.
//!
//! Rows and columns are split alike; the sizes are chosen so that blocks, windows and parts do not meet.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{Combine, ConvOptions, Padding, Pool, sort_by_key};

use super::{all_near, numbers};

const ROWS: usize = 16;
const COLUMNS: usize = 8;

/// A function of `[16, 8]`.
type Case = (&'static str, fn(Tensor) -> Tensor);

/// Positions, some twice, none in order.
fn places(count: usize, below: usize) -> Tensor {
    let places: Vec<i32> = (0..count)
        .map(|i| ((i * 5 + i / 3) % below) as i32)
        .collect();
    Tensor::constant(&places, [count])
}

/// A start that the compiler does not know.
fn start(x: Tensor, at: i64) -> Tensor {
    let zero = x.abs().max(..).lt(0.0).cast(DType::I32);
    zero + at
}

fn image(x: Tensor) -> Tensor {
    x.reshape([1, 1, ROWS, COLUMNS])
}

fn kernel(x: Tensor) -> Tensor {
    x.get(s![0..2, 0..9]).reshape([2, 1, 3, 3])
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("concat of rows", |x| concatenate([x.slice(0, 3..), x, x.slice(0, ..5)], 0)),
    ("concat of columns", |x| concatenate([x.slice(1, 5..), x.slice(1, ..3), x], 1)),
    ("concat of parts to the whole", |x| concatenate([x.slice(0, 9..), x.slice(0, ..9)], 0)),
    ("stack", |x| stack([x.slice(0, ..8), x.slice(0, 8..), x.slice(0, 4..12)], 0)),
    ("top_k of columns", |x| x.top_k(3).0),
    ("top_k of rows", |x| x.transpose([1, 0]).top_k(5).0),
    ("places of top_k", |x| x.take(x.transpose([1, 0]).top_k(2).1.index(0, 3), 0)),
    ("sort of rows", |x| x.sort(0)),
    ("sort of columns", |x| x.sort_descending(1)),
    ("argsort of rows", |x| x.take_along(x.argsort(0), 0) * x),
    ("argsort of columns", |x| x.take_along(x.argsort_descending(1), 1) - x),
    ("sort by key", |x| sort_by_key([x.index(1, 2), x.index(1, 0)], 1, 0).swap_remove(1)),
    ("median", |x| x.median(0)),
    ("quantile", |x| x.quantile(0.3, 1)),
    ("roll of rows", |x| x.roll(3, 0)),
    ("roll of columns", |x| x.roll(-1, 1) * x),
    ("take of rows", |x| x.take(places(21, ROWS), 0)),
    ("take of columns", |x| x.take(places(6, COLUMNS), 1)),
    ("take of narrow places", |x| x.take(places(12, ROWS).cast(DType::U8), 0)),
    ("take by computed places", |x| x.take(x.argmax(1), 0) * x.take(x.argmin(0), 0).sum(0)),
    ("take_along", |x| x.take_along(places(2 * COLUMNS, ROWS).reshape([2, COLUMNS]), 0)),
    ("gather_nd", |x| x.gather_nd(stack([places(10, ROWS), places(10, COLUMNS)], 1))),
    ("scatter set", |x| x.scatter(Tensor::constant(&[9i32, 2, 15], [3]), x.slice(0, ..3) * 2.0, 0)),
    ("scatter add", |x| x.scatter_add(places(21, ROWS), x.index(0, 3).sin(), 0)),
    ("scatter add of columns", |x| x.scatter_add(places(9, COLUMNS), x.slice(1, ..1), 1)),
    ("scatter into zeros", |x| Tensor::zeros(x.dtype(), [40, COLUMNS]).scatter_add(places(ROWS, 40), x, 0)),
    ("scatter mul", |x| x.scatter_mul(places(7, ROWS), x.slice(0, 4..11), 0)),
    ("scatter max", |x| x.scatter_max(places(7, ROWS), x.slice(0, 4..11), 0)),
    ("scatter_nd", |x| x.scatter_nd(stack([places(10, ROWS), places(10, COLUMNS)], 1), x.flatten().slice(0, ..10), Combine::Add)),
    ("put_along", |x| x.put_along(x.argmax(0).expand_dims(0), x.index(0, 1).expand_dims(0), 0)),
    ("set of a part", |x| x.at(s![3..13; 2, ..]).set(x.get(s![0..5, ..]) * 3.0)),
    ("add to a part", |x| x.at(s![.., 1..7]).add(x.get(s![.., 0..6]))),
    ("dynamic slice of rows", |x| x.dynamic_slice(0, start(x, 5), 7)),
    ("dynamic slice of columns", |x| x.dynamic_slice(1, start(x, 3), 4)),
    ("dynamic slice beyond the end", |x| x.dynamic_slice(0, start(x, 14), 5)),
    ("dynamic slice before the start", |x| x.dynamic_slice(0, start(x, -3), 5)),
    ("dynamic update of rows", |x| x.dynamic_update(0, start(x, 7), x.slice(0, 1..6) * 2.0)),
    ("dynamic update of columns", |x| x.dynamic_update(1, start(x, 2), x.slice(1, ..3).exp())),
    ("dynamic update beyond the end", |x| x.dynamic_update(0, start(x, 15), x.slice(0, 1..4))),
    ("cumsum of rows", |x| x.cumsum(0)),
    ("cumsum of columns", |x| x.cumsum_reverse(1)),
    ("cumprod", |x| x.cumprod(0)),
    ("cummax", |x| x.cummax(0) + x.cummin(1)),
    ("cumlogsumexp", |x| x.cumlogsumexp(0)),
    ("reverse", |x| x.reverse([0]) * x.reverse([1])),
    ("pad", |x| x.pad(0, 1, 2, 0.5).pad(1, 3, 0, -1.0)),
    ("pad that cuts", |x| x.pad(0, -2, 1, 0.5).pad(1, 1, -3, 2.0)),
    ("pad between", |x| x.dilate(0, 2, 1)),
    ("steps", |x| x.step_by(0, 3)),
    ("steps of columns", |x| x.get(s![1..15; 4, 1..8; 3])),
    ("conv", |x| image(x).conv(kernel(x.reshape([2, 64])), &ConvOptions::new().padding(Padding::Same))),
    ("conv with strides", |x| image(x).conv(kernel(x.reshape([2, 64])), &ConvOptions::new().strides([2, 3]).padding(Padding::Same))),
    ("conv with holes", |x| image(x).conv(kernel(x.reshape([2, 64])), &ConvOptions::new().rhs_dilation([3, 1]))),
    ("conv of the channels", |x| x.reshape([1, ROWS, COLUMNS]).conv(x.get(s![0..9, 0..1]).reshape([1, 1, 9]).tile([3, ROWS, 1]), &ConvOptions::new().padding(vec![(4, 4)]))),
    ("pool", |x| x.max_pool(&Pool::new([0, 1], [3, 2]).strides([2, 1]))),
    ("sum pool", |x| x.sum_pool(&Pool::new([0], [5]).padding([(2, 2)]))),
    ("one hot", |x| x.argmax(1).one_hot(COLUMNS, x.dtype()) * x),
    ("tril", |x| x.tril(-2) + x.triu(3)),
    ("diagonal", |x| x.diagonal(1)),
    ("reshape across", |x| x.reshape([4, 32]).sin().reshape([32, 4]) * 2.0),
    ("transpose", |x| x.transpose([1, 0]).dot(x)),
    ("repeat and tile", |x| x.repeat(3, 0).slice(0, 5..29) + x.tile([2, 1]).slice(0, 8..32)),
    ("softmax and mean", |x| x.softmax(0) * x.mean(0) + x.log_softmax(1)),
    ("var and norm", |x| x.var(0) * x.norm(0) + x.std(..)),
    ("layer norm", |x| nn::layer_norm(x, None, None, 0, 1e-5) + nn::rms_norm(x, None, 1, 1e-5)),
    ("split", |x| { let parts = x.split([3, 6, 7], 0); parts[1].sum(0) * parts[2].max(0) + parts[0].min(0) }),
    ("scan over rows", |x| scan(x.index(0, 0), x, |h: Tensor, x: Tensor| { let h = (h * 0.5 + x).sin(); (h, h) }).1),
    ("scan over columns", |x| scan(x.index(1, 0), x.transpose([1, 0]), |h: Tensor, x: Tensor| { let h = (h.roll(1, 0) + x).cos(); (h, h * x) }).1),
    ("vmap over rows", |x| vmap(|row: Tensor| row.sort(0).cumsum(0))(x)),
    ("batched take", |x| vmap(|row: Tensor| row.take(row.argsort(0).slice(0, ..3), 0))(x)),
    ("einsum", |x| einsum("ij,kj,kl->il", [x, x.sin(), x.cos()])),
];

/// Values, and gradients of a weighted sum.
fn results(cases: &[Case], layout: &Layout, dims: &'static [Dim]) -> Result<Vec<[Vec<f64>; 2]>> {
    let all = |x: Tensor| {
        let x = x.shard(dims);
        let results = cases.iter().map(|(_, f)| {
            let loss = |x: Tensor| {
                let value = f(x.shard(dims));
                let value = match value.shape()[..] == [ROWS, COLUMNS] {
                    true => value.shard(dims),
                    false => value,
                };
                let value = value.flatten();
                let weights = (Tensor::arange(value.dtype(), value.size(0)) * 0.9).sin() + 1.5;
                ((value * weights).sum(..), value)
            };
            let ((_, value), gradient) = value_and_grad(loss)(x);
            (value, gradient.shard(dims))
        });
        results.collect::<Vec<_>>()
    };
    let program = jit(all)
        .layout(layout)
        .xla_option("xla_backend_optimization_level", 0);
    let values = (0..ROWS * COLUMNS).map(|i| (i as f64 * 0.77).sin() + (i as f64 * 0.013));
    let x = Array::from_slice(&values.collect::<Vec<_>>(), [ROWS, COLUMNS])?;
    let found = program.call(x)?;
    let read = found
        .iter()
        .map(|(value, gradient)| Ok([numbers(value)?, numbers(gradient)?]));
    read.collect()
}

const ONE_ROW: &[Dim] = &[Dim::Mesh(&["data"]), Dim::Unsharded];
const BOTH: &[Dim] = &[Dim::Mesh(&["data"]), Dim::Mesh(&["model"])];

#[test]
fn floats() -> Result<()> {
    let wanted = results(CASES, &Layout::single(), BOTH)?;
    let mut wrong = Vec::new();
    for (mesh, dims) in [("data=8", ONE_ROW), ("data=4,model=2", BOTH)] {
        for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
            let layout = Layout::new(mesh.parse()?).partitioner(partitioner);
            let found = results(CASES, &layout, dims)?;
            for ((name, _), (found, wanted)) in CASES.iter().zip(found.iter().zip(&wanted)) {
                for (what, i) in [("value", 0), ("gradient", 1)] {
                    if !all_near(&found[i], &wanted[i], 1e-11) {
                        let (found, wanted) = (&found[i], &wanted[i]);
                        wrong.push(format!(
                            "{name} {what} on {mesh} {partitioner} {dims:?}: {found:?}, not {wanted:?}"
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Of whole numbers, in types where nothing is rounded, or everything is.
#[rustfmt::skip]
const WHOLE: &[Case] = &[
    ("concat", |x| concatenate([x.slice(0, 3..), x, x.slice(0, ..5)], 0)),
    ("top_k", |x| x.transpose([1, 0]).top_k(5).0),
    ("places of top_k", |x| x.transpose([1, 0]).top_k(5).1),
    ("sort", |x| x.sort(0)),
    ("argsort", |x| x.argsort(0)),
    ("argsort descending", |x| x.argsort_descending(1)),
    ("argmax", |x| x.argmax(0)),
    ("argmin", |x| x.argmin(1)),
    ("roll", |x| x.roll(5, 0)),
    ("take", |x| x.take(places(21, ROWS), 0)),
    ("scatter", |x| x.scatter(Tensor::constant(&[9i32, 2, 15], [3]), x.slice(0, ..3), 0)),
    ("scatter max", |x| x.scatter_max(places(7, ROWS), x.slice(0, 4..11), 0)),
    ("scatter add", |x| x.scatter_add(places(7, ROWS), x.slice(0, 4..11), 0)),
    ("dynamic slice", |x| x.dynamic_slice(0, start(x.cast(DType::F32), 14), 5)),
    ("dynamic update", |x| x.dynamic_update(0, start(x.cast(DType::F32), 7), x.slice(0, 1..6))),
    ("cumsum", |x| (x % 4).cumsum(0)),
    ("cummax", |x| x.cummax(0)),
    ("reverse", |x| x.reverse([0])),
    ("pad", |x| x.pad(0, 1, 2, 3)),
    ("pad between", |x| x.dilate(0, 2, 1)),
    ("max and min", |x| x.max(0) - x.min(0)),
    ("sum", |x| (x % 4).sum(0)),
    ("bincount", |x| (x % 4).cast(DType::I32).flatten().bincount(5)),
];

#[test]
fn other_types() -> Result<()> {
    const TYPES: [DType; 5] = [DType::BF16, DType::F16, DType::I32, DType::U8, DType::I64];
    let all = |x: Tensor| {
        let x = x.shard(BOTH);
        let of_type = |dtype: &DType| {
            let x = x.cast(*dtype);
            let results = WHOLE.iter().map(|(_, f)| f(x).cast(DType::F64).flatten());
            results.collect::<Vec<_>>()
        };
        TYPES.iter().map(of_type).collect::<Vec<_>>()
    };
    let program = jit(all).xla_option("xla_backend_optimization_level", 0);
    let x: Vec<i32> = (0..ROWS * COLUMNS).map(|i| (i * 37 % 101) as i32).collect();
    let x = Array::from_slice(&x, [ROWS, COLUMNS])?;
    let wanted = program.call(x.clone())?;
    let mut wrong = Vec::new();
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new("data=4,model=2".parse()?).partitioner(partitioner);
        let program = jit(all)
            .layout(&layout)
            .xla_option("xla_backend_optimization_level", 0);
        let found = program.call(x.clone())?;
        for ((dtype, found), wanted) in TYPES.iter().zip(&found).zip(&wanted) {
            for (((name, _), found), wanted) in WHOLE.iter().zip(found).zip(wanted) {
                let (found, wanted) = (numbers(found)?, numbers(wanted)?);
                if found != wanted {
                    wrong.push(format!(
                        "{name} of {dtype}, {partitioner}: {found:?}, not {wanted:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
