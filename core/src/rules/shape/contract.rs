//! Reductions, dots, systems of equations and Fourier transforms.

use super::{Fault, Rule};
use crate::dtype::DType;
use crate::op::{Dims, DotDims, Fft, FftKind, Reducer, TriangularSolve};
use crate::types::{Shape, TensorType};

impl Rule<'_> {
    pub(super) fn reduce(&self, reducer: Reducer, dims: &Dims) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.dimensions(dims, ty.rank())?;
        self.reducible(reducer, ty)?;
        let kept = ty
            .shape
            .iter()
            .enumerate()
            .filter(|(d, _)| !dims.contains(d));
        let shape: Shape = kept.map(|(_, &size)| size).collect();
        Ok(TensorType::new(ty.dtype, shape))
    }

    pub(super) fn dot(&self, dims: &DotDims) -> Result<TensorType, Fault> {
        let (lhs, rhs) = (self.operand(0)?, self.operand(1)?);
        let lhs_dims: Dims = dims
            .lhs_batch
            .iter()
            .chain(&dims.lhs_contract)
            .copied()
            .collect();
        let rhs_dims: Dims = dims
            .rhs_batch
            .iter()
            .chain(&dims.rhs_contract)
            .copied()
            .collect();
        self.dimensions(&lhs_dims, lhs.rank())?;
        self.dimensions(&rhs_dims, rhs.rank())?;
        let mut problems = Vec::new();
        for (&l, &r) in lhs_dims.iter().zip(&rhs_dims) {
            if lhs.shape[l] != rhs.shape[r] {
                problems.push(format!(
                    "dimension {l} of the left operand {lhs} has {} elements, dimension {r} of the \
                     right operand {rhs} has {}",
                    lhs.shape[l], rhs.shape[r]
                ));
            }
        }
        if !problems.is_empty() {
            return self.shape_error(problems.join("; "));
        }
        if lhs.dtype != rhs.dtype && !(lhs.dtype.is_float() && rhs.dtype.is_float()) {
            return self.dtype_error(
                format!("element types {lhs} and {rhs} differ"),
                Some("convert one of them with `.cast(...)`".into()),
            );
        }
        let batch = dims.lhs_batch.iter().map(|&d| lhs.shape[d]);
        let lhs_free = dims.lhs_free(lhs.rank()).into_iter().map(|d| lhs.shape[d]);
        let rhs_free = dims.rhs_free(rhs.rank()).into_iter().map(|d| rhs.shape[d]);
        let shape: Shape = batch.chain(lhs_free).chain(rhs_free).collect();
        Ok(TensorType::new(dims.result, shape))
    }

    pub(super) fn cholesky(&self) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        self.matrices(ty)?;
        Ok(ty.clone())
    }

    pub(super) fn triangular_solve(&self, solve: TriangularSolve) -> Result<TensorType, Fault> {
        let (a, b) = (self.operand(0)?, self.operand(1)?);
        self.matrices(a)?;
        if a.dtype != b.dtype {
            return self.dtype_error(format!("element types {a} and {b} differ"), None);
        }
        let (batch, size) = (a.rank() - 2, a.shape[a.rank() - 1]);
        let side = if solve.left { batch } else { batch + 1 };
        let fits =
            b.rank() == a.rank() && b.shape[..batch] == a.shape[..batch] && b.shape[side] == size;
        if !fits {
            let side = if solve.left { "rows" } else { "columns" };
            return self.shape_error(format!(
                "a system of matrices {a} with right sides {b}: they want the same batch, and \
                 {size} {side}"
            ));
        }
        Ok(b.clone())
    }

    /// Whether the last two dimensions are square matrices of real floats.
    fn matrices(&self, ty: &TensorType) -> Result<(), Fault> {
        if !matches!(ty.dtype, DType::F32 | DType::F64 | DType::C64) {
            return self.dtype_error(
                format!("takes matrices of f32, f64 or c64, not {ty}"),
                Some("convert them with `.cast(DType::F32)`".into()),
            );
        }
        match ty.shape.as_slice() {
            [.., rows, columns] if rows == columns => Ok(()),
            [.., rows, columns] => self.shape_error(format!(
                "the matrices of {ty} are {rows} by {columns}, not square"
            )),
            _ => self.shape_error(format!("{ty} has no two dimensions of matrices")),
        }
    }

    pub(super) fn fft(&self, fft: &Fft) -> Result<TensorType, Fault> {
        let ty = self.operand(0)?;
        let count = fft.lengths.len();
        if count == 0 || count > 3 || count > ty.rank() {
            return self
                .argument_error(format!("transforms 1 to 3 dimensions of {ty}, not {count}"));
        }
        let complex = ty.dtype == DType::C64;
        let real = ty.dtype == DType::F32;
        let mut shape = ty.shape.clone();
        let last = ty.rank() - 1;
        let length = fft.lengths[count - 1];
        let half = length / 2 + 1;
        let (fits, seen, dtype) = match fft.kind {
            FftKind::Fft | FftKind::Ifft => (complex, length, DType::C64),
            FftKind::Rfft => (real, length, DType::C64),
            FftKind::Irfft => (complex, half, DType::F32),
        };
        if !fits {
            let wanted = if fft.kind == FftKind::Rfft {
                "f32"
            } else {
                "c64"
            };
            return self.dtype_error(format!("takes a tensor of {wanted}, not {ty}"), None);
        }
        let first = ty.rank() - count;
        if ty.shape[last] != seen || ty.shape[first..last] != fft.lengths[..count - 1] {
            return self.shape_error(format!("lengths {:?} of {ty}", fft.lengths));
        }
        shape[last] = match fft.kind {
            FftKind::Rfft => half,
            FftKind::Fft | FftKind::Ifft | FftKind::Irfft => length,
        };
        Ok(TensorType::new(dtype, shape))
    }
}
