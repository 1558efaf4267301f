//! Gradient accumulation: the gradient of a large batch from small ones, reduced across devices once.
//!
//! A batch that does not fit in memory is taken in parts, one after the other, whose gradients are
//! added. Written as a plain loop over parts, every part would be a batch split over devices of its
//! own, and its gradient would be summed over them: as many reductions as there are parts. Here the
//! devices that split the batch get a dimension of their own, which the loop keeps: each device adds up
//! the gradients of its own examples, and the sum over devices is taken after the loop. Where the
//! layout splits gradients over those devices (ZeRO-2 and 3) a device has no room for a whole sum, so
//! each part is reduced into shards. A layout that splits optimizer state alone (ZeRO-1) has that room:
//! whole sums are reduced into shards after the loop.

use std::panic::Location;

use shardax_core::random::only_keys_from_inside;
use shardax_core::{
    DType, Dim, Path, Role, Tensor, Tree, at, layout, mistake, scan, under, value_and_grad,
    vmap_named,
};
use shardax_sharding::{AxisPart, Layout};

/// The name of the dimension of examples, by which the layout is asked how they are split.
const BATCH: &str = "batch";

/// What to do about a key that would draw the same numbers for every part.
const KEYS: &str = "give the batch a key for each example, `key.split_array(examples)`, and draw inside of \
                    a `vmap` over examples: then the numbers depend on neither the layout nor the number \
                    of micro-batches";

/// [`value_and_grad`] of a batch, computed of `micro_batches` parts of it one after the other.
///
/// `f(parameters, examples)` is the loss of some examples: a mean over them, in which each counts the same
/// whatever the others are. Every leaf of the batch has a leading dimension of examples, as many as
/// `micro_batches` times the number of devices that the layout splits `batch` over divide. The
/// result is the mean over the whole batch, and its gradient, whatever the number of parts, the layout, and
/// with it the examples that make up a part. Where examples have different weights, such as numbers of
/// tokens that are not masked, use [`accumulate_weighted`].
///
/// Gradients are added in f32 (f64 where they are that), and returned in the parameters' types and
/// where the layout wants gradients. Each gradient is reduced over the devices of the batch once, after
/// the last part, unless the layout splits gradients over those devices by more than its rule for every
/// state ([`Layout::shard_every_state`]): then each part is reduced into shards.
///
/// The batch lies as the step that calls this annotates its own argument (`#[shard(batch, _)] tokens`); without
/// an annotation every device holds all of it.
///
/// In `f`, an annotation `batch` concerns the examples of one part. Drawing from a random key that
/// comes from outside of `f`, or of a seed, is a mistake, for every part would draw the same numbers:
/// make a key for each example a leaf of the batch
/// ([`Key::split_array`](shardax_core::random::Key::split_array)).
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_train::accumulate;
///
/// let step = |w: Tensor, x: Tensor| {
///     accumulate(4, |w: Tensor, x: Tensor| x.dot(w).square().mean(..))(w, x)
/// };
/// let types = (TensorType::new(DType::F32, [8]), TensorType::new(DType::F32, [32, 8]));
/// let program = trace(step, types)?;
/// assert_eq!(program.output_types()[1].to_string(), "f32[8]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[track_caller]
pub fn accumulate<P: Tree<Tensor>, B: Tree<Tensor>>(
    micro_batches: usize,
    f: impl Fn(P, B) -> Tensor,
) -> impl Fn(P, B) -> (Tensor, P) {
    let source = Location::caller();
    move |parameters, batch| {
        let weighted = |p: P, b: B| {
            let loss = f(p, b);
            (loss, Tensor::scalar(1.0, loss.dtype()))
        };
        at(source, || {
            accumulated(micro_batches, &weighted, parameters, batch)
        })
    }
}

/// [`accumulate`] of a loss that is a weighted mean: `f` returns the weighted sum of losses, and the sum of
/// weights, both scalars.
///
/// The result is the sum of all parts' sums over that of their weights, and its gradient, in which
/// weights count as constants: they must not depend on the parameters. If all weights are 0, the loss
/// and its gradient are 0.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_train::accumulate_weighted;
///
/// let step = |w: Tensor, x: Tensor, mask: Tensor| {
///     let loss = |w: Tensor, (x, mask): (Tensor, Tensor)| {
///         ((x.dot(w).square() * mask).sum(..), mask.sum(..))
///     };
///     accumulate_weighted(2, loss)(w, (x, mask))
/// };
/// let f32 = |shape: &[usize]| TensorType::new(DType::F32, shape);
/// assert!(trace(step, (f32(&[8]), f32(&[32, 8]), f32(&[32]))).is_ok());
/// ```
#[track_caller]
pub fn accumulate_weighted<P: Tree<Tensor>, B: Tree<Tensor>>(
    micro_batches: usize,
    f: impl Fn(P, B) -> (Tensor, Tensor),
) -> impl Fn(P, B) -> (Tensor, P) {
    let source = Location::caller();
    move |parameters, batch| at(source, || accumulated(micro_batches, &f, parameters, batch))
}

