//! Sorting and searching.

use shardax::{DType, Tensor, sort_by_key};

use super::Class::{Float, Integer, Number};
use super::Want::{Any, Same};
use super::{Operation, operations};
use crate::program::Parameters;

operations! { with x, p;
    "sort" [Any(Number, 1)] x[0].sort(p.axis);
    "sort_descending" [Any(Number, 1)] x[0].sort_descending(p.axis);
    "argsort" [Any(Number, 1)] x[0].argsort(p.axis);
    "argsort_descending" [Any(Number, 1)] x[0].argsort_descending(p.axis);
    "top_k" [Any(Number, 1)] x[0].top_k(p.count.min(x[0].size(-1))).0;
    "places of top_k" [Any(Number, 1)] x[0].top_k(p.count.min(x[0].size(-1))).1;
    "sort_by_key" [Any(Number, 1), Same(0)] sort_by_key([x[0], x[1]], 1, p.axis)[1];
    "sort by two keys" [Any(Number, 1), Same(0)] sort_by_key([x[0], x[1]], 2, p.axis)[1];
    "searchsorted" [Any(Number, 1), Same(0)] x[0].flatten().sort(0).searchsorted(x[1]);
    "unique" [Any(Number, 0)] x[0].unique(5, 0).values;
    "counts of unique" [Any(Number, 0)] x[0].unique(4, 0).counts;
    "quantile" [Any(Float, 0)] x[0].quantile(0.3, &p.axes[..]);
    "median" [Any(Float, 0)] x[0].median(&p.axes[..]);
    "bincount" [Any(Integer, 1)] x[0].cast(DType::I32).flatten().bincount(5);
    "histogram" [Any(Float, 0)] x[0].flatten().histogram(4, -2.0, 2.0);
}
