//! The command line.

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use shardax::prelude::*;
use shardax::train::Precision;

use crate::model::Config;
use crate::reference;
use crate::training::Recipe;

/// Trains a small GPT on text, on any number of devices, under any layout.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// A file or a folder of text [default: this repository's own text and source]
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Training steps [default: 500, and 20 for a reference run]
    #[arg(long)]
    pub(crate) steps: Option<NonZeroUsize>,
    /// Devices [default: as many as the mesh has, else 8]
    #[arg(long)]
    pub(crate) devices: Option<NonZeroUsize>,
    /// Names and sizes of the device grid's axes, such as data=2,model=4
    #[arg(long)]
    pub(crate) mesh: Option<Mesh>,
    /// How the run is spread over the mesh: ddp, zero1, zero2, fsdp, hsdp, megatron, megatron-sp,
    /// megatron-fsdp, context, or several with + between them
    #[arg(long, default_value = "megatron")]
    pub(crate) layout: Strategy,
    /// Which partitioner of XLA spreads it: shardy or gspmd
    #[arg(long, default_value = "shardy")]
    pub(crate) partitioner: Partitioner,
    /// The element type that the model computes in; parameters are always kept in f32
    #[arg(long, default_value = "f32")]
    pub(crate) dtype: Dtype,
    /// In how many parts, one after the other, a batch is taken
    #[arg(long, default_value = "1")]
    pub(crate) micro_batches: NonZeroUsize,
    /// Computes the values of a layer again in the backward pass instead of keeping them
    #[arg(long)]
    pub(crate) remat: bool,
    /// Determines initial weights, which text is seen when, and the text that is sampled
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Writes a JSON line for each step: step, loss, step_ms, tokens_per_s
    #[arg(long)]
    pub(crate) log: Option<PathBuf>,
    /// Trains the reference run of this size, which other frameworks can repeat, instead of text
    #[arg(long, conflicts_with = "data")]
    pub(crate) reference: Option<reference::Size>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Dtype {
    F32,
    Bf16,
}

impl Options {
    /// The mesh with the strategy's rules. Without `--mesh` up to four devices share each layer under
    /// tensor parallelism, and up to four a sequence under context parallelism; two groups are replicas
    /// of each other if the strategy has any; the others have batches of their own.
    pub(crate) fn layout(&self) -> Result<Layout, Box<dyn Error>> {
        let devices = self.devices.map_or(8, NonZeroUsize::get);
        let mesh = match &self.mesh {
            Some(mesh) => mesh.clone(),
            None => Mesh::new(self.default_axes(devices))?,
        };
        if let Some(devices) = self.devices {
            mesh.check_devices(devices.get())?;
        }
        Ok(self.layout.layout(mesh)?.partitioner(self.partitioner))
    }

    /// `data`, and what else the strategy needs, major first.
    fn default_axes(&self, devices: usize) -> Vec<(&'static str, usize)> {
        let (mut axes, mut left) = (Vec::new(), devices);
        for (axis, sizes) in [
            ("model", &[4, 2][..]),
            ("context", &[4, 2]),
            ("replica", &[2]),
        ] {
            if self.layout.axes().contains(&axis) {
                let fits = |n: &&usize| left.is_multiple_of(**n);
                let size = sizes.iter().find(fits).copied().unwrap_or(1);
                axes.push((axis, size));
                left /= size;
            }
        }
        axes.push(("data", left));
        axes.reverse();
        // Replicas are groups of `data`.
        axes.sort_by_key(|(axis, _)| *axis != "replica");
        axes
    }

    /// The model's sizes, and the number of sequences in a batch.
    pub(crate) fn config(&self) -> (Config, usize) {
        let default = Config {
            layers: 2,
            width: 128,
            heads: 8,
            vocab: 256,
            context: 64,
        };
        self.reference
            .map_or((default, 32), reference::Size::config)
    }

    pub(crate) fn recipe(&self) -> Recipe {
        let lr = if self.reference.is_some() { 1e-3 } else { 2e-3 };
        let precision = match self.dtype {
            Dtype::F32 => Precision::F32,
            Dtype::Bf16 => Precision::BF16,
        };
        Recipe {
            micro_batches: self.micro_batches.get(),
            remat: self.remat,
            ..Recipe::new(lr, precision)
        }
    }

    pub(crate) fn steps(&self) -> usize {
        let default = if self.reference.is_some() { 20 } else { 500 };
        self.steps.map_or(default, NonZeroUsize::get)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.data
            .clone()
            .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into())
    }
}
