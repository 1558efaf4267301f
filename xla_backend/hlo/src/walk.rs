//! The walk from the entry computation to every collective that a launch runs.
//!
//! It follows loops, branches, calls and fusions, because one all-reduce in the text of a program that
//! stands in a loop over 32 layers is 32 all-reduces a step.

use serde_json::Value as Json;
use shardax_sharding::Mesh;

use super::collectives::{Branch, Collective, Loop, Pass};
use super::dataflow::{Flow, Site};
use super::groups::Numbering;
use super::kind::CollectiveKind;
use super::module::{Computation, HloModule, Instruction, SourceLine};
use super::shape::{ArrayShape, Shape};
use super::trip_count::trip_count;

/// Calls within calls. XLA inlines nearly all; the bound keeps a damaged module off the end of the stack.
const MAX_DEPTH: usize = 200;
/// Collectives in one report. Unrolled models have some thousands.
const MAX_COLLECTIVES: usize = 1 << 16;
/// How far back a producer is looked for that knows the user's line.
const MAX_PRODUCERS: usize = 8;

/// Every collective that a launch runs. The mesh has as many devices as the module.
///
/// An error says what cannot be understood.
pub(super) fn collectives_of(module: &HloModule, mesh: &Mesh) -> Result<Vec<Collective>, String> {
    let mut walk = Walk {
        module,
        mesh,
        relevant: relevant(module),
        flow: Flow::new(module),
        found: vec![],
    };
    walk.visit(module.entry(), &Path::default())?;
    Ok(walk.found)
}

/// How the walk came to a computation.
#[derive(Clone, Default)]
pub(super) struct Path {
    /// The instructions that call the computation, outermost first.
    pub(super) callers: Vec<Site>,
    pub(super) loops: Vec<Loop>,
    branches: Vec<Branch>,
    is_async: bool,
}

pub(super) struct Walk<'a> {
    pub(super) module: &'a HloModule,
    mesh: &'a Mesh,
    /// Of each computation the instructions that are collectives or lead to some.
    relevant: Vec<Vec<usize>>,
    pub(super) flow: Flow<'a>,
    found: Vec<Collective>,
}

/// Leaving out what leads to no collective keeps the walk as short as its result, although the same
/// computation may be reached by very many paths.
fn relevant(module: &HloModule) -> Vec<Vec<usize>> {
    let mut relevant: Vec<Vec<usize>> = Vec::with_capacity(module.computations().len());
    for computation in module.computations() {
        let leads_to_some = |instruction: &Instruction| {
            CollectiveKind::of_opcode(instruction.opcode()).is_some()
                || runs_what_it_calls(instruction.opcode())
                    && instruction
                        .called()
                        .iter()
                        .any(|&called| !relevant[called].is_empty())
        };
        let instructions = computation.instructions().iter().enumerate();
        let chosen = instructions.filter(|(_, instruction)| leads_to_some(instruction));
        relevant.push(chosen.map(|(position, _)| position).collect());
    }
    relevant
}

/// Not the computations of a reduction, a sort or a scatter, which combine elements; and not those of
/// `async-update` and `async-done`, which only name again what their start runs.
fn runs_what_it_calls(opcode: &str) -> bool {
    matches!(
        opcode,
        "while" | "conditional" | "call" | "fusion" | "async-start" | "custom-call"
    )
}

