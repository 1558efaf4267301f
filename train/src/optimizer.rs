//! Optimizers.
//!
//! An optimizer is a plain value of numbers. Its state is a tree of the parameters' structure, with
//! their annotations, so that a layout that splits a parameter splits its state the same way. A layout
//! may split state further (ZeRO): an update is computed where state lies, of shards of parameters and
//! gradients.

use std::panic::Location;

use shardax_core::{DType, Path, Role, Tensor, Tree, at, mistake};
use shardax_macros::Module;

use crate::trees::differences;

/// Adam with decoupled weight decay.
/// (Loshchilov, Hutter: "Decoupled weight decay regularization", 2019.)
///
/// With gradient `g` and `t` counting updates from 1:
///
/// ```text
/// m = b1 m + (1 - b1) g
/// v = b2 v + (1 - b2) g^2
/// p = p - lr ((m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p)
/// ```
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_train::AdamW;
///
/// let adam = AdamW { lr: 1e-2, ..AdamW::default() };
/// let w = TensorType::new(DType::F32, [4, 4]);
/// let step = TensorType::scalar(DType::I32);
/// let update = |w: Tensor, g: Tensor, step: Tensor| {
///     adam.update(w, g, adam.init(&w), step)
/// };
/// assert_eq!(trace(update, (w.clone(), w, step))?.output_types().len(), 3);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// The learning rate.
    pub lr: f64,
    /// How much of the first moment stays in each update.
    pub b1: f64,
    /// How much of the second moment stays in each update.
    pub b2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// How much of a parameter that decays is taken away in each update, times the learning rate.
    pub weight_decay: f64,
    /// Which parameters decay, by their path and number of dimensions: as many as their annotation names.
    /// Those that stacks add do not count ([`Path::own_rank`]).
    pub decays: fn(&Path, usize) -> bool,
}

impl Default for AdamW {
    /// Rate 1e-3, moments 0.9 and 0.95, eps 1e-8, decay 0.1 of what has two dimensions or more:
    /// weights, but not biases or gains.
    fn default() -> Self {
        AdamW {
            lr: 1e-3,
            b1: 0.9,
            b2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            decays: |_, rank| rank >= 2,
        }
    }
}

/// Running means of gradients and of their squares: the state of [`AdamW`], in f32.
#[derive(Clone, Debug, Module)]
pub struct Moments<P> {
    /// Means of gradients.
    #[module(state)]
    pub first: P,
    /// Means of their squares.
    #[module(state)]
    pub second: P,
}

impl AdamW {
    /// The state before the first update: zeros.
    #[track_caller]
    pub fn init<P: Tree<Tensor>>(&self, parameters: &P) -> Moments<P> {
        let zeros = || parameters.replace_leaves(&mut |_, p| Tensor::zeros(DType::F32, p.shape()));
        at(Location::caller(), || Moments {
            first: zeros(),
            second: zeros(),
        })
    }

    /// One update. `step` is the number of updates before it, a scalar integer of 32 or 64 bits: a narrower type, or a
    /// float, would stop counting.
    ///
    /// Gradients and state have the structure and the shapes of the parameters; it is a mistake of the
    /// traced function if they have not.
    #[track_caller]
    pub fn update<P: Tree<Tensor>>(
        &self,
        parameters: P,
        gradients: P,
        state: Moments<P>,
        step: Tensor,
    ) -> (P, Moments<P>) {
        at(Location::caller(), || {
            check_alike(&parameters, &gradients, &state, step);
            self.updated(
                |update| update * self.lr,
                parameters,
                gradients,
                state,
                step,
            )
        })
    }