/// Gradients, the sum of losses and that of weights.
type Sums<P> = (P, Tensor, Tensor);

fn accumulated<P: Tree<Tensor>, B: Tree<Tensor>>(
    micro_batches: usize,
    f: &impl Fn(P, B) -> (Tensor, Tensor),
    parameters: P,
    batch: B,
) -> (Tensor, P) {
    let parts = Parts::new(micro_batches, &parameters, &batch);
    let of_part = |examples: B| {
        let loss = |p: P| {
            let (sum, weight) = f(p, examples.replace_leaves(&mut |_, x| *x));
            check_weight(weight);
            (sum, weight)
        };
        let same = parameters.replace_leaves(&mut |_, p| *p);
        let ((sum, weight), gradients) = under(&parts.inner, || {
            only_keys_from_inside(KEYS, || value_and_grad(loss)(same))
        });
        (gradients, sum, weight)
    };
    let zeros = |shape: &[usize]| Tensor::zeros(parts.dtype, parts.kept(shape));
    let start = (
        parameters.replace_leaves(&mut |path, p| {
            let zeros = Tensor::zeros(wide(p.dtype()), parts.kept(&p.shape()));
            parts.place(path, zeros)
        }),
        zeros(&[]),
        zeros(&[]),
    );
    let examples = batch.replace_leaves(&mut |_, x| parts.split(*x));
    let (sums, ()) = scan(start, examples, |sums: Sums<P>, examples: B| {
        let part = match parts.replicas {
            1 => of_part(examples),
            _ => vmap_named(BATCH, of_part)(examples),
        };
        (parts.add(sums, part), ())
    });
    parts.mean(sums, &parameters)
}

fn check_weight(weight: Tensor) {
    let ty = weight.ty();
    if ty.rank() != 0 {
        let problem = format!("the sum of weights is {ty}, not a scalar");
        let help = "return the sum of losses and the sum of weights, two scalars".to_owned();
        mistake("accumulate", problem, Some(help))
    }
}

/// The type in which gradients of this type are added.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// How a batch is taken apart, and what of it is kept apart.
struct Parts {
    micro_batches: usize,
    /// Examples of the whole batch.
    examples: usize,
    /// Into how many pieces the layout splits the batch.
    pieces: usize,
    /// Pieces whose sums are kept apart until the end: all of them, or 1.
    replicas: usize,
    /// The type in which losses and weights are added.
    dtype: DType,
    /// The layout that the function is traced for: where a piece has a dimension of its own, its
    /// examples are on one device.
    inner: Layout,
}

impl Parts {
    fn new<P: Tree<Tensor>, B: Tree<Tensor>>(
        micro_batches: usize,
        parameters: &P,
        batch: &B,
    ) -> Self {
        let examples = examples(batch);
        let layout = layout();
        let resolved = layout.resolve(Role::Activation, &[Dim::Logical(BATCH)], &[examples]);
        let axes = match resolved {
            Ok(resolved) => resolved.spec.entries()[0].clone(),
            Err(faults) => {
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                mistake("accumulate", faults.join("; "), None)
            }
        };
        let parts = axes.names().iter().map(|axis| layout.mesh().part(axis));
        let parts: Vec<AxisPart> = parts.flatten().collect();
        let pieces: usize = parts.iter().map(|part| part.size).product();
        let multiple = pieces.saturating_mul(micro_batches);
        if multiple == 0 || !examples.is_multiple_of(multiple) {
            let problem = match micro_batches {
                0 => "there are 0 micro-batches".to_owned(),
                _ => format!(
                    "a batch of {examples} examples cannot be taken in {micro_batches} micro-batches by \
                     {pieces} groups of devices"
                ),
            };
            let help = match micro_batches {
                0 => "take it in at least 1".to_owned(),
                _ => format!(
                    "make the batch a multiple of {multiple}: each device takes its examples in as many equal parts"
                ),
            };
            mistake("accumulate", problem, Some(help))
        }
        // A gradient that the layout splits over devices of the batch is reduced part by part. What the
        // rule for every state splits is whole while it is added up: that is ZeRO-1 and not 2.
        let summing = (*layout).clone().shard_every_state(());
        let (mut is_split, mut dtype) = (false, DType::F32);
        parameters.visit_leaves(&mut Path::root(), &mut |path, p| {
            if p.dtype() == DType::F64 {
                dtype = DType::F64;
            }
            let (dims, name) = (path.dims(), path.to_string());
            let spec = dims.and_then(|dims| {
                let resolved = summing.resolve_leaf(Role::Gradient, &name, Some(&dims), &p.shape());
                resolved.ok().map(|resolved| resolved.spec)
            });
            let split = spec.iter().flat_map(|spec| spec.entries());
            let names = split.flat_map(|entry| entry.names());
            let mut of_gradient = names.filter_map(|name| layout.mesh().part(name));
            is_split |= of_gradient.any(|own| parts.iter().any(|part| part.overlaps(own)));
        });
        let replicas = if is_split { 1 } else { pieces };
        Parts {
            micro_batches,
            examples,
            pieces,
            replicas,
            dtype,
            inner: match replicas {
                1 => (*layout).clone(),
                _ => (*layout)
                    .clone()
                    .shard(BATCH, ())
                    .shard_where_free(BATCH, ()),
            },
        }
    }