impl Walk<'_> {
    fn visit(&mut self, computation: usize, path: &Path) -> Result<(), String> {
        if path.callers.len() > MAX_DEPTH {
            return Err(format!(
                "computations call each other more than {MAX_DEPTH} deep"
            ));
        }
        let module = self.module;
        let here = &module.computations()[computation];
        for position in self.relevant[computation].clone() {
            let instruction = &here.instructions()[position];
            let site = Site {
                computation,
                instruction: position,
            };
            match CollectiveKind::of_opcode(instruction.opcode()) {
                Some((kind, starts)) => {
                    let collective = self.collective(site, kind, starts, path);
                    let collective = collective
                        .map_err(|problem| format!("`{}`: {problem}", instruction.name()))?;
                    self.found.push(collective);
                    if self.found.len() > MAX_COLLECTIVES {
                        return Err(format!("it runs more than {MAX_COLLECTIVES} collectives"));
                    }
                }
                None => self.enter(site, path)?,
            }
        }
        Ok(())
    }

    fn enter(&mut self, site: Site, path: &Path) -> Result<(), String> {
        let here = &self.module.computations()[site.computation];
        let instruction = &here.instructions()[site.instruction];
        let mut inner = path.clone();
        inner.callers.push(site);
        match instruction.opcode() {
            "while" => {
                let trips = trip_count(self.module, here, instruction);
                // The condition is evaluated once more than the body.
                let times = [trips, trips.map(|trips| trips.saturating_add(1))];
                for (&called, trips) in instruction.called().iter().zip(times) {
                    inner.loops.push(Loop {
                        instruction: instruction.name().to_owned(),
                        body: self.module.computations()[called].name().to_owned(),
                        trips,
                    });
                    self.visit(called, &inner)?;
                    inner.loops.pop();
                }
                Ok(())
            }
            "conditional" => self.branches(instruction, inner),
            _ => {
                inner.is_async |=
                    instruction.opcode() == "async-start" && !is_synchronous(instruction);
                instruction
                    .called()
                    .iter()
                    .try_for_each(|&called| self.visit(called, &inner))
            }
        }
    }

    /// Lists the collectives of all branches, and leaves counted those of the branch that sends most.
    fn branches(&mut self, instruction: &Instruction, mut path: Path) -> Result<(), String> {
        let mut branches = vec![];
        for (branch, &called) in instruction.called().iter().enumerate() {
            let start = self.found.len();
            path.branches.push(Branch {
                instruction: instruction.name().to_owned(),
                branch,
            });
            self.visit(called, &path)?;
            path.branches.pop();
            branches.push(start..self.found.len());
        }
        let sent = |collective: &Collective| {
            u128::from(collective.bytes_sent) * u128::from(collective.times)
        };
        let costs = branches.iter().map(|branch| {
            let counted = self.found[branch.clone()]
                .iter()
                .filter(|collective| collective.counted);
            (counted.clone().map(sent).sum::<u128>(), counted.count())
        });
        let dearest = costs
            .enumerate()
            .max_by_key(|(_, cost)| *cost)
            .map(|(branch, _)| branch);
        for (branch, range) in branches.into_iter().enumerate() {
            if Some(branch) != dearest {
                self.found[range]
                    .iter_mut()
                    .for_each(|collective| collective.counted = false);
            }
        }
        Ok(())
    }

    fn collective(
        &self,
        site: Site,
        kind: CollectiveKind,
        starts: bool,
        path: &Path,
    ) -> Result<Collective, String> {
        let here = &self.module.computations()[site.computation];
        let instruction = &here.instructions()[site.instruction];
        let arrays = moved(here, instruction, kind, starts);
        let payload_bytes = arrays.iter().try_fold(0u64, |sum, array| {
            let bytes = array
                .bytes()
                .ok_or_else(|| format!("the size of {array} is not known"))?;
            Ok::<u64, String>(sum.saturating_add(bytes))
        })?;

        let numbering = Numbering {
            replicas: self.module.replicas,
            partitions: self.module.partitions,
            has_channel: instruction.has_channel,
            global: instruction.global_device_ids,
            knows_global: kind.knows_global_device_ids(),
        };
        let (groups, pairs, group_size, axes);
        if kind == CollectiveKind::CollectivePermute {
            groups = vec![];
            pairs = numbering.pairs(&instruction.pairs)?;
            group_size = if pairs.iter().any(|(source, target)| source != target) {
                2
            } else {
                1
            };
            axes = self.mesh.axes_of_pairs(&pairs);
        } else {
            groups = numbering.groups(&instruction.groups)?;
            pairs = vec![];
            group_size = groups.iter().map(Vec::len).max().unwrap_or(0);
            axes = self.mesh.axes_of_groups(&groups);
        }

        let (op_name, source) = origin(here, instruction);
        let trips = |around: &Loop| around.trips.unwrap_or(1);
        Ok(Collective {
            kind,
            instruction: instruction.name().to_owned(),
            computation: here.name().to_owned(),
            payload_bytes,
            bytes_sent: kind.bytes_sent(payload_bytes, group_size),
            ring_steps: kind.ring_steps(group_size),
            parts: self.parts(site, kind, starts, path, &arrays),
            arrays,
            times: path.loops.iter().map(trips).fold(1, u64::saturating_mul),
            times_known: path.loops.iter().all(|around| around.trips.is_some()),
            counted: true,
            loops: path.loops.clone(),
            branches: path.branches.clone(),
            axes,
            group_size,
            groups,
            pairs,
            is_async: path.is_async || starts && !is_synchronous(instruction),
            pass: Pass::of(&op_name),
            op_name,
            source,
        })
    }
}

