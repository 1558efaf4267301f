//! A small run that is defined to the last bit, to compare frameworks loss by loss: integer hashes
//! give its initial values and its tokens.

use shardax::prelude::*;

use crate::model::Config;

/// The sizes of the run, and the number of sequences in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Size {
    Tiny,
    Small,
    Gpt2,
}

impl Size {
    pub(crate) fn config(self) -> (Config, usize) {
        let (layers, width, heads, vocab, context, batch) = match self {
            Size::Tiny => (2, 64, 4, 256, 64, 8),
            Size::Small => (4, 256, 8, 256, 128, 16),
            Size::Gpt2 => (12, 768, 12, 50257, 256, 4),
        };
        (
            Config {
                layers,
                width,
                heads,
                vocab,
                context,
            },
            batch,
        )
    }
}

/// The initial value of a weight, between -0.04 and 0.04. Each device computes its own part of it.
pub(crate) fn weight(name: &'static str, shape: &[usize]) -> Tensor {
    let random = mix32(row_major(shape) * 0x9e37_79b9_u32 + fnv1a(name));
    let uniform = (random >> 8).cast(DType::F32) * (-24f32).exp2();
    (uniform - 0.5) * 0.08
}

/// The tokens of all steps, `[steps, batch, context + 1]`.
pub(crate) fn tokens(config: Config, batch: usize, steps: usize) -> Tensor {
    let vocab = config.vocab as u32;
    let random = mix32(row_major(&[steps, batch, 1]) + 0x00c0_ffee_u32);
    let stride = (random >> 8) % 7 + 1;
    let position = Tensor::arange(DType::U32, config.context + 1);
    ((random % vocab + position * stride) % vocab).cast(DType::I32)
}

/// The position of each element in the whole tensor.
fn row_major(shape: &[usize]) -> Tensor {
    let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>() as u32;
    let index = |axis: usize| Tensor::iota(DType::U32, shape, axis as isize) * stride(axis);
    (0..shape.len())
        .map(index)
        .fold(Tensor::zeros(DType::U32, shape), |sum, i| sum + i)
}

/// A hash of integers.
fn mix32(x: Tensor) -> Tensor {
    let x = (x ^ (x >> 16)) * 0x7feb_352d_u32;
    let x = (x ^ (x >> 15)) * 0x846c_a68b_u32;
    x ^ (x >> 16)
}

/// A hash of bytes.
fn fnv1a(text: &str) -> u32 {
    let byte = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, byte)
}
