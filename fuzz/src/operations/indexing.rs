//! Reading and writing by index.

use shardax::{Combine, DType, Tensor, s, stack};

use super::Class::{Any as All, Float, Integer, Number};
use super::Want::{Any, Made, Shape};
use super::{Operation, operations, size};
use crate::dice::Dice;
use crate::program::{Parameters, Type};

/// A vector of indices.
fn places(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    Some(Type::new(DType::I32, [size(dice)]))
}

/// Indices in any shape.
fn many_places(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    let dtype = *dice.one_of(&[DType::I32, DType::I32, DType::U8, DType::I64]);
    let shape: Vec<usize> = (0..dice.roll(3)).map(|_| size(dice)).collect();
    Some(Type::new(dtype, shape))
}

/// An update for each of the indices, which are the second operand.
fn rows(_: &mut Dice, types: &[Type]) -> Option<Type> {
    let mut ty = types[0].clone();
    *ty.shape.first_mut()? = types[1].count();
    Some(ty)
}

/// A part of the first dimension.
fn part(dice: &mut Dice, types: &[Type]) -> Option<Type> {
    let mut ty = types[0].clone();
    let first = ty.shape.first_mut()?;
    *first = dice.roll(*first + 1);
    Some(ty)
}

fn number(_: &mut Dice, _: &[Type]) -> Option<Type> {
    Some(Type::new(DType::I32, []))
}

fn pairs(dice: &mut Dice, _: &[Type]) -> Option<Type> {
    Some(Type::new(DType::I32, [size(dice), 2]))
}

operations! { with x, p;
    "take" [Any(All, 1), Made(many_places)] x[0].take(x[1], p.axis);
    "take inside" [Any(All, 1), Made(many_places)]
        x[0].take(x[1].cast(DType::I32).modulo(x[0].size(p.axis).max(1) as i64), p.axis);
    "take_along" [Any(All, 1)] x[0].take_along(x[0].cast(DType::F32).argsort(p.axis), p.axis);
    "take_along the largest" [Any(Number, 1)]
        x[0].take_along(x[0].argmax(p.axis).expand_dims(p.axis), p.axis);
    "gather_nd" [Any(All, 2), Made(pairs)] x[0].gather_nd(x[1]);
    "one_hot" [Any(Integer, 0)] x[0].one_hot(4, DType::F32);
    "scatter" [Any(All, 1), Made(places), Made(rows)]
        x[0].scatter(Tensor::arange(DType::I32, x[1].size(0)) * 2, x[2], 0);
    "scatter_add" [Any(Number, 1), Made(places), Made(rows)] x[0].scatter_add(x[1], x[2], 0);
    "scatter_mul" [Any(Number, 1), Made(places), Made(rows)] x[0].scatter_mul(x[1], x[2], 0);
    "scatter_max" [Any(Number, 1), Made(places), Made(rows)] x[0].scatter_max(x[1], x[2], 0);
    "scatter_min" [Any(Number, 1), Made(places), Made(rows)] x[0].scatter_min(x[1], x[2], 0);
    "scatter_nd" [Any(Float, 2), Made(pairs)] x[0].scatter_nd(x[1], p.number, Combine::Add);
    "put_along" [Any(Number, 1)]
        x[0].put_along(x[0].argmax(p.axis).expand_dims(p.axis), 1, p.axis);
    "dynamic_slice" [Any(All, 1), Made(number)]
        x[0].dynamic_slice(p.axis, x[1], p.stop - p.start);
    "dynamic_update" [Any(All, 1), Made(number), Made(part)] x[0].dynamic_update(0, x[1], x[2]);
    "set of a part" [Any(Number, 1)] x[0].at(s![1..]).set(2);
    "add to a part" [Any(Float, 2)] x[0].at(s![.., 0..1]).add(x[0].index(1, p.index).expand_dims(1));
    "get backwards" [Any(All, 1)] x[0].get(s![..; -1]);
    "get with a new axis" [Any(All, 1), Made(places)] x[0].get(s![x[1].clamp(0, 0), ..]);
    "pairs of places" [Any(Float, 2), Shape(0, Integer)]
        x[0].gather_nd(stack([x[0].argmax(0), x[0].argmin(0)], -1).reshape([-1, 2]));
}