    /// [`AdamW::update`] with a learning rate that is computed in the step, a floating-point scalar, in place of
    /// [`AdamW::lr`]: what a [`Schedule`](crate::Schedule) gives, or anything else.
    #[track_caller]
    pub fn update_at<P: Tree<Tensor>>(
        &self,
        lr: Tensor,
        parameters: P,
        gradients: P,
        state: Moments<P>,
        step: Tensor,
    ) -> (P, Moments<P>) {
        at(Location::caller(), || {
            if !lr.dtype().is_float() || lr.rank() != 0 {
                let problem = format!("`lr` is {}, and a rate is a floating-point scalar", lr.ty());
                mistake("AdamW::update_at", problem, None)
            }
            let lr = lr.cast(DType::F32);
            self.updated(|update| update * lr, parameters, gradients, state, step)
        })
    }

    fn updated<P: Tree<Tensor>>(
        &self,
        scaled: impl Fn(Tensor) -> Tensor,
        parameters: P,
        gradients: P,
        state: Moments<P>,
        step: Tensor,
    ) -> (P, Moments<P>) {
        check_alike(&parameters, &gradients, &state, step);
        let t = step.cast(DType::F32) + 1.0;
        let bias = |b: f64| 1.0 - Tensor::scalar(b, DType::F32).pow(t);
        let (bias1, bias2) = (bias(self.b1), bias(self.b2));

        let mut moments = gradients
            .leaves()
            .into_iter()
            .zip(state.first.leaves().into_iter().zip(state.second.leaves()));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let parameters = parameters.replace_leaves(&mut |path, p| {
            let Some((g, (m, v))) = moments.next() else {
                return *p;
            };
            let g = g.shard_leaf(path, Role::State).cast(DType::F32);
            let shard = p.shard_leaf(path, Role::State);
            let m = m * self.b1 + g * (1.0 - self.b1);
            let v = v * self.b2 + g.square() * (1.0 - self.b2);
            first.push(m);
            second.push(v);
            let mut update = (m / bias1) / ((v / bias2).sqrt() + self.eps);
            if (self.decays)(path, path.own_rank(p.rank())) {
                update += shard.cast(DType::F32) * self.weight_decay;
            }
            let updated = (shard.cast(DType::F32) - scaled(update)).cast(p.dtype());
            // Shards are computed, and only then gathered.
            let updated = updated.shard_leaf(path, Role::State);
            updated.shard_leaf(path, Role::Parameter)
        });
        let moments = Moments {
            first: state.first.with_leaves(&first),
            second: state.second.with_leaves(&second),
        };
        (parameters, moments)
    }
}

