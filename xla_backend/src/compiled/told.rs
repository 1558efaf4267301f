//! What a compiled program tells with the help of what it was traced from, whether it runs here or was compiled for a
//! cluster that is not there.

use shardax_core::ir::Graph;
use shardax_sharding::{Layout, Role};

use super::{Input, Output, remarks};
use crate::error::Result;
use crate::lower::Module;
use crate::report::{
    CollectiveReport, HloModule, MemoryReport, Placed, Report, ReportOptions, Subject, TracedFrom,
    set_place,
};

/// What a program was compiled from, and where its arguments and results lie.
#[derive(Clone, Copy)]
pub(crate) struct CompiledFrom<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) layout: &'a Layout,
    pub(crate) module: &'a Module,
    pub(crate) inputs: &'a [Input],
    pub(crate) outputs: &'a [Output],
}

impl CompiledFrom<'_> {
    /// The text of the optimized program, with the names of operations in the traced program and the
    /// lines that wrote them.
    pub(crate) fn text(&self, optimized: &HloModule) -> String {
        optimized.text(|instruction| {
            let name = self.module.name_of(instruction.op_name());
            match self.module.source_of(instruction.op_name()) {
                Some(source) => format!("{name} {}:{}", source.file(), source.line()),
                None => name,
            }
        })
    }

    /// The collectives of the optimized program, with the names and the lines of the traced one.
    pub(crate) fn collectives(&self, optimized: &HloModule) -> Result<CollectiveReport> {
        let mut report = CollectiveReport::new(optimized, self.layout.mesh())?;
        for collective in &mut report.collectives {
            set_place(collective, self.module);
        }
        Ok(report)
    }

    /// The whole report on the optimized program.
    pub(crate) fn report(
        &self,
        optimized: &HloModule,
        memory: Option<MemoryReport>,
        options: ReportOptions,
    ) -> Result<Report> {
        let arguments = self.inputs.iter().map(|input| Placed {
            path: input.path.clone(),
            ty: (*input.ty).clone(),
            spec: input.sharding.spec().clone(),
            is_state: input.role == Role::State,
        });
        let results = self.outputs.iter().map(|output| Placed {
            path: output.path.clone(),
            ty: (*output.ty).clone(),
            spec: output.sharding.spec().clone(),
            is_state: false,
        });
        let subject = Subject {
            hlo: optimized,
            mesh: self.layout.mesh(),
            arguments: arguments.collect(),
            results: results.collect(),
            traced: Some(TracedFrom {
                graph: self.graph,
                layout: self.layout,
                module: self.module,
            }),
            memory,
        };
        let mut report = Report::new(&subject, options)?;
        report.remarks = remarks(self.inputs, self.outputs, self.graph, self.layout);
        Ok(report)
    }
}
