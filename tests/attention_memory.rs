//! What the compiled program keeps: blockwise attention's temporary memory grows with the sequence,
//! plain attention's with its square, and a chunked loss never has the logits.

use shardax::nn::{
    self, AttentionOptions, BlockSizes, ChunkSizes, CrossEntropyOptions, blockwise_attention,
};
use shardax::prelude::*;

/// Temporary memory of the compiled gradient of attention, in bytes.
fn temporary(seq: usize, attend: fn(Tensor, Tensor, Tensor) -> Tensor) -> u64 {
    let gradient = jit(move |qkv: (Tensor, Tensor, Tensor)| {
        grad(move |(q, k, v): (Tensor, Tensor, Tensor)| attend(q, k, v).square().sum(..))(qkv)
    });
    let ty = TensorType::new(DType::F32, [1, seq, 2, 8]);
    let program = gradient.compile((ty.clone(), ty.clone(), ty)).unwrap();
    program.memory().unwrap().temp
}

#[test]
fn blockwise_attention_grows_linearly() {
    let blockwise = |q: Tensor, k: Tensor, v: Tensor| {
        let blocks = BlockSizes {
            queries: 64,
            keys: 64,
        };
        blockwise_attention(q, k, v, AttentionOptions::causal(), blocks)
    };
    let plain =
        |q: Tensor, k: Tensor, v: Tensor| nn::attention(q, k, v, AttentionOptions::causal());
    let [short, long] = [1024, 4096].map(|seq| temporary(seq, blockwise));
    assert!(long < 5 * short, "{short} bytes became {long}");
    let whole = temporary(4096, plain);
    assert!(whole >= 2 * 4096 * 4096 * 4, "{whole}");
    assert!(long < whole / 20, "{long} bytes, and {whole} of all scores");
}

#[test]
fn a_chunked_loss_has_no_logits() {
    let (seq, features, classes) = (1024, 16, 8192);
    let loss = |(hidden, weight): (Tensor, Tensor)| {
        let labels = Tensor::zeros(DType::I32, [1, 1024]);
        let chunks = ChunkSizes {
            positions: 128,
            classes: 1024,
        };
        let options = CrossEntropyOptions::default();
        nn::chunked_cross_entropy(hidden, weight, labels, options, chunks)
    };
    let types = (
        TensorType::new(DType::F32, [1, seq, features]),
        TensorType::new(DType::F32, [features, classes]),
    );
    let program = jit(move |x: (Tensor, Tensor)| grad(loss)(x));
    let temp = program.compile(types).unwrap().memory().unwrap().temp;
    let logits = (seq * classes * 4) as u64;
    assert!(
        temp < logits / 8,
        "{temp} bytes, and {logits} of all logits"
    );
}
