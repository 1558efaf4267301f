//! Random specs, most of them senseless, wherever a spec may be given: they are followed, or refused with a reason,
//! before XLA has seen them.

use shardax::Sharding;
use shardax::prelude::*;
use shardax::xla::{Error, Result};

use super::{Dice, rounds};

/// Axes and parts of axes that many of the meshes have.
const AXES: [&str; 7] = ["a", "a", "a", "b", "a:(1)2", "a:(2)2", "?"];

/// What no mesh has.
const NO_AXES: [&str; 9] = [
    "c",
    "",
    "A",
    "a:",
    "a:(1)3",
    "a:(1)0",
    "a:(0)2",
    "a:(18446744073709551615)2",
    "é:(1)2",
];

const MESHES: [&str; 5] = ["a=4,b=2", "a=4,b=2", "a=8,b=1", "a=8", "b=4,a=2"];

const SHAPES: [[usize; 2]; 5] = [[8, 16], [8, 16], [16, 8], [17, 6], [0, 8]];

#[derive(Clone, Module)]
struct One<L = Tensor> {
    #[shard(rows, columns)]
    x: L,
}

fn axes(dice: &mut Dice) -> Vec<&'static str> {
    let count = *dice.one_of(&[0, 0, 1, 1, 1, 2]);
    let name = |dice: &mut Dice| match dice.once_in(12) {
        true => *dice.one_of(&NO_AXES),
        false => *dice.one_of(&AXES),
    };
    (0..count).map(|_| name(dice)).collect()
}

fn spec(dice: &mut Dice) -> PartitionSpec {
    let entries = *dice.one_of(&[0, 1, 2, 2, 2, 2, 2, 2, 2, 3]);
    PartitionSpec::new((0..entries).map(|_| axes(dice)).collect::<Vec<_>>())
}

/// Where the spec is given.
#[derive(Clone, Copy, Debug)]
enum Place {
    Rules,
    FreeRules,
    EveryLeaf,
    Override,
    Constraint,
    Region,
    Put,
}

const PLACES: [Place; 7] = [
    Place::Rules,
    Place::FreeRules,
    Place::EveryLeaf,
    Place::Override,
    Place::Constraint,
    Place::Region,
    Place::Put,
];

/// Twice the array and 1, by way of the place.
fn doubled(place: Place, layout: Layout, x: Array, dice: &mut Dice) -> Result<Array> {
    let (one, two) = (axes(dice), axes(dice));
    let spec = spec(dice);
    let plain = |one: One| {
        let loss = |one: One| (one.x.square() + one.x).sum(..);
        grad(loss)(one)
    };
    let layout = match place {
        Place::Rules => layout.shard("rows", one).shard("columns", two),
        Place::FreeRules => layout
            .shard_where_free("rows", one)
            .shard_where_free("columns", two),
        Place::EveryLeaf => layout
            .shard_every_gradient(one)
            .shard_parameters("rows", two),
        Place::Override => layout.override_spec("x", spec),
        Place::Constraint => {
            let layout = layout.constrain("doubled", spec);
            let named = |x: Tensor| (x * 2.0).named("doubled") + 1.0;
            return jit(named).layout(&layout).call(x);
        }
        Place::Region => {
            let region = move |x: Tensor| {
                let specs = (spec.clone(), spec.clone());
                manual(one.clone(), specs.0, specs.1, |x: Tensor| x * 2.0 + 1.0)(x)
            };
            return jit(region).layout(&layout).call(x);
        }
        Place::Put => {
            let moved = x.reshard(&Sharding::new(layout.mesh().clone(), spec))?;
            return jit(|x: Tensor| x * 2.0 + 1.0).layout(&layout).call(moved);
        }
    };
    Ok(jit(plain).layout(&layout).call(One { x })?.x)
}

#[test]
fn random_specs_work_or_are_refused() -> Result<()> {
    let (mut refused, mut equal) = (0, 0);
    for round in rounds(420) {
        let dice = &mut Dice(5000 + round as u64);
        let place = PLACES[round % PLACES.len()];
        let mesh: Mesh = dice.one_of(&MESHES).parse()?;
        let layout = match dice.once_in(2) {
            true => Layout::new(mesh).partitioner(Partitioner::Gspmd),
            false => Layout::new(mesh),
        };
        let shape = *dice.one_of(&SHAPES);
        let values: Vec<f32> = (0..shape.iter().product::<usize>())
            .map(|i| i as f32)
            .collect();
        let x = Array::from_slice(&values, shape)?;
        match doubled(place, layout.clone(), x, dice) {
            Ok(found) => {
                let wanted: Vec<f32> = values.iter().map(|x| x * 2.0 + 1.0).collect();
                assert_eq!(
                    found.to_vec::<f32>()?,
                    wanted,
                    "{place:?} {layout} {shape:?}"
                );
                equal += 1;
            }
            Err(error @ Error::Runtime(_)) => panic!("round {round}, {place:?} {layout}: {error}"),
            Err(error) => {
                assert!(error.to_string().len() > 20, "{error}");
                refused += 1;
            }
        }
    }
    // Neither is rare.
    assert!(
        equal > 100 && refused > 100,
        "{equal} equal, {refused} refused"
    );
    Ok(())
}
