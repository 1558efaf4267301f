//! Trains a GPT. The model is single-device code; that it runs on eight devices, and how, is a matter
//! of the layout alone. Try:
//!
//! ```text
//! cargo run --example train_gpt
//! cargo run --example train_gpt -- --layout fsdp --dtype bf16
//! cargo run --example train_gpt -- --mesh data=4,model=2 --data some/folder
//! cargo run --example train_gpt -- --reference tiny --layout ddp
//! ```
//!
//! Reading order: `model.rs` (the model), `training.rs` (the step), here (the run), `sample.rs`.

mod model;
mod options;
mod reference;
mod sample;
mod training;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use shardax::picture;
use shardax::prelude::*;
use shardax::run::{Log, Meter, Progress, Text, run_ahead};

use model::Gpt;
use options::Options;
use training::TrainState;

/// How much the model writes at the end.
const CHARACTERS: usize = 200;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be there to read it, and then nothing is to be done about it.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let (config, batch) = options.config();
    let (recipe, steps, seed) = (options.recipe(), options.steps(), options.seed);
    let window = config.context + 1;

    // 1. A layout says what the names in the model's annotations mean on a mesh of devices.
    let layout = options.layout()?;
    // Unlike `println`, an error where nobody reads any more, as in `train_gpt | head`.
    let mut out = io::stdout();
    writeln!(out, "{layout}")?;
    let mut log = options.log.as_ref().map(Log::create).transpose()?;

    // 2. Tokens for every step: windows of a text, or those of the reference run.
    let text = match options.reference {
        None => Some(Text::read(options.data(), window)?),
        Some(_) => None,
    };
    let tokens: Box<dyn Fn(usize) -> Vec<i32>> = match &text {
        Some(text) => Box::new(|step| text.batch(seed, step, batch, window)),
        None => {
            let all = jit(move || reference::tokens(config, batch, steps)).layout(&layout);
            let all = all.call(())?.to_vec()?;
            Box::new(move |step| all[step * batch * window..][..batch * window].to_vec())
        }
    };

    // 3. Initialization is a program like any other: each device computes its own shards.
    let init = jit(move || {
        let random = |name: &str, shape: &[usize]| {
            let key = name
                .bytes()
                .fold(Key::from_seed(seed), |key, byte| key.fold_in(byte));
            key.normal(DType::F32, shape) * 0.02
        };
        recipe.init(match options.reference {
            Some(_) => Gpt::init(config, reference::weight),
            None => Gpt::init(config, random),
        })
    });
    let state = init.layout(&layout).call(())?;
    let parameter = &state.model.wte;
    if let Some(sharding) = parameter.sharding()
        && let Ok(drawn) = picture(sharding.spec(), sharding.mesh(), parameter.shape())
    {
        writeln!(out, "wte {drawn}")?;
    }

    // 4. The training step is compiled once, and says what its devices tell each other.
    let step = move |state: TrainState, tokens: Tensor| {
        let (state, loss, _gradients) = recipe.step(state, tokens);
        (state, loss)
    };
    let step = jit(step).name("train_step").layout(&layout).donate(&[0]);
    let types = state.types();
    let program = step.compile((types, TensorType::new(DType::I32, [batch, window])))?;
    writeln!(out, "{}", program.collectives()?)?;

    // 5. Steps are launched without waiting, each on the state that the one before gives up.
    let mut progress = Progress::new(steps);
    let mut meter = Meter::start(batch * config.context);
    let mut losses = Vec::new();
    let launch = |i, state| {
        let tokens = Array::from_slice(&tokens(i), [batch, window])?;
        Ok(step.call((state, tokens))?)
    };
    let finish = |loss: Array| {
        let record = meter.finished(loss.item()?);
        losses.push(record.loss);
        progress.show(&record);
        log.as_mut().map_or(Ok(()), |log| Ok(log.write(&record)?))
    };
    let state = run_ahead::<_, _, Box<dyn Error>>(steps, state, launch, finish)?;
    progress.finish();

    // 6. The model writes.
    if let Some(text) = &text {
        let last = &losses[losses.len().saturating_sub(20)..];
        let mean = last.iter().sum::<f32>() / last.len().max(1) as f32;
        let unigram = text.unigram_entropy();
        println!(
            "loss {mean:.3} in the last steps; knowing only how frequent bytes are: {unigram:.3}"
        );

        let prompts = text.validation_batch(seed, 0, batch, config.context);
        let window = Array::from_slice(&prompts, [batch, config.context])?;
        let write = jit(move |model: Gpt, window: Tensor| {
            let model = recipe.precision.cast(model);
            sample::sample(model, window, Key::from_seed(seed), CHARACTERS)
        });
        let written = write.layout(&layout).call((state.model, window))?;
        let written = written.to_vec::<i32>()?;
        for row in 0..2 {
            let prompt = Text::decode(&prompts[row * config.context..][..config.context]);
            writeln!(out, "\n--- given {prompt:?}, the model goes on:")?;
            writeln!(
                out,
                "{}",
                Text::decode(&written[row * CHARACTERS..][..CHARACTERS])
            )?;
        }
    }
    Ok(())
}
