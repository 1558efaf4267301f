//! Manual regions, and what devices tell each other in them.
//!
//! Under Shardy a region is `sdy.manual_computation`. Under GSPMD it is a pair of custom calls around
//! the equations, which XLA compiles only if the region takes all axes: one that leaves an axis to the
//! partitioner aborts the process on some collectives, and is refused here.

use std::collections::BTreeMap;

use shardax_core::ir::split::{self, Entries};
use shardax_core::{
    DType, Reducer, TensorType,
    ir::{Collective, CollectiveOp, Equation, Graph, Manual, ManualAxis, Op},
};
use shardax_sharding::{Axes, Mesh, PartitionSpec, Partitioner, SpecFault};
use smallvec::smallvec;

use super::elementwise::neutral;
use super::writer::{Joined, Loc, Results, Ssa, Writer, tensor_type};
use super::{Block, Lowering};

/// The position of the device along each axis of the regions around.
pub(super) type Positions = BTreeMap<&'static str, Ssa>;

/// What goes into a region: values of the graph, then positions along axes.
#[derive(Default)]
struct Entry {
    operands: Vec<Ssa>,
    outer: Vec<TensorType>,
    inner: Vec<TensorType>,
    specs: Vec<PartitionSpec>,
    /// The axes of the positions, which are the last.
    positions: Vec<&'static str>,
}

impl Entry {
    fn add(&mut self, operand: Ssa, outer: TensorType, inner: TensorType, spec: PartitionSpec) {
        self.operands.push(operand);
        self.outer.push(outer);
        self.inner.push(inner);
        self.specs.push(spec);
    }
}

