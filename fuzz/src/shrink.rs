//! How a program that fails becomes a small one that fails in the same way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use shardax::{Layout, Tensor, TensorType, trace, under};

use crate::check::{Failure, Kind};
use crate::cut::{resized, smaller, without_parameter, without_unused};
use crate::program::{Action, Also, Block, Form, Place, Program, Split, Type};
use crate::run;

/// The smallest program found within a time whose failure, by `check`, is the same; and that failure.
pub fn shrink(
    program: &Program,
    failure: &Failure,
    within: Duration,
    mut check: impl FnMut(&Program) -> Option<Failure>,
) -> (Program, Failure) {
    let started = Instant::now();
    let (mut best, mut why) = (program.clone(), failure.clone());
    let steps: [fn(&Program) -> Candidates<'_>; 6] =
        [bodies, forms, inputs, places, sizes, numbers];
    loop {
        let mut smaller = false;
        for step in steps {
            // What was no smaller program before the last cut is not likely to be one after it.
            let mut tried = 0;
            loop {
                let mut found = None;
                let of = best.clone();
                for candidate in step(&of).skip(tried) {
                    if started.elapsed() > within {
                        return (best, why);
                    }
                    if candidate != best
                        && let Some(failure) = check(&candidate).filter(|f| is_same(&why, f))
                    {
                        found = Some((candidate, failure));
                        break;
                    }
                    tried += 1;
                }
                let Some(found) = found else { break };
                (best, why) = found;
                smaller = true;
            }
        }
        if !smaller {
            return (best, why);
        }
    }
}

/// Programs that may fail like another one, made when they are asked for.
type Candidates<'a> = Box<dyn Iterator<Item = Program> + 'a>;

/// Whether a failure is likely to have the same cause.
fn is_same(a: &Failure, b: &Failure) -> bool {
    let begins = |failure: &Failure| -> String { failure.message.chars().take(24).collect() };
    match a.kind {
        Kind::Refused | Kind::Panic => a.kind == b.kind && begins(a) == begins(b),
        _ => a.kind == b.kind,
    }
}

fn bodies(program: &Program) -> Candidates<'_> {
    let blocks = smaller(&program.body);
    let with = |body| Program {
        body,
        ..program.clone()
    };
    Box::new(blocks.into_iter().map(with))
}

fn forms(program: &Program) -> Candidates<'_> {
    let with = |form| Program {
        form,
        ..program.clone()
    };
    let mut all = match &program.form {
        Form::Values => vec![],
        Form::Gradient | Form::Forward => vec![with(Form::Values)],
        Form::Second => vec![with(Form::Values), with(Form::Gradient)],
        Form::Batch { mapped, .. } => {
            // The first element of each.
            let mut single = with(Form::Values);
            for (input, _) in single.inputs.iter_mut().zip(mapped).filter(|(_, m)| **m) {
                input.ty.shape.remove(0);
                input.values.truncate(input.ty.count());
                input.split = None;
            }
            vec![single]
        }
    };
    if program.also != Also::Nothing {
        let also = Also::Nothing;
        all.push(Program {
            also,
            ..program.clone()
        });
    }
    Box::new(all.into_iter())
}

/// Without inputs that nobody reads.
fn inputs(program: &Program) -> Candidates<'_> {
    let body = without_unused(program.body.clone());
    let without = move |input: usize| {
        if program.inputs.len() < 2 {
            return None;
        }
        let mut smaller = program.clone();
        smaller.body = without_parameter(&body, input)?;
        smaller.inputs.remove(input);
        if let Form::Batch { mapped, .. } = &mut smaller.form {
            mapped.remove(input);
            mapped.iter().any(|m| *m).then_some(())?;
        }
        Some(smaller)
    };
    Box::new((0..program.inputs.len()).filter_map(without))
}

