//! Programs that take the place of one equation where devices split the dimension that it works along.
//!
//! A backend asks for them when it knows how values lie, which a program that is being traced does not
//! know of all of them.

use crate::blocks::{Blocks, Scanned, each};
use crate::dtype::DType;
use crate::graph::{Equation, Graph};
use crate::lax;
use crate::op::{Combine, Cumulative, Dims, GatherDims};
use crate::tensor::Tensor;
use crate::trace::{input, region, with_origin};
use crate::transform::finished;
use crate::types::TensorType;

/// A running reduction of values of type `ty` in so many blocks, which are scanned each by itself.
pub fn cumulative_in_blocks(
    equation: &Equation,
    cumulative: Cumulative,
    ty: &TensorType,
    count: usize,
) -> Graph {
    let Cumulative {
        reducer,
        dim,
        reverse,
    } = cumulative;
    let along = |dim| Cumulative { dim, ..cumulative };
    in_place_of(equation, || {
        let x = input(ty.clone());
        let nothing = lax::zeros(&TensorType::new(ty.dtype, [0]));
        let window = |x: Tensor, dim: usize| {
            let window = along(dim).window(x.rank(), x.shape()[dim]);
            lax::reduce_window(reducer, x, window)
        };
        let windows = |xs: &[Tensor], dims: &[usize]| each(xs, dims, window);
        let scanned = Scanned {
            combine: &|a, b| vec![lax::binary(reducer.binary(), a[0], b[0])],
            of_blocks: &windows,
            of_whole: &windows,
            of_split: &|xs, dims| each(xs, dims, |x, dim| lax::cumulative(x, along(dim))),
            identity: Some(&[lax::reduce(reducer, nothing, &[0])]),
        };
        let blocks = Blocks {
            dims: &[dim],
            reverse,
            count,
        };
        blocks.scan(&[x], &scanned)
    })
}

/// The concatenation of two operands along `dim`, each padded to the size of the result: if one of them is
/// most of it, devices tell their neighbors what these lack, and no more.
pub fn shift_by_padding(equation: &Equation, dim: usize, operands: [&TensorType; 2]) -> Graph {
    in_place_of(equation, || {
        let [first, second] = operands.map(|ty| input(ty.clone()));
        let sizes = operands.map(|ty| ty.shape[dim]);
        let zero = lax::zeros(&TensorType::scalar(operands[0].dtype));
        let first = lax::pad_dim(first, dim, [0, sizes[1]], zero);
        let second = lax::pad_dim(second, dim, [sizes[0], 0], zero);
        let place = lax::iota(TensorType::new(DType::I32, first.shape()), dim);
        vec![lax::select(place.lt(sizes[0] as i64), first, second)]
    })
}

/// A scatter of one update, as one of two updates of which the second is dropped; `None` of a scatter
/// of none or several. `types` are those of the operands.
pub fn scatter_of_two(
    equation: &Equation,
    (dims, combine): (&GatherDims, Combine),
    types: [&TensorType; 3],
) -> Option<Graph> {
    let [table, indices, updates] = types;
    let components = dims.start_map.len();
    if indices.element_count() != components || updates.element_count() == 0 {
        return None;
    }
    // A batch of size 1 is a dimension that is written at 0.
    let batches = dims.operand_batch.iter();
    let mut collapsed: Dims = dims.collapsed.iter().chain(batches).copied().collect();
    collapsed.sort_unstable();
    let window = dims.offset.iter().map(|&d| updates.shape[d]);
    let update: Dims = [1].into_iter().chain(window).collect();
    let pair = GatherDims {
        offset: (1..update.len()).collect(),
        collapsed,
        operand_batch: Dims::new(),
        indices_batch: Dims::new(),
        start_map: dims.start_map.clone(),
        vectors: true,
    };
    Some(in_place_of(equation, || {
        let [table, index, first] = [table, indices, updates].map(|ty| input(ty.clone()));
        let index = lax::reshape(lax::convert(index, DType::I64), &[1, components]);
        let outside = lax::full((-1).into(), &index.ty());
        let first = lax::reshape(first, &update);
        let indices = lax::concatenate(&[index, outside], 0);
        let updates = lax::concatenate(&[first, lax::zeros(&first.ty())], 0);
        vec![lax::scatter(table, indices, updates, pair, combine)]
    }))
}

fn in_place_of(equation: &Equation, f: impl FnOnce() -> Vec<Tensor>) -> Graph {
    let traced = with_origin(equation, || region(f));
    finished(traced.graph, &traced.result)
}
