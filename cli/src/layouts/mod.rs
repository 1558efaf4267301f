//! `shardax layouts`: the reference model under every layout, against one device.

mod plan;

use std::error::Error;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use shardax::train::Precision;
use shardax::{
    Array, CheckOptions, Layout, LayoutCheck, LayoutTable, Mesh, Partitioner, Runtime, Tensor,
    Tolerance, jit,
};

use crate::model::Gpt;
use crate::out;
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
    /// Training steps, at most 10000
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
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
        Err(error) => out::failed(&*error),
    }
}

/// A strategy on a mesh under a partitioner.
struct Case {
    plan: Plan,
    layout: Layout,
}

/// Whether all layouts are equal to one device.
fn check(options: &Options) -> Result<bool, Box<dyn Error>> {
    // One client for all meshes.
    Runtime::shared(options.devices.get())?;
    let cases = cases(options)?;
    let (config, batch) = options.reference.config();
    // Two examples for each device, so that every device can be one of data parallelism, and accumulate.
    let batch = batch.next_multiple_of(MICRO_BATCHES * options.devices.get());
    let (steps, window) = (options.steps as usize, config.context + 1);
    let (precision, tolerance) = match options.dtype {
        Dtype::F32 => (Precision::F32, Tolerance::F32),
        Dtype::Bf16 => (Precision::BF16, Tolerance::BF16),
    };
    let recipe = Recipe::new(1e-3, precision);

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
    for Case { plan, layout } in cases {
        let row = check.row(&plan.to_string(), &layout, plan.step(recipe));
        if !options.json {
            if row.heading() != heading {
                heading = row.heading();
                out::line(&heading)?;
            }
            out::line(&row)?;
        }
        table.rows.push(row);
    }
    match options.json {
        true => out::line(serde_json::to_string_pretty(&table.to_json())?)?,
        false => out::text(table.summary())?,
    }
    Ok(table.is_equal())
}

/// Strategies with meshes, in groups of one mesh, under each partitioner.
///
/// # Errors
///
/// Everything that was asked for and cannot be checked.
fn cases(options: &Options) -> Result<Vec<Case>, Box<dyn Error>> {
    let (mut cases, mut faults) = (Vec::new(), Vec::new());
    for (plan, mesh) in meshes(options, &mut faults)? {
        for partitioner in options.partitioners() {
            match plan.strategy.layout(mesh.clone()) {
                Ok(layout) => cases.push(Case {
                    plan: plan.clone(),
                    layout: layout.partitioner(partitioner),
                }),
                Err(fault) => faults.push(fault.to_string()),
            }
        }
    }
    faults.dedup();
    match faults.is_empty() {
        true => Ok(cases),
        false => Err(faults.join("\nerror: ").into()),
    }
}

/// Strategies with meshes; strategies that were asked for and fit on none are faults.
fn meshes(
    options: &Options,
    faults: &mut Vec<String>,
) -> Result<Vec<(Plan, Mesh)>, Box<dyn Error>> {
    let devices = options.devices.get();
    let plans = match options.strategy.is_empty() {
        true => Plan::all()?,
        false => options.strategy.clone(),
    };
    let mut cases = Vec::new();
    for mesh in &options.mesh {
        match mesh.check_devices(devices) {
            Ok(()) => cases.extend(plans.iter().map(|plan| (plan.clone(), mesh.clone()))),
            Err(fault) => faults.push(fault.to_string()),
        }
    }
    if !options.mesh.is_empty() {
        return Ok(cases);
    }
    let (config, _) = options.reference.config();
    for plan in &plans {
        let before = cases.len();
        for shape in plan::shapes(devices) {
            let Some(mesh) = plan.mesh(&shape) else {
                continue;
            };
            let mesh = mesh?;
            // Heads are not cut.
            let parts = mesh.axis_size("model").unwrap_or(1);
            if config.heads.is_multiple_of(parts) {
                cases.push((plan.clone(), mesh));
            }
        }
        if cases.len() == before && !options.strategy.is_empty() {
            faults.push(format!(
                "no grid of {devices} devices is for {plan}: name one with --mesh, or choose other --devices"
            ));
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn cases_of(arguments: &[&str]) -> Result<usize, String> {
        let arguments = ["layouts"].iter().chain(arguments);
        let options = Command::parse_from(arguments).options;
        let cases = cases(&options).map_err(|error| error.to_string())?;
        Ok(cases.len())
    }

    #[test]
    fn what_is_asked_for_is_checked_or_an_error() {
        assert_eq!(cases_of(&["--devices", "1", "--strategy", "fsdp"]), Ok(2));
        let error = cases_of(&["--devices", "3", "--strategy", "megatron"]).unwrap_err();
        assert!(
            error.contains("no grid of 3 devices is for megatron"),
            "{error}"
        );
        let error = cases_of(&["--mesh", "x=8", "--mesh", "data=2", "--strategy", "ddp"]);
        let error = error.unwrap_err();
        for part in [
            "data=2 needs 2 devices, 8 are there",
            "needs a mesh axis `data`",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