    /// The examples of each part, `[micro, replica, example, ..]`, or `[micro, example, ..]` where
    /// nothing is kept apart. No example moves to another device.
    fn split(&self, x: Tensor) -> Tensor {
        let (micro, pieces) = (self.micro_batches, self.pieces);
        let each = self.examples / (micro * pieces);
        let rest = x.shape()[1..].to_vec();
        let shape = |leading: &[usize]| [leading, &rest[..]].concat();
        let open = |leading: &[Dim]| [leading, &vec![Dim::Open; rest.len()][..]].concat();
        let batch = Dim::Logical(BATCH);

        let pieced = x.reshape(shape(&[pieces, micro, each]));
        let pieced = pieced.shard(&open(&[batch, Dim::Unsharded, Dim::Unsharded]));
        let mut order: Vec<usize> = (0..rest.len() + 3).collect();
        order.swap(0, 1);
        let parts = pieced.transpose(order);
        match self.replicas {
            1 => {
                let joined = parts.reshape(shape(&[micro, pieces * each]));
                joined.shard(&open(&[Dim::Unsharded, batch]))
            }
            _ => parts.shard(&open(&[Dim::Unsharded, batch, Dim::Unsharded])),
        }
    }

    /// The shape of sums of values of this shape.
    fn kept(&self, shape: &[usize]) -> Vec<usize> {
        match self.replicas {
            1 => shape.to_vec(),
            replicas => [&[replicas], shape].concat(),
        }
    }

    /// States where the sum of a leaf's gradients lies.
    fn place(&self, path: &Path, sum: Tensor) -> Tensor {
        if self.replicas == 1 {
            return sum.shard_leaf(path, Role::Gradient);
        }
        let own = path
            .dims()
            .unwrap_or_else(|| vec![Dim::Open; sum.rank() - 1]);
        sum.shard(&[&[Dim::Logical(BATCH)], &own[..]].concat())
    }

    fn add<P: Tree<Tensor>>(&self, sums: Sums<P>, part: Sums<P>) -> Sums<P> {
        let (gradients, loss, weight) = sums;
        let mut more = part.0.leaves().into_iter();
        let gradients = gradients.replace_leaves(&mut |path, sum| match more.next() {
            Some(gradient) => {
                let gradient = self.place(path, gradient.cast(sum.dtype()));
                self.place(path, *sum + gradient)
            }
            None => *sum,
        });
        let add = |sum: Tensor, x: Tensor| sum + x.cast(self.dtype);
        (gradients, add(loss, part.1), add(weight, part.2))
    }

    /// The weighted mean over all parts, and the mean gradient like `parameters`.
    fn mean<P: Tree<Tensor>>(&self, sums: Sums<P>, parameters: &P) -> (Tensor, P) {
        let total = |x: Tensor| match self.replicas {
            1 => x,
            _ => x.sum(0),
        };
        let (gradients, loss, weight) = sums;
        let weight = total(weight);
        let is_empty = weight.eq(0.0);
        let divisor = is_empty.select(weight.zeros_like() + 1.0, weight);
        let mean = |x: Tensor| {
            let mean = x / divisor.cast(x.dtype());
            is_empty.select(mean.zeros_like(), mean)
        };
        let mut sums = gradients.leaves().into_iter();
        let gradients = parameters.replace_leaves(&mut |path, p| match sums.next() {
            Some(sum) => {
                let sum = total(sum).shard_leaf(path, Role::Gradient);
                let mean = sum / divisor.cast(sum.dtype());
                let mean = is_empty
                    .broadcast_to(mean.shape())
                    .select(mean.zeros_like(), mean);
                mean.cast(p.dtype()).shard_leaf(path, Role::Gradient)
            }
            None => *p,
        });
        (mean(total(loss)), gradients)
    }
}

/// The number of examples, which all leaves of the batch have.
fn examples<B: Tree<Tensor>>(batch: &B) -> usize {
    let (mut sizes, mut listed) = (Vec::new(), Vec::new());
    batch.visit_leaves(&mut Path::root(), &mut |path, x| {
        let size = x.shape().first().copied();
        sizes.push(size);
        let path = match path.to_string() {
            path if path.is_empty() => "the batch".to_owned(),
            path => format!("`{path}`"),
        };
        listed.push(format!("{path} is {}", x.ty()));
    });
    match sizes.first() {
        Some(&Some(size)) if sizes.iter().all(|other| *other == Some(size)) => size,
        _ => {
            let problem = match sizes.is_empty() {
                true => "the batch has no leaf".to_owned(),
                false => format!(
                    "not all leaves of the batch have as many examples: {}",
                    listed.join(", ")
                ),
            };
            let help = "give every leaf a leading dimension of examples; let the function capture \
                        what all examples have in common";
            mistake("accumulate", problem, Some(help.to_owned()))
        }
    }
}
