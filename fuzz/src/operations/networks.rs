//! The functions of networks, and random numbers.

use shardax::nn::{
    self, AttentionOptions, BlockSizes, ChunkSizes, CrossEntropyOptions, Rope, attention,
};
use shardax::random::Key;
use shardax::{DType, Tensor};

use super::Class::{Float, Wide};
use super::Want::{Any, Fits, Made, Same};
use super::{Operation, operations, size};
use crate::dice::Dice;
use crate::program::{Parameters, Type};

fn float(dice: &mut Dice) -> DType {
    *dice.one_of(&[DType::F32, DType::F32, DType::F64, DType::BF16])
}

/// `[batch, seq, heads, head_dim]`.
fn queries(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    let heads = *dice.one_of(&[1, 2, 4]);
    let shape = [
        1 + dice.roll(4),
        1 + dice.roll(8),
        heads,
        *dice.one_of(&[1, 2, 4]),
    ];
    Some(Type::new(float(dice), shape))
}

/// Keys or values of the queries: fewer heads perhaps, and another length.
fn keys(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    let mut ty = types[0].clone();
    if dice.once_in(3) {
        ty.shape[2] = 1;
    }
    if dice.once_in(3) {
        ty.shape[1] = 1 + dice.roll(8);
    }
    Some(ty)
}

fn logits(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    let mut shape: Vec<usize> = (0..dice.roll(3)).map(|_| size(dice)).collect();
    shape.push(1 + dice.roll(8));
    Some(Type::new(float(dice), shape))
}

/// An integer for each position of the first operand.
fn positions(_: &mut Dice, types: &[Type]) -> Option<Type> {
    let (_, outer) = types[0].shape.split_last()?;
    Some(Type::new(DType::I32, outer))
}

fn hidden(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    Some(Type::new(
        float(dice),
        [1 + dice.roll(3), 1 + dice.roll(6), 1 + dice.roll(4)],
    ))
}

/// The output table `[embed, vocab]` of the hidden values.
fn output(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    Some(Type::new(
        types[0].dtype,
        [types[0].shape[2], 1 + dice.roll(8)],
    ))
}

/// One number for each element of the last dimension.
fn last(_: &mut Dice, types: &[Type]) -> Option<Type> {
    Some(Type::new(types[0].dtype, [*types[0].shape.last()?]))
}

fn table(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    Some(Type::new(float(dice), [1 + dice.roll(8), size(dice)]))
}

fn ids(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    Some(Type::new(DType::I32, [size(dice), 1 + dice.roll(3)]))
}

/// `[batch, space, channels]`, of which there are four.
fn channels(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    Some(Type::new(float(dice), [1 + dice.roll(4), size(dice), 4]))
}

