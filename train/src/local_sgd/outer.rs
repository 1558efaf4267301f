//! The outer optimizer.

use std::panic::Location;

use shardax_core::{DType, PartitionSpec, Role, Tensor, Tree, at, manual, mistake, psum};
use shardax_macros::Module;
use shardax_sharding::Axes;

use super::replicas::{Replicas, replica_axes};
use crate::trees::differences;

/// Stochastic gradient descent with Nesterov momentum, whose gradient is by how much replicas have
/// moved, in the mean, since they agreed last. (Douillard et al., 2023.)
///
/// With parameters `p`, and those `q` of the replicas after their own steps:
///
/// ```text
/// g = p - mean(q)
/// v = momentum v + g
/// p = p - lr (g + momentum v)
/// ```
///
/// `lr` 1 without momentum is the mean of the replicas (local SGD, or federated averaging).
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_train::{DiLoCo, Replicas, on_each_replica};
///
/// // Two replicas pull in two directions, three steps each; then they agree.
/// let round = |w: Tensor, targets: Replicas<Tensor>| {
///     let diloco = DiLoCo::default();
///     let outer = diloco.init(w, 2);
///     let mut own = Replicas::of(&outer.parameters, 2);
///     for _ in 0..3 {
///         let step = on_each_replica(|(w, target): (Tensor, Tensor)| w + (target - w) * 0.1);
///         own = step(Replicas((own.0, targets.0)));
///     }
///     diloco.update(outer, own).parameters
/// };
/// let types = (TensorType::new(DType::F32, [8]), Replicas(TensorType::new(DType::F32, [2, 8])));
/// assert_eq!(trace(round, types)?.output_types()[0].to_string(), "f32[8]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiLoCo {
    /// The learning rate.
    pub lr: f64,
    /// How much of the momentum stays in each update.
    pub momentum: f64,
    /// Whether the momentum after the update counts (Nesterov), or the momentum alone.
    pub nesterov: bool,
    /// Whether an update is made of how far replicas moved in the round *before*. What has to cross the
    /// network is then there a round early: in one program with the steps of a round, it travels while
    /// they are computed.
    pub delayed: bool,
}

impl Default for DiLoCo {
    /// Rate 0.7 and Nesterov momentum 0.9, as in the paper; at once.
    fn default() -> Self {
        DiLoCo {
            lr: 0.7,
            momentum: 0.9,
            nesterov: true,
            delayed: false,
        }
    }
}

/// What replicas have agreed on: the parameters and the state of [`DiLoCo`].
#[derive(Clone, Debug, Module)]
pub struct Outer<P> {
    /// The parameters with which replicas begin a round.
    pub parameters: P,
    /// The momentum, in f32.
    #[module(state)]
    pub momentum: P,
    /// Where updates are delayed: how far each replica moved in the last round, in f32.
    #[module(state)]
    pub moved: Option<Replicas<P>>,
}

impl DiLoCo {
    /// The state before the first round of this many replicas.
    #[track_caller]
    pub fn init<P: Tree<Tensor>>(&self, parameters: P, replicas: usize) -> Outer<P> {
        at(Location::caller(), || {
            let zeros = parameters.replace_leaves(&mut |_, p| Tensor::zeros(DType::F32, p.shape()));
            Outer {
                moved: self.delayed.then(|| Replicas::of(&zeros, replicas)),
                momentum: zeros,
                parameters,
            }
        })
    }

    /// One update, of the replicas' parameters at the end of a round. The sum over the replicas is a
    /// [`psum`] of each parameter.
    #[track_caller]
    pub fn update<P: Tree<Tensor>>(&self, outer: Outer<P>, replicas: Replicas<P>) -> Outer<P> {
        at(Location::caller(), || {
            self.update_by(outer, replicas, |moved, axes| psum(moved, axes.clone()))
        })
    }

    /// [`DiLoCo::update`] with a sum of the user's own: `sum` is called inside of a region over the
    /// axes of the replicas, with one device's addend, and returns what all hold in common, such as a
    /// [`quantized_all_reduce`](crate::collectives::quantized_all_reduce). It is not called where the
    /// replicas are all on one device.
    #[track_caller]
    pub fn update_by<P: Tree<Tensor>>(
        &self,
        outer: Outer<P>,
        replicas: Replicas<P>,
        sum: impl Fn(P, &Axes) -> P,
    ) -> Outer<P> {
        at(Location::caller(), || {
            let op = "DiLoCo::update";
            let count = replicas.count(op);
            let moved = moved(op, &outer.parameters, replicas);
            let (late, moved) = match (self.delayed, outer.moved) {
                (true, Some(before)) => (before, Some(moved)),
                (false, None) => (moved, None),
                (true, None) | (false, Some(_)) => {
                    let problem = "the state is not that of this optimizer: one is `delayed`, and \
                                   one is not";
                    mistake(
                        op,
                        problem.to_owned(),
                        Some("keep what `init` makes".to_owned()),
                    )
                }
            };
            let gradient = mean(op, late, count, sum);
            let (parameters, momentum) = self.stepped(outer.parameters, gradient, outer.momentum);
            Outer {
                parameters,
                momentum,
                moved,
            }
        })
    }

    fn stepped<P: Tree<Tensor>>(&self, parameters: P, gradient: P, momentum: P) -> (P, P) {
        let mut rest = gradient.leaves().into_iter().zip(momentum.leaves());
        let mut velocities = Vec::new();
        let parameters = parameters.replace_leaves(&mut |path, p| {
            let Some((g, v)) = rest.next() else {
                return *p;
            };
            let g = g.shard_leaf(path, Role::State);
            let v = v * self.momentum + g;
            velocities.push(v);
            let step = match self.nesterov {
                true => g + v * self.momentum,
                false => v,
            };
            let shard = p.shard_leaf(path, Role::State).cast(DType::F32);
            let updated = (shard - step * self.lr).cast(p.dtype());
            let updated = updated.shard_leaf(path, Role::State);
            updated.shard_leaf(path, Role::Parameter)
        });
        (parameters, momentum.with_leaves(&velocities))
    }
}

/// How far each replica is from the parameters, in f32.
fn moved<P: Tree<Tensor>>(op: &'static str, parameters: &P, replicas: Replicas<P>) -> Replicas<P> {
    let first = replicas.0.replace_leaves(&mut |_, q| q.index(0, 0));
    let problems = differences(parameters, &first, "replicas");
    if !problems.is_empty() {
        mistake(op, problems.join("; "), None)
    }
    let mut begun = parameters.leaves().into_iter();
    Replicas(replicas.0.replace_leaves(&mut |_, q| {
        let q = q.cast(DType::F32);
        begun
            .next()
            .map_or(q, |p| p.cast(DType::F32).expand_dims(0) - q)
    }))
    .placed()
}

/// The mean over the replicas.
fn mean<P: Tree<Tensor>>(
    op: &'static str,
    moved: Replicas<P>,
    count: usize,
    sum: impl Fn(P, &Axes) -> P,
) -> P {
    let axes = replica_axes(op, count);
    if axes.is_empty() {
        return moved.0.replace_leaves(&mut |_, t| t.mean(0));
    }
    let own = PartitionSpec::new([axes.clone()]);
    let region = manual(axes.clone(), own, PartitionSpec::whole(), |block: P| {
        let own = block.replace_leaves(&mut |_, t| t.sum(0));
        sum(own, &axes).replace_leaves(&mut |_, t| *t / count as f64)
    });
    region(moved.0)
}
