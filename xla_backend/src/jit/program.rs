//! A compiled program, and what can be asked of it.

use std::sync::Arc;

use shardax_core::{CheckOrigin, CheckPoint, Element, NonFinite, ir::Graph};
use shardax_pjrt::Error as RuntimeError;
use shardax_pjrt::{ArgumentFault, Buffer, LoadedExecutable};

use shardax_sharding::{Layout, StoredArray};

use crate::compiled::{CompiledFrom, Input, Output, remarks};
use crate::error::{Error, Result};
use crate::lower::Module;
use crate::report::{CollectiveReport, HloModule, MemoryReport, Report, ReportOptions};

/// A program with the structure of its arguments and results.
pub(super) struct Specialized<A, R> {
    pub program: Program,
    /// The structure of the arguments.
    pub arguments: A,
    /// The structure of the results.
    pub output: R,
}

/// A compiled program.
#[derive(Clone)]
pub struct Program {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub name: String,
    pub graph: Graph,
    pub layout: Layout,
    pub module: Module,
    pub executable: LoadedExecutable,
    pub from_cache: bool,
    pub retraced: Vec<String>,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    /// What its report looks for.
    pub report: ReportOptions,
    /// Where values are looked at, if they are.
    pub points: Option<(NonFinite, Vec<CheckPoint>)>,
}

/// An error of the program, if there are faults.
pub(super) fn no_faults(program: &str, faults: Vec<String>) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    Err(Error::Call {
        program: program.to_owned(),
        faults,
        source_line: None,
    })
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

impl Program {
    /// The name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The traced program.
    pub fn graph(&self) -> &Graph {
        &self.inner.graph
    }

    /// The layout that it was compiled for.
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// The arguments, in the order of the leaves.
    pub fn inputs(&self) -> &[Input] {
        &self.inner.inputs
    }

    /// The arguments as [`Layout::diff_of`] takes them, to see how they would lie under another layout.
    pub fn stored_arrays(&self) -> Vec<StoredArray> {
        let stored = self.inputs().iter().map(|input| StoredArray {
            path: input.path.clone(),
            role: input.role,
            dims: input.dims.clone(),
            shape: input.ty.shape.to_vec(),
            bytes: input.ty.host_bytes() as u64,
        });
        stored.collect()
    }

    /// The results, in the order of the leaves.
    pub fn outputs(&self) -> &[Output] {
        &self.inner.outputs
    }

    /// What is worth knowing of the program though nothing is wrong with it, a sentence each: large
    /// arguments that every device holds whole because nobody annotated them, choices that the
    /// layout made, rules whose name looks like a misspelling of an annotation's, and overrides and
    /// constraints that nothing matches.
    pub fn remarks(&self) -> Vec<String> {
        remarks(self.inputs(), self.outputs(), self.graph(), self.layout())
    }

    /// Whether it was loaded from the cache on disk rather than compiled.
    pub fn is_from_cache(&self) -> bool {
        self.inner.from_cache
    }

    /// What differs from the most similar program that was compiled before for the same function, a
    /// sentence each: ``argument 2 `batch.tokens`: i32[8,64] became i32[8,65]``. Empty for the first
    /// program of a function.
    pub fn retraced_because(&self) -> &[String] {
        &self.inner.retraced
    }

    /// The StableHLO text that was compiled.
    pub fn stablehlo(&self) -> String {
        self.inner.module.text().to_owned()
    }

    /// The program as the compiler left it: partitioned, fused and scheduled.
    ///
    /// # Errors
    ///
    /// When the plugin does not keep it, or keeps it in a form that is not known here.
    pub fn optimized(&self) -> Result<HloModule> {
        let program = self.inner.executable.optimized_program()?;
        Ok(HloModule::decode(&program.code)?)
    }

    /// The text of [`Program::optimized`], with the names of operations in the traced program and the
    /// lines that wrote them.
    ///
    /// # Errors
    ///
    /// As for [`Program::optimized`].
    pub fn optimized_hlo(&self) -> Result<String> {
        Ok(self.inner.compiled_from().text(&self.optimized()?))
    }

