//! Functions that can be traced, and [`trace`].

use std::panic::Location;

use shardax_sharding::Layout;

use crate::context::under;
use crate::error::{Result, Source};
use crate::graph::Graph;
use crate::tensor::Tensor;
use crate::trace::{argument, catch, check_depth, localize, program, replace_notes};
use crate::tree::{Leaf, Path, Tree};
use crate::types::TensorType;

/// A tree of tensors with other leaves: what a model is at run time, or its types.
pub type On<T, M> = <T as Tree<Tensor>>::With<M>;

/// What can be called, whatever it takes and returns.
///
/// Implemented for closures and functions of up to twelve arguments. `Signature` only tells these
/// implementations apart. Kept apart from [`Function`] so that the compiler settles on one of them before it asks
/// whether arguments and result are trees, and then names the one that is not.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a function that can be traced",
    label = "not a function of up to twelve arguments",
    note = "a traced function takes up to twelve arguments by value, and returns one value: put more into tuples, or into a struct with `#[derive(Module)]`"
)]
pub trait Callable<Signature> {
    /// The argument, or a tuple of arguments.
    type Args;
    /// What the function returns.
    type Output;
    /// The number of arguments.
    const ARGUMENTS: usize;
    /// Calls it.
    fn apply(&self, args: Self::Args) -> Self::Output;
}

/// A function from trees of tensors to a tree of tensors.
///
/// The arguments of a function of one are that argument; of several, a tuple.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a function that can be traced",
    label = "not a function of up to twelve arguments",
    note = "a traced function takes up to twelve arguments by value, and returns one value: put more into tuples, or into a struct with `#[derive(Module)]`"
)]
pub trait Function<Signature>:
    Callable<Signature, Args: Tree<Tensor>, Output: Tree<Tensor>>
{
}

impl<Signature, F> Function<Signature> for F where
    F: Callable<Signature, Args: Tree<Tensor>, Output: Tree<Tensor>>
{
}

impl<F, A, R> Callable<fn(A) -> R> for F
where
    F: Fn(A) -> R,
{
    type Args = A;
    type Output = R;
    const ARGUMENTS: usize = 1;
    fn apply(&self, args: A) -> R {
        self(args)
    }
}

impl<F, R> Callable<fn() -> R> for F
where
    F: Fn() -> R,
{
    type Args = ();
    type Output = R;
    const ARGUMENTS: usize = 0;
    fn apply(&self, (): ()) -> R {
        self()
    }
}

macro_rules! callable {
    ($($T:ident $i:tt),+) => {
        impl<Func, $($T,)+ Ret> Callable<fn($($T),+) -> Ret> for Func
        where
            Func: Fn($($T),+) -> Ret,
        {
            type Args = ($($T,)+);
            type Output = Ret;
            const ARGUMENTS: usize = [$($i),+].len();
            fn apply(&self, args: Self::Args) -> Ret {
                self($(args.$i),+)
            }
        }
    };
}

callable!(A 0, B 1);
callable!(A 0, B 1, C 2);
callable!(A 0, B 1, C 2, D 3);
callable!(A 0, B 1, C 2, D 3, E 4);
callable!(A 0, B 1, C 2, D 3, E 4, F 5);
callable!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
callable!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
callable!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
callable!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
callable!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
callable!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);

/// A traced function.
pub struct Traced<A, R> {
    /// The program. Its inputs are the leaves of the arguments, its outputs those of the result.
    pub graph: Graph,
    /// The structure of the arguments; its leaves are handles that have ended.
    pub arguments: A,
    /// The structure of the result; its leaves are handles that have ended.
    pub output: R,
}

impl<A, R> Traced<A, R> {
    /// Types of the results, in the order of the leaves.
    pub fn output_types(&self) -> Vec<TensorType> {
        let outputs = self.graph.outputs().iter();
        outputs.map(|&o| self.graph.ty(o).clone()).collect()
    }
}

/// Runs `f` on handles of these types, and returns the program that it wrote.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
///
/// let mean = |x: Tensor| x.mean(..);
/// let program = trace(mean, TensorType::new(DType::F32, [2, 3]))?;
/// assert_eq!(program.graph.to_string(), "\
/// (a: f32[2,3]) {
///   b = reduce_sum a dims=[0, 1] : f32[]
///   c = constant 6.0 : f32[]
///   d = div b c : f32[]
///   return d
/// }
/// ");
/// # Ok::<(), shardax_core::Error>(())
/// ```
///
/// # Errors
///
/// The first mistake that the function makes. A panic that is not a mistake of a tensor operation
/// goes on.
#[track_caller]
pub fn trace<S, F: Function<S>>(
    f: F,
    args: On<F::Args, TensorType>,
) -> Result<Traced<F::Args, F::Output>> {
    trace_like(&f, &args, TensorType::clone)
}

/// [`trace`] on handles like the leaves of `args`, whatever those are.
///
/// # Errors
///
/// As for [`trace`].
#[track_caller]
pub fn trace_like<S, F: Function<S>, M: Leaf>(
    f: &F,
    args: &On<F::Args, M>,
    ty: impl Fn(&M) -> TensorType,
) -> Result<Traced<F::Args, F::Output>> {
    traced_at(f, args, ty, Location::caller())
}

/// [`trace_like`] for a layout, as [`under`] does it.
///
/// # Errors
///
/// As for [`trace`].
#[track_caller]
pub fn trace_under<S, F: Function<S>, M: Leaf>(
    layout: &Layout,
    f: &F,
    args: &On<F::Args, M>,
    ty: impl Fn(&M) -> TensorType,
) -> Result<Traced<F::Args, F::Output>> {
    let source = Location::caller();
    under(layout, || traced_at(f, args, ty, source))
}

fn traced_at<S, F: Function<S>, M: Leaf>(
    f: &F,
    args: &On<F::Args, M>,
    ty: impl Fn(&M) -> TensorType,
    source: Source,
) -> Result<Traced<F::Args, F::Output>> {
    // Those of a function around, of which this one is traced.
    let outer = replace_notes(Vec::new());
    let traced = catch(|| {
        check_depth("trace", source);
        program(|| {
            let arguments =
                args.map_leaves(&mut Path::root(), &mut |_, leaf| argument(ty(leaf), source));
            let own = arguments.replace_leaves(&mut |_, t| *t);
            let result = f.apply(arguments);
            (
                own,
                result.replace_leaves(&mut |_, t: &Tensor| localize(*t, source)),
            )
        })
    });
    let notes = replace_notes(outer);
    let traced = traced?;
    let mut graph = traced.graph;
    let (arguments, output) = traced.result;
    graph.outputs = output.leaves().iter().map(|t| t.value).collect();
    graph.prune();
    graph.notes = notes;
    Ok(Traced {
        graph,
        arguments,
        output,
    })
}
