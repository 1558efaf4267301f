//! Operations that contain functions.

use shardax_core::{
    Literal, Number, Target, TensorType,
    ir::{Cond, Foreign, Scan, While},
};

use super::devices::Lane;
use super::{Array, Observer, boolean, constant, int, run};

/// The same devices with other values.
fn with(lanes: &[Lane], values: impl Fn(usize) -> Vec<Array>) -> Vec<Lane> {
    let lanes = lanes.iter().enumerate().map(|(l, lane)| Lane {
        position: lane.position.clone(),
        values: values(l),
    });
    lanes.collect()
}

pub(super) fn scan(
    scan: &Scan,
    types: &[TensorType],
    lanes: &[Lane],
    observer: &mut dyn Observer,
) -> Vec<Vec<Array>> {
    let xs = scan.carries..scan.carries + scan.xs;
    let mut carries: Vec<Vec<Array>> = lanes
        .iter()
        .map(|lane| lane.values[..xs.start].to_vec())
        .collect();
    let mut stacked = vec![vec![Vec::new(); types.len() - scan.carries]; lanes.len()];
    let forward: Vec<usize> = (0..scan.length).collect();
    let order: Vec<usize> = if scan.reverse {
        forward.into_iter().rev().collect()
    } else {
        forward
    };
    for i in order {
        let inputs = with(lanes, |l| {
            let elements = lanes[l].values[xs.clone()].iter().map(|x| x.element(i));
            let constants = lanes[l].values[xs.end..].iter().cloned();
            carries[l]
                .iter()
                .cloned()
                .chain(elements)
                .chain(constants)
                .collect()
        });
        carries = run(&scan.body, &inputs, observer);
        for (carries, stacked) in carries.iter_mut().zip(&mut stacked) {
            let ys = carries.split_off(scan.carries);
            for (elements, y) in stacked.iter_mut().zip(ys) {
                elements.push(y);
            }
        }
    }
    for (carries, stacked) in carries.iter_mut().zip(stacked) {
        for (mut elements, ty) in stacked.into_iter().zip(&types[scan.carries..]) {
            if scan.reverse {
                elements.reverse();
            }
            let data = elements.into_iter().flat_map(|y: Array| y.data).collect();
            carries.push(Array {
                ty: ty.clone(),
                data,
            });
        }
    }
    carries
}

/// Devices that choose the same branch compute it together.
pub(super) fn cond(cond: &Cond, lanes: &[Lane], observer: &mut dyn Observer) -> Vec<Vec<Array>> {
    let last = cond.branches.len() as i64 - 1;
    let choice = |lane: &Lane| int(lane.values[0].scalar()).clamp(0, last) as usize;
    let mut results = vec![Vec::new(); lanes.len()];
    for (index, branch) in cond.branches.iter().enumerate() {
        let own: Vec<usize> = (0..lanes.len())
            .filter(|&l| choice(&lanes[l]) == index)
            .collect();
        let chosen: Vec<Lane> = own.iter().map(|&l| lanes[l].clone()).collect();
        let chosen = with(&chosen, |l| chosen[l].values[1..].to_vec());
        for (l, found) in own.into_iter().zip(run(branch, &chosen, observer)) {
            results[l] = found;
        }
    }
    results
}

/// Devices that go on do so together.
pub(super) fn while_loop(
    looped: &While,
    lanes: &[Lane],
    observer: &mut dyn Observer,
) -> Vec<Vec<Array>> {
    let mut carries: Vec<Vec<Array>> = lanes
        .iter()
        .map(|lane| lane.values[..looped.carries].to_vec())
        .collect();
    let mut going: Vec<usize> = (0..lanes.len()).collect();
    loop {
        let own: Vec<Lane> = going.iter().map(|&l| lanes[l].clone()).collect();
        let inputs = with(&own, |i| {
            let constants = &own[i].values[looped.carries..];
            [carries[going[i]].as_slice(), constants].concat()
        });
        let more = run(&looped.cond, &inputs, observer);
        let more: Vec<bool> = more
            .iter()
            .map(|found| boolean(found[0].scalar()))
            .collect();
        let next: Vec<Lane> = inputs
            .into_iter()
            .zip(&more)
            .filter(|(_, m)| **m)
            .map(|(i, _)| i)
            .collect();
        going = going
            .into_iter()
            .zip(more)
            .filter(|(_, m)| *m)
            .map(|(l, _)| l)
            .collect();
        if going.is_empty() {
            return carries;
        }
        for (&l, found) in going.iter().zip(run(&looped.body, &next, observer)) {
            carries[l] = found;
        }
    }
}

/// Host functions of f64 and i32.
pub(super) fn foreign(foreign: &Foreign, operands: &[Array]) -> Vec<Array> {
    let Target::Host(function) = &foreign.target else {
        panic!("the interpreter has no custom calls");
    };
    let literal = |x: &Array| {
        let shape = x.ty.shape.clone();
        let made = match x.data.first() {
            Some(Number::Int(_)) => {
                let values: Vec<i32> = x.ints().into_iter().map(|v| v as i32).collect();
                Literal::from_slice(&values, shape)
            }
            _ => Literal::from_slice(&x.floats(), shape),
        };
        made.expect("as many values as elements")
    };
    let arguments: Vec<Literal> = operands.iter().map(literal).collect();
    let results = function.closure()(&arguments).expect("the host function succeeds");
    results.iter().map(constant).collect()
}
