//! The arrays that closures are called with and return.

use crate::element::ArrayType;
use crate::error::{Error, Result};

/// An array in host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostArray {
    ty: ArrayType,
    bytes: Vec<u8>,
}

impl HostArray {
    /// An array of this type with these bytes: the elements in row-major order, in the machine's representation.
    ///
    /// # Errors
    /// [`Error::HostSize`] for another number of bytes than the type has.
    pub fn new(ty: ArrayType, bytes: Vec<u8>) -> Result<Self> {
        let expected = ty.host_bytes()?;
        if bytes.len() != expected {
            return Err(Error::HostSize {
                operation: "making an array of a host function",
                array: ty.to_string(),
                expected,
                actual: bytes.len(),
                advice: "give all elements in row-major order",
            });
        }
        Ok(HostArray { ty, bytes })
    }

    /// Element type and dimensions.
    pub fn ty(&self) -> &ArrayType {
        &self.ty
    }

    /// The elements in row-major order, in the machine's representation.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
