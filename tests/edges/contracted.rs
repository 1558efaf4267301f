//! Products of which operands and result want one axis for different dimensions.

use shardax::nn;
use shardax::prelude::*;
use shardax::xla::Result;

type Split = &'static [&'static str];

/// Operands of 3 and 2 dimensions and the result: some of those whose blocks XLA puts in another order.
const WANTED: &[([Split; 3], [Split; 2], [Split; 3])] = &[
    (
        [&["c"], &[], &["a"]],
        [&["a"], &["b", "c"]],
        [&[], &["a"], &["b", "c"]],
    ),
    (
        [&[], &["b"], &["c"]],
        [&["c"], &["b", "a"]],
        [&["a", "b"], &["c"], &[]],
    ),
    (
        [&["c"], &["b"], &["a"]],
        [&["a"], &["b"]],
        [&["b", "c"], &[], &["a"]],
    ),
    (
        [&["b"], &[], &["c"]],
        [&["c"], &["b"]],
        [&[], &["a", "b"], &["c"]],
    ),
    (
        [&["c"], &[], &["a"]],
        [&["a"], &["b"]],
        [&["a"], &["b", "c"], &[]],
    ),
    (
        [&[], &[], &["c"]],
        [&["c"], &[]],
        [&["c"], &["b", "a"], &[]],
    ),
];

const PARTITIONERS: [Partitioner; 2] = [Partitioner::Shardy, Partitioner::Gspmd];

fn layout(partitioner: Partitioner) -> Layout {
    let mesh = "a=2,b=2,c=2".parse().unwrap();
    Layout::new(mesh).partitioner(partitioner)
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 37 % 11) as f32).collect()
}

#[test]
fn results_lie_as_annotated() -> Result<()> {
    let x = Array::from_slice(&numbers(512), [8, 8, 8])?;
    let y = Array::from_slice(&numbers(64), [8, 8])?;
    let wanted = jit(|x: Tensor, y: Tensor| x.dot(y)).call((x.clone(), y.clone()))?;
    for partitioner in PARTITIONERS {
        let all = |x: Tensor, y: Tensor| {
            let product = |(lhs, rhs, result): &([Split; 3], [Split; 2], [Split; 3])| {
                let [x, y] = [x.shard(&lhs.map(Dim::Mesh)), y.shard(&rhs.map(Dim::Mesh))];
                x.dot(y).shard(&result.map(Dim::Mesh))
            };
            WANTED.iter().map(product).collect::<Vec<_>>()
        };
        let found = jit(all)
            .layout(&layout(partitioner))
            .call((x.clone(), y.clone()))?;
        for (found, of) in found.iter().zip(WANTED) {
            assert_eq!(
                found.to_vec::<f32>()?,
                wanted.to_vec::<f32>()?,
                "{partitioner}: {of:?}"
            );
        }
    }
    Ok(())
}

/// Rows that are split over an axis of the tokens, whose result the partitioner puts where its mask is.
#[test]
fn rows_are_gathered_where_tokens_are_split() -> Result<()> {
    let lookup = |table: Tensor, tokens: Tensor| {
        let table = table.shard(&[Dim::Mesh(&["a"]), Dim::Mesh(&["b", "c"])]);
        nn::embedding_one_hot(tokens.shard(&[Dim::Mesh(&["c"]), Dim::Mesh(&["a"])]), table)
    };
    let table = Array::from_slice(&numbers(16), [2, 8])?;
    let tokens = Array::from_slice(&[1, 0, 1, 1, 0, 1, 0, 0], [4, 2])?;
    let wanted = jit(lookup).call((table.clone(), tokens.clone()))?;
    for partitioner in PARTITIONERS {
        let lookup = jit(lookup).layout(&layout(partitioner));
        let found = lookup.call((table.clone(), tokens.clone()))?;
        assert_eq!(
            found.to_vec::<f32>()?,
            wanted.to_vec::<f32>()?,
            "{partitioner}"
        );
    }
    Ok(())
}
