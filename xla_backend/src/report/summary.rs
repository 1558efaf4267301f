//! The report on a compiled program: all that it communicates and why, what lies where, and what to look at.

use serde::Serialize;
use serde_json::Value as Json;
use shardax_hlo::Result;
use shardax_hlo::{ArrayShape, Collective, CollectiveKind, CollectiveReport, SourceLine, Total};
use shardax_sharding::Mesh;

use super::attribution::Attribution;
use super::explain::Explainer;
use super::memory::MemoryReport;
use super::split::Split;
use super::subject::{self, Argument, ArgumentRole, Placed, Subject};
use super::warning::{Inspector, Warning, WarningKind};
use super::why::Why;
use crate::lower;

/// The version of the JSON: it grows when a field changes its meaning or goes away, and not when one is
/// added.
pub const REPORT_VERSION: u32 = 1;

/// What the report looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReportOptions {
    /// An argument or result of this many bytes that is whole on every device is worth a
    /// [`WarningKind::ReplicatedTensor`].
    pub replicated_bytes: u64,
}

/// 64 MiB.
impl Default for ReportOptions {
    fn default() -> Self {
        ReportOptions {
            replicated_bytes: 64 << 20,
        }
    }
}

/// What a compiled program communicates and why, how its arguments lie, what memory it needs, and what is
/// probably not meant.
///
/// Printed, it is text for a terminal; [`Report::to_json`] and [`Report::to_html`] have the same content.
/// `docs/collectives.md` describes both, and says where each number comes from.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// Name of the HLO module.
    pub module: String,
    /// The mesh axes, major first.
    pub mesh: Vec<AxisSize>,
    /// Devices that take part in a launch.
    pub devices: usize,
    /// The arguments, in order; empty if they are not known.
    pub arguments: Vec<ReportedArgument>,
    /// Every collective, in the order of the compiled schedule.
    pub collectives: Vec<ExplainedCollective>,
    /// Totals by kind and axes.
    pub totals: Vec<Total>,
    /// Totals by axes alone.
    pub by_axes: Vec<AxesTotal>,
    /// Totals by kind alone.
    pub by_kind: Vec<KindTotal>,
    /// Bytes of one device's arguments by what they are for; empty if they are not known.
    pub argument_bytes: Vec<RoleBytes>,
    /// The compiler's memory statistics, if it has any.
    pub memory: Option<MemoryReport>,
    /// What is probably not meant.
    pub warnings: Vec<Warning>,
    /// What is worth knowing of the layout though nothing is wrong, a sentence each: rules and overrides that
    /// match nothing, choices that were made, arguments that nobody annotated.
    pub remarks: Vec<String>,
    #[serde(skip)]
    pub(super) shape: Mesh,
    #[serde(skip)]
    pub(super) placed: Vec<Placed>,
}

/// A mesh axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AxisSize {
    /// Its name.
    pub name: String,
    /// Devices along it.
    pub size: usize,
}

/// A collective with its reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExplainedCollective {
    /// What it does, how often, with how many bytes.
    #[serde(flatten)]
    pub collective: Collective,
    /// Why it is there.
    pub why: Why,
}

/// An argument of the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportedArgument {
    /// Its path.
    pub path: String,
    /// Element type and shape of the whole, `f32[64,256]`.
    pub ty: String,
    /// How it lies at rest.
    pub sharding: Split,
    /// How it lies where it is used, if the program says so; of one layer if `layers`.
    pub at_use: Option<Split>,
    /// The length of the loop that uses one element of it at a time.
    pub layers: Option<usize>,
    /// What it is for.
    pub role: ArgumentRole,
    /// Bytes of the whole.
    pub bytes: u64,
    /// Bytes on one device.
    pub device_bytes: u64,
}

/// Bytes on one device of the arguments of one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoleBytes {
    /// The role.
    pub role: ArgumentRole,
    /// Number of arguments.
    pub count: usize,
    /// Bytes of one device.
    pub device_bytes: u64,
    /// Bytes of all of them whole.
    pub bytes: u64,
}

