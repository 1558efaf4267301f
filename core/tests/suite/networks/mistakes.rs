//! What is refused: the whole text of each message, and the user's line.

use shardax_core::nn::{self, AttentionOptions, BlockSizes, ChunkSizes, CrossEntropyOptions, Rope};
use shardax_core::random::Key;
use shardax_core::{DType, Tensor, TensorType, Tree, trace};

/// The message that tracing `f` ends with; it names a line of this file.
fn mistake<const N: usize, R: Tree<Tensor>>(
    types: [TensorType; N],
    f: impl Fn([Tensor; N]) -> R,
) -> String {
    let Err(error) = trace::<fn([Tensor; N]) -> R, _>(f, types) else {
        panic!("no mistake was found");
    };
    assert_eq!(error.source_line.file(), file!(), "{error}");
    let help = error.help.unwrap_or_default();
    format!("{}\nhelp: {help}", error.kind)
}

fn f32<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

#[test]
fn of_attention() {
    let types = || [f32([2, 8, 6, 4]), f32([3, 8, 4, 4]), f32([2, 7, 4, 4])];
    let text = mistake(types(), |[q, k, v]| {
        nn::attention(q, k, v, AttentionOptions::default())
    });
    insta::assert_snapshot!(text, @"
    `attention`: `q` is f32[2,8,6,4], `k` f32[3,8,4,4] and `v` f32[2,7,4,4]: the batches are 2, 3 and 2; there are 8 keys of 4 heads and 7 values of 4; 6 heads of queries are no multiple of 4 of keys
    help: `q` is [batch, queries, heads, head_dim], `k` and `v` are [batch, keys, kv_heads, head_dim] of one element type, and heads share keys evenly
    ");
    let blocks = BlockSizes {
        queries: 4,
        keys: 4,
    };
    let text = mistake([f32([8, 6, 4])], |[q]| {
        nn::blockwise_attention(q, q, q, AttentionOptions::default(), blocks)
    });
    insta::assert_snapshot!(text, @"
    `blockwise_attention`: `q` is f32[8,6,4], `k` f32[8,6,4] and `v` f32[8,6,4]
    help: give `q` as [batch, queries, heads, head_dim], `k` and `v` as [batch, keys, kv_heads, head_dim]; `.expand_dims(0)` adds a batch
    ");
    let types = || [f32([2, 8, 6, 4]), f32([8, 7])];
    let text = mistake(types(), |[q, mask]| {
        let options = AttentionOptions {
            mask: Some(mask),
            bias: Some(mask),
            query_offset: 0.5.into(),
            segments: Some((mask, mask)),
            ..AttentionOptions::causal()
        };
        nn::attention(q, q, q, options)
    });
    insta::assert_snapshot!(text, @"
    `attention`: `mask` is f32[8,7], not booleans that broadcast to [batch, heads, queries, keys] = [2, 6, 8, 8]; `bias` is f32[8,7], not floats that broadcast to [batch, heads, queries, keys] = [2, 6, 8, 8]; `segments` are f32[8,7] and f32[8,7], not integers of one type, [batch, queries] = [2, 8] and [batch, keys] = [2, 8]; `query_offset` is 0.5, not an integer of at most 536870912
    help: see `AttentionOptions` for what each option takes
    ");
    let text = mistake([f32([2, 8, 6, 4])], |[q]| {
        let softcap = Some(0.0);
        nn::attention(
            q,
            q,
            q,
            AttentionOptions {
                softcap,
                ..AttentionOptions::default()
            },
        )
    });
    insta::assert_snapshot!(text, @"
    `attention`: `softcap` is 0
    help: give a finite number above 0
    ");
    let text = mistake([f32([2, 8, 6, 4])], |[q]| {
        let blocks = BlockSizes {
            queries: 0,
            keys: 4,
        };
        nn::blockwise_attention(q, q, q, AttentionOptions::default(), blocks)
    });
    insta::assert_snapshot!(text, @"
    `blockwise_attention`: the blocks are 0 by 4
    help: give sizes of at least 1
    ");
}

#[test]
fn of_rotary_positions() {
    let text = mistake([f32([2, 8, 6, 4]), f32([7])], |[x, p]| {
        Rope::default().apply(x, p)
    });
    insta::assert_snapshot!(text, @"
    `rope`: `x` is f32[2,8,6,4] and `positions` f32[7]
    help: give `x` as [..., seq, heads, head_dim], and a number for each position, [seq] or [..., seq]
    ");
    let text = mistake([f32([8, 6, 5]), f32([8])], |[x, p]| {
        Rope::default().apply(x, p)
    });
    insta::assert_snapshot!(text, @"
    `rope`: `dims` is 5, and a head of f32[8,6,5] has 5 features
    help: give an even number that is not larger
    ");
    let text = mistake([f32([8, 6, 4]), f32([8])], |[x, p]| {
        Rope {
            base: f64::NAN,
            ..Rope::default()
        }
        .apply(x, p)
    });
    insta::assert_snapshot!(text, @"
    `rope`: `base` is NaN
    help: give a finite number above 0
    ");
}

#[test]
fn of_norms() {
    let text = mistake(
        [f32([2, 8]), f32([2]), f32([8, 1])],
        |[x, scale, offset]| nn::layer_norm(x, Some(scale), Some(offset), -1, 1e-5),
    );
    insta::assert_snapshot!(text, @"
    `layer_norm`: `scale` is f32[2] and `offset` is f32[8,1], for `x` of shape [2, 8]
    help: give a float tensor of shape [8], the sizes of dimensions [1] of `x`
    ");
    let text = mistake([f32([2, 8])], |[x]| nn::rms_norm(x, None, -1, -1.0));
    insta::assert_snapshot!(text, @"
    `rms_norm`: `eps` is -1
    help: give a small positive number such as 1e-5
    ");
    let text = mistake([f32([2, 8])], |[x]| {
        nn::layer_norm(x, None, None, [1, -1], 1e-5)
    });
    insta::assert_snapshot!(text, @"
    `layer_norm`: axis -1 of f32[2,8] is named twice
    help: name each dimension once
    ");
    let text = mistake([f32([2, 8])], |[x]| {
        nn::group_norm(x, None, None, 3, -1, 1e-5)
    });
    insta::assert_snapshot!(text, @"
    `group_norm`: `groups` is 3, and dimension 1 of f32[2,8] has 8 channels
    help: give a number of groups that divides the channels
    ");
    let text = mistake([f32([2, 8])], |[x]| {
        nn::group_norm(x, None, None, 2, 0, 1e-5)
    });
    insta::assert_snapshot!(text, @"
    `group_norm`: `channel_axis` is dimension 0 of f32[2,8], the batch
    help: name another dimension; `.expand_dims(0)` adds a batch of one example
    ");
    let text = mistake([f32([2, 8]), f32([2])], |[x, s]| {
        nn::batch_norm_inference(x, (s, s), None, None, -1, 1e-5)
    });
    insta::assert_snapshot!(text, @"
    `batch_norm_inference`: the mean is f32[2] and the variance f32[2], for `x` f32[2,8]
    help: give one number a channel, 8 of them
    ");
    let text = mistake([f32([2])], |[x]| {
        nn::running_statistics((x, x), (x, x), 1.5).0
    });
    insta::assert_snapshot!(text, @"
    `running_statistics`: `momentum` is 1.5
    help: give a number from 0, the batch alone, to 1, no change
    ");
    let text = mistake([TensorType::new(DType::I32, [8])], |[x]| {
        nn::layer_norm(x, None, None, 0, 1e-5)
    });
    insta::assert_snapshot!(text, @"
    `layer_norm`: `x` is i32[8], not a floating-point tensor
    help: convert it with `.cast(...)`
    ");
}

#[test]
fn of_losses() {
    let i32 = |shape: &[usize]| TensorType::new(DType::I32, shape);
    let text = mistake([f32([4, 5]), i32(&[4, 1])], |[x, y]| {
        nn::cross_entropy(x, y, CrossEntropyOptions::default())
    });
    insta::assert_snapshot!(text, @"
    `cross_entropy`: the logits are f32[4,5] and the targets i32[4,1]
    help: give logits [..., classes] and one integer, the class, for each position [...]; `.squeeze(-1)` removes a last dimension of size 1
    ");
    let text = mistake([f32([4, 5]), i32(&[4])], |[x, y]| {
        let label_smoothing = 1.5;
        nn::cross_entropy(
            x,
            y,
            CrossEntropyOptions {
                label_smoothing,
                ..Default::default()
            },
        )
    });
    insta::assert_snapshot!(text, @"
    `cross_entropy`: `label_smoothing` is 1.5
    help: give a part of the whole, from 0 to 1
    ");
    let text = mistake([f32([4, 5]), i32(&[4]), f32([5])], |[x, y, w]| {
        nn::cross_entropy(
            x,
            y,
            CrossEntropyOptions {
                weights: Some(w),
                ..Default::default()
            },
        )
    });
    insta::assert_snapshot!(text, @"
    `cross_entropy`: `weights` is f32[5] and the targets are i32[4]
    help: give a weight for each target
    ");
    let text = mistake([f32([4, 5]), f32([9, 5]), i32(&[4])], |[h, w, y]| {
        nn::chunked_cross_entropy(
            h,
            w,
            y,
            CrossEntropyOptions::default(),
            ChunkSizes::default(),
        )
    });
    insta::assert_snapshot!(text, @"
    `chunked_cross_entropy`: `hidden` is f32[4,5], `weight` f32[9,5] and `targets` i32[4]
    help: give hidden [..., seq, features], weight [features, classes] and one integer, the class, for each position [..., seq]; a table [classes, features] is transposed first
    ");
    let text = mistake([f32([4]), f32([4, 1])], |[x, y]| nn::mse(x, y, None));
    insta::assert_snapshot!(text, @"
    `mse`: `predictions` is f32[4] and `targets` f32[4,1]
    help: give them the same shape; a loss does not broadcast
    ");
    let text = mistake([f32([4]), f32([3])], |[x, w]| nn::weighted_mean(x, Some(w)));
    insta::assert_snapshot!(text, @"
    `weighted_mean`: the values are f32[4] and the weights f32[3]
    help: give a real weight for each value
    ");
    let text = mistake([f32([4])], |[x]| nn::huber(x, x, None, -1.0));
    insta::assert_snapshot!(text, @"
    `huber`: `delta` is -1
    help: give a finite number above 0
    ");
}

#[test]
fn of_the_rest() {
    let text = mistake([f32([4])], |[x]| nn::dropout(x, Key::from_seed(1), 1.1));
    insta::assert_snapshot!(text, @"
    `dropout`: `rate` is 1.1
    help: give a probability, from 0 to 1
    ");
    let text = mistake([f32([4, 2]), f32([3])], |[t, i]| nn::embedding(i, t));
    insta::assert_snapshot!(text, @"
    `embedding`: `table` is f32[4,2] and `ids` f32[3]
    help: give the table as [vocab, features] and the ids as integers
    ");
    let text = mistake([f32([4, 3])], |[x]| x.glu(-1));
    insta::assert_snapshot!(text, @"
    `glu`: dimension 1 of f32[4,3] is odd
    help: it holds values in its first half and gates in its second
    ");
    let text = mistake([f32([4, 3])], |[x]| x.glu(2));
    insta::assert_snapshot!(text, @"
    `glu`: f32[4,3] has no axis 2
    help: its axes are 0 to 1, or -2 to -1 from the last
    ");
    let text = mistake([f32([4])], |[x]| x.celu(0.0));
    insta::assert_snapshot!(text, @"
    `celu`: `alpha` is 0
    help: give another number; at 0 it would be `relu`
    ");
    let text = mistake([f32([4])], |[x]| x.squareplus(-1.0));
    insta::assert_snapshot!(text, @"
    `squareplus`: `b` is -1
    help: give a finite number that is not negative
    ");
    let text = mistake([f32([4]), f32([4])], |[x, mask]| x.softmax_where(mask, 0));
    insta::assert_snapshot!(text, @"
    `softmax_where`: the predicate is f32[4], not boolean
    help: compare it, for example `.ne(0)`
    ");
}

/// Every equation names the line that called, in whatever closure of the library it stands.
#[test]
fn equations_have_the_users_line() {
    let program = trace(
        |[q, x, w, s]: [Tensor; 4], labels: Tensor| {
            let options = AttentionOptions {
                softcap: Some(2.0),
                window: (Some(2), None),
                ..AttentionOptions::causal()
            };
            let blocks = BlockSizes {
                queries: 2,
                keys: 3,
            };
            let chunks = ChunkSizes {
                positions: 3,
                classes: 3,
            };
            let loss = CrossEntropyOptions {
                ignored: Some(1),
                ..Default::default()
            };
            (
                (
                    nn::attention(q, q, q, options),
                    nn::blockwise_attention(q, q, q, options, blocks),
                    Rope::default().apply(q, labels.index(0, 0)),
                ),
                (
                    nn::layer_norm(x, Some(s), Some(s), -1, 1e-5),
                    nn::batch_norm(x, Some(s), None, -1, 1e-5),
                    nn::group_norm(x, None, None, 2, -1, 1e-5),
                ),
                (
                    nn::cross_entropy(x, labels, loss),
                    nn::chunked_cross_entropy(x, w, labels, loss, chunks),
                    nn::kl_div(x, x, None) + nn::huber(x, x, None, 1.0),
                ),
                nn::dropout(x, Key::from_seed(1), 0.5)
                    .mish()
                    .selu()
                    .squareplus(1.0),
                nn::embedding_one_hot(labels, w),
            )
        },
        (
            [f32([1, 5, 2, 4]), f32([1, 5, 4]), f32([4, 7]), f32([4])],
            TensorType::new(DType::I32, [1, 5]),
        ),
    );
    let graph = match program {
        Ok(program) => program.graph,
        Err(error) => panic!("{error}"),
    };
    let mut graphs = vec![&graph];
    while let Some(graph) = graphs.pop() {
        for equation in graph.equations() {
            assert_eq!(equation.source.file(), file!(), "{:?}", equation.op);
            let regions = equation.op.regions().into_iter();
            graphs.extend(regions.map(|(_, region)| &**region));
        }
    }
}
