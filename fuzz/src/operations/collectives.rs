//! What devices of a manual region tell each other.

use shardax::{
    DType, Tensor, all_gather, all_gather_invariant, all_to_all, axis_index, axis_size,
    broadcast_from, pmax, pmean, pmin, ppermute, psum, pvary, reduce_scatter,
};

use super::Class::{Any as All, Float, Number};
use super::Want::Any;
use super::{Operation, operations};
use crate::program::Parameters;

operations! { with x, p;
    "psum" [Any(Number, 0)] psum(x[0], p.over.clone());
    "pmean" [Any(Float, 0)] pmean(x[0], p.over.clone());
    "pmax" [Any(Number, 0)] pmax(x[0], p.over.clone());
    "pmin" [Any(Number, 0)] pmin(x[0], p.over.clone());
    "all_gather" [Any(All, 1)] all_gather(x[0], p.over.clone(), p.axis);
    "all_gather_invariant" [Any(All, 1)] all_gather_invariant(x[0], p.over.clone(), p.axis);
    "reduce_scatter" [Any(Number, 1)] reduce_scatter(x[0], p.over.clone(), p.axis);
    "all_to_all" [Any(All, 1)] all_to_all(x[0], p.over.clone(), p.axis, p.other);
    "ppermute" [Any(All, 0)]
        ppermute(x[0], p.over.clone(), (1..axis_size(p.over.clone())).map(|i| (i - 1, i)));
    "ppermute in a ring" [Any(All, 0)]
        ppermute(x[0], p.over.clone(), (0..axis_size(p.over.clone())).map(|i| (i, (i + p.count) % axis_size(p.over.clone()))));
    "broadcast_from" [Any(All, 0)] broadcast_from(x[0], p.over.clone(), axis_size(p.over.clone()) - 1);
    "axis_index" [Any(Float, 0)] x[0] * (axis_index(p.over.clone()) + 1).cast(x[0].dtype());
    "pvary" [Any(All, 0)] pvary(x[0], p.over.clone());
    "own part" [Any(All, 1)]
        x[0].dynamic_slice(p.axis, axis_index(p.over.clone()).cast(DType::I32), x[0].size(p.axis).min(1));
}