/// All that is sent over the same axes in one launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AxesTotal {
    /// The axes; `None` for groups that are no axes.
    pub axes: Option<Vec<String>>,
    /// The sums.
    #[serde(flatten)]
    pub sum: Sum,
}

/// All that collectives of one kind do in one launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindTotal {
    /// The kind.
    pub kind: CollectiveKind,
    /// The sums.
    #[serde(flatten)]
    pub sum: Sum,
}

/// Sums over the collectives of one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Executions.
    pub times: u64,
    /// Those of them that can run beside other work.
    pub async_times: u64,
    /// Sum of [`Collective::payload_bytes`].
    pub payload_bytes: u64,
    /// Bytes that one device sends.
    pub bytes_sent: u64,
    /// Rounds of messages by rings.
    pub ring_steps: u64,
    /// Whether every loop's length is known; if not, one iteration is counted of the others.
    pub times_known: bool,
}

impl Sum {
    fn of<'a>(collectives: impl Iterator<Item = &'a Collective>) -> Self {
        let none = Sum {
            times_known: true,
            ..Sum::default()
        };
        collectives.fold(none, |sum, c| {
            let add = |a: u64, each: u64| a.saturating_add(each.saturating_mul(c.times));
            Sum {
                times: add(sum.times, 1),
                async_times: add(sum.async_times, u64::from(c.is_async)),
                payload_bytes: add(sum.payload_bytes, c.payload_bytes),
                bytes_sent: add(sum.bytes_sent, c.bytes_sent),
                ring_steps: add(sum.ring_steps, c.ring_steps),
                times_known: sum.times_known && c.times_known,
            }
        })
    }
}

impl Report {
    /// Reads the report of a program. No device is asked: all is in the subject.
    ///
    /// # Errors
    ///
    /// As for [`CollectiveReport::new`].
    pub fn new(subject: &Subject, options: ReportOptions) -> Result<Self> {
        let found = CollectiveReport::new(subject.hlo, subject.mesh)?;
        let totals = found.totals();
        let module = subject.traced.map(|traced| traced.module);
        let attribution = subject
            .traced
            .map(|traced| Attribution::new(traced.graph, traced.layout));
        let arguments = subject::arguments(&subject.arguments, attribution.as_ref());
        let gradient_axes = attribution.as_ref().map(|a| a.gradient_axes.clone());
        let explainer = Explainer {
            mesh: subject.mesh,
            arguments: &arguments,
            results: &subject.results,
            traced: module.zip(attribution),
        };
        let explain = |mut collective: Collective| {
            if let Some(module) = module {
                set_place(&mut collective, module);
            }
            let why = explainer.why(&collective);
            let line = why.tensors.iter().find_map(|tensor| tensor.source.clone());
            collective.source = collective.source.or(line);
            ExplainedCollective { collective, why }
        };
        let collectives: Vec<_> = found.collectives.into_iter().map(explain).collect();
        let inspector = Inspector {
            mesh: subject.mesh,
            arguments: &arguments,
            results: &subject.results,
            gradient_axes: gradient_axes.unwrap_or_default(),
            options,
        };
        let axes = subject.mesh.axes().iter().map(|axis| AxisSize {
            name: axis.name().to_owned(),
            size: axis.size(),
        });
        let reported: Vec<_> = arguments
            .iter()
            .map(|argument| reported(argument, subject.mesh))
            .collect();
        Ok(Report {
            version: REPORT_VERSION,
            module: found.module,
            mesh: axes.collect(),
            devices: found.devices,
            warnings: inspector.warnings(&collectives),
            by_axes: by_axes(&collectives),
            by_kind: by_kind(&collectives),
            argument_bytes: by_role(&reported),
            arguments: reported,
            collectives,
            totals,
            memory: subject.memory,
            remarks: Vec::new(),
            shape: subject.mesh.clone(),
            placed: subject.arguments.clone(),
        })
    }

