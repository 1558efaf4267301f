//! Triangles and diagonals of matrices, which are the last two dimensions.

use std::panic::Location;

use super::argument;
use crate::dtype::DType;
use crate::error::Source;
use crate::lax;
use crate::op::{Comparison, Dims, GatherDims};
use crate::tensor::Tensor;
use crate::trace::{fail_at, method};
use crate::types::{Shape, TensorType};

impl Tensor {
    /// The lower triangle of the last two dimensions; above diagonal `diagonal` it is 0.
    #[track_caller]
    pub fn tril(self, diagonal: i64) -> Tensor {
        let source = Location::caller();
        method("tril", source, || {
            let ty = self.ty();
            let below = below("tril", &ty, diagonal, source);
            lax::select(below, self, lax::zeros(&ty))
        })
    }

    /// The upper triangle of the last two dimensions; below diagonal `diagonal` it is 0.
    #[track_caller]
    pub fn triu(self, diagonal: i64) -> Tensor {
        let source = Location::caller();
        method("triu", source, || {
            let ty = self.ty();
            let below = below("triu", &ty, diagonal.saturating_sub(1), source);
            lax::select(below, lax::zeros(&ty), self)
        })
    }

    /// A matrix of `rows` times `columns` with ones at and below diagonal `diagonal`, else zeros.
    #[track_caller]
    pub fn tri(dtype: DType, rows: usize, columns: usize, diagonal: i64) -> Tensor {
        let source = Location::caller();
        method("tri", source, || {
            let ty = TensorType::new(dtype, [rows, columns]);
            lax::convert(below("tri", &ty, diagonal, source), dtype)
        })
    }

    /// The identity matrix of size `size`.
    #[track_caller]
    pub fn eye(dtype: DType, size: usize) -> Tensor {
        method("eye", Location::caller(), || {
            let on = on_diagonal(&TensorType::new(dtype, [size, size]), 0);
            lax::convert(on, dtype)
        })
    }

    /// Diagonal `diagonal` of the last two dimensions, which is the last dimension of the result:
    /// elements `[i, i + diagonal]`.
    #[track_caller]
    pub fn diagonal(self, diagonal: i64) -> Tensor {
        let source = Location::caller();
        method("diagonal", source, || {
            let ty = self.ty();
            let (rows, columns) = matrix("diagonal", &ty, source);
            let [down, right] = offsets(diagonal);
            let length = rows.saturating_sub(down).min(columns.saturating_sub(right));
            let rank = ty.rank();
            let first = lax::iota(TensorType::new(DType::I32, [length, 2]), 0);
            let offset = Tensor::constant(&[down.min(rows) as i32, right.min(columns) as i32], [2]);
            let dims = GatherDims {
                offset: (0..rank - 2).collect(),
                collapsed: Dims::from_slice(&[rank - 2, rank - 1]),
                operand_batch: Dims::new(),
                indices_batch: Dims::new(),
                start_map: Dims::from_slice(&[rank - 2, rank - 1]),
                vectors: true,
            };
            let mut sizes = ty.shape;
            sizes[rank - 2..].fill(1);
            if length == 0 {
                let shape: Shape = sizes[..rank - 2].iter().copied().chain([0]).collect();
                return lax::zeros(&TensorType::new(ty.dtype, shape));
            }
            lax::gather(self, first + offset, dims, &sizes)
        })
    }

    /// A matrix with the last dimension on diagonal `diagonal` of the last two, else zeros: what
    /// [`Tensor::diagonal`] undoes.
    #[track_caller]
    pub fn diag(self, diagonal: i64) -> Tensor {
        let source = Location::caller();
        method("diag", source, || {
            let ty = self.ty();
            let Some((&length, batch)) = ty.shape.split_last() else {
                let problem = "a scalar is no diagonal".to_owned();
                fail_at(argument("diag", problem), None, source)
            };
            let [down, right] = offsets(diagonal);
            let size = length.saturating_add(down.max(right));
            let shape: Shape = batch.iter().copied().chain([size, size]).collect();
            let ty = TensorType::new(ty.dtype, &shape);
            // Row `i` repeats element `i - down`, and the diagonal of that is kept.
            let dim = batch.len() as isize;
            let high = (size - length - down) as isize;
            let column = self.pad(dim, down as isize, high, 0);
            let dims: Dims = (0..=batch.len()).collect();
            let rows = lax::broadcast(column, &shape, &dims);
            lax::select(on_diagonal(&ty, diagonal), rows, lax::zeros(&ty))
        })
    }
}

/// By how many rows and columns a diagonal begins after the main one.
fn offsets(diagonal: i64) -> [usize; 2] {
    [diagonal.saturating_neg(), diagonal].map(|by| usize::try_from(by).unwrap_or(0))
}

/// Row and column of each element of the last two dimensions, the row moved so that the two are
/// equal on diagonal `diagonal`.
fn positions(ty: &TensorType, diagonal: i64) -> [Tensor; 2] {
    let rank = ty.rank();
    let largest = ty.shape[rank - 2..].iter().max().copied().unwrap_or(0) as i64;
    let positions = TensorType::new(DType::I32, &ty.shape);
    // Diagonals beyond the matrix are all alike.
    let row = lax::iota(positions.clone(), rank - 2) + diagonal.clamp(-largest - 1, largest + 1);
    [row, lax::iota(positions, rank - 1)]
}

fn on_diagonal(ty: &TensorType, diagonal: i64) -> Tensor {
    let [row, column] = positions(ty, diagonal);
    lax::compare(Comparison::Eq, row, column)
}

fn below(op: &'static str, ty: &TensorType, diagonal: i64, source: Source) -> Tensor {
    matrix(op, ty, source);
    let [row, column] = positions(ty, diagonal);
    lax::compare(Comparison::Ge, row, column)
}

fn matrix(op: &'static str, ty: &TensorType, source: Source) -> (usize, usize) {
    match ty.shape.as_slice() {
        [.., rows, columns] => (*rows, *columns),
        _ => {
            let problem = format!("{ty} is no matrix");
            let help = "it takes a tensor of at least two dimensions";
            fail_at(argument(op, problem), Some(help.into()), source)
        }
    }
}
