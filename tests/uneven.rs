//! Dimensions that the mesh does not divide. What a layout says of one is an error; what XLA pads
//! inside of a program must not be seen in a result.

use shardax::Partitioner;
use shardax::prelude::*;
use shardax::xla::Result;

const ROWS: usize = 17;

/// Columns that a zero row would change: all negative, all positive, mixed, and far from 1.
fn input() -> Array {
    let value = |i: usize| {
        let (row, column) = ((i / 4) as f32, i % 4);
        match column {
            0 => -1.5 - row / 7.0,
            1 => 2.5 + row / 3.0,
            2 => ((row * 37.0) % 11.0) - 5.0,
            _ => 1.0 + row / 64.0,
        }
    };
    let values: Vec<f32> = (0..16 * 4).map(value).collect();
    Array::from_slice(&values, [16, 4]).unwrap()
}

/// 17 rows, of which the partitioner knows that those they are made of lie split.
#[shard]
fn rows(#[shard(batch, _)] x: Tensor) -> Tensor {
    concatenate([x, x.get(s![3..4]) - 0.25], 0)
}

fn reductions(x: Tensor) -> Vec<Tensor> {
    let x = rows(x);
    let target = x.get(s![.., 2]);
    vec![
        x.mean(0),
        x.mean(..),
        x.max(0),
        x.min(0),
        x.prod(0),
        x.square().sum(0).sqrt(),
        x.var(0),
        x.softmax(0),
        x.log_softmax(0),
        x.logsumexp(0),
        x.sort(0),
        x.argmax(0).cast(DType::F32),
        x.argmin(0).cast(DType::F32),
        x.cumsum(0),
        (x - target.mean(..)).abs().mean(..),
        x.dot(x.transpose([1, 0])).sum(1),
    ]
}

fn gradient(x: Tensor) -> Tensor {
    grad(|x: Tensor| {
        let x = rows(x);
        (x.softmax(0) * x).mean(..) + x.max(0).sum(..) + x.square().sum(0).sqrt().mean(..)
    })(x)
}

fn layouts() -> impl Iterator<Item = Layout> {
    [Partitioner::Shardy, Partitioner::Gspmd]
        .into_iter()
        .map(|partitioner| {
            let mesh = Mesh::new([("data", 8)]).unwrap();
            Layout::new(mesh)
                .shard("batch", "data")
                .partitioner(partitioner)
        })
}

#[test]
fn padding_is_not_seen() -> Result<()> {
    let whole = jit(reductions).call(input())?;
    let whole_gradient = jit(gradient).call(input())?.to_vec::<f32>()?;
    for layout in layouts() {
        let function = jit(reductions).layout(&layout);
        let program = function.compile(input().ty().clone())?;
        // It is the case that is meant: no device has more than 3 of the 17 rows.
        let hlo = program.optimized_hlo()?;
        assert!(
            hlo.contains("f32[3,4]"),
            "nothing is split unevenly:\n{hlo}"
        );
        for (i, (one, all)) in whole.iter().zip(function.call(input())?).enumerate() {
            close(
                &format!("result {i}"),
                &one.to_vec::<f32>()?,
                &all.to_vec::<f32>()?,
            );
        }
        let split = jit(gradient).layout(&layout).call(input())?;
        close("gradient", &whole_gradient, &split.to_vec::<f32>()?);
    }
    Ok(())
}

fn close(what: &str, one: &[f32], all: &[f32]) {
    assert_eq!(one.len(), all.len());
    for (a, b) in one.iter().zip(all) {
        assert!(
            (a - b).abs() <= 2e-6 * a.abs().max(1.0),
            "{what}: {a} on one device, {b} on eight"
        );
    }
}

#[test]
fn an_annotation_that_does_not_divide_is_an_error() {
    #[shard]
    fn annotated(#[shard(batch, _)] x: Tensor) -> Tensor {
        #[shard(batch, _)]
        let more = concatenate([x, x.get(s![0..1])], 0);
        more.mean(..)
    }
    for layout in layouts() {
        let error = jit(annotated).layout(&layout).call(input());
        let text = error.map(|_| ()).unwrap_err().to_string();
        let (head, tail) = text.split_once("\n    --> ").unwrap_or((&text, ""));
        assert_eq!(
            head,
            format!(
                "the layout does not fit the program:\
                 \n  a value f32[{ROWS},4] annotated (batch, _): dimension 0 (`batch`) of size {ROWS} is not divisible by data=8: make \
                 the size a multiple of 8, choose mesh sizes that divide {ROWS}, or remove the rule for \
                 `batch`"
            )
        );
        assert!(tail.contains("uneven.rs"), "{text}");
    }
}
