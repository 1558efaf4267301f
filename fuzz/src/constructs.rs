//! Loops, branches, batches and rules: statements that contain functions, made up.

use crate::generate::Function;
use crate::operations::Class;
use crate::program::{Action, Block, Construct, Type};
use crate::region;

/// A statement around functions of random values, nested as deep as `depth`.
pub(crate) fn propose(outer: &mut Function<'_>, depth: usize) -> Option<(Action, Vec<usize>)> {
    let construct = match outer.dice.roll(13) {
        0 | 1 => Construct::Remat,
        2 | 3 => return scan(outer, depth),
        4 => Construct::Repeat {
            times: outer.dice.roll(4) as i64,
        },
        5 => Construct::While {
            times: outer.dice.roll(4) as i64,
        },
        6 => Construct::Branch,
        7 => Construct::Switch,
        8 => return batch(outer, depth),
        9 => match outer.dice.once_in(2) {
            true => Construct::Backward,
            false => Construct::Forward,
        },
        10 => Construct::Gradient,
        _ => return region::propose(outer),
    };
    let class = match construct {
        Construct::Backward | Construct::Forward | Construct::Gradient => Class::Float,
        Construct::While { .. } | Construct::Repeat { .. } => Class::Float,
        _ => Class::Any,
    };
    let mut operands = Vec::new();
    if construct == Construct::Switch {
        operands.push(pick(outer, Class::Integer)?);
    }
    for _ in 0..1 + outer.dice.roll(2) {
        operands.push(pick(outer, class)?);
    }
    let arguments = operands.len();
    let captures = match construct {
        // A rule has no derivative by what it captures.
        Construct::Backward | Construct::Forward => Class::Integer,
        _ => Class::Any,
    };
    capture(outer, &mut operands, captures);
    let types: Vec<Type> = operands.iter().map(|&o| outer.types[o].clone()).collect();
    let blocks = match construct {
        Construct::Repeat { .. } | Construct::While { .. } => {
            vec![function(
                outer,
                &operands,
                &types,
                depth,
                Some(&types[..arguments]),
                false,
            )?]
        }
        Construct::Branch | Construct::Switch => {
            let first = function(outer, &operands, &types, depth, None, false)?;
            let wanted = result_types(&first);
            let mut blocks = vec![first];
            let count = match construct {
                Construct::Branch => 2,
                _ => 1 + outer.dice.roll(3),
            };
            while blocks.len() < count {
                blocks.push(function(
                    outer,
                    &operands,
                    &types,
                    depth,
                    Some(&wanted),
                    false,
                )?);
            }
            blocks
        }
        _ => vec![function(outer, &operands, &types, depth, None, false)?],
    };
    let action = Action::Within {
        construct,
        arguments,
        blocks,
    };
    Some((action, operands))
}

fn scan(outer: &mut Function<'_>, depth: usize) -> Option<(Action, Vec<usize>)> {
    let mut operands = vec![pick(outer, Class::Any)?];
    let carries = 1 + usize::from(outer.dice.once_in(3));
    if carries == 2 {
        operands.push(pick(outer, Class::Any)?);
    }
    // What it runs over: values of one leading dimension, of which there is at least one.
    let first = of_rank(outer, 1)?;
    let length = outer.types[first].shape[0];
    operands.push(first);
    let alike = (0..outer.types.len()).filter(|&v| outer.types[v].shape.first() == Some(&length));
    let alike: Vec<usize> = alike.collect();
    if outer.dice.once_in(3) {
        operands.push(*outer.dice.one_of(&alike));
    }
    let arguments = operands.len();
    capture(outer, &mut operands, Class::Any);
    let element = |(i, &o): (usize, &usize)| {
        let mut ty = outer.types[o].clone();
        if (carries..arguments).contains(&i) {
            ty.shape.remove(0);
        }
        ty
    };
    let types: Vec<Type> = operands.iter().enumerate().map(element).collect();
    let more = !outer.dice.once_in(4);
    let body = function(
        outer,
        &operands,
        &types,
        depth,
        Some(&types[..carries]),
        more,
    )?;
    let reverse = outer.dice.once_in(3);
    let construct = Construct::Scan {
        carries,
        length,
        reverse,
    };
    let blocks = vec![body];
    let action = Action::Within {
        construct,
        arguments,
        blocks,
    };
    Some((action, operands))
}

