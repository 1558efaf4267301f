//! Operations that contain functions.

use shardax_core::{Cond, Foreign, Literal, Number, Scan, Target, TensorType, While};

use super::{Array, Observer, boolean, constant, int, interpret_with};

pub(super) fn scan(
    scan: &Scan,
    types: &[TensorType],
    operands: &[Array],
    observer: &mut dyn Observer,
) -> Vec<Array> {
    let (carries, rest) = operands.split_at(scan.carries);
    let (xs, constants) = rest.split_at(scan.xs);
    let mut carries = carries.to_vec();
    let mut stacked = vec![Vec::new(); types.len() - scan.carries];
    let forward: Vec<usize> = (0..scan.length).collect();
    let order: Vec<usize> = if scan.reverse {
        forward.into_iter().rev().collect()
    } else {
        forward
    };
    for i in order {
        let mut inputs = carries;
        inputs.extend(xs.iter().map(|x| x.element(i)));
        inputs.extend_from_slice(constants);
        let mut outputs = interpret_with(&scan.body, &inputs, observer);
        let ys = outputs.split_off(scan.carries);
        carries = outputs;
        for (elements, y) in stacked.iter_mut().zip(ys) {
            elements.push(y);
        }
    }
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
    carries
}

pub(super) fn cond(cond: &Cond, operands: &[Array], observer: &mut dyn Observer) -> Vec<Array> {
    let last = cond.branches.len() as i64 - 1;
    let index = int(operands[0].scalar()).clamp(0, last) as usize;
    interpret_with(&cond.branches[index], &operands[1..], observer)
}

pub(super) fn while_loop(
    looped: &While,
    operands: &[Array],
    observer: &mut dyn Observer,
) -> Vec<Array> {
    let (carries, constants) = operands.split_at(looped.carries);
    let mut carries = carries.to_vec();
    loop {
        let inputs = [carries.as_slice(), constants].concat();
        if !boolean(interpret_with(&looped.cond, &inputs, observer)[0].scalar()) {
            return carries;
        }
        carries = interpret_with(&looped.body, &inputs, observer);
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
