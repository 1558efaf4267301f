//! Loops over nothing, and derivatives that must not be cut silently.

use shardax::prelude::*;
use shardax::xla::{Error, Result};
use shardax::{
    ErrorKind, cond, fori_loop,
    ir::{Rule, catalogue},
    s, switch, while_loop,
};

use super::{Edge, check, edge};

#[rustfmt::skip]
const LOOPS: &[Edge] = &[
    edge(
        "scan over nothing",
        |x| scan(x, x.get(s![0..0]), |carry: Tensor, y: Tensor| (carry * y, ())).0,
        &[2., 3.],
        &[2., 3.],
        &[1., 1.],
    ),
    edge(
        "what a scan over nothing stacks",
        |x| scan(x, x.get(s![0..0]), |carry: Tensor, y: Tensor| (carry, y * 2.0)).1.sum(..),
        &[2., 3.],
        &[0.],
        &[0., 0.],
    ),
    edge("a loop that does not turn", |x| fori_loop(3, 1, x, |_, x: Tensor| x * 2.0), &[2.], &[2.], &[1.]),
    edge("a loop of one turn", |x| fori_loop(0, 1, x, |_, x: Tensor| x * x), &[3.], &[9.], &[6.]),
    edge("a branch that is not taken", |x| cond(x.sum(..).lt(1), x, |x: Tensor| x * 3.0, |x: Tensor| x.sqrt()), &[0.], &[0.], &[3.]),
    edge(
        "a branch out of range",
        |x| {
            let branches: [fn(Tensor) -> Tensor; 2] = [|x| x.sin(), |x| x * 5.0];
            switch(x.sum(..).cast(DType::I32) + 7, x, branches)
        },
        &[0.],
        &[0.],
        &[5.],
    ),
];

#[test]
fn loops_and_branches() -> Result<()> {
    check(LOOPS)
}

#[test]
fn a_loop_whose_condition_is_false_returns_its_carry() -> Result<()> {
    let slope = jit(|x: Tensor| {
        let turn = |x: Tensor| while_loop(x, |x: Tensor| x.lt(10.0), |x: Tensor| x * x);
        jvp(turn, x, Tensor::ones(DType::F32, []))
    });
    let at = |x: f32| -> Result<[f32; 2]> {
        let (value, slope) = slope.call(Array::scalar(x))?;
        Ok([value.item()?, slope.item()?])
    };
    assert_eq!(at(11.0)?, [11.0, 1.0]);
    assert_eq!(at(3.0)?, [81.0, 108.0]);
    // An infinite carry ends the loop, and so does NaN: it is not less than 10.
    assert!(at(f32::NAN)?[0].is_nan());
    Ok(())
}

/// Two parameters whose values are equal, or even the same, are two parameters.
#[test]
fn parameters_of_equal_value_have_gradients_of_their_own() -> Result<()> {
    let loss = |(a, b): (Tensor, Tensor)| (a * a * b).sum(..);
    let program = jit(move |x: Tensor| {
        let ones = || Tensor::ones(DType::F32, [2]);
        (
            grad(loss)((x, x)),
            grad(loss)((ones(), ones())),
            grad(move |x: Tensor| loss((x, x)))(x),
        )
    });
    let x = Array::from_slice(&[2f32, 3.0], [2])?;
    let (same, constants, one) = program.call(x.clone())?;
    assert_eq!(same.0.to_vec::<f32>()?, [8.0, 18.0]);
    assert_eq!(same.1.to_vec::<f32>()?, [4.0, 9.0]);
    assert_eq!(constants.0.to_vec::<f32>()?, [2.0; 2]);
    assert_eq!(constants.1.to_vec::<f32>()?, [1.0; 2]);
    assert_eq!(one.to_vec::<f32>()?, [12.0, 27.0]);
    // One array as two arguments.
    let two = jit(move |a: Tensor, b: Tensor| grad(loss)((a, b))).call((x.clone(), x))?;
    assert_eq!(two.0.to_vec::<f32>()?, [8.0, 18.0]);
    assert_eq!(two.1.to_vec::<f32>()?, [4.0, 9.0]);
    Ok(())
}

/// The kind of the mistake, and the line on which it is.
fn mistake(outcome: Result<Array>) -> (ErrorKind, u32) {
    match outcome {
        Err(Error::Trace(error)) => (error.kind, error.source_line.line()),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("this is no mistake"),
    }
}

#[test]
fn what_has_no_derivative_is_an_error_at_the_users_line() {
    let x = || Array::scalar(2f32);
    let line = line!() + 1;
    let looped = |x: Tensor| while_loop(x, |x: Tensor| x.lt(9.0), |x: Tensor| x * x);
    let (kind, at) = mistake(jit(grad(looped)).call(x()));
    assert!(
        matches!(
            kind,
            ErrorKind::Derivative {
                op: "while_loop",
                ..
            }
        ),
        "{kind:?}"
    );
    assert_eq!(at, line);
    // Inside of other constructs, too.
    let (kind, at) = mistake(jit(grad(remat(looped))).call(x()));
    assert!(
        matches!(kind, ErrorKind::Derivative { .. }) && at == line,
        "{kind:?}"
    );
    let counted = |x: Tensor| {
        let body = move |x: Tensor, _: Tensor| (looped(x), ());
        scan(x, Tensor::arange(DType::I32, 2), body).0
    };
    let (kind, at) = mistake(jit(grad(counted)).call(x()));
    assert!(
        matches!(kind, ErrorKind::Derivative { .. }) && at == line,
        "{kind:?}"
    );
    // By what a loop does not depend on there is a derivative: 0.
    let bounded = |x: Tensor| looped(x.stop_gradient()) * x;
    assert!(jit(grad(bounded)).call(x()).is_ok());

    let (kind, _) =
        mistake(jit(grad(|x: Tensor| x.cast(DType::F32).sum(..))).call(Array::scalar(2i32)));
    assert!(
        matches!(kind, ErrorKind::Derivative { op: "grad", .. }),
        "{kind:?}"
    );
    let (kind, _) = mistake(jit(grad(|x: Tensor| x.gt(1).sum(..))).call(x()));
    assert!(
        matches!(kind, ErrorKind::DType { .. } | ErrorKind::Derivative { .. }),
        "{kind:?}"
    );
    let (kind, _) = mistake(jit(grad(|x: Tensor| x.gt(1).cast(DType::I32))).call(x()));
    assert!(
        matches!(kind, ErrorKind::Derivative { op: "grad", .. }),
        "{kind:?}"
    );
}

/// Operations whose derivative is 0 are those that are constant between jumps, and `stop_gradient`.
#[test]
fn no_gradient_is_cut_silently() {
    // A derivative that is written as a constant, whatever the tangent is.
    let is_zero = |rule: &Rule| {
        let Rule::Writes(names) = rule else {
            return false;
        };
        names.contains(&"constant")
            && names
                .iter()
                .all(|name| ["constant", "broadcast"].contains(name))
    };
    let floats = catalogue().into_iter().filter(|info| {
        let graph = &info.example;
        let is_float = |values: &[_]| values.iter().any(|&v| graph.ty(v).dtype.is_float());
        is_float(graph.inputs()) && is_float(graph.outputs())
    });
    let zero: Vec<&str> = floats
        .filter(|info| is_zero(&info.forward))
        .map(|info| info.name)
        .collect();
    assert_eq!(
        zero,
        [
            "ceil",
            "floor",
            "round",
            "round_even",
            "sign",
            "stop_gradient"
        ]
    );
}