operations! { with x, p;
    "gelu" [Any(Float, 0)] x[0].gelu();
    "gelu_exact" [Any(Float, 0)] x[0].gelu_exact();
    "relu" [Any(Float, 0)] x[0].relu();
    "relu6" [Any(Float, 0)] x[0].relu6();
    "leaky_relu" [Any(Float, 0)] x[0].leaky_relu(0.1);
    "prelu" [Any(Float, 0), Fits(0)] x[0].prelu(x[1]);
    "elu" [Any(Float, 0)] x[0].elu(0.7);
    "selu" [Any(Float, 0)] x[0].selu();
    "celu" [Any(Float, 0)] x[0].celu(0.8);
    "silu" [Any(Float, 0)] x[0].silu();
    "softplus" [Any(Float, 0)] x[0].softplus();
    "log_sigmoid" [Any(Float, 0)] x[0].log_sigmoid();
    "softsign" [Any(Float, 0)] x[0].softsign();
    "mish" [Any(Float, 0)] x[0].mish();
    "hard_tanh" [Any(Float, 0)] x[0].hard_tanh();
    "hard_sigmoid" [Any(Float, 0)] x[0].hard_sigmoid();
    "hard_swish" [Any(Float, 0)] x[0].hard_swish();
    "squareplus" [Any(Float, 0)] x[0].squareplus(4.0);
    "glu" [Any(Float, 1)] x[0].repeat(2, p.axis).glu(p.axis);
    "swiglu" [Any(Float, 0), Same(0)] nn::swiglu(x[0], x[1]);
    "geglu" [Any(Float, 0), Same(0)] nn::geglu(x[0], x[1]);
    "attention" [Made(queries), Made(keys), Same(1)]
        attention(x[0], x[1], x[2], AttentionOptions::default());
    "causal attention" [Made(queries), Made(keys), Same(1)]
        attention(x[0], x[1], x[2], AttentionOptions::causal());
    "attention in a window" [Made(queries), Made(keys), Same(1)]
        attention(x[0], x[1], x[2], AttentionOptions { window: (Some(p.count), Some(1)), softcap: Some(5.0), ..AttentionOptions::default() });
    "blockwise attention" [Made(queries), Made(keys), Same(1)]
        nn::blockwise_attention(x[0], x[1], x[2], AttentionOptions { causal: p.flag, ..AttentionOptions::default() }, BlockSizes { queries: p.count, keys: p.step });
    "cross_entropy" [Made(logits), Made(positions)]
        nn::cross_entropy(x[0], x[1], CrossEntropyOptions { ignored: Some(0), label_smoothing: 0.1, ..CrossEntropyOptions::default() });
    "cross_entropy of classes" [Made(logits), Made(positions)]
        nn::cross_entropy(x[0], x[1].modulo(x[0].size(-1) as i64), CrossEntropyOptions { z_loss: 0.01, ..CrossEntropyOptions::default() });
    "chunked_cross_entropy" [Made(hidden), Made(output), Made(positions)]
        nn::chunked_cross_entropy(x[0], x[1], x[2].modulo(x[1].size(1) as i64), CrossEntropyOptions::default(), ChunkSizes { positions: p.count, classes: p.step });
    "binary_cross_entropy" [Any(Float, 0), Same(0)] nn::binary_cross_entropy(x[0], x[1].sigmoid(), None);
    "mse" [Any(Float, 0), Same(0)] nn::mse(x[0], x[1], None);
    "weighted mse" [Any(Float, 0), Same(0)] nn::mse(x[0], x[1], Some(x[0].square()));
    "huber" [Any(Float, 0), Same(0)] nn::huber(x[0], x[1], None, 0.8);
    "kl_div" [Any(Float, 1), Same(0)] nn::kl_div(x[0].log_softmax(-1), x[1].log_softmax(-1), None);
    "weighted_mean" [Any(Float, 0), Same(0)] nn::weighted_mean(x[0], Some(x[1].abs()));
    "layer_norm" [Any(Float, 1), Made(last), Same(1)]
        nn::layer_norm(x[0], Some(x[1]), Some(x[2]), -1, 1e-3);
    "layer_norm over axes" [Any(Float, 0)] nn::layer_norm(x[0], None, None, &p.axes[..], 1e-3);
    "rms_norm" [Any(Float, 1), Made(last)] nn::rms_norm(x[0], Some(x[1]), -1, 1e-3);
    "batch_norm" [Any(Float, 1)] nn::batch_norm(x[0], None, None, p.axis, 1e-3).0;
    "group_norm" [Made(channels)] nn::group_norm(x[0], None, None, 2, -1, 1e-3);
    "instance_norm" [Made(channels)] nn::instance_norm(x[0], None, None, -1, 1e-3);
    "embedding" [Made(table), Made(ids)] nn::embedding(x[1], x[0]);
    "embedding_one_hot" [Made(table), Made(ids)] nn::embedding_one_hot(x[1], x[0]);
    "rope" [Made(queries)]
        Rope { interleaved: p.flag, dims: Some(x[0].size(-1) / 2 * 2), ..Rope::default() }.apply(x[0], Tensor::arange(DType::I32, x[0].size(1)));
    "dropout" [Any(Wide, 0)] nn::dropout(x[0], Key::from_seed(p.count as u64), 0.4);
    "uniform" [Any(Wide, 0)] Key::from_seed(p.index as u64).uniform(x[0].dtype(), x[0].shape()) + x[0];
    "normal" [Any(Wide, 0)] x[0] * Key::from_seed(p.count as u64).fold_in(3).normal(x[0].dtype(), x[0].shape());
    "randint" [Any(Wide, 0)] Key::from_seed(p.step as u64).randint(-3, 9, x[0].shape());
    "bernoulli" [Any(Wide, 0)] Key::from_seed(p.step as u64).bernoulli(0.3, x[0].shape());
}
