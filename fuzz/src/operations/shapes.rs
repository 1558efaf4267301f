//! Operations that move elements.

use shardax::{Tensor, concatenate, stack};

use super::Class::{Any as All, Float};
use super::Want::{Any, Made, Same};
use super::{Operation, operations, size};
use crate::dice::Dice;
use crate::program::{Parameters, Type};

/// The type of the first operand with another size of its first dimension.
fn longer(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    let mut ty = types[0].clone();
    *ty.shape.first_mut()? = size(dice);
    Some(ty)
}

operations! { with x, p;
    "reshape" [Any(All, 0)] x[0].reshape(&p.shape[..]);
    "flatten" [Any(All, 0)] x[0].flatten();
    "merge_dims" [Any(All, 2)] x[0].merge_dims(0, 1);
    "broadcast_to" [Any(All, 0)] x[0].broadcast_to(&p.wide[..]);
    "transpose" [Any(All, 0)] x[0].transpose(&p.permutation[..]);
    "swap_axes" [Any(All, 1)] x[0].swap_axes(p.axis, p.other);
    "moveaxis" [Any(All, 1)] x[0].moveaxis(p.axis, p.other);
    "expand_dims" [Any(All, 0)] x[0].expand_dims(0);
    "expand_dims at the end" [Any(All, 0)] x[0].expand_dims(-1);
    "squeeze" [Any(All, 1)] x[0].index(p.axis, p.index).expand_dims(0).squeeze(0);
    "reverse" [Any(All, 0)] x[0].reverse(&p.axes[..]);
    "roll" [Any(All, 1)] x[0].roll(p.low, p.axis);
    "tile" [Any(All, 1)] x[0].tile([p.count]);
    "repeat" [Any(All, 1)] x[0].repeat(p.count, p.axis);
    "concatenate" [Any(All, 1), Made(longer)] concatenate([x[0], x[1]], 0);
    "concatenate with itself" [Any(All, 1), Same(0)] concatenate([x[1], x[0], x[1]], p.axis);
    "stack" [Any(All, 0), Same(0)] stack([x[0], x[1]], -1);
    "slice" [Any(All, 1)] x[0].slice(p.axis, p.start..p.stop);
    "step_by" [Any(All, 1)] x[0].step_by(p.axis, p.step);
    "index" [Any(All, 1)] x[0].index(p.axis, p.index);
    "pad" [Any(Float, 1)] x[0].pad(p.axis, p.low, p.high, p.number);
    "pad of any" [Any(All, 1)] x[0].pad(p.axis, p.high, p.low, 1);
    "dilate" [Any(All, 1)] x[0].dilate(p.axis, p.step, 0);
    "split" [Any(All, 1)] x[0].split_at([p.start], p.axis)[1];
    "chunks" [Any(All, 1)] x[0].chunks(p.count, p.axis)[0];
    "tril" [Any(All, 2)] x[0].tril(p.low as i64);
    "triu" [Any(All, 2)] x[0].triu(p.high as i64);
    "diagonal" [Any(All, 2)] x[0].diagonal(p.low as i64);
    "diag" [Any(All, 1)] x[0].diag(p.low as i64);
    "cut and put together" [Any(All, 1)]
        concatenate([x[0].slice(p.axis, p.start..), x[0].slice(p.axis, ..p.start)], p.axis);
}