/// The arrays that a collective moves, as [`Collective::arrays`] describes them.
fn moved(
    here: &Computation,
    instruction: &Instruction,
    kind: CollectiveKind,
    starts: bool,
) -> Vec<ArrayShape> {
    let shapes: Vec<&Shape> = match kind {
        CollectiveKind::AllGather => vec![match instruction.shape() {
            // The start of an all-gather holds its operands and its results.
            Shape::Tuple(parts) if starts && parts.len() > 1 => &parts[1],
            shape => shape,
        }],
        // The other operands say where in the first one the parts are.
        CollectiveKind::RaggedAllToAll => here
            .operand(instruction, 0)
            .map(Instruction::shape)
            .into_iter()
            .collect(),
        _ => (0..instruction.operands().len())
            .filter_map(|position| here.operand(instruction, position))
            .map(Instruction::shape)
            .collect(),
    };
    shapes
        .into_iter()
        .flat_map(Shape::arrays)
        .cloned()
        .collect()
}

/// GPU compilers split every collective into start and done, and mark those that are to run in one piece.
fn is_synchronous(instruction: &Instruction) -> bool {
    let config: Option<Json> = serde_json::from_slice(&instruction.backend_config).ok();
    let mark = config
        .as_ref()
        .and_then(|config| config.get("collective_backend_config")?.get("is_sync"));
    mark.and_then(Json::as_bool).unwrap_or(false)
}

/// Name and line of a collective, or of what it moves: those that the partitioner adds may have none.
pub(super) fn origin(
    here: &Computation,
    instruction: &Instruction,
) -> (String, Option<SourceLine>) {
    let producers = std::iter::successors(Some(instruction), |next| here.operand(next, 0));
    let producers = || producers.clone().take(MAX_PRODUCERS);
    let op_name = producers()
        .map(Instruction::op_name)
        .find(|name| !name.is_empty());
    let source = producers().find_map(Instruction::source);
    (op_name.unwrap_or_default().to_owned(), source.cloned())
}

#[cfg(test)]
mod tests {
    use super::super::proto;
    use super::*;
    use crate::CollectiveReport;
    use crate::error::Result;
    use crate::tests::{KINDS, decode_proto, mesh, report, summary};

    /// The report of `kinds` after a change to its protocol buffers.
    fn edited(edit: impl Fn(&mut proto::Instruction)) -> Result<CollectiveReport> {
        let mut proto = decode_proto(KINDS);
        let computations = proto
            .module
            .iter_mut()
            .flat_map(|module| &mut module.computations);
        computations
            .flat_map(|computation| &mut computation.instructions)
            .for_each(edit);
        CollectiveReport::new(&HloModule::from_proto(proto)?, &mesh("data=2,model=4"))
    }

    #[test]
    fn every_kind_is_found_with_its_bytes_and_axes() {
        use CollectiveKind::*;
        let report = report(KINDS, "data=2,model=4");
        let mut found = summary(&report);
        found.sort();
        let mut expected = vec![
            (AllReduce, "model".into(), 1, 1024),
            (AllGather, "model".into(), 1, 2048),
            (ReduceScatter, "model".into(), 1, 512),
            (AllToAll, "model".into(), 1, 512),
            (CollectivePermute, "data".into(), 1, 512),
            (CollectivePermute, "model".into(), 1, 512),
            // The branches.
            (AllReduce, "data".into(), 1, 512),
            (AllGather, "data model".into(), 1, 4096),
            // The loops: one of unknown length; one whose bfloat16 is reduced as float32 on a CPU.
            (AllReduce, "data model".into(), 1, 512),
            (AllReduce, "data".into(), 5, 512),
        ];
        expected.sort();
        assert_eq!(found, expected);
        let unknown: Vec<_> = report
            .collectives
            .iter()
            .filter(|c| !c.times_known)
            .collect();
        assert_eq!(unknown.len(), 1);
        assert_eq!(unknown[0].loops[0].trips, None);
    }

    #[test]
    fn starts_are_asynchronous_unless_marked() {
        let start = |config: &'static [u8]| {
            edited(|instruction| {
                if instruction.opcode == "all-gather" {
                    let result = instruction.shape.clone().unwrap_or_default();
                    let operand = proto::Shape {
                        dimensions: vec![8, 16],
                        ..result.clone()
                    };
                    instruction.opcode = "all-gather-start".into();
                    instruction.shape = Some(proto::Shape {
                        element_type: 13,
                        dimensions: vec![],
                        tuple_shapes: vec![operand, result],
                    });
                    instruction.backend_config = config.to_vec();
                }
            })
            .unwrap()
        };
        let report = start(b"");
        let gather = report
            .of(CollectiveKind::AllGather, &["model"])
            .next()
            .unwrap();
        assert!(gather.is_async);
        assert_eq!(gather.payload_bytes, 2048);
        let report = start(br#"{"collective_backend_config":{"is_sync":true}}"#);
        assert!(
            report
                .collectives
                .iter()
                .all(|collective| !collective.is_async)
        );
    }

