//! Gradient accumulation: the values of a whole batch, under any layout, and one reduction a step.

use shardax::prelude::*;
use shardax::random::Key;
use shardax::train::{accumulate, accumulate_weighted};
use shardax::xla::report::{CollectiveKind, CollectiveReport};
use shardax::{CheckOptions, LayoutCheck, Role, Verdict, remat, trace};

/// Rows are looked up in the table and multiplied by it again, as a tied embedding is.
#[derive(Clone, Debug, Module)]
struct Net<L = Tensor> {
    #[shard(vocab, embed)]
    table: L,
    layers: Stack<Layer<L>>,
}

#[derive(Clone, Debug, Module)]
struct Layer<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

const BATCH: Dim = Dim::Logical("batch");
const EMBED: Dim = Dim::Logical("embed");
const VOCAB: usize = 32;
const WIDTH: usize = 16;
const LAYERS: usize = 3;

impl Net {
    /// The loss of each example, `[batch]`.
    fn losses(&self, tokens: Tensor) -> Tensor {
        let h = self.table.take(tokens.slice(1, ..4), 0);
        let h = h.shard(&[BATCH, Dim::Unsharded, EMBED]);
        let layer = |(h, layer): (Tensor, Layer)| {
            let hidden = h.dot(layer.up).gelu();
            let hidden = hidden.shard(&[BATCH, Dim::Unsharded, Dim::Logical("mlp")]);
            let hidden = hidden.named("hidden");
            h + hidden.dot(layer.down)
        };
        let h = self
            .layers
            .clone()
            .scan(h, |h: Tensor, l: Layer| remat(layer)((h, l)));
        let logits = h.dot_as(self.table.transpose([1, 0]), DType::F32);
        let targets = tokens.slice(1, 1..).expand_dims(2);
        let is_target = targets.eq(Tensor::iota(DType::I32, logits.shape(), -1));
        let picked = is_target.select(logits, 0.0).sum(2);
        (logits.logsumexp(2) - picked).mean(1)
    }
}

/// Bytes of all parameters.
const BYTES: u64 = 4 * (VOCAB * WIDTH + LAYERS * 2 * WIDTH * 2 * WIDTH) as u64;

fn net() -> Net<Array> {
    let counted = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin() * 0.3).collect();
        Array::from_slice(&values, shape).unwrap()
    };
    Net {
        table: counted(&[VOCAB, WIDTH]),
        layers: Stack(Layer {
            up: counted(&[LAYERS, WIDTH, 2 * WIDTH]),
            down: counted(&[LAYERS, 2 * WIDTH, WIDTH]),
        }),
    }
}

fn tokens(batch: usize) -> Array {
    let tokens: Vec<i32> = (0..batch as i32 * 5)
        .map(|i| (i * i + i / 5) % VOCAB as i32)
        .collect();
    Array::from_slice(&tokens, [batch, 5]).unwrap()
}

/// A step of gradient descent that takes the batch in parts.
fn step(parts: usize) -> impl Fn(Net, Tensor) -> (Net, Tensor, Net) {
    move |net, tokens| {
        let loss = |net: Net, tokens: Tensor| net.losses(tokens).mean(..);
        let (loss, gradients) = accumulate(parts, loss)(net.clone(), tokens);
        updated(net, loss, gradients)
    }
}

fn updated(net: Net, loss: Tensor, gradients: Net) -> (Net, Tensor, Net) {
    let mut next = gradients.leaves().into_iter();
    let updated = net.replace_leaves(&mut |path, p| {
        let updated = *p - next.next().unwrap() * 0.1;
        updated.shard_leaf(path, Role::Parameter)
    });
    (updated, loss, gradients)
}

/// A step of gradient descent of the whole batch.
fn whole(net: Net, tokens: Tensor) -> (Net, Tensor, Net) {
    let loss = |net: Net| net.losses(tokens).mean(..);
    let (loss, gradients) = value_and_grad(loss)(net.clone());
    updated(net, loss, gradients)
}

fn layout(strategy: &str, mesh: &str) -> Layout {
    let strategy: Strategy = strategy.parse().unwrap();
    strategy.layout(mesh.parse().unwrap()).unwrap()
}