impl Lowering<'_> {
    pub(super) fn manual(
        &mut self,
        (graph, equation, manual): (&Graph, &Equation, &Manual),
        (x, block): (&[Ssa], &Block),
        loc: Loc,
    ) -> Results {
        if self.annotations.is_single() {
            // Nothing to cut, or a region inside of one that has all axes.
            return self.region(&manual.body, x, splits(&manual.body));
        }
        let names: Vec<&str> = manual.axes.iter().map(|axis| axis.name()).collect();
        if manual.axes.iter().all(|axis| axis.size() == 1) {
            let outer = self.annotations.enter(&names);
            let results = self.region(&manual.body, x, splits(&manual.body));
            self.annotations = outer;
            return results;
        }
        let mut x = x.to_vec();
        for ((x, &operand), spec) in x.iter_mut().zip(&equation.operands).zip(&manual.inputs) {
            if let Some(way) = self.way_between(&block.split(operand), spec) {
                *x = self.stated(&way, *x, graph.ty(operand), loc);
            }
        }
        let entry = self.entry((graph, equation, manual), &x, loc);
        let outer = self.annotations.enter(&names);
        let results: Vec<TensorType> = equation
            .results
            .iter()
            .map(|&r| graph.ty(r).clone())
            .collect();
        let written = match outer.partitioner() {
            Partitioner::Shardy => self.shardy_region(manual, entry, &results, loc),
            Partitioner::Gspmd => {
                let rest = self.annotations.automatic_axes();
                let rest: Vec<String> = rest.map(str::to_owned).collect();
                if !rest.is_empty() {
                    let fault = SpecFault::PartlyManual {
                        manual: names.iter().map(|name| (*name).to_owned()).collect(),
                        rest,
                    };
                    self.fault("a manual region".to_owned(), equation.source, vec![fault]);
                }
                self.gspmd_region(manual, entry, &results, &outer, loc)
            }
        };
        self.annotations = outer;
        written
    }

    /// The operands, and positions along those axes that the body asks for.
    fn entry(
        &mut self,
        (graph, equation, manual): (&Graph, &Equation, &Manual),
        x: &[Ssa],
        loc: Loc,
    ) -> Entry {
        let mut entry = Entry::default();
        for (i, &operand) in x.iter().enumerate() {
            let outer = graph.ty(equation.operands[i]).clone();
            let inner = manual.body.ty(manual.body.inputs()[i]).clone();
            entry.add(operand, outer, inner, manual.inputs[i].clone());
        }
        let mut asked = Vec::new();
        asked_positions(&manual.body, &mut asked);
        let scalar = TensorType::scalar(DType::I32);
        for axis in asked {
            entry.positions.push(axis.name());
            if let Some(&known) = self.positions.get(axis.name()) {
                let whole = PartitionSpec::replicated(0);
                entry.add(known, scalar.clone(), scalar.clone(), whole);
                continue;
            }
            // Its own element of 0, 1, ...: the instruction that knows the device is refused by
            // partitioners where they still split.
            let all = TensorType::new(DType::I32, [axis.size()]);
            let text = format!("stablehlo.iota dim = 0 : {}", tensor_type(&all));
            let counted = self.assign(&text, loc);
            let own = TensorType::new(DType::I32, [1]);
            entry.add(counted, all, own, PartitionSpec::new([axis.name()]));
        }
        entry
    }

    /// The equations of the body on its blocks.
    fn body(&mut self, manual: &Manual, entry: &Entry, blocks: &[Ssa], loc: Loc) -> Results {
        let (values, positions) = blocks.split_at(blocks.len() - entry.positions.len());
        let outer = self.positions.clone();
        let types = &entry.inner[values.len()..];
        for ((&name, &position), ty) in entry.positions.iter().zip(positions).zip(types) {
            let scalar = match ty.rank() {
                0 => position,
                _ => self.assign(
                    &format!("stablehlo.reshape {position} : (tensor<1xi32>) -> tensor<i32>"),
                    loc,
                ),
            };
            self.positions.insert(name, scalar);
        }
        let results = self.region(&manual.body, values, splits(&manual.body));
        self.positions = outer;
        results
    }

    fn shardy_region(
        &mut self,
        manual: &Manual,
        entry: Entry,
        results: &[TensorType],
        loc: Loc,
    ) -> Results {
        // Along other axes a dimension lies as the partitioner finds best.
        let open = !self.annotations.is_single();
        let listed = |specs: &[PartitionSpec]| {
            let specs = specs.iter().map(|spec| {
                let entries = spec.entries().iter().cloned();
                let spec: PartitionSpec = match open {
                    true => entries.map(Axes::open).collect(),
                    false => entries.collect(),
                };
                format!("<{}>", self.annotations.shardy(&spec))
            });
            specs.collect::<Vec<_>>().join(", ")
        };
        let axes: Vec<String> = manual
            .axes
            .iter()
            .map(|a| format!("{:?}", a.name()))
            .collect();
        let blocks: Vec<Ssa> = entry.inner.iter().map(|_| self.out.fresh()).collect();
        let arguments: Vec<String> = blocks
            .iter()
            .zip(&entry.inner)
            .map(|(block, ty)| format!("{block}: {}", tensor_type(ty)))
            .collect();
        let result = self.out.fresh();
        let count = match results.len() {
            1 => String::new(),
            count => format!(":{count}"),
        };
        self.out.line(format_args!(
            "{result}{count} = sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] \
             manual_axes={{{}}} ({}) {{",
            Joined(&entry.operands),
            listed(&entry.specs),
            listed(&manual.outputs),
            axes.join(", "),
            arguments.join(", ")
        ));
        let returned = self.body(manual, &entry, &blocks, loc);
        let body = &manual.body;
        let types = body.outputs().iter().map(|&o| tensor_type(body.ty(o)));
        self.out.line(format_args!(
            "sdy.return {} : {}",
            Joined(&returned),
            types.collect::<Vec<_>>().join(", ")
        ));
        let all = |types: &[TensorType]| {
            let types: Vec<String> = types.iter().map(tensor_type).collect();
            types.join(", ")
        };
        self.out.line(format_args!(
            "}} : ({}) -> ({}) {loc}",
            all(&entry.outer),
            all(results)
        ));
        Writer::results(result, results.len())
    }

    fn gspmd_region(
        &mut self,
        manual: &Manual,
        entry: Entry,
        results: &[TensorType],
        outer: &super::sharding::Annotations,
        loc: Loc,
    ) -> Results {
        let calls = |call: &str, operand: Ssa, sharding: &str, from: &str, to: &str| {
            format!(
                "stablehlo.custom_call @{call}({operand}) {{mhlo.sharding = \"{sharding}\"}} : \
                 ({from}) -> {to}"
            )
        };
        let mut blocks = Vec::with_capacity(entry.operands.len());
        for i in 0..entry.operands.len() {
            let [whole, own] = [&entry.outer[i], &entry.inner[i]].map(tensor_type);
            let sharding = outer.gspmd(&entry.specs[i]);
            let text = calls("Sharding", entry.operands[i], &sharding, &whole, &whole);
            let stated = self.assign(&text, loc);
            let text = calls("SPMDFullToShardShape", stated, "{manual}", &whole, &own);
            blocks.push(self.assign(&text, loc));
        }
        let start = self.out.position();
        let returned = self.body(manual, &entry, &blocks, loc);
        self.out.rewrite(start, with_outer_constants);
        let mut wholes = Results::new();
        for (i, &block) in returned.iter().enumerate() {
            let own = tensor_type(manual.body.ty(manual.body.outputs()[i]));
            let text = calls("Sharding", block, "{manual}", &own, &own);
            let stated = self.assign(&text, loc);
            let sharding = outer.gspmd(&manual.outputs[i]);
            let whole = tensor_type(&results[i]);
            let text = calls("SPMDShardToFullShape", stated, &sharding, &own, &whole);
            wholes.push(self.assign(&text, loc));
        }
        wholes
    }

    pub(super) fn collective(
        &mut self,
        (graph, equation, collective): (&Graph, &Equation, &Collective),
        x: &[Ssa],
        loc: Loc,
    ) -> Results {
        if let CollectiveOp::AxisIndex = collective.kind {
            return smallvec![self.axis_index(&collective.axes, loc)];
        }
        let (from, to) = (
            graph.ty(equation.operands[0]),
            graph.ty(equation.results[0]),
        );
        let functional = format!("({}) -> {}", tensor_type(from), tensor_type(to));
        let alone = collective.size() == 1;
        let is_sent = match &collective.kind {
            CollectiveOp::Ppermute(pairs) => !pairs.is_empty(),
            _ => true,
        };
        if !is_sent || to.element_count() == 0 {
            // XLA has no collectives of nothing.
            let zero = neutral(Reducer::Sum, to.dtype);
            let text = format!("stablehlo.constant dense<{zero}> : {}", tensor_type(to));
            return smallvec![self.assign(&text, loc)];
        }
        let groups = || self.annotations.groups(&collective.axes);
        let channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>";
        let text = match &collective.kind {
            CollectiveOp::Vary | CollectiveOp::AssumeInvariant | CollectiveOp::AxisIndex => {
                return smallvec![x[0]];
            }
            _ if alone => return smallvec![x[0]],
            CollectiveOp::Ppermute(pairs) => {
                let mut sent: Vec<[usize; 2]> = groups()
                    .iter()
                    .flat_map(|group| pairs.iter().map(|&(a, b)| [group[a], group[b]]))
                    .collect();
                sent.sort_unstable();
                let count = sent.len();
                format!(
                    "\"stablehlo.collective_permute\"({}) {{source_target_pairs = {} : \
                     tensor<{count}x2xi64>, {channel}}} : {functional}",
                    x[0],
                    dense(&sent)
                )
            }
            CollectiveOp::Psum | CollectiveOp::Pmax | CollectiveOp::Pmin => {
                let attributes = format!("{}, {channel}, use_global_device_ids", listed(&groups()));
                if let Some(extremum) = self.extremum_across(graph, equation, &Block::default()) {
                    return smallvec![self.all_reduce_ordered(
                        (x[0], from),
                        extremum,
                        &attributes,
                        loc
                    )];
                }
                let reducer = reducer(&collective.kind, from.dtype);
                return smallvec![self.reducing(
                    "all_reduce",
                    (x[0], from.dtype, reducer),
                    &attributes,
                    &functional,
                    loc,
                )];
            }
            CollectiveOp::ReduceScatter(dim) => {
                let attributes = format!(
                    "scatter_dimension = {dim} : i64, {}, {channel}, use_global_device_ids",
                    listed(&groups())
                );
                return smallvec![self.reducing(
                    "reduce_scatter",
                    (x[0], from.dtype, "add"),
                    &attributes,
                    &functional,
                    loc,
                )];
            }
            CollectiveOp::AllGather { dim, .. } => format!(
                "\"stablehlo.all_gather\"({}) {{all_gather_dim = {dim} : i64, {}, {channel}, \
                 use_global_device_ids}} : {functional}",
                x[0],
                listed(&groups())
            ),
            CollectiveOp::AllToAll { split, join } => format!(
                "\"stablehlo.all_to_all\"({}) {{split_dimension = {split} : i64, \
                 concat_dimension = {join} : i64, split_count = {} : i64, {}, {channel}}} : \
                 {functional}",
                x[0],
                collective.size(),
                listed(&groups())
            ),
        };
        smallvec![self.assign(&text, loc)]
    }

    /// A collective that combines values by a bare operation, which is what XLA's passes expect.
    pub(super) fn reducing(
        &mut self,
        name: &str,
        (x, dtype, reducer): (Ssa, DType, &str),
        attributes: &str,
        functional: &str,
        loc: Loc,
    ) -> Ssa {
        let scalar = tensor_type(&TensorType::scalar(dtype));
        let [result, a, b, sum] = [(); 4].map(|()| self.out.fresh());
        self.out
            .line(format_args!("{result} = \"stablehlo.{name}\"({x}) ({{"));
        self.out
            .line(format_args!("^bb0({a}: {scalar}, {b}: {scalar}):"));
        self.out.line(format_args!(
            "{sum} = stablehlo.{reducer} {a}, {b} : {scalar}"
        ));
        self.out
            .line(format_args!("stablehlo.return {sum} : {scalar}"));
        self.out
            .line(format_args!("}}) {{{attributes}}} : {functional} {loc}"));
        result
    }

    /// The position along several axes, of which the first counts most.
    fn axis_index(&mut self, axes: &[ManualAxis], loc: Loc) -> Ssa {
        let mut index = None;
        for axis in axes.iter().filter(|axis| axis.size() > 1) {
            // Every axis that is asked for is handed into its region.
            let own = self.positions.get(axis.name()).copied();
            let own = own.unwrap_or(Ssa::UNDEFINED);
            index = Some(match index {
                None => own,
                Some(major) => {
                    let size = self.integer(axis.size());
                    let scaled = self.arithmetic("multiply", major, size);
                    self.arithmetic("add", scaled, own)
                }
            });
        }
        index.unwrap_or_else(|| self.assign("stablehlo.constant dense<0> : tensor<i32>", loc))
    }
}

