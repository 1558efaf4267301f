//! What can be wrong with a mesh, a layout or a name, said so that it can be mended.

use std::fmt;

use crate::fault::{SpecFault, suggestion};
use crate::mesh::Mesh;
use crate::strategy::Strategy;

/// An error of this crate.
///
/// A call reports everything that is wrong with its arguments, not only the first thing.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mesh cannot be made of the axes given.
    #[error("cannot make a mesh:{}", list(faults))]
    Mesh {
        /// Everything that is wrong with them.
        faults: Vec<MeshFault>,
    },
    /// A mesh does not fit the devices.
    #[error(
        "mesh {mesh} needs {}, {}: {advice}",
        devices(mesh.device_count()),
        there_are(*available)
    )]
    DeviceCount {
        /// The mesh.
        mesh: Mesh,
        /// How many devices there are.
        available: usize,
        /// What to do about it.
        advice: String,
    },
    /// An axis is asked for that the mesh does not have.
    #[error("mesh {mesh} has no axis `{axis}`{}", suggestion(axis, mesh.axis_names()))]
    UnknownAxis {
        /// The axis asked for.
        axis: String,
        /// The mesh.
        mesh: Mesh,
    },
    /// A preset layout needs axes that the mesh does not have.
    #[error(
        "layout `{strategy}` needs a mesh axis {}, and mesh {mesh} has none of that name: {}",
        quoted(missing),
        preset_advice(missing)
    )]
    PresetAxes {
        /// The preset, or several composed.
        strategy: Strategy,
        /// The axes that are missing.
        missing: Vec<String>,
        /// The mesh.
        mesh: Mesh,
    },
    /// Rules of a layout name axes that its mesh does not have, or one axis twice.
    #[error("the layout does not fit mesh {mesh}:{}", list(faults))]
    Rules {
        /// The layout's mesh.
        mesh: Mesh,
        /// Everything that is wrong, each with the rule's name.
        faults: Vec<RuleFault>,
    },
    /// Arrays that a layout cannot place.
    #[error("arrays do not fit the layouts:{}", list(faults))]
    Arrays {
        /// Everything that is wrong, array by array.
        faults: Vec<ArrayFault>,
    },
    /// A file is not that of a layout.
    #[error("cannot read the layout:{}", list(faults))]
    File {
        /// Everything that is wrong, each with its line and key.
        faults: Vec<FileFault>,
    },
    /// Several names of a composition are none that are known.
    #[error("cannot read the layout `{text}`:{}", list(faults))]
    Strategy {
        /// The text.
        text: String,
        /// What is wrong with each.
        faults: Vec<Error>,
    },
    /// Layouts that are to be composed differ in what they say of one thing.
    #[error("layouts cannot be composed:{}", list(conflicts))]
    Compose {
        /// Everything that they differ in.
        conflicts: Vec<RuleConflict>,
    },
    /// Layouts that are to be composed are for different meshes.
    #[error("layouts cannot be composed: one is for mesh {}, the other for mesh {}", meshes.0, meshes.1)]
    ComposeMeshes {
        /// The two meshes.
        meshes: Box<(Mesh, Mesh)>,
    },
    /// A cluster cannot be as described.
    #[error("cannot describe a cluster:{}", list(faults))]
    Cluster {
        /// Everything that is wrong with the description.
        faults: Vec<ClusterFault>,
    },
    /// A text is none of the names that are known.
    #[error("unknown {what} `{name}`{}", suggestion(name, known.iter().copied()))]
    UnknownName {
        /// What was to be named, such as `layout`.
        what: &'static str,
        /// The text.
        name: String,
        /// The names that are known.
        known: &'static [&'static str],
    },
}

