//! Functions that call themselves: those that end are right, and those that do not are errors.

use std::cell::RefCell;

use shardax_core::{
    DType, ErrorKind, Result, Tensor, TensorType, cond, custom_jvp, custom_vjp, fori_loop, grad,
    jvp, linearize, remat, scan, switch, trace, value_and_grad, vjp, vmap, while_loop,
};

use crate::interpreter::Array;
use crate::support::floats;

fn scalar() -> TensorType {
    TensorType::scalar(DType::F64)
}

/// 2 sin(x), whose rule calls the function itself.
fn backward(x: Tensor) -> Tensor {
    custom_vjp(
        |x: Tensor| x.sin() * 2.0,
        |x: Tensor| (backward(x), x),
        |x: Tensor, ct: Tensor| ct * x.cos() * 2.0,
    )(x)
}

fn forward(x: Tensor) -> Tensor {
    custom_jvp(
        |x: Tensor| x.sin() * 2.0,
        |x: Tensor, t: Tensor| (forward(x), x.cos() * 2.0 * t),
    )(x)
}

#[test]
fn a_rule_may_call_its_own_function() {
    let one = [Array::f64(&[], [1.0])];
    for f in [backward, forward] {
        let slope = |x: Tensor| grad(f)(x);
        let second = |x: Tensor| grad(|x: Tensor| slope(x))(x);
        let third = |x: Tensor| grad(|x: Tensor| second(x))(x);
        let (sin, cos) = (2.0 * 1f64.sin(), 2.0 * 1f64.cos());
        assert_eq!(floats(&one, |[x]| f(x)), [sin]);
        assert_eq!(floats(&one, |[x]| slope(x)), [cos]);
        assert_eq!(floats(&one, |[x]| second(x)), [-sin]);
        assert_eq!(floats(&one, |[x]| third(x)), [-cos]);
        let batched = [Array::f64(&[2], [1.0, 1.0])];
        assert_eq!(floats(&batched, |[x]| vmap(slope)(x)), [cos, cos]);
    }
    assert_eq!(floats(&one, |[x]| jvp(forward, x, x).1), [2.0 * 1f64.cos()]);
}

/// A rule that is a function of its own in which the tangent goes through another function with a rule.
#[test]
fn what_a_derivative_returns_can_be_differentiated() {
    let one = [Array::f64(&[], [1.0])];
    let clipped = custom_vjp(
        |x: Tensor| x,
        |x: Tensor| (x, ()),
        |(), ct: Tensor| backward(ct),
    );
    let by_cotangent = |x: Tensor| {
        let (_, pullback) = vjp(&clipped, x);
        grad(|ct: Tensor| pullback(ct))(x)
    };
    assert_eq!(floats(&one, |[x]| by_cotangent(x)), [2.0 * 1f64.cos()]);
    // Once more is more than the program showed where the function was called.
    let twice = |x: Tensor| {
        let (_, pullback) = vjp(&clipped, x);
        let squared = |ct: Tensor| {
            let (value, slope) = value_and_grad(|ct: Tensor| pullback(ct))(ct);
            value * slope
        };
        grad(squared)(x)
    };
    let error = trace(twice, scalar()).map(|_| ()).unwrap_err();
    assert!(
        error.kind.to_string().contains("its rule was not traced"),
        "{error}"
    );
}

fn ones() -> Tensor {
    Tensor::ones(DType::F64, [2])
}

mod endless {
    use super::*;

    pub(super) fn scanned(x: Tensor) -> Tensor {
        scan(x, ones(), |x: Tensor, _: Tensor| (scanned(x), ())).0
    }

    pub(super) fn counted(x: Tensor) -> Tensor {
        fori_loop(0, 2, x, |_, x: Tensor| counted(x))
    }

    pub(super) fn looped(x: Tensor) -> Tensor {
        while_loop(x, |x: Tensor| x.lt(9.0), |x: Tensor| looped(x))
    }

    pub(super) fn decided(x: Tensor) -> Tensor {
        while_loop(x, |x: Tensor| decided(x).lt(9.0), |x: Tensor| x + 1.0)
    }

    pub(super) fn chosen(x: Tensor) -> Tensor {
        cond(x.gt(0.0), x, |x: Tensor| chosen(x), |x: Tensor| x)
    }

    pub(super) fn switched(x: Tensor) -> Tensor {
        let branches: [fn(Tensor) -> Tensor; 2] = [|x| x, switched];
        switch(x.cast(DType::I32), x, branches)
    }

    pub(super) fn recomputed(x: Tensor) -> Tensor {
        remat(|x: Tensor| recomputed(x))(x)
    }

    pub(super) fn mapped(x: Tensor) -> Tensor {
        vmap(|x: Tensor| mapped(x))(x.broadcast_to([2])).sum(..)
    }

    pub(super) fn forward(x: Tensor) -> Tensor {
        custom_jvp(|x: Tensor| forward(x), |x: Tensor, t: Tensor| (x, t))(x)
    }

    pub(super) fn backward(x: Tensor) -> Tensor {
        custom_vjp(
            |x: Tensor| backward(x),
            |x: Tensor| (x, ()),
            |(), ct: Tensor| ct,
        )(x)
    }