fn partitioners(layout: Layout) -> [Layout; 2] {
    [Partitioner::Shardy, Partitioner::Gspmd].map(|p| layout.clone().partitioner(p))
}

/// What a step of this many parts tells other devices.
fn report(layout: &Layout, parts: usize) -> CollectiveReport {
    let step = jit(step(parts)).layout(layout);
    let types = (net().types(), tokens(32).types());
    step.compile(types).unwrap().collectives().unwrap()
}

#[test]
fn parts_give_the_loss_and_the_gradient_of_the_whole() {
    let batches = (0..3).map(|_| tokens(32)).collect();
    let check = LayoutCheck::new(whole, net(), batches, CheckOptions::default().quick()).unwrap();
    for (strategy, mesh) in [
        ("ddp", "data=8"),
        ("zero1", "data=8"),
        ("zero2", "data=8"),
        ("fsdp+megatron", "data=2,model=4"),
        ("megatron", "data=2,model=4"),
        ("hsdp", "replica=2,data=4"),
    ] {
        for layout in partitioners(layout(strategy, mesh)) {
            for parts in [1, 4] {
                let row = check.row(strategy, &layout, step(parts));
                assert_eq!(row.verdict, Verdict::Equal, "{parts} parts\n{layout}{row}");
            }
        }
    }
    let row = check.row("one device", &Layout::single(), step(8));
    assert_eq!(row.verdict, Verdict::Equal, "{row}");
}

/// Whatever splits the batch, and whether or not gradients keep a dimension of devices.
#[test]
fn layouts_of_one_s_own_are_accumulated_under_too() {
    let check = LayoutCheck::new(
        whole,
        net(),
        vec![tokens(32)],
        CheckOptions::default().quick(),
    );
    let check = check.unwrap();
    let on = |mesh: &str| Layout::new(mesh.parse().unwrap());
    let grid = || on("data=2,model=4");
    for layout in [
        on("data=8")
            .shard("batch", "data:(1)2")
            .shard("mlp", "data:(2)4"),
        on("data=8")
            .shard("batch", "data")
            .shard_every_parameter("data:(1)2"),
        grid()
            .shard_where_free("batch", "data")
            .shard("embed", "data"),
        grid()
            .shard("batch", "data")
            .shard_where_free("batch", "model"),
        // State alone, over some of what splits the batch, or over something else as well.
        on("replica=2,data=4")
            .shard("batch", ("replica", "data"))
            .shard_every_state("data"),
        grid()
            .shard("batch", "data")
            .shard_every_state(("data", "model")),
        // One gradient by its path.
        on("data=8").shard("batch", "data").override_as(
            "layers.up",
            Role::Gradient,
            ((), "data", ()),
        ),
        // What is said of a named value holds for it as it is named, also where it gets another dimension.
        grid()
            .shard("batch", "data")
            .constrain("hidden", ("data", (), "model")),
        grid()
            .shard("batch", "data")
            .shard_every_parameter("data")
            .constrain("hidden", ("data", (), "model")),
    ] {
        let row = check.row("own", &layout, step(4));
        assert_eq!(row.verdict, Verdict::Equal, "{layout}{row}");
    }
}

/// Bytes of all-reduces of gradients, and how many there are, in a step.
fn reduced(report: &CollectiveReport, axes: &[&str]) -> (u64, u64) {
    let found = report.of(CollectiveKind::AllReduce, axes);
    let large = found.filter(|c| c.payload_bytes > 64);
    large.fold((0, 0), |(bytes, times), c| {
        (bytes + c.payload_bytes * c.times, times + c.times)
    })
}

#[test]
fn each_gradient_is_reduced_once_however_many_parts_there_are() {
    for (strategy, mesh, axes, split) in [
        ("ddp", "data=8", vec!["data"], 1),
        ("zero1", "data=8", vec!["data"], 1),
        ("ddp", "replica=2,data=4", vec!["replica", "data"], 1),
        ("megatron", "data=2,model=4", vec!["data"], 4),
    ] {
        for layout in partitioners(layout(strategy, mesh)) {
            for parts in [2, 4] {
                let report = report(&layout, parts);
                let (bytes, times) = reduced(&report, &axes);
                // Every gradient once, and with it the loss and the weights.
                let expected = BYTES / split;
                assert!(
                    (expected..=expected + 16).contains(&bytes) && times == 1,
                    "{strategy}, {parts} parts: {bytes} {expected}\n{report}"
                );
            }
        }
    }
}

