//! Reductions, running reductions, windows and pooling.

use shardax::prelude::*;
use shardax::{Pool, Reducer};

use crate::golden::Params;

pub(super) fn apply(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let result = reduce(op, params, x[0])
        .or_else(|| other(op, params, x))
        .or_else(|| cumulative(op, params, x[0]))
        .or_else(|| window(op, params, x[0]));
    result.map(|result| vec![result])
}

fn reduce(op: &str, params: &Params, x: Tensor) -> Option<Tensor> {
    let axes = || params.axes("axes");
    Some(match op {
        "reduce_sum" => x.sum(&axes()[..]),
        "reduce_prod" => x.prod(&axes()[..]),
        "reduce_max" => x.max(&axes()[..]),
        "reduce_min" => x.min(&axes()[..]),
        "reduce_and" => x.all(&axes()[..]),
        "reduce_or" => x.any(&axes()[..]),
        "mean" => x.mean(&axes()[..]),
        "var" => x.var(&axes()[..]),
        "count_nonzero" => x.count_nonzero(&axes()[..]),
        "std" => x.std(&axes()[..]),
        "norm" => x.norm(&axes()[..]),
        "logsumexp" => axes().into_iter().rev().fold(x, Tensor::logsumexp),
        "argmax" => x.argmax(params.axis("axis")),
        "argmin" => x.argmin(params.axis("axis")),
        _ => return None,
    })
}

fn other(op: &str, params: &Params, x: &[Tensor]) -> Option<Tensor> {
    Some(match op {
        "logsumexp_weights" => x[0].logsumexp_weighted(x[1], -1),
        "norm_p" => x[0]
            .abs()
            .pow(params.float("p"))
            .sum(-1)
            .pow(1.0 / params.float("p")),
        "quantile" => x[0].quantile(params.float("q"), params.axis("axis")),
        "median" => x[0].median(params.axis("axis")),
        "bincount" => x[0].bincount(params.size("length")),
        "histogram" => x[0].histogram(params.size("bins"), -2.0, 2.0),
        "associative_scan" => associative(params, x[0]),
        "std_ddof" => x[0].std_ddof(-1, params.size("ddof")),
        "var_ddof" => x[0].var_ddof(-1, params.size("ddof")),
        _ => return None,
    })
}

/// Of 2x2 matrix products, which do not commute.
fn associative(params: &Params, x: Tensor) -> Tensor {
    shardax::associative_scan(Tensor::matmul, x, 0, params.flag("reverse"))
}

fn cumulative(op: &str, params: &Params, x: Tensor) -> Option<Tensor> {
    let run = |forward: fn(Tensor, isize) -> Tensor, reverse: fn(Tensor, isize) -> Tensor| {
        let f = if params.flag("reverse") {
            reverse
        } else {
            forward
        };
        f(x, params.axis("axis"))
    };
    Some(match op {
        "cumsum" => run(Tensor::cumsum, Tensor::cumsum_reverse),
        "cumprod" => run(Tensor::cumprod, Tensor::cumprod_reverse),
        "cummax" => run(Tensor::cummax, Tensor::cummax_reverse),
        "cummin" => run(Tensor::cummin, Tensor::cummin_reverse),
        "cumlogsumexp" => run(Tensor::cumlogsumexp, Tensor::cumlogsumexp_reverse),
        _ => return None,
    })
}

fn window(op: &str, params: &Params, x: Tensor) -> Option<Tensor> {
    let reduced = |reducer| x.reduce_window(reducer, &windows(params, x));
    let pool = || pool(params, x);
    Some(match op {
        "reduce_window_and" => reduced(Reducer::And),
        "reduce_window_or" => reduced(Reducer::Or),
        "reduce_window_sum" => reduced(Reducer::Sum),
        "reduce_window_prod" => reduced(Reducer::Prod),
        "reduce_window_max" => reduced(Reducer::Max),
        "reduce_window_min" => reduced(Reducer::Min),
        "max_pool" => x.max_pool(&pool()),
        "min_pool" => x.min_pool(&pool()),
        "sum_pool" => x.sum_pool(&pool()),
        "avg_pool" => x.avg_pool(&pool()),
        _ => return None,
    })
}

/// Windows over all dimensions.
fn windows(params: &Params, x: Tensor) -> Pool {
    let axes: Vec<isize> = (0..x.rank() as isize).collect();
    Pool::new(axes, params.sizes("sizes"))
        .strides(params.sizes("strides"))
        .padding(params.pairs("padding"))
        .base_dilation(params.sizes("base_dilation"))
        .dilation(params.sizes("window_dilation"))
}

/// Windows over space, of batch, features, space.
fn pool(params: &Params, x: Tensor) -> Pool {
    let space = x.rank() - 2;
    let padding = params.int("padding");
    Pool::new(
        (2..x.rank() as isize).collect::<Vec<_>>(),
        vec![params.size("size"); space],
    )
    .strides(vec![params.size("stride"); space])
    .padding(vec![(padding, padding); space])
}
