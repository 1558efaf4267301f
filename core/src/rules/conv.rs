//! The transpose of a convolution, and its batching.
//!
//! A convolution is linear in either operand. The cotangent of the left one is a convolution of the
//! result's cotangent, its elements the strides apart, with the kernel turned around; that of the
//! kernel is a convolution of the left operand with the cotangent, in which batch and features
//! change places. Groups of features on one side are groups of the batch on the other.

use smallvec::smallvec;

use super::batch::Batched;
use super::transpose::Operand;
use crate::lax;
use crate::op::{Conv, ConvLayout, Dims};
use crate::tensor::Tensor;
use crate::transform::Tangents;
use crate::types::Shape;

pub(super) fn transpose_conv(conv: &Conv, operands: &[Operand], ct: Tensor) -> Tangents {
    let [lhs, rhs] = [operands[0].tensor.ty(), operands[1].tensor.ty()];
    let wanted = if operands[0].linear { &lhs } else { &rhs };
    let empty = ct.ty().element_count() == 0 || wanted.element_count() == 0;
    let found = match (empty, operands[0].linear) {
        (true, _) => lax::zeros(wanted),
        (false, true) => left(conv, &lhs.shape, operands[1].tensor, ct),
        (false, false) => kernel(conv, operands[0].tensor, &rhs.shape, ct),
    };
    let found = lax::convert(found, wanted.dtype);
    match operands[0].linear {
        true => smallvec![Some(found), None],
        false => smallvec![None, Some(found)],
    }
}

/// The elements that `size` ones span when they are `dilation` apart.
fn spanned(size: usize, dilation: usize) -> i64 {
    size.checked_sub(1)
        .map_or(0, |gaps| (gaps * dilation + 1) as i64)
}

/// Batch and features exchanged: of a kernel, what goes in and what comes out.
fn exchanged(layout: &ConvLayout) -> ConvLayout {
    ConvLayout {
        batch: layout.feature,
        feature: layout.batch,
        spatial: layout.spatial.clone(),
    }
}

/// What each spatial dimension is: sizes spanned of the left operand, kernel and result.
fn spans(conv: &Conv, lhs: &[usize], rhs: &[usize], out: &[usize]) -> Vec<[i64; 3]> {
    (0..conv.strides.len())
        .map(|i| {
            [
                spanned(lhs[conv.lhs.spatial[i]], conv.lhs_dilation[i]),
                spanned(rhs[conv.rhs.spatial[i]], conv.rhs_dilation[i]),
                spanned(out[conv.out.spatial[i]], conv.strides[i]),
            ]
        })
        .collect()
}

/// The left operand's cotangent.
fn left(conv: &Conv, lhs: &[usize], rhs: Tensor, ct: Tensor) -> Tensor {
    let spans = spans(conv, lhs, &rhs.shape(), &ct.shape());
    let padding = spans.iter().zip(&conv.padding).map(|(span, &(low, _))| {
        let [lhs, rhs, out] = *span;
        let before = rhs - low - 1;
        (before, lhs + rhs - 1 - out - before)
    });
    let groups = conv.feature_groups.max(conv.batch_groups);
    let mut kernel = lax::reverse(rhs, &conv.rhs.spatial);
    if groups > 1 {
        // Features that come out are counted within groups, those that go in over all of them.
        kernel = move_groups(kernel, conv.rhs.batch, conv.rhs.feature, groups);
    }
    let transposed = Conv {
        lhs: conv.out.clone(),
        rhs: exchanged(&conv.rhs),
        out: conv.lhs.clone(),
        strides: conv.lhs_dilation.clone(),
        padding: padding.collect(),
        lhs_dilation: conv.strides.clone(),
        rhs_dilation: conv.rhs_dilation.clone(),
        feature_groups: groups,
        batch_groups: 1,
        result: ct.dtype(),
    };
    let found = lax::conv(lax::convert(ct, rhs.dtype()), kernel, transposed);
    match conv.batch_groups {
        1 => found,
        groups => move_groups(found, conv.lhs.feature, conv.lhs.batch, groups),
    }
}

