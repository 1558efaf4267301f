//! From a graph and a layout to a StableHLO module.
//!
//! StableHLO text is the versioned interface of XLA, and a person can read it. Every equation becomes
//! one operation (a scan, a `while`); annotations become the constraints of whichever partitioner the
//! layout names. The module's *body* does not depend on where in the source an operation stands, so
//! that it can be the key of a cache: sources are in a table of locations at its end.

mod conflict;
mod constant;
mod control;
mod elementwise;
mod extrema;
mod fault;
mod foreign;
mod gather;
mod host;
mod linalg;
mod lookup;
mod manual;
mod names;
mod op;
mod order;
mod partial;
mod polygamma;
mod product;
mod scan;
mod sharding;
mod shift;
mod sink;
mod way;
mod window;
mod writer;

use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use shardax_core::ir::split::{self, Entries, Splits};
use shardax_core::{
    Source, TensorType,
    ir::{Constraint, Equation, Graph, Op, ValueId},
};
use shardax_pjrt::HostCalls;
use shardax_sharding::{Layout, PartitionSpec, SpecFault};

pub use fault::LayoutFault;
use foreign::order_type;
pub(crate) use host::element_type;
use lookup::Tables;
use manual::Positions;
pub use names::Location;
use names::Locations;
use partial::{Finder, Sums, Wanted};
use sharding::{Annotations, LeafOf};
use shift::Shifts;
use sink::Sunk;
pub(crate) use writer::tensor_type;
use writer::{Ssa, Types, Writer};

/// What is known of an argument beside its type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argument {
    /// Its path, for reports and the compiler's messages; may be empty.
    pub name: String,
    /// How it lies on the mesh; `None` is whole on every device.
    pub spec: Option<PartitionSpec>,
    /// The result that takes over its memory.
    pub aliases: Option<usize>,
    /// Whether it is a parameter's state, and not a parameter.
    pub is_state: bool,
}

/// A lowered program.
#[derive(Clone, Debug)]
pub struct Module {
    /// The body, and definitions of the locations that it refers to.
    text: String,
    /// The end of the body.
    body: usize,
    /// Name and source of each location, by its number.
    places: Vec<Location>,
    /// The closures that the program calls.
    calls: Arc<HostCalls>,
    /// The values that the program gives names to.
    named: Vec<Named>,
}

impl Module {
    /// What the program is, for the key of a cache: the text without locations, which is equal for
    /// equal programs, wherever they are written.
    pub fn identity(&self) -> &str {
        &self.text[..self.body]
    }

    /// The module as XLA takes it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The closures that the program calls. Their numbers are a part of the text and hold for this
    /// process, so that a program with closures cannot be kept for another.
    pub fn calls(&self) -> &Arc<HostCalls> {
        &self.calls
    }

    /// An `op_name` without the number of its location.
    pub fn name_of(&self, op_name: &str) -> String {
        plain_name(op_name)
    }

    /// The values that the program gives names to.
    pub fn named(&self) -> &[Named] {
        &self.named
    }

    /// The number of the location in the `op_name` of an optimized instruction.
    pub fn location_of(&self, op_name: &str) -> Option<usize> {
        names::split_number(op_name).map(|(_, number)| number)
    }

    /// The user's line for the `op_name` of an optimized instruction.
    pub fn source_of(&self, op_name: &str) -> Option<Source> {
        self.place_of(op_name).map(|place| place.source)
    }

    /// The location for the `op_name` of an optimized instruction: the first, if XLA has made one
    /// instruction of several.
    pub fn place_of(&self, op_name: &str) -> Option<&Location> {
        let (_, number) = names::split_number(op_name)?;
        self.places.get(number)
    }
}

/// The `op_name` of an optimized instruction without the numbers of locations.
pub fn plain_name(op_name: &str) -> String {
    match names::split_number(op_name) {
        Some((name, _)) => name,
        None => op_name.to_owned(),
    }
}

/// A value that the program gives a name to.
#[derive(Clone, Debug)]
pub struct Named {
    /// The name.
    pub name: String,
    /// Element type and shape of the whole value.
    pub ty: TensorType,
    /// The user's line that names it.
    pub source: Source,
    /// What it is.
    pub made: Made,
}

/// Where a named value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// An argument, by position.
    Argument(usize),
    /// Instructions of this location.
    Location(usize),
    /// Neither: an input of a loop or a branch.
    Unknown,
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
    /// Whether it runs on the CPU, and not on GPUs.
    pub on_host: bool,
}

/// Lowers a program.
///
/// # Errors
///
/// Every annotation that the layout cannot follow.
pub fn lower(program: &Program) -> Result<Module, Vec<LayoutFault>> {
    let Program {
        name,
        graph,
        layout,
        arguments,
        results,
        on_host,
    } = *program;
    let named = graph.inputs().iter().zip(arguments);
    let leaves = named.map(|(&input, argument)| LeafOf {
        path: &argument.name,
        rank: graph.ty(input).rank(),
        is_state: argument.is_state,
    });
    let mut lowering = Lowering {
        out: Writer::for_equations(graph.equation_count()),
        locations: Locations::default(),
        annotations: Annotations::new(layout, leaves.collect()),
        arguments,
        on_host,
        versions: FxHashMap::default(),
        summed: FxHashSet::default(),
        positions: Positions::new(),
        order: None,
        calls: HostCalls::new(),
        types: Types::default(),
        made: names_values(graph).then(FxHashMap::default),
        named: Vec::new(),
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
        return Err(lowering.faults);
    }
    let mut text = lowering.out.finish();
    let body = text.len();
    let places = lowering.locations.finish(&mut text);
    Ok(Module {
        text,
        body,
        places,
        calls: Arc::new(lowering.calls),
        named: lowering.named,
    })
}

