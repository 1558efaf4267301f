//! Reading by computed indices.

use std::panic::Location;

use shardax_sharding::Dim;

use super::{Checked, argument, checked, fill, inside};
use crate::dtype::DType;
use crate::error::Source;
use crate::lax;
use crate::op::{Dims, GatherDims};
use crate::tensor::Tensor;
use crate::tensor::shape::{axis_at, broadcast_shapes};
use crate::trace::{fail_at, method};
use crate::types::{Shape, TensorType};

impl Tensor {
    /// Rows by index: along `axis` the elements that `indices` name, in the shape of `indices`.
    ///
    /// An index outside of the dimension, a negative one too, gives NaN (the smallest value, for
    /// integers), never another row, and no gradient.
    #[track_caller]
    pub fn take(self, indices: Tensor, axis: isize) -> Tensor {
        let source = Location::caller();
        method("take", source, || {
            let ty = self.ty();
            let dim = axis_at("take", axis, &ty, source);
            Rows::new("take", &ty, &[dim], &[indices], dim, source).read(self)
        })
    }

    /// One element along `axis` for each index; `indices` has this tensor's shape in all other
    /// dimensions. Indices outside give NaN as in [`Tensor::take`].
    #[track_caller]
    pub fn take_along(self, indices: Tensor, axis: isize) -> Tensor {
        let source = Location::caller();
        method("take_along", source, || {
            let ty = self.ty();
            let dim = axis_at("take_along", axis, &ty, source);
            let index = along("take_along", indices, &ty, dim, source);
            let wanted = TensorType::new(ty.dtype, indices.shape());
            if wanted.element_count() == 0 {
                return lax::zeros(&wanted);
            }
            let dims: Dims = (0..ty.rank()).collect();
            fill(lax::take_along(self, index.inside, dim), index.valid, &dims)
        })
    }

    /// Elements by index vectors: the last dimension of `indices`, of size `n`, names positions in
    /// the first `n` dimensions. The result has the other dimensions of the indices, then those of
    /// this tensor after the first `n`. Indices outside give NaN as in [`Tensor::take`].
    #[track_caller]
    pub fn gather_nd(self, indices: Tensor) -> Tensor {
        let source = Location::caller();
        method("gather_nd", source, || {
            let ty = self.ty();
            let (dims, indices) = components("gather_nd", indices, &ty, source);
            Rows::new("gather_nd", &ty, &dims, &indices, 0, source).read(self)
        })
    }

    /// Windows of `sizes` elements, by dimension, at positions that `indices` name, in the general
    /// form of XLA's gather. A window that begins outside is moved so that it fits.
    #[track_caller]
    pub fn gather(self, indices: Tensor, dims: &GatherDims, sizes: impl AsRef<[usize]>) -> Tensor {
        let source = Location::caller();
        method("gather", source, || {
            let (ty, index_ty, sizes) = (self.ty(), indices.ty(), sizes.as_ref());
            let fits = sizes.len() == ty.rank()
                && dims
                    .start_map
                    .iter()
                    .all(|&d| d < ty.rank() && sizes[d] <= ty.shape[d])
                && index_ty.dtype.is_integer();
            if !fits {
                let problem = format!("windows of {sizes:?} of {ty}, by indices {index_ty}");
                let help =
                    "there is a size for each dimension, at most its own; indices are integers";
                fail_at(argument("gather", problem), Some(help.into()), source)
            }
            let indices = match dims.vectors {
                // All components at once, against a limit for each.
                true => {
                    let last: Vec<i64> = dims
                        .start_map
                        .iter()
                        .map(|&d| (ty.shape[d] - sizes[d]) as i64)
                        .collect();
                    let wide = lax::convert(indices, DType::I64);
                    let last = Tensor::constant(&last, [last.len()]);
                    let within = wide.maximum(0).minimum(last);
                    let fits_i32 = ty.shape.iter().all(|&size| size <= i32::MAX as usize);
                    lax::convert(within, if fits_i32 { DType::I32 } else { DType::I64 })
                }
                false => dims.start_map.iter().fold(indices, |indices, &d| {
                    inside(indices, index_ty.dtype, ty.shape[d] - sizes[d])
                }),
            };
            lax::gather(self, indices, dims.clone(), sizes)
        })
    }

    /// 1 where an index equals the position along a new last dimension of size `classes`, else 0: of
    /// an index outside, a negative one too, all are 0.
    #[track_caller]
    pub fn one_hot(self, classes: usize, dtype: DType) -> Tensor {
        let source = Location::caller();
        method("one_hot", source, || {
            let ty = self.ty();
            let shape: Shape = ty.shape.iter().copied().chain([classes]).collect();
            let dims: Dims = (0..ty.rank()).collect();
            // A type that holds all positions and all indices.
            let wide = match ty.dtype {
                DType::U64 | DType::I64 | DType::U32 => ty.dtype,
                dtype if dtype.is_integer() || dtype == DType::Bool => DType::I32,
                dtype => dtype,
            };
            let positions = lax::iota(TensorType::new(wide, &shape), ty.rank());
            let index = lax::broadcast(lax::convert(self, wide), &shape, &dims);
            lax::convert(positions.eq(index), dtype)
        })
    }
}

