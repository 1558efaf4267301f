//! `vmap`: a function of one element, applied to a batch of them.
//!
//! The function is traced once, on one element; its graph is then emitted for the whole batch,
//! every equation by its rule in `rules/batch.rs`.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::close::{close_on, finished};
use super::linearize::evaluate;
use super::once::{Form, Question, once, remembering};
use crate::error::{ErrorKind, Source};
use crate::graph::{Equation, Graph};
use crate::rules::batch::{Batched, batch};
use crate::tensor::Tensor;
use crate::trace::{at, emit, fail_at, input, region, type_of};
use crate::tree::{Path, Tree};
use crate::types::TensorType;
use shardax_sharding::Dim;

/// What every rule of a batch is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// Number of elements.
    pub size: usize,
    /// What the batch dimension is called in annotations.
    pub name: Dim,
}

/// The same function on a batch: every leaf of the argument has a leading dimension, and so does
/// every leaf of the result.
///
/// What the function captures is the same for all elements. Nested, it maps over several
/// dimensions. An annotation inside leaves the batch dimension to the compiler; [`vmap_named`] gives
/// it a name that the layout knows.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace, vmap};
///
/// let distances = |points: Tensor, center: Tensor| {
///     vmap(|point: Tensor| (point - center).square().sum(..).sqrt())(points)
/// };
/// let vector = |shape: &[usize]| TensorType::new(DType::F32, shape);
/// let program = trace(distances, (vector(&[10, 3]), vector(&[3])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[10]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
///
/// # Errors
///
/// It is a mistake, found while tracing, if the leaves have no leading dimension of one size.
#[track_caller]
pub fn vmap<A: Tree<Tensor>, R: Tree<Tensor>>(f: impl Fn(A) -> R) -> impl Fn(A) -> R {
    let source = Location::caller();
    move |args| vmap_at(&f, args, &[Some(0)], 0, Dim::Open, source)
}

/// [`vmap`] whose batch dimension is called `name` in the annotations inside, so that the layout
/// says how it is split.
///
/// A dimension that is called so inside is a part of one element, and is not split then.
#[track_caller]
pub fn vmap_named<A: Tree<Tensor>, R: Tree<Tensor>>(
    name: &'static str,
    f: impl Fn(A) -> R,
) -> impl Fn(A) -> R {
    let source = Location::caller();
    move |args| vmap_at(&f, args, &[Some(0)], 0, Dim::Logical(name), source)
}

/// [`vmap`] along other axes: `in_axes` has one for each part of the argument, a tuple (or one for
/// the whole of it), `None` where a part is the same for all elements; results have the batch along
/// `out_axis`. Negative axes count from the last.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace, vmap_axes};
///
/// let products = |a: Tensor, b: Tensor| {
///     vmap_axes(|(a, b): (Tensor, Tensor)| a.dot(b), [None, Some(1)], -1)((a, b))
/// };
/// let matrix = |shape: [usize; 2]| TensorType::new(DType::F32, shape);
/// let program = trace(products, (matrix([2, 3]), matrix([3, 5])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[2,5]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
///
/// # Errors
///
/// As for [`vmap`]; and if there is no axis, or not one for each part of the argument.
#[track_caller]
pub fn vmap_axes<A: Tree<Tensor>, R: Tree<Tensor>>(
    f: impl Fn(A) -> R,
    in_axes: impl AsRef<[Option<isize>]>,
    out_axis: isize,
) -> impl Fn(A) -> R {
    let source = Location::caller();
    move |args| vmap_at(&f, args, in_axes.as_ref(), out_axis, Dim::Open, source)
}

fn vmap_at<A: Tree<Tensor>, R: Tree<Tensor>>(
    f: &impl Fn(A) -> R,
    args: A,
    in_axes: &[Option<isize>],
    out_axis: isize,
    name: Dim,
    source: Source,
) -> R {
    let (dims, size) = batch_dims(&args, in_axes, source);
    let mut next = dims.iter();
    let element = |t: &Tensor| {
        let ty = type_of(*t, "vmap", source);
        match next.next() {
            Some(Some(dim)) => {
                let mut element = ty;
                element.shape.remove(*dim);
                element
            }
            _ => ty,
        }
    };
    let closed = close_on(&args, element, f, "vmap", source);
    let mut dims = dims.into_iter();
    let inputs: Vec<Batched> = closed
        .operands
        .iter()
        .map(|&tensor| Batched {
            tensor,
            dim: dims.next().flatten(),
        })
        .collect();
    at(source, || {
        let results = batch_graph(&closed.graph, &inputs, &Batch { size, name });
        let moved: Vec<Tensor> = results
            .into_iter()
            .map(|result| {
                let element = result.tensor.ty().rank() - usize::from(result.dim.is_some());
                let rank = element as isize + 1;
                if !(-rank..rank).contains(&out_axis) {
                    let problem = format!("a result of {rank} dimensions has no axis {out_axis}");
                    let kind = ErrorKind::Argument {
                        op: "vmap",
                        problem,
                    };
                    fail_at(kind, None, source)
                }
                result.at(out_axis.rem_euclid(rank) as usize, size)
            })
            .collect();
        closed.result.with_leaves(&moved)
    })
}

