//! Derivatives and batching of gather and scatter.

use smallvec::smallvec;

use super::batch::{Batched, all_shifted, inserted};
use super::order::segmented_product;
use super::transpose::Operand;
use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::lax;
use crate::op::{Binary, Combine, Comparison, Dims, GatherDims, Sort};
use crate::tensor::{Tensor, scaled};
use crate::trace::fail;
use crate::transform::Tangents;
use crate::types::{Shape, TensorType};

/// The derivative of a scatter other than an addition, which is linear as it stands.
pub(super) fn jvp_scatter(
    dims: &GatherDims,
    combine: Combine,
    x: &[Tensor],
    t: &[Option<Tensor>],
    y: Tensor,
) -> Option<Tensor> {
    let scatter = Scatter::new(dims, x);
    let (operand, updates) = (t[0], t[2]);
    if operand.is_none() && updates.is_none() {
        return None;
    }
    if x[2].ty().element_count() == 0 {
        return operand;
    }
    Some(match combine {
        Combine::Add => {
            let base = operand.unwrap_or_else(|| lax::zeros(&x[0].ty()));
            updates.map_or(base, |t| scatter.add(base, t))
        }
        Combine::Set => {
            let base = match operand {
                Some(t) => scatter.emit(t, lax::zeros(&x[2].ty()), Combine::Set),
                None => lax::zeros(&x[0].ty()),
            };
            updates.map_or(base, |t| scatter.add(base, scatter.winners(t)))
        }
        Combine::Mul => {
            let of_operand = operand.map(|t| scatter.emit(t, x[2], Combine::Mul));
            let of_updates = updates.map(|t| {
                let others = scatter.products_of_others(x[2]);
                let sum = scatter.add(lax::zeros(&x[0].ty()), scaled(t, others));
                scaled(x[0], sum)
            });
            match (of_operand, of_updates) {
                (Some(a), Some(b)) => lax::add(a, b),
                (one, other) => one.or(other)?,
            }
        }
        Combine::Max | Combine::Min => scatter.extremum(x, [operand, updates], y),
    })
}

/// A scatter's indices, and what they mean.
struct Scatter<'a> {
    dims: &'a GatherDims,
    operand: Shape,
    indices: Tensor,
    updates: Shape,
}

impl<'a> Scatter<'a> {
    fn new(dims: &'a GatherDims, x: &[Tensor]) -> Self {
        Scatter {
            dims,
            operand: x[0].ty().shape,
            indices: x[1],
            updates: x[2].ty().shape,
        }
    }

    fn emit(&self, x: Tensor, updates: Tensor, combine: Combine) -> Tensor {
        lax::scatter(x, self.indices, updates, self.dims.clone(), combine)
    }

    fn add(&self, x: Tensor, updates: Tensor) -> Tensor {
        self.emit(x, updates, Combine::Add)
    }

    /// For each update, the element of `x` where it goes.
    fn read(&self, x: Tensor) -> Tensor {
        let mut window = self.dims.offset.iter().map(|&d| self.updates[d]);
        let sizes: Dims = (0..self.operand.len())
            .map(|d| match self.dims.collapsed.contains(&d) {
                false if !self.dims.operand_batch.contains(&d) => window.next().unwrap_or(1),
                _ => 1,
            })
            .collect();
        lax::gather(x, self.indices, self.dims.clone(), &sizes)
    }

    /// Of updates of the same element, the one that a scatter writes last; 0 for the others. Which
    /// one that is, is learned by scattering positions in the same way.
    fn winners(&self, updates: Tensor) -> Tensor {
        let positions = numbered(&self.updates);
        let none = lax::full(
            (-1).into(),
            &TensorType::new(positions.dtype(), &self.operand),
        );
        let written = self.emit(none, positions, Combine::Set);
        let won = lax::compare(Comparison::Eq, self.read(written), positions);
        lax::select(won, updates, lax::zeros(&updates.ty()))
    }