/// The first dimensions of `ty`, and for each the indices into it.
pub(super) fn components(
    op: &'static str,
    indices: Tensor,
    ty: &TensorType,
    source: Source,
) -> (Dims, Vec<Tensor>) {
    let index_ty = indices.ty();
    let count = index_ty.shape.last().copied();
    match count {
        Some(count) if count <= ty.rank() && count > 0 => {
            // Devices have whole index vectors: of parts, a partitioner may make positions of its own.
            let mut dims = vec![Dim::Open; index_ty.rank()];
            if let Some(last) = dims.last_mut() {
                *last = Dim::Unsharded;
            }
            let indices = match count {
                1 => indices,
                _ => indices.shard(&dims),
            };
            let component = |c| indices.index(-1, c);
            ((0..count).collect(), (0..count).map(component).collect())
        }
        _ => {
            let problem = format!("index vectors {index_ty} into {ty}");
            let help = format!(
                "the last dimension of the indices has 1 to {} components",
                ty.rank()
            );
            fail_at(argument(op, problem), Some(help), source)
        }
    }
}

/// Indices of single elements along a dimension.
pub(super) fn along(
    op: &'static str,
    indices: Tensor,
    ty: &TensorType,
    dim: usize,
    source: Source,
) -> Checked {
    let index_ty = indices.ty();
    let mut shape = index_ty.shape.clone();
    if shape.len() == ty.rank() {
        shape[dim] = ty.shape[dim];
    }
    if shape != ty.shape {
        let problem = format!("indices {index_ty} along dimension {dim} of {ty}");
        let help = format!("they may differ in dimension {dim} alone");
        fail_at(argument(op, problem), Some(help), source)
    }
    checked(op, indices, ty, dim, source)
}

/// Whole rows that indices into several dimensions name together.
pub(super) struct Rows {
    dims: GatherDims,
    sizes: Dims,
    /// The dimensions of the result that are the indices'.
    places: Dims,
    index: Checked,
    /// The type of what is read.
    pub(super) ty: TensorType,
}

impl Rows {
    /// Into each of `dims` of `ty`, ascending, an index. The dimensions of the indices, which
    /// broadcast together, are at `at` in the result.
    pub(super) fn new(
        op: &'static str,
        ty: &TensorType,
        dims: &[usize],
        indices: &[Tensor],
        at: usize,
        source: Source,
    ) -> Self {
        let each: Vec<Checked> = dims
            .iter()
            .zip(indices)
            .map(|(&dim, &index)| checked(op, index, ty, dim, source))
            .collect();
        let types: Vec<TensorType> = each.iter().map(|c| c.raw.ty()).collect();
        let shape = broadcast_shapes(op, &types.iter().collect::<Vec<_>>(), source);
        let rank = ty.rank() - dims.len() + shape.len();
        let places: Dims = (at..at + shape.len()).collect();
        let mut sizes = Dims::from_slice(&ty.shape);
        let mut rest = Shape::new();
        for (d, size) in sizes.iter_mut().enumerate() {
            match dims.contains(&d) {
                true => *size = 1,
                false => rest.push(*size),
            }
        }
        rest.insert_many(at, shape.iter().copied());
        Rows {
            dims: GatherDims {
                offset: (0..rank).filter(|d| !places.contains(d)).collect(),
                collapsed: Dims::from_slice(dims),
                operand_batch: Dims::new(),
                indices_batch: Dims::new(),
                start_map: Dims::from_slice(dims),
                vectors: dims.len() > 1,
            },
            sizes,
            places,
            index: together(&each, &shape),
            ty: TensorType::new(ty.dtype, rest),
        }
    }

    /// The rows; NaN where an index is outside.
    pub(super) fn read(&self, x: Tensor) -> Tensor {
        if self.ty.element_count() == 0 {
            return lax::zeros(&self.ty);
        }
        let rows = lax::gather(x, self.index.inside, self.dims.clone(), &self.sizes);
        fill(rows, self.index.valid, &self.places)
    }

    /// `x` with `updates`, of type [`Rows::ty`], at these rows.
    pub(super) fn write(&self, x: Tensor, updates: Tensor, combine: super::Combine) -> Tensor {
        super::scatter::write(x, &self.index, updates, &self.dims, &self.places, combine)
    }
}

/// Index vectors of several indices.
fn together(each: &[Checked], shape: &[usize]) -> Checked {
    if let [only] = each {
        return Checked { ..*only };
    }
    // In one type that holds them all.
    let wide = match each.iter().any(|c| c.raw.dtype().bits() > 32) {
        true => DType::I64,
        false => DType::I32,
    };
    let component = |x: Tensor| {
        let same = lax::convert(x, wide).broadcast_to(shape);
        let column: Shape = shape.iter().copied().chain([1]).collect();
        lax::reshape(same, &column)
    };
    let vectors = |of: fn(&Checked) -> Tensor| {
        let columns: Vec<Tensor> = each.iter().map(|c| component(of(c))).collect();
        lax::concatenate(&columns, shape.len())
    };
    let valid = each.iter().map(|c| c.valid.broadcast_to(shape));
    Checked {
        raw: vectors(|c| c.raw),
        inside: vectors(|c| c.inside),
        valid: valid.reduce(|a, b| a & b).unwrap_or(each[0].valid),
    }
}
