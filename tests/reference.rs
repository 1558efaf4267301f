//! The reference run of the `train_gpt` example computes the same losses under every layout: those
//! that JAX computes on one device.

#[path = "../examples/train_gpt/model.rs"]
mod model;
#[path = "../examples/train_gpt/reference.rs"]
mod reference;
#[path = "../examples/train_gpt/training.rs"]
mod training;

use std::error::Error;

use shardax::Partitioner;
use shardax::prelude::*;
use shardax::run::run_ahead;
use shardax::train::Precision;

use model::Gpt;
use reference::Size;
use training::{Recipe, TrainState};

/// How far a loss may be from the golden one.
const TOLERANCE: f32 = 1e-4;

fn losses(size: Size, layout: &Layout, steps: usize) -> Result<Vec<f32>, Box<dyn Error>> {
    let (config, batch) = size.config();
    let shape = [batch, config.context + 1];
    let recipe = Recipe::new(1e-3, Precision::F32);
    let tokens = jit(move || reference::tokens(config, batch, steps)).layout(layout);
    let tokens = tokens.call(())?.to_vec::<i32>()?;
    let init = jit(move || recipe.init(Gpt::init(config, reference::weight))).layout(layout);
    let step = jit(move |state: TrainState, tokens: Tensor| {
        let (state, loss, _gradients) = recipe.step(state, tokens);
        (state, loss)
    })
    .layout(layout)
    .donate(&[0]);
    let mut losses = Vec::new();
    run_ahead::<_, Array, Box<dyn Error>>(
        steps,
        init.call(())?,
        |i, state| {
            let size = shape[0] * shape[1];
            let tokens = Array::from_slice(&tokens[i * size..][..size], shape)?;
            Ok(step.call((state, tokens))?)
        },
        |loss| {
            losses.push(loss.item()?);
            Ok(())
        },
    )?;
    Ok(losses)
}

#[track_caller]
fn check(size: Size, golden: &str, layout: Layout) {
    let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
    let golden: Vec<f32> = serde_json::from_value(golden["losses"].clone()).unwrap();
    for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
        let layout = layout.clone().partitioner(partitioner);
        let losses = match losses(size, &layout, golden.len()) {
            Ok(losses) => losses,
            Err(error) => panic!("{layout}: {error}"),
        };
        let worst = losses
            .iter()
            .zip(&golden)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert_eq!(losses.len(), golden.len());
        assert!(
            worst <= TOLERANCE,
            "{layout}: off by {worst}\n{losses:?}\n{golden:?}"
        );
    }
}

fn tiny(layout: Layout) {
    check(
        Size::Tiny,
        include_str!("goldens/reference_tiny.json"),
        layout,
    );
}

fn small(layout: Layout) {
    check(
        Size::Small,
        include_str!("goldens/reference_small.json"),
        layout,
    );
}

fn data8() -> Mesh {
    Mesh::new([("data", 8)]).unwrap()
}

fn data2_model4() -> Mesh {
    Mesh::new([("data", 2), ("model", 4)]).unwrap()
}

#[test]
fn tiny_on_one_device() {
    tiny(Layout::single());
}

#[test]
fn tiny_under_ddp() {
    tiny(Layout::ddp(data8()).unwrap());
}

#[test]
fn tiny_under_fsdp() {
    tiny(Layout::fsdp(data8()).unwrap());
}

#[test]
fn tiny_under_megatron() {
    tiny(Layout::megatron(data2_model4()).unwrap());
}

#[test]
fn tiny_under_megatron_fsdp() {
    tiny(Layout::megatron_fsdp(data2_model4()).unwrap());
}

/// A strategy by name, on a mesh.
fn strategy(name: &str, mesh: &str) -> Layout {
    let strategy: Strategy = name.parse().unwrap();
    strategy.layout(mesh.parse().unwrap()).unwrap()
}

#[test]
fn tiny_under_each_stage_of_zero() {
    tiny(strategy("zero1", "data=8"));
    tiny(strategy("zero2", "data=8"));
    tiny(strategy("hsdp", "replica=2,data=4"));
}

#[test]
fn tiny_under_sequence_and_context_parallelism() {
    tiny(strategy("megatron-sp", "data=2,model=4"));
    tiny(strategy("context", "data=2,context=4"));
}

#[test]
fn tiny_under_compositions() {
    tiny(strategy("zero1+megatron-sp", "data=2,model=4"));
    tiny(strategy(
        "zero2+megatron+context",
        "data=2,context=2,model=2",
    ));
    tiny(strategy("hsdp+megatron-sp", "replica=2,data=2,model=2"));
}

#[test]
fn small_under_every_layout() {
    small(Layout::single());
    small(Layout::ddp(data8()).unwrap());
    small(Layout::fsdp(data8()).unwrap());
    small(Layout::megatron(data2_model4()).unwrap());
    small(Layout::megatron_fsdp(data2_model4()).unwrap());
}

#[test]
fn heads_that_do_not_divide_are_an_error() {
    let mesh = Mesh::new([("data", 1), ("model", 3)]).unwrap();
    let error = losses(Size::Tiny, &Layout::megatron(mesh).unwrap(), 1).unwrap_err();
    let text = error.to_string();
    for part in ["model.blocks.wqkv", "heads", "4", "model", "3"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}
