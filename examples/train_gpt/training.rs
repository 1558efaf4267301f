//! The training step: one function from a state and tokens to the next state and the loss.

use shardax::prelude::*;
use shardax::train::{AdamW, Moments, Precision, accumulate, clip_by_global_norm};

use crate::model::Gpt;

/// Everything that a step changes. The optimizer's moments have the structure and the annotations of
/// the model, so a layout splits them as it splits the parameters.
#[derive(Clone, Debug, Module)]
pub(crate) struct TrainState<L = Tensor> {
    pub(crate) model: Gpt<L>,
    moments: Moments<Gpt<L>>,
    step: L,
}

/// What a step does with gradients, and in which element type the model computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    pub(crate) adam: AdamW,
    pub(crate) precision: Precision,
    /// In how many parts, one after the other, a batch is taken.
    pub(crate) micro_batches: usize,
    /// Whether the values of a layer are computed again in the backward pass.
    pub(crate) remat: bool,
}

impl Recipe {
    /// AdamW that decays the weights, whose names begin with `w`, and not gains, offsets and biases.
    pub(crate) fn new(lr: f64, precision: Precision) -> Self {
        let is_weight = |path: &Path, _| {
            let path = path.to_string();
            path.rsplit('.')
                .next()
                .is_some_and(|name| name.starts_with('w'))
        };
        let adam = AdamW {
            lr,
            decays: is_weight,
            ..AdamW::default()
        };
        Recipe {
            adam,
            precision,
            micro_batches: 1,
            remat: false,
        }
    }

    pub(crate) fn init(&self, model: Gpt) -> TrainState {
        let moments = self.adam.init(&model);
        TrainState {
            model,
            moments,
            step: Tensor::scalar(0, DType::I32),
        }
    }

    /// The next state, the loss, and the gradients that the state was changed by, before they are clipped.
    pub(crate) fn step(&self, state: TrainState, tokens: Tensor) -> (TrainState, Tensor, Gpt) {
        let remat = self.remat;
        let loss = |model: Gpt, tokens: Tensor| {
            let model = Gpt { remat, ..model };
            self.precision.cast(model).loss(tokens)
        };
        let (loss, gradients) = match self.micro_batches {
            1 => value_and_grad(|model: Gpt| loss(model, tokens))(state.model.clone()),
            parts => accumulate(parts, loss)(state.model.clone(), tokens),
        };
        let (clipped, _norm) = clip_by_global_norm(gradients.clone(), 1.0);
        let (model, moments) = self
            .adam
            .update(state.model, clipped, state.moments, state.step);
        let step = state.step + 1;
        let state = TrainState {
            model,
            moments,
            step,
        };
        (state, loss, gradients)
    }
}
