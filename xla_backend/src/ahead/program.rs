//! A program that was compiled for a cluster, and what can be asked of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use shardax_core::ir::Graph;
use shardax_pjrt::child::Compiled;
use shardax_sharding::{Cluster, Layout};

use crate::compiled::{CompiledFrom, Input, Output, remarks};
use crate::error::Result;
use crate::lower::Module;
use crate::report::{
    CollectiveReport, HloModule, MemoryReport, Report, ReportOptions, human_bytes,
};

/// A program that was compiled for a [`Cluster`] without its devices: what the compiler makes of it there, not a
/// program that could be run here. Made by [`Jit::compile_for`](crate::Jit::compile_for).
#[derive(Clone)]
pub struct AheadProgram {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) name: String,
    pub(crate) cluster: Cluster,
    pub(crate) graph: Graph,
    pub(crate) layout: Layout,
    pub(crate) module: Module,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) report: ReportOptions,
    pub(crate) compiled: Compiled,
    pub(crate) from_cache: bool,
}

impl Inner {
    fn compiled_from(&self) -> CompiledFrom<'_> {
        CompiledFrom {
            graph: &self.graph,
            layout: &self.layout,
            module: &self.module,
            inputs: &self.inputs,
            outputs: &self.outputs,
        }
    }
}

impl AheadProgram {
    /// The name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The cluster that it was compiled for.
    pub fn cluster(&self) -> &Cluster {
        &self.inner.cluster
    }

    /// The traced program.
    pub fn graph(&self) -> &Graph {
        &self.inner.graph
    }

    /// The layout that it was compiled for. Position 0 of its mesh is the first GPU of the first node.
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// The arguments, in the order of the leaves.
    pub fn inputs(&self) -> &[Input] {
        &self.inner.inputs
    }

    /// The results, in the order of the leaves.
    pub fn outputs(&self) -> &[Output] {
        &self.inner.outputs
    }

    /// Whether it was loaded from the cache on disk rather than compiled.
    pub fn is_from_cache(&self) -> bool {
        self.inner.from_cache
    }

    /// How long XLA took to compile it, when it did.
    pub fn compile_time(&self) -> Duration {
        let seconds = self.inner.compiled.seconds;
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// The StableHLO text that was compiled.
    pub fn stablehlo(&self) -> String {
        self.inner.module.text().to_owned()
    }

    /// The program as the compiler left it: partitioned and fused, each computation's instructions in the order in which
    /// they are launched.
    ///
    /// # Errors
    ///
    /// When the compiler left it in a form that is not known here.
    pub fn optimized(&self) -> Result<HloModule> {
        Ok(HloModule::decode(&self.inner.compiled.hlo)?)
    }

    /// The text of [`AheadProgram::optimized`], with the names of operations in the traced program and the lines that
    /// wrote them.
    ///
    /// # Errors
    ///
    /// As for [`AheadProgram::optimized`].
    pub fn optimized_hlo(&self) -> Result<String> {
        Ok(self.inner.compiled_from().text(&self.optimized()?))
    }

    /// Every collective: kind, bytes, mesh axis, how often, the user's line, and whether other work may run beside it.
    ///
    /// # Errors
    ///
    /// As for [`AheadProgram::optimized`].
    pub fn collectives(&self) -> Result<CollectiveReport> {
        self.inner.compiled_from().collectives(&self.optimized()?)
    }

    /// The whole report, as [`Program::report`](crate::Program::report) gives it.
    ///
    /// # Errors
    ///
    /// As for [`AheadProgram::optimized`].
    pub fn report(&self) -> Result<Report> {
        self.report_with(self.inner.report)
    }

    /// As [`Program::remarks`](crate::Program::remarks).
    pub fn remarks(&self) -> Vec<String> {
        remarks(self.inputs(), self.outputs(), self.graph(), self.layout())
    }

    /// [`AheadProgram::report`] with other thresholds than those of
    /// [`Jit::report_options`](crate::Jit::report_options).
    ///
    /// # Errors
    ///
    /// As for [`AheadProgram::optimized`].
    pub fn report_with(&self, options: ReportOptions) -> Result<Report> {
        let memory = Some(self.memory());
        let from = self.inner.compiled_from();
        from.report(&self.optimized()?, memory, options)
    }

    /// The memory that the program needs on one device.
    pub fn memory(&self) -> MemoryReport {
        MemoryReport::of(self.inner.compiled.memory, self.graph())
    }

    /// The bytes of device memory that the program needs at its peak.
    pub fn memory_needed(&self) -> u64 {
        let memory = self.memory();
        match memory.peak {
            0 => (memory.argument + memory.output + memory.temp + memory.constants)
                .saturating_sub(memory.alias),
            peak => peak,
        }
    }

    /// Whether the program fits in the memory of a device. XLA compiles what does not, and says nothing.
    ///
    /// What the CUDA context and the communicators take (1 to 3 GB) is not counted; see
    /// [`Chip::memory_bytes`](shardax_sharding::Chip::memory_bytes).
    pub fn fits(&self) -> bool {
        self.memory_needed() <= self.inner.cluster.chip().memory_bytes()
    }
}

impl fmt::Display for AheadProgram {
    /// What it needs of a device's memory, in a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = self.cluster();
        let chip = cluster.chip();
        write!(
            f,
            "`{}` on {cluster}: {} of {} of an {chip}, {}",
            self.name(),
            human_bytes(self.memory_needed()),
            human_bytes(chip.memory_bytes()),
            match self.fits() {
                true => "fits",
                false => "does not fit",
            }
        )
    }
}
