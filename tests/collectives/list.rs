//! Layers in a `Vec`, which no loop runs through.

use shardax::prelude::*;
use shardax::xla::report::{CollectiveKind, CollectiveReport};

const WIDTH: usize = 64;

#[derive(Clone, Module)]
struct Layer<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

#[shard]
impl Layer {
    #[shard(batch, embed)]
    fn forward(&self, #[shard(batch, embed)] x: Tensor) -> Tensor {
        x + x.dot(self.up).tanh().dot(self.down)
    }
}

fn init(layers: usize) -> Vec<Layer> {
    let key = Key::from_seed(0);
    let weight = |i: usize| key.fold_in(i as u32).normal(DType::F32, [WIDTH, WIDTH]) * 0.1;
    let layer = |i: usize| Layer {
        up: weight(2 * i),
        down: weight(2 * i + 1),
    };
    (0..layers).map(layer).collect()
}

fn step(layers: Vec<Layer>, x: Tensor) -> (Vec<Layer>, Tensor) {
    let loss = |layers: Vec<Layer>| {
        let forward = |x: Tensor, layer: &Layer| {
            remat(|(x, layer): (Tensor, Layer)| layer.forward(x))((x, layer.clone()))
        };
        layers.iter().fold(x, forward).square().mean(..)
    };
    let (loss, gradients) = value_and_grad(loss)(layers.clone());
    let pairs = layers.into_iter().zip(gradients);
    let updated = pairs.map(|(layer, g)| Layer {
        up: layer.up - g.up * 0.1,
        down: layer.down - g.down * 0.1,
    });
    (updated.collect(), loss)
}

fn gathers(report: &CollectiveReport) -> u64 {
    report
        .of(CollectiveKind::AllGather, &["data"])
        .map(|c| c.times * c.arrays.len() as u64)
        .sum()
}

#[test]
fn each_layer_is_gathered_where_it_is_used() {
    let mesh = Mesh::new([("data", 8)]).unwrap();
    let layout = Layout::fsdp(mesh).unwrap();
    let batch = Array::from_slice(&[0.5f32; 16 * WIDTH], [16, WIDTH]).unwrap();
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = layout.clone().partitioner(partitioner);
        for layers in [2, 4] {
            let state = jit(move || init(layers));
            let types = (state.types(()).unwrap(), batch.ty().clone());
            let program = jit(step).layout(&layout).compile(types).unwrap();
            let report = program.collectives().unwrap();
            // Two parameters, forward and again backward.
            assert_eq!(gathers(&report), 2 * 2 * layers as u64, "{report}");
        }
    }
}

#[test]
fn gathering_inside_computes_the_same() {
    let mesh = Mesh::new([("data", 8)]).unwrap();
    let batch = Array::from_slice(&[0.5f32; 16 * WIDTH], [16, WIDTH]).unwrap();
    let run = |layout: &Layout| -> Vec<f32> {
        let mut layers = jit(|| init(3)).layout(layout).call(()).unwrap();
        let step = jit(step).layout(layout);
        let mut losses = Vec::new();
        for _ in 0..3 {
            let loss;
            (layers, loss) = step.call((layers, batch.clone())).unwrap();
            losses.push(loss.item::<f32>().unwrap());
        }
        losses
    };
    let alone = run(&Layout::single());
    let split = run(&Layout::fsdp(mesh).unwrap());
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * a.abs();
    assert!(alone.iter().zip(&split).all(near), "{alone:?} {split:?}");
}
