//! What is probably not meant in a program's communication and memory, and what to do about it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};
use shardax_hlo::words::axes_text;
use shardax_hlo::{Collective, CollectiveKind, SMALL, SourceLine, human_bytes};
use shardax_sharding::Mesh;

use super::subject::Argument;
use super::summary::{ExplainedCollective, ReportOptions};
use super::why::{Cause, MovedTensor, TensorRole};

/// Kinds of warnings; those that are given to [`Jit::strict`](crate::Jit::strict) are errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WarningKind {
    /// A parameter or its optimizer state is gathered although the layout does not say so, or all layers of
    /// a stack are gathered at once. That a layer is gathered where it is used, as FSDP does, is no warning.
    ParameterGathered,
    /// A value is gathered whole, only for each device to take another part of it than it had: the
    /// partitioner found no way from one sharding to the other ("involuntary full rematerialization").
    FullRematerialization,
    /// A value is moved to another sharding in every iteration of a loop, and no manual region asks for
    /// that. The gathers of sequence parallelism, over an axis that also splits parameters where they are
    /// used, are no warning.
    ReshardingInLoop,
    /// An argument or result above [`ReportOptions::replicated_bytes`] is whole on every device.
    ReplicatedTensor,
    /// A loop reduces in every iteration what it only adds up, as gradients of micro-batches. Where the
    /// layout splits gradients over the same axes while they are added up, as ZeRO-2 and 3 do, it has to,
    /// and that is no warning.
    ReductionPerIteration,
}

impl WarningKind {
    /// Every kind.
    pub const ALL: [WarningKind; 5] = [
        WarningKind::ParameterGathered,
        WarningKind::FullRematerialization,
        WarningKind::ReshardingInLoop,
        WarningKind::ReplicatedTensor,
        WarningKind::ReductionPerIteration,
    ];

    /// The name in messages and in JSON, `parameter_gathered`.
    pub const fn name(self) -> &'static str {
        match self {
            WarningKind::ParameterGathered => "parameter_gathered",
            WarningKind::FullRematerialization => "full_rematerialization",
            WarningKind::ReshardingInLoop => "resharding_in_loop",
            WarningKind::ReplicatedTensor => "replicated_tensor",
            WarningKind::ReductionPerIteration => "reduction_per_iteration",
        }
    }
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// As [`WarningKind::name`].
impl Serialize for WarningKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A warning, printed with the line and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Its kind.
    pub kind: WarningKind,
    /// What is the matter, with sizes.
    pub message: String,
    /// What to do about it.
    pub help: String,
    /// Paths of the tensors concerned.
    pub tensors: Vec<String>,
    /// Bytes concerned on one device: moved in a launch, or held.
    pub bytes: u64,
    /// The user's line, if it is known.
    pub source: Option<SourceLine>,
    /// Names of the HLO instructions concerned.
    pub instructions: Vec<String>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)?;
        if let Some(source) = &self.source {
            write!(f, "\n    --> {source}")?;
        }
        write!(f, "\n    help: {}", self.help)
    }
}

/// Looks for everything there is a warning for.
pub(super) struct Inspector<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) arguments: &'a [Argument],
    pub(super) results: &'a [super::Placed],
    /// The mesh axes over which the layout splits gradients.
    pub(super) gradient_axes: BTreeSet<String>,
    pub(super) options: ReportOptions,
}