fn batch(outer: &mut Function<'_>, depth: usize) -> Option<(Action, Vec<usize>)> {
    let first = of_rank(outer, 1)?;
    let rank = outer.types[first].rank();
    let axis = outer.dice.roll(rank);
    let size = outer.types[first].shape[axis];
    let mut operands = vec![first];
    let mut axes = vec![Some(axis as isize)];
    if outer.dice.once_in(2) {
        let other = outer.dice.roll(outer.types.len());
        operands.push(other);
        let along = outer.types[other].shape.iter().position(|&s| s == size);
        axes.push(
            along
                .filter(|_| !outer.dice.once_in(3))
                .map(|axis| axis as isize),
        );
    }
    let arguments = operands.len();
    capture(outer, &mut operands, Class::Any);
    let element = |(i, &o): (usize, &usize)| {
        let mut ty = outer.types[o].clone();
        if let Some(Some(axis)) = axes.get(i) {
            ty.shape.remove(*axis as usize);
        }
        ty
    };
    let types: Vec<Type> = operands.iter().enumerate().map(element).collect();
    let body = function(outer, &operands, &types, depth, None, false)?;
    let construct = Construct::Batch { axes };
    let blocks = vec![body];
    let action = Action::Within {
        construct,
        arguments,
        blocks,
    };
    Some((action, operands))
}

/// A function of values of these types; its results are of the wanted types, or these and more.
fn function(
    outer: &mut Function<'_>,
    operands: &[usize],
    types: &[Type],
    depth: usize,
    wanted: Option<&[Type]>,
    more: bool,
) -> Option<Block> {
    // An element of a value is another type than it: the interpreter begins with none of them.
    let known = operands.iter().zip(types);
    let known = known.map(|(&o, ty)| outer.known[o].clone().filter(|_| outer.types[o] == *ty));
    let known = known.collect();
    let mut inner = outer.inner(types.to_vec(), known);
    let length = 1 + inner.dice.roll(3);
    inner.grow(length, depth);
    let mut results = match wanted {
        None => inner.results(),
        Some(wanted) => {
            let mut results = Vec::new();
            for ty in wanted {
                let found = (0..inner.types.len())
                    .rev()
                    .find(|&v| inner.types[v] == *ty);
                results.push(match found {
                    Some(found) => found,
                    None => inner.made(ty.clone())?,
                });
            }
            results
        }
    };
    if more {
        results.extend(inner.results());
    }
    Some(inner.block(results))
}

/// The types of a function's results.
fn result_types(block: &Block) -> Vec<Type> {
    let computed = block.statements.iter().flat_map(|s| &s.types);
    let all: Vec<&Type> = block.parameters.iter().chain(computed).collect();
    block.results.iter().map(|&r| all[r].clone()).collect()
}

/// Adds values that the functions capture.
fn capture(outer: &mut Function<'_>, operands: &mut Vec<usize>, class: Class) {
    for _ in 0..outer.dice.roll(3) {
        if let Some(value) = pick(outer, class) {
            operands.push(value);
        }
    }
}

/// A value of a class.
fn pick(outer: &mut Function<'_>, class: Class) -> Option<usize> {
    let fits = (0..outer.types.len()).filter(|&v| class.has(outer.types[v].dtype));
    let fits: Vec<usize> = fits.collect();
    (!fits.is_empty()).then(|| *outer.dice.one_of(&fits))
}

/// A value that has dimensions.
fn of_rank(outer: &mut Function<'_>, rank: usize) -> Option<usize> {
    let fits = (0..outer.types.len()).filter(|&v| outer.types[v].rank() >= rank);
    let fits: Vec<usize> = fits
        .filter(|&v| !outer.types[v].dtype.is_complex())
        .collect();
    (!fits.is_empty()).then(|| *outer.dice.one_of(&fits))
}
