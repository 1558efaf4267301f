//! The `shardax` command: what a user asks of an installation rather than of a program.

#![forbid(unsafe_code)]

mod doctor;
mod layouts;
#[path = "../../examples/train_gpt/model.rs"]
mod model;
mod ops;
mod out;
mod probe;
#[path = "../../examples/train_gpt/reference.rs"]
mod reference;
#[path = "../../examples/train_gpt/training.rs"]
mod training;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Shardax: write the model for one device, run it under any sharding layout.
#[derive(Parser)]
#[command(name = "shardax", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tell whether training can run on this machine, and what is wrong and how to mend it.
    ///
    /// Looks for plugins, loads the one that training would use, runs a small program on all its devices, and looks at
    /// the cache folder, Python and the environment. Exits with 0 if that program ran, else with 1.
    Doctor(doctor::Options),
    /// Check that a training step computes under every layout what it computes on one device.
    ///
    /// Trains the reference model of the `train_gpt` example on one device and under each strategy, mesh and partitioner, and
    /// compares losses, gradients and updated state. Exits with 0 if all are equal, else with 1.
    Layouts(layouts::Options),
    /// List every primitive with its derivative, transpose, batching and lowering, from the code itself.
    Ops(ops::Options),
    /// Load a plugin and run a program, for `doctor`, which must survive what XLA does to the process.
    #[command(hide = true)]
    Probe(probe::Options),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Doctor(options) => doctor::run(&options),
        Command::Layouts(options) => layouts::run(&options),
        Command::Ops(options) => ops::run(&options),
        Command::Probe(options) => probe::run(&options),
    }
}
