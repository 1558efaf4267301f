//! Random programs compute on eight devices, under random annotations and with either partitioner,
//! what they compute on one: values, gradients, batches, loops and branches.
//!
//! Programs are f64, so that an error in one element is not lost in rounding. Many are compiled as
//! one, for compiling is what takes the time.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{associative_scan, cond, vmap};

use super::{Dice, rounds};

/// Every value of a program has this shape: its dimensions divide by all axes of the mesh.
const SHAPE: [usize; 2] = [8, 16];

#[derive(Clone, Debug)]
enum Step {
    Apply(usize, usize, usize),
    Annotate(usize, usize),
    Scan(Vec<Step>, usize),
    Branch(Vec<Step>, Vec<Step>, usize),
    Batch(Vec<Step>, usize),
    Remat(Vec<Step>, usize),
}

const OPERATIONS: [fn(Tensor, Tensor) -> Tensor; 30] = [
    |a, b| a * b,
    |a, b| (a + b).sin(),
    |a, b| a.maximum(b),
    |a, b| a.gt(b).select(a, b * 0.5),
    |a, b| a.softmax(-1) * b,
    |a, b| a.softmax(0) + b * 0.5,
    |a, b| a.dot(b.transpose([1, 0])).dot(b) / 100.0,
    |a, b| einsum("ij,kj->ik", [a, b]).dot(a) / 50.0,
    |a, b| a - b.mean(0),
    |a, b| a * b.sum(1).expand_dims(1) * 0.1,
    |a, b| a.max(1).expand_dims(1) - b.min(0),
    |a, b| concatenate([b.slice(1, 5..), a.slice(1, ..5)], 1),
    |a, b| concatenate([a.slice(0, 3..), b.slice(0, ..3)], 0),
    |a, b| a.slice(0, 1..).pad(0, 1, 0, 0.5) * b.reverse([0, 1]),
    |a, b| a.transpose([1, 0]).reshape([8, 16]) + b,
    |a, b| {
        a.reshape([4, 2, 16])
            .sum(1)
            .reshape([4, 1, 16])
            .broadcast_to([4, 2, 16])
            .reshape([8, 16])
            * b
    },
    |a, b| a.take(Tensor::constant(&[5i32, 0, 7, 7, 2, 1, 3, 0], [8]), 0) * b,
    |a, b| a.take(a.argmax(1) % 8, 0) + b,
    |a, b| a.take_along(b.argmax(1).expand_dims(1), 1) * b,
    |a, b| a.scatter_add(b.argmax(1), b, 0) * 0.3,
    |a, b| {
        a.dynamic_slice(1, b.argmax(1).max(0), 4)
            .mean(1)
            .expand_dims(1)
            * b
    },
    |a, b| a.dynamic_update(0, b.argmax(0).index(0, 3), b.slice(0, 2..4)),
    |a, b| a.tril(1) + b.exp() * 0.1,
    |a, b| (a.logsumexp(1).expand_dims(1) - b).tanh(),
    |a, b| a.cumsum(0) * 0.2 + b.cumsum_reverse(1) * 0.1,
    |a, b| (a * 0.5).cumprod_reverse(1) * b,
    |a, b| a.cummax(1) - b.cummin_reverse(0),
    |a, b| (a.cumlogsumexp(1) - b).tanh(),
    |a, b| states((a.sin(), b)).1 * 0.2,
    |a, b| concatenate([a.slice(0, 1..), b.slice(0, ..1)], 0),
];

/// The states of `h[i] = a[i] h[i + 1] + b[i]`.
fn states(rows: (Tensor, Tensor)) -> (Tensor, Tensor) {
    let then = |(a, b): (Tensor, Tensor), (c, d): (Tensor, Tensor)| (a * c, b * c + d);
    associative_scan(then, rows, 0, true)
}

/// Annotations of a value over the axes `a` (2) and `b` (4).
const ANNOTATIONS: [[Dim; 2]; 8] = [
    [Dim::Mesh(&["a"]), Dim::Unsharded],
    [Dim::Unsharded, Dim::Mesh(&["b"])],
    [Dim::Mesh(&["a"]), Dim::Mesh(&["b"])],
    [Dim::Mesh(&["b"]), Dim::Mesh(&["a"])],
    [Dim::Mesh(&["a", "b"]), Dim::Unsharded],
    [Dim::Unsharded, Dim::Mesh(&["b", "a"])],
    [Dim::Unsharded, Dim::Unsharded],
    [Dim::Open, Dim::Mesh(&["a"])],
];

