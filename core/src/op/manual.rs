//! Manual regions, and what devices tell each other in them.

use std::sync::Arc;

use shardax_sharding::{PartitionSpec, interned};

use super::Dims;
use crate::graph::Graph;
use crate::types::TensorType;
use crate::varying::Varying;

/// A mesh axis that a region takes into its own hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ManualAxis {
    name: &'static str,
    size: usize,
}

impl ManualAxis {
    /// An axis of this name with `size` devices.
    pub fn new(name: &str, size: usize) -> Self {
        ManualAxis {
            name: interned(name),
            size,
        }
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The number of devices along it.
    pub fn size(self) -> usize {
        self.size
    }
}

/// `body`, computed by every device for itself on its own block of the operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Manual {
    /// From blocks of the operands to blocks of the results.
    pub body: Arc<Graph>,
    /// The axes along which devices compute for themselves; the compiler goes on splitting over others.
    pub axes: Vec<ManualAxis>,
    /// How each operand is cut into blocks, an entry for each dimension.
    pub inputs: Vec<PartitionSpec>,
    /// How each result is put together from blocks, an entry for each dimension.
    pub outputs: Vec<PartitionSpec>,
}

impl Manual {
    /// The axes as a set.
    pub fn names(&self) -> Varying {
        Varying::new(self.axes.iter().map(|axis| axis.name))
    }

    /// The axes that a spec names, as a set.
    pub fn named_by(spec: &PartitionSpec) -> Varying {
        let entries = spec.entries().iter();
        Varying::new(entries.flat_map(|entry| entry.names().iter().map(String::as_str)))
    }

    /// The block of a value of this type that a device has.
    pub(crate) fn block(&self, ty: &TensorType, spec: &PartitionSpec) -> TensorType {
        let counts = self.blocks(spec);
        let sizes = ty.shape.iter().zip(&counts);
        let shape: Vec<usize> = sizes.map(|(size, count)| size / count).collect();
        let varying = ty.varying.union(Manual::named_by(spec));
        ty.with_shape(shape).with_varying(varying)
    }

    /// How many blocks there are along each dimension.
    pub fn blocks(&self, spec: &PartitionSpec) -> Dims {
        let size = |name: &String| {
            let axis = self.axes.iter().find(|axis| axis.name == name);
            axis.map_or(1, |axis| axis.size)
        };
        let entries = spec.entries().iter();
        entries
            .map(|entry| entry.names().iter().map(size).product())
            .collect()
    }
}

/// Something that devices of a manual region tell each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collective {
    /// What is done.
    pub kind: CollectiveOp,
    /// The axes along which they do, major first.
    pub axes: Vec<ManualAxis>,
}

impl Collective {
    /// The number of devices that take part together.
    pub fn size(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// The axes as a set.
    pub fn names(&self) -> Varying {
        Varying::new(self.axes.iter().map(|axis| axis.name))
    }

    /// The same axes, for another purpose.
    pub fn with(&self, kind: CollectiveOp) -> Self {
        Collective {
            kind,
            axes: self.axes.clone(),
        }
    }
}

/// What a [`Collective`] does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveOp {
    /// The sum of every device's value, on every device.
    Psum,
    /// The largest of every device's value, on every device.
    Pmax,
    /// The smallest of every device's value, on every device.
    Pmin,
    /// Every device's value, joined along a dimension in the order of the devices.
    AllGather {
        /// The dimension.
        dim: usize,
        /// Whether the type says that the result is the same on every device.
        invariant: bool,
    },
    /// The device's own part, along a dimension, of the sum of every device's value.
    ReduceScatter(usize),
    /// Cuts along `split`, gives a piece to each device, and joins what it is given along `join`.
    AllToAll {
        /// Where it is cut.
        split: usize,
        /// Where it is joined.
        join: usize,
    },
    /// Sends values from device to device, `(from, to)`; who is sent nothing has zeros.
    Ppermute(Vec<(usize, usize)>),
    /// The position of the device among those that take part.
    AxisIndex,
    /// The value, as one of which devices may hold different versions. Nothing is sent.
    Vary,
    /// The value, as one that devices hold in common: the program's word that they do. Nothing is sent.
    AssumeInvariant,
}

impl CollectiveOp {
    /// The name that is printed in a graph.
    pub fn name(&self) -> &'static str {
        match self {
            CollectiveOp::Psum => "psum",
            CollectiveOp::Pmax => "pmax",
            CollectiveOp::Pmin => "pmin",
            CollectiveOp::AllGather {
                invariant: false, ..
            } => "all_gather",
            CollectiveOp::AllGather {
                invariant: true, ..
            } => "all_gather_invariant",
            CollectiveOp::ReduceScatter(_) => "reduce_scatter",
            CollectiveOp::AllToAll { .. } => "all_to_all",
            CollectiveOp::Ppermute(_) => "ppermute",
            CollectiveOp::AxisIndex => "axis_index",
            CollectiveOp::Vary => "vary",
            CollectiveOp::AssumeInvariant => "assume_invariant",
        }
    }

    /// Whether it is linear in its operand.
    pub fn is_linear(&self) -> bool {
        !matches!(
            self,
            CollectiveOp::Pmax | CollectiveOp::Pmin | CollectiveOp::AxisIndex
        )
    }

    /// Whether devices wait for each other in it.
    pub fn communicates(&self) -> bool {
        !matches!(
            self,
            CollectiveOp::AxisIndex | CollectiveOp::Vary | CollectiveOp::AssumeInvariant
        )
    }
}
