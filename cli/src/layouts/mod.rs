//! `shardax layouts`: the reference model under every layout, against one device.

mod plan;

use std::error::Error;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use shardax::train::Precision;
use shardax::{
    Array, CheckOptions, LayoutCheck, LayoutTable, Mesh, Partitioner, Runtime, Tensor, Tolerance,
    jit,
};

use crate::model::Gpt;
use crate::reference::{self, Size};
use crate::training::{Recipe, TrainState};
use plan::{MICRO_BATCHES, Plan};

/// What to check.
#[derive(Args)]
pub(crate) struct Options {
    /// Size of the reference model
    #[arg(long, default_value = "tiny")]
    reference: Size,
    /// Devices, which are virtual ones of the CPU
    #[arg(long, default_value = "8")]
    devices: NonZeroUsize,
    /// A strategy, such as zero1+megatron or fsdp+remat; may be given several times [default: all]
    #[arg(long)]
    strategy: Vec<Plan>,
    /// Names and sizes of a mesh's axes, such as data=2,model=4; may be given several times [default:
    /// all grids of the devices that fit]
    #[arg(long)]
    mesh: Vec<Mesh>,
    /// A partitioner, shardy or gspmd [default: both]
    #[arg(long)]
    partitioner: Vec<Partitioner>,
    /// Training steps
    #[arg(long, default_value = "20")]
    steps: NonZeroUsize,
    /// The element type that the model computes in
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
}

/// Prints the table.
pub(crate) fn run(options: &Options) -> ExitCode {
    match check(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all layouts are equal to one device.
fn check(options: &Options) -> Result<bool, Box<dyn Error>> {
    let (config, batch) = options.reference.config();
    // Two examples for each device, so that every device can be one of data parallelism, and accumulate.
    let batch = batch.max(MICRO_BATCHES * options.devices.get());
    let (steps, window) = (options.steps.get(), config.context + 1);
    let (precision, tolerance) = match options.dtype {
        Dtype::F32 => (Precision::F32, Tolerance::F32),
        Dtype::Bf16 => (Precision::BF16, Tolerance::BF16),
    };
    let recipe = Recipe::new(1e-3, precision);
    // One client for all meshes.
    Runtime::shared(options.devices.get())?;

    let tokens = jit(move || reference::tokens(config, batch, steps)).call(())?;
    let tokens = tokens.to_vec::<i32>()?;
    let batches = tokens
        .chunks(batch * window)
        .map(|tokens| Array::from_slice(tokens, [batch, window]));
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    let state = jit(move || recipe.init(Gpt::init(config, reference::weight))).call(())?;
    let step = |state: TrainState, tokens: Tensor| recipe.step(state, tokens);
    let options_of_check = CheckOptions {
        tolerance,
        ..CheckOptions::default()
    };
    let check = LayoutCheck::new(step, state, batches, options_of_check.quick())?;

    let mut table = LayoutTable::default();
    let mut heading = String::new();
    for (plan, mesh) in cases(options)? {
        for partitioner in options.partitioners() {
            let layout = plan.strategy.layout(mesh.clone())?.partitioner(partitioner);
            let row = check.row(&plan.to_string(), &layout, plan.step(recipe));
            if !options.json {
                if row.heading() != heading {
                    heading = row.heading();
                    println!("{heading}");
                }
                println!("{row}");
            }
            table.rows.push(row);
        }
    }
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&table.to_json())?),
        false => print!("{}", table.summary()),
    }
    Ok(table.is_equal())
}

/// Strategies with meshes, in groups of one mesh.
fn cases(options: &Options) -> Result<Vec<(Plan, Mesh)>, Box<dyn Error>> {
    let plans = match options.strategy.is_empty() {
        true => Plan::all()?,
        false => options.strategy.clone(),
    };
    let mut cases = Vec::new();
    if !options.mesh.is_empty() {
        for mesh in &options.mesh {
            mesh.check_devices(options.devices.get())?;
            for plan in &plans {
                cases.push((plan.clone(), mesh.clone()));
            }
        }
        return Ok(cases);
    }
    for shape in plan::shapes(options.devices.get()) {
        for plan in &plans {
            let Some(mesh) = plan.mesh(&shape) else {
                continue;
            };
            let mesh = mesh?;
            // Heads are not cut.
            let (config, _) = options.reference.config();
            let parts = mesh.axis_size("model").unwrap_or(1);
            if config.heads.is_multiple_of(parts) {
                cases.push((plan.clone(), mesh));
            }
        }
    }
    cases.sort_by_key(|(_, mesh)| mesh.to_string());
    Ok(cases)
}

impl Plan {
    /// The step, written as the plan says.
    fn step(&self, recipe: Recipe) -> impl Fn(TrainState, Tensor) -> (TrainState, Tensor, Gpt) {
        let micro_batches = if self.accumulates { MICRO_BATCHES } else { 1 };
        let recipe = Recipe {
            micro_batches,
            remat: self.remat,
            ..recipe
        };
        move |state, tokens| recipe.step(state, tokens)
    }
}

impl Options {
    fn partitioners(&self) -> Vec<Partitioner> {
        match self.partitioner.is_empty() {
            true => vec![Partitioner::Shardy, Partitioner::Gspmd],
            false => self.partitioner.clone(),
        }
    }
}