/// The sum of a gradient that an override splits is a shard too.
#[test]
fn a_gradient_that_is_split_by_its_path_is_reduced_part_by_part() {
    let layout = layout("ddp", "data=8");
    let layout = layout.override_as("layers.*", Role::Gradient, ((), "data", ()));
    for parts in [2, 4] {
        let (bytes, _) = reduced(&report(&layout, parts), &["data"]);
        let expected = BYTES * parts as u64;
        assert!(
            (expected..=expected + 64 * parts as u64).contains(&bytes),
            "{bytes} {expected}"
        );
    }
}

/// Under ZeRO-1 sums are whole as under data parallelism, and under ZeRO-2 they are shards.
#[test]
fn sharded_gradients_are_reduced_into_shards_part_by_part() {
    let temporary = |layout: &Layout| {
        let step = step(4);
        let step = move |net: Net, tokens: Tensor| step(net, tokens).0;
        let types = (net().types(), tokens(32).types());
        let program = jit(step).layout(layout).donate(&[0]).compile(types);
        program.unwrap().memory().unwrap().temp
    };
    let whole = ["ddp", "zero1"].map(|strategy| temporary(&layout(strategy, "data=8")));
    for layout in partitioners(layout("zero2", "data=8")) {
        for parts in [2, 4] {
            let report = report(&layout, parts);
            let (bytes, _) = reduced(&report, &["data"]);
            let expected = BYTES * parts as u64;
            assert!(
                (expected..=expected + 64 * parts as u64).contains(&bytes),
                "{bytes} {expected}\n{report}"
            );
        }
        // The sum is a shard.
        let shards = temporary(&layout);
        let is_less = |whole: &u64| shards + BYTES / 2 < *whole;
        assert!(whole.iter().all(is_less), "{shards} {whole:?} {BYTES}");
    }
}

#[test]
fn weights_count_over_the_whole_batch() {
    // The parts have 0 to 16 tokens that count.
    let mask: Vec<f32> = (0..16)
        .map(|i| if i * i % 7 < 3 { 1.0 } else { 0.0 })
        .collect();
    let of = |scale: f32| {
        let mask: Vec<f32> = mask.iter().map(|m| m * scale).collect();
        Array::from_slice(&mask, [16]).unwrap()
    };
    let sums = |net: Net, (tokens, mask): (Tensor, Tensor)| {
        ((net.losses(tokens) * mask).sum(..), mask.sum(..))
    };
    let whole = move |net: Net, tokens: Tensor, mask: Tensor| {
        let loss = |net: Net| {
            let (sum, weight) = sums(net, (tokens, mask));
            sum / weight
        };
        value_and_grad(loss)(net)
    };
    let parts = move |net: Net, tokens: Tensor, mask: Tensor| {
        accumulate_weighted(4, sums)(net, (tokens, mask))
    };
    let (loss, gradients) = jit(whole).call((net(), tokens(16), of(1.0))).unwrap();
    let wanted: Vec<f32> = gradients.table.to_vec().unwrap();
    for layout in partitioners(layout("ddp", "data=4")) {
        let parts = jit(parts).layout(&layout);
        let (found, gradients) = parts.call((net(), tokens(16), of(1.0))).unwrap();
        let [found, loss]: [f32; 2] = [found.item().unwrap(), loss.item().unwrap()];
        assert!((found - loss).abs() <= 1e-6 * loss, "{found} {loss}");
        let found: Vec<f32> = gradients.table.to_vec().unwrap();
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() <= 1e-6, "{found} {wanted}");
        }
        // Where nothing counts there is no loss.
        let (loss, gradients) = parts.call((net(), tokens(16), of(0.0))).unwrap();
        assert_eq!(loss.item::<f32>().unwrap(), 0.0);
        assert!(
            gradients
                .table
                .to_vec::<f32>()
                .unwrap()
                .iter()
                .all(|&g| g == 0.0)
        );
    }
}

