//! What an operation is told beside its operands.

use std::sync::Arc;

use shardax_sharding::{Dim, Role};
use smallvec::SmallVec;

use super::{Dims, Reducer};
use crate::dtype::DType;

/// Which dimensions a dot pairs and contracts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DotDims {
    /// Batch dimensions of the left operand.
    pub lhs_batch: Dims,
    /// Batch dimensions of the right operand, in the same order.
    pub rhs_batch: Dims,
    /// Contracted dimensions of the left operand.
    pub lhs_contract: Dims,
    /// Contracted dimensions of the right operand, in the same order.
    pub rhs_contract: Dims,
    /// Element type of the result, in which products are summed.
    pub result: DType,
}

impl DotDims {
    /// Dimensions of the left operand that are neither batch nor contracted, ascending.
    pub fn lhs_free(&self, rank: usize) -> Dims {
        (0..rank)
            .filter(|d| !self.lhs_batch.contains(d) && !self.lhs_contract.contains(d))
            .collect()
    }

    /// Dimensions of the right operand that are neither batch nor contracted, ascending.
    pub fn rhs_free(&self, rank: usize) -> Dims {
        (0..rank)
            .filter(|d| !self.rhs_batch.contains(d) && !self.rhs_contract.contains(d))
            .collect()
    }
}

/// How index vectors name windows of an operand: the dimension numbers of a gather, and of the
/// scatter that is its transpose.
///
/// The dimensions of the result (of the updates, for a scatter) that are not in `offset` are those
/// of the indices without the one of index vectors, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatherDims {
    /// Dimensions of the result that run over a window; ascending.
    pub offset: Dims,
    /// Dimensions of the operand of which a window has one element, and the result none; ascending.
    pub collapsed: Dims,
    /// Dimensions of the operand that go together with `indices_batch` ones; ascending, and not in
    /// the result a second time.
    pub operand_batch: Dims,
    /// The indices' dimensions that go together with those of `operand_batch`, in its order.
    pub indices_batch: Dims,
    /// The operand's dimension in which each component of an index vector is a position.
    pub start_map: Dims,
    /// Whether the last dimension of the indices runs over the components of index vectors;
    /// otherwise every index is a vector of one component.
    pub vectors: bool,
}

impl GatherDims {
    /// Whole rows along `axis` of an operand of rank `rank`, by indices of rank `indices`: the
    /// result has the dimensions of the indices in place of `axis`.
    pub fn rows(axis: usize, rank: usize, indices: usize) -> Self {
        GatherDims {
            offset: (0..axis)
                .chain(axis + indices..rank + indices - 1)
                .collect(),
            collapsed: Dims::from_elem(axis, 1),
            operand_batch: Dims::new(),
            indices_batch: Dims::new(),
            start_map: Dims::from_elem(axis, 1),
            vectors: false,
        }
    }

    /// Single elements along `axis` of an operand of rank `rank`, by indices of the same rank and of
    /// the same sizes in all other dimensions.
    pub fn along(axis: usize, rank: usize) -> Self {
        let others: Dims = (0..rank).filter(|&d| d != axis).collect();
        GatherDims {
            offset: Dims::new(),
            collapsed: Dims::from_elem(axis, 1),
            operand_batch: others.clone(),
            indices_batch: others,
            start_map: Dims::from_elem(axis, 1),
            vectors: false,
        }
    }

    /// The axis, if this is [`GatherDims::rows`].
    pub fn rows_axis(&self) -> Option<usize> {
        let axis = *self.collapsed.first()?;
        let rank = self.offset.len() + 1;
        let indices = match self.offset.get(axis) {
            Some(next) => next - axis,
            // The rows are the last dimension: any number of dimensions of indices fits.
            None => 1,
        };
        (axis < rank && *self == Self::rows(axis, rank, indices)).then_some(axis)
    }

    /// The axis, if this is [`GatherDims::along`] for an operand of rank `rank`.
    pub fn along_axis(&self, rank: usize) -> Option<usize> {
        let axis = *self.collapsed.first()?;
        (axis < rank && *self == Self::along(axis, rank)).then_some(axis)
    }
}

/// Which dimension of an operand or result of a convolution is what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvLayout {
    /// The batch; of a kernel, the features that come out.
    pub batch: usize,
    /// The features; of a kernel, those that go in.
    pub feature: usize,
    /// The dimensions that the kernel moves along.
    pub spatial: Dims,
}

/// A convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    /// Dimensions of the left operand.
    pub lhs: ConvLayout,
    /// Dimensions of the kernel.
    pub rhs: ConvLayout,
    /// Dimensions of the result.
    pub out: ConvLayout,
    /// Steps of the kernel, by spatial dimension.
    pub strides: Dims,
    /// Elements added before and after each spatial dimension; negative ones are cut off.
    pub padding: SmallVec<[(i64, i64); 2]>,
    /// Distance of the left operand's elements, by spatial dimension; 1 leaves them as they are.
    pub lhs_dilation: Dims,
    /// Distance of the kernel's elements, by spatial dimension.
    pub rhs_dilation: Dims,
    /// Groups of features that are convolved apart.
    pub feature_groups: usize,
    /// Groups of the batch that are convolved apart.
    pub batch_groups: usize,
    /// Element type of the result, in which products are summed.
    pub result: DType,
}

