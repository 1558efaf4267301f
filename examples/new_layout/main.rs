//! Looks at a new layout of the GPT of `train_gpt`: what it communicates and why, whether it computes the
//! same, and what it is on a cluster. The model is not touched; the layout is a file. Try:
//!
//! ```text
//! cargo run --example new_layout -- examples/new_layout/stationary.toml
//! cargo run --example new_layout -- examples/new_layout/stationary.toml --against fsdp+megatron
//! cargo run --example new_layout -- examples/new_layout/stationary.toml --check
//! cargo run --example new_layout -- examples/new_layout/stationary.toml --cluster h100:1x8
//! cargo run --example new_layout -- examples/new_layout/stationary.toml --html report.html
//! ```
//!
//! `docs/guide/layouts.md` goes through it.

#[path = "../train_gpt/model.rs"]
mod model;
#[path = "../train_gpt/reference.rs"]
mod reference;
#[path = "../train_gpt/training.rs"]
mod training;

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use shardax::prelude::*;
use shardax::train::Precision;
use shardax::xla::report::human_bytes;
use shardax::{CheckOptions, Cluster, check_layouts};

use model::Gpt;
use reference::Size;
use training::{Recipe, TrainState};

/// Looks at a layout.
#[derive(Debug, Parser)]
struct Options {
    /// A file with a layout
    layout: PathBuf,
    /// Compares with a known strategy, whose axes have the sizes of the layout's, in order
    #[arg(long)]
    against: Option<Strategy>,
    /// Runs three steps under the layout, and compares with one device
    #[arg(long)]
    check: bool,
    /// Compiles for a cluster, which need not be there, instead of for the CPU
    #[arg(long)]
    cluster: Option<Cluster>,
    /// Writes the report as a page
    #[arg(long)]
    html: Option<PathBuf>,
}

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
    let text = std::fs::read_to_string(&options.layout)
        .map_err(|error| format!("{}: {error}", options.layout.display()))?;
    let layout = Layout::from_toml(&text)
        .map_err(|error| format!("{}: {error}", options.layout.display()))?;
    // Unlike `println`, an error where nobody reads any more, as in `new_layout .. | head`.
    let mut out = io::stdout();
    writeln!(out, "{layout}")?;

    let (config, batch) = Size::Tiny.config();
    let window = config.context + 1;
    let recipe = Recipe::new(1e-3, Precision::F32);
    let init = move || recipe.init(Gpt::init(config, reference::weight));
    let step = move |state: TrainState, tokens: Tensor| recipe.step(state, tokens);
    let state = jit(init).call(())?;
    let types = || (state.types(), TensorType::new(DType::I32, [batch, window]));

    let compiled = jit(step).name("train_step").layout(&layout).donate(&[0]);
    if let Some(strategy) = &options.against {
        let devices = layout.mesh().device_count();
        let sizes: Vec<usize> = match strategy.axes().len() {
            1 => vec![devices],
            _ => layout
                .mesh()
                .axes()
                .iter()
                .map(|axis| axis.size())
                .collect(),
        };
        let mesh = Mesh::new(strategy.axes().into_iter().zip(sizes))?;
        mesh.check_devices(devices)?;
        let known = strategy.layout(mesh)?;
        let other = jit(step).name(strategy.to_string()).layout(&known);
        for program in [other.compile(types())?, compiled.compile(types())?] {
            let totals = program.collectives()?.totals();
            let times: u64 = totals.iter().map(|total| total.times).sum();
            let sent: u64 = totals.iter().map(|total| total.bytes_sent).sum();
            let (name, sent) = (program.name(), human_bytes(sent));
            writeln!(
                out,
                "{name}: {times} collectives a step, in which a device sends {sent}"
            )?;
        }
    } else if options.check {
        let tokens = jit(move || reference::tokens(config, batch, 3)).call(())?;
        let tokens: Vec<i32> = tokens.to_vec()?;
        let batches = tokens.chunks(batch * window);
        let batches = batches.map(|tokens| Array::from_slice(tokens, [batch, window]));
        let name = options.layout.file_stem().unwrap_or_default();
        let layouts = [(name.to_string_lossy().into_owned(), layout)];
        let batches = batches.collect::<Result<_, _>>()?;
        let table = check_layouts(step, state, batches, &layouts, CheckOptions::default())?;
        writeln!(out, "{table}")?;
        if !table.is_equal() {
            return Err("the layout does not compute what one device computes".into());
        }
    } else if let Some(cluster) = &options.cluster {
        let program = compiled.compile_for(cluster, types())?;
        writeln!(out, "{program}\n{}", program.collectives()?)?;
    } else {
        let report = compiled.compile(types())?.report()?;
        writeln!(out, "{report}")?;
        if let Some(path) = &options.html {
            std::fs::write(path, report.to_html())
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}