/// The batch dimension of each leaf, and its size.
fn batch_dims<A: Tree<Tensor>>(
    args: &A,
    in_axes: &[Option<isize>],
    source: Source,
) -> (Vec<Option<usize>>, usize) {
    let mut dims = Vec::new();
    let mut sizes: Vec<(String, TensorType, usize)> = Vec::new();
    let mut problems = Vec::new();
    args.visit_leaves(&mut Path::root(), &mut |path, t| {
        let ty = type_of(*t, "vmap", source);
        let leaf = path.leaf_of("argument");
        let axis = match (in_axes, path.first_index()) {
            ([axis], _) => *axis,
            (axes, Some(part)) if part < axes.len() => axes[part],
            (axes, _) => {
                problems.push(format!("{leaf} has none of the {} axes", axes.len()));
                None
            }
        };
        let rank = ty.rank() as isize;
        dims.push(axis.and_then(|axis| {
            if (-rank..rank).contains(&axis) {
                let dim = axis.rem_euclid(rank) as usize;
                sizes.push((leaf, ty.clone(), dim));
                return Some(dim);
            }
            problems.push(format!("{leaf} is {ty}, and has no axis {axis}"));
            None
        }));
    });
    let size = sizes.first().map(|(_, ty, dim)| ty.shape[*dim]);
    let differs = |(_, ty, dim): &(String, TensorType, usize)| Some(ty.shape[*dim]) != size;
    if sizes.iter().any(differs) {
        let listed: Vec<String> = sizes
            .iter()
            .map(|(leaf, ty, dim)| format!("{leaf} is {ty}, of size {} there", ty.shape[*dim]))
            .collect();
        problems.push(format!("the batch sizes differ: {}", listed.join(", ")));
    }
    match size {
        Some(size) if problems.is_empty() => (dims, size),
        _ => {
            if problems.is_empty() {
                problems.push("no leaf of the argument is mapped over".to_owned());
            }
            let help = "every mapped leaf needs the same size along its axis; `vmap_axes` takes an \
                        axis, or `None`, for each part of the argument";
            let kind = ErrorKind::Shape {
                op: "vmap",
                problem: problems.join("; "),
            };
            fail_at(kind, Some(help.into()), source)
        }
    }
}

/// Emits the equations of `graph` for a batch.
pub(crate) fn batch_graph(graph: &Graph, inputs: &[Batched], of: &Batch) -> Vec<Batched> {
    let on_batch = |equation: &Equation, operands: &[Batched]| {
        if operands.iter().any(|o| o.dim.is_some()) {
            return batch(equation, operands, of);
        }
        let tensors: SmallVec<[Tensor; 4]> = operands.iter().map(|o| o.tensor).collect();
        let results = emit(equation.op.clone(), &tensors, equation.source);
        results.into_iter().map(Batched::constant).collect()
    };
    remembering(|| evaluate(graph, inputs, on_batch))
}

/// A function inside an operation, for a batch.
#[derive(Clone)]
pub(crate) struct BatchedBody {
    pub graph: Arc<Graph>,
    /// Where each output has the batch dimension.
    pub outputs: Vec<Option<usize>>,
}

/// The function that computes `body` for a batch whose inputs have it at `dims`. Where `batched`
/// says so, an output has the batch in front whether it depends on it or not.
pub(crate) fn batch_body(
    body: &Arc<Graph>,
    dims: &[Option<usize>],
    batched: &[bool],
    of: &Batch,
) -> BatchedBody {
    let form = Form::InFront(batched.to_vec());
    batch_body_with(body, dims, of, form, |outputs, _| {
        let wanted = batched.iter().chain(std::iter::repeat(&false));
        outputs
            .into_iter()
            .zip(wanted)
            .map(|(output, &wanted)| match wanted {
                true => Batched::new(output.at(0, of.size), 0),
                false => output,
            })
            .collect()
    })
}

/// [`batch_body`] whose outputs `finish` brings into `form`, given the outputs and the inputs.
pub(super) fn batch_body_with(
    body: &Arc<Graph>,
    dims: &[Option<usize>],
    of: &Batch,
    form: Form,
    finish: impl FnOnce(Vec<Batched>, &[Batched]) -> Vec<Batched>,
) -> BatchedBody {
    let question = Question::Batch {
        size: of.size,
        name: of.name,
        dims: dims.to_vec(),
        form,
    };
    let batched = once(body, question, || traced_body(body, dims, of, finish));
    (*batched).clone()
}

fn traced_body(
    body: &Graph,
    dims: &[Option<usize>],
    of: &Batch,
    finish: impl FnOnce(Vec<Batched>, &[Batched]) -> Vec<Batched>,
) -> BatchedBody {
    let traced = region(|| {
        let inputs: Vec<Batched> = body
            .inputs()
            .iter()
            .zip(dims)
            .map(|(&i, &dim)| {
                let mut ty = body.ty(i).clone();
                if let Some(dim) = dim {
                    ty.shape.insert(dim, of.size);
                }
                Batched {
                    tensor: input(ty),
                    dim,
                }
            })
            .collect();
        finish(batch_graph(body, &inputs, of), &inputs)
    });
    let outputs: Vec<Tensor> = traced.result.iter().map(|o| o.tensor).collect();
    BatchedBody {
        graph: Arc::new(finished(traced.graph, &outputs)),
        outputs: traced.result.iter().map(|o| o.dim).collect(),
    }
}
