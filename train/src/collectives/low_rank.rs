//! Gradients that are sent as thin factors.

use std::panic::Location;

use shardax_core::random::Key;
use shardax_core::{DType, Tensor, Tree, at, mistake, psum};
use shardax_macros::Module;
use shardax_sharding::Axes;

use super::feedback::{own_of, zeros_for};
use super::fused;
use crate::local_sgd::Replicas;

/// A sum over devices of gradients, each matrix as the product of two factors of few columns: PowerSGD.
///
/// Each step is one of the power method on the sum, from the factor of the step before. A device keeps
/// what the factors do not have of its own matrix, and adds it the next time, so that nothing is lost.
/// Leaves of less than two dimensions are summed exactly; of more, all dimensions but the first count
/// as one. (Vogels, Karimireddy, Jaggi, 2019.)
///
/// ```
/// use shardax_core::{DType, PartitionSpec, Tensor, TensorType, manual, trace, under};
/// use shardax_core::random::Key;
/// use shardax_sharding::{Layout, Mesh};
/// use shardax_train::collectives::{LowRank, LowRankState};
///
/// let layout = Layout::new(Mesh::new([("data", 4)])?).shard("replica", "data");
/// let compression = LowRank { rank: 2 };
/// let step = |gradients: Tensor| {
///     let state = compression.init(&gradients.index(0, 0), 4, Key::from_seed(0));
///     let (own, whole) = (PartitionSpec::new(("data",)), PartitionSpec::whole());
///     let region = manual(
///         "data",
///         (own.clone(), (own.clone(), whole.clone())),
///         whole,
///         |(g, (kept, basis)): (Tensor, _)| {
///             let state = LowRankState { kept, basis };
///             compression.all_reduce(g.index(0, 0), state, "data").0
///         },
///     );
///     region((gradients, (state.kept, state.basis)))
/// };
/// let program = under(&layout, || trace(step, TensorType::new(DType::F32, [4, 64, 32])))?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[64,32]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRank {
    /// How many columns a factor has at most. 0 counts as 1.
    pub rank: usize,
}

/// What [`LowRank`] takes from step to step.
#[derive(Clone, Debug, Module)]
pub struct LowRankState<P, B> {
    /// What each device has kept, in f32.
    pub kept: Replicas<P>,
    /// The second factor of each matrix, which all devices hold in common.
    pub basis: B,
}

impl LowRank {
    /// The state before the first step of `count` devices: random factors. Called outside of the region.
    #[track_caller]
    pub fn init<P: Tree<Tensor>>(
        &self,
        gradients: &P,
        count: usize,
        key: Key,
    ) -> LowRankState<P, Vec<Tensor>> {
        at(Location::caller(), || {
            let matrices = gradients.leaves().into_iter().filter_map(sizes);
            let basis = matrices.enumerate().map(|(i, [rows, columns])| {
                let shape = [columns, self.rank_of(rows, columns)];
                key.fold_in(i as i64).normal(DType::F32, shape)
            });
            LowRankState {
                basis: basis.collect(),
                kept: zeros_for(gradients, count),
            }
        })
    }

    /// The sum of every device's gradients over `axes`, as far as it is sent, and the next state.
    ///
    /// Called inside of a region over `axes`. All devices hold the sum in common; `kept` is split along
    /// its first dimension, of which a device has one, and `basis` is whole.
    #[track_caller]
    pub fn all_reduce<P: Tree<Tensor>>(
        &self,
        gradients: P,
        state: LowRankState<P, Vec<Tensor>>,
        axes: impl Into<Axes>,
    ) -> (P, LowRankState<P, Vec<Tensor>>) {
        let axes = axes.into();
        at(Location::caller(), || {
            let op = "LowRank::all_reduce";
            let kept = own_of(op, &gradients, state.kept);
            check_basis(op, &gradients, &state.basis);
            let pairs = gradients.leaves().into_iter().zip(kept.leaves());
            let totals: Vec<Tensor> = pairs.map(|(g, kept)| g.cast(DType::F32) + kept).collect();
            let sum = |parts: Vec<Tensor>| fused(&parts, |x| psum(x, axes.clone()));
            let matrices = || totals.iter().filter_map(|t| Some(t.reshape(sizes(*t)?)));

            // Columns of the sum, and what is no matrix beside them.
            let columns = matrices().zip(&state.basis).map(|(m, basis)| m.dot(*basis));
            let others = totals.iter().copied().filter(|t| sizes(*t).is_none());
            let mut first = sum(columns.chain(others).collect());
            let others = first.split_off(state.basis.len());
            let frames: Vec<Tensor> = first.into_iter().map(|columns| columns.qr().0).collect();
            // Each matrix seen from these columns.
            let own = matrices()
                .zip(&frames)
                .map(|(m, frame)| m.swap_axes(0, 1).dot(*frame));
            let own: Vec<Tensor> = own.collect();
            let basis = sum(own.clone());

            let (mut matrix, mut other) = (0, others.into_iter());
            let (mut sums, mut errors) = (Vec::new(), Vec::new());
            for (total, gradient) in totals.iter().zip(gradients.leaves()) {
                let (sum, error) = match sizes(*total) {
                    Some(_) => {
                        let of = |factor: Tensor| {
                            let product = frames[matrix].dot(factor.swap_axes(0, 1));
                            product.reshape(total.shape())
                        };
                        let both = (of(basis[matrix]), *total - of(own[matrix]));
                        matrix += 1;
                        both
                    }
                    None => (other.next().unwrap_or(*total), total.zeros_like()),
                };
                sums.push(sum.cast(gradient.dtype()));
                errors.push(error.expand_dims(0));
            }
            let state = LowRankState {
                kept: Replicas(kept.with_leaves(&errors)),
                basis,
            };
            (gradients.with_leaves(&sums), state)
        })
    }

    fn rank_of(self, rows: usize, columns: usize) -> usize {
        self.rank.max(1).min(rows).min(columns)
    }
}

/// Ends the trace if the factors are not those of the matrices.
fn check_basis<P: Tree<Tensor>>(op: &'static str, gradients: &P, basis: &[Tensor]) {
    let matrices: Vec<[usize; 2]> = gradients.leaves().into_iter().filter_map(sizes).collect();
    let fits = |([_, columns], factor): (&[usize; 2], &Tensor)| {
        factor.rank() == 2 && factor.size(0) == *columns
    };
    if matrices.len() != basis.len() || !matrices.iter().zip(basis).all(fits) {
        let types: Vec<String> = basis.iter().map(|b| b.ty().to_string()).collect();
        let problem = format!(
            "`basis` has {}, and is to have a matrix for each of the gradients' {} matrices, of as many \
             rows as that has columns",
            match types.as_slice() {
                [] => "nothing".to_owned(),
                types => types.join(", "),
            },
            matrices.len()
        );
        let help = "begin with `init` of gradients of these shapes".to_owned();
        mistake(op, problem, Some(help))
    }
}

/// Rows and columns of a leaf that counts as a matrix.
fn sizes(t: Tensor) -> Option<[usize; 2]> {
    let shape = t.shape();
    let (rows, columns) = shape.split_first()?;
    (!columns.is_empty()).then(|| [*rows, columns.iter().product()])
}
