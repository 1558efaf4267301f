//! From a graph and a layout to a StableHLO module.
//!
//! StableHLO text is the versioned interface of XLA, and a person can read it. Every equation becomes
//! one operation (a scan, a `while`); annotations become the constraints of whichever partitioner the
//! layout names. The module's *body* does not depend on where in the source an operation stands, so
//! that it can be the key of a cache: sources are in a table of locations at its end.

mod constant;
mod names;
mod op;
mod partial;
mod scan;
mod sharding;
mod split;
mod writer;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt::Write;

use shardax_core::{Constraint, Graph, Op, Source, TensorType, ValueId};
use shardax_sharding::{Axes, Layout, PartitionSpec, SpecFault};

use crate::error::{Error, LayoutFault, Result};
use names::Locations;
use partial::{Finder, PartialSum};
use sharding::Annotations;
use split::Splits;
use writer::{Ssa, Writer, tensor_type};

/// What is known of an argument beside its type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argument {
    /// Its path, for reports and the compiler's messages; may be empty.
    pub name: String,
    /// How it lies on the mesh; `None` is whole on every device.
    pub spec: Option<PartitionSpec>,
    /// The result that takes over its memory.
    pub aliases: Option<usize>,
}

/// A lowered program.
#[derive(Clone, Debug)]
pub struct Module {
    /// The text without locations: equal for equal programs, wherever they are written.
    body: String,
    /// Definitions of the locations that `body` refers to.
    locations: String,
    /// The source of each location, by its number.
    sources: Vec<Source>,
}

impl Module {
    /// What the program is, for the key of a cache.
    pub fn identity(&self) -> &str {
        &self.body
    }

    /// The module as XLA takes it.
    pub fn text(&self) -> String {
        format!("{}{}", self.body, self.locations)
    }

    /// An `op_name` without the number of its location.
    pub fn name_of(&self, op_name: &str) -> String {
        match names::split_number(op_name) {
            Some((name, _)) => name,
            None => op_name.to_owned(),
        }
    }

    /// The user's line for the `op_name` of an optimized instruction.
    pub fn source_of(&self, op_name: &str) -> Option<Source> {
        let (_, number) = names::split_number(op_name)?;
        self.sources.get(number).copied()
    }
}

/// A program to lower.
pub struct Program<'a> {
    /// The name of the module.
    pub name: &'a str,
    /// The equations.
    pub graph: &'a Graph,
    /// The mesh, the rules and the partitioner.
    pub layout: &'a Layout,
    /// By input of the graph.
    pub arguments: &'a [Argument],
    /// How each result lies on the mesh; `None` is whole on every device.
    pub results: &'a [Option<PartitionSpec>],
}

/// Lowers a program.
///
/// # Errors
///
/// [`Error::Layout`] with every annotation that the layout cannot follow.
pub fn lower(program: &Program) -> Result<Module> {
    let Program {
        name,
        graph,
        layout,
        arguments,
        results,
    } = *program;
    let mut lowering = Lowering {
        out: Writer::default(),
        locations: Locations::default(),
        annotations: Annotations::new(layout),
        arguments,
        versions: HashMap::new(),
        faults: Vec::new(),
    };
    let devices = layout.mesh().device_count();
    let out = &mut lowering.out;
    out.line(format_args!(
        "module @{} attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{",
        names::symbol(name)
    ));
    if let Some(mesh) = lowering.annotations.mesh() {
        out.line(format_args!("{mesh}"));
    }
    lowering.function(graph, arguments, results);
    lowering.out.line(format_args!("}}"));
    if !lowering.faults.is_empty() {
        return Err(Error::Layout {
            faults: lowering.faults,
        });
    }
    let (locations, sources) = lowering.locations.finish();
    Ok(Module {
        body: lowering.out.finish(),
        locations,
        sources,
    })
}

struct Lowering<'a> {
    out: Writer,
    locations: Locations,
    annotations: Annotations<'a>,
    arguments: &'a [Argument],
    /// Which argument a value is under another element type or annotation.
    versions: HashMap<Ssa, usize>,
    faults: Vec<LayoutFault>,
}

/// What is known of the values of one graph.
#[derive(Default)]
struct Block<'a> {
    /// By value; empty on one device.
    splits: Splits,
    /// By the result of the annotation that they are under.
    sums: HashMap<ValueId, PartialSum<'a>>,
    /// The types as they are spelled, by value.
    types: Vec<OnceCell<String>>,
}

impl<'a> Block<'a> {
    fn of(graph: &'a Graph, inputs: Vec<Vec<Axes>>, annotations: &Annotations) -> Self {
        let resolve = |c: &Constraint, ty: &TensorType| annotations.resolve(c, ty).ok();
        let finder = Finder::new(graph, split::splits(graph, inputs, &resolve));
        let mut sums = HashMap::new();
        for equation in graph.equations() {
            let Op::Shard(constraint) = &equation.op else {
                continue;
            };
            let operand = equation.operands[0];
            let found = resolve(constraint, graph.ty(operand)).and_then(|at_use| {
                finder.find(constraint, operand, &at_use, |axes| {
                    annotations.devices_along(axes)
                })
            });
            sums.extend(found.map(|sum| (equation.results[0], sum)));
        }
        Block {
            splits: finder.splits,
            sums,
            types: Vec::new(),
        }
    }

