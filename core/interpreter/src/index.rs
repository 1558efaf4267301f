//! Reading and writing by index.

use shardax_core::{
    Combine, TensorType,
    ir::{Binary, GatherDims},
};

use super::{Array, binary, fit, indices, int, offset};

/// Where the window begins, and how far into it element `i` of the result or the updates is, both
/// by dimension of an operand of rank `rank`.
fn place(dims: &GatherDims, rank: usize, by: &Array, i: &[usize]) -> (Vec<i64>, Vec<usize>) {
    let vector: Vec<usize> = (0..i.len())
        .filter(|d| !dims.offset.contains(d))
        .map(|d| i[d])
        .collect();
    let (mut start, mut inside) = (vec![0; rank], vec![0; rank]);
    for (&d, &b) in dims.operand_batch.iter().zip(&dims.indices_batch) {
        start[d] = vector[b] as i64;
    }
    for (component, &d) in dims.start_map.iter().enumerate() {
        let component = if dims.vectors {
            vec![component]
        } else {
            vec![]
        };
        start[d] = int(by.at(&[vector.clone(), component].concat()));
    }
    let windowed =
        (0..rank).filter(|d| !dims.collapsed.contains(d) && !dims.operand_batch.contains(d));
    for (d, &o) in windowed.zip(&dims.offset) {
        inside[d] = i[o];
    }
    (start, inside)
}

/// Windows that begin outside are moved so that they fit.
pub(super) fn gather(
    dims: &GatherDims,
    sizes: &[usize],
    ty: TensorType,
    x: &Array,
    by: &Array,
) -> Array {
    let shape = &x.ty.shape;
    Array::from_fn(ty, |i| {
        let (start, inside) = place(dims, shape.len(), by, i);
        let index: Vec<usize> = (0..shape.len())
            .map(|d| start[d].clamp(0, (shape[d] - sizes[d]) as i64) as usize + inside[d])
            .collect();
        x.at(&index)
    })
}

/// Updates outside are left out.
pub(super) fn scatter(dims: &GatherDims, combine: Combine, x: &[Array]) -> Array {
    let mut result = x[0].clone();
    let (shape, dtype) = (&x[0].ty.shape, x[0].ty.dtype);
    for i in indices(&x[2].ty.shape) {
        let (start, inside) = place(dims, shape.len(), &x[1], &i);
        let index: Option<Vec<usize>> = (0..shape.len())
            .map(|d| usize::try_from(start[d]).ok().map(|s| s + inside[d]))
            .zip(shape)
            .map(|(i, &size)| i.filter(|&i| i < size))
            .collect();
        let Some(index) = index else { continue };
        let (slot, update) = (&mut result.data[offset(&index, shape)], x[2].at(&i));
        let op = match combine {
            Combine::Set => {
                *slot = update;
                continue;
            }
            Combine::Add => Binary::Add,
            Combine::Mul => Binary::Mul,
            Combine::Max => Binary::Max,
            Combine::Min => Binary::Min,
        };
        *slot = fit(binary(op, *slot, update, dtype), dtype);
    }
    result
}