    /// The warnings of these kinds.
    pub fn warnings_of<'a>(
        &'a self,
        kinds: &'a [WarningKind],
    ) -> impl Iterator<Item = &'a Warning> {
        self.warnings
            .iter()
            .filter(|warning| kinds.contains(&warning.kind))
    }

    /// The report as JSON. The fields are those of this struct and of the structs in it; shapes, shardings
    /// and kinds are text. `docs/collectives.md` lists them.
    pub fn to_json(&self) -> Json {
        // Strings, numbers and lists of them: nothing that JSON does not have.
        serde_json::to_value(self).unwrap_or(Json::Null)
    }
}

/// The user's line and the name without numbers. A program from a cache may have been compiled when the line
/// stood elsewhere, so that its own lines are not asked.
pub(crate) fn set_place(collective: &mut Collective, module: &lower::Module) {
    if let Some(source) = module.source_of(&collective.op_name) {
        collective.source = Some(SourceLine {
            file: source.file().to_owned(),
            line: source.line(),
        });
    }
    collective.op_name = module.name_of(&collective.op_name);
}

fn reported(argument: &Argument, mesh: &Mesh) -> ReportedArgument {
    let bytes = argument.ty.host_bytes() as u64;
    let shard = argument.spec.shard_shape(mesh, &argument.ty.shape);
    let device_bytes = shard.map_or(bytes, |shard| {
        shardax_core::TensorType::new(argument.ty.dtype, &shard).host_bytes() as u64
    });
    ReportedArgument {
        path: argument.path.clone(),
        ty: argument.ty.to_string(),
        sharding: Split::of_spec(&argument.spec),
        at_use: argument.at_use.as_ref().map(Split::of_spec),
        layers: argument.layers,
        role: argument.role,
        bytes,
        device_bytes,
    }
}

fn by_role(arguments: &[ReportedArgument]) -> Vec<RoleBytes> {
    let mut roles: Vec<RoleBytes> = vec![];
    for argument in arguments {
        let (device_bytes, bytes) = (argument.device_bytes, argument.bytes);
        match roles.iter_mut().find(|role| role.role == argument.role) {
            Some(role) => {
                role.count += 1;
                role.device_bytes = role.device_bytes.saturating_add(device_bytes);
                role.bytes = role.bytes.saturating_add(bytes);
            }
            None => roles.push(RoleBytes {
                role: argument.role,
                count: 1,
                device_bytes,
                bytes,
            }),
        }
    }
    roles.sort_by_key(|role| role.role);
    roles
}

fn counted(collectives: &[ExplainedCollective]) -> impl Iterator<Item = &Collective> + Clone {
    collectives
        .iter()
        .map(|explained| &explained.collective)
        .filter(|collective| collective.counted)
}

fn by_axes(collectives: &[ExplainedCollective]) -> Vec<AxesTotal> {
    let mut all: Vec<&Option<Vec<String>>> = vec![];
    for collective in counted(collectives) {
        if !all.contains(&&collective.axes) {
            all.push(&collective.axes);
        }
    }
    let total = |axes: &Option<Vec<String>>| AxesTotal {
        axes: axes.clone(),
        sum: Sum::of(counted(collectives).filter(|c| c.axes == *axes)),
    };
    all.into_iter().map(total).collect()
}

fn by_kind(collectives: &[ExplainedCollective]) -> Vec<KindTotal> {
    let total = |kind: CollectiveKind| KindTotal {
        kind,
        sum: Sum::of(counted(collectives).filter(|c| c.kind == kind)),
    };
    CollectiveKind::ALL
        .into_iter()
        .map(total)
        .filter(|total| total.sum.times > 0)
        .collect()
}

/// The largest array of a collective, `f32[64,256]`.
pub(super) fn largest(collective: &Collective) -> Option<&ArrayShape> {
    let arrays = collective.arrays.iter().rev();
    arrays.max_by_key(|array| array.bytes().unwrap_or(0))
}