/// Whether the program gives a name to any value.
fn names_values(graph: &Graph) -> bool {
    graph.equations().iter().any(|equation| {
        let regions = equation.op.regions();
        matches!(equation.op, Op::Name(_)) || regions.iter().any(|(_, g)| names_values(g))
    })
}

struct Lowering<'a> {
    out: Writer,
    locations: Locations,
    annotations: Annotations<'a>,
    arguments: &'a [Argument],
    on_host: bool,
    /// Which argument a value is under another element type or annotation.
    versions: FxHashMap<Ssa, usize>,
    /// Gradients that are summed and lie as gradients do already.
    summed: FxHashSet<Ssa>,
    /// The position of the device along manual axes, where it is asked for.
    positions: Positions,
    /// The value that the next call with an effect takes, if there are such calls.
    order: Option<Ssa>,
    calls: HostCalls,
    types: Types,
    /// The location of the operation that made a value; kept where values are named.
    made: Option<FxHashMap<Ssa, usize>>,
    named: Vec<Named>,
    faults: Vec<LayoutFault>,
}

/// What is known of the values of one graph.
#[derive(Default)]
struct Block<'a> {
    /// By value; empty on one device.
    splits: Splits,
    sums: Sums<'a>,
    /// Of lookups in tables that are split along their rows.
    tables: Tables,
    shifts: Shifts,
    /// What makes each value; empty on one device.
    definitions: Vec<Option<&'a Equation>>,
    /// Products that are summed across devices in a wider type than they have.
    wide: FxHashSet<ValueId>,
    /// Products of which an annotation further on says where they lie.
    sunk: Sunk,
}

impl<'a> Block<'a> {
    fn of(
        graph: &'a Graph,
        inputs: Vec<Entries>,
        results: &[Option<Wanted>],
        annotations: &Annotations,
    ) -> Self {
        let resolve = |c: &Constraint, ty: &TensorType| {
            let stated = annotations.lies(c.role, c, ty).ok()?;
            Some(Rc::clone(&stated.entries))
        };
        let finder = Finder::new(graph, split::splits(graph, inputs, &resolve));
        let sums = finder.sums(annotations, results);
        let tables = lookup::tables(graph, &finder.definitions, &finder.splits, &resolve);
        let shifts = shift::shifts(graph, &finder.definitions, &finder.splits);
        let wide = product::summed_wide(graph, &finder, annotations);
        let sunk = sink::sunk(graph, &finder, annotations);
        Block {
            wide,
            sunk,
            definitions: finder.definitions,
            splits: finder.splits,
            sums,
            tables,
            shifts,
        }
    }

    /// How an operand is split.
    fn split(&self, value: ValueId) -> Entries {
        let known = self.splits.get(value.index());
        known.cloned().unwrap_or_else(|| split::unknown(0))
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
        let splits: Vec<Entries> = graph
            .inputs()
            .iter()
            .zip(arguments)
            .map(|(&input, argument)| match &argument.spec {
                Some(spec) => spec.entries().iter().cloned().collect(),
                None => split::unknown(graph.ty(input).rank()),
            })
            .collect();
        let ordered = graph.has_effect();
        if ordered {
            self.start_order();
        }
        self.equations(graph, &mut values, splits);
        self.finish("func.return", graph, &values, ordered);
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
        if graph.has_effect() {
            let comma = if graph.outputs().is_empty() { "" } else { ", " };
            let attributes: Vec<String> = self.annotations.attribute(None, 0).into_iter().collect();
            let ty = tensor_type(&order_type());
            let _ = write!(signature, "{comma}{ty}{}", braced(&attributes));
        }
        signature.push(')');
        signature
    }

    /// Lowers the equations of a graph whose inputs are defined, and split as told.
    fn equations(&mut self, graph: &Graph, values: &mut Values, inputs: Vec<Entries>) {
        self.equations_of(graph, values, inputs, &[]);
    }

    /// Lowers equations as [`Self::equations`] does, of which some results are gradients that lie as told.
    fn equations_of<'g>(
        &mut self,
        graph: &'g Graph,
        values: &mut Values,
        inputs: Vec<Entries>,
        results: &[Option<Wanted>],
    ) -> Block<'g> {
        let block = if self.annotations.is_single() {
            Block::default()
        } else {
            Block::of(graph, inputs, results, &self.annotations)
        };
        for equation in graph.equations() {
            self.equation(graph, equation, values, &block);
        }
        block
    }

    /// `return a, b, order : types`
    fn finish(&mut self, keyword: &str, graph: &Graph, values: &Values, ordered: bool) {
        let outputs = graph.outputs();
        let mut names: Vec<String> = outputs
            .iter()
            .map(|&o| read(values, o).to_string())
            .collect();
        let mut types: Vec<String> = outputs.iter().map(|&o| tensor_type(graph.ty(o))).collect();
        if let Some(order) = self.order.filter(|_| ordered) {
            names.push(order.to_string());
            types.push(tensor_type(&order_type()));
        }
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
            help: None,
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
