//! Reductions, running ones, and those of windows.

use shardax::{Pool, Tensor, associative_scan};

use super::Class::{Bool, Float, Number};
use super::Want::{Any, Fits};
use super::{Operation, operations};
use crate::program::Parameters;

operations! { with x, p;
    "sum" [Any(Number, 0)] x[0].sum(&p.axes[..]);
    "sum of all" [Any(Float, 0)] x[0].sum(..);
    "prod" [Any(Number, 0)] x[0].prod(&p.axes[..]);
    "mean" [Any(Float, 0)] x[0].mean(&p.axes[..]);
    "var" [Any(Float, 0)] x[0].var(&p.axes[..]);
    "std" [Any(Float, 0)] x[0].std(&p.axes[..]);
    "norm" [Any(Float, 0)] x[0].norm(&p.axes[..]);
    "max" [Any(Number, 0)] x[0].max(&p.axes[..]);
    "min" [Any(Number, 0)] x[0].min(&p.axes[..]);
    "all" [Any(Bool, 0)] x[0].all(&p.axes[..]);
    "any" [Any(Bool, 0)] x[0].any(&p.axes[..]);
    "count_nonzero" [Any(Number, 0)] x[0].count_nonzero(&p.axes[..]);
    "argmax" [Any(Number, 1)] x[0].argmax(p.axis);
    "argmin" [Any(Number, 1)] x[0].argmin(p.axis);
    "logsumexp" [Any(Float, 0)] x[0].logsumexp(&p.axes[..]);
    "softmax" [Any(Float, 0)] x[0].softmax(&p.axes[..]);
    "softmax_where" [Any(Float, 0), Fits(0)] x[0].softmax_where(x[0].lt(x[1]), &p.axes[..]);
    "log_softmax" [Any(Float, 0)] x[0].log_softmax(&p.axes[..]);
    "logsumexp_weighted" [Any(Float, 1)] x[0].logsumexp_weighted(p.number, p.axis);
    "keep_dims" [Any(Float, 0)] x[0] - x[0].mean(&p.axes[..]).keep_dims(x[0], &p.axes[..]);
    "cumsum" [Any(Number, 1)] x[0].cumsum(p.axis);
    "cumsum_reverse" [Any(Number, 1)] x[0].cumsum_reverse(p.axis);
    "cumprod" [Any(Number, 1)] x[0].cumprod(p.axis);
    "cummax" [Any(Number, 1)] x[0].cummax(p.axis);
    "cummin" [Any(Number, 1)] x[0].cummin_reverse(p.axis);
    "cumlogsumexp" [Any(Float, 1)] x[0].cumlogsumexp(p.axis);
    "associative_scan" [Any(Float, 1)]
        associative_scan(|a: Tensor, b: Tensor| a * b + b, x[0] * 0.5, p.axis, p.flag);
    "max_pool" [Any(Number, 1)]
        x[0].max_pool(&Pool::new([p.axis], [p.count]).strides([p.step]));
    "min_pool" [Any(Number, 1)]
        x[0].min_pool(&Pool::new([p.axis], [p.count]).padding([(1, 0)]));
    "sum_pool" [Any(Number, 1)]
        x[0].sum_pool(&Pool::new([p.axis], [p.count]).dilation([p.step]).padding([(0, 2)]));
    "avg_pool" [Any(Float, 1)]
        x[0].avg_pool(&Pool::new([p.axis], [p.count]).strides([p.step]).padding([(1, 1)]));
    "sum_pool of a stretched one" [Any(Number, 1)]
        x[0].sum_pool(&Pool::new([p.axis], [p.count]).base_dilation([p.step]));
}