/// The text of a region for GSPMD, into which constants come from outside as operands do: XLA takes
/// equal constants for one, and the process does not survive one that is inside and outside. Functions that XLA expands have
/// constants of their own, of the shape of what they are applied to: they are applied to a shape that nothing outside has.
fn with_outer_constants(text: &str) -> String {
    let mut rewritten = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if let Some(lifted) = lifted(line) {
            rewritten.push_str(&lifted);
            continue;
        }
        let outer = line
            .strip_prefix('%')
            .and_then(|line| line.split_once(" = "))
            .filter(|(_, op)| {
                op.starts_with("stablehlo.constant ") || op.starts_with("stablehlo.iota ")
            })
            .and_then(|(name, op)| Some((name, op, op.split_once(" : ")?.1)));
        let Some((name, operation, ty)) = outer else {
            rewritten.push_str(line);
            continue;
        };
        let ty = ty.split(" loc(").next().unwrap_or(ty).trim();
        rewritten.push_str(&format!(
            "%c{name} = {operation}\
             %s{name} = stablehlo.custom_call @Sharding(%c{name}) {{mhlo.sharding = \"{{replicated}}\"}} \
             : ({ty}) -> {ty}\n\
             %{name} = stablehlo.custom_call @SPMDFullToShardShape(%s{name}) \
             {{mhlo.sharding = \"{{manual}}\"}} : ({ty}) -> {ty}\n"
        ));
    }
    rewritten
}