/// One thing that is wrong with the axes of a mesh.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshFault {
    /// An axis of size zero holds no device.
    #[error("axis `{axis}` has size 0: an axis has at least one device")]
    ZeroSize {
        /// The axis.
        axis: String,
    },
    /// Two axes have one name.
    #[error("axis `{axis}` is there more than once: give each axis a name of its own")]
    Repeated {
        /// The name.
        axis: String,
    },
    /// An axis has no name.
    #[error("axis {index} has an empty name: name it, for example `data`")]
    EmptyName {
        /// The axis's place, from 0.
        index: usize,
    },
    /// The name of an axis has characters that it must not have.
    #[error(
        "`{axis}` cannot name an axis: a name is a letter, then letters, digits, `_` or `-`, all ASCII"
    )]
    IllFormedName {
        /// The name.
        axis: String,
    },
    /// The sizes multiply to more devices than a mesh may have.
    #[error("the sizes multiply to more than {limit} devices: make the axes smaller")]
    TooManyDevices {
        /// How many devices a mesh may have.
        limit: usize,
    },
    /// A text is not `NAME=SIZE`.
    #[error("`{text}` is not NAME=SIZE: write a mesh as in `data=2,model=4`")]
    NotNameAndSize {
        /// The text.
        text: String,
    },
    /// A size is not a whole number.
    #[error("size `{size}` of axis `{axis}` is not a whole number that fits")]
    NotASize {
        /// The axis.
        axis: String,
        /// The text given as its size.
        size: String,
    },
}

/// One thing that is wrong with the description of a cluster.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterFault {
    /// A cluster of nothing.
    #[error("it has no nodes: give at least 1")]
    NoNodes,
    /// Nodes without GPUs.
    #[error("its nodes have no GPUs: give at least 1")]
    NoGpus,
    /// NVLink domains that are not whole.
    #[error("{nodes} nodes do not divide into NVLink domains of {domain}")]
    Domain {
        /// All nodes.
        nodes: usize,
        /// Nodes in a domain.
        domain: usize,
    },
    /// More devices than a mesh may have.
    #[error("it has more than {limit} devices: describe a smaller one")]
    TooManyDevices {
        /// How many devices a mesh may have.
        limit: usize,
    },
    /// A text is not `CHIP:NODESxGPUS`.
    #[error(
        "`{text}` is not CHIP:NODESxGPUS: write a cluster as in `h100:64x8`, 64 nodes of 8 GPUs; the chips are h100 \
         and h200"
    )]
    Unread {
        /// The text.
        text: String,
    },
}

/// One thing that is wrong with a rule of a layout.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule for {rule}: {fault}")]
pub struct RuleFault {
    /// What the rule is for: a logical name, or the parameters at rest.
    pub rule: String,
    /// What is wrong with the axes.
    pub fault: SpecFault,
}

/// One thing that is wrong with where a layout puts an array.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` under the {layout} layout: {fault}")]
pub struct ArrayFault {
    /// The array's path.
    pub path: String,
    /// Which of the two layouts, `first` or `second`.
    pub layout: &'static str,
    /// What is wrong.
    pub fault: SpecFault,
}

/// One thing that is wrong with a file of a layout.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}{}: {problem}", at_key(key))]
pub struct FileFault {
    /// The line, from 1.
    pub line: usize,
    /// The key, with those of the tables that it is in; empty where the text is no TOML.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

/// One thing that composed layouts differ in.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{rule} -> {} by one and {} by another: take one rule away, or write the one that you mean with \
     `Layout::shard` on one of them",
    axes[0],
    axes[1]
)]
pub struct RuleConflict {
    /// What the rules are for.
    pub rule: String,
    /// What each says.
    pub axes: [String; 2],
}

crate::debug_is_the_message!(
    Error,
    MeshFault,
    ClusterFault,
    RuleFault,
    ArrayFault,
    FileFault,
    RuleConflict,
);

/// One fault as it is, several as a list of lines; to stand after a colon.
pub(crate) fn list<T: fmt::Display>(faults: &[T]) -> String {
    match faults {
        [fault] => format!(" {fault}"),
        faults => faults
            .iter()
            .map(|fault| format!("\n  - {fault}"))
            .collect(),
    }
}

fn at_key(key: &str) -> String {
    match key {
        "" => String::new(),
        key => format!(", `{key}`"),
    }
}

fn devices(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} device{plural}")
}

fn there_are(count: usize) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{count} {verb} there")
}

fn quoted(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(" and ")
}

fn preset_advice(missing: &[String]) -> String {
    let sizes: Vec<_> = missing.iter().map(|name| format!("{name}=1")).collect();
    format!(
        "rename an axis, add `{}`, or write your own rules with `Layout::new(mesh).shard(..)`",
        sizes.join(",")
    )
}