impl Inspector<'_> {
    pub(super) fn warnings(&self, collectives: &[ExplainedCollective]) -> Vec<Warning> {
        let mut warnings: Vec<Warning> = vec![];
        for explained in collectives {
            if explained.collective.group_size < 2 {
                continue;
            }
            // One cause has one warning, the most exact.
            let found = full_rematerialization(explained)
                .or_else(|| self.parameter_gathered(explained))
                .or_else(|| self.reduction_per_iteration(explained))
                .or_else(|| self.resharding_in_loop(explained));
            let Some(found) = found else { continue };
            let same = |w: &&mut Warning| {
                (w.kind, &w.message, &w.source) == (found.kind, &found.message, &found.source)
            };
            match warnings.iter_mut().find(same) {
                Some(known) => {
                    known.bytes = known.bytes.saturating_add(found.bytes);
                    known.instructions.extend(found.instructions);
                }
                None => warnings.push(found),
            }
        }
        warnings.extend(self.replicated());
        warnings.sort_by_key(|warning| warning.kind);
        warnings
    }

    fn parameter_gathered(&self, explained: &ExplainedCollective) -> Option<Warning> {
        let collective = &explained.collective;
        let is_written = explained.why.cause != Cause::Partitioner;
        if collective.kind != CollectiveKind::AllGather || is_written {
            return None;
        }
        let axes = collective.axes.as_deref()?;
        let tensors = explained.why.tensors.iter().zip(&collective.parts);
        let mut reasons = tensors.filter_map(|(tensor, part)| {
            let argument = self.arguments.get(part.argument?)?;
            let reason = match (tensor.role, &argument.at_use) {
                (TensorRole::State, _) => Reason::State,
                (TensorRole::Parameter, Some(at_use)) => {
                    let layers = argument.layers.filter(|_| !tensor.is_layer);
                    let kept = |axis: &&String| at_use.entries().iter().any(|e| e.contains(axis));
                    match (layers, axes.iter().find(kept)) {
                        (Some(layers), _) => Reason::AllLayers(layers),
                        (None, Some(axis)) => Reason::SplitAtUse(axis.clone()),
                        (None, None) => return None,
                    }
                }
                _ => return None,
            };
            Some((tensor, argument, reason, !part.reader.is_empty()))
        });
        let (tensor, argument, reason, is_read) = reasons.next()?;
        let over = axes_text(Some(axes), &[]);
        let bytes = human_bytes(tensor.array.bytes().unwrap_or(0));
        let (path, ty) = (&argument.path, &argument.ty);
        let (message, help) = match reason {
            Reason::AllLayers(layers) => (
                format!(
                    "all {layers} layers of parameter `{path}` {ty} are gathered over {over} at once, \
                     {bytes} on each device"
                ),
                match is_read {
                    true => {
                        "an operation reads the whole stack, where the layout gathers a layer at a time: \
                         use the layers in `Stack::scan`, or name the dimensions of what is computed"
                    }
                    false => {
                        "a result is the whole stack, and no annotation splits it: give it the annotations \
                         of the parameter"
                    }
                }
                .to_owned(),
            ),
            Reason::SplitAtUse(axis) => (
                format!(
                    "parameter `{path}` {ty} is gathered over {over}, {bytes} on each device, though the \
                     layout splits it over {axis} where it is used"
                ),
                format!(
                    "name the dimensions of the values on this line with `#[shard(...)]`, so that the \
                     product is computed in parts over {axis}, or take {axis} from the parameter's rules"
                ),
            ),
            Reason::State => (
                format!(
                    "state `{path}` {ty} is gathered over {over}, {bytes} on each device"
                ),
                "annotate the results as the arguments are, so that every device updates its own part"
                    .to_owned(),
            ),
        };
        let kind = WarningKind::ParameterGathered;
        let found = warning(kind, message, help, collective, &[tensor]);
        Some(Warning {
            source: found.source.filter(|_| is_read),
            ..found
        })
    }

    fn resharding_in_loop(&self, explained: &ExplainedCollective) -> Option<Warning> {
        let ExplainedCollective { collective, why } = explained;
        let around = repeated(collective)?;
        if why.cause != Cause::Partitioner || collective.payload_bytes <= SMALL {
            return None;
        }
        let axes = collective.axes.as_deref();
        let is_computed = |tensor: &&MovedTensor| match collective.kind {
            CollectiveKind::AllToAll
            | CollectiveKind::RaggedAllToAll
            | CollectiveKind::CollectivePermute => true,
            CollectiveKind::AllGather => {
                let of_tensor_parallelism =
                    axes.is_some_and(|axes| axes.iter().all(|axis| self.splits_at_use(axis)));
                let is_argument = matches!(
                    tensor.role,
                    TensorRole::Parameter | TensorRole::State | TensorRole::Gradient
                );
                !is_argument && !of_tensor_parallelism
            }
            CollectiveKind::AllReduce
            | CollectiveKind::ReduceScatter
            | CollectiveKind::CollectiveBroadcast => false,
        };
        let tensors: Vec<&MovedTensor> = why.tensors.iter().filter(is_computed).collect();
        let first = tensors.first()?;
        let movement = match first.movement() {
            known if known.is_empty() => String::new(),
            known => format!(", {known}"),
        };
        let message = format!(
            "{} {} is moved to another sharding by {} over {} {around}, {} each time{movement}",
            first.what(),
            first.array,
            collective.kind,
            axes_text(axes, &collective.groups),
            human_bytes(collective.payload_bytes),
        );
        let help = "name the dimensions of the value, and of what it is computed from, with \
                    `#[shard(...)]`, so that both sides of the operation on this line are split alike; \
                    what is to move belongs into a manual region"
            .to_owned();
        let kind = WarningKind::ReshardingInLoop;
        Some(warning(kind, message, help, collective, &tensors))
    }

    fn reduction_per_iteration(&self, explained: &ExplainedCollective) -> Option<Warning> {
        let ExplainedCollective { collective, why } = explained;
        // Where gradients are shards, no device has room for a sum of whole ones.
        let axes = collective.axes.as_deref().unwrap_or_default();
        let into_shards = !axes.is_empty() && axes.iter().all(|a| self.gradient_axes.contains(a));
        if collective.payload_bytes <= SMALL || into_shards {
            return None;
        }
        let parts = why.tensors.iter().zip(&collective.parts);
        let mut summed = parts.filter_map(|(tensor, part)| {
            let around = collective.loops.get(part.accumulated_in?)?;
            (around.trips != Some(1)).then_some((tensor, around))
        });
        let (first, around) = summed.next()?;
        let tensors: Vec<&MovedTensor> = std::iter::once(first)
            .chain(summed.map(|(tensor, _)| tensor))
            .collect();
        let more = match tensors.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "{}{more} {} reduced over {} in every one of {} iterations, {} a launch, and only added up there",
            first.what(),
            if tensors.len() == 1 { "is" } else { "are" },
            axes_text(collective.axes.as_deref(), &collective.groups),
            around
                .trips
                .map_or("an unknown number of".to_owned(), |trips| trips.to_string()),
            human_bytes(collective.payload_bytes.saturating_mul(collective.times)),
        );
        let help = "add up on each device and reduce once after the loop: over micro-batches `train::accumulate` \
                    does so; in a manual region over these axes any sum, such as the gradient of weights that all \
                    time steps share, can be reduced after its loop"
            .to_owned();
        let kind = WarningKind::ReductionPerIteration;
        Some(warning(kind, message, help, collective, &tensors))
    }

    /// Whether a parameter is split over an axis where it is used.
    fn splits_at_use(&self, axis: &str) -> bool {
        let at_use = self.arguments.iter().filter_map(|a| a.at_use.as_ref());
        at_use
            .flat_map(|spec| spec.entries())
            .any(|entry| entry.contains(axis))
    }

    fn replicated(&self) -> Option<Warning> {
        let devices = self.mesh.device_count();
        let arguments = self
            .arguments
            .iter()
            .map(|a| ("argument", &a.path, &a.ty, &a.spec));
        let results = self
            .results
            .iter()
            .map(|r| ("result", &r.path, &r.ty, &r.spec));
        // An updated argument is not a second tensor.
        let is_update = |path: &String| self.arguments.iter().any(|a| ends_alike(&a.path, path));
        let results = results.filter(|(_, path, ..)| !is_update(path));
        let mut large: Vec<_> = arguments
            .chain(results)
            .filter(|(.., spec)| devices > 1 && spec.is_replicated(self.mesh))
            .map(|(kind, path, ty, _)| (ty.host_bytes() as u64, kind, path, ty))
            .filter(|(bytes, ..)| *bytes >= self.options.replicated_bytes.max(1))
            .collect();
        large.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
        let (_, kind, path, ty) = *large.first()?;
        let what = match path.as_str() {
            "" => format!("the {kind}"),
            path => format!("{kind} `{path}`"),
        };
        let bytes = large
            .iter()
            .map(|(bytes, ..)| bytes)
            .fold(0, |a, b| u64::saturating_add(a, *b));
        let more = match large.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(Warning {
            kind: WarningKind::ReplicatedTensor,
            message: format!(
                "{what} {ty}{more}, {} in all, {} whole on each of {devices} devices",
                human_bytes(bytes),
                if large.len() == 1 { "is" } else { "are" },
            ),
            help: "give the layout a rule for one of its dimensions (`shard_every_parameter` splits all \
                   parameters, as FSDP does), and an annotation to what has none"
                .to_owned(),
            tensors: large.iter().map(|(_, _, path, _)| (*path).clone()).collect(),
            bytes,
            source: None,
            instructions: vec![],
        })
    }
}