    /// Every collective of the compiled program: kind, bytes, mesh axis, how often, and the user's
    /// line.
    ///
    /// # Errors
    ///
    /// As for [`Program::optimized`].
    pub fn collectives(&self) -> Result<CollectiveReport> {
        self.inner.compiled_from().collectives(&self.optimized()?)
    }

    /// The whole report: every collective and why it is there, how the arguments lie, memory, and
    /// warnings. Printed, it is text; it can be had as JSON and as a page of HTML too.
    ///
    /// # Errors
    ///
    /// As for [`Program::optimized`].
    pub fn report(&self) -> Result<Report> {
        self.report_with(self.inner.report)
    }

    /// [`Program::report`] with other thresholds than those of [`Jit::report_options`].
    ///
    /// # Errors
    ///
    /// As for [`Program::optimized`].
    ///
    /// [`Jit::report_options`]: crate::Jit::report_options
    pub fn report_with(&self, options: ReportOptions) -> Result<Report> {
        // A plugin that keeps no statistics has a report all the same.
        let memory = self.memory().ok();
        let from = self.inner.compiled_from();
        from.report(&self.optimized()?, memory, options)
    }

    /// The memory that the program needs on one device.
    ///
    /// # Errors
    ///
    /// When the plugin does not know.
    pub fn memory(&self) -> Result<MemoryReport> {
        let stats = self.inner.executable.memory_stats()?;
        Ok(MemoryReport::of(stats, &self.inner.graph))
    }

    /// The loaded executable.
    pub fn executable(&self) -> &LoadedExecutable {
        &self.inner.executable
    }

    /// A launch's faults by the paths of the arguments, each once for all devices.
    pub(super) fn name_arguments(&self, error: RuntimeError) -> Error {
        let RuntimeError::Arguments { faults, .. } = error else {
            return error.into();
        };
        let mut named: Vec<String> = Vec::new();
        for fault in &faults {
            let text = match fault {
                ArgumentFault::Deleted { argument, .. } => self.about(*argument, "was donated to an earlier call and holds no data any more: use the result that took its memory"),
                ArgumentFault::DonatedInUse { argument, .. } if self.inner.executable.is_donated(*argument) => {
                    self.about(*argument, "is donated, and the same array is also another argument or used by another thread: pass a copy, or do not donate it")
                }
                ArgumentFault::DonatedInUse { argument, .. } => self.about(*argument, "is the same array as an argument that is donated, of this call or of one in another thread: pass a copy, or do not donate it"),
                ArgumentFault::Client { argument, .. } => self.about(*argument, "belongs to another client than the program: make it by programs of the same runtime, or move the arguments with `Jit::place`"),
                other => other.to_string(),
            };
            if !named.contains(&text) {
                named.push(text);
            }
        }
        Error::Call {
            program: self.inner.name.clone(),
            faults: named,
            source_line: None,
        }
    }

    /// What a look at every value has found: the buffers behind those of the results begin with it.
    pub(super) fn check_finite(&self, buffers: &[Buffer]) -> Result<()> {
        let (Some((what, points)), Some(buffer)) = (&self.inner.points, buffers.first()) else {
            return Ok(());
        };
        let bytes = buffer.to_host()?;
        let found = i32::from_bytes(&bytes).first().copied();
        let Some(point) = found.and_then(|i| points.get(usize::try_from(i).ok()?)) else {
            return Ok(());
        };
        let found = match what {
            NonFinite::Nan => "NaN",
            NonFinite::NanOrInfinity => "NaN or infinity",
        };
        let (what, source) = match &point.origin {
            CheckOrigin::Argument(i) => (self.about(*i, &format!("has a {found}")), None),
            CheckOrigin::Operation {
                name,
                source,
                scope,
            } => {
                let scope = scope.as_ref();
                let within = scope.map_or(String::new(), |s| format!(" in `{s}`"));
                let ty = &point.ty;
                let what = format!("`{name}`{within} gave the first {found}, in its result {ty}");
                (what, Some(*source))
            }
        };
        Err(Error::NonFinite {
            program: self.inner.name.clone(),
            what,
            source_line: source,
        })
    }

    fn about(&self, argument: usize, problem: &str) -> String {
        let input = self.inner.inputs.get(argument).map(Input::described);
        format!(
            "{} {problem}",
            input.unwrap_or_else(|| format!("argument {argument}"))
        )
    }
}