    /// The type of a value as it is spelled.
    fn ty(&self, graph: &Graph, value: ValueId) -> &str {
        self.types[value.index()].get_or_init(|| tensor_type(graph.ty(value)))
    }

    /// How an operand is split.
    fn split(&self, value: ValueId) -> Vec<Axes> {
        self.splits.get(value.index()).cloned().unwrap_or_default()
    }
}

/// The SSA name of each value of a graph.
type Values = Vec<Option<Ssa>>;

impl Lowering<'_> {
    fn function(
        &mut self,
        graph: &Graph,
        arguments: &[Argument],
        results: &[Option<PartitionSpec>],
    ) {
        let signature = self.signature(graph, arguments, results);
        self.out
            .line(format_args!("func.func public @main{signature} {{"));
        let mut values: Values = vec![None; graph.value_count()];
        for (i, input) in graph.inputs().iter().enumerate() {
            values[input.index()] = Some(Ssa::argument(i));
        }
        let splits: Vec<Vec<Axes>> = graph
            .inputs()
            .iter()
            .zip(arguments)
            .map(|(&input, argument)| match &argument.spec {
                Some(spec) => spec.entries().to_vec(),
                None => split::unknown(graph.ty(input).rank()),
            })
            .collect();
        self.equations(graph, &mut values, splits);
        self.finish("func.return", graph, &values, graph.outputs());
        self.out.line(format_args!("}}"));
    }

    /// `(%arg0: type {attributes} loc(name)) -> (type {attributes})`
    fn signature(
        &self,
        graph: &Graph,
        arguments: &[Argument],
        results: &[Option<PartitionSpec>],
    ) -> String {
        let mut signature = String::from("(");
        for (i, (&input, argument)) in graph.inputs().iter().zip(arguments).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let ty = tensor_type(graph.ty(input));
            let mut attributes: Vec<String> = self
                .annotations
                .attribute(argument.spec.as_ref(), graph.ty(input).rank())
                .into_iter()
                .collect();
            if let Some(result) = argument.aliases {
                attributes.push(format!("tf.aliasing_output = {result} : i32"));
            }
            let attributes = braced(&attributes);
            // Writing to a string does not fail.
            let _ = write!(signature, "{comma}{}: {ty}{attributes}", Ssa::argument(i));
            if !argument.name.is_empty() {
                let _ = write!(signature, " loc({})", names::quoted(&argument.name));
            }
        }
        signature.push_str(") -> (");
        for (i, (&output, spec)) in graph.outputs().iter().zip(results).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let ty = tensor_type(graph.ty(output));
            let rank = graph.ty(output).rank();
            let attributes: Vec<String> = self
                .annotations
                .attribute(spec.as_ref(), rank)
                .into_iter()
                .collect();
            let _ = write!(signature, "{comma}{ty}{}", braced(&attributes));
        }
        signature.push(')');
        signature
    }

    /// Lowers the equations of a graph whose inputs are defined, and split as told.
    fn equations(&mut self, graph: &Graph, values: &mut Values, inputs: Vec<Vec<Axes>>) {
        let mut block = if self.annotations.is_single() {
            Block::default()
        } else {
            Block::of(graph, inputs, &self.annotations)
        };
        block.types = vec![OnceCell::new(); graph.value_count()];
        for equation in graph.equations() {
            self.equation(graph, equation, values, &block);
        }
    }

    /// `return a, b : types`
    fn finish(&mut self, keyword: &str, graph: &Graph, values: &Values, outputs: &[ValueId]) {
        let names: Vec<String> = outputs
            .iter()
            .map(|&o| read(values, o).to_string())
            .collect();
        let types: Vec<String> = outputs.iter().map(|&o| tensor_type(graph.ty(o))).collect();
        if names.is_empty() {
            self.out.line(format_args!("{keyword}"));
        } else {
            self.out.line(format_args!(
                "{keyword} {} : {}",
                names.join(", "),
                types.join(", ")
            ));
        }
    }

    /// The name of the argument that a value is, be it under another element type or annotation.
    fn argument_name(&self, value: Ssa) -> Option<&str> {
        let position = self.argument_position(value)?;
        let name = self.arguments.get(position)?.name.as_str();
        (!name.is_empty()).then_some(name)
    }

    fn argument_position(&self, value: Ssa) -> Option<usize> {
        let version = self.versions.get(&value).copied();
        value.argument_position().or(version)
    }

    /// Keeps what is wrong with an annotation, with the line it is on.
    fn fault(&mut self, what: String, source: Source, faults: Vec<SpecFault>) {
        let faults = faults.into_iter().map(|fault| LayoutFault {
            what: what.clone(),
            source: Some(source),
            fault,
        });
        self.faults.extend(faults);
    }
}

/// A graph defines every value before it is read; a name that is missing would be refused by XLA.
fn read(values: &Values, id: ValueId) -> Ssa {
    values[id.index()].unwrap_or(Ssa::UNDEFINED)
}

fn braced(attributes: &[String]) -> String {
    if attributes.is_empty() {
        return String::new();
    }
    format!(" {{{}}}", attributes.join(", "))
}
