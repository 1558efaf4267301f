//! The Shardax half of the benchmarks against JAX: each subcommand prints one line of JSON with the
//! names that `benches/jax/bench.py` prints. `benches/compare.py` runs the two in turn.

#[path = "../examples/train_gpt/model.rs"]
mod model;
#[path = "../examples/train_gpt/reference.rs"]
mod reference;
#[path = "../examples/train_gpt/training.rs"]
mod training;

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use shardax::nn::{CrossEntropyOptions, LayerNorm};
use shardax::prelude::*;
use shardax::train::{Moments, Precision, clip_by_global_norm};
use shardax::xla;
use shardax::xla::lower::{self, Argument};
use shardax::xla::pjrt::ExecuteOptions;
use shardax::{Function, On, Runtime, trace, trace_like};

use model::{Block, Config, Gpt};
use reference::Size;
use training::{Recipe, TrainState};

/// As many un-awaited steps as the JAX half has.
const WINDOW: usize = 8;

#[derive(Parser)]
enum Bench {
    /// The path of the plugin that the others load; fetched if there is none.
    Plugin,
    /// Trace and lower the training step: `small`, and 32 layers unrolled.
    Trace {
        #[arg(long, default_value_t = 50)]
        repeat: usize,
    },
    /// Host time of one call, 100 arguments to 100 results.
    Call {
        #[arg(long, default_value_t = 500)]
        repeat: usize,
        #[arg(long, default_value_t = 1)]
        devices: usize,
    },
    /// A steady training step.
    Step {
        #[arg(long, default_value_t = 50)]
        repeat: usize,
        #[arg(long, default_value = "tiny")]
        size: Size,
        #[arg(long, default_value = "1")]
        layout: String,
    },
    /// One process to its first loss; the driver measures it from outside.
    FirstLoss {
        #[arg(long, default_value = "1")]
        layout: String,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` adds a flag of its own.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    let line = match Bench::parse_from(arguments) {
        Bench::Plugin => json!({ "plugin": Runtime::shared(1)?.client().plugin().path() }),
        Bench::Trace { repeat } => trace_and_lower(repeat)?,
        Bench::Call { repeat, devices } => call(repeat, devices)?,
        Bench::Step {
            repeat,
            size,
            layout,
        } => step(repeat, size, &layout)?,
        Bench::FirstLoss { layout } => first_loss(&layout)?,
    };
    println!("{line}");
    Ok(())
}

fn layout(name: &str) -> Result<Layout, Box<dyn Error>> {
    Ok(match name {
        "1" => Layout::single(),
        "data2_model4" => Preset::Megatron.layout("data=2,model=4".parse()?)?,
        "data8_ddp" => Preset::Ddp.layout("data=8".parse()?)?,
        "data8_fsdp" => Preset::Fsdp.layout("data=8".parse()?)?,
        other => return Err(format!("no layout {other}").into()),
    })
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

fn repeated(repeat: usize, mut measure: impl FnMut() -> Duration) -> f64 {
    median((0..repeat).map(|_| measure()).collect())
}

/// The same model with each layer written out, for the size of its program.
#[derive(Clone, Debug, Module)]
struct Unrolled<L = Tensor> {
    #[shard(vocab, embed)]
    wte: L,
    #[shard(_, embed)]
    wpe: L,
    blocks: Vec<Block<L>>,
    lnf: LayerNorm<L>,
}

impl Unrolled {
    fn loss(&self, tokens: Tensor) -> Tensor {
        let seq = tokens.size(1) - 1;
        let (inputs, targets) = (tokens.slice(1, ..seq), tokens.slice(1, 1..));
        let h = self.wte.take(inputs, 0) + self.wpe.slice(0, ..seq);
        let h = self
            .blocks
            .iter()
            .fold(h, |h, block| block.clone().forward(h));
        let logits = self
            .lnf
            .forward(h)
            .dot_as(self.wte.transpose([1, 0]), DType::F32);
        nn::cross_entropy(logits, targets, CrossEntropyOptions::default())
    }
}

fn trace_and_lower(repeat: usize) -> Result<Value, Box<dyn Error>> {
    let recipe = Recipe::new(1e-3, Precision::F32);
    let (small, batch) = Size::Small.config();
    let tokens = TensorType::new(DType::I32, [batch, small.context + 1]);
    let types = |config: Config| -> Result<_, Box<dyn Error>> {
        let init = trace(
            move || recipe.init(Gpt::init(config, reference::weight)),
            (),
        )?;
        let mut types = init.output_types().into_iter();
        let mut next = || {
            types
                .next()
                .unwrap_or_else(|| TensorType::scalar(DType::F32))
        };
        Ok(init
            .output
            .map_leaves(&mut Path::root(), &mut |_, _| next()))
    };
    let scanned = types(small)?;
    let one = types(Config { layers: 1, ..small })?;
    let unrolled = Unrolled {
        wte: one.model.wte.clone(),
        wpe: one.model.wpe.clone(),
        blocks: (0..32).map(|_| one_layer(&one.model.blocks.0)).collect(),
        lnf: one.model.lnf.clone(),
    };
    let scanned_step = |state: TrainState, tokens: Tensor| {
        let (state, loss, _gradients) = recipe.step(state, tokens);
        (state, loss)
    };
    let unrolled_step =
        |model: Unrolled, m: Unrolled, v: Unrolled, step: Tensor, tokens: Tensor| {
            let (loss, gradients) =
                value_and_grad(|model: Unrolled| model.loss(tokens))(model.clone());
            let (gradients, _) = clip_by_global_norm(gradients, 1.0);
            let moments = Moments {
                first: m,
                second: v,
            };
            let (model, moments) = recipe.adam.update(model, gradients, moments, step);
            (model, moments, step + 1, loss)
        };
    let fewer = repeat.div_ceil(3);
    let step_type = TensorType::scalar(DType::I32);
    let scanned_args = (scanned, tokens.clone());
    let unrolled_args = (
        unrolled.clone(),
        unrolled.clone(),
        unrolled,
        step_type,
        tokens,
    );
    Ok(json!({
        "bench": "trace", "framework": "shardax", "repeat": repeat,
        "small_ms": 1e3 * repeated(repeat, || timed_lowering(&scanned_step, &scanned_args)),
        "unrolled32_ms": 1e3 * repeated(fewer, || timed_lowering(&unrolled_step, &unrolled_args)),
    }))
}

fn one_layer(stacked: &Block<TensorType>) -> Block<TensorType> {
    stacked.replace_leaves(&mut |_, ty| TensorType::new(ty.dtype, &ty.shape[1..]))
}

fn timed_lowering<S, F: Function<S>>(f: &F, args: &On<F::Args, TensorType>) -> Duration {
    let begin = Instant::now();
    let lowered = trace_like(f, args, TensorType::clone).map(|traced| {
        let arguments = vec![Argument::default(); traced.graph.inputs().len()];
        let results = vec![None; traced.graph.outputs().len()];
        lower::lower(&lower::Program {
            name: "step",
            graph: &traced.graph,
            layout: &Layout::single(),
            arguments: &arguments,
            results: &results,
            on_host: true,
        })
        .map(|module| module.text().len())
    });
    let elapsed = begin.elapsed();
    assert!(matches!(lowered, Ok(Ok(1..))), "the step does not lower");
    elapsed
}

fn call(repeat: usize, devices: usize) -> Result<Value, Box<dyn Error>> {
    let mesh = Mesh::new([("data", devices)])?;
    let layout = Layout::new(mesh).shard("batch", "data");
    let dims = [Dim::Logical("batch")];
    let add_one = move |xs: Vec<Tensor>| -> Vec<Tensor> {
        xs.into_iter()
            .map(|x| (x.shard(&dims) + 1.0).shard(&dims))
            .collect()
    };
    let add_one = jit(add_one).layout(&layout);
    let host = |i: usize| {
        let values: Vec<f32> = (0..16).map(|v| (v + i) as f32).collect();
        Array::from_slice(&values, [16])
    };
    let host = (0..100).map(host).collect::<Result<Vec<_>, _>>()?;
    let arrays = add_one.call(host.clone())?;
    let types = arrays.iter().map(|array| array.ty().clone()).collect();
    let program = add_one.compile(types)?;
    let executable = program.executable();
    let wait = |arrays: &[Array]| arrays.iter().try_for_each(Array::wait);
    let call_once = || -> Result<Duration, xla::Error> {
        let begin = Instant::now();
        let results = add_one.call(arrays.clone())?;
        let elapsed = begin.elapsed();
        wait(&results)?;
        Ok(elapsed)
    };
    let execute_once = || -> Result<Duration, xla::Error> {
        let begin = Instant::now();
        let shard = |device: usize, input: usize| &arrays[input].buffers()[device];
        let results = executable.execute(100, shard, &ExecuteOptions::default())?;
        let elapsed = begin.elapsed();
        results.launch.wait()?;
        Ok(elapsed)
    };
    for _ in 0..20 {
        call_once()?;
        execute_once()?;
    }
    let calls = (0..repeat)
        .map(|_| call_once())
        .collect::<Result<Vec<_>, _>>()?;
    let executes = (0..repeat)
        .map(|_| execute_once())
        .collect::<Result<Vec<_>, _>>()?;
    let mut pending = VecDeque::new();
    let begin = Instant::now();
    for _ in 0..repeat {
        if pending.len() == WINDOW {
            let results: Vec<Array> = pending.pop_front().unwrap_or_default();
            wait(&results)?;
        }
        pending.push_back(add_one.call(arrays.clone())?);
    }
    pending.iter().try_for_each(|results| wait(results))?;
    let windowed = begin.elapsed().as_secs_f64() / repeat as f64;
    Ok(json!({
        "bench": "call", "framework": "shardax", "repeat": repeat, "devices": devices,
        "host_us": 1e6 * median(calls),
        "execute_us": 1e6 * median(executes),
        "windowed_us": 1e6 * windowed,
    }))
}

/// A run that is about to begin: its recipe, its state, and the batches of the first steps.
type Begun = (Recipe, TrainState<Array>, Vec<Array>);

/// Makes the state on the devices, and the batches on the host.
fn begin(size: Size, layout: &Layout, steps: usize) -> Result<Begun, Box<dyn Error>> {
    let (config, batch) = size.config();
    let recipe = Recipe::new(1e-3, Precision::F32);
    let init = jit(move || recipe.init(Gpt::init(config, reference::weight))).layout(layout);
    let state = init.call(())?;
    let tokens = jit(move || reference::tokens(config, batch, steps))
        .call(())?
        .to_vec::<i32>()?;
    let window = config.context + 1;
    let batches = tokens
        .chunks(batch * window)
        .map(|chunk| Array::from_slice(chunk, [batch, window]));
    Ok((recipe, state, batches.collect::<Result<_, _>>()?))
}

fn step(repeat: usize, size: Size, name: &str) -> Result<Value, Box<dyn Error>> {
    let layout = layout(name)?;
    let (recipe, mut state, batches) = begin(size, &layout, 8)?;
    let step = jit(move |state: TrainState, tokens: Tensor| {
        let (state, loss, _gradients) = recipe.step(state, tokens);
        (state, loss)
    })
    .layout(&layout)
    .donate(&[0]);
    let begin = Instant::now();
    let mut loss;
    (state, loss) = step.call((state, batches[0].clone()))?;
    loss.item::<f32>()?;
    let first = begin.elapsed();
    // Tokens are put on the devices beforehand, as in the JAX half.
    let input = step.compile((state.types(), batches[0].ty().clone()))?;
    let sharding = input
        .inputs()
        .last()
        .map(|input| input.sharding.as_ref().clone());
    let sharding = sharding.ok_or("the step has no arguments")?;
    let runtime = Runtime::shared(layout.mesh().device_count())?;
    let put = |batch: &Array| batch.put(&runtime, &sharding);
    let batches = batches.iter().map(put).collect::<Result<Vec<_>, _>>()?;
    let mut blocking = Vec::new();
    for i in 0..repeat + 5 {
        let begin = Instant::now();
        (state, loss) = step.call((state, batches[i % batches.len()].clone()))?;
        loss.item::<f32>()?;
        blocking.push(begin.elapsed());
    }
    let (mut pending, mut marks) = (VecDeque::new(), Vec::new());
    for i in 0..repeat + WINDOW {
        if pending.len() == WINDOW {
            let oldest: Option<Array> = pending.pop_front();
            oldest.map_or(Ok(()), |loss| loss.wait())?;
            marks.push(Instant::now());
        }
        (state, loss) = step.call((state, batches[i % batches.len()].clone()))?;
        pending.push_back(loss.clone());
    }
    pending.iter().try_for_each(Array::wait)?;
    let between = marks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    Ok(json!({
        "bench": "step", "framework": "shardax", "repeat": repeat,
        "size": format!("{size:?}").to_lowercase(), "layout": name,
        "compile_and_first_ms": 1e3 * first.as_secs_f64(),
        "blocking_ms": 1e3 * median(blocking.split_off(5)),
        "windowed_ms": 1e3 * median(between),
        "loss": loss.item::<f32>()?,
    }))
}

fn first_loss(name: &str) -> Result<Value, Box<dyn Error>> {
    let layout = layout(name)?;
    let (recipe, state, batches) = begin(Size::Tiny, &layout, 1)?;
    let step = jit(move |state: TrainState, tokens: Tensor| {
        let (state, loss, _gradients) = recipe.step(state, tokens);
        (state, loss)
    })
    .layout(&layout)
    .donate(&[0]);
    let (_, loss) = step.call((state, batches[0].clone()))?;
    Ok(json!(loss.item::<f32>()?))
}