/// Fewer devices, fewer annotations.
fn places(program: &Program) -> Candidates<'_> {
    let mut all = Vec::new();
    for i in 0..program.inputs.len() {
        if program.inputs[i].split.is_some() {
            let mut smaller = program.clone();
            smaller.inputs[i].split = None;
            all.push(smaller);
        }
        for d in 0..program.inputs[i].split.as_ref().map_or(0, Vec::len) {
            let mut smaller = program.clone();
            if let Some(splits) = &mut smaller.inputs[i].split {
                splits[d] = Split::Whole;
                all.push(smaller);
            }
        }
    }
    let meshes = (0..program.place.mesh.len()).rev().map(|axis| {
        let mut mesh = program.place.mesh.clone();
        mesh[axis] = 1;
        while mesh.len() > 1 && mesh.last() == Some(&1) {
            mesh.pop();
        }
        mesh
    });
    let halves = program
        .place
        .mesh
        .iter()
        .map(|s| if *s > 2 { s / 2 } else { *s });
    for mesh in meshes.chain([halves.collect()]) {
        let place = Place {
            mesh,
            ..program.place.clone()
        };
        all.push(Program {
            place,
            ..program.clone()
        });
    }
    if program.place.gspmd {
        let mut other = program.clone();
        other.place.gspmd = false;
        all.push(other);
    }
    Box::new(all.into_iter())
}

/// Smaller dimensions.
fn sizes(program: &Program) -> Candidates<'_> {
    let mut sizes: Vec<usize> = program
        .inputs
        .iter()
        .flat_map(|i| i.ty.shape.clone())
        .collect();
    crate::program::visit(&program.body, &mut |statement| {
        sizes.extend(statement.types.iter().flat_map(|ty| ty.shape.clone()));
    });
    sizes.sort();
    sizes.dedup();
    sizes.retain(|&size| size > 1);
    let pairs = sizes
        .into_iter()
        .flat_map(|from| [(from, 1), (from, from / 2), (from, from - 1)]);
    Box::new(pairs.filter_map(|(from, to)| with_size(program, from, to)))
}

fn with_size(program: &Program, from: usize, to: usize) -> Option<Program> {
    let mut smaller = program.clone();
    smaller.body = resized(&program.body, from, to);
    for input in &mut smaller.inputs {
        let old = input.ty.clone();
        for size in &mut input.ty.shape {
            if *size == from {
                *size = to;
            }
        }
        input.values = corner(&old, &input.ty, &input.values);
    }
    if let Form::Batch { size, .. } = &mut smaller.form
        && *size == from
    {
        *size = to;
    }
    retyped(&mut smaller.body, &program.place)?;
    Some(smaller)
}

/// The first elements along each dimension.
fn corner(old: &Type, new: &Type, values: &[f64]) -> Vec<f64> {
    let at = |mut position: usize| {
        let (mut from, mut stride) = (0, 1);
        for (&small, &large) in new.shape.iter().zip(&old.shape).rev() {
            from += position % small * stride;
            position /= small;
            stride *= large;
        }
        values[from]
    };
    (0..new.count()).map(at).collect()
}

/// Finds the types of all statements anew; `None` if one does not fit.
fn retyped(block: &mut Block, place: &Place) -> Option<()> {
    let layout = run::layout(place).unwrap_or_else(|_| Layout::single());
    let mut types = block.parameters.clone();
    for statement in &mut block.statements {
        if let Action::Within { blocks, .. } = &mut statement.action {
            for block in blocks {
                retyped(block, place)?;
            }
        }
        let operands = statement.operands.iter().map(|&o| &types[o]);
        let operands: Vec<TensorType> = operands.map(TensorType::from).collect();
        let f = |x: Vec<Tensor>| run::statement(statement, &x);
        let traced = catch_unwind(AssertUnwindSafe(|| under(&layout, || trace(f, operands))));
        let found: Vec<Type> = traced
            .ok()?
            .ok()?
            .output_types()
            .iter()
            .map(Type::from)
            .collect();
        (found.len() == statement.types.len()).then_some(())?;
        types.extend(found.iter().cloned());
        statement.types = found;
    }
    Some(())
}

/// Simpler numbers.
fn numbers(program: &Program) -> Candidates<'_> {
    let mut all = Vec::new();
    for (i, input) in program.inputs.iter().enumerate() {
        let mut with = |values: Vec<f64>| {
            if values != input.values {
                let mut simpler = program.clone();
                simpler.inputs[i].values = values;
                all.push(simpler);
            }
        };
        with(vec![1.0; input.values.len()]);
        let rounded = input
            .values
            .iter()
            .map(|v| if v.abs() < 100.0 { v.round() } else { *v });
        with(rounded.collect());
        let tame = |v: &f64| if v.abs() < 100.0 { *v } else { 1.0 };
        with(input.values.iter().map(tame).collect());
        for (at, value) in input.values.iter().enumerate().take(24) {
            if *value != 1.0 && *value != 0.0 {
                let mut values = input.values.clone();
                values[at] = 1.0;
                with(values);
            }
        }
    }
    Box::new(all.into_iter())
}