    /// Its rule asks for the derivative that it is the rule of.
    pub(super) fn ruled(x: Tensor) -> Tensor {
        let f = custom_jvp(
            |x: Tensor| x.sin(),
            |x: Tensor, t: Tensor| (x.sin(), ruled(x) * t),
        );
        grad(f)(x)
    }

    pub(super) fn differentiated(x: Tensor) -> Tensor {
        grad(|x: Tensor| differentiated(x))(x)
    }

    pub(super) fn pushed(x: Tensor) -> Tensor {
        jvp(|x: Tensor| pushed(x), x, x).1
    }

    pub(super) fn pulled(x: Tensor) -> Tensor {
        vjp(|x: Tensor| pulled(x), x).0
    }

    pub(super) fn linearized(x: Tensor) -> Tensor {
        linearize(|x: Tensor| linearized(x), x).0
    }

    /// No function is traced inside of another: they only call each other.
    pub(super) fn plain(x: Tensor) -> Tensor {
        if x.rank() > 0 { x } else { plain(x + 1.0) }
    }
}

#[test]
fn one_that_does_not_end_is_an_error_at_the_users_line() {
    let file = file!();
    let text = include_str!("recursion.rs");
    type Endless = fn(Tensor) -> Tensor;
    let cases: [(&str, &str, Endless); 16] = [
        ("scanned", "scan", endless::scanned),
        ("counted", "fori_loop", endless::counted),
        ("looped", "while_loop", endless::looped),
        ("decided", "while_loop", endless::decided),
        ("chosen", "cond", endless::chosen),
        ("switched", "switch", endless::switched),
        ("recomputed", "remat", endless::recomputed),
        ("mapped", "vmap", endless::mapped),
        ("forward", "custom_jvp", endless::forward),
        ("backward", "custom_vjp", endless::backward),
        ("ruled", "custom_jvp", endless::ruled),
        ("differentiated", "grad", endless::differentiated),
        ("pushed", "jvp", endless::pushed),
        ("pulled", "vjp", endless::pulled),
        ("linearized", "linearize", endless::linearized),
        ("plain", "add", endless::plain),
    ];
    for (name, op, f) in cases {
        let error = trace(f, scalar()).map(|_| ()).unwrap_err();
        let problem = match name {
            "plain" => "calls within calls have used up the stack",
            _ => "its function is traced inside of 64 others, which is as deep as functions nest",
        };
        let wanted = format!("`{op}`: {problem}");
        assert_eq!(error.kind.to_string(), wanted, "{name}");
        assert!(matches!(error.kind, ErrorKind::Recursion { .. }), "{name}");
        // Inside of the function.
        let signature = format!("    pub(super) fn {name}(x: Tensor)");
        let first = text.lines().position(|l| l.starts_with(&signature));
        let first = first.expect("the function is here") + 1;
        let line = error.source_line.line() as usize;
        assert_eq!(error.source_line.file(), file, "{name}");
        assert!((first..first + 9).contains(&line), "{name}: {error}");
        // What comes afterwards is not disturbed.
        assert!(trace(|x: Tensor| x.sin(), scalar()).is_ok());
    }
}

thread_local! {
    static INNERMOST: RefCell<Option<Result<()>>> = const { RefCell::new(None) };
}

fn traced_again(x: Tensor) -> Tensor {
    let inner = trace(traced_again, scalar()).map(|_| ());
    INNERMOST
        .with_borrow_mut(|found| found.get_or_insert(inner).clone())
        .ok();
    x
}

#[test]
fn a_trace_in_a_trace_ends() {
    assert!(trace(traced_again, scalar()).is_ok());
    let error = INNERMOST.take().expect("a result").unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Recursion { .. }), "{error}");
}

/// As many levels as there may be: what is done with them afterwards follows them on the stack too.
#[test]
fn the_deepest_nest_is_transformed() {
    fn looped(x: Tensor, levels: usize) -> Tensor {
        match levels {
            0 => x.sin(),
            _ => {
                // One iteration: what is kept of it has a dimension for each level.
                scan(
                    x,
                    Tensor::ones(DType::F64, [1]),
                    |x: Tensor, one: Tensor| (looped(x, levels - 1) * one, ()),
                )
                .0
            }
        }
    }
    fn chosen(x: Tensor, levels: usize) -> Tensor {
        match levels {
            0 => x.sin(),
            _ => cond(
                x.gt(0.0),
                x,
                |x: Tensor| chosen(x, levels - 1) * x,
                |x: Tensor| x,
            ),
        }
    }
    fn recomputed(x: Tensor, levels: usize) -> Tensor {
        match levels {
            0 => x.sin(),
            _ => remat(|x: Tensor| recomputed(x, levels - 1) * x)(x),
        }
    }
    for f in [looped, chosen, recomputed] {
        // The program, its gradient, and the batch are traced around the function.
        let batched = |x: Tensor| vmap(grad(|x: Tensor| f(x, 60)))(x);
        let traced = trace(batched, TensorType::new(DType::F64, [2]));
        let graph = traced.unwrap_or_else(|error| panic!("{error}")).graph;
        assert!(graph.to_string().len() > 60);
        assert!(graph.equation_count() > 60);
    }
}