/// The kernel's cotangent.
fn kernel(conv: &Conv, lhs: Tensor, rhs: &[usize], ct: Tensor) -> Tensor {
    let spans = spans(conv, &lhs.shape(), rhs, &ct.shape());
    let padding = spans.iter().zip(&conv.padding).map(|(span, &(low, _))| {
        let [lhs, rhs, out] = *span;
        (low, out - lhs + rhs - low - 1)
    });
    let transposed = Conv {
        lhs: exchanged(&conv.lhs),
        rhs: exchanged(&conv.out),
        out: exchanged(&conv.rhs),
        strides: conv.rhs_dilation.clone(),
        padding: padding.collect(),
        lhs_dilation: conv.lhs_dilation.clone(),
        rhs_dilation: conv.strides.clone(),
        feature_groups: conv.batch_groups,
        batch_groups: conv.feature_groups,
        result: ct.dtype(),
    };
    lax::conv(lhs, lax::convert(ct, lhs.dtype()), transposed)
}

/// Dimension `dim` as two, `groups` groups and what is in one.
fn split(x: Tensor, dim: usize, groups: usize) -> Tensor {
    let mut shape = x.shape();
    shape[dim] /= groups;
    shape.insert(dim, groups);
    lax::reshape(x, &shape)
}

/// Dimension `from` as the outer part of dimension `to`.
fn merged(x: Tensor, from: usize, to: usize) -> Tensor {
    let shape = x.shape();
    let mut order: Dims = (0..shape.len()).filter(|&d| d != from).collect();
    let at = to - usize::from(to > from);
    order.insert(at, from);
    let mut merged: Shape = order.iter().map(|&d| shape[d]).collect();
    let outer = merged.remove(at);
    merged[at] *= outer;
    lax::reshape(lax::transpose(x, &order), &merged)
}

/// Takes `groups` groups, the outer part of dimension `from`, to the outside of dimension `to`.
fn move_groups(x: Tensor, from: usize, to: usize, groups: usize) -> Tensor {
    merged(split(x, from, groups), from, to + usize::from(to > from))
}

/// Puts the leading batch dimension into dimension `dim` (counted without it), inside of `groups`
/// groups.
fn inside(x: Tensor, dim: usize, groups: usize) -> Tensor {
    match groups {
        1 => merged(x, 0, dim + 1),
        groups => merged(merged(split(x, dim + 1, groups), 0, dim + 2), dim, dim + 1),
    }
}

/// A batch dimension is put into the batch, the features of the kernel, or, where both operands have
/// one, into groups.
pub(super) fn batch_conv(conv: &Conv, lhs: Batched, rhs: Batched, size: usize) -> Batched {
    let (features, batches) = (conv.feature_groups, conv.batch_groups);
    let (at, groups) = (conv.out.feature, features.max(batches));
    if rhs.dim.is_none() {
        let x = inside(lhs.at(0, size), conv.lhs.batch, batches);
        let result = lax::conv(x, rhs.tensor, conv.clone());
        return Batched::new(split(result, conv.out.batch, size), conv.out.batch);
    }
    if lhs.dim.is_none() {
        let kernel = inside(rhs.at(0, size), conv.rhs.batch, groups);
        let result = lax::conv(lhs.tensor, kernel, conv.clone());
        let result = match groups {
            1 => split(result, at, size),
            groups => {
                let apart = split(split(result, at, groups), at + 1, size);
                merged(apart, at, at + 2)
            }
        };
        return Batched::new(result, at);
    }
    let kernel = merged(rhs.at(0, size), 0, conv.rhs.batch + 1);
    let mut conv = conv.clone();
    let x = if batches > 1 {
        conv.batch_groups *= size;
        merged(lhs.at(0, size), 0, conv.lhs.batch + 1)
    } else {
        conv.feature_groups *= size;
        merged(lhs.at(0, size), 0, conv.lhs.feature + 1)
    };
    let result = lax::conv(x, kernel, conv);
    Batched::new(split(result, at, size), at)
}
