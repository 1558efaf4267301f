//! Layers, attention and losses.

use shardax::nn::{
    self, AttentionOptions, BlockSizes, ChunkSizes, CrossEntropyOptions, Rope, RopeScaling,
};
use shardax::prelude::*;

use crate::golden::Params;

pub(super) fn apply(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let one = unit(op, params, x)
        .or_else(|| norm(op, params, x))
        .or_else(|| attention(op, params, x))
        .or_else(|| loss(op, params, x));
    one.map(|result| vec![result])
        .or_else(|| several(op, params, x))
}

fn unit(op: &str, params: &Params, x: &[Tensor]) -> Option<Tensor> {
    let axis = || params.axis("axis");
    Some(match op {
        "softmax" => x[0].softmax(axis()),
        "softmax_where" => x[0].softmax_where(with_first(x[1]), -1),
        "log_softmax" => x[0].log_softmax(axis()),
        "glu" => x[0].glu(axis()),
        "swiglu" => nn::swiglu(x[0], x[1]),
        "geglu" => nn::geglu(x[0], x[1]),
        "prelu" => x[0].prelu(x[1]),
        "squareplus" => x[0].squareplus(params.float("b")),
        "mlp" => x[0].dot(x[1]).gelu().dot(x[2]),
        "embedding" => nn::embedding(x[1], x[0]),
        "embedding_one_hot" => nn::embedding_one_hot(x[1], x[0]),
        "dropout" => nn::dropout(x[1], Key(x[0]), params.float("rate")),
        _ => return None,
    })
}

/// The mask with the first element of each row: a row without any is another matter.
fn with_first(mask: Tensor) -> Tensor {
    mask | Tensor::arange(DType::I32, mask.size(-1)).eq(0)
}

fn norm(op: &str, params: &Params, x: &[Tensor]) -> Option<Tensor> {
    let eps = || params.float("eps");
    Some(match op {
        "layer_norm" => nn::layer_norm(x[0], Some(x[1]), Some(x[2]), -1, eps()),
        "normalize" => nn::layer_norm(x[0], None, None, -1, eps()),
        "rms_norm" => nn::rms_norm(x[0], Some(x[1]), -1, eps()),
        "group_norm" => {
            let groups = params.size("groups");
            nn::group_norm(x[0], Some(x[1]), Some(x[2]), groups, 1, eps())
        }
        "instance_norm" => nn::instance_norm(x[0], Some(x[1]), Some(x[2]), 1, eps()),
        "batch_norm_inference" => {
            let running = (x[3], x[4].square());
            nn::batch_norm_inference(x[0], running, Some(x[1]), Some(x[2]), 1, eps())
        }
        _ => return None,
    })
}

fn several(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    Some(match op {
        "batch_norm" => {
            let eps = params.float("eps");
            let (y, (mean, var)) = nn::batch_norm(x[0], Some(x[1]), Some(x[2]), 1, eps);
            vec![y, mean, var]
        }
        _ => return None,
    })
}

fn attention(op: &str, params: &Params, x: &[Tensor]) -> Option<Tensor> {
    let one = |x: Tensor| x.expand_dims(0);
    let options = || AttentionOptions {
        causal: params.flag("causal"),
        window: match params.has("window") {
            // The query's own position counts in the golden file.
            true => (Some(params.size("window") - 1), None),
            false => (None, None),
        },
        query_offset: ((x[1].size(0) - x[0].size(0)) as i32).into(),
        softcap: params.has("softcap").then(|| params.float("softcap")),
        ..AttentionOptions::default()
    };
    let see = |mask: Tensor| {
        let diagonal = Tensor::eye(DType::Bool, mask.size(0));
        AttentionOptions {
            mask: Some((mask | diagonal).reshape([1, 1, mask.size(0), mask.size(1)])),
            ..options()
        }
    };
    let plain = |options| nn::attention(one(x[0]), one(x[1]), one(x[2]), options).squeeze(0);
    let blockwise = |options| {
        let sizes = BlockSizes {
            queries: params.size("block"),
            keys: params.size("block"),
        };
        nn::blockwise_attention(one(x[0]), one(x[1]), one(x[2]), options, sizes).squeeze(0)
    };
    Some(match op {
        "attention" => plain(options()),
        "attention_mask" => plain(see(x[3])),
        "blockwise_attention" => blockwise(options()),
        "blockwise_attention_mask" => blockwise(see(x[3])),
        "rope" => rope(params).apply(x[0], x[1]),
        _ => return None,
    })
}

fn rope(params: &Params) -> Rope {
    let factor = || params.float("factor");
    let original_length = 8;
    let scaling = match params.text("scaling") {
        "linear" => RopeScaling::Linear { factor: factor() },
        "ntk" => RopeScaling::Ntk { factor: factor() },
        "llama3" => RopeScaling::Llama3 {
            factor: factor(),
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_length,
        },
        "yarn" => RopeScaling::Yarn {
            factor: factor(),
            original_length,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
        },
        _ => RopeScaling::None,
    };
    Rope {
        base: params.float("base"),
        dims: params.has("dims").then(|| params.size("dims")),
        interleaved: params.flag("interleaved"),
        scaling,
    }
}

fn loss(op: &str, params: &Params, x: &[Tensor]) -> Option<Tensor> {
    let or_zero = |name: &str| match params.has(name) {
        true => params.float(name),
        false => 0.0,
    };
    let options = |weights: Option<Tensor>| CrossEntropyOptions {
        label_smoothing: or_zero("smoothing"),
        ignored: params.has("ignored").then(|| params.int("ignored")),
        z_loss: or_zero("z_loss"),
        weights,
    };
    Some(match op {
        "cross_entropy" => nn::cross_entropy(x[0], x[1], options(x.get(2).copied())),
        "chunked_cross_entropy" => {
            let sizes = ChunkSizes {
                positions: params.size("positions"),
                classes: params.size("classes"),
            };
            nn::chunked_cross_entropy(x[0], x[1], x[2], options(None), sizes)
        }
        "binary_cross_entropy" => nn::binary_cross_entropy(x[0], x[1], None),
        "mse" => nn::mse(x[0], x[1], None),
        "huber" => nn::huber(x[0], x[1], None, params.float("delta")),
        "kl_div" => nn::kl_div(x[0].log_softmax(-1), x[1].log_softmax(-1), None),
        _ => return None,
    })
}
