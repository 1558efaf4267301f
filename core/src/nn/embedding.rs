//! Rows of a table, by number.

use std::panic::Location;

use super::{check_float, refuse, wide_enough};
use crate::tensor::Tensor;
use crate::trace::method;

/// The number of rows of a table `[vocab, features]`, if the arguments are such.
#[track_caller]
fn rows(op: &'static str, table: Tensor, ids: Tensor) -> usize {
    check_float(op, "table", table);
    let (ty, id_ty) = (table.ty(), ids.ty());
    if ty.rank() != 2 || !id_ty.dtype.is_integer() {
        let problem = format!("`table` is {ty} and `ids` {id_ty}");
        let help = "give the table as [vocab, features] and the ids as integers";
        refuse(op, problem, help)
    }
    ty.shape[0]
}

/// The rows of `table`, `[vocab, features]`, that `ids` name, integers `[...]`: `[..., features]`.
///
/// An id outside of the table, a negative one too, gives NaN, never another row, and no gradient.
#[track_caller]
pub fn embedding(ids: Tensor, table: Tensor) -> Tensor {
    let op = "embedding";
    method(op, Location::caller(), || {
        rows(op, table, ids);
        table.take(ids, 0)
    })
}

/// Where ids are those of rows.
#[track_caller]
fn inside(ids: Tensor, count: usize) -> Tensor {
    let below = ids.lt(count as i64);
    match ids.dtype().is_signed_integer() {
        true => ids.ge(0) & below,
        false => below,
    }
}

/// [`embedding`] as a product with vectors that are 1 at the id and 0 elsewhere.
///
/// Where the vocabulary of the table is split over devices each multiplies its own rows, and the
/// results are summed: the table is not gathered, nor is its gradient. It costs `vocab` times the
/// arithmetic. A table that holds an infinity or NaN gives NaN for every id.
#[track_caller]
pub fn embedding_one_hot(ids: Tensor, table: Tensor) -> Tensor {
    let op = "embedding_one_hot";
    method(op, Location::caller(), || {
        let count = rows(op, table, ids);
        let ids = wide_enough(ids, count);
        let rows = ids.one_hot(count, table.dtype()).dot(table);
        inside(ids, count).expand_dims(-1).select(rows, f64::NAN)
    })
}