    #[test]
    fn conditions_run_once_more_than_bodies() {
        let mut proto = decode_proto(KINDS);
        let module = proto.module.as_mut().unwrap();
        let loops = module
            .computations
            .iter_mut()
            .flat_map(|c| &mut c.instructions);
        let counted = loops.filter(|i| i.opcode == "while" && !i.backend_config.is_empty());
        // Swapping body and condition makes the body the condition.
        counted.for_each(|i| i.called_computation_ids.reverse());
        let module = HloModule::from_proto(proto).unwrap();
        let report = CollectiveReport::new(&module, &mesh("data=2,model=4")).unwrap();
        assert!(report.collectives.iter().any(|c| c.times == 6));
    }

    #[test]
    fn what_cannot_be_counted_is_an_error() {
        let module = HloModule::decode(KINDS).unwrap();
        assert_eq!(
            CollectiveReport::new(&module, &mesh("data=4"))
                .unwrap_err()
                .to_string(),
            "mesh data=4 has 4 devices, but `jit_kinds` was compiled for 8; give the mesh of the \
             layout that it was compiled with"
        );
        let unknown = edited(|instruction| {
            if let Some(shape) = instruction
                .shape
                .as_mut()
                .filter(|shape| shape.element_type == 11)
            {
                shape.element_type = 99;
            }
        });
        let message = unknown.unwrap_err().to_string();
        assert!(message.contains("the size of type99["), "{message}");
        let beyond = edited(|instruction| {
            instruction
                .source_target_pairs
                .iter_mut()
                .for_each(|pair| pair.target = 8);
        });
        let message = beyond.unwrap_err().to_string();
        assert!(
            message.contains("a source-target pair 0 -> 8 of 8 devices"),
            "{message}"
        );
    }

    /// A module of computations, numbered from 1, the last the entry. Instructions are an opcode and the
    /// computations that it calls.
    fn module(computations: &[&[(&str, &[i64])]]) -> HloModule {
        let computation = |(position, instructions): (usize, &&[(&str, &[i64])])| {
            let instructions =
                instructions
                    .iter()
                    .zip(1..)
                    .map(|((opcode, called), id)| proto::Instruction {
                        name: format!("{opcode}.{id}"),
                        opcode: (*opcode).into(),
                        id,
                        called_computation_ids: called.to_vec(),
                        ..Default::default()
                    });
            proto::Computation {
                name: format!("computation.{position}"),
                instructions: instructions.collect(),
                id: position as i64 + 1,
                root_id: 1,
            }
        };
        let module = proto::Module {
            name: "module".into(),
            computations: computations.iter().enumerate().map(computation).collect(),
            entry_computation_id: computations.len() as i64,
            ..Default::default()
        };
        HloModule::from_proto(proto::ModuleWithConfig {
            module: Some(module),
            config: None,
        })
        .unwrap()
    }

    #[test]
    fn an_asynchronous_wrapper_counts_once() {
        let wrapped = [("all-to-all", &[] as &[i64])];
        let module = module(&[
            &wrapped,
            &[
                ("async-start", &[1]),
                ("async-update", &[1]),
                ("async-done", &[1]),
            ],
        ]);
        let report = CollectiveReport::new(&module, &Mesh::single()).unwrap();
        let [exchange] = &report.collectives[..] else {
            panic!("{report:?}");
        };
        assert!(exchange.is_async);
        assert_eq!(exchange.computation, "computation.0");
    }

    #[test]
    fn reducers_are_not_entered_and_fusions_are() {
        let inner = [("all-reduce", &[] as &[i64])];
        let module = module(&[&inner, &[("reduce", &[1]), ("fusion", &[1])]]);
        let report = CollectiveReport::new(&module, &Mesh::single()).unwrap();
        assert_eq!(report.collectives.len(), 1);
        assert!(!report.collectives[0].is_async);
    }

    #[test]
    fn a_computation_counts_for_each_call_within_bounds() {
        // Each computation calls the one before twice.
        let run = |levels: i64, opcode| {
            let calls: Vec<[i64; 1]> = (1..levels).map(|callee| [callee]).collect();
            let twice = calls.iter().map(|callee| vec![("call", &callee[..]); 2]);
            let all: Vec<Vec<_>> = std::iter::once(vec![(opcode, &[][..])])
                .chain(twice)
                .collect();
            let all: Vec<&[_]> = all.iter().map(Vec::as_slice).collect();
            CollectiveReport::new(&module(&all), &Mesh::single())
                .map(|report| report.collectives.len())
        };
        assert_eq!(run(4, "all-reduce").unwrap(), 8);
        assert_eq!(run(150, "add").unwrap(), 0);
        let message = run(150, "all-reduce").unwrap_err().to_string();
        assert!(message.contains("more than 65536 collectives"), "{message}");
        let message = run(5000, "all-reduce").unwrap_err().to_string();
        assert!(message.contains("more than 200 deep"), "{message}");
    }
}
