//! Manual regions, made up: what values have inside of one is known only there.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::{Tensor, TensorType, trace, under};

use crate::generate::{Function, splits_over};
use crate::program::Place;
use crate::program::{AXES, Action, Block, Construct, Split, Statement, Type};
use crate::run;

/// A region that is being written.
#[derive(Clone, Debug)]
pub struct Region {
    /// The axes, by number.
    pub axes: Vec<usize>,
    /// How each argument is cut into blocks.
    pub inputs: Vec<Vec<Split>>,
    /// The types of its arguments and of what it captures.
    pub outside: Vec<Type>,
}

impl Region {
    /// The types of all values in it, and the axes over which they may differ; `None` if Shardax does
    /// not take the statements.
    pub fn values(
        &self,
        statements: &[Statement],
        place: &Place,
    ) -> Option<Vec<(Type, Vec<usize>)>> {
        let seen = RefCell::new(Vec::new());
        let outside: Vec<TensorType> = self.outside.iter().map(TensorType::from).collect();
        let written = |x: Vec<Tensor>| {
            let (given, captured) = x.split_at(self.inputs.len());
            let names: Vec<&str> = self.axes.iter().map(|&axis| AXES[axis]).collect();
            let inputs = self.inputs.iter().map(|splits| run::spec(splits)).collect();
            let f = |x: Vec<Tensor>| {
                let mut values = [&x, captured].concat();
                for statement in statements {
                    let operands = statement.operands.iter().map(|&o| values[o]);
                    let operands: Vec<Tensor> = operands.collect();
                    values.extend(run::statement(statement, &operands));
                }
                *seen.borrow_mut() = values.iter().map(|value| value.ty()).collect();
                Vec::<Tensor>::new()
            };
            let none = shardax::Leaves(Vec::new());
            shardax::manual(names, shardax::Leaves(inputs), none, f)(given.to_vec())
        };
        let layout = run::layout(place).ok()?;
        let traced = catch_unwind(AssertUnwindSafe(|| {
            under(&layout, || trace(written, outside))
        }));
        traced.ok()?.ok()?;
        let varying = |ty: &TensorType| {
            let axes = self.axes.iter().copied();
            axes.filter(|&axis| ty.varying.contains(AXES[axis]))
                .collect()
        };
        let seen = seen.into_inner();
        Some(
            seen.iter()
                .map(|ty| (Type::from(ty), varying(ty)))
                .collect(),
        )
    }
}

/// A statement that is a region.
pub(crate) fn propose(outer: &mut Function<'_>) -> Option<(Action, Vec<usize>)> {
    let all: Vec<usize> = (0..outer.place.mesh.len()).collect();
    let mut axes = outer.dice.shuffled(&all);
    if !outer.place.gspmd {
        // GSPMD takes regions over all axes alone.
        axes.truncate(1 + outer.dice.roll(axes.len()));
    }
    let fits: Vec<usize> = (0..outer.types.len())
        .filter(|&v| !outer.types[v].dtype.is_complex())
        .collect();
    if fits.is_empty() {
        return None;
    }
    let arguments = 1 + outer.dice.roll(2);
    let operands = (0..arguments + outer.dice.roll(2)).map(|_| *outer.dice.one_of(&fits));
    let operands: Vec<usize> = operands.collect();
    let outside: Vec<Type> = operands.iter().map(|&o| outer.types[o].clone()).collect();
    let place = outer.place;
    let whole = |splits: Vec<Split>| -> Vec<Split> {
        let closed = splits.into_iter();
        closed
            .map(|split| {
                if split == Split::Open {
                    Split::Whole
                } else {
                    split
                }
            })
            .collect()
    };
    let inputs = outside[..arguments].iter();
    let inputs = inputs.map(|ty| whole(splits_over(outer.dice, place, &axes, &ty.shape)));
    let region = Region {
        axes: axes.clone(),
        inputs: inputs.collect(),
        outside,
    };
    let inputs = region.inputs.clone();
    let (blocks, outputs) = body(&mut outer.in_region(region)?)?;
    let construct = Construct::Region {
        axes,
        inputs,
        outputs,
    };
    let action = Action::Within {
        construct,
        arguments,
        blocks,
    };
    Some((action, operands))
}

/// The function of a region, and how its results are put together.
fn body(inner: &mut Function<'_>) -> Option<(Vec<Block>, Vec<Vec<Split>>)> {
    let length = 1 + inner.dice.roll(4);
    inner.grow(length, 1);
    let (mut results, mut outputs) = (Vec::new(), Vec::new());
    for value in (0..inner.types.len()).rev() {
        let (rank, varying) = (inner.types[value].rank(), inner.varying[value].clone());
        if rank == 0 && !varying.is_empty() {
            continue;
        }
        let mut splits = vec![Split::Whole; rank];
        if !varying.is_empty() {
            splits[inner.dice.roll(rank)] = Split::Axes(varying);
        }
        results.push(value);
        outputs.push(splits);
        if results.len() == 2 || inner.dice.once_in(2) {
            break;
        }
    }
    (!results.is_empty()).then(|| (vec![inner.block(results)], outputs))
}
