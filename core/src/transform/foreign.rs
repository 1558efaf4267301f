//! Computations outside of the program: host functions, custom calls, and printing.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::scan::scan_in;
use super::vmap::Batch;
use crate::dtype::DType;
use crate::error::Source;
use crate::graph::Equation;
use crate::lax;
use crate::literal::Literal;
use crate::op::{Foreign, HostFunction, Op, Target};
use crate::rules::batch::Batched;
use crate::tensor::Tensor;
use crate::trace::emit;
use crate::tree::{Path, Tree};
use crate::types::TensorType;

/// The results of a Rust closure that is called when the program runs.
///
/// `results` has the types of the results. The closure gets the arguments' values and returns as
/// many literals of these types, or says why it cannot, which ends the call of the program with an
/// error. It may be called from any thread, and as often as the program runs it; a call whose
/// results nobody reads is left out. Under [`vmap`](crate::vmap) it is called for one element after
/// the other. It has no derivative: give it one with [`custom_jvp`](crate::custom_jvp) or
/// [`custom_vjp`](crate::custom_vjp).
///
/// ```
/// use shardax_core::{DType, Literal, Tensor, TensorType, host_call, trace};
///
/// let sorted_on_the_host = |x: Tensor| {
///     let ty = x.ty();
///     host_call("sort", [x], ty, |args: &[Literal]| {
///         let mut values = args[0].to_vec::<f32>().ok_or("not f32")?;
///         values.sort_by(f32::total_cmp);
///         let shape = args[0].ty().shape.clone();
///         Ok(vec![Literal::from_slice(&values, shape).ok_or("another size")?])
///     })
/// };
/// let program = trace(sorted_on_the_host, TensorType::new(DType::F32, [4]))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[4]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn host_call<R: Tree<TensorType>>(
    name: &str,
    arguments: impl AsRef<[Tensor]>,
    results: R,
    closure: impl Fn(&[Literal]) -> Result<Vec<Literal>, String> + Send + Sync + 'static,
) -> R::With<Tensor> {
    let foreign = Foreign {
        target: Target::Host(HostFunction::new(name, closure)),
        results: results.leaves(),
        effect: false,
    };
    call(foreign, arguments.as_ref(), &results, Location::caller())
}

/// Calls a closure with the arguments' values, each time the program comes to this place, in the
/// order of the program.
///
/// For logging and for looking at values; see [`host_call`] for closures with results.
#[track_caller]
pub fn host_effect(
    name: &str,
    arguments: impl AsRef<[Tensor]>,
    closure: impl Fn(&[Literal]) -> Result<(), String> + Send + Sync + 'static,
) {
    let called = move |arguments: &[Literal]| closure(arguments).map(|()| Vec::new());
    let foreign = Foreign {
        target: Target::Host(HostFunction::new(name, called)),
        results: Vec::new(),
        effect: true,
    };
    call(foreign, arguments.as_ref(), &(), Location::caller());
}

/// A custom call of an XLA FFI handler that is registered with the runtime under `name`.
///
/// `attributes` is the inside of the handler's dictionary of attributes, in MLIR's syntax; it may be
/// empty. The call is computed like any other operation, and left out if nobody reads its results.
#[track_caller]
pub fn custom_call<R: Tree<TensorType>>(
    name: &str,
    attributes: &str,
    arguments: impl AsRef<[Tensor]>,
    results: R,
) -> R::With<Tensor> {
    let foreign = Foreign {
        target: Target::Custom {
            name: Arc::from(name),
            attributes: Arc::from(attributes),
        },
        results: results.leaves(),
        effect: false,
    };
    call(foreign, arguments.as_ref(), &results, Location::caller())
}

fn call<R: Tree<TensorType>>(
    foreign: Foreign,
    arguments: &[Tensor],
    results: &R,
    source: Source,
) -> R::With<Tensor> {
    let mut values = emit(Op::Foreign(foreign), arguments, source).into_iter();
    results.map_leaves(&mut Path::root(), &mut |_, ty| {
        values.next().unwrap_or_else(|| lax::zeros(ty))
    })
}

/// One call after the other.
pub(crate) fn batch_foreign(
    equation: &Equation,
    foreign: &Foreign,
    operands: &[Batched],
    batch: &Batch,
) -> SmallVec<[Batched; 1]> {
    let indices = lax::iota(TensorType::new(DType::I32, [batch.size]), 0);
    let mapped: Vec<Tensor> = operands
        .iter()
        .filter(|o| o.dim.is_some())
        .map(|o| o.at(0, batch.size))
        .collect();
    let step = |(): (), (_, elements): (Tensor, Vec<Tensor>)| {
        let mut elements = elements.into_iter();
        let arguments: Vec<Tensor> = operands
            .iter()
            .filter_map(|o| match o.dim {
                Some(_) => elements.next(),
                None => Some(o.tensor),
            })
            .collect();
        let results = emit(Op::Foreign(foreign.clone()), &arguments, equation.source);
        ((), results.to_vec())
    };
    let xs = (indices, mapped);
    let ((), results) = scan_in("vmap", (), xs, step, (false, 1), equation.source);
    results.into_iter().map(|t| Batched::new(t, 0)).collect()
}
