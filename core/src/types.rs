//! Element type and shape of a tensor.

use std::fmt;

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::tree::Leaf;
use crate::varying::Varying;

/// Dimension sizes, major to minor.
pub type Shape = SmallVec<[usize; 4]>;

/// Element type and shape, printed `f32[8,64]`; inside of a manual region also the axes that the
/// value varies over, `f32[8,64]{data}`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// Dimension sizes, major to minor; empty for a scalar.
    pub shape: Shape,
    /// The manual axes over which devices may hold different values; empty outside of manual regions.
    pub varying: Varying,
}

impl Leaf for TensorType {}

/// Sizes are copied as a whole, not one by one: tracing clones types all the time.
impl Clone for TensorType {
    fn clone(&self) -> Self {
        TensorType {
            dtype: self.dtype,
            shape: Shape::from_slice(&self.shape),
            varying: self.varying,
        }
    }
}

impl TensorType {
    /// A type with these dimensions.
    pub fn new(dtype: DType, shape: impl AsRef<[usize]>) -> Self {
        let shape = SmallVec::from_slice(shape.as_ref());
        TensorType {
            dtype,
            shape,
            varying: Varying::NOTHING,
        }
    }

    /// The same type of other dimensions.
    #[must_use]
    pub fn with_shape(&self, shape: impl AsRef<[usize]>) -> Self {
        TensorType {
            varying: self.varying,
            ..Self::new(self.dtype, shape)
        }
    }

    /// The same type of values that vary over these axes.
    #[must_use]
    pub fn with_varying(&self, varying: Varying) -> Self {
        TensorType {
            varying,
            ..self.clone()
        }
    }

    /// The type of a scalar.
    pub fn scalar(dtype: DType) -> Self {
        Self::new(dtype, [])
    }

    /// Whether element type and shape are the same, whatever the values vary over.
    pub fn is_like(&self, other: &TensorType) -> bool {
        self.dtype == other.dtype && self.shape == other.shape
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements; of more than `usize` holds, the largest `usize`.
    pub fn element_count(&self) -> usize {
        // A size of 0 makes it 0 however large the others are.
        let sizes = self.shape.iter();
        sizes.fold(1, |count, &size| count.saturating_mul(size))
    }

    /// Bytes in host memory.
    pub fn host_bytes(&self) -> usize {
        self.element_count().saturating_mul(self.dtype.host_bytes())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, size) in self.shape.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{size}")?;
        }
        f.write_str("]")?;
        match self.varying.is_empty() {
            true => Ok(()),
            false => write!(f, "{}", self.varying),
        }
    }
}