/// A line with a function that XLA expands, of operands with eight more dimensions of size 1.
fn lifted(line: &str) -> Option<String> {
    let (name, operation) = line.strip_prefix('%')?.split_once(" = ")?;
    if !operation.trim_start_matches('"').starts_with("chlo.") {
        return None;
    }
    let (applied, types) = operation.split_once(" : ")?;
    let types = types.trim_end();
    let (types, loc) = types.split_at(types.find(" loc(").unwrap_or(types.len()));
    let narrow = types.rsplit("-> ").next()?;
    let wide = narrow.replacen("tensor<", &format!("tensor<{}", "1x".repeat(8)), 1);
    let mut text = String::new();
    let mut applied = applied.to_owned();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '#' || c == '%';
    let words: Vec<String> = applied.split(|c| !is_name(c)).map(str::to_owned).collect();
    for (i, operand) in words
        .iter()
        .filter(|word| word.starts_with('%'))
        .enumerate()
    {
        let operand_wide = format!("%l{name}_{i}");
        text.push_str(&format!(
            "{operand_wide} = stablehlo.reshape {operand} : ({narrow}) -> {wide}\n"
        ));
        applied = applied.replacen(operand.as_str(), &operand_wide, 1);
    }
    let types = types.replace(narrow, &wide);
    text.push_str(&format!(
        "%w{name} = {applied} : {types}{loc}\n%{name} = stablehlo.reshape %w{name} : ({wide}) -> {narrow}\n"
    ));
    Some(text)
}