fn steps(dice: &mut Dice, count: usize, depth: usize) -> Vec<Step> {
    (0..count)
        .map(|_| {
            let kind = if depth == 0 {
                dice.roll(9)
            } else {
                dice.roll(16)
            };
            let at = dice.roll(16);
            match kind {
                0..7 => Step::Apply(dice.roll(OPERATIONS.len()), at, dice.roll(16)),
                7..12 => Step::Annotate(dice.roll(ANNOTATIONS.len()), at),
                12 => Step::Scan(steps(dice, 2, depth - 1), at),
                13 => Step::Branch(steps(dice, 2, depth - 1), steps(dice, 1, depth - 1), at),
                14 => Step::Batch(steps(dice, 2, depth - 1), at),
                _ => Step::Remat(steps(dice, 3, depth - 1), at),
            }
        })
        .collect()
}

fn run(steps: &[Step], inputs: [Tensor; 2]) -> Tensor {
    let mut values = inputs.to_vec();
    for step in steps {
        let at = |i: &usize| values[i % values.len()];
        let next = match step {
            Step::Apply(op, a, b) => OPERATIONS[*op](at(a), at(b)) * 0.9,
            Step::Annotate(of, a) => at(a).shard(&ANNOTATIONS[*of]) * 1.1,
            Step::Scan(steps, a) => {
                let other = inputs[1];
                let body = |h: Tensor, i: Tensor| {
                    let next = run(steps, [h, other / (i + 2).cast(DType::F64)]);
                    (next, next.sum(0))
                };
                let (last, sums) = scan(at(a), Tensor::arange(DType::I32, 3), body);
                last + sums.mean(0) * 0.1
            }
            Step::Branch(yes, no, a) => {
                let x = at(a);
                let f = |steps: &[Step]| {
                    let steps = steps.to_vec();
                    move |x: Tensor| run(&steps, [x, x])
                };
                cond(x.sum(..).gt(0.0), x, f(yes), f(no))
            }
            Step::Batch(steps, a) => {
                let stacked = at(a).expand_dims(0) * Tensor::constant(&[1.0, -0.5], [2, 1, 1]);
                let other = inputs[0];
                vmap(|x: Tensor| run(steps, [x, other]))(stacked).mean(0)
            }
            Step::Remat(steps, a) => {
                let other = inputs[1];
                remat(|x: Tensor| run(steps, [x, other]))(at(a))
            }
        };
        values.push(next);
    }
    // A bounded result, so that long programs do not grow out of every tolerance.
    (values[values.len() - 1] + values[values.len() / 2]).tanh()
}

fn input(seed: usize) -> Array {
    let mut dice = Dice(seed as u64);
    let values: Vec<f64> = (0..SHAPE.iter().product::<usize>())
        .map(|_| dice.roll(2001) as f64 / 1000.0 - 1.0)
        .collect();
    Array::from_slice(&values, SHAPE).unwrap()
}

/// Values and gradients of all programs.
fn results(programs: &[Vec<Step>], layout: &Layout) -> Result<Vec<Vec<f64>>> {
    let all = |x: Tensor, y: Tensor| {
        let of = |steps: &Vec<Step>| {
            let loss = |(x, y): (Tensor, Tensor)| {
                let value = run(steps, [x, y]);
                (value.square().mean(..), value)
            };
            let ((_, value), gradients) = value_and_grad(loss)((x, y));
            (value, gradients)
        };
        programs.iter().map(of).collect::<Vec<_>>()
    };
    let found = jit(all).layout(layout).call((input(1), input(2)))?;
    let mut arrays = Vec::new();
    for (value, (dx, dy)) in found {
        for array in [value, dx, dy] {
            arrays.push(array.to_vec::<f64>()?);
        }
    }
    Ok(arrays)
}

/// Programs in one compilation.
const TOGETHER: usize = 6;

#[test]
fn random_programs_under_random_annotations_equal_one_device() -> Result<()> {
    let single = Layout::new(Mesh::new([("a", 1), ("b", 1)])?);
    for round in rounds(4) {
        let programs: Vec<Vec<Step>> = (0..TOGETHER)
            .map(|i| steps(&mut Dice((round * TOGETHER + i) as u64), 9, 2))
            .collect();
        let wanted = results(&programs, &single)?;
        // The partitioners take turns, so that both see as many programs as time allows.
        let partitioner = match round % 2 {
            0 => Partitioner::Shardy,
            _ => Partitioner::Gspmd,
        };
        let mesh = Mesh::new([("a", 2), ("b", 4)])?;
        let layout = Layout::new(mesh).partitioner(partitioner);
        let found = results(&programs, &layout)?;
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            assert!(
                found.iter().zip(wanted).all(close),
                "result {} of {:?} under {partitioner:?}\n{found:?}\n{wanted:?}",
                i % 3,
                programs[i / 3]
            );
        }
    }
    Ok(())
}
