//! Writing text with a trained model.

use shardax::prelude::*;

use crate::model::Gpt;

/// Below 1, likely tokens become likelier.
const TEMPERATURE: f64 = 0.7;

/// Continues each row of `window`, `[batch, context]`, by `count` tokens: `[batch, count]`.
///
/// The model reads the window, the next token is drawn from what it expects, and the window moves on
/// by one. All of it is one program: the loop runs on the devices.
#[shard]
pub(crate) fn sample(
    model: Gpt,
    #[shard(batch, _)] window: Tensor,
    key: Key,
    count: usize,
) -> Tensor {
    let draw = |window: Tensor, i: Tensor| {
        let last = model.hidden(window).index(1, window.size(1) - 1);
        let next = key
            .fold_in(i)
            .categorical(model.logits(last) / TEMPERATURE, -1);
        let window = concatenate([window.slice(1, 1..), next.expand_dims(-1)], 1);
        (window, next)
    };
    let (_, tokens) = scan(window, Tensor::arange(DType::I32, count), draw);
    tokens.transpose([1, 0])
}
