//! Programs that take the place of one equation where devices split the dimension that it works along.
//!
//! A backend asks for them when it knows how values lie, which a program that is being traced does not
//! know of all of them.

use crate::blocks::{Blocks, Scanned, each};
use crate::graph::{Equation, Graph};
use crate::lax;
use crate::op::Cumulative;
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

fn in_place_of(equation: &Equation, f: impl FnOnce() -> Vec<Tensor>) -> Graph {
    let traced = with_origin(equation, || region(f));
    finished(traced.graph, &traced.result)
}
