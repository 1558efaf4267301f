//! The communication of one launch: every collective that the compiled program runs, how often, how
//! much it moves, over which axes of the mesh, and which line of the user's program wants it.

use serde::Serialize;
use serde_json::Value as Json;
use shardax_sharding::Mesh;

use super::kind::CollectiveKind;
use super::module::{HloModule, SourceLine};
use super::shape::ArrayShape;
use super::walk::collectives_of;
use super::words::{BACKWARD, split_combined};
use crate::error::{Error, Result};

/// The collectives of one launch of a compiled program. Printed, it is a table.
///
/// Numbers are those of one device. `docs/collectives.md` says how they are counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveReport {
    /// Name of the HLO module.
    pub module: String,
    /// The mesh that the axes are of, `data=2 x model=4`.
    pub mesh: String,
    /// Devices that take part in a launch.
    pub devices: usize,
    /// Every collective, once for each path by which the program reaches it.
    pub collectives: Vec<Collective>,
}

/// One collective instruction, reached by one path of loops, branches and calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// Name of the HLO instruction.
    pub instruction: String,
    /// Name of the HLO computation that it is in.
    pub computation: String,
    /// The arrays that it moves, as one device holds them: the results of an all-gather, the operands of
    /// all others. Several if XLA combined several collectives into one.
    pub arrays: Vec<ArrayShape>,
    /// Bytes of `arrays`: for one execution, on one device.
    pub payload_bytes: u64,
    /// Bytes that one device sends in one execution ([`CollectiveKind::bytes_sent`]).
    pub bytes_sent: u64,
    /// Executions in one launch, with each loop of unknown length run once.
    pub times: u64,
    /// Whether `times` is the true number, no enclosing loop being of unknown length.
    pub times_known: bool,
    /// Whether totals count it. A conditional runs one of its branches, so only the branch that sends
    /// most is counted; the collectives of the others are listed all the same.
    pub counted: bool,
    /// The loops around it, outermost first.
    pub loops: Vec<Loop>,
    /// The branches of conditionals around it, outermost first.
    pub branches: Vec<Branch>,
    /// The mesh axes that it communicates over, in the order of the mesh; empty if no device talks to
    /// another. `None` if the groups do not fit the mesh.
    pub axes: Option<Vec<String>>,
    /// Devices in the largest group; for a collective-permute 2 if any device sends to another.
    pub group_size: usize,
    /// The groups, as positions in the mesh. Empty for a collective-permute.
    #[serde(skip)]
    pub groups: Vec<Vec<usize>>,
    /// Sources and targets of a collective-permute, as positions in the mesh.
    #[serde(skip)]
    pub pairs: Vec<(usize, usize)>,
    /// Whether other work can run between its start and its end.
    pub is_async: bool,
    /// The tracer's name of the operation, scopes separated by `/`; empty if XLA kept none.
    pub op_name: String,
    /// The user's line, if XLA kept it.
    pub source: Option<SourceLine>,
    /// The pass of differentiation that it belongs to, if `op_name` tells.
    pub pass: Option<Pass>,
    /// Rounds of messages of one execution by a ring ([`CollectiveKind::ring_steps`]).
    pub ring_steps: u64,
    /// What the module says of each of `arrays`.
    #[serde(skip)]
    pub parts: Vec<Part>,
}

/// What the module says of one array that a collective moves.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The array, of the shape in which it is best known.
    pub array: ArrayShape,
    /// Dimensions before, on one device. Several where XLA has changed the shape only for this: those of the
    /// operand, and of what it is made or cut from.
    pub before: Vec<Vec<u64>>,
    /// Dimensions after, on one device, as `before`.
    pub after: Vec<Vec<u64>>,
    /// The name of the operation that this array belongs to.
    pub op_name: String,
    /// The name of the first operation that reads the result.
    pub reader: String,
    /// The argument that it is or is a part of.
    pub argument: Option<usize>,
    /// The result of the program that the array becomes.
    pub returned_as: Option<usize>,
    /// The dimension that is gathered, scattered or exchanged.
    pub dimension: Option<usize>,
    /// What is reduced: `sums`, `maxima`.
    pub reduces: Option<&'static str>,
    /// Every device takes its own part of the result, and nothing else is done with it.
    pub is_split_again: bool,
    /// The position in `loops` of the loop in which the result is only added up.
    pub accumulated_in: Option<usize>,
}

/// A loop around a collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loop {
    /// Name of the `while` instruction.
    pub instruction: String,
    /// Name of the computation that is run repeatedly: the body, or the condition.
    pub body: String,
    /// How often `body` runs each time the loop is reached; `None` if that depends on data.
    pub trips: Option<u64>,
}