/// Why a gathered argument is worth a warning.
enum Reason {
    AllLayers(usize),
    SplitAtUse(String),
    State,
}

fn full_rematerialization(explained: &ExplainedCollective) -> Option<Warning> {
    let ExplainedCollective { collective, why } = explained;
    let is_from_partitioner = why.cause == Cause::Partitioner;
    let parts = why.tensors.iter().zip(&collective.parts);
    let parts = parts.filter(|_| is_from_partitioner);
    let tensors: Vec<&MovedTensor> = parts
        .filter(|(_, part)| part.is_split_again)
        .map(|(tensor, _)| tensor)
        .collect();
    let first = tensors.first()?;
    let lay = first
        .from
        .as_ref()
        .map_or(String::new(), |from| format!(" that lay as {from}"));
    let message = format!(
        "{} {}{lay} is gathered over {}, {} on each device, only for each device to take another part of \
         it",
        first.what(),
        first.array,
        axes_text(collective.axes.as_deref(), &collective.groups),
        human_bytes(collective.payload_bytes),
    );
    let help =
        "the partitioner found no direct way between the two shardings: let the two annotations \
                around this line differ in one dimension at a time, or not at all"
            .to_owned();
    let kind = WarningKind::FullRematerialization;
    Some(warning(kind, message, help, collective, &tensors))
}

/// `in each of 32 iterations`, if there is a loop that repeats it.
fn repeated(collective: &Collective) -> Option<String> {
    if !collective.times_known {
        return Some("in every iteration of a loop".to_owned());
    }
    let is_repeated = !collective.loops.is_empty() && collective.times > 1;
    is_repeated.then(|| format!("in each of {} iterations", collective.times))
}

fn warning(
    kind: WarningKind,
    message: String,
    help: String,
    collective: &Collective,
    tensors: &[&MovedTensor],
) -> Warning {
    let source = tensors.first().and_then(|tensor| tensor.source.clone());
    Warning {
        kind,
        message,
        help,
        tensors: tensors.iter().map(|tensor| tensor.path.clone()).collect(),
        bytes: collective.payload_bytes.saturating_mul(collective.times),
        source: source.or_else(|| collective.source.clone()),
        instructions: vec![collective.instruction.clone()],
    }
}

/// Whether a result is the new value of an argument: their paths differ in the first segment at most.
fn ends_alike(argument: &str, result: &str) -> bool {
    fn tail(path: &str) -> &str {
        path.split_once('.').map_or(path, |(_, tail)| tail)
    }
    argument == result || tail(argument) == tail(result)
}