    /// For each update, the product of all other updates of the same element. No division: updates
    /// of 0 have their derivative too, and that one its own.
    fn products_of_others(&self, updates: Tensor) -> Tensor {
        let count: usize = self.updates.iter().product();
        let flat = |x: Tensor| lax::reshape(x, &[count]);
        let element = flat(self.read(numbered(&self.operand)));
        let sort = Sort {
            dim: 0,
            keys: 1,
            descending: false,
        };
        let sorted = lax::sort(&[element, numbered(&[count])], sort);
        let (element, order) = (sorted[0], sorted[1]);
        let updates = lax::take(flat(updates), order, 0);
        let before = segmented_product(element, updates, false);
        let after = segmented_product(element, updates, true);
        let back = lax::sort(&[order, numbered(&[count])], sort)[1];
        lax::reshape(lax::take(lax::mul(before, after), back, 0), &self.updates)
    }

    /// The mean of the tangents of whatever equals the extremum.
    fn extremum(&self, x: &[Tensor], t: [Option<Tensor>; 2], y: Tensor) -> Tensor {
        let dtype = y.dtype();
        let wide = dtype.accumulator();
        let equal = |x: Tensor, y: Tensor| lax::convert(lax::compare(Comparison::Eq, x, y), wide);
        let attained = [equal(x[0], y), equal(x[2], self.read(y))];
        let count = self.add(attained[0], attained[1]);
        // Where nothing equals a NaN, there is one in the operands.
        let masked = |t: Option<Tensor>, mask: Tensor| match t {
            Some(t) => scaled(lax::convert(t, wide), mask),
            None => lax::zeros(&mask.ty()),
        };
        let total = self.add(masked(t[0], attained[0]), masked(t[1], attained[1]));
        lax::convert(lax::binary(Binary::Div, total, count), dtype)
    }
}

/// 0, 1, 2, ... in row-major order.
fn numbered(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let dtype = match i32::try_from(count) {
        Ok(_) => DType::I32,
        Err(_) => DType::I64,
    };
    lax::reshape(lax::iota(TensorType::new(dtype, [count]), 0), shape)
}

/// Addition is linear in operand and updates, setting too, and multiplication in the operand.
pub(super) fn transpose_scatter(
    dims: &GatherDims,
    combine: Combine,
    operands: &[Operand],
    ct: Tensor,
) -> Tangents {
    let x = [operands[0].tensor, operands[1].tensor, operands[2].tensor];
    let scatter = Scatter::new(dims, &x);
    let of_operand = |ct: Tensor| match combine {
        Combine::Add => ct,
        Combine::Set => scatter.emit(ct, lax::zeros(&x[2].ty()), Combine::Set),
        Combine::Mul if !operands[2].linear => scatter.emit(ct, x[2], Combine::Mul),
        Combine::Mul | Combine::Max | Combine::Min => not_linear(combine),
    };
    let of_updates = |ct: Tensor| match combine {
        Combine::Add => scatter.read(ct),
        Combine::Set => scatter.winners(scatter.read(ct)),
        Combine::Mul | Combine::Max | Combine::Min => not_linear(combine),
    };
    smallvec![
        operands[0].linear.then(|| of_operand(ct)),
        None,
        operands[2].linear.then(|| of_updates(ct)),
    ]
}

fn not_linear(combine: Combine) -> ! {
    let kind = ErrorKind::Derivative {
        op: combine.name(),
        problem: "is not linear where its derivative should be".into(),
    };
    fail(kind, None)
}

pub(super) fn batch_gather(
    dims: &GatherDims,
    sizes: &[usize],
    operands: &[Batched],
    size: usize,
) -> Batched {
    let [x, indices] = [operands[0], before_components(dims, operands[1], size)];
    let (batched, at) = with_batch(dims, x.dim, indices.dim, index_rank(dims, indices));
    let sizes = match (x.dim, indices.dim) {
        (Some(d), Some(_)) => inserted(sizes, d, 1),
        (Some(d), None) => inserted(sizes, d, size),
        (None, _) => Dims::from_slice(sizes),
    };
    let result = lax::gather(x.tensor, indices.tensor, batched, &sizes);
    Batched::new(result, at)
}

