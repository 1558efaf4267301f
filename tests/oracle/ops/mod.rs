//! The operations, by their name in the golden file.

mod control;
mod elementwise;
mod indexing;
mod linear;
mod network;
mod random;
mod reduction;

use shardax::prelude::*;

use crate::golden::Params;

/// What an operation computes; `None` where there is none of this name.
pub(crate) fn apply(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    elementwise::apply(op, params, x)
        .or_else(|| linear::apply(op, params, x))
        .or_else(|| reduction::apply(op, params, x))
        .or_else(|| indexing::apply(op, params, x))
        .or_else(|| network::apply(op, params, x))
        .or_else(|| random::apply(op, params, x))
        .or_else(|| control::apply(op, params, x))
}
