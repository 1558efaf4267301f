//! [`Sharding`]: a spec on a mesh, which says where every element of an array lies.

use std::fmt;

use shardax_core::TensorType;
use shardax_sharding::{Blocks, Mesh, PartitionSpec};

use crate::error::{Error, Result};

/// How an array lies on the devices of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sharding {
    mesh: Mesh,
    spec: PartitionSpec,
}

impl Sharding {
    /// `spec` on `mesh`. What the spec leaves open to a partitioner is closed: an array lies somewhere.
    pub fn new(mesh: Mesh, spec: PartitionSpec) -> Self {
        let spec = spec.closed();
        Sharding { mesh, spec }
    }

    /// Whole on every device of `mesh`, for an array of this rank.
    pub fn replicated(mesh: Mesh, rank: usize) -> Self {
        Sharding::new(mesh, PartitionSpec::replicated(rank))
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Which axes split which dimension.
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    /// The blocks that an array of this type is cut into.
    ///
    /// # Errors
    ///
    /// [`Error::Layout`] when the spec does not fit the array: another number of dimensions, a
    /// dimension that its axes do not divide, an axis that the mesh does not have.
    pub fn blocks(&self, ty: &TensorType) -> Result<Blocks> {
        Blocks::new(&self.spec, &self.mesh, &ty.shape)
            .map_err(|faults| Error::misfit(format!("array {ty}"), faults))
    }
}

/// `P("data", _) on data=2 x model=4`
impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.spec, self.mesh)
    }
}