/// Ends the trace if leaves of the trees have no partners: the wrong ones would be paired.
fn check_alike<P: Tree<Tensor>>(parameters: &P, gradients: &P, state: &Moments<P>, step: Tensor) {
    let others = [
        (gradients, "gradients"),
        (&state.first, "state.first"),
        (&state.second, "state.second"),
    ];
    let mut problems: Vec<String> = others
        .into_iter()
        .flat_map(|(other, name)| differences(parameters, other, name))
        .collect();
    let mut help = Vec::new();
    if !problems.is_empty() {
        help.push(
            "differentiate by the parameters that are updated, and keep the state that `init` makes of them",
        );
    }
    let counts = step.dtype().is_integer() && step.dtype().bits() >= 32;
    if !counts || step.rank() != 0 {
        problems.push(format!(
            "`step` is {}, and counts as a scalar integer of 32 or 64 bits",
            step.ty()
        ));
        help.push("keep the number of updates as `i32[]`");
    }
    if !problems.is_empty() {
        mistake("AdamW::update", problems.join("; "), Some(help.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use shardax_core::{Stack, TensorType, trace};

    use super::*;

    /// How many leaves decay: each writes one product with the decay.
    fn decaying(shapes: &[&[usize]]) -> Result<usize, shardax_core::Error> {
        let adam = AdamW {
            weight_decay: 0.625,
            ..AdamW::default()
        };
        let update = |p: Stack<Vec<Tensor>>| {
            let zeros = p.replace_leaves(&mut |_, leaf| leaf.zeros_like());
            let step = Tensor::scalar(0, DType::I32);
            adam.update(p.clone(), zeros, adam.init(&p), step).0
        };
        let types = shapes
            .iter()
            .map(|shape| TensorType::new(DType::F32, shape))
            .collect();
        let program = trace(update, Stack(types))?.graph.to_string();
        Ok(program.matches("constant 0.625").count())
    }

    #[test]
    fn the_layers_of_a_stack_do_not_make_a_matrix_of_a_bias() -> Result<(), shardax_core::Error> {
        assert_eq!(decaying(&[&[12, 64], &[12]])?, 0);
        assert_eq!(decaying(&[&[12, 64, 64]])?, 1);
        Ok(())
    }

    #[derive(Clone, Module)]
    struct Layer<L = Tensor> {
        #[shard(embed, mlp)]
        up: L,
        #[shard(embed)]
        gain: L,
        experts: Stack<Expert<L>>,
    }

    #[derive(Clone, Module)]
    struct Expert<L = Tensor> {
        #[shard(embed, mlp)]
        up: L,
        #[shard(mlp)]
        bias: L,
    }

    #[test]
    fn stacks_in_stacks_do_not_make_a_matrix_of_a_gain() {
        let layers = |dims: &[usize]| TensorType::new(DType::F32, dims);
        let types = Stack(Layer {
            up: layers(&[12, 64, 128]),
            gain: layers(&[12, 64]),
            experts: Stack(Expert {
                up: layers(&[12, 8, 64, 128]),
                bias: layers(&[12, 8, 128]),
            }),
        });
        let mut decaying = Vec::new();
        types.visit_leaves(&mut Path::root(), &mut |path, ty: &TensorType| {
            if (AdamW::default().decays)(path, path.own_rank(ty.rank())) {
                decaying.push(path.to_string());
            }
        });
        assert_eq!(decaying, ["up", "experts.up"]);
    }

    #[test]
    fn a_counter_that_would_stop_counting_is_refused() {
        let update = |step: TensorType| {
            let ty = TensorType::new(DType::F32, [2]);
            let update = |p: Tensor, step: Tensor| {
                let adam = AdamW::default();
                adam.update(p, p, adam.init(&p), step).0
            };
            trace(update, (ty, step)).map(|_| ())
        };
        for dtype in DType::ALL {
            let counts = [DType::I32, DType::I64, DType::U32, DType::U64].contains(&dtype);
            let outcome = update(TensorType::scalar(dtype));
            assert_eq!(outcome.is_ok(), counts, "{dtype}");
        }
        let message = match update(TensorType::new(DType::I32, [2])) {
            Ok(()) => "it traces".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(
            message.starts_with(
                "`AdamW::update`: `step` is i32[2], and counts as a scalar integer of 32 or 64 bits\n"
            ),
            "{message}"
        );
        assert!(
            message.ends_with("help: keep the number of updates as `i32[]`"),
            "{message}"
        );
    }

    #[test]
    fn trees_that_are_not_like_the_parameters_are_refused_together() {
        let update = |p: Vec<Tensor>| {
            let adam = AdamW::default();
            let step = Tensor::scalar(0, DType::I32);
            let mut state = adam.init(&p);
            state.second[1] = state.second[1].reshape([2, 1]);
            adam.update(p.clone(), p[1..].to_vec(), state, step).0
        };
        let ty = TensorType::new(DType::F32, [2]);
        let line = line!() - 3;
        let message = match trace(update, vec![ty.clone(), ty]) {
            Ok(_) => "it traces".to_owned(),
            Err(error) => error.to_string(),
        };
        let expected = format!(
            "`AdamW::update`: `gradients` has another structure than the parameters (number of \
             leaves: 1 and 2); `state.second.1` is f32[2,1], and the parameter is f32[2]\n  --> {}:{line}:18\n",
            file!()
        );
        assert!(message.starts_with(&expected), "{message}");
    }
}
