//! Shifts along a dimension that two axes split, met by the unshifted value, under results that lie otherwise.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{Pool, s};

/// A function that moves elements along the first dimension.
type Shift = (&'static str, fn(Tensor) -> Tensor);

const SHIFTS: &[Shift] = &[
    ("concatenate", |x| {
        let first = Tensor::zeros(x.dtype(), [1, x.shape()[1]]);
        concatenate([first, x.get(s![..-1])], 0)
    }),
    ("concatenate behind", |x| {
        concatenate([x.get(s![1..]), x.get(s![..1])], 0)
    }),
    ("pad", |x| x.get(s![..-1]).pad(0, 1, 0, 0)),
    ("pad behind", |x| x.get(s![2..]).pad(0, 0, 2, 0)),
    ("roll", |x| x.roll(1, 0)),
    ("roll far", |x| x.roll(-3, 0)),
    ("cumsum", |x| x.cumsum(0)),
    ("reversed", |x| x.flip(0)),
    ("cumsum from behind", |x| x.flip(0).cumsum(0).flip(0)),
    ("differences", |x| {
        (x.get(s![1..]) - x.get(s![..-1])).pad(0, 1, 0, 0)
    }),
    ("interior", |x| {
        let wide = x.get(s![..8]).reshape([8, 1, 8]).pad(1, 0, 1, 0);
        wide.reshape([16, 8])
    }),
    ("three parts", |x| {
        concatenate([x.get(s![4..8]), x.get(s![..4]), x.get(s![8..])], 0)
    }),
    ("shorter", |x| x.get(s![1..])),
    ("second differences", |x| {
        x.get(s![2..]) - x.get(s![1..-1]) * 2.0
    }),
    ("update", |x| x.at(s![1..5]).set(x.get(s![..4]))),
];

/// How the result of a program is annotated.
const RESULTS: &[[&[&str]; 2]] = &[
    [&[], &["data"]],
    [&[], &["model"]],
    [&["model"], &["data"]],
    [&[], &["data", "model"]],
];

const SOURCES: &[[&[&str]; 2]] = &[[&["data", "model"], &[]], [&["model", "data"], &[]]];

fn split(x: Tensor, [rows, columns]: [&'static [&'static str]; 2]) -> Tensor {
    x.shard(&[Dim::Mesh(rows), Dim::Mesh(columns)])
}

/// Meets what was not shifted, and lies as told where that is possible.
fn met(x: Tensor, shift: fn(Tensor) -> Tensor, to: Option<[&'static [&'static str]; 2]>) -> Tensor {
    let shifted = shift(x);
    let rows = shifted.shape()[0];
    let met = (x.get(s![..rows]) + shifted) * 2.0;
    match to {
        Some(to) if to[0].is_empty() || rows == x.shape()[0] => split(met, to),
        _ => met,
    }
}

#[test]
fn shifts_meet_what_was_not_shifted() -> Result<()> {
    let values: Vec<f32> = (0..16 * 8).map(|i| ((i * 7) % 23) as f32).collect();
    let x = Array::from_slice(&values, [16, 8])?;
    let mesh: Mesh = "data=2,model=4".parse().unwrap();
    let all = |x: Tensor, source: Option<_>, result| -> Vec<Tensor> {
        let met = SHIFTS
            .iter()
            .map(|(_, shift)| met(source.map_or(x, |source| split(x, source)), *shift, result));
        met.collect()
    };
    let numbers = |arrays: Vec<Array>| -> Result<Vec<Vec<f32>>> {
        arrays.iter().map(|array| array.to_vec()).collect()
    };
    let plain = numbers(jit(|x: Tensor| all(x, None, None)).call(x.clone())?)?;
    let mut wrong = Vec::new();
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new(mesh.clone()).partitioner(partitioner);
        for &source in SOURCES {
            for &result in RESULTS {
                let program = jit(|x: Tensor| all(x, Some(source), Some(result))).layout(&layout);
                let place = format!("{source:?} to {result:?}, {partitioner}");
                match program.call(x.clone()) {
                    Err(error) => wrong.push(format!("{place}: {error}")),
                    Ok(found) => {
                        let found = numbers(found)?;
                        let pairs = SHIFTS.iter().zip(found.iter().zip(&plain));
                        let pairs = pairs.filter(|(_, (found, plain))| found != plain);
                        wrong.extend(pairs.map(|((name, _), _)| format!("{name}: {place}")));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Steps over more than what a device has.
#[test]
fn slices_with_steps() -> Result<()> {
    let values: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let x = Array::from_slice(&values, [8, 4])?;
    let all = |x: Tensor| {
        let (rows, columns) = (x.shard(ROWS) * 1.0, x.shard(COLUMNS) * 1.0);
        let pool = Pool::new([0], [2]).strides([3]);
        let pooled = |x: Tensor| jvp(|x: Tensor| x.max_pool(&pool), x, x * 0.0 + 1.0).1;
        let steps = [rows.get(s![..;2]), rows.get(s![1..;3]), rows.get(s![..;5])];
        let over = [columns.get(s![.., ..;3]), columns.get(s![.., 1..;2])];
        let pooled = [pooled(rows), pooled(columns.transpose([1, 0]))];
        [&steps[..], &over, &pooled].concat()
    };
    const ROWS: &[Dim] = &[Dim::Mesh(&["a", "b"]), Dim::Unsharded];
    const COLUMNS: &[Dim] = &[Dim::Unsharded, Dim::Mesh(&["b"])];
    let wanted = jit(all).call(x.clone())?;
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = Layout::new("a=2,b=4".parse().unwrap()).partitioner(partitioner);
        let found = jit(all).layout(&layout).call(x.clone())?;
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let [found, wanted] = [found, wanted].map(Array::to_vec::<f32>);
            assert_eq!(found?, wanted?, "{partitioner}, result {i}");
        }
    }
    Ok(())
}
