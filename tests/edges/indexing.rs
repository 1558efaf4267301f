//! Indices that are outside, and indices that are there twice.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{nn, s};

use super::{Edge, check, edge, eight_devices};

/// Where the first updates go: twice to element 0, once to element 1.
fn twice(x: Tensor) -> Tensor {
    x.cast(DType::I32).zeros_like() + Tensor::constant(&[0i32, 0, 1], [3])
}

#[rustfmt::skip]
const DUPLICATES: &[Edge] = &[
    edge("mul", |x| Tensor::ones(x.dtype(), [2]).at(s![twice(x)]).mul(x), &[2., 3., 5.], &[6., 5.], &[3., 2., 1.]),
    edge("mul by zeros", |x| Tensor::ones(x.dtype(), [2]).at(s![twice(x)]).mul(x), &[0., 3., 0.], &[0., 0.], &[3., 0., 1.]),
    edge(
        "mul, of the operand",
        |x| x.at(s![twice(x)]).mul(Tensor::constant(&[2f32, 3.0, 0.0], [3]).cast(x.dtype())),
        &[1., 2., 3.],
        &[6., 0., 3.],
        &[6., 0., 1.],
    ),
    edge("add", |x| x.zeros_like().at(s![twice(x)]).add(x), &[1., 2., 3.], &[3., 3., 0.], &[1., 1., 1.]),
    edge("max, equal ones", |x| Tensor::zeros(x.dtype(), [2]).at(s![twice(x)]).max(x), &[4., 4., -1.], &[4., 0.], &[0.5, 0.5, 0.]),
    edge("min", |x| Tensor::zeros(x.dtype(), [2]).at(s![twice(x)]).min(x), &[-4., 4., -1.], &[-4., -1.], &[1., 0., 1.]),
    edge("a repeated read", |x| x.get(s![twice(x)]).square(), &[2., 3., 5.], &[4., 4., 9.], &[8., 6., 0.]),
];

#[test]
fn duplicates() -> Result<()> {
    check(DUPLICATES)
}

/// Layouts of one device and of eight.
fn layouts() -> Vec<Layout> {
    [vec![Layout::single()], eight_devices()].concat()
}

fn counted(count: usize) -> Result<Array> {
    let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
    Array::from_slice(&values, [count])
}

#[test]
fn windows_move_to_where_they_fit() -> Result<()> {
    for layout in layouts() {
        let program = jit(|x: Tensor, starts: Tensor| {
            let x = x.shard(&[Dim::Logical("batch")]);
            let results = (0..4).map(|i| {
                let start = starts.index(0, i);
                let window = move |x: Tensor| x.dynamic_slice(0, start, 4);
                let gradient = grad(|x: Tensor| window(x).sum(..))(x);
                let updated = x.dynamic_update(0, start, -Tensor::ones(DType::F32, [4]));
                let split = updated.shard(&[Dim::Logical("batch")]);
                (window(x), gradient, split)
            });
            results.collect::<Vec<_>>()
        })
        .layout(&layout);
        let starts = Array::from_slice(&[-5i32, 3, 13, i32::MAX], [4])?;
        let results = program.call((counted(16)?, starts))?;
        for ((window, gradient, updated), start) in results.iter().zip([0usize, 3, 12, 12]) {
            let inside = |i: usize| (start..start + 4).contains(&i);
            let expected: Vec<f32> = (start..start + 4).map(|i| i as f32).collect();
            assert_eq!(window.to_vec::<f32>()?, expected, "{layout}");
            let expected: Vec<f32> = (0..16).map(|i| f32::from(inside(i))).collect();
            assert_eq!(gradient.to_vec::<f32>()?, expected, "{layout}");
            let expected: Vec<f32> = (0..16)
                .map(|i| if inside(i) { -1.0 } else { i as f32 })
                .collect();
            assert_eq!(updated.to_vec::<f32>()?, expected, "{layout}");
        }
    }
    Ok(())
}

#[test]
fn an_id_outside_of_the_table_is_no_other_row() -> Result<()> {
    for layout in layouts() {
        let program = jit(|table: Tensor, ids: Tensor| {
            let table = table
                .reshape([16, 1])
                .shard(&[Dim::Logical("batch"), Dim::Unsharded]);
            let read = |table: Tensor| {
                [
                    nn::embedding(ids, table),
                    nn::embedding_one_hot(ids, table),
                    table.take(ids, 0),
                    table.get(s![ids]),
                ]
            };
            let loss = |table: Tensor| {
                let found = read(table);
                let counted = found.map(|rows| rows.is_nan().select(0, rows).sum(..));
                counted[0] + counted[1] + counted[2] + counted[3]
            };
            let written = table.at(s![ids]).set(-1.0).squeeze(1);
            (read(table), grad(loss)(table), written)
        })
        .layout(&layout);
        let ids = Array::from_slice(&[3i32, 15, 16, -1, i32::MAX, i32::MIN], [6])?;
        let (read, gradient, written) = program.call((counted(16)?, ids))?;
        for rows in read {
            let rows = rows.to_vec::<f32>()?;
            assert_eq!(rows[..2], [3.0, 15.0], "{layout}");
            assert!(
                rows[2..].iter().all(|row| row.is_nan()),
                "{layout}: {rows:?}"
            );
        }
        let at = |i: usize| [3, 15].contains(&i);
        let expected: Vec<f32> = (0..16).map(|i| if at(i) { 4.0 } else { 0.0 }).collect();
        assert_eq!(gradient.to_vec::<f32>()?, expected, "{layout}");
        let expected: Vec<f32> = (0..16)
            .map(|i| if at(i) { -1.0 } else { i as f32 })
            .collect();
        assert_eq!(written.to_vec::<f32>()?, expected, "{layout}");
    }
    Ok(())
}

#[test]
fn outside_of_integers_and_of_classes() -> Result<()> {
    let program = jit(|signed: Tensor, ids: Tensor| {
        let unsigned = signed.cast(DType::U8);
        let read = [signed.take(ids, 0), unsigned.take(ids, 0).cast(DType::I32)];
        (read, ids.one_hot(3, DType::I32))
    });
    let ids = Array::from_slice(&[2i32, 3, -1], [3])?;
    let ([signed, unsigned], one_hot) =
        program.call((Array::from_slice(&[5i32, 6, 7], [3])?, ids))?;
    assert_eq!(signed.to_vec::<i32>()?, [7, i32::MIN, i32::MIN]);
    assert_eq!(unsigned.to_vec::<i32>()?, [7, 0, 0]);
    assert_eq!(one_hot.to_vec::<i32>()?, [0, 0, 1, 0, 0, 0, 0, 0, 0]);
    Ok(())
}
