//! What a report is about: a compiled program, and what is known of what it was compiled from.

use shardax_core::{Source, TensorType, ir::Graph};
use shardax_hlo::HloModule;
use shardax_sharding::{Layout, Mesh, PartitionSpec};

use super::attribution::Attribution;
use super::memory::MemoryReport;
use crate::lower;

/// What a [`Report`](super::Report) is made of. No device is needed: the module may be compiled for a
/// cluster that is not there.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The optimized program.
    pub hlo: &'a HloModule,
    /// The mesh whose positions its devices are.
    pub mesh: &'a Mesh,
    /// The arguments, in order; empty if they are not known.
    pub arguments: Vec<Placed>,
    /// The results, in order; empty if they are not known.
    pub results: Vec<Placed>,
    /// What it was compiled from, if it was traced.
    pub traced: Option<TracedFrom<'a>>,
    /// The compiler's memory statistics, if there are any.
    pub memory: Option<MemoryReport>,
}

/// An argument or result: its path, type, and how it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Path in the arguments or in the result.
    pub path: String,
    /// Element type and shape of the whole.
    pub ty: TensorType,
    /// How it lies on the mesh.
    pub spec: PartitionSpec,
    /// Whether it is annotated as the state of an optimizer.
    pub is_state: bool,
}

/// What a program was compiled from.
#[derive(Clone, Copy, Debug)]
pub struct TracedFrom<'a> {
    /// The equations.
    pub graph: &'a Graph,
    /// The rules.
    pub layout: &'a Layout,
    /// The module that was lowered from them.
    pub module: &'a lower::Module,
}

/// An argument with what the program does with it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Argument {
    pub(super) path: String,
    pub(super) ty: TensorType,
    pub(super) spec: PartitionSpec,
    pub(super) role: ArgumentRole,
    /// How it lies where it is used, of one element if `layers`.
    pub(super) at_use: Option<PartitionSpec>,
    /// The length of the loop that uses one element of it at a time.
    pub(super) layers: Option<usize>,
    /// The user's line that uses it.
    pub(super) source: Option<Source>,
}

/// What an argument is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentRole {
    /// It is annotated where it is used, as the parameters of a differentiated function are.
    Parameter,
    /// It is annotated as the state of an optimizer; or its shape and the end of its path are those of a
    /// parameter, as those of an accumulated gradient.
    State,
    /// All else: batches, keys, counters.
    Input,
}

impl ArgumentRole {
    /// One of them in words.
    pub(super) const fn singular(self) -> &'static str {
        match self {
            ArgumentRole::Parameter => "parameter",
            ArgumentRole::State => "state",
            ArgumentRole::Input => "input",
        }
    }

    /// All of them in words.
    pub(super) const fn plural(self) -> &'static str {
        match self {
            ArgumentRole::Parameter => "parameters",
            ArgumentRole::State => "state",
            ArgumentRole::Input => "inputs",
        }
    }
}

/// The arguments with their roles.
pub(super) fn arguments(placed: &[Placed], attribution: Option<&Attribution>) -> Vec<Argument> {
    let used = |i: usize| attribution.and_then(|a| a.arguments.get(i));
    let is_parameter = |i: usize| used(i).is_some_and(|used| used.at_use.is_some());
    let parameters: Vec<&Placed> = placed
        .iter()
        .enumerate()
        .filter_map(|(i, placed)| is_parameter(i).then_some(placed))
        .collect();
    let argument = |(i, placed): (usize, &Placed)| Argument {
        path: placed.path.clone(),
        ty: placed.ty.clone(),
        spec: placed.spec.clone(),
        role: match is_parameter(i) {
            true => ArgumentRole::Parameter,
            false if placed.is_state => ArgumentRole::State,
            false if parameters.iter().any(|p| is_state_of(placed, p)) => ArgumentRole::State,
            false => ArgumentRole::Input,
        },
        at_use: used(i).and_then(|used| used.at_use.clone()),
        layers: used(i).and_then(|used| used.layers),
        source: used(i).and_then(|used| used.source),
    };
    placed.iter().enumerate().map(argument).collect()
}

/// `0.moments.blocks.w1` beside `0.params.blocks.w1`: one segment differs, or is there once more.
fn is_state_of(placed: &Placed, parameter: &Placed) -> bool {
    if placed.ty.shape != parameter.ty.shape {
        return false;
    }
    let (ours, theirs): (Vec<&str>, Vec<&str>) = (
        placed.path.split('.').collect(),
        parameter.path.split('.').collect(),
    );
    let same_end = ours.iter().rev().zip(theirs.iter().rev());
    let same_end = same_end.take_while(|(a, b)| a == b).count();
    let same_start = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    same_end > 0 && same_start + same_end + 1 >= theirs.len()
}

#[cfg(test)]
mod tests {
    use shardax_core::DType;

    use super::*;

    fn placed(path: &str, shape: &[usize]) -> Placed {
        Placed {
            path: path.to_owned(),
            ty: TensorType::new(DType::F32, shape),
            spec: PartitionSpec::replicated(shape.len()),
            is_state: false,
        }
    }

    #[test]
    fn state_has_the_shape_and_the_end_of_the_path_of_a_parameter() {
        let is_state = |ours: &str, theirs: &str| {
            is_state_of(&placed(ours, &[4, 8]), &placed(theirs, &[4, 8]))
        };
        assert!(is_state("0.moments.blocks.w1", "0.params.blocks.w1"));
        assert!(is_state("0.moments.first.blocks.w1", "0.params.blocks.w1"));
        assert!(is_state("1.w1", "0.w1"));
        assert!(!is_state("0.params.blocks.w2", "0.params.blocks.w1"));
        assert!(!is_state("1", "0"));
        assert!(!is_state_of(
            &placed("1.w1", &[8, 4]),
            &placed("0.w1", &[4, 8])
        ));
    }

    #[test]
    fn roles_need_a_use_or_an_annotation() {
        let mut moment = placed("1.any", &[4]);
        moment.is_state = true;
        let arguments = arguments(&[placed("0.w", &[4]), moment], None);
        let roles: Vec<_> = arguments.iter().map(|a| a.role).collect();
        assert_eq!(roles, [ArgumentRole::Input, ArgumentRole::State]);
    }
}
