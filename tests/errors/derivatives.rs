//! Derivatives.

use shardax::prelude::*;
use shardax::{custom_jvp, custom_vjp, host_call, while_loop};

use super::{Outcome, chapter, ones};

chapter![
    a_loss_that_is_no_scalar,
    a_gradient_by_integers,
    a_tangent_of_another_shape,
    the_bits_of_a_number,
    reverse_mode_through_a_while_loop,
    a_host_function_without_a_derivative,
    a_draw_by_its_parameter,
    a_forward_rule_that_does_not_fit,
    a_backward_rule_that_does_not_fit,
    forward_mode_of_a_backward_rule,
    a_rule_that_captures_a_parameter,
];

/// A loss that is no scalar
///
/// A gradient is of one number; for the derivative of every element use `jacrev` or `jacfwd`.
fn a_loss_that_is_no_scalar() -> Outcome {
    let loss = |w: Tensor| (w - 1.0).square();
    jit(grad(loss)).call(ones(&[2, 3]))?;
    Ok(())
}

/// A gradient by integers
///
/// Let the closure capture what is not differentiated: `grad(|w: Tensor| loss(w, tokens))(w)`.
fn a_gradient_by_integers() -> Outcome {
    let loss = |(table, tokens): (Tensor, Tensor)| table.take(tokens, 0).sum(..);
    let tokens = Array::from_slice(&[0i32, 2], [2])?;
    jit(grad(loss)).call((ones(&[3, 4]), tokens))?;
    Ok(())
}

/// A tangent of another shape
///
/// A tangent is a direction in the space of the argument: one number for each of its elements.
fn a_tangent_of_another_shape() -> Outcome {
    let slope = |x: Tensor, t: Tensor| jvp(|x: Tensor| x.sin(), x, t).1;
    jit(slope).call((ones(&[3]), ones(&[1])))?;
    Ok(())
}

/// The bits of a number
///
/// An operation without a derivative is an error, never a gradient that is cut silently.
fn the_bits_of_a_number() -> Outcome {
    let loss = |x: Tensor| {
        let bits = x.bitcast(DType::I32) & !0xff;
        (x - bits.bitcast(DType::F32)).sum(..)
    };
    jit(grad(loss)).call(ones(&[3]))?;
    Ok(())
}

/// Reverse mode through a loop without a bound
///
/// Use `scan`, or `fori_loop` with numbers as bounds; or give the function its derivative by `custom_vjp`.
fn reverse_mode_through_a_while_loop() -> Outcome {
    let root = |a: Tensor| {
        let far = move |x: Tensor| (x * x - a).abs().gt(1e-4);
        while_loop(a, far, |x: Tensor| (x + a / x) * 0.5)
    };
    jit(grad(root)).call(Array::scalar(2f32))?;
    Ok(())
}

/// A host function without a derivative
///
/// Give it one with `custom_vjp` or `custom_jvp`, or stop the gradient at its argument.
fn a_host_function_without_a_derivative() -> Outcome {
    let loss = |x: Tensor| {
        let same = host_call("same", [x], x.ty(), |values| Ok(values.to_vec()));
        same.sum(..)
    };
    jit(grad(loss)).call(ones(&[3]))?;
    Ok(())
}

/// A draw by its parameter
///
/// The numbers are chosen, not computed. What is meant may be a score of the draw (its logarithmic probability, of the
/// parameter), or a distribution that is shifted and scaled.
fn a_draw_by_its_parameter() -> Outcome {
    let loss = |logits: Tensor| {
        let chosen = Key::from_seed(0).categorical(logits, -1);
        logits
            .log_softmax(-1)
            .take_along(chosen.expand_dims(-1), -1)
            .sum(..)
    };
    jit(grad(loss)).call(ones(&[2, 3]))?;
    Ok(())
}

/// A forward rule that does not fit
///
/// `rule(argument, tangent)` returns the function's result and its tangent, of the same types.
fn a_forward_rule_that_does_not_fit() -> Outcome {
    let norm = custom_jvp(
        |x: Tensor| x.square().sum(..).sqrt(),
        |x: Tensor, t: Tensor| (x.square().sum(..).sqrt(), x * t),
    );
    jit(grad(norm)).call(ones(&[3]))?;
    Ok(())
}

/// A backward rule that does not fit
///
/// `backward(residuals, cotangent)` returns a cotangent for each leaf of the argument, of its type.
fn a_backward_rule_that_does_not_fit() -> Outcome {
    let total = custom_vjp(
        |x: Tensor| x.sum(..),
        |x: Tensor| (x.sum(..), ()),
        |(), ct: Tensor| ct,
    );
    jit(grad(total)).call(ones(&[3]))?;
    Ok(())
}

/// Forward mode of a backward rule
///
/// A `custom_vjp` knows the transpose alone; a `custom_jvp` serves both modes.
fn forward_mode_of_a_backward_rule() -> Outcome {
    let slope = |x: Tensor| {
        let clip = custom_vjp(
            |x: Tensor| x,
            |x: Tensor| (x, ()),
            |(), ct: Tensor| ct.clamp(-1, 1),
        );
        jvp(clip, x, x).1
    };
    jit(slope).call(ones(&[3]))?;
    Ok(())
}

/// A rule that captures a parameter
///
/// The rule would have to say what the derivative by the captured value is, and cannot.
fn a_rule_that_captures_a_parameter() -> Outcome {
    let loss = |w: Tensor| {
        let scale = custom_vjp(
            |x: Tensor| x * w,
            |x: Tensor| (x * w, ()),
            |(), ct: Tensor| ct * w,
        );
        scale(w + 1.0).sum(..)
    };
    jit(grad(loss)).call(ones(&[3]))?;
    Ok(())
}
