//! What selects, moves, joins, orders or looks up elements.

use shardax::prelude::*;
use shardax::{Combine, ir::GatherDims, sort_by_key, stack};

use crate::golden::Params;

pub(super) fn apply(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let one = shape(op, params, x[0])
        .or_else(|| window(op, params, x))
        .or_else(|| select(op, params, x))
        .or_else(|| order(op, params, x));
    one.map(|result| vec![result])
        .or_else(|| several(op, params, x))
}

fn shape(op: &str, params: &Params, x: Tensor) -> Option<Tensor> {
    let axis = || params.axis("axis");
    Some(match op {
        "transpose" => x.transpose(params.sizes("permutation")),
        "reshape" => x.reshape(params.sizes("shape")),
        "broadcast" => x.broadcast_to(params.sizes("shape")),
        "reverse" => x.reverse(params.axes("axes")),
        "roll" => x.roll(params.axis("shift"), axis()),
        "tile" => x.tile(params.sizes("counts")),
        "repeat" => x.repeat(params.size("count"), axis()),
        "moveaxis" => x.moveaxis(params.axis("from"), params.axis("to")),
        "diagonal" => x.diagonal(params.int("diagonal")),
        "diag" => x.diag(params.int("diagonal")),
        "linspace_add" => Tensor::linspace(x.dtype(), -1.0, 2.0, params.size("count")) + x,
        "tril" => x.tril(params.int("diagonal")),
        "triu" => x.triu(params.int("diagonal")),
        "expand_dims" => x.expand_dims(axis()),
        "squeeze" => x.squeeze(axis()),
        "swap_axes" => x.swap_axes(params.axis("a"), params.axis("b")),
        "iota_add" => Tensor::iota(x.dtype(), params.sizes("shape"), axis()) + x,
        "index" => x.index(axis(), params.size("index")),
        "one_hot" => x.one_hot(params.size("classes"), params.dtype("to")),
        _ => return None,
    })
}

fn window(op: &str, params: &Params, x: &[Tensor]) -> Option<Tensor> {
    Some(match op {
        "slice" => slice(params, x[0]),
        "pad" => pad(params, x[0], x[1]),
        "dynamic_slice" => dynamic_slice(x[0], x[1], &params.sizes("sizes")),
        "dynamic_update" => dynamic_update(x[0], x[1], x[2]),
        "concatenate" => concatenate(x, params.axis("axis")),
        "stack" => stack(x, params.axis("axis")),
        _ => return None,
    })
}

fn slice(params: &Params, x: Tensor) -> Tensor {
    let [starts, limits, strides] = ["starts", "limits", "strides"].map(|name| params.sizes(name));
    (0..x.rank()).fold(x, |x, d| {
        let part = x.slice(d as isize, starts[d]..limits[d]);
        part.step_by(d as isize, strides[d])
    })
}

fn pad(params: &Params, x: Tensor, value: Tensor) -> Tensor {
    let dims = params.groups::<3>("config").into_iter().enumerate();
    dims.fold(x, |x, (d, [low, high, interior])| {
        let spread = x.dilate(d as isize, interior as usize, value);
        spread.pad(d as isize, low as isize, high as isize, value)
    })
}

fn starts(of: Tensor) -> Vec<Tensor> {
    (0..of.size(0)).map(|d| of.index(0, d)).collect()
}

fn dynamic_slice(x: Tensor, at: Tensor, sizes: &[usize]) -> Tensor {
    let dims = starts(at).into_iter().zip(sizes).enumerate();
    dims.fold(x, |x, (d, (start, &size))| {
        x.dynamic_slice(d as isize, start, size)
    })
}

/// Dimension by dimension: the window of the others is read, updated and put back.
fn dynamic_update(x: Tensor, update: Tensor, at: Tensor) -> Tensor {
    fn within(x: Tensor, update: Tensor, starts: &[Tensor], dim: usize) -> Tensor {
        let (axis, start) = (dim as isize, starts[dim]);
        if dim + 1 == starts.len() {
            return x.dynamic_update(axis, start, update);
        }
        let window = x.dynamic_slice(axis, start, update.size(axis));
        x.dynamic_update(axis, start, within(window, update, starts, dim + 1))
    }
    within(x, update, &starts(at), 0)
}

fn select(op: &str, params: &Params, x: &[Tensor]) -> Option<Tensor> {
    let axis = || params.axis("axis");
    Some(match op {
        "take" => x[0].take(x[1], axis()),
        "take_along" => x[0].take_along(x[1], axis()),
        "put_along" => x[0].put_along(x[2].argsort(axis()), x[1], axis()),
        "scatter_set" => x[0].scatter(different(x[2], x[0].size(axis())), x[1], axis()),
        "scatter_add" => x[0].scatter_add(x[2], x[1], axis()),
        "scatter_mul" => x[0].scatter_mul(x[2], x[1], axis()),
        "scatter_min" => x[0].scatter_min(x[2], x[1], axis()),
        "scatter_max" => x[0].scatter_max(x[2], x[1], axis()),
        "scatter_min_values" => x[0].scatter_min(x[2], x[1], 0),
        "scatter_max_values" => x[0].scatter_max(x[2], x[1], 0),
        "gather" => gather(params, x[0], x[1]),
        "gather_nd" => x[0].gather_nd(x[1]),
        "scatter_nd_add" => x[0].scatter_nd(x[2], x[1], Combine::Add),
        "scatter_nd_set" => x[0].scatter_nd(x[2], x[1], Combine::Set),
        _ => return None,
    })
}

fn gather(params: &Params, x: Tensor, indices: Tensor) -> Tensor {
    let dims = |name| params.sizes(name).into_iter().collect();
    let dims = GatherDims {
        offset: dims("offset"),
        collapsed: dims("collapsed"),
        start_map: dims("start_map"),
        operand_batch: dims("operand_batch"),
        indices_batch: dims("indices_batch"),
        vectors: true,
    };
    x.gather(indices, &dims, params.sizes("sizes"))
}

/// Positions one after another from the first index, modulo `size`.
fn different(indices: Tensor, size: usize) -> Tensor {
    let count = Tensor::arange(DType::I32, indices.size(0));
    (indices.index(0, 0) + count) % (size as i32)
}

fn order(op: &str, params: &Params, x: &[Tensor]) -> Option<Tensor> {
    let axis = || params.axis("axis");
    let descending = params.flag("descending");
    Some(match op {
        "sort" if descending => x[0].sort_descending(axis()),
        "sort" => x[0].sort(axis()),
        "argsort" if descending => x[0].argsort_descending(axis()),
        "argsort" => x[0].argsort(axis()),
        "searchsorted" if params.text("side") == "right" => x[0].sort(0).searchsorted_right(x[1]),
        "searchsorted" => x[0].sort(0).searchsorted(x[1]),
        _ => return None,
    })
}

fn several(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    Some(match op {
        "split" => x[0].split(params.sizes("sizes"), params.axis("axis")),
        "top_k" => <[Tensor; 2]>::from(x[0].top_k(params.size("k"))).to_vec(),
        "sort_many" => sort_by_key(x, params.size("keys"), params.axis("axis")),
        "unique" => vec![x[0].unique(params.size("size"), params.int("fill")).values],
        _ => return None,
    })
}