/// A branch of a conditional around a collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Branch {
    /// Name of the `conditional` instruction.
    pub instruction: String,
    /// Which of its branches.
    pub branch: usize,
}

/// The two passes of reverse-mode differentiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// Computing values: `op_name` has a scope `jvp(...)`, as JAX names it. Shardax names none.
    Forward,
    /// Computing gradients: `op_name` has the scope `backward`, or `transpose(...)` as JAX names it.
    Backward,
}

impl Pass {
    /// The pass that the scopes of an `op_name` tell of.
    pub fn of(op_name: &str) -> Option<Self> {
        let (common, combined) = split_combined(op_name);
        let scopes = || {
            let parts = combined.split([':', '/']);
            common
                .split('/')
                .chain(parts.map(|part| part.trim_start_matches('(')))
        };
        let has = |jax: &str| scopes().any(|scope| scope.starts_with(jax));
        if has("transpose(") || scopes().any(|scope| scope == BACKWARD) {
            Some(Pass::Backward)
        } else if has("jvp(") {
            Some(Pass::Forward)
        } else {
            None
        }
    }
}

/// The sum over all collectives of one kind over the same axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Total {
    /// What they do.
    pub kind: CollectiveKind,
    /// The mesh axes that they communicate over.
    pub axes: Option<Vec<String>>,
    /// Executions in one launch.
    pub times: u64,
    /// Bytes moved in one launch: the sum of `payload_bytes` over all executions.
    pub payload_bytes: u64,
    /// Bytes that one device sends in one launch.
    pub bytes_sent: u64,
    /// Whether no loop of unknown length is among those counted.
    pub times_known: bool,
}

impl CollectiveReport {
    /// Reads the collectives of a program that was compiled for the devices of `mesh`, in the order of
    /// its positions.
    ///
    /// # Errors
    ///
    /// [`Error::Mesh`] if the mesh has another number of devices than the program,
    /// [`Error::Malformed`] if a collective cannot be understood: a wrong number would be worse.
    pub fn new(module: &HloModule, mesh: &Mesh) -> Result<Self> {
        if mesh.device_count() != module.device_count() {
            return Err(Error::Mesh {
                module: module.name().to_owned(),
                mesh: mesh.to_string(),
                mesh_devices: mesh.device_count(),
                program_devices: module.device_count(),
            });
        }
        let collectives = collectives_of(module, mesh).map_err(|problem| Error::Malformed {
            module: module.name().to_owned(),
            problem,
        })?;
        Ok(CollectiveReport {
            module: module.name().to_owned(),
            mesh: mesh.to_string(),
            devices: module.device_count(),
            collectives,
        })
    }