pub(super) fn batch_scatter(
    dims: &GatherDims,
    combine: Combine,
    operands: &[Batched],
    size: usize,
) -> Batched {
    let indices = before_components(dims, operands[1], size);
    let d = operands[0].dim.unwrap_or(0);
    let (batched, at) = with_batch(dims, Some(d), indices.dim, index_rank(dims, indices));
    let x = operands[0].at(d, size);
    let updates = operands[2].at(at, size);
    let result = lax::scatter(x, indices.tensor, updates, batched, combine);
    Batched::new(result, d)
}

/// Indices whose last dimension is still that of the components, if they have one.
fn before_components(dims: &GatherDims, indices: Batched, size: usize) -> Batched {
    match indices.dim {
        Some(i) if dims.vectors && i + 1 == indices.tensor.ty().rank() => {
            Batched::new(indices.at(0, size), 0)
        }
        _ => indices,
    }
}

fn index_rank(dims: &GatherDims, indices: Batched) -> usize {
    let left_out = usize::from(dims.vectors) + usize::from(indices.dim.is_some());
    indices.tensor.ty().rank() - left_out
}

/// Dimension numbers with a batch dimension of the operand, of the indices or of both, and where
/// the result has it. The batch of an operand alone is a part of every window. `index_rank` is the
/// number of dimensions of the indices, without those of the components and of the batch.
fn with_batch(
    dims: &GatherDims,
    operand: Option<usize>,
    indices: Option<usize>,
    index_rank: usize,
) -> (GatherDims, usize) {
    let moved = |of: &Dims, by: Option<usize>| match by {
        Some(d) => all_shifted(of, d),
        None => of.clone(),
    };
    let mut batched = GatherDims {
        offset: Dims::new(),
        collapsed: moved(&dims.collapsed, operand),
        operand_batch: moved(&dims.operand_batch, operand),
        indices_batch: moved(&dims.indices_batch, indices),
        start_map: moved(&dims.start_map, operand),
        vectors: dims.vectors,
    };
    // Where whole rows are named, the batch keeps its place before or after the row.
    let row = batched.collapsed.first().copied();
    let at = match (operand, indices) {
        (Some(d), None) => {
            let left_out = dims.collapsed.iter().chain(&dims.operand_batch);
            let window = d - left_out.filter(|&&other| other < d).count();
            match row {
                Some(row) if row < d => match dims.offset.get(window) {
                    Some(&next) => next,
                    None => dims.offset.len() + index_rank,
                },
                _ => after(&dims.offset, window),
            }
        }
        (_, Some(0)) if index_rank == 0 => after(&dims.offset, row.unwrap_or(0)),
        (_, Some(i)) => {
            // The dimensions of the indices fill the places that those of windows leave.
            let rank = dims.offset.len() + index_rank;
            let places: Dims = (0..rank).filter(|d| !dims.offset.contains(d)).collect();
            match i {
                0 => places[0],
                _ => after(&places, i),
            }
        }
        (None, None) => 0,
    };
    batched.offset = all_shifted(&dims.offset, at);
    match (operand, indices) {
        (Some(_), None) => {
            let place = batched.offset.iter().filter(|&&o| o < at).count();
            batched.offset.insert(place, at);
        }
        (Some(d), Some(i)) => {
            let place = batched.operand_batch.iter().filter(|&&b| b < d).count();
            batched.operand_batch.insert(place, d);
            batched.indices_batch.insert(place, i);
        }
        (None, _) => {}
    }
    (batched, at)
}

/// The place right after the first `count` of these ascending ones.
fn after(places: &[usize], count: usize) -> usize {
    match count.min(places.len()) {
        0 => 0,
        count => places[count - 1] + 1,
    }
}