/// Windows over all dimensions of an operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Elements of a window, by dimension.
    pub sizes: Dims,
    /// Steps between windows.
    pub strides: Dims,
    /// Elements added before and after each dimension, which change no reduction.
    pub padding: SmallVec<[(usize, usize); 4]>,
    /// Distance of the operand's elements; 1 leaves them as they are.
    pub base_dilation: Dims,
    /// Distance of a window's elements.
    pub window_dilation: Dims,
}

/// A running reduction along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cumulative {
    /// How elements are combined.
    pub reducer: Reducer,
    /// The dimension along which it runs.
    pub dim: usize,
    /// Whether it runs from the last element to the first.
    pub reverse: bool,
}

impl Cumulative {
    /// The windows of a dimension of `size` elements that reach from the first element to each.
    pub fn window(&self, rank: usize, size: usize) -> Window {
        let ones = || Dims::from_elem(1, rank);
        let mut window = Window {
            sizes: ones(),
            strides: ones(),
            padding: SmallVec::from_elem((0, 0), rank),
            base_dilation: ones(),
            window_dilation: ones(),
        };
        window.sizes[self.dim] = size;
        window.padding[self.dim] = match self.reverse {
            false => (size - 1, 0),
            true => (0, size - 1),
        };
        window
    }
}

/// Operands put in the order of the first of them, along one dimension. The sort is stable; floats
/// are ordered with NaN last (first when descending), and -0 equals 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sort {
    /// The dimension that is sorted.
    pub dim: usize,
    /// How many of the operands are compared, the first one first.
    pub keys: usize,
    /// Whether the largest element is first.
    pub descending: bool,
}

/// A triangular system `a x = b`, or `x a = b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TriangularSolve {
    /// Whether `a` is on the left of `x`.
    pub left: bool,
    /// Whether the lower triangle of `a` is read, or the upper one.
    pub lower: bool,
    /// Whether `a` is transposed.
    pub transpose: bool,
    /// Whether the diagonal is taken as ones.
    pub unit_diagonal: bool,
}

impl TriangularSolve {
    /// `a x = b` with the lower triangle of `a`, as forward substitution solves it.
    pub const LOWER: Self = TriangularSolve {
        left: true,
        lower: true,
        transpose: false,
        unit_diagonal: false,
    };

    /// `a x = b` with the upper triangle of `a`, as back substitution solves it.
    pub const UPPER: Self = TriangularSolve {
        lower: false,
        ..Self::LOWER
    };
}

/// [`TriangularSolve::LOWER`].
impl Default for TriangularSolve {
    fn default() -> Self {
        Self::LOWER
    }
}

/// The kind of a discrete Fourier transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FftKind {
    /// Complex to complex.
    Fft,
    /// Its inverse.
    Ifft,
    /// Real to the half of the result that determines the other.
    Rfft,
    /// Its inverse.
    Irfft,
}

/// A discrete Fourier transform of the last dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fft {
    /// Which one.
    pub kind: FftKind,
    /// Sizes of the transformed dimensions on their real side.
    pub lengths: Dims,
}

/// How a value lies on the mesh, in the model's own names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constraint {
    /// A name for each dimension.
    pub dims: SmallVec<[Dim; 4]>,
    /// Which of the layout's rules apply.
    pub role: Role,
    /// Of a leaf, its path in the tree or the layer that it was taken from.
    pub leaf: Option<Arc<str>>,
    /// Whether a batch's dimension stays open, whatever `vmap` calls it: what is stated of a value that
    /// the user does not see holds for the dimensions it is stated for, and for no others.
    pub leaves_batch_open: bool,
}

/// What a value is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The name.
    pub name: Arc<str>,
    /// The dimensions that `vmap` has put into the value since it was named, first to last: where, and what annotations
    /// call them.
    pub mapped: SmallVec<[(usize, Dim); 1]>,
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Name {
            name: name.into(),
            mapped: SmallVec::new(),
        }
    }
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// That of the device which computes.
    Device,
    /// Pinned memory of the host, from which a device can read.
    Host,
}

impl Memory {
    /// The other one.
    pub const fn other(self) -> Self {
        match self {
            Memory::Device => Memory::Host,
            Memory::Host => Memory::Device,
        }
    }

    /// The name as PJRT has it.
    pub const fn name(self) -> &'static str {
        match self {
            Memory::Device => "device",
            Memory::Host => "pinned_host",
        }
    }
}