#[test]
fn gradients_of_narrow_types_are_added_in_f32() {
    // 255 times 1 and a 256: in bf16, 256 + 1 is 256.
    let values: Vec<f32> = (0..256).map(|i| if i == 0 { 256.0 } else { 1.0 }).collect();
    let x = Array::from_slice(&values, [256]).unwrap();
    let gradient = |w: Tensor, x: Tensor| {
        let loss = |w: Tensor, x: Tensor| (w.cast(DType::F32) * x).mean(..);
        accumulate(256, loss)(w.cast(DType::BF16), x)
            .1
            .cast(DType::F32)
    };
    let found = jit(gradient).call((Array::scalar(1f32), x)).unwrap();
    assert_eq!(found.item::<f32>().unwrap(), 2.0);
}

/// Every example draws from its own key.
fn noisy(net: Net, (tokens, keys): (Tensor, Key)) -> Tensor {
    let noise = vmap(|key: Key| key.normal(DType::F32, []))(keys);
    (net.losses(tokens) * noise).mean(..)
}

#[test]
fn keys_of_examples_give_the_same_numbers_under_every_layout() {
    let step = |parts: usize| {
        move |net: Net, tokens: Tensor| {
            let keys = Key::from_seed(7).split_array(16);
            accumulate(parts, noisy)(net, (tokens, keys)).0
        }
    };
    let one: f32 = jit(step(1))
        .call((net(), tokens(16)))
        .unwrap()
        .item()
        .unwrap();
    for (parts, layout) in [
        (4, Layout::single()),
        (1, layout("ddp", "data=8")),
        (2, layout("ddp", "data=8")),
        (4, layout("zero2", "data=4")),
    ] {
        let found = jit(step(parts)).layout(&layout).call((net(), tokens(16)));
        let found: f32 = found.unwrap().item().unwrap();
        assert!(
            (found - one).abs() <= 1e-5 * one.abs(),
            "{layout}{found} {one}"
        );
    }
}

/// The message of a step that does not trace.
fn mistake<R: Tree<Tensor>>(f: impl Fn(Tensor, Tensor) -> R) -> String {
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let layout = layout("ddp", "data=4");
    let traced = shardax::under(&layout, || trace(f, (ty(&[3]), ty(&[8, 3]))));
    match traced {
        Ok(_) => "it traces".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn mistakes_say_what_to_do() {
    let loss = |w: Tensor, x: Tensor| x.dot(w).mean(..);
    let text = mistake(|w, x| accumulate(3, loss)(w, x));
    let expected =
        "a batch of 8 examples cannot be taken in 3 micro-batches by 4 groups of devices";
    assert!(
        text.contains(expected) && text.contains("multiple of 12"),
        "{text}"
    );
    let text = mistake(|w, x| accumulate(0, loss)(w, x));
    assert!(text.contains("0 micro-batches"), "{text}");
    let text = mistake(|w, x| {
        let of_pair = |w: Tensor, (x, y): (Tensor, Tensor)| loss(w, x) + y.mean(..);
        accumulate(2, of_pair)(w, (x, x.slice(0, 1..)))
    });
    assert!(text.contains("`0` is f32[8,3], `1` is f32[7,3]"), "{text}");
    let text = mistake(|w, x| {
        let key = Key::from_seed(1);
        accumulate(2, |w: Tensor, x: Tensor| {
            loss(w, x * key.uniform(DType::F32, x.shape()))
        })(w, x)
    });
    assert!(
        text.contains("the key comes from outside") && text.contains("split_array"),
        "{text}"
    );
    let text = mistake(|w, x| {
        let draw = |x: Tensor| Key::from_seed(1).uniform(DType::F32, x.shape());
        accumulate(2, |w: Tensor, x: Tensor| loss(w, x * draw(x)))(w, x)
    });
    assert!(text.contains("a key is made of a seed"), "{text}");
    let text = mistake(|w, x| {
        accumulate_weighted(2, |w: Tensor, x: Tensor| (x.dot(w).sum(..), x.sum(1)))(w, x)
    });
    assert!(text.contains("the sum of weights is f32[1]"), "{text}");
}