    /// The collectives of one kind over exactly these axes (in any order).
    pub fn of<'a>(
        &'a self,
        kind: CollectiveKind,
        axes: &'a [&str],
    ) -> impl Iterator<Item = &'a Collective> {
        self.collectives.iter().filter(move |collective| {
            collective.kind == kind
                && collective.axes.as_ref().is_some_and(|over| {
                    over.len() == axes.len()
                        && over.iter().all(|axis| axes.contains(&axis.as_str()))
                })
        })
    }

    /// Totals by kind and axes, in the order in which they first occur.
    pub fn totals(&self) -> Vec<Total> {
        let mut totals: Vec<Total> = vec![];
        for collective in self
            .collectives
            .iter()
            .filter(|collective| collective.counted)
        {
            let Collective {
                kind,
                ref axes,
                times,
                ..
            } = *collective;
            let same = |total: &&mut Total| total.kind == kind && total.axes == *axes;
            let (payload, sent) = (
                collective.payload_bytes.saturating_mul(times),
                collective.bytes_sent.saturating_mul(times),
            );
            match totals.iter_mut().find(same) {
                Some(total) => {
                    total.times = total.times.saturating_add(times);
                    total.payload_bytes = total.payload_bytes.saturating_add(payload);
                    total.bytes_sent = total.bytes_sent.saturating_add(sent);
                    total.times_known &= collective.times_known;
                }
                None => totals.push(Total {
                    kind,
                    axes: axes.clone(),
                    times,
                    payload_bytes: payload,
                    bytes_sent: sent,
                    times_known: collective.times_known,
                }),
            }
        }
        totals
    }

    /// The report as JSON: the fields of this struct and of [`Collective`], and `totals`.
    pub fn to_json(&self) -> Json {
        let CollectiveReport {
            module,
            mesh,
            devices,
            collectives,
        } = self;
        serde_json::json!({
            "module": module,
            "mesh": mesh,
            "devices": devices,
            "collectives": collectives,
            "totals": self.totals(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{DDP, KINDS, MEGATRON, report, summary};

    #[test]
    fn scopes_tell_the_pass() {
        let backward = [
            "backward/mlp/dot_general#7",
            "(backward/dot_general#1:backward/add#2:reduce_sum#3)",
            "block/(reduce_sum#3:backward/dot_general#1)",
            "jit(step)/transpose(jvp(mlp))/dot_general",
            "jit(step)/(jvp()/add:transpose(jvp())/dot_general)",
        ];
        for op_name in backward {
            assert_eq!(Pass::of(op_name), Some(Pass::Backward), "{op_name}");
        }
        assert_eq!(
            Pass::of("jit(step)/jvp(mlp)/dot_general"),
            Some(Pass::Forward)
        );
        assert_eq!(Pass::of("backward_lstm/dot_general#7"), None);
        assert_eq!(Pass::of(""), None);
    }

    #[test]
    fn ddp_reduces_each_gradient_byte_once() {
        let report = report(DDP, "data=8");
        let reduce = CollectiveKind::AllReduce;
        assert_eq!(
            summary(&report),
            [
                (reduce, "data".into(), 3, 4096),
                (reduce, "data".into(), 1, 4)
            ]
        );
        let gradients = &report.collectives[0];
        assert_eq!(gradients.arrays.len(), 2);
        assert_eq!(gradients.bytes_sent, 2 * 4096 * 7 / 8);
        assert_eq!(gradients.pass, Some(Pass::Backward));
        assert_eq!(gradients.loops.len(), 1);
        assert_eq!(gradients.loops[0].trips, Some(3));
        assert_eq!(gradients.loops[0].body, gradients.computation);
        assert_eq!(gradients.groups, [[0, 1, 2, 3, 4, 5, 6, 7]]);
        let line = gradients.source.as_ref().unwrap();
        assert_eq!(line.file, "generate.py");
        let generator = include_str!("fixtures/generate.py");
        assert!(
            generator
                .lines()
                .nth(line.line as usize - 1)
                .unwrap()
                .contains("jnp.tanh")
        );
    }

    #[test]
    fn megatron_reduces_activations_over_model_and_gradients_over_data() {
        let report = report(MEGATRON, "data=2,model=4");
        let over_model: Vec<_> = report.of(CollectiveKind::AllReduce, &["model"]).collect();
        let [forward, backward] = over_model[..] else {
            panic!("{report:?}");
        };
        assert_eq!(
            (forward.pass, backward.pass),
            (Some(Pass::Forward), Some(Pass::Backward))
        );
        assert_eq!(forward.arrays[0].to_string(), "f32[32,16]");
        let totals = report.totals();
        let total = |axis: &str| {
            totals
                .iter()
                .find(|t| t.axes == Some(vec![axis.into()]))
                .unwrap()
        };
        assert_eq!(
            (total("model").times, total("model").payload_bytes),
            (6, 6 * 2048)
        );
        assert_eq!(total("model").bytes_sent, 6 * 2048 * 6 / 4);
        // Three layers of two gradients of 512 bytes, and the loss.
        assert_eq!(
            (total("data").times, total("data").payload_bytes),
            (4, 3 * 1024 + 4)
        );
    }

    #[test]
    fn the_dearer_branch_is_counted() {
        let report = report(KINDS, "data=2,model=4");
        let branches: Vec<_> = report
            .collectives
            .iter()
            .filter(|c| !c.branches.is_empty())
            .collect();
        let counted: Vec<_> = branches.iter().map(|c| (c.kind, c.counted)).collect();
        assert_eq!(
            counted,
            [
                (CollectiveKind::AllGather, true),
                (CollectiveKind::AllReduce, false)
            ]
        );
        assert_eq!(branches[1].branches[0].branch, 1);
        let reduced_over_data = report
            .totals()
            .into_iter()
            .find(|t| t.axes == Some(vec!["data".into()]))
            .unwrap();
        assert_eq!(reduced_over_data.kind, CollectiveKind::CollectivePermute);
        let times: u64 = report.totals().iter().map(|total| total.times).sum();
        assert_eq!(times, 6 + 1 + 1 + 5);
    }

    #[test]
    fn json_has_collectives_and_totals() {
        let json = report(DDP, "data=8").to_json();
        assert_eq!(json["mesh"], "data=8");
        let gradients = &json["collectives"][0];
        assert_eq!(gradients["kind"], "all-reduce");
        assert_eq!(gradients["axes"], serde_json::json!(["data"]));
        assert_eq!(gradients["pass"], "backward");
        assert_eq!(gradients["loops"][0]["trips"], 3);
        assert_eq!(gradients["source"]["file"], "generate.py");
        assert_eq!(gradients["arrays"].as_array().unwrap().len(), 2);
        assert_eq!(json["totals"][0]["payload_bytes"], 4 + 3 * 4096);
    }
}