/// Nothing is known of how blocks are split further.
fn splits(body: &Graph) -> Vec<Entries> {
    let inputs = body.inputs().iter();
    inputs.map(|&i| split::unknown(body.ty(i).rank())).collect()
}

/// Axes of more than one device along which a position is asked for, inside of regions too.
fn asked_positions(graph: &Graph, asked: &mut Vec<ManualAxis>) {
    for equation in graph.equations() {
        if let Op::Collective(collective) = &equation.op
            && collective.kind == CollectiveOp::AxisIndex
        {
            let new = collective.axes.iter().filter(|axis| axis.size() > 1);
            for axis in new {
                if !asked.contains(axis) {
                    asked.push(*axis);
                }
            }
        }
        let inner = match &equation.op {
            Op::Manual(manual) => manual.axes.as_slice(),
            _ => &[],
        };
        let mut nested = Vec::new();
        for (_, region) in equation.op.regions() {
            asked_positions(region, &mut nested);
        }
        // A region finds positions along its own axes itself.
        nested.retain(|axis| !inner.contains(axis) && !asked.contains(axis));
        asked.extend(nested);
    }
}

fn reducer(kind: &CollectiveOp, dtype: DType) -> &'static str {
    match (kind, dtype) {
        (CollectiveOp::Pmax, DType::Bool) => "or",
        (CollectiveOp::Pmin, DType::Bool) => "and",
        (CollectiveOp::Pmax, _) => "maximum",
        (CollectiveOp::Pmin, _) => "minimum",
        _ => "add",
    }
}

/// `replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`
fn listed(groups: &[Vec<usize>]) -> String {
    let size = groups.first().map_or(0, Vec::len);
    format!(
        "replica_groups = {} : tensor<{}x{size}xi64>",
        dense(groups),
        groups.len()
    )
}

fn dense<T: std::fmt::Debug>(rows: &[T]) -> String {
    format!("dense<{rows:?}>")
}

/// The devices that take part together, each group in the order of the axes, the first of which
/// counts most.
pub(super) fn groups(mesh: &Mesh, axes: &[ManualAxis]) -> Vec<Vec<usize>> {
    let of = |position: usize, axis: &ManualAxis| {
        let index = mesh.axes().iter().position(|a| a.name() == axis.name());
        let coordinates = mesh.coordinates(position).unwrap_or_default();
        index.and_then(|i| coordinates.get(i).copied()).unwrap_or(0)
    };
    let mut groups: BTreeMap<Vec<usize>, Vec<(Vec<usize>, usize)>> = BTreeMap::new();
    for position in 0..mesh.device_count() {
        let named: Vec<usize> = axes.iter().map(|axis| of(position, axis)).collect();
        let coordinates = mesh.coordinates(position).unwrap_or_default();
        let others = mesh.axes().iter().zip(coordinates);
        let others = others.filter(|(a, _)| !axes.iter().any(|own| own.name() == a.name()));
        let others: Vec<usize> = others.map(|(_, at)| at).collect();
        groups.entry(others).or_default().push((named, position));
    }
    groups
        .into_values()
        .map(|mut group| {
            group.sort_unstable();
            group.into_iter().map(|(_, position)| position).collect()
        })
        .collect()
}
